// engine/kernels/cuda/primitives.cuh for a CPU: every CUDA thread is a fiber, blocks of a launch run interleaved.
//
// Knows what each primitive means (data movement, barriers, the fragment layout of mma.m16n8k16); knows nothing of timing
// or of memory-ordering faults. Fibers switch only inside primitives.
#pragma once
#define UNBLUR_PRIMITIVES
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 900

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct uint4 { u32 x, y, z, w; };
struct int4 { int x, y, z, w; };
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index3 { unsigned x, y, z; };

namespace emu {
struct Meeting { int expected, arrived = 0, generation = 0; };  // where threads wait for each other
struct Warp {
    Meeting meeting{32};
    u32 a[32][4], b[32][2], word[32];
    float* d[32];
    const u16* rows[32];
    u32 result = 0;
};
struct Block {
    Index3 index;
    std::vector<u8> shared;
    std::vector<Warp> warps;
    Meeting all;
    Meeting groups[16];
    Block* cluster = nullptr;  // the first block of this one's cluster, where the cluster meets
    Meeting cluster_meeting;
    std::vector<Block*> peers;
};
struct Copy { void* to; const void* from; };
struct Fiber {
    std::vector<Copy> asked;                   // 16-byte copies that no wait has made land yet
    std::vector<std::vector<Copy>> committed;
    ucontext_t context;
    std::vector<char> stack;
    Block* block;
    Index3 thread;
    bool done = false;
};
inline Fiber* current;
inline ucontext_t scheduler;
inline Index3 grid, block_size;
inline int cluster_size;
inline long switches;

// Bulk copies that are on their way: they land some time later, in any order.
inline std::vector<std::function<void()>> travelling;
inline unsigned luck = 12345u;
inline void land_one() {
    if (travelling.empty()) return;
    luck = luck * 1664525u + 1013904223u;
    if (luck >> 21) return;  // one time in 2,048: every waiting thread asks
    const size_t which = (luck >> 8) % travelling.size();
    const std::function<void()> copy = travelling[which];
    travelling.erase(travelling.begin() + static_cast<long>(which));
    copy();
}
inline void yield() {
    land_one();
    if (++switches > 400000000L) { std::fprintf(stderr, "emulated kernel does not end\n"); std::abort(); }
    Fiber* self = current;
    swapcontext(&self->context, &scheduler);
}
inline void meet(Meeting& m, const std::function<void()>& last = {}) {
    const int generation = m.generation;
    if (++m.arrived == m.expected) {
        if (last) last();
        m.arrived = 0, ++m.generation;
        return;
    }
    while (m.generation == generation) yield();
}
inline Warp& warp() { return current->block->warps[current->thread.x / 32]; }
inline int lane() { return current->thread.x % 32; }

inline const std::function<void()>* entry;
inline void trampoline() {
    (*entry)();
    current->done = true;
    swapcontext(&current->context, &scheduler);
}

// Runs the kernel over the whole grid. `together`: blocks alive at a time (all of them for kernels whose blocks wait for
// one another), whole clusters of `cluster` neighbours in x.
inline void launch(int gx, int gy, int threads, int shared_bytes, int together, const std::function<void()>& kernel,
                   int cluster = 1) {
    if (gx % cluster || together % cluster) std::abort();
    cluster_size = cluster;
    grid = {unsigned(gx), unsigned(gy), 1}, block_size = {unsigned(threads), 1, 1}, entry = &kernel, switches = 0;
    for (int first = 0; first < gx * gy; first += together) {
        std::vector<std::unique_ptr<Block>> blocks;
        std::vector<std::unique_ptr<Fiber>> fibers;
        for (int n = first; n < gx * gy && n < first + together; ++n) {
            auto block = std::make_unique<Block>();
            block->index = {unsigned(n % gx), unsigned(n / gx), 0};
            block->shared.assign(shared_bytes + 128, 0xcd);
            block->warps.resize((threads + 31) / 32);
            block->all.expected = threads;
            block->cluster = n % cluster_size ? blocks.back()->cluster : block.get();
            block->cluster->peers.push_back(block.get());
            block->cluster_meeting.expected = threads * cluster_size;
            for (int t = 0; t < threads; ++t) {
                auto fiber = std::make_unique<Fiber>();
                fiber->block = block.get(), fiber->thread = {unsigned(t), 0, 0};
                fiber->stack.resize(96 * 1024);
                getcontext(&fiber->context);
                fiber->context.uc_stack.ss_sp = fiber->stack.data();
                fiber->context.uc_stack.ss_size = fiber->stack.size();
                fiber->context.uc_link = nullptr;
                makecontext(&fiber->context, trampoline, 0);
                fibers.push_back(std::move(fiber));
            }
            blocks.push_back(std::move(block));
        }
        for (size_t left = fibers.size(); left > 0;) {
            left = 0;
            for (auto& fiber : fibers) {
                if (fiber->done) continue;
                current = fiber.get();
                swapcontext(&scheduler, &fiber->context);
                left += !fiber->done;
            }
        }
    }
}
inline float from_bf16(u16 h) { u32 w = u32(h) << 16; float f; std::memcpy(&f, &w, 4); return f; }
inline u32 bits_of(float f) { u32 w; std::memcpy(&w, &f, 4); return w; }
}  // namespace emu

#define threadIdx (emu::current->thread)
#define blockIdx (emu::current->block->index)
#define gridDim (emu::grid)
#define blockDim (emu::block_size)
inline u8* emu_shared_of(const emu::Block* block) {
    return reinterpret_cast<u8*>((reinterpret_cast<uintptr_t>(block->shared.data()) + 127) / 128 * 128);
}
inline u8* emu_shared() { return emu_shared_of(emu::current->block); }
#define DYNAMIC_SHARED(name) u8* name = emu_shared()

inline void __syncthreads() { emu::meet(emu::current->block->all); }
template <int BLOCKS> inline void cluster_sync() {
    if (BLOCKS != emu::cluster_size) std::abort();
    emu::meet(emu::current->block->cluster->cluster_meeting);
}
inline float4 cluster_load(const float* p, u32 rank) {
    const emu::Block* mine = emu::current->block;
    const u8* there = emu_shared_of(mine->cluster->peers[rank]) + (reinterpret_cast<const u8*>(p) - emu_shared_of(mine));
    return *reinterpret_cast<const float4*>(there);
}
inline void __syncwarp() { emu::meet(emu::warp().meeting); }
inline float __expf(float x) { return std::exp(x); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline int atomicAdd(int* p, int by) { int old = *p; *p += by; return old; }
inline u32 atomicOr(u32* p, u32 bits) { const u32 old = *p; *p |= bits; return old; }
inline u32 __float_as_uint(float f) { return emu::bits_of(f); }
inline float __uint_as_float(u32 w) { float f; std::memcpy(&f, &w, 4); return f; }
inline int __popc(u32 w) { return __builtin_popcount(w); }

inline u32 rotate_right(u32 word, u32 by) { return by ? (word >> by) | (word << (32 - by)) : word; }
inline u32 spread_byte(u32 word, int b) { u32 v = (word >> (8 * b)) & 0xff; return v | (v << 16); }
inline u32 select_bits(u32 mask, u32 a, u32 b) { return (a & mask) | (b & ~mask); }
inline void pin(u32&) {}

inline u16 to_bf16(float x) {
    u32 w = emu::bits_of(x);
    return u16((w + 0x7fff + ((w >> 16) & 1)) >> 16);
}
inline u32 mul_bf16x2(u32 a, u32 b) {
    u32 d = 0;
    for (int half = 0; half < 2; ++half) {
        // The product of two 8-bit significands is exact in double, also where bf16 or float are subnormal.
        double p = double(emu::from_bf16(u16(a >> 16 * half))) * double(emu::from_bf16(u16(b >> 16 * half)));
        d |= u32(to_bf16(float(p))) << (16 * half);
    }
    return d;
}
inline void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    emu::Warp& w = emu::warp();
    const int me = emu::lane();
    w.a[me][0] = a0, w.a[me][1] = a1, w.a[me][2] = a2, w.a[me][3] = a3;
    w.b[me][0] = b0, w.b[me][1] = b1, w.d[me] = d;
    emu::meet(w.meeting, [&w] {
        float a[16][16], b[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, q = lane % 4;
            for (int r = 0; r < 4; ++r)
                for (int e = 0; e < 2; ++e)
                    a[g + 8 * (r & 1)][2 * q + 8 * (r >> 1) + e] = emu::from_bf16(u16(w.a[lane][r] >> 16 * e));
            for (int r = 0; r < 2; ++r)
                for (int e = 0; e < 2; ++e) b[2 * q + 8 * r + e][g] = emu::from_bf16(u16(w.b[lane][r] >> 16 * e));
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int r = 0; r < 4; ++r) {
                const int row = lane / 4 + 8 * (r >> 1), column = 2 * (lane % 4) + (r & 1);
                float sum = w.d[lane][r];
                for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
                w.d[lane][r] = sum;
            }
    });
    emu::meet(w.meeting);  // nobody may reuse the mailboxes before all have their results
}
template <typename Fold> inline u32 emu_fold(u32 x, Fold fold) {
    emu::Warp& w = emu::warp();
    w.word[emu::lane()] = x;
    emu::meet(w.meeting, [&] {
        w.result = w.word[0];
        for (int lane = 1; lane < 32; ++lane) w.result = fold(w.result, w.word[lane]);
    });
    const u32 result = w.result;
    emu::meet(w.meeting);
    return result;
}
inline u32 warp_max(u32 x) { return emu_fold(x, [](u32 a, u32 b) { return a > b ? a : b; }); }
inline u32 warp_min(u32 x) { return emu_fold(x, [](u32 a, u32 b) { return a < b ? a : b; }); }
inline u32 warp_votes(bool yes) { return emu_fold(u32(yes) << emu::lane(), [](u32 a, u32 b) { return a | b; }); }
inline u32 warp_from(u32 x, int lane) {
    emu::Warp& w = emu::warp();
    w.word[emu::lane()] = x;
    emu::meet(w.meeting);
    const u32 result = w.word[lane];
    emu::meet(w.meeting);
    return result;
}

inline uint4 load_stream(const void* p) { return *static_cast<const uint4*>(p); }
inline uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
template <typename T> inline T load_fresh(const T* p) { return *p; }
// Copies land as late as they may: when their thread waits for them.
inline void copy16_async(void* shared, const void* global) { emu::current->asked.push_back({shared, global}); }
inline void copies_commit() {
    emu::current->committed.push_back(std::move(emu::current->asked));
    emu::current->asked.clear();
}
inline void emu_land(size_t left) {
    auto& groups = emu::current->committed;
    while (groups.size() > left) {
        for (const emu::Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}
inline void copies_wait() { copies_commit(), emu_land(0); }
inline void copies_wait_but_one() { emu_land(1); }
inline uint4 load_transposed(const void* row) {
    emu::Warp& w = emu::warp();
    w.rows[emu::lane()] = static_cast<const u16*>(row);
    emu::meet(w.meeting);
    const int g = emu::lane() / 4, q = emu::lane() % 4;
    u32 d[4];
    for (int m = 0; m < 4; ++m) d[m] = w.rows[8 * m + 2 * q][g] | u32(w.rows[8 * m + 2 * q + 1][g]) << 16;
    emu::meet(w.meeting);
    return {d[0], d[1], d[2], d[3]};
}
inline void group_sync(int id, int threads) {
    emu::Meeting& m = emu::current->block->groups[id];
    m.expected = threads;
    emu::meet(m);
}
inline void add_release(int* counter, int by) { *counter += by; }
inline int load_acquire(const int* counter) { return *counter; }
inline void wait_at_least(const int* counter, int value) { while (*counter < value) emu::yield(); }
inline void shared_store_release(int* p, int value) { *p = value; }
inline void shared_wait_at_least(const int* p, int value) { while (*p < value) emu::yield(); }
inline void grid_wait() {}
inline void grid_release_next() {}

// A barrier word: arrivals expected in the low 16 bits, arrivals pending in the next 16, bytes pending in 31, phase on top.
inline void emu_complete(u64* b) {
    if ((*b >> 16 & 0xffff) == 0 && (*b >> 32 & 0x7fffffff) == 0) *b = (*b ^ (1ull << 63)) | (*b & 0xffff) << 16;
}
inline void barrier_init(u64* b, u32 arrivals) { *b = u64(arrivals) << 16 | arrivals; }
inline void barriers_visible() {}
inline void barrier_arrive(u64* b) { *b -= 1ull << 16; emu_complete(b); }
inline void barrier_expect(u64* b, u32 bytes) { *b += u64(bytes) << 32; barrier_arrive(b); }
inline void barrier_wait(u64* b, u32 parity) { while ((*b >> 63) == parity) emu::yield(); }
inline void bulk_copy(void* shared, const void* global, u32 bytes, u64* b) {
    if (bytes % 16 || uintptr_t(shared) % 16 || uintptr_t(global) % 16) std::abort();
    emu::travelling.push_back([=] {
        std::memcpy(shared, global, bytes);
        *b -= u64(bytes) << 32;
        emu_complete(b);
    });
}
inline u64 global_nanoseconds() { return ++emu::switches; }
