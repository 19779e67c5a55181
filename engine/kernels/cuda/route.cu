// LLaDA2 routing on the device: router logits, the choice of experts, and the work list of the expert kernel.
//
// Knows models.md 1.4: sigmoid scores, a bias that changes the choice and not the weights, then either the group-limited
// top-k (2.0, 2.1) or the block's pool of experts (2.2). Sorting is stable and by counting, so lists do not depend on
// scheduling. Equal scores fall to the lower expert.
//
// Set by the builder: EXPERTS, TOP_K, HIDDEN; N_GROUP and TOPK_GROUP, or CAPACITY > 0 (pool) with BLOCK_LENGTH, a divisor
// of 32; NORMALISE; SCALE. Blocks have 1024 threads; a warp chooses for one token.
#include "primitives.cuh"

constexpr int THREADS = 1024, WARPS = 32, PER_LANE = (EXPERTS + 31) / 32;
constexpr int PARTS = 1024 / EXPERTS < 1 ? 1 : (1024 / EXPERTS > 32 ? 32 : 1024 / EXPERTS);
#if CAPACITY > 0
constexpr int CHOICES = CAPACITY;  // experts a token may take
#else
constexpr int CHOICES = EXPERTS / N_GROUP * TOPK_GROUP;
#endif
static_assert(CHOICES >= TOP_K, "a token would have to take an expert twice");
static_assert(EXPERTS <= 1024 && TOP_K <= 32 && TOP_K <= EXPERTS, "too many experts");

// Unsigned integers in the order of the floats. 0 is below every number.
__device__ __forceinline__ u32 sortable(float x) {
    const u32 w = __float_as_uint(x);
    return w & 0x80000000u ? ~w : w | 0x80000000u;
}

__device__ __forceinline__ float unsortable(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// logits[t, e] = sum_h x[t, h] weight[e, h] for 16 experts from `first`, all tokens: products of bf16, sums in float32.
// shared: float [32 warps][16][32].
__device__ __forceinline__ void router_logits_part(const u16* weight, const u16* x, int first, int tokens, float* logits,
                                                   float* sums) {
    constexpr int BLOCKS = HIDDEN / 64, MINE = (BLOCKS + WARPS - 1) / WARPS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    uint4 w[MINE][4];  // rows g (two loads) and g + 8
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
        const int block = warp + m * WARPS;
        const u16* row = weight + static_cast<u64>(first + g) * HIDDEN + block * 64 + q * 16;
        for (int i = 0; i < 4; ++i) w[m][i] = make_uint4(0, 0, 0, 0);
        if (block < BLOCKS) {
            w[m][0] = load16(row), w[m][1] = load16(row + 8);
            w[m][2] = load16(row + 8 * HIDDEN), w[m][3] = load16(row + 8 * HIDDEN + 8);
        }
    }
    grid_wait();  // the weights do not depend on the kernels before
    for (int base = 0; base < tokens; base += 32) {
        float acc[4][4] = {};
#pragma unroll
        for (int m = 0; m < MINE; ++m) {
            const int block = warp + m * WARPS;
            const u32* low = reinterpret_cast<const u32*>(&w[m][0]);   // 8 words: 16 columns of row g
            const u32* high = reinterpret_cast<const u32*>(&w[m][2]);  // of row g + 8
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int token = base + n * 8 + g;
                uint4 v[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
                if (token < tokens && block < BLOCKS) {
                    const u16* row = x + static_cast<u64>(token) * HIDDEN + block * 64 + q * 16;
                    v[0] = load16(row), v[1] = load16(row + 8);
                }
                const u32* b = reinterpret_cast<const u32*>(v);
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    mma_bf16(acc[n], low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1], b[2 * s], b[2 * s + 1]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[warp * 512 + (g + (i >> 1) * 8) * 32 + n * 8 + 2 * q + (i & 1)] = acc[n][i];
        __syncthreads();
        for (int at = threadIdx.x; at < 512; at += THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < WARPS; ++s) sum += sums[s * 512 + at];
            const int token = base + (at & 31), expert = first + (at >> 5);
            if (token < tokens) logits[static_cast<u64>(token) * EXPERTS + expert] = sum;
        }
    }
}

// One warp chooses for one token. allowed: bits of the experts it may take (pool), or null. kept, if not null: lane k's
// own k-th choice.
__device__ __forceinline__ void choose(const float* logits, const float* bias, const u32* allowed, int* ids,
                                       float* weights, int* kept) {
    const int lane = threadIdx.x & 31;
    float score[PER_LANE];
    u32 key[PER_LANE];
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) {
        const int e = lane + 32 * j;
        score[j] = e < EXPERTS ? sigmoid(load_fresh(logits + e)) : 0.0f;
        key[j] = e < EXPERTS ? sortable(score[j] + bias[e]) : 0u;
        if (allowed != nullptr && !(allowed[j] >> lane & 1)) key[j] = 0u;
    }
#if CAPACITY == 0
    if (TOPK_GROUP < N_GROUP) {
        constexpr int SIZE = EXPERTS / N_GROUP;
        float strength[N_GROUP];
#pragma unroll
        for (int k = 0; k < N_GROUP; ++k) {
            u32 best = 0u, second = 0u;
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j)
                if ((lane + 32 * j) / SIZE == k) {
                    if (key[j] > best) second = best, best = key[j];
                    else if (key[j] > second) second = key[j];
                }
            const u32 top = warp_max(best);
            const u32 holder = warp_min(best == top ? lane : 32u);
            const u32 next = warp_max(holder == static_cast<u32>(lane) ? second : best);
            strength[k] = unsortable(top) + (SIZE > 1 ? unsortable(next) : 0.0f);
        }
#pragma unroll
        for (int k = 0; k < N_GROUP; ++k) {
            int ahead = 0;
#pragma unroll
            for (int o = 0; o < N_GROUP; ++o) ahead += strength[o] > strength[k] || (strength[o] == strength[k] && o < k);
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j)
                if (ahead >= TOPK_GROUP && (lane + 32 * j) / SIZE == k) key[j] = 0u;
        }
    }
#endif
    float total = 0.0f, mine = 0.0f;
    int my_id = 0;
#pragma unroll 1
    for (int k = 0; k < TOP_K; ++k) {
        u32 best = 0u;
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) best = key[j] > best ? key[j] : best;
        const u32 top = warp_max(best);
        u32 at = 0xffffffffu;
        float value = 0.0f;
#pragma unroll
        for (int j = PER_LANE - 1; j >= 0; --j)
            if (key[j] == top && lane + 32 * j < EXPERTS) at = lane + 32 * j, value = score[j];
        const u32 winner = warp_min(at);
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j)
            if (static_cast<u32>(lane + 32 * j) == winner) key[j] = 0u;
        value = __uint_as_float(warp_from(__float_as_uint(value), winner & 31));
        total += value;
        if (lane == k) mine = value, my_id = winner;
    }
    if (lane < TOP_K) {
        ids[lane] = my_id;
        weights[lane] = (NORMALISE ? mine / (total + 1e-20f) : mine) * SCALE;
        if (kept != nullptr) *kept = my_id;
    }
}

// Chooses for tokens base .. base + 31, a warp each, as `choose`. shared: u32 [EXPERTS] + [32][PER_LANE] (pool only).
__device__ __forceinline__ void choose_block(const float* logits, const float* bias, int base, int tokens, int* ids,
                                             float* weights, u32* shared, int* kept = nullptr) {
    const int warp = threadIdx.x >> 5, token = base + warp;
    const u32* allowed = nullptr;
#if CAPACITY > 0
    const int lane = threadIdx.x & 31;
    u32* strength = shared;
    u32* pools = shared + EXPERTS;  // [32 / BLOCK_LENGTH][PER_LANE]
    for (int part = 0; part < 32 / BLOCK_LENGTH; ++part) {
        __syncthreads();
        for (int e = threadIdx.x; e < EXPERTS; e += THREADS) {
            u32 best = 0u;
            for (int t = 0; t < BLOCK_LENGTH; ++t) {
                const int row = base + part * BLOCK_LENGTH + t;
                if (row >= tokens) break;
                const u32 key = sortable(sigmoid(load_fresh(logits + static_cast<u64>(row) * EXPERTS + e)) + bias[e]);
                best = key > best ? key : best;
            }
            strength[e] = best;
        }
        __syncthreads();
        for (int j = warp; j < PER_LANE; j += WARPS) {
            const int e = lane + 32 * j;
            int ahead = 0;
            for (int o = 0; o < EXPERTS; ++o)
                ahead += e < EXPERTS && (strength[o] > strength[e] || (strength[o] == strength[e] && o < e));
            const u32 bits = warp_votes(e < EXPERTS && ahead < CAPACITY);
            if (lane == 0) pools[part * PER_LANE + j] = bits;
        }
    }
    __syncthreads();
    allowed = pools + warp / BLOCK_LENGTH * PER_LANE;
#endif
    if (token < tokens)
        choose(logits + static_cast<u64>(token) * EXPERTS, bias, allowed, ids + token * TOP_K, weights + token * TOP_K,
               kept);
}

// Sorts the pairs by expert, stably, and lists the experts that have any. One block.
// pair_token [pairs]: token of each sorted pair; pair_place [pairs]: where pair token * TOP_K + k went.
// shared: u16 [pairs], u32 [EXPERTS] twice, u16 [PARTS][EXPERTS].
__device__ __forceinline__ void sort_pairs(const int* ids, int tokens, int4* slots, int* active, int* pair_token,
                                           int* pair_place, int* finished, u8* shared) {
    const int pairs = tokens * TOP_K, tid = threadIdx.x;
    u32* scan = reinterpret_cast<u32*>(shared);
    u32* other = scan + EXPERTS;
    u16* counts = reinterpret_cast<u16*>(other + EXPERTS);
    u16* expert_of = counts + PARTS * EXPERTS;
    __syncthreads();
    for (int p = tid; p < pairs; p += THREADS) expert_of[p] = static_cast<u16>(load_fresh(ids + p));
    __syncthreads();
    const int part = tid / EXPERTS, e = tid % EXPERTS;
    const int from = static_cast<int>(static_cast<u64>(pairs) * part / PARTS);
    const int to = static_cast<int>(static_cast<u64>(pairs) * (part + 1) / PARTS);
    int mine = 0;
    if (part < PARTS) {
        for (int p = from; p < to; ++p) mine += expert_of[p] == e;
        counts[part * EXPERTS + e] = static_cast<u16>(mine);
    }
    __syncthreads();
    int total = 0;
    if (tid < EXPERTS) {
        for (int o = 0; o < PARTS; ++o) total += counts[o * EXPERTS + tid];
        scan[tid] = static_cast<u32>(total) | (total > 0 ? 0x10000u : 0u);  // pairs below, active experts above
    }
    __syncthreads();
    for (int step = 1; step < EXPERTS; step *= 2) {
        if (tid < EXPERTS) other[tid] = scan[tid] + (tid >= step ? scan[tid - step] : 0u);
        __syncthreads();
        u32* swap = scan;
        scan = other, other = swap;
    }
    if (tid < EXPERTS) {
        if (total > 0) slots[(scan[tid] >> 16) - 1] = make_int4(tid, static_cast<int>(scan[tid] & 0xffffu) - total, total, 0);
        finished[tid] = 0;
        if (tid == EXPERTS - 1) *active = static_cast<int>(scan[tid] >> 16);
    }
    if (part < PARTS && mine > 0) {
        int at = static_cast<int>(scan[e] & 0xffffu);
        for (int o = PARTS - 1; o >= part; --o) at -= counts[o * EXPERTS + e];
        for (int p = from; p < to; ++p)
            if (expert_of[p] == e) pair_token[at] = p / TOP_K, pair_place[p] = at, ++at;
    }
}

// True in every thread of the block that finishes last; `ticket` is 0 before and after the launch.
__device__ __forceinline__ bool last_block(int* ticket, int* shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *shared = atomicAdd(ticket, 1) == static_cast<int>(gridDim.x) - 1;
        if (*shared) *ticket = 0;
    }
    __syncthreads();
    const bool last = *shared;
    __threadfence();
    return last;
}

// Grid EXPERTS / 16. Shared 64 KiB.
extern "C" __global__ void __launch_bounds__(1024, 1)
    router_logits(const u16* weight, const u16* x, int tokens, float* logits) {
    DYNAMIC_SHARED(shared);
    grid_release_next();
    router_logits_part(weight, x, blockIdx.x * 16, tokens, logits, reinterpret_cast<float*>(shared));
}

// Choice and sorting from given logits. Grid: tokens / 32, rounded up; the last block to finish sorts.
extern "C" __global__ void __launch_bounds__(1024, 1)
    route(const float* logits, const float* bias, int tokens, int* ids, float* weights, int4* slots, int* active,
          int* pair_token, int* pair_place, int* finished, int* ticket) {
    DYNAMIC_SHARED(shared);
    grid_wait();
    grid_release_next();
    int* flag = reinterpret_cast<int*>(shared);
    choose_block(logits, bias, blockIdx.x * 32, tokens, ids, weights, reinterpret_cast<u32*>(shared + 16));
    if (last_block(ticket, flag)) sort_pairs(ids, tokens, slots, active, pair_token, pair_place, finished, shared + 16);
}

// All three in one launch, for few tokens. Grid EXPERTS / 16; shared 64 KiB, or what sorting needs if that is more.
extern "C" __global__ void __launch_bounds__(1024, 1)
    route_fused(const u16* weight, const u16* x, const float* bias, int tokens, float* logits, int* ids, float* weights,
                int4* slots, int* active, int* pair_token, int* pair_place, int* finished, int* ticket) {
    DYNAMIC_SHARED(shared);
    grid_release_next();
    router_logits_part(weight, x, blockIdx.x * 16, tokens, logits, reinterpret_cast<float*>(shared));
    __syncthreads();
    if (!last_block(ticket, reinterpret_cast<int*>(shared))) return;
    for (int base = 0; base < tokens; base += 32)
        choose_block(logits, bias, base, tokens, ids, weights, reinterpret_cast<u32*>(shared + 16));
    __syncthreads();
    sort_pairs(ids, tokens, slots, active, pair_token, pair_place, finished, shared + 16);
}

// ---- choice and sorting in one short launch ----
//
// A token takes an expert once at most, so an expert's pairs are a set of tokens: a bit each. Counting is then counting
// bits, and a pair's place its expert's first plus the bits below its own: no thread walks over pairs.

__device__ __forceinline__ void take_token(u32* masks, int token, int expert) {
    atomicOr(masks + (token >> 5) * EXPERTS + expert, 1u << (token & 31));
}

// The lists of `sort_pairs` from masks u32 [tokens / 32 rounded up][EXPERTS] and expert_of u16 [pairs], both complete.
// first u32 [EXPERTS], totals u32 [WARPS]: workspaces.
__device__ __forceinline__ void list_pairs(const u32* masks, const u16* expert_of, int tokens, int4* slots, int* active,
                                           int* pair_token, int* pair_place, int* finished, u32* first, u32* totals) {
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    int total = 0;
    if (tid < EXPERTS)
        for (int word = 0; word < (tokens + 31) / 32; ++word) total += __popc(masks[word * EXPERTS + tid]);
    u32 scan = static_cast<u32>(total) | (total > 0 ? 0x10000u : 0u);  // pairs below, active experts above
    for (int step = 1; step < 32; step *= 2) {
        const u32 before = warp_from(scan, (lane - step) & 31);
        scan += lane >= step ? before : 0u;
    }
    if (lane == 31) totals[warp] = scan;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < (EXPERTS + 31) / 32; ++other) scan += other < warp ? totals[other] : 0u;
    if (tid < EXPERTS) {
        const int begin = static_cast<int>(scan & 0xffffu) - total;
        first[tid] = begin;
        if (total > 0) slots[(scan >> 16) - 1] = make_int4(tid, begin, total, 0);
        finished[tid] = 0;
        if (tid == EXPERTS - 1) *active = static_cast<int>(scan >> 16);
    }
    __syncthreads();
    for (int pair = tid; pair < tokens * TOP_K; pair += THREADS) {
        const int expert = expert_of[pair], token = pair / TOP_K;
        int at = first[expert];
        for (int word = 0; word < token >> 5; ++word) at += __popc(masks[word * EXPERTS + expert]);
        at += __popc(masks[(token >> 5) * EXPERTS + expert] & ((1u << (token & 31)) - 1u));
        pair_token[at] = token, pair_place[pair] = at;
    }
}

// The same lists as `route`. Grid 1 for few tokens, else tokens / 32 rounded up: the last block to finish sorts. Shared:
// 16 + 4 * (EXPERTS * (tokens / 32 rounded up) + 2 * EXPERTS + 32 * PER_LANE + 32) + 2 * TOP_K * tokens bytes.
extern "C" __global__ void __launch_bounds__(1024, 1)
    choose_and_list(const float* logits, const float* bias, int tokens, int* ids, float* weights, int4* slots, int* active,
                    int* pair_token, int* pair_place, int* finished, int* ticket) {
    DYNAMIC_SHARED(shared);
    int* flag = reinterpret_cast<int*>(shared);
    u32* masks = reinterpret_cast<u32*>(shared + 16);
    u32* first = masks + EXPERTS * ((tokens + 31) / 32);
    u32* pool = first + EXPERTS;
    u32* totals = pool + EXPERTS + 32 * PER_LANE;
    u16* expert_of = reinterpret_cast<u16*>(totals + WARPS);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool alone = gridDim.x == 1;
    for (int at = threadIdx.x; at < EXPERTS * ((tokens + 31) / 32); at += THREADS) masks[at] = 0u;
    __syncthreads();
    grid_wait();
    grid_release_next();
    for (int base = blockIdx.x * 32; base < tokens; base += gridDim.x * 32) {
        const int token = base + warp;
        int expert = 0;
        choose_block(logits, bias, base, tokens, ids, weights, pool, &expert);
        if (alone && token < tokens && lane < TOP_K)
            take_token(masks, token, expert), expert_of[token * TOP_K + lane] = static_cast<u16>(expert);
    }
    if (!alone) {
        if (!last_block(ticket, flag)) return;
        for (int pair = threadIdx.x; pair < tokens * TOP_K; pair += THREADS) {
            const int expert = load_fresh(ids + pair);
            take_token(masks, pair / TOP_K, expert), expert_of[pair] = static_cast<u16>(expert);
        }
    }
    __syncthreads();
    list_pairs(masks, expert_of, tokens, slots, active, pair_token, pair_place, finished, first, totals);
}
