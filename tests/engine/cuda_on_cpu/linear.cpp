// The products of engine/kernels/cuda/linear.cu on a CPU, callable from Python.
#include "primitives.h"
#include "linear.cu"

extern "C" void run_linear(const u8* weight, const float* scales, const u16* x, int tokens, u16* out, const u16* second,
                           float* logits) {
    constexpr int staged = SLICES * C * CHUNKS * 1024, sums = SLICES * TOKENS * PITCH * 4;
    const int blocks = (GROUPS + LOGIT_GROUPS) * CLUSTER;
    emu::launch(blocks, (tokens + TOKENS - 1) / TOKENS, THREADS, staged > sums ? staged : sums, 2 * CLUSTER, [&] {
        linear(reinterpret_cast<const uint4*>(weight), scales, x, tokens, out, reinterpret_cast<const uint4*>(second),
               logits);
    }, CLUSTER);
}
