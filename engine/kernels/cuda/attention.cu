// Attention of a few dozen queries over the static cache, one launch: keys are split over the blocks of a cluster, which
// merge what they have found through each other's shared memory.
//
// Knows the block-causal rule on absolute positions (key j is seen from position i when block(j) <= block(i)), grouped query
// heads and a device-side start. A block takes one query head, TOKENS of its queries and a share of the keys. Keys before
// `start` are older than this forward pass, so they are asked for before the kernel ahead is complete. Partial results are
// merged in a fixed order: no atomics, no second launch, no workspace.
//
// Set by the builder: DIM (a multiple of 64), GROUP (query heads of a key head), BLOCK_LENGTH, START (type of `start`);
// TOKENS (16, 32, 64), KEY_WARPS (warps that share a block's keys), SPLITS (blocks of a cluster).
#include "fragments.cuh"

constexpr int ROW_TILES = TOKENS / 16, STEPS = 3;      // of 16 keys, that a warp scores at once
constexpr int KEYS = 16 * STEPS * KEY_WARPS;           // of a stage
constexpr int PIECES = DIM / 8;                        // of 16 bytes, a row of the cache
constexpr int STAGE = 2 * KEYS * PIECES;               // keys, then values
constexpr int THREADS = 32 * ROW_TILES * KEY_WARPS, PITCH = DIM + 8;
constexpr int BOUND = THREADS < 384 ? 384 : THREADS;  // leaves registers for the next kernel's first blocks
constexpr int NO_KEY = 0x7fffffff;
static_assert(DIM % 64 == 0 && TOKENS % 16 == 0, "shape");

__device__ __forceinline__ float nothing() { return __uint_as_float(0xff800000u); }  // -infinity

// What one head's cache holds, and which of its keys are meant.
struct Cache {
    const u16 *keys, *values;
    int stop;  // the first key of this block's share that is another's
};

// Asks for the keys lo <= key < hi of those that begin at `from`; zeros from `stop` to the end of its 16. Keys lie in the
// order in which lanes read them, [8 keys][64 dims][half][lane]; values in rows whose pieces are swapped about, so that
// eight rows at one place never meet in a bank.
__device__ __forceinline__ void stage_keys(uint4* stage, const Cache& cache, int from, int lo, int hi) {
    const int left = CEIL_DIV(cache.stop - from, 16) * 16, count = left < KEYS ? left : KEYS;
    for (int i = threadIdx.x; i < count * PIECES; i += THREADS) {
        const int lane = i & 31, block = i >> 6;
        const int key = from + block / (DIM / 64) * 8 + (lane >> 2);
        const int dim = block % (DIM / 64) * 64 + (i >> 5 & 1) * 32 + (lane & 3) * 8;
        if (key < lo || key >= hi) continue;
        if (key < cache.stop)
            copy16_async(stage + i, cache.keys + static_cast<u64>(key) * DIM + dim);
        else
            stage[i] = make_uint4(0, 0, 0, 0);
    }
    uint4* values = stage + KEYS * PIECES;
    for (int i = threadIdx.x; i < count * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES, key = from + row;
        uint4* at = values + row * PIECES + (piece ^ (row & 7));
        if (key < lo || key >= hi) continue;
        if (key < cache.stop)
            copy16_async(at, cache.values + static_cast<u64>(key) * DIM + piece * 8);
        else
            *at = make_uint4(0, 0, 0, 0);
    }
}

// A warp's 16 queries: rows g and g + 8 of this lane.
struct Queries {
    u32 a[DIM / 16][4];  // mma operands
    int block[2];        // of positions
};

struct Found {
    float out[DIM / 8][4];
    float peak[2], mass[2];  // mass: this lane's share
};

__device__ __forceinline__ void load_queries(Queries& to, const u16* low, const u16* high) {
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int part = 0; part < DIM / 32; ++part) {
        const uint4 x = load16(low + part * 32 + q * 8), y = load16(high + part * 32 + q * 8);
        u32(&first)[4] = to.a[2 * part];
        u32(&second)[4] = to.a[2 * part + 1];
        first[0] = x.x, first[1] = y.x, first[2] = x.y, first[3] = y.y;
        second[0] = x.z, second[1] = y.z, second[2] = x.w, second[3] = y.w;
    }
}

__device__ __forceinline__ float from_lane(float x, int lane) {
    return __uint_as_float(warp_from(__float_as_uint(x), lane));
}

__device__ __forceinline__ u32 two_bf16(float low, float high) {
    return to_bf16(low) | static_cast<u32>(to_bf16(high)) << 16;
}

// One stage: the keys from `from` on, every KEY_WARPS-th 16 of them beginning at `part`.
__device__ __forceinline__ void attend_stage(Found& found, const Queries& queries, const uint4* stage, int from, int stop,
                                             int part, float scale) {
    const int lane = threadIdx.x & 31, q = lane & 3;
    float s[STEPS][2][4];
    float peak[2] = {found.peak[0], found.peak[1]};
#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
        const int step = n * KEY_WARPS + part, key = from + step * 16;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            float(&score)[4] = s[n][tile];
#pragma unroll
            for (int i = 0; i < 4; ++i) score[i] = 0.0f;
            if (key < stop) {
                const uint4* at = stage + (step * 2 + tile) * 8 * PIECES + lane;
#pragma unroll
                for (int d = 0; d < DIM / 32; ++d) {
                    const uint4 b = at[d * 32];
                    const u32(&first)[4] = queries.a[2 * d];
                    const u32(&second)[4] = queries.a[2 * d + 1];
                    mma_bf16(score, first[0], first[1], first[2], first[3], b.x, b.y);
                    mma_bf16(score, second[0], second[1], second[2], second[3], b.z, b.w);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = key + tile * 8 + 2 * q + (i & 1);
                const bool seen = at < stop && at / BLOCK_LENGTH <= queries.block[i >> 1];
                score[i] = seen ? score[i] * scale : nothing();
                peak[i >> 1] = fmaxf(peak[i >> 1], score[i]);
            }
        }
    }
    float safe[2], fade[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {  // the four lanes of a row agree
        peak[row] = fmaxf(peak[row], from_lane(peak[row], lane ^ 1));
        peak[row] = fmaxf(peak[row], from_lane(peak[row], lane ^ 2));
        safe[row] = peak[row] == nothing() ? 0.0f : peak[row];
        fade[row] = exp2f(found.peak[row] - safe[row]);
        found.peak[row] = peak[row];
        found.mass[row] *= fade[row];
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) found.out[d][i] *= fade[i >> 1];
    const uint4* values = stage + KEYS * PIECES;
#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
        const int step = n * KEY_WARPS + part;
        if (from + step * 16 >= stop) break;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[n][tile][i] = exp2f(s[n][tile][i] - safe[i >> 1]);
                found.mass[i >> 1] += s[n][tile][i];
            }
        const u32 a0 = two_bf16(s[n][0][0], s[n][0][1]), a1 = two_bf16(s[n][0][2], s[n][0][3]);
        const u32 a2 = two_bf16(s[n][1][0], s[n][1][1]), a3 = two_bf16(s[n][1][2], s[n][1][3]);
        const int row = step * 16 + (lane & 15);  // whose address this lane gives
#pragma unroll
        for (int d = 0; d < DIM / 16; ++d) {
            const int piece = 2 * d + (lane >> 4);
            const uint4 b = load_transposed(values + row * PIECES + (piece ^ (row & 7)));
            mma_bf16(found.out[2 * d], a0, a1, a2, a3, b.x, b.y);
            mma_bf16(found.out[2 * d + 1], a0, a1, a2, a3, b.z, b.w);
        }
    }
}

__device__ __forceinline__ float weight_of(float peak, float top) { return peak == nothing() ? 0.0f : exp2f(peak - top); }

__device__ __forceinline__ void add_scaled(float4& to, const float4& x, float by) {
    to.x += x.x * by, to.y += x.y * by, to.z += x.z * by, to.w += x.w * by;
}

#if SPLITS > 1
#define CLUSTERED __cluster_dims__(SPLITS, 1, 1)
#else
#define CLUSTERED
#endif

// Grid (query heads * SPLITS, batch * (length / TOKENS rounded up)); shared: the larger of two stages (STAGE * 32 bytes) and
// KEY_WARPS * TOKENS * (PITCH * 4 + 16) bytes. q, out [batch, length, heads, DIM]; caches [batch, heads / GROUP, capacity,
// DIM]; scale: of the scores, times log2(e). Neither `start` nor what the caches hold before it may be written by the
// kernel ahead.
extern "C" __global__ void CLUSTERED __launch_bounds__(BOUND, 1)
    attend(const u16* q, const u16* keys, const u16* values, const START* start, u16* out, int length, int heads,
           int capacity, float scale) {
    DYNAMIC_SHARED(shared);
    uint4* stages = reinterpret_cast<uint4*>(shared);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
    const int row_tile = warp % ROW_TILES, part = warp / ROW_TILES;
    const int split = blockIdx.x % SPLITS, head = blockIdx.x / SPLITS;
    const int tiles = CEIL_DIV(length, TOKENS), batch = blockIdx.y / tiles, first_token = blockIdx.y % tiles * TOKENS;
    const int begin = static_cast<int>(start[batch]);
    const int tokens = length - first_token < TOKENS ? length - first_token : TOKENS;
    int end = ((begin + first_token + tokens - 1) / BLOCK_LENGTH + 1) * BLOCK_LENGTH;  // keys that some query sees
    end = end < begin + length ? end : begin + length;
    end = end < capacity ? end : capacity;
    const int share = CEIL_DIV(CEIL_DIV(end, 16), SPLITS) * 16, first = split * share;
    const u64 offset = (static_cast<u64>(batch) * (heads / GROUP) + head / GROUP) * capacity * DIM;
    const Cache cache = {keys + offset, values + offset, first + share < end ? first + share : end};
    const int rounds = cache.stop > first ? CEIL_DIV(cache.stop - first, KEYS) : 0;
    for (int n = 0; n < 2 && n < rounds; ++n) stage_keys(stages + n * STAGE, cache, first + n * KEYS, 0, begin);
    grid_wait();
    grid_release_next();
    for (int n = 0; n < 2 && n < rounds; ++n) {
        stage_keys(stages + n * STAGE, cache, first + n * KEYS, begin, NO_KEY);
        copies_commit();
    }
    Queries queries;
    int token[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int wanted = row_tile * 16 + g + 8 * i;
        token[i] = first_token + (wanted < tokens ? wanted : 0);  // a row without a token repeats one; it is not stored
        queries.block[i] = (begin + token[i]) / BLOCK_LENGTH;
    }
    const u64 base = static_cast<u64>(batch) * length;
    load_queries(queries, q + ((base + token[0]) * heads + head) * DIM, q + ((base + token[1]) * heads + head) * DIM);
    Found found = {};
    found.peak[0] = found.peak[1] = nothing();
    for (int n = 0; n < rounds; ++n) {
        if (n + 1 < rounds)
            copies_wait_but_one();
        else
            copies_wait();
        __syncthreads();
        attend_stage(found, queries, stages + n % 2 * STAGE, first + n * KEYS, cache.stop, part, scale);
        __syncthreads();
        if (n + 2 < rounds) {
            stage_keys(stages + n % 2 * STAGE, cache, first + (n + 2) * KEYS, 0, NO_KEY);
            copies_commit();
        }
    }
    float* parts = reinterpret_cast<float*>(shared);                               // [KEY_WARPS][TOKENS][PITCH]
    float4* marks = reinterpret_cast<float4*>(parts + KEY_WARPS * TOKENS * PITCH);  // peak and mass of each row
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = part * TOKENS + row_tile * 16 + g + 8 * i;
        float mass = found.mass[i];
        mass += from_lane(mass, lane ^ 1);
        mass += from_lane(mass, lane ^ 2);
        if ((lane & 3) == 0) marks[row] = make_float4(found.peak[i], mass, 0.0f, 0.0f);
#pragma unroll
        for (int d = 0; d < DIM / 8; ++d)
            *reinterpret_cast<float2*>(parts + row * PITCH + d * 8 + 2 * (lane & 3)) =
                make_float2(found.out[d][2 * i], found.out[d][2 * i + 1]);
    }
    __syncthreads();
    // Within the block; then over the cluster, each block a share of the rows.
    for (int at = threadIdx.x; at < TOKENS * (DIM / 4); at += THREADS) {
        const int row = at / (DIM / 4), dim = at % (DIM / 4) * 4;
        float top = nothing(), mass = 0.0f;
#pragma unroll
        for (int n = 0; n < KEY_WARPS; ++n) top = fmaxf(top, marks[n * TOKENS + row].x);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int n = 0; n < KEY_WARPS; ++n) {
            const float by = weight_of(marks[n * TOKENS + row].x, top);
            mass += marks[n * TOKENS + row].y * by;
            add_scaled(sum, *reinterpret_cast<const float4*>(parts + (n * TOKENS + row) * PITCH + dim), by);
        }
        *reinterpret_cast<float4*>(parts + row * PITCH + dim) = sum;
        // The pad behind the row: `marks` are still being read by its other threads.
        if (dim == 0) *reinterpret_cast<float4*>(parts + row * PITCH + DIM) = make_float4(top, mass, 0.0f, 0.0f);
    }
    cluster_sync<SPLITS>();
    for (int at = split * THREADS + threadIdx.x; at < TOKENS * (DIM / 4); at += SPLITS * THREADS) {
        const int row = at / (DIM / 4), dim = at % (DIM / 4) * 4;
        float4 mark[SPLITS], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float top = nothing(), mass = 0.0f;
#pragma unroll
        for (int n = 0; n < SPLITS; ++n) mark[n] = cluster_load(parts + row * PITCH + DIM, n), top = fmaxf(top, mark[n].x);
#pragma unroll
        for (int n = 0; n < SPLITS; ++n) {
            const float by = weight_of(mark[n].x, top);
            mass += mark[n].y * by;
            add_scaled(sum, cluster_load(parts + row * PITCH + dim, n), by);
        }
        if (row >= tokens) continue;
        const u64 to = ((base + first_token + row) * heads + head) * DIM + dim;
        *reinterpret_cast<uint2*>(out + to) =
            make_uint2(two_bf16(sum.x / mass, sum.y / mass), two_bf16(sum.z / mass, sum.w / mass));
    }
    if (SPLITS > 1) cluster_sync<SPLITS>();  // nobody leaves while its rows are being read
}
