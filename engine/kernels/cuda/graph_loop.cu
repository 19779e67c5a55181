// The device side of the reply's nested loop: after each step, after each block, and the trace ring.
//
// Knows counters, caps, the stop flag and how to write a record; knows no model. Every loop ends by a cap on the device.
// Words of `control` (device int32) and of `host` (pinned int32, polled from Python) are named in
// engine/kernels/graph_loop.py, which must agree with the enums here.
#include "primitives.cuh"

typedef unsigned long long cudaGraphConditionalHandle;
#ifndef UNBLUR_ON_CPU
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value);
#endif

enum Control { BLOCK, STEP, FORWARDS, STEP_CAP, BLOCK_CAP, ENDED_BY, RECORDS, KEPT, KNOWN_READ, CONTROL_WORDS = 16 };
enum Host { STOP, WRITTEN, READ, DROPPED, HOST_FORWARDS, HOST_BLOCKS, HOST_ENDED_BY, HOST_WORDS = 16 };
enum Ended { RUNNING, COMPLETE, STOPPED, CAPPED, NONFINITE };
enum Header { SEQUENCE, HEAD_BLOCK, HEAD_STEP, HEAD_FORWARDS, TIME_LOW, TIME_HIGH, HEAD_ROWS, HEAD_LENGTH, HEADER_WORDS };
enum State { DRAFT = 1, COMMITTED = 2, EDITED = 3, PROMPT = 4 };  // engine.types.TokenState

__device__ __forceinline__ int load_volatile(const int* p) { return *static_cast<const volatile int*>(p); }

// One thread. Sets the block's loop going for another step, or not. finished, nonfinite: bool [rows].
extern "C" __global__ void after_step(cudaGraphConditionalHandle inner, int* control, int* host, const u8* finished,
                                      const u8* nonfinite, int rows) {
    bool all = true, broken = false;
    for (int row = 0; row < rows; ++row) all &= finished[row] != 0, broken |= nonfinite[row] != 0;
    const int step = ++control[STEP];
    host[HOST_FORWARDS] = ++control[FORWARDS];
    if (broken) control[ENDED_BY] = NONFINITE;
    else if (load_volatile(host + STOP)) control[ENDED_BY] = STOPPED;
    const bool going = !all && step < control[STEP_CAP] && control[ENDED_BY] == RUNNING;
    __threadfence_system();
    cudaGraphSetConditional(inner, going ? 1u : 0u);
}

// One thread. Sets the reply's loop going for another block, or not, and arms the block's loop again. over: bool [rows],
// rows whose reply is complete.
extern "C" __global__ void after_block(cudaGraphConditionalHandle outer, cudaGraphConditionalHandle inner, int* control,
                                       int* host, const u8* over, int rows) {
    bool all = true;
    for (int row = 0; row < rows; ++row) all &= over[row] != 0;
    const int block = ++control[BLOCK];
    control[STEP] = 0;
    if (control[ENDED_BY] == RUNNING) {
        if (all) control[ENDED_BY] = COMPLETE;
        else if (load_volatile(host + STOP)) control[ENDED_BY] = STOPPED;
        else if (block >= control[BLOCK_CAP]) control[ENDED_BY] = CAPPED;
    }
    const bool going = control[ENDED_BY] == RUNNING;
    host[HOST_BLOCKS] = block;
    __threadfence_system();
    host[HOST_ENDED_BY] = control[ENDED_BY];
    __threadfence_system();
    cudaGraphSetConditional(inner, going ? 1u : 0u);
    cudaGraphSetConditional(outer, going ? 1u : 0u);
}

// One block of threads, run after the rule and before after_step. Writes what every position shows into the ring's next
// record, if the reader has left room; never waits. Record: header, then ids int32, edited_from int32, confidence float32,
// entropy float32 [rows * length], top ids int32 and top probabilities float32 [rows * length * top], state u8 [rows *
// length], padded to 16 bytes.
extern "C" __global__ void trace_step(int* control, int* host, u8* ring, int capacity, int record_bytes,
                                      const long long* tokens, const long long* proposal, const long long* replaced,
                                      const float* confidence, const float* entropy, const u8* edited, const u8* prompt,
                                      const int* top_ids, const float* top_prob, int rows, int length, int top,
                                      int mask_id) {
    DYNAMIC_SHARED(shared);
    int* slot = reinterpret_cast<int*>(shared);
    if (threadIdx.x == 0) {
        // The reader's place is asked for over the bus only when the ring looks full. Unsigned differences survive the
        // counters' wrapping; capacity is a power of two, so that places do too.
        const u32 kept = control[KEPT], most = capacity;
        if (kept - static_cast<u32>(control[KNOWN_READ]) >= most) control[KNOWN_READ] = load_volatile(host + READ);
        const bool room = kept - static_cast<u32>(control[KNOWN_READ]) < most;
        *slot = room ? static_cast<int>(kept % most) : -1;
    }
    __syncthreads();
    const int sequence = control[RECORDS], at = *slot, n = rows * length;
    if (at >= 0) {
        int* header = reinterpret_cast<int*>(ring + static_cast<u64>(at) * record_bytes);
        int* ids = header + HEADER_WORDS;
        int* from = ids + n;
        float* sure = reinterpret_cast<float*>(from + n);
        float* unsure = sure + n;
        int* best = reinterpret_cast<int*>(unsure + n);
        float* best_prob = reinterpret_cast<float*>(best + n * top);
        u8* state = reinterpret_cast<u8*>(best_prob + n * top);
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const bool masked = tokens[i] == mask_id, given = prompt[i] != 0;
            ids[i] = static_cast<int>(masked ? proposal[i] : tokens[i]);
            from[i] = static_cast<int>(replaced[i]);
            const float nan = __uint_as_float(0x7fc00000u);  // nobody has judged a prompt token
            sure[i] = given ? nan : confidence[i];
            unsure[i] = given ? nan : entropy[i];
            state[i] = static_cast<u8>(given ? PROMPT : masked ? DRAFT : edited[i] ? EDITED : COMMITTED);
        }
        for (int i = threadIdx.x; i < n * top; i += blockDim.x) best[i] = top_ids[i], best_prob[i] = top_prob[i];
        if (threadIdx.x == 0) {
            const u64 now = global_nanoseconds();
            header[SEQUENCE] = sequence, header[HEAD_BLOCK] = control[BLOCK], header[HEAD_STEP] = control[STEP];
            header[HEAD_FORWARDS] = control[FORWARDS] + 1;
            header[TIME_LOW] = static_cast<int>(now & 0xffffffffu), header[TIME_HIGH] = static_cast<int>(now >> 32);
            header[HEAD_ROWS] = rows, header[HEAD_LENGTH] = length;
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        control[RECORDS] = sequence + 1;
        if (at >= 0) {
            control[KEPT] = static_cast<int>(static_cast<u32>(control[KEPT]) + 1u);
            *static_cast<volatile int*>(host + WRITTEN) = control[KEPT];  // after the fence above
        } else host[DROPPED] = sequence + 1 - control[KEPT];
    }
}
