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
enum { KEEP_STEP, KEEP_BLOCK, COMMIT, STOP, STEPS, BLOCKS, LIMIT, LEVEL, READY, ACCEPTED, OPEN, TAKEN };
// `Mailbox` in engine/runtime/conditional.py: pinned host memory, so every access is volatile.
enum { MAIL_STEPS, MAIL_BLOCKS, MAIL_START, MAIL_STOP };

// The host may ask to stop at any time; from here on the pieces see it too. The limit ends a loop whatever is wrong.
__device__ __forceinline__ bool may_go_on(Words control, volatile long long* mailbox) {
    if (mailbox[MAIL_STOP]) control[STOP] = 1;
    return !control[STOP] && control[STEPS] < control[LIMIT];
}

// Stamps the record of the step that has just been taken, then lets the host see it.
__device__ __forceinline__ void publish_step(Words control, volatile long long* mailbox, int* records, long long slots,
                                             long long words) {
    long long steps = control[STEPS];
    *(Words)(records + (steps - 1) % slots * words) = nanoseconds();
    __threadfence_system();
    mailbox[MAIL_STEPS] = steps;
}

// A step alone comes next: not the last look at a block that may be settled, which `verify` takes.
__device__ __forceinline__ bool narrow(Words control) { return control[KEEP_STEP] && !control[READY]; }
__device__ __forceinline__ bool wide(Words control) { return control[KEEP_STEP] && control[READY]; }

extern "C" __global__ void reply_start(volatile long long* mailbox) {
    mailbox[MAIL_START] = nanoseconds();
    __threadfence_system();
}

// Before a block's first step: does the block before still need its commit?
extern "C" __global__ void reply_arm(Condition first, Words control) {
    cudaGraphSetConditional(first, control[COMMIT] != 0);
}

// The same where a block may be under way already, since its first step was taken ahead.
extern "C" __global__ void reply_open(Condition fresh, Condition first, Words control) {
    cudaGraphSetConditional(fresh, !control[OPEN]);
    cudaGraphSetConditional(first, !control[OPEN] && control[COMMIT]);
}

// After the conditional first step, which may not have run.
extern "C" __global__ void reply_first(Condition inner, Words control, volatile long long* mailbox, int* records,
                                       long long slots, long long words) {
    if (!control[OPEN] && control[COMMIT]) publish_step(control, mailbox, records, slots, words);
    cudaGraphSetConditional(inner, may_go_on(control, mailbox) && narrow(control));
}

extern "C" __global__ void reply_step(Condition inner, Words control, volatile long long* mailbox, int* records,
                                      long long slots, long long words) {
    publish_step(control, mailbox, records, slots, words);
    cudaGraphSetConditional(inner, may_go_on(control, mailbox) && narrow(control));
}

// After the steps alone: may the next one settle the block?
extern "C" __global__ void reply_settle(Condition verify, Words control, volatile long long* mailbox) {
    cudaGraphSetConditional(verify, may_go_on(control, mailbox) && wide(control));
}

extern "C" __global__ void reply_verify(Condition verify, Words control, volatile long long* mailbox, int* records,
                                        long long slots, long long words) {
    publish_step(control, mailbox, records, slots, words);
    cudaGraphSetConditional(verify, may_go_on(control, mailbox) && wide(control));
}

// The block is over by a step ahead, or over, or (masks came back) neither.
extern "C" __global__ void reply_decide(Condition accept, Condition end, Words control, volatile long long* mailbox) {
    bool go = may_go_on(control, mailbox);
    bool taken = go && control[ACCEPTED];
    bool ended = !taken && !(go && control[KEEP_STEP]);
    control[TAKEN] = taken;
    control[OPEN] = !ended;
    cudaGraphSetConditional(accept, taken);
    cudaGraphSetConditional(end, ended);
}

// After a block: its log entry is stamped and published, and the outer loop goes on or not. A stop that comes while a
// block is open lets the loop run once more, to end it.
extern "C" __global__ void reply_block(Condition outer, Words control, volatile long long* mailbox, int* log,
                                       long long log_words, int* records, long long slots, long long words) {
    if (!control[OPEN] || control[TAKEN]) {
        long long blocks = control[BLOCKS];
        *(Words)(log + (blocks - 1) * log_words) = nanoseconds();
        __threadfence_system();
        mailbox[MAIL_BLOCKS] = blocks;
    }
    if (control[TAKEN]) publish_step(control, mailbox, records, slots, words);
    bool go = may_go_on(control, mailbox);
    cudaGraphSetConditional(outer, control[OPEN] || (go && control[KEEP_BLOCK]));
}
