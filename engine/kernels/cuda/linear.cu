// y = x W^T for few tokens, from bf16 or NVFP4 weights: reading W is the time, so every load of it is in flight at once.
//
// Knows one product, optionally activated (silu(gate) * up) and joined by a second matrix with float32 results (a router's
// logits). The WEIGHTS are the 16-row operand of mma.m16n8k16, tokens its 8 columns. A warp owns 16 rows x one unit of
// columns and asks for its weights before the kernel ahead is complete (they do not depend on it); then the block stages
// its tokens in shared memory in the order in which lanes read them. The columns are split over SLICES warps of a block
// and CLUSTER blocks of a cluster, whose partial sums are added in a fixed order: results do not depend on scheduling,
// nor on how many tokens there are.
//
// Set by the builder: SIZE (rows of W), COLUMNS; TOKENS (that a block takes: 8, 16, 32 or 64); TILES, SLICES, CLUSTER;
// PACKED for NVFP4 in fragment order (fragments.py); GATED: W is gate over up; LOGITS: rows of the second matrix, 0 = none.
#include "fragments.cuh"

constexpr int BLOCKS = CEIL_DIV(COLUMNS, 64), SPLIT = SLICES * CLUSTER;
#ifdef PACKED
constexpr int UNITS = CEIL_DIV(BLOCKS, 8), C = CEIL_DIV(BLOCKS, UNITS);
static_assert(LOGITS == 0, "the second matrix is bf16");
#else
constexpr int C = CEIL_DIV(BLOCKS, SPLIT) < 4 ? CEIL_DIV(BLOCKS, SPLIT) : 4, UNITS = CEIL_DIV(BLOCKS, C);
#endif
constexpr int PASSES = CEIL_DIV(UNITS, SPLIT), CHUNKS = TOKENS / 8;
constexpr int ROWS = 16 * TILES, THREADS = 32 * TILES * SLICES;
constexpr int PITCH = ROWS + 4;  // floats between two tokens' partial sums: no two lanes of a warp meet in a bank
#ifdef GATED
constexpr int PARTS = 2;
#else
constexpr int PARTS = 1;
#endif
constexpr int ROWS_OUT = ROWS / PARTS, SIZE_OUT = SIZE / PARTS, GROUPS = CEIL_DIV(SIZE_OUT, ROWS_OUT);
constexpr int LOGIT_GROUPS = CEIL_DIV(LOGITS, ROWS);
static_assert(TILES % PARTS == 0 && SIZE_OUT % 16 == 0 && LOGITS % 16 == 0 && COLUMNS % 8 == 0, "shape");

// A lane's share of one unit.
struct Weights {
#ifdef PACKED
    uint4 codes[C], scales;
#else
    uint4 rows[C][4];  // per 64 columns: row g at columns 8q and 32 + 8q, then row g + 8
#endif
};

// Tile: 16 rows of the matrix.
__device__ __forceinline__ void load_unit(Weights& w, const uint4* matrix, int tile, int unit) {
    const int lane = threadIdx.x & 31;
#ifdef PACKED
    const uint4* base = matrix + static_cast<u64>(tile) * (UNITS * (C + 1) * 32) + lane;
    if (unit >= UNITS) {
        w.scales = make_uint4(0, 0, 0, 0);  // never multiplied: the caller leaves such units out
        return;
    }
#pragma unroll
    for (int c = 0; c < C; ++c) w.codes[c] = load_stream(base + (unit * C + c) * 32);
    w.scales = load_stream(base + (UNITS * C + unit) * 32);
#else
    const int g = lane >> 2, q = lane & 3;
    const u16* row = reinterpret_cast<const u16*>(matrix) + (static_cast<u64>(tile) * 16 + g) * COLUMNS;
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = (unit * C + c) * 64 + (i & 1) * 32 + q * 8;
            w.rows[c][i] = make_uint4(0, 0, 0, 0);
            if (column < COLUMNS) w.rows[c][i] = load_stream(row + (i >> 1) * 8 * COLUMNS + column);
        }
#endif
}

// Where in 64 columns lane q's first or second eight are. Any order will do that weights and tokens share.
__device__ __forceinline__ int place(int q, int half) {
#ifdef PACKED
    return q * 16 + half * 8;
#else
    return half * 32 + q * 8;
#endif
}

// Copies this block's columns of its tokens: [slice][c][chunk][half][lane] of 16 bytes.
__device__ __forceinline__ void stage_tokens(uint4* staged, const u16* x, int first_unit, int base, int tokens) {
    for (int i = threadIdx.x; i < SLICES * C * CHUNKS * 64; i += THREADS) {
        const int lane = i & 31, half = i >> 5 & 1, chunk = i / 64 % CHUNKS, block = i / (64 * CHUNKS);
        const int token = base + chunk * 8 + (lane >> 2);
        const int column = (first_unit * C + block) * 64 + place(lane & 3, half);
        if (token < tokens && column < COLUMNS)
            copy16_async(staged + i, x + static_cast<u64>(token) * COLUMNS + column);
        else
            staged[i] = make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void multiply_unit(float (&acc)[CHUNKS][4], Weights& w, const uint4* staged) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
        u32 a[16];
#ifdef PACKED
        pin(w.codes[c].x), pin(w.codes[c].y), pin(w.codes[c].z), pin(w.codes[c].w);
        expand_block(a, w.codes[c], w.scales, c);
#else
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 low = w.rows[c][half], high = w.rows[c][half + 2];
            u32* at = a + 8 * half;
            at[0] = low.x, at[1] = high.x, at[2] = low.y, at[3] = high.y;
            at[4] = low.z, at[5] = high.z, at[6] = low.w, at[7] = high.w;
        }
#endif
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 b = staged[((c * CHUNKS + n) * 2 + half) * 32];
                const u32* at = a + 8 * half;
                mma_bf16(acc[n], at[0], at[1], at[2], at[3], b.x, b.y);
                mma_bf16(acc[n], at[4], at[5], at[6], at[7], b.z, b.w);
            }
    }
}

// Four rows of one token, all partial sums: blocks of the cluster in order, in each its slices in order.
__device__ __forceinline__ float4 whole_sum(const float* sums, int token, int row) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank)
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            const float4 part = cluster_load(sums + (slice * TOKENS + token) * PITCH + row, rank);
            total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
    return total;
}

__device__ __forceinline__ float4 times(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

__device__ __forceinline__ uint2 four_bf16(float4 v) {
    return make_uint2(to_bf16(v.x) | static_cast<u32>(to_bf16(v.y)) << 16,
                      to_bf16(v.z) | static_cast<u32>(to_bf16(v.w)) << 16);
}

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

// Grid ((GROUPS + LOGIT_GROUPS) * CLUSTER, tokens / TOKENS rounded up), 32 * TILES * SLICES threads; shared: the larger
// of SLICES * C * CHUNKS KiB and SLICES * TOKENS * PITCH * 4 bytes. x bf16 [tokens, COLUMNS]; scales float32 [SIZE / 16],
// of 16 rows each (PACKED); out bf16 [tokens, SIZE_OUT]; second bf16 [LOGITS, COLUMNS] and logits float32 [tokens, LOGITS].
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, BLOCKS_PER_SM)
    linear(const uint4* weight, const float* scales, const u16* x, int tokens, u16* out, const uint4* second,
           float* logits) {
    DYNAMIC_SHARED(shared);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int tile = warp % TILES, slice = warp / TILES, rank = blockIdx.x % CLUSTER;
    const int group = blockIdx.x / CLUSTER - LOGIT_GROUPS, base = blockIdx.y * TOKENS;
    const bool plain = LOGITS > 0 && group < 0;  // of the second matrix
    // Warps past the last row compute on the first and store nothing.
    int matrix_tile = 0;
    if (plain) {
        const int wanted = (group + LOGIT_GROUPS) * TILES + tile;
        matrix_tile = wanted < LOGITS / 16 ? wanted : 0;
    } else {
        constexpr int EACH = TILES / PARTS;
        const int wanted = group * EACH + tile % EACH;
        matrix_tile = (wanted < SIZE_OUT / 16 ? wanted : 0) + tile / EACH * (SIZE_OUT / 16);
    }
    const uint4* matrix = plain ? second : weight;
    Weights w;
    load_unit(w, matrix, matrix_tile, rank * SLICES + slice);
    grid_wait();
    grid_release_next();
    uint4* staged = reinterpret_cast<uint4*>(shared);
    float acc[CHUNKS][4] = {};
    for (int pass = 0; pass < PASSES; ++pass) {
        const int first_unit = pass * SPLIT + rank * SLICES, unit = first_unit + slice;
        if (pass > 0) {
            load_unit(w, matrix, matrix_tile, unit);
            __syncthreads();  // the tokens of the pass before have been read
        }
        stage_tokens(staged, x, first_unit, base, tokens);
        copies_wait();
        __syncthreads();
        if (unit < UNITS) multiply_unit(acc, w, staged + slice * C * CHUNKS * 64 + lane);
    }
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);  // [slice][token][PITCH]
#pragma unroll
    for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sums[(slice * TOKENS + n * 8 + 2 * q + (i & 1)) * PITCH + tile * 16 + g + (i >> 1) * 8] = acc[n][i];
    cluster_sync<CLUSTER>();
    const int quads = plain ? ROWS / 4 : ROWS_OUT / 4, count = TOKENS * quads;
    for (int at = rank * THREADS + threadIdx.x; at < count; at += CLUSTER * THREADS) {
        const int token = at / quads, row = at % quads * 4;
        if (base + token >= tokens) continue;
        float4 sum = whole_sum(sums, token, row);
        if (plain) {
            const int expert = (group + LOGIT_GROUPS) * ROWS + row;
            if (expert < LOGITS)
                *reinterpret_cast<float4*>(logits + static_cast<u64>(base + token) * LOGITS + expert) = sum;
            continue;
        }
        const int column = group * ROWS_OUT + row;
        if (column >= SIZE_OUT) continue;
#ifdef PACKED
        sum = times(sum, scales[column / 16] * UNSCALE);
#endif
#ifdef GATED
        float4 up = whole_sum(sums, token, row + ROWS_OUT);
#ifdef PACKED
        up = times(up, scales[(SIZE_OUT + column) / 16] * UNSCALE);
#endif
        sum = make_float4(silu(sum.x) * up.x, silu(sum.y) * up.y, silu(sum.z) * up.z, silu(sum.w) * up.w);
#endif
        *reinterpret_cast<uint2*>(out + static_cast<u64>(base + token) * SIZE_OUT + column) = four_bf16(sum);
    }
    if (CLUSTER > 1) cluster_sync<CLUSTER>();  // nobody leaves while its sums are being read
}
