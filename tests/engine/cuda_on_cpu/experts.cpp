// The expert kernels of engine/kernels/cuda/expert_nvfp4.cu on a CPU, callable from Python.
#include "primitives.h"
#include "expert_nvfp4.cu"

extern "C" void run_direct(const u8* gate_up, const u8* down, const float* gate_up_scales, const float* down_scales,
                           const u16* x, const int* slots, const int* active, const int* pair_token, int* finished,
                           u16* act, float* out, int max_slots, int) {
    (void)finished;
    const int4* s = reinterpret_cast<const int4*>(slots);
    emu::launch(TILES1, max_slots, 32 * SLICES1, SLICES1 * (C1 + 2) * 1024, 4, [&] {
        gate_up_direct(reinterpret_cast<const uint4*>(gate_up), reinterpret_cast<const float2*>(gate_up_scales), x, s,
                       active, pair_token, act);
    });
    emu::launch((TILES2 / 2 + PAIRS2 - 1) / PAIRS2, max_slots, 32 * WARPS2, WARPS2 * (C2 + 2) * 1024, 4, [&] {
        down_direct(reinterpret_cast<const uint4*>(down), down_scales, act, s, active, out);
    });
}

#ifdef GROUPS
extern "C" void run_ring(const u8* gate_up, const u8* down, const float* gate_up_scales, const float* down_scales,
                         const u16* x, const int* slots, const int* active, const int* pair_token, int* finished, u16* act,
                         float* out, int, int blocks) {
    emu::launch(blocks, 1, GROUPS * GROUP + 32, STAGES * UNIT + GROUPS * SUMS * 8 + STAGES * 16 + 16, blocks, [&] {
        experts_ring(gate_up, down, reinterpret_cast<const float2*>(gate_up_scales), down_scales, x,
                     reinterpret_cast<const int4*>(slots), active, pair_token, finished, act, out);
    });
}
#endif
