// The attention of engine/kernels/cuda/attention.cu on a CPU, callable from Python.
#include "primitives.h"
#include "attention.cu"

extern "C" void run_attention(const u16* q, const u16* keys, const u16* values, const START* start, u16* out,
                              const float* scale, int batch, int length, int heads, int capacity) {
    constexpr int staged = 2 * STAGE * 16, merged = KEY_WARPS * TOKENS * (PITCH * 4 + 16);
    emu::launch(heads * SPLITS, batch * ((length + TOKENS - 1) / TOKENS), THREADS, staged > merged ? staged : merged, SPLITS,
                [&] { attend(q, keys, values, start, out, length, heads, capacity, *scale); }, SPLITS);
}
