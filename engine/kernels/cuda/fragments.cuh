// Reading NVFP4 weights that engine/kernels/fragments.py has re-packed in mma fragment order: bits to bf16, block by block.
//
// Knows the bit order of codes and scales; knows nothing of experts, layers or where the bytes come from.
#ifndef UNBLUR_FRAGMENTS
#define UNBLUR_FRAGMENTS
#include "primitives.cuh"

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
constexpr float UNSCALE = 128.0f;  // codes carry 2^-126, scales 2^119 (fragments.py)

// Two words hold 16 weights; each output register is two of them as bf16 times 2^-126. Bits 6-8 and 15 of each half are
// cut out of a rotated word: three registers from each word, two from the bits both words have left.
__device__ __forceinline__ void unpack(u32 w0, u32 w1, u32* a) {
    constexpr u32 mask = 0x81c081c0u, left0 = 0x80c180c1u;
    const u32 rest = select_bits(left0, w0, w1);
    a[0] = rotate_right(w0, 2) & mask;
    a[1] = rotate_right(w0, 6) & mask;
    a[2] = (w0 << 4) & mask;
    a[3] = rotate_right(w1, 4) & mask;
    a[4] = rotate_right(w1, 8) & mask;
    a[5] = (w1 << 2) & mask;
    a[6] = (rest << 6) & mask;
    a[7] = rest & mask;
}

__device__ __forceinline__ u32 word_of(const uint4& v, int index) {
    return index == 0 ? v.x : index == 1 ? v.y : index == 2 ? v.z : v.w;
}

// Scale byte (5 exponent, 3 mantissa bits) as bf16 times 2^119, in both halves.
__device__ __forceinline__ u32 scale_pair(const uint4& scales, int byte) {
    return spread_byte(word_of(scales, byte >> 2), byte & 3) * 16u + 0x70007000u;
}

// One lane's share of 16 rows x 64 columns, scaled: four registers for each of four mma steps. c: block in its slice.
__device__ __forceinline__ void expand_block(u32 (&a)[16], const uint4& codes, const uint4& scales, int c) {
    unpack(codes.x, codes.y, a);
    unpack(codes.z, codes.w, a + 8);
    const u32 s0 = scale_pair(scales, 2 * c), s1 = scale_pair(scales, 2 * c + 1);  // rows g and g + 8
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = mul_bf16x2(a[i], i & 1 ? s1 : s0);
}

#endif  // UNBLUR_FRAGMENTS
