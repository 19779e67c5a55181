// The loop kernels of engine/kernels/cuda/graph_loop.cu on a CPU: the graph's conditionals are plain variables.
#define UNBLUR_ON_CPU
#include "primitives.h"
static unsigned conditional[8];
inline void cudaGraphSetConditional(unsigned long long handle, unsigned value) { conditional[handle] = value; }
#include "graph_loop.cu"

extern "C" int run_after_step(int* control, int* host, const u8* finished, const u8* nonfinite, int rows) {
    emu::launch(1, 1, 1, 0, 1, [&] { after_step(1, control, host, finished, nonfinite, rows); });
    return conditional[1];
}

extern "C" int run_after_block(int* control, int* host, const u8* over, int rows) {
    emu::launch(1, 1, 1, 0, 1, [&] { after_block(2, 1, control, host, over, rows); });
    return conditional[2] + 2 * conditional[1];
}

extern "C" void run_trace(int* control, int* host, u8* ring, int capacity, int record_bytes, const long long* tokens,
                          const long long* proposal, const long long* replaced, const float* confidence,
                          const float* entropy, const u8* edited, const u8* prompt, const int* top_ids,
                          const float* top_prob, int rows, int length, int top, int mask_id) {
    emu::launch(1, 1, 64, 16, 1, [&] {
        trace_step(control, host, ring, capacity, record_bytes, tokens, proposal, replaced, confidence, entropy, edited,
                   prompt, top_ids, top_prob, rows, length, top, mask_id);
    });
}
