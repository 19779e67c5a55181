// The few machine instructions the kernels need, one function each. Knows PTX; knows no model and no data layout.
//
// Built by NVRTC without any header. Tests run the kernels on a CPU (one fiber a thread) by defining UNBLUR_PRIMITIVES
// and their own version of everything here, so no other file may contain inline assembly.
#ifndef UNBLUR_PRIMITIVES
#define UNBLUR_PRIMITIVES

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]

__device__ __forceinline__ u32 rotate_right(u32 word, u32 by) { return __funnelshift_r(word, word, by); }

// Byte b of `word` into bytes 0 and 2, zeros elsewhere.
__device__ __forceinline__ u32 spread_byte(u32 word, int b) { return __byte_perm(word, 0u, 0x4040u | (b << 8) | b); }

// Bits of a where the mask is 1, of b elsewhere; one instruction, which the compiler does not find by itself.
__device__ __forceinline__ u32 select_bits(u32 mask, u32 a, u32 b) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

// Keeps the compiler from computing on `word` earlier than here (it would hoist the unpacking out of the token loop).
__device__ __forceinline__ void pin(u32& word) { asm volatile("" : "+r"(word)); }

// ---- arithmetic ----

// a * b on two bf16 each, subnormals kept. An fma with -0 because mul.bf16x2 needs sm_90.
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

__device__ __forceinline__ u16 to_bf16(float x) {
    u16 d;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(x));
    return d;
}

// d += a (16x16) * b (16x8). Lane 4g+q holds: a = rows g, g+8 at k 2q, 2q+1, then both at k 2q+8, 2q+9;
// b = k 2q, 2q+1, then 2q+8, 2q+9 of column g; d = row g at columns 2q, 2q+1, then row g+8.
__device__ __forceinline__ void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 warp_max(u32 x) {
    u32 d;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(x));
    return d;
}

__device__ __forceinline__ u32 warp_min(u32 x) {
    u32 d;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(x));
    return d;
}

__device__ __forceinline__ u32 warp_votes(bool yes) { return __ballot_sync(0xffffffffu, yes); }

__device__ __forceinline__ u32 warp_from(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// ---- memory ----

// 16 bytes that are read once: not kept in L1.
__device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 d;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "l"(p));
    return d;
}

__device__ __forceinline__ uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }

// Past L1: for values other blocks of the same launch have written.
template <typename T> __device__ __forceinline__ T load_fresh(const T* p) { return __ldcg(p); }

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void copy16_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

// Copies asked for since the last commit are one group.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups but the latest are there.
__device__ __forceinline__ void copies_wait_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// Four 8x8 matrices of 16 bits, transposed: lane 8m + r names row r of matrix m (16 bytes in shared memory), and lane 4g + q
// gets rows 2q and 2q + 1 at column g of each.
__device__ __forceinline__ uint4 load_transposed(const void* row) {
    uint4 d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(shared_address(row)) : "memory");
    return d;
}

__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- blocks and grids ----

// Barrier `id` (1..15) among `threads` threads of the block.
__device__ __forceinline__ void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void add_release(int* counter, int by) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* counter) {
    int d;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(d) : "l"(counter) : "memory");
    return d;
}

__device__ __forceinline__ void wait_at_least(const int* counter, int value) {
    while (load_acquire(counter) < value) __nanosleep(20);
}

// The same for a word in shared memory that one thread of the block counts up.
__device__ __forceinline__ void shared_store_release(int* p, int value) {
    asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(shared_address(p)), "r"(value) : "memory");
}

__device__ __forceinline__ void shared_wait_at_least(const int* p, int value) {
    int d;
    do {
        asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(d) : "r"(shared_address(p)) : "memory");
    } while (d < value);
}

// The blocks of a cluster (sm_90 and later) wait for one another, and see what the others have written to their shared
// memory; without a cluster, the threads of the block.
template <int BLOCKS> __device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

// 16 bytes at the place that `p` names in this block's shared memory, from the cluster's block `rank`.
__device__ __forceinline__ float4 cluster_load(const float* p, u32 rank) {
#if __CUDA_ARCH__ >= 900
    u32 remote;
    float4 d;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w) : "r"(remote) : "memory");
    return d;
#else
    return *reinterpret_cast<const float4*>(p);
#endif
}

// Programmatic dependent launch: until the kernels before this one are complete and visible; nothing before sm_90.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ u64 global_nanoseconds() {
    u64 d;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(d));
    return d;
}

#if __CUDA_ARCH__ >= 900
// ---- bulk copies into shared memory that complete on a barrier (sm_90 and later) ----

__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barriers_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nWAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT;\n}"
                 ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// bytes: a multiple of 16; both ends 16-byte aligned. The data is read once, so it leaves L2 first.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, u32 bytes, u64* barrier) {
    u64 evict_first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_first)
                 : "memory");
}
#endif

#endif  // UNBLUR_PRIMITIVES
