// Instructions of Hopper (sm_90a) for the kernels: barriers in shared memory that also count bytes (mbarrier), bulk and
// tensor copies (TMA), clusters, and the fences and waits of products of warpgroups (wgmma.cuh).
//
// Shared memory is accessed in two ways, the generic proxy (ordinary loads and stores, stmatrix) and the async proxy
// (bulk copies, wgmma). Each thread that has stored data which the async proxy reads next executes
// fence_async_shared() before the barrier that orders its stores and that read.
//
// HOPPER_BOUNDED: barrier_wait returns after about a second, and sets hopper_expired, so that a kernel with a missing
// arrival ends on a GPU.
#pragma once
#include <cuda.h>

#include "mma.cuh"
#include "online.cuh"

// --- Barriers ------------------------------------------------------------------------------------------------------

// Initialises a barrier whose phases complete after `arrivals` arrivals and all expected bytes.
__device__ __forceinline__ void barrier_init(uint64* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Ends a barrier: its memory may be used for other data, or for a new barrier.
__device__ __forceinline__ void barrier_invalidate(uint64* barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Makes this thread's barrier_init visible to the cluster and the async proxy, after a barrier that follows.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once.
__device__ __forceinline__ void barrier_arrive(uint64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives once, and adds `bytes` to those that the phase waits for.
__device__ __forceinline__ void barrier_arrive_expect(uint64* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
        : "memory");
}

// Adds `bytes` to those that the phase waits for.
__device__ __forceinline__ void barrier_expect(uint64* barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
        : "memory");
}

// Arrives once at the barrier at the same place in the cluster's block `rank`. CLUSTER: this thread's stores are
// visible to that block's threads, too, which takes longer; reads and completed products are ordered without it.
template <bool CLUSTER = false>
__device__ __forceinline__ void barrier_arrive_at(uint64* barrier, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(barrier)), "r"(rank));
    if constexpr (CLUSTER)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    else
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

// Whether the phase of this parity is the last one that completed. CLUSTER: other blocks' data is visible, too.
template <bool CLUSTER = false>
__device__ __forceinline__ bool barrier_passed(uint64* barrier, unsigned parity) {
    unsigned passed;
    if constexpr (CLUSTER)
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(passed)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    else
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(passed)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    return passed;
}

#if defined(HOPPER_BOUNDED)
__device__ int hopper_expired;  // whether a wait returned before its phase was complete
#endif

// Waits until barrier_passed. A barrier's first phase has parity 0; before it completes, a wait for parity 1 returns at
// once.
template <bool CLUSTER = false>
__device__ __forceinline__ void barrier_wait(uint64* barrier, unsigned parity) {
#if defined(HOPPER_BOUNDED)
    uint64 begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    while (!barrier_passed<CLUSTER>(barrier, parity)) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - begun > 1000000000) *const_cast<volatile int*>(&hopper_expired) = 1;
        if (*const_cast<volatile int*>(&hopper_expired)) return;
    }
#else
    while (!barrier_passed<CLUSTER>(barrier, parity)) continue;
#endif
}

// A place in a ring of STAGES buffers: the stage, and the parity of the phase in which it is full.
template <int STAGES>
struct RingPlace {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }

    // Moves on by `count` buffers.
    __device__ __forceinline__ void skip(int count) {
        const int at = stage + count;
        stage = at % STAGES;
        parity ^= at / STAGES & 1;
    }
};

// Waits until `threads` threads have called it with this `id` (1 to 15).
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts as a call of named_sync, without waiting.
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary stores to shared memory before later reads of the async proxy.
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Bulk copies ---------------------------------------------------------------------------------------------------
// Addresses and sizes are multiples of 16 bytes. Loads complete on a barrier, which counts their bytes; stores belong
// to groups of the thread that issued them.

// Copies bytes to shared memory.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Copies bytes from shared memory.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
        "r"(shared_address(shared)), "r"(bytes)
        : "memory");
}

// Loads the map's box that begins at column x of row y. Elements outside the tensor become zero and count as copied.
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, int x, int y, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

// The same for a tensor of three dimensions.
__device__ __forceinline__ void tensor_load(
    void* shared, const CUtensorMap* map, int x, int y, int z, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Loads a box into every block of the cluster whose rank's bit is in `ranks`: the box and the signal on the barrier
// arrive at the same place in each block.
__device__ __forceinline__ void tensor_load_to(
    void* shared, const CUtensorMap* map, int x, int y, uint64* barrier, unsigned short ranks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(ranks)
        : "memory");
}

// The same for a tensor of three dimensions.
__device__ __forceinline__ void tensor_load_to(
    void* shared, const CUtensorMap* map, int x, int y, int z, uint64* barrier, unsigned short ranks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(ranks)
        : "memory");
}

// Stores the map's box that begins at column x of row y. Elements outside the tensor are not stored.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int x, int y, const void* shared) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(shared_address(shared)), "r"(x), "r"(y)
        : "memory");
}

// The same for a tensor of three dimensions.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int x, int y, int z, const void* shared) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
        "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Fetches a tensor map, so that the first copy does not wait for it.
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Ends a group: all stores that this thread issued since the last commit.
__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the newest LATEST groups of this thread have read shared memory, which may then be overwritten.
template <int LATEST>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATEST) : "memory");
}

// Waits until all but the newest LATEST groups of this thread are complete.
template <int LATEST>
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(LATEST) : "memory");
}

// --- Clusters ------------------------------------------------------------------------------------------------------

// This block's rank in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Loads from the same place of the cluster's block `rank`.
__device__ __forceinline__ float4 cluster_load(const float4* shared, unsigned rank) {
    float4 value;
    asm volatile(
        "{\n\t.reg .b32 from;\n\tmapa.shared::cluster.u32 from, %4, %5;\n\t"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [from];\n\t}"
        : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
        : "r"(shared_address(shared)), "r"(rank)
        : "memory");
    return value;
}

// Stores a value into the same place of the cluster's block `rank`; its 8 bytes count on the barrier there.
__device__ __forceinline__ void store_async(Online* shared, Online value, uint64* barrier, unsigned rank) {
    asm volatile(
        "{\n\t.reg .b32 to, signal;\n\tmapa.shared::cluster.u32 to, %0, %2;\n\t"
        "mapa.shared::cluster.u32 signal, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [signal];\n\t}" ::"r"(
            shared_address(shared)),
        "r"(shared_address(barrier)), "r"(rank), "f"(value.maximum), "f"(value.sum)
        : "memory");
}

// --- Warpgroups ----------------------------------------------------------------------------------------------------
// A warpgroup is four warps, the first of which has a number that is a multiple of 4. All its threads call these
// functions together.

// True in one lane of the warp, the same one each time. All lanes call it together.
__device__ __forceinline__ bool elect_one() {
    unsigned elected;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(elected));
    return elected;
}

// Limits each thread of the warpgroup to COUNT registers, and returns the others to the block.
template <int COUNT>
__device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Waits until the block has COUNT registers for each thread of the warpgroup.
template <int COUNT>
__device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Orders earlier accesses to registers and shared memory before the next wgmma.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends a group: all products since the last commit.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the newest LATEST groups are complete.
template <int LATEST>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATEST) : "memory");
}

// Keeps the compiler from moving accesses to sums across this place. Called after wgmma_wait<0>.
template <int COUNT>
__device__ __forceinline__ void wgmma_result(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Stores four 8 x 8 matrices of 16-bit elements, one per register, as load_matrices loads them.
__device__ __forceinline__ void store_matrices(void* shared, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)),
        "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
        : "memory");
}

// Stores two matrices, each transposed; the lane passes the address of row lane % 8 of matrix lane / 8 % 2.
__device__ __forceinline__ void store_matrices_transposed(void* shared, const unsigned (&from)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(shared)),
        "r"(from[0]), "r"(from[1])
        : "memory");
}

// Stores four matrices, each transposed: the lane has rows 2t, 2t + 1 of column g.
__device__ __forceinline__ void store_matrices_transposed(void* shared, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)),
        "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
        : "memory");
}
