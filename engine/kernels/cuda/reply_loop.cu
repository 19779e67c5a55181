// The control kernels of a reply that runs as one graph: one thread each, between the captured pieces.
//
// Knows the loop's registers (`engine.runtime.reply.Control`), the mailbox the host polls, and which condition each
// point of the graph sets. Knows no tensor of the model. Tests run it on a CPU by defining REPLY_LOOP_ON_CPU and their
// own clock, fence and conditions.
#ifndef REPLY_LOOP_ON_CPU
typedef unsigned long long cudaGraphConditionalHandle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(cudaGraphConditionalHandle handle,
                                                                      unsigned int value);
__device__ __forceinline__ long long nanoseconds() {
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

typedef cudaGraphConditionalHandle Condition;
typedef long long* Words;

// `Control` in engine/runtime/reply.py.
enum { KEEP_STEP, KEEP_BLOCK, COMMIT, STOP, STEPS, BLOCKS, LIMIT };
// `Mailbox` in engine/runtime/conditional.py: pinned host memory, so every access is volatile.
enum { MAIL_STEPS, MAIL_BLOCKS, MAIL_START, MAIL_STOP };

// The host may ask to stop at any time; from here on the pieces see it too. The limit ends a loop whatever is wrong.
__device__ __forceinline__ bool may_go_on(Words control, volatile long long* mailbox) {
    if (mailbox[MAIL_STOP]) control[STOP] = 1;
    return !control[STOP] && control[STEPS] < control[LIMIT];
}

// Stamps the record of the step that has just been taken, then lets the host see it.
__device__ __forceinline__ bool publish_step(Words control, volatile long long* mailbox, int* records, long long slots,
                                             long long words) {
    long long steps = control[STEPS];
    *(Words)(records + (steps - 1) % slots * words) = nanoseconds();
    __threadfence_system();
    mailbox[MAIL_STEPS] = steps;
    return may_go_on(control, mailbox) && control[KEEP_STEP];
}

extern "C" __global__ void reply_start(volatile long long* mailbox) {
    mailbox[MAIL_START] = nanoseconds();
    __threadfence_system();
}

// Before a block's first step: does the block before still need its commit?
extern "C" __global__ void reply_arm(Condition first, Words control) {
    cudaGraphSetConditional(first, control[COMMIT] != 0);
}

// After the conditional first step, which may not have run.
extern "C" __global__ void reply_first(Condition inner, Words control, volatile long long* mailbox, int* records,
                                       long long slots, long long words) {
    bool again = control[COMMIT] ? publish_step(control, mailbox, records, slots, words) : true;
    cudaGraphSetConditional(inner, again);
}

extern "C" __global__ void reply_step(Condition inner, Words control, volatile long long* mailbox, int* records,
                                      long long slots, long long words) {
    cudaGraphSetConditional(inner, publish_step(control, mailbox, records, slots, words));
}

// After a block: its log entry is stamped and published, and the outer loop goes on or not.
extern "C" __global__ void reply_block(Condition outer, Words control, volatile long long* mailbox, int* log,
                                       long long words) {
    long long blocks = control[BLOCKS];
    *(Words)(log + (blocks - 1) * words) = nanoseconds();
    __threadfence_system();
    mailbox[MAIL_BLOCKS] = blocks;
    cudaGraphSetConditional(outer, may_go_on(control, mailbox) && control[KEEP_BLOCK]);
}
