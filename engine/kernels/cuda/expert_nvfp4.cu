// Routed experts over NVFP4 weights re-packed in mma fragment order (engine/kernels/fragments.py, which also says why).
//
// act[pair] = activate(gate x) * (up x) and out[pair] = down act[pair], for every (token, expert) pair in expert order; the
// weighted sum over a token's experts is the next kernel's. Knows nothing of routing: it is given a work list of
// experts that have tokens. No atomics on values: the result does not depend on scheduling.
//
// An expert has one or two tokens in a 32-token block, so the WEIGHTS are the 16-row operand of mma.m16n8k16 and tokens
// its 8 columns. A warp owns 16 rows x one slice (up to 512 columns).
//
// Set by the builder: HIDDEN, INTER; CHUNKS (groups of 8 tokens a warp carries at once); for the ring: GROUPS, STAGES;
// GELU for that activation instead of silu.
#include "fragments.cuh"

constexpr int BLOCKS1 = CEIL_DIV(HIDDEN, 64), SLICES1 = CEIL_DIV(BLOCKS1, 8), C1 = CEIL_DIV(BLOCKS1, SLICES1);
constexpr int BLOCKS2 = CEIL_DIV(INTER, 64), SLICES2 = CEIL_DIV(BLOCKS2, 8), C2 = CEIL_DIV(BLOCKS2, SLICES2);
constexpr int TILES1 = INTER / 16, TILES2 = HIDDEN / 16;             // of 16 rows, per expert
constexpr int TILE1 = SLICES1 * (C1 + 1), TILE2 = SLICES2 * (C2 + 1);  // in units of 32 lanes x 16 bytes

// One entry of the work list.
struct Slot {
    int expert, first, count, unused;
};

__device__ __forceinline__ Slot slot_at(const int4* slots, int index) {
    const int4 s = slots[index];
    return {s.x, s.y, s.z, s.w};
}

// One block of 64 columns: acc += W[16 x 64] x[64 x 8] for each chunk of tokens; two accumulators shorten the chain.
template <int N, int B>
__device__ __forceinline__ void multiply_block(float (&acc)[N][2][4], const uint4& codes, const uint4& scales, int c,
                                               const u32 (&b)[N][B], int at) {
    u32 a[16];
    expand_block(a, codes, scales, c);
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int n = 0; n < N; ++n)
            mma_bf16(acc[n][step & 1], a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3],
                     b[n][at + 2 * step], b[n][at + 2 * step + 1]);
}

template <int N> __device__ __forceinline__ void clear(float (&acc)[N][2][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][0][i] = acc[n][1][i] = 0.0f;
}

// 16 contiguous activations a lane owns of block c (two 16-byte loads), or zeros for a column without a token.
__device__ __forceinline__ void load_activations(u32* b, const u16* row, int column, int columns) {
    uint4 low = make_uint4(0, 0, 0, 0), high = low;
    if (row != nullptr && column < columns) {
        low = load16(row + column);
        high = load16(row + column + 8);
    }
    b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
    b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
}

// silu, or with GELU its tanh form: x sigmoid(2 u).
__device__ __forceinline__ float activate(float x) {
#ifdef GELU
    const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x / (1.0f + __expf(-2.0f * u));
#else
    return x / (1.0f + __expf(-x));
#endif
}

// ---- direct version: every warp loads its weights straight into registers (sm_80 and later) ----

template <int C> __device__ __forceinline__ void load_slice(uint4 (&codes)[C], const uint4* slice) {
#pragma unroll
    for (int c = 0; c < C; ++c) codes[c] = load_stream(slice + c * 32);
}

template <int C>
__device__ __forceinline__ void multiply_slice(float (&acc)[1][2][4], uint4 (&codes)[C], const uint4& scales,
                                               const uint4* staged, bool live) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
        u32 b[1][8];
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (live) low = staged[c * 64], high = staged[c * 64 + 32];
        b[0][0] = low.x, b[0][1] = low.y, b[0][2] = low.z, b[0][3] = low.w;
        b[0][4] = high.x, b[0][5] = high.y, b[0][6] = high.z, b[0][7] = high.w;
        pin(codes[c].x), pin(codes[c].y), pin(codes[c].z), pin(codes[c].w);
        multiply_block<1, 8>(acc, codes[c], scales, c, b, 0);
    }
}

// Copies what this lane will need of its token's row into its own places in shared memory (so no barrier is needed).
template <int C>
__device__ __forceinline__ void stage_activations(uint4* staged, const u16* row, int column, int columns) {
    if (row == nullptr) return;
#pragma unroll
    for (int c = 0; c < C; ++c) {
        if (column + c * 64 < columns) {
            copy16_async(staged + c * 64, row + column + c * 64);
            copy16_async(staged + c * 64 + 32, row + column + c * 64 + 8);
        } else {
            staged[c * 64] = staged[c * 64 + 32] = make_uint4(0, 0, 0, 0);
        }
    }
}

// Grid (TILES1, slots), SLICES1 warps; shared: SLICES1 * (C1 + 2) KiB.
extern "C" __global__ void __launch_bounds__(32 * SLICES1, 16 / SLICES1 < 1 ? 1 : 16 / SLICES1)
    gate_up_direct(const uint4* weights, const float2* global_scales, const u16* x, const int4* slots,
                   const int* active, const int* pair_token, u16* act) {
    DYNAMIC_SHARED(shared);
    grid_wait();
    grid_release_next();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3, tile = blockIdx.x;
    if (static_cast<int>(blockIdx.y) >= *active) return;
    const Slot slot = slot_at(slots, blockIdx.y);
    const uint4* base = weights + (static_cast<u64>(slot.expert) * TILES1 + tile) * (2 * TILE1 * 32) + lane;
    uint4 gate[C1], up[C1];
    load_slice(gate, base + warp * C1 * 32);
    load_slice(up, base + (TILE1 + warp * C1) * 32);
    const uint4 gate_scales = load_stream(base + (SLICES1 * C1 + warp) * 32);
    const uint4 up_scales = load_stream(base + (TILE1 + SLICES1 * C1 + warp) * 32);
    const float2 scale = global_scales[slot.expert];
    uint4* staged = reinterpret_cast<uint4*>(shared) + warp * C1 * 64 + lane;
    float* sums = reinterpret_cast<float*>(shared + SLICES1 * C1 * 1024);  // [2][warps][rows][tokens]
    for (int done = 0; done < slot.count; done += 8) {
        const bool live = done + g < slot.count;
        const u16* row = live ? x + static_cast<u64>(pair_token[slot.first + done + g]) * HIDDEN : nullptr;
        stage_activations<C1>(staged, row, warp * C1 * 64 + q * 16, HIDDEN);
        copies_wait();
        float a0[1][2][4], a1[1][2][4];
        clear(a0), clear(a1);
        multiply_slice<C1>(a0, gate, gate_scales, staged, live);
        multiply_slice<C1>(a1, up, up_scales, staged, live);
        __syncthreads();  // the chunk before has been read
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = (g + (i >> 1) * 8) * 8 + 2 * q + (i & 1);
            sums[warp * 128 + at] = a0[0][0][i] + a0[0][1][i];
            sums[(SLICES1 + warp) * 128 + at] = a1[0][0][i] + a1[0][1][i];
        }
        __syncthreads();
        for (int at = threadIdx.x; at < 128; at += 32 * SLICES1) {
            float gate_sum = 0.0f, up_sum = 0.0f;
            for (int w = 0; w < SLICES1; ++w) gate_sum += sums[w * 128 + at], up_sum += sums[(SLICES1 + w) * 128 + at];
            const int token = done + (at & 7);
            if (token < slot.count)
                act[static_cast<u64>(slot.first + token) * INTER + tile * 16 + (at >> 3)] =
                    to_bf16(activate(gate_sum * scale.x * UNSCALE) * (up_sum * scale.y * UNSCALE));
        }
    }
}

// Grid (TILES2 / 2 / PAIRS2 rounded up, slots), PAIRS2 * SLICES2 warps: SLICES2 of them share two row tiles; shared:
// PAIRS2 * SLICES2 * (C2 + 2) KiB. TILES2 is even.
constexpr int PAIRS2 = SLICES2 >= 4 ? 1 : 4 / SLICES2, WARPS2 = PAIRS2 * SLICES2;
extern "C" __global__ void __launch_bounds__(32 * WARPS2, 16 / WARPS2 < 1 ? 1 : 16 / WARPS2)
    down_direct(const uint4* weights, const float* global_scales, const u16* act, const int4* slots, const int* active,
                float* out) {
    DYNAMIC_SHARED(shared);
    grid_wait();
    grid_release_next();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3, slice = warp % SLICES2;
    const int pair = blockIdx.x * PAIRS2 + warp / SLICES2;  // two row tiles
    if (static_cast<int>(blockIdx.y) >= *active) return;
    const Slot slot = slot_at(slots, blockIdx.y);
    const int safe = pair * 2 < TILES2 ? pair : 0;  // warps past the last row compute, and store nothing
    const uint4* base = weights + (static_cast<u64>(slot.expert) * TILES2 + 2 * safe) * (TILE2 * 32) + lane;
    uint4 first[C2], second[C2];
    load_slice(first, base + slice * C2 * 32);
    load_slice(second, base + (TILE2 + slice * C2) * 32);
    const uint4 first_scales = load_stream(base + (SLICES2 * C2 + slice) * 32);
    const uint4 second_scales = load_stream(base + (TILE2 + SLICES2 * C2 + slice) * 32);
    const float scale = global_scales[slot.expert] * UNSCALE;
    uint4* staged = reinterpret_cast<uint4*>(shared) + warp * C2 * 64 + lane;
    float* sums = reinterpret_cast<float*>(shared + WARPS2 * C2 * 1024);  // [warps][tokens][2 tiles of rows]
    for (int done = 0; done < slot.count; done += 8) {
        const bool live = done + g < slot.count;
        const u16* row = live ? act + static_cast<u64>(slot.first + done + g) * INTER : nullptr;
        stage_activations<C2>(staged, row, slice * C2 * 64 + q * 16, INTER);
        copies_wait();
        float a0[1][2][4], a1[1][2][4];
        clear(a0), clear(a1);
        multiply_slice<C2>(a0, first, first_scales, staged, live);
        multiply_slice<C2>(a1, second, second_scales, staged, live);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // token-major, so that 32 rows of a token are stored together
            const int at = (2 * q + (i & 1)) * 32 + g + (i >> 1) * 8;
            sums[warp * 256 + at] = a0[0][0][i] + a0[0][1][i];
            sums[warp * 256 + at + 16] = a1[0][0][i] + a1[0][1][i];
        }
        __syncthreads();
        for (int at = slice * 32 + lane; at < 256; at += 32 * SLICES2) {
            float sum = 0.0f;
            for (int w = 0; w < SLICES2; ++w) sum += sums[(warp - slice + w) * 256 + at];
            const int token = done + (at >> 5);
            if (token < slot.count && pair * 2 < TILES2)
                out[static_cast<u64>(slot.first + token) * HIDDEN + pair * 32 + (at & 31)] = sum * scale;
        }
    }
}

#ifdef GROUPS
// ---- ring version: one persistent block per multiprocessor (sm_90 and later) ----
//
// A producer lane streams weight tiles into a ring in shared memory by bulk copies, never waiting for arithmetic;
// GROUPS groups of SLICES1 warps take turns on the tiles. A block's tiles are one contiguous run of the work list, so a
// warp keeps its activations in registers as long as the expert stays the same. gate+up and down run in one launch:
// down's weights stream in while its inputs are still being computed; `finished[slot]` counts gate+up tiles done.
// Every block must be resident at once (grid <= multiprocessors, one block each).

constexpr int UNIT = TILE1 * 512;                // bytes of one gate or up tile: a stage of the ring
__device__ constexpr int largest_divisor(int of, int limit) { return of % limit == 0 ? limit : largest_divisor(of, limit - 1); }
constexpr int PER_UNIT2 = largest_divisor(TILES2, SLICES1 / SLICES2);  // down tiles in a unit
constexpr int UNITS2 = TILES2 / PER_UNIT2;       // down units per expert
constexpr int BYTES2 = PER_UNIT2 * TILE2 * 512;  // of a down unit
constexpr int GROUP = 32 * SLICES1;              // threads of a group
constexpr int SUMS = SLICES1 * CHUNKS * 256;     // floats per buffer of partial sums
static_assert(SLICES1 >= SLICES2 && BYTES2 <= UNIT, "shape does not fit the ring");

// A group may hold a gate and an up tile, so it must never wait for one while it keeps the other's stage from the producer.
static_assert(STAGES >= 2 * GROUPS, "the ring is too short for its groups");

struct Span {
    int first, last;
};

// This block's share of `count` units, contiguous.
__device__ __forceinline__ Span share(int count) {
    return {static_cast<int>(static_cast<u64>(count) * blockIdx.x / gridDim.x),
            static_cast<int>(static_cast<u64>(count) * (blockIdx.x + 1) / gridDim.x)};
}

struct Ring {
    u8* data;
    u64 *full, *empty;
    int* filled;  // tiles the producer has asked for

    __device__ __forceinline__ void fill(int index, const void* source, u32 bytes) const {
        const int stage = index % STAGES;
        if (index >= STAGES) barrier_wait(empty + stage, (index / STAGES - 1) & 1);
        barrier_expect(full + stage, bytes);
        bulk_copy(data + stage * UNIT, source, bytes, full + stage);
        shared_store_release(filled, index + 1);
    }
    // A barrier's parity tells one phase from the next only. Copies may land out of order, so a group can come here while
    // the tile a whole ring earlier is still on its way, and parity would then pass: it is asked only once the producer
    // has filled this stage anew, which it does after the earlier tile was used up.
    __device__ __forceinline__ const uint4* await(int index) const {
        shared_wait_at_least(filled, index + 1);
        barrier_wait(full + index % STAGES, (index / STAGES) & 1);
        return reinterpret_cast<const uint4*>(data + (index % STAGES) * UNIT);
    }
    __device__ __forceinline__ void release(int index) const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty + index % STAGES);
    }
};

template <int C, int B>
__device__ __forceinline__ void multiply_staged(float (&acc)[CHUNKS][2][4], const uint4* codes, const uint4* scales,
                                                const u32 (&b)[CHUNKS][B], int chunks) {
    const uint4 s = *scales;
#pragma unroll
    for (int c = 0; c < C; ++c) {
        if (CHUNKS == 1 || chunks > 1) {
            multiply_block<CHUNKS, B>(acc, codes[c * 32], s, c, b, 8 * c);
        } else {
            float(&one)[1][2][4] = *reinterpret_cast<float(*)[1][2][4]>(&acc[0]);
            const u32(&b_one)[1][B] = *reinterpret_cast<const u32(*)[1][B]>(&b[0]);
            multiply_block<1, B>(one, codes[c * 32], s, c, b_one, 8 * c);
        }
    }
}

struct Worker {
    int lane, g, q, slice, group, thread;  // thread: within the group
    float* sums;                           // two buffers, used in turn: one barrier an item is enough
    int turn;

    __device__ __forceinline__ float* next_sums() {
        turn ^= 1;
        return sums + turn * SUMS;
    }
    __device__ __forceinline__ void sync() const { group_sync(group + 1, GROUP); }
};

// Adds what a group has finished of `slot` to its counter, once all its threads' stores are done.
__device__ __forceinline__ void publish(const Worker& w, int* finished, int slot, int& tiles) {
    if (tiles == 0) return;
    w.sync();
    if (w.thread == 0) add_release(finished + slot, tiles);
    tiles = 0;
}

__device__ __forceinline__ void gate_up_tile(Worker& w, const Ring& ring, int item, const Slot& slot, int tile,
                                             float2 scale, const u16* x, const int* pair_token, u16* act,
                                             u32 (&b)[CHUNKS][C1 * 8], bool reload) {
    for (int done = 0; done < slot.count; done += 8 * CHUNKS) {
        if (reload || slot.count > 8 * CHUNKS) {
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n) {
                const int pair = done + n * 8 + w.g;
                const u16* row = pair < slot.count ? x + static_cast<u64>(pair_token[slot.first + pair]) * HIDDEN : nullptr;
#pragma unroll
                for (int c = 0; c < C1; ++c)
                    load_activations(b[n] + 8 * c, row, (w.slice * C1 + c) * 64 + w.q * 16, HIDDEN);
            }
        }
        const int chunks = slot.count - done > 8 ? 2 : 1;
        const bool last = done + 8 * CHUNKS >= slot.count;
        float* sums = w.next_sums();  // [gate, up][warp][chunk][row][token]
#pragma unroll
        for (int matrix = 0; matrix < 2; ++matrix) {
            const uint4* unit = ring.await(2 * item + matrix);
            float acc[CHUNKS][2][4];
            clear(acc);
            multiply_staged<C1>(acc, unit + w.slice * C1 * 32 + w.lane, unit + (SLICES1 * C1 + w.slice) * 32 + w.lane, b,
                                chunks);
            if (last) ring.release(2 * item + matrix);
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float2* at = reinterpret_cast<float2*>(
                        sums + ((matrix * SLICES1 + w.slice) * CHUNKS + n) * 128 + (w.g + half * 8) * 8 + 2 * w.q);
                    *at = make_float2(acc[n][0][2 * half] + acc[n][1][2 * half],
                                      acc[n][0][2 * half + 1] + acc[n][1][2 * half + 1]);
                }
        }
        w.sync();
        for (int at = w.thread; at < 128 * CHUNKS; at += GROUP) {
            float gate = 0.0f, up = 0.0f;
#pragma unroll
            for (int s = 0; s < SLICES1; ++s) {
                gate += sums[s * CHUNKS * 128 + at];
                up += sums[(SLICES1 + s) * CHUNKS * 128 + at];
            }
            const int token = done + (at >> 7) * 8 + (at & 7);
            if (token < slot.count)
                act[static_cast<u64>(slot.first + token) * INTER + tile * 16 + ((at >> 3) & 15)] =
                    to_bf16(activate(gate * scale.x * UNSCALE) * (up * scale.y * UNSCALE));
        }
    }
}

__device__ __forceinline__ void down_unit(Worker& w, const Ring& ring, int index, const Slot& slot, int unit_index,
                                          float scale, const u16* act, float* out, u32 (&b)[CHUNKS][C2 * 8],
                                          bool reload) {
    const int slice = w.slice % SLICES2, tile = w.slice / SLICES2;
    const bool working = tile < PER_UNIT2;  // a unit may have fewer tiles than the group has warps for
    const uint4* unit = ring.await(index) + (working ? tile : 0) * TILE2 * 32 + w.lane;
    const int row = (unit_index * PER_UNIT2 + tile) * 16;
    for (int done = 0; done < slot.count; done += 8 * CHUNKS) {
        if (reload || slot.count > 8 * CHUNKS) {
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n) {
                const int pair = done + n * 8 + w.g;
                const u16* source = pair < slot.count ? act + static_cast<u64>(slot.first + pair) * INTER : nullptr;
#pragma unroll
                for (int c = 0; c < C2; ++c)
                    load_activations(b[n] + 8 * c, source, (slice * C2 + c) * 64 + w.q * 16, INTER);
            }
        }
        float acc[CHUNKS][2][4];
        clear(acc);
        multiply_staged<C2>(acc, unit + slice * C2 * 32, unit + (SLICES2 * C2 + slice) * 32, b,
                            slot.count - done > 8 ? 2 : 1);
        if (done + 8 * CHUNKS >= slot.count) ring.release(index);
        float* sums = SLICES2 > 1 ? w.next_sums() : nullptr;  // [warp][chunk][row][token]
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = w.g + (i >> 1) * 8, column = 2 * w.q + (i & 1), token = done + n * 8 + column;
                const float sum = acc[n][0][i] + acc[n][1][i];
                if (SLICES2 > 1)
                    sums[(w.slice * CHUNKS + n) * 128 + r * 8 + column] = sum;
                else if (working && token < slot.count)
                    out[static_cast<u64>(slot.first + token) * HIDDEN + row + r] = sum * scale;
            }
        if (SLICES2 > 1) {
            w.sync();
            for (int at = w.thread; at < PER_UNIT2 * CHUNKS * 128; at += GROUP) {
                const int t = at / (CHUNKS * 128), rest = at % (CHUNKS * 128);
                float sum = 0.0f;
                for (int s = 0; s < SLICES2; ++s) sum += sums[(t * SLICES2 + s) * CHUNKS * 128 + rest];
                const int token = done + (rest >> 7) * 8 + (rest & 7);
                const int r = (unit_index * PER_UNIT2 + t) * 16 + ((rest >> 3) & 15);
                if (token < slot.count) out[static_cast<u64>(slot.first + token) * HIDDEN + r] = sum * scale;
            }
        }
    }
}

// Grid: blocks that are resident at once; GROUPS * SLICES1 + 1 warps. Shared: STAGES * UNIT + GROUPS * SUMS * 8 +
// STAGES * 16 + 16 bytes. finished int [slots] must be 0 at the start (the routing kernel clears it).
extern "C" __global__ void __launch_bounds__(GROUPS* GROUP + 32, 1)
    experts_ring(const u8* gate_up, const u8* down, const float2* gate_up_scales, const float* down_scales, const u16* x,
                 const int4* slots, const int* active, const int* pair_token, int* finished, u16* act, float* out) {
    DYNAMIC_SHARED(shared);
    float* all_sums = reinterpret_cast<float*>(shared + STAGES * UNIT);
    u64* barriers = reinterpret_cast<u64*>(all_sums + GROUPS * 2 * SUMS);
    const Ring ring = {shared, barriers, barriers + STAGES, reinterpret_cast<int*>(barriers + 2 * STAGES)};
    if (threadIdx.x == 0) {
        *ring.filled = 0;
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(ring.full + s, 1);
            barrier_init(ring.empty + s, SLICES1);
        }
        barriers_visible();
    }
    __syncthreads();
    grid_wait();
    grid_release_next();
    const int count = *active;
    const Span span1 = share(count * TILES1), span2 = share(count * UNITS2);
    const int items1 = span1.last - span1.first, warp = threadIdx.x >> 5;
    if (warp == GROUPS * SLICES1) {
        if ((threadIdx.x & 31) != 0) return;
        for (int i = 0; i < items1; ++i) {
            const int slot = (span1.first + i) / TILES1, tile = (span1.first + i) % TILES1;
            const u8* source = gate_up + (static_cast<u64>(slots[slot].x) * TILES1 + tile) * (2 * UNIT);
            ring.fill(2 * i, source, UNIT);
            ring.fill(2 * i + 1, source + UNIT, UNIT);
        }
        for (int i = span2.first; i < span2.last; ++i) {
            const u8* source = down + (static_cast<u64>(slots[i / UNITS2].x) * UNITS2 + i % UNITS2) * BYTES2;
            ring.fill(2 * items1 + i - span2.first, source, BYTES2);
        }
        return;
    }
    const int lane = threadIdx.x & 31, group = warp / SLICES1;
    Worker w = {lane, lane >> 2, lane & 3, warp % SLICES1, group, static_cast<int>(threadIdx.x) % GROUP,
                all_sums + group * 2 * SUMS, 0};
    Slot slot = {0, 0, 0, 0};
    int current = -1, tiles = 0;
    {
        u32 b[CHUNKS][C1 * 8];
        float2 scale = make_float2(0.0f, 0.0f);
        for (int i = group; i < items1; i += GROUPS) {
            const int index = (span1.first + i) / TILES1, tile = (span1.first + i) % TILES1;
            const bool changed = index != current;
            if (changed) {
                publish(w, finished, current, tiles);
                slot = slot_at(slots, index), current = index, scale = gate_up_scales[slot.expert];
            }
            gate_up_tile(w, ring, i, slot, tile, scale, x, pair_token, act, b, changed);
            ++tiles;
        }
        publish(w, finished, current, tiles);
    }
    current = -1;
    u32 b[CHUNKS][C2 * 8];
    float scale = 0.0f;
    for (int i = group; i < span2.last - span2.first; i += GROUPS) {
        const int index = (span2.first + i) / UNITS2;
        const bool changed = index != current;
        if (changed) {
            slot = slot_at(slots, index), current = index, scale = down_scales[slot.expert] * UNSCALE;
            if (w.lane == 0) wait_at_least(finished + index, TILES1);
            __syncwarp();
        }
        down_unit(w, ring, 2 * items1 + i, slot, (span2.first + i) % UNITS2, scale, act, out, b, changed);
    }
}
#endif
