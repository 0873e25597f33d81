"""The order by bulk copies: a wait for a copy orders what happened before its start, and a bulk store is complete once
its own thread has waited for all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from paths import ROOT
from simdevice import CheckedDevice
from test_bulk_edges import reported

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
#include "hopper.cuh"
__device__ __forceinline__ void start(uint64* barrier) {
    if (threadIdx.x == 0) { barrier_init(barrier, 1); fence_barrier_init(); }
}

__device__ __forceinline__ int load(const int* shared) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(shared_address(shared)) : "memory");
    return value;
}

// ---- accesses by the thread that starts a copy ----
// `when` it stores or reads: before the copy; after it; after it, and a barrier of the block follows
enum { BEFORE, AFTER, SYNCED, FENCED };
__global__ void scaled_by_block(const int* x, int* y, int when) {
    __shared__ alignas(16) int tile[96];
    __shared__ int factor;
    __shared__ uint64 full;
    start(&full);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (when == BEFORE) factor = x[0] + 2;
        barrier_arrive_expect(&full, 384);
        bulk_load(tile, x, 384, &full);
        if (when != BEFORE) factor = x[0] + 2;
    }
    if (when == SYNCED) __syncthreads();
    barrier_wait(&full, 0);
    // the other lanes of the first warp read it too, or only the other warps
    if (threadIdx.x == 0 || threadIdx.x >= 32) y[threadIdx.x] = tile[threadIdx.x] * factor;  // factor
}
__global__ void scaled_in_warp(const int* x, int* y, int when) {
    __shared__ alignas(16) int tile[32];
    __shared__ int factor;
    __shared__ uint64 full;
    start(&full);
    __syncwarp();
    if (threadIdx.x == 0) {
        if (when == BEFORE) factor = x[0] + 2;
        barrier_arrive_expect(&full, 128);
        bulk_load(tile, x, 128, &full);
        if (when != BEFORE) factor = x[0] + 2;
    }
    if (when == SYNCED) __syncwarp();
    barrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x] * factor;  // warp's factor
}
__global__ void scaled_by_global(const int* x, int* y, int* factor, int when) {
    __shared__ alignas(16) int tile[64];
    __shared__ uint64 full;
    start(&full);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (when == BEFORE) *factor = x[0] + 2;
        barrier_arrive_expect(&full, 256);
        bulk_load(tile, x, 256, &full);
        if (when != BEFORE) *factor = x[0] + 2;
    }
    if (when == SYNCED) __syncthreads();
    barrier_wait(&full, 0);
    if (threadIdx.x >= 32) y[threadIdx.x] = tile[threadIdx.x] * *factor;  // global factor
}
// thread 32 overwrites what thread 0 reads
__global__ void reused(const int* x, int* y, int when) {
    __shared__ alignas(16) int tile[64];
    __shared__ int old;
    __shared__ uint64 full;
    start(&full);
    if (threadIdx.x == 0) old = x[4];
    __syncthreads();
    int seen = 0;
    if (threadIdx.x == 0) {
        if (when == BEFORE) seen = load(&old);
        barrier_arrive_expect(&full, 256);
        bulk_load(tile, x, 256, &full);
        if (when != BEFORE) seen = load(&old);
    }
    if (when == SYNCED) __syncthreads();
    barrier_wait(&full, 0);
    if (threadIdx.x == 32) old = seen + 7;  // reuses
    y[threadIdx.x] = tile[threadIdx.x] + seen;
}
// block 0 loads into both blocks of the cluster, and stores a factor to both; each block's own thread arrives
__global__ void __cluster_dims__(2) scaled_in_cluster(const int* x, int* y, int when) {
    __shared__ alignas(16) int tile[64];
    __shared__ int factor;
    __shared__ uint64 full;
    start(&full);
    cluster_sync();
    if (threadIdx.x == 0) barrier_arrive_expect(&full, 256);
    for (int step = 0; step < 2; ++step)
        if (cluster_rank() == 0 && threadIdx.x == 0) {
            if (step == (when == BEFORE))
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                             "[%0], [%1], 256, [%2], %3;"
                             :: "r"(shared_address(tile)), "l"(x), "r"(shared_address(&full)), "h"((unsigned short)3)
                             : "memory");
            else
                for (int rank = 0; rank < 2; ++rank)
                    asm volatile("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; st.shared::cluster.u32 [to], 3;}"
                                 :: "r"(shared_address(&factor)), "r"(rank) : "memory");
        }
    if (when == SYNCED) cluster_sync();
    if (when == FENCED && cluster_rank() == 0) {
        __threadfence();
        __syncthreads();
    }
    barrier_wait(&full, 0);
    if (cluster_rank() == 1 && (when != FENCED || threadIdx.x == 0))
        y[threadIdx.x] = tile[threadIdx.x] * factor;  // cluster's factor
    cluster_sync();
}
// ---- the destinations of bulk stores ----
// `wait`: none, for the sources only, or for all; `who`: the thread that accesses y then
enum { NO_WAIT, SOURCES, ALL };
__device__ __forceinline__ void put(int* y, int wait) {
    __shared__ alignas(16) int tile[32];
    if (threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(y + 4, tile, 128);
        bulk_commit();
        if (wait == SOURCES) bulk_wait_read<0>();
        if (wait == ALL) bulk_wait<0>();
    }
    __syncthreads();
}
// the barrier at the end orders the access before the store that lands after it
__global__ void loads(int* y, int wait, int who, int at) {
    put(y, wait);
    int seen = 0;
    if (threadIdx.x == who) seen = y[at];  // loads
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
    if (threadIdx.x == who) y[40] = seen;
}
__global__ void loads_bytes(int* y, int wait, int who, int at) {
    put(y, wait);
    int seen = 0;
    if (threadIdx.x == who) seen = reinterpret_cast<volatile signed char*>(y)[at];  // loads bytes
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
    if (threadIdx.x == who) y[40] = seen;
}
__global__ void loads_vectors(int* y, int wait, int who, int at) {
    put(y, wait);
    int4 seen = {};
    if (threadIdx.x == who) seen = reinterpret_cast<int4*>(y)[at];  // loads vectors
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
    if (threadIdx.x == who) y[40] = seen.x + seen.w;
}
__global__ void stores(int* y, int wait, int who, int at) {
    put(y, wait);
    if (threadIdx.x == who) y[at] = 9;  // stores
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
}
// another copy reads it
__global__ void copies(int* y, int wait, int who, int at) {
    __shared__ alignas(16) int back[4];
    __shared__ uint64 full;
    start(&full);
    put(y, wait);
    if (threadIdx.x == who) {
        barrier_arrive_expect(&full, 16);
        asm volatile("fence.proxy.async;" ::: "memory");
        bulk_load(back, y + 4 * at, 16, &full);  // copies
        barrier_wait(&full, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
    if (threadIdx.x == who) y[40] = back[0] + back[3];
}
// Two bulk stores, or a store and a reduction (`first`, `second`: whether each is one), to elements 4 to 35 and `to` to
// `to` + 31. `same`: they store the same values where they overlap
__global__ void overlaps(int* y, int first, int second, int to, int same, int wait) {
    __shared__ alignas(16) int one[32], two[32];
    one[threadIdx.x] = threadIdx.x + 4;
    two[threadIdx.x] = threadIdx.x + (same ? to : 100);
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            if (i ? second : first)
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 128;"  // reduces
                             :: "l"(y + (i ? to : 4)), "r"(shared_address(i ? two : one)) : "memory");
            else
                bulk_store(y + (i ? to : 4), i ? two : one, 128);  // overlaps
            bulk_commit();
            if (i == 0 && wait) bulk_wait<0>();
        }
        bulk_wait<0>();
    }
}
// a thread accesses y before, or without an order with, the start of a store to it by another one
__global__ void unordered_start(int* y, int writes, int sync) {
    __shared__ alignas(16) int tile[32];
    if (threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncthreads();
    int seen = 0;
    if (threadIdx.x == 32) {
        if (writes) y[7] = 9;
        else seen = y[7];
    }
    if (sync) __syncthreads();
    if (threadIdx.x == 0) bulk_store(y + 4, tile, 128);  // starts
    if (threadIdx.x == 0) bulk_commit();
    __syncthreads();
    if (threadIdx.x == 0) bulk_wait<0>();
    if (threadIdx.x == 32) y[40] = seen;
}
// `when`: what a load reads is overwritten after the wait for it, before that by the same thread, by another one, by a
// bulk store
__global__ void overwritten_source(int* x, int* y, int when) {
    __shared__ alignas(16) int tile[64];
    __shared__ alignas(16) int fill[4];
    __shared__ uint64 full;
    start(&full);
    if (threadIdx.x < 4) fill[threadIdx.x] = -1;
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, 256);
        bulk_load(tile, x, 256, &full);
    }
    __syncthreads();
    if (when == 0) barrier_wait(&full, 0);
    if (when < 3 && threadIdx.x == (when == 1 ? 0 : 32)) x[5] = -1;  // overwrites
    if (when == 3 && threadIdx.x == 0) {
        bulk_store(x + 4, fill, 16);  // stores over
        bulk_commit();
    }
    barrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
    if (threadIdx.x == 0) bulk_wait<0>();
}
// atomics may add to what reductions add to; `mixed`: a load may not be among them
__global__ void adds(int* y, int mixed) {
    __shared__ alignas(16) int tile[32];
    tile[threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncwarp();
    int seen = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 128;"
                         :: "l"(y + 4), "r"(shared_address(tile)) : "memory");
            bulk_commit();
        }
        atomicAdd(&y[5], 100);
        if (mixed) seen = y[5];  // adds
        bulk_wait<0>();
        y[40] = seen + y[5];
    }
}
// the first of two stores is complete
__global__ void first_of_two(int* y, int at) {
    __shared__ alignas(16) int tile[32];
    tile[threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            bulk_store(y + 4 + 16 * i, tile + 16 * i, 64);
            bulk_commit();
        }
        bulk_wait<1>();
        const int seen = y[at];  // first of two
        bulk_wait<0>();
        y[40] = seen;
    }
}
// Block 0 sends a tile to block 1, which answers once it is there: then the tile may be filled again, by any thread.
// `early`: block 0 does not wait for the answer
__global__ void __cluster_dims__(2) sent_twice(const int* x, int* y, int early) {
    __shared__ alignas(16) int tile[64], got[64];
    __shared__ uint64 full, answered;
    start(&full);
    start(&answered);
    cluster_sync();
    int total = 0;
    for (int i = 0; i < 2; ++i) {
        if (cluster_rank() == 0) {
            if (i == 1 && !early) barrier_wait(&answered, 0);
            tile[63 - threadIdx.x] = x[64 * i + threadIdx.x];  // sends
            fence_async_shared();
            __syncthreads();
            if (threadIdx.x == 0)
                asm volatile("{.reg .b32 to, at;"
                             "mapa.shared::cluster.u32 to, %0, 1; mapa.shared::cluster.u32 at, %1, 1;"
                             "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                             "[to], [%2], 256, [at];}"
                             :: "r"(shared_address(got)), "r"(shared_address(&full)), "r"(shared_address(tile))
                             : "memory");
        } else {
            if (threadIdx.x == 0) barrier_arrive_expect(&full, 256);
            barrier_wait(&full, i);
            total += got[threadIdx.x];
            __syncthreads();
            if (threadIdx.x == 0 && i == 0)
                asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %0, 0;"
                             "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];}"
                             :: "r"(shared_address(&answered)) : "memory");
        }
    }
    if (cluster_rank() == 1) y[threadIdx.x] = total;
    cluster_sync();
}
// Block 0 stores to block 1 and, by another thread, sends it a tile. `order` of the store and the copy: a barrier of
// the block, a named barrier, none
enum { WHOLE_BLOCK, NAMED, NO_ORDER };
__global__ void __cluster_dims__(2) sent_after(const int* x, int* y, int order) {
    __shared__ alignas(16) int tile[64], got[64];
    __shared__ int notes[64];
    __shared__ uint64 full;
    start(&full);
    tile[threadIdx.x] = x[threadIdx.x];
    fence_async_shared();
    cluster_sync();
    if (cluster_rank() == 0) {
        asm volatile("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, 1; st.shared::cluster.u32 [to], %1;}"
                     :: "r"(shared_address(&notes[threadIdx.x])), "r"(threadIdx.x) : "memory");
        if (order == WHOLE_BLOCK) __syncthreads();
        if (order == NAMED) named_sync(2, 64);
        if (threadIdx.x == 0)
            asm volatile("{.reg .b32 to, at;"
                         "mapa.shared::cluster.u32 to, %0, 1; mapa.shared::cluster.u32 at, %1, 1;"
                         "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                         "[to], [%2], 256, [at];}"
                         :: "r"(shared_address(got)), "r"(shared_address(&full)), "r"(shared_address(tile))
                         : "memory");
    } else {
        if (threadIdx.x == 0) barrier_arrive_expect(&full, 256);
        asm volatile("{.reg .pred p; WAIT:"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra WAIT;}"
                     :: "r"(shared_address(&full)) : "memory");
        y[64 * (blockIdx.x / 2) + threadIdx.x] = got[threadIdx.x] + notes[threadIdx.x];  // notes
    }
    cluster_sync();
}
// The first cluster stores to `notes` and raises a flag. A thread of the second one waits for that (`ordered`: it
// acquires) and loads into both blocks, of which the other waits for its tile only and reads the notes.
__global__ void __cluster_dims__(2) flagged(const int* x, int* y, int* notes, int* flag, int ordered) {
    __shared__ alignas(16) int tile[64];
    __shared__ uint64 full;
    start(&full);
    cluster_sync();
    if (blockIdx.x == 0) {
        notes[threadIdx.x] = threadIdx.x + 1;
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("st.release.gpu.s32 [%0], 1;" :: "l"(flag) : "memory");
    }
    if (blockIdx.x >= 2) {
        if (threadIdx.x == 0) barrier_arrive_expect(&full, 256);
        if (cluster_rank() == 0 && threadIdx.x == 0) {
            int raised = 0;
            while (!raised)
                if (ordered) asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
                else asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1], 256, [%2], %3;"
                         :: "r"(shared_address(tile)), "l"(x), "r"(shared_address(&full)), "h"((unsigned short)3)
                         : "memory");
        }
        barrier_wait(&full, 0);
        if (cluster_rank() == 1) y[threadIdx.x] = tile[threadIdx.x] * notes[threadIdx.x];  // flagged
    }
    cluster_sync();
}
// Blocks of a cluster exchange tiles twice. `answers`: each waits for the other one's answer before it fills its tile
// again; its own copy has arrived then, but the other block's wait for that orders nothing here
__global__ void __cluster_dims__(2) exchanged(const int* x, int* y, int answers) {
    __shared__ alignas(16) int tile[64], got[2][64];
    __shared__ uint64 full[2], answered;
    start(&full[0]);
    start(&full[1]);
    start(&answered);
    cluster_sync();
    const unsigned other = 1 - cluster_rank();
    int total = 0;
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && answers) barrier_wait(&answered, 0);
        tile[threadIdx.x] = x[128 * i + 64 * cluster_rank() + threadIdx.x];  // fills
        fence_async_shared();
        __syncthreads();
        if (threadIdx.x == 0) {
            barrier_arrive_expect(&full[i], 256);
            asm volatile("{.reg .b32 to, at;"
                         "mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 at, %1, %3;"
                         "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                         "[to], [%2], 256, [at];}"
                         :: "r"(shared_address(got[i])), "r"(shared_address(&full[i])), "r"(shared_address(tile)),
                            "r"(other) : "memory");
        }
        barrier_wait(&full[i], 0);
        total += got[i][threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0 && i == 0)
            asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
                         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];}"
                         :: "r"(shared_address(&answered)), "r"(other) : "memory");
    }
    y[64 * cluster_rank() + threadIdx.x] = total;
    cluster_sync();
}
// a ring of two tiles whose slots the consumers free by an mbarrier: no access of the producer is late
__global__ void ring(const int* x, int* y, int tiles) {
    __shared__ alignas(16) int tile[2][64];
    __shared__ int factor[2];
    __shared__ uint64 full[2], empty[2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) { barrier_init(&full[i], 1); barrier_init(&empty[i], 64); }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 64) {
        for (int i = 0; i < tiles; ++i) {
            const int slot = i % 2;
            if (i >= 2) barrier_wait(&empty[slot], i / 2 - 1 & 1);
            factor[slot] = i + 1;
            barrier_arrive_expect(&full[slot], 256);
            bulk_load(tile[slot], x + 64 * i, 256, &full[slot]);
        }
    } else if (threadIdx.x < 64) {
        int sum = 0;
        for (int i = 0; i < tiles; ++i) {
            const int slot = i % 2;
            barrier_wait(&full[slot], i / 2 & 1);
            sum += tile[slot][threadIdx.x] * factor[slot];
            tile[slot][threadIdx.x] = 0;  // a store into what the copy has written
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(shared_address(&empty[slot])) : "memory");
        }
        y[threadIdx.x] = sum;
    }
}
// ---- products of tiles that threads store ----
constexpr int kStages = 4, kTile = 64 * 64, kColumns = 8;
using Element = __nv_bfloat16;
// sums += A * B^T: 64 rows of A and 8 rows of B, 64 numbers each, in the layout of a 128-byte swizzle
__device__ __forceinline__ void multiply(float (&sums)[4], const Element* a, const Element* b) {
    const uint64 layout = uint64(1) << 16 | uint64(64) << 32 | uint64(1) << 62;
    const uint64 of_a = layout | shared_address(a) >> 4, of_b = layout | shared_address(b) >> 4;
    wgmma_fence();
    for (int i = 0; i < 4; ++i)
        asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0;"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 0, 0;}"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "l"(of_a + 2 * i), "l"(of_b + 2 * i) : "memory");  // multiplies
    wgmma_commit();
}
__device__ __forceinline__ void put_rows(Element* tile, const Element* from, int rows) {
    for (int i = threadIdx.x % 128; i < rows * 8; i += 128)
        reinterpret_cast<uint4*>(tile)[i / 8 * 8 + (i % 8 ^ i / 8 % 8)] = reinterpret_cast<const uint4*>(from)[i];
}
__device__ __forceinline__ void put_sums(float* y, const float (&sums)[4]) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; ++i) y[(row + i / 2 * 8) * kColumns + column + i % 2] = sums[i];
}
// The first warpgroup fills a ring by ordinary stores, and the second one multiplies once the whole ring is full, of
// which it learns by relaxed accesses, which order nothing. `unfenced`: the step in which thread 37 executes no fence
__global__ void __launch_bounds__(256) filled_ahead(const Element* a, const Element* b, float* y, int steps,
                                                   int unfenced, int* ahead) {
    __shared__ alignas(1024) Element tiles[kStages][kTile], columns[kColumns * 64];
    __shared__ uint64 full[kStages], empty[kStages];
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) { barrier_init(&full[i], 128); barrier_init(&empty[i], 4); }
        fence_barrier_init();
    }
    if (threadIdx.x < 128) put_rows(columns, b, kColumns);
    fence_async_shared();
    __syncthreads();
    RingPlace<kStages> place;
    if (threadIdx.x < 128) {
        for (int step = 0; step < steps; ++step, place.next()) {
            barrier_wait(&empty[place.stage], place.parity ^ 1);
            put_rows(tiles[place.stage], a + step * kTile, 64);
            if (step != unfenced || threadIdx.x != 37) fence_async_shared();
            barrier_arrive(&full[place.stage]);
            if (step == kStages - 1) asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" :: "l"(ahead) : "memory");
        }
    } else {
        float sums[4] = {};
        int filled = 0;
        while (filled < 128) asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(filled) : "l"(ahead) : "memory");
        for (int step = 0; step < steps; ++step, place.next()) {
            barrier_wait(&full[place.stage], place.parity);
            multiply(sums, tiles[place.stage], columns);
            wgmma_wait<0>();
            if (threadIdx.x % 32 == 0) barrier_arrive(&empty[place.stage]);
        }
        wgmma_result(sums);
        put_sums(y, sums);
    }
}
// Each block of a cluster multiplies tiles of its own, ordered by its own barriers. `unfenced`: the block whose
// thread 37 executes no fence
__global__ void __cluster_dims__(2) __launch_bounds__(128) beside(const Element* a, const Element* b, float* y,
                                                                 int unfenced) {
    __shared__ alignas(1024) Element tile[kTile], columns[kColumns * 64];
    const int rank = cluster_rank();
    float sums[4] = {};
    for (int step = 0; step < 2; ++step) {
        put_rows(tile, a + (2 * step + rank) * kTile, 64);
        put_rows(columns, b, kColumns);
        if (rank != unfenced || threadIdx.x != 37) fence_async_shared();
        __syncthreads();
        multiply(sums, tile, columns);
        wgmma_wait<0>();
        __syncthreads();
    }
    wgmma_result(sums);
    put_sums(y + rank * 64 * kColumns, sums);
}
"""
MOMENTS = (None, 0, 1, 2)
X = np.arange(1, 321, dtype=np.int32)
BEFORE, AFTER, SYNCED, FENCED = range(4)


@pytest.fixture(scope="module")
def device() -> CheckedDevice:
    return CheckedDevice(SOURCE, options=(f"-I{ROOT / 'kernels' / 'common'}",))


@pytest.mark.parametrize("draw", MOMENTS)
@pytest.mark.parametrize(
    ("kernel", "mark", "threads", "reader"),
    [("scaled_by_block", "factor", 96, 32), ("scaled_in_warp", "warp's factor", 32, 1), ("reused", "reuses", 64, 32)],
)
def test_a_wait_for_a_copy_orders_what_its_thread_did_before_it(
    device: CheckedDevice, kernel: str, mark: str, threads: int, reader: int, draw: int | None
) -> None:
    for when in (BEFORE, SYNCED):
        y = np.zeros(threads, np.int32)
        device.launch(kernel, 1, threads, X, y, when, draw=draw)
        assert y[threads - 1] == (X[threads - 1] if kernel == "reused" else 3 * X[threads - 1])
    report = reported(device, mark, kernel, 1, threads, X, np.zeros(threads, np.int32), AFTER, draw=draw)
    assert (report.kind, report.thread) == ("shared memory race", (reader, 0, 0))
    assert report.others[0].thread == (0, 0, 0)


@pytest.mark.parametrize("draw", MOMENTS)
def test_it_orders_global_memory_and_other_blocks_alike(device: CheckedDevice, draw: int | None) -> None:
    for when in (BEFORE, SYNCED):
        y, factor = np.zeros(64, np.int32), np.zeros(1, np.int32)
        device.launch("scaled_by_global", 1, 64, X, y, factor, when, draw=draw)
        assert np.array_equal(y[32:], 3 * X[32:64])
        device.launch("scaled_in_cluster", 2, 64, X, y, when, draw=draw)
        assert np.array_equal(y, 3 * X[:64])
    call: tuple[Any, ...] = ("scaled_by_global", 1, 64, X, y, factor, AFTER)
    assert reported(device, "global factor", *call, draw=draw).kind == "global memory race"
    for blocks in (2, 4):
        for when in (AFTER, FENCED):
            report = reported(device, "cluster's factor", "scaled_in_cluster", blocks, 64, X, y, when, draw=draw)
            assert (report.kind, report.block[0] % 2) == ("shared memory race", 1)


@pytest.mark.parametrize("draw", MOMENTS)
def test_what_a_producer_stores_beside_its_copies_is_not_late(device: CheckedDevice, draw: int | None) -> None:
    y = np.zeros(64, np.int32)
    device.launch("ring", 1, 96, X, y, 5, draw=draw)
    assert np.array_equal(y, (X.reshape(5, 64) * np.arange(1, 6)[:, None]).sum(0))


@pytest.mark.parametrize("draw", [*MOMENTS, *range(3, 12)])
def test_a_wait_for_a_copy_orders_the_read_of_its_source(device: CheckedDevice, draw: int | None) -> None:
    y = np.zeros(64, np.int32)
    device.launch("sent_twice", 2, 64, X, y, 0, draw=draw)
    assert np.array_equal(y, (X[:64] + X[64:128])[::-1])
    report = reported(device, "sends", "sent_twice", 2, 64, X, y, 1, draw=draw)
    assert (report.kind, report.block) == ("shared memory overwritten in flight", (0, 0, 0))
    y = np.zeros(128, np.int32)
    device.launch("exchanged", 2, 64, X, y, 1, draw=draw)
    assert np.array_equal(y.reshape(2, 64), X[:256].reshape(2, 2, 64).sum(0)[::-1])
    assert reported(device, "fills", "exchanged", 2, 64, X, y, 0, draw=draw).kind == report.kind


@pytest.mark.parametrize("draw", MOMENTS)
@pytest.mark.parametrize("clusters", [1, 3])
def test_a_wait_for_a_copy_orders_what_its_thread_knew(device: CheckedDevice, clusters: int, draw: int | None) -> None:
    y = np.zeros(64 * clusters, np.int32)
    for order in range(2):
        device.launch("sent_after", 2 * clusters, 64, X, y, order, draw=draw)
        assert np.array_equal(y, np.tile(X[:64] + np.arange(64), clusters))
    y, notes, flag = np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)
    device.launch("flagged", 4, 64, X, y, notes, flag, 1, draw=draw)
    assert np.array_equal(y, X[:64] * np.arange(1, 65))
    report = reported(device, "flagged", "flagged", 4, 64, X, y, notes, np.zeros(1, np.int32), 0, draw=draw)
    assert (report.kind, report.block) == ("global memory race", (3, 0, 0))
    y = np.zeros(64 * clusters, np.int32)
    report = reported(device, "notes", "sent_after", 2 * clusters, 64, X, y, 2, draw=draw)
    assert (report.kind, report.block[0] % 2) == ("shared memory race", 1)


# The destinations of bulk stores --------------------------------------------------------------------------------------

NO_WAIT, SOURCES, ALL = range(3)


def made(seen: int | None = None) -> list[int]:
    """The zeros that `put` has written to, and what a thread has seen of them."""
    return [*[0] * 4, *range(32), *[0] * 4, *([] if seen is None else [seen])]


@pytest.mark.parametrize("draw", MOMENTS)
@pytest.mark.parametrize(
    ("kernel", "inside", "outside"),
    [
        ("loads", {4: 0, 20: 16, 35: 31}, (3, 36)), ("loads_bytes", {16: 0, 20: 1, 143: 0}, (15, 144)),
        ("loads_vectors", {1: 3, 8: 59}, (0, 9)), ("copies", {1: 3, 8: 59}, (0, 9)),
    ],
)  # fmt: skip
def test_what_a_bulk_store_writes_may_be_read_after_a_wait_for_it(
    device: CheckedDevice, kernel: str, inside: dict[int, int], outside: tuple[int, ...], draw: int | None
) -> None:
    for who in (0, 32, 33):
        for at, seen in inside.items():
            y = np.zeros(41, np.int32)
            device.launch(kernel, 1, 64, y, ALL, who, at, draw=draw)
            assert y.tolist() == made(seen)
            for wait in (NO_WAIT, SOURCES):
                mark = kernel.replace("_", " ")
                report = reported(device, mark, kernel, 1, 64, np.zeros(41, np.int32), wait, who, at, draw=draw)
                assert (report.kind, report.thread) == ("access before bulk wait", (who, 0, 0))
                assert report.others[0].thread == (0, 0, 0)
        for at in outside:
            y = np.zeros(41, np.int32)
            device.launch(kernel, 1, 64, y, NO_WAIT, who, at, draw=draw)
            assert y.tolist() == made(0)


@pytest.mark.parametrize("draw", MOMENTS)
def test_what_a_bulk_store_writes_may_be_overwritten_after_a_wait_for_it(
    device: CheckedDevice, draw: int | None
) -> None:
    for who in (0, 32):
        y = np.zeros(40, np.int32)
        device.launch("stores", 1, 64, y, ALL, who, 7, draw=draw)
        assert y.tolist() == [*made()[:7], 9, *made()[8:]]
        device.launch("stores", 1, 64, y, SOURCES, who, 3, draw=draw)
        for wait in (NO_WAIT, SOURCES):
            report = reported(device, "stores", "stores", 1, 64, np.zeros(40, np.int32), wait, who, 7, draw=draw)
            assert (report.kind, report.thread) == ("access before bulk wait", (who, 0, 0))


@pytest.mark.parametrize("draw", MOMENTS)
def test_bulk_stores_of_other_values_to_one_place_need_a_wait_between(device: CheckedDevice, draw: int | None) -> None:
    zeros = np.zeros(80, np.int32)
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for to in (4, 32, 36):
            y = zeros.copy()
            device.launch("overlaps", 1, 32, y, first, second, to, 0, 1, draw=draw)
            want = zeros.copy()
            want[4:36] = range(4, 36)
            want[to : to + 32] = np.arange(100, 132) + (want[to : to + 32] if second else 0)
            assert y.tolist() == want.tolist()
            if to == 36 or (first and second):
                device.launch("overlaps", 1, 32, y, first, second, to, 0, 0, draw=draw)
                continue
            mark = "reduces" if second else "overlaps"
            if not second:
                report = reported(device, mark, "overlaps", 1, 32, y, first, second, to, 0, 0, draw=draw)
                assert report.kind == "access before bulk wait"
            else:
                with pytest.raises(KernelFault, match="access before bulk wait"):
                    device.launch("overlaps", 1, 32, y, first, second, to, 0, 0, draw=draw)
    # tiles that overlap at the end of an array, with the same values
    y = zeros.copy()
    device.launch("overlaps", 1, 32, y, 0, 0, 20, 1, 0, draw=draw)
    assert y.tolist() == [*[0] * 4, *range(4, 52), *[0] * 28]


@pytest.mark.parametrize("draw", MOMENTS)
@pytest.mark.parametrize("writes", [0, 1])
def test_a_bulk_store_is_ordered_by_its_start(device: CheckedDevice, writes: int, draw: int | None) -> None:
    y = np.zeros(41, np.int32)
    device.launch("unordered_start", 1, 64, y, writes, 1, draw=draw)
    assert y.tolist() == made(0)
    report = reported(device, "starts", "unordered_start", 1, 64, np.zeros(41, np.int32), writes, 0, draw=draw)
    assert (report.kind, report.thread) == ("global memory race", (0, 0, 0))
    assert report.others[0].thread == (32, 0, 0)


def test_what_a_bulk_load_reads_may_be_overwritten_after_a_wait_for_it(device: CheckedDevice) -> None:
    for draw in MOMENTS:
        x, y = X.copy(), np.zeros(64, np.int32)
        device.launch("overwritten_source", 1, 64, x, y, 0, draw=draw)
        assert np.array_equal(y, X[:64])
        assert x[5] == -1
    for when, mark, thread in ((1, "overwrites", 0), (2, "overwrites", 32), (3, "stores over", 0)):
        report = reported(device, mark, "overwritten_source", 1, 64, X.copy(), y, when)
        assert (report.kind, report.thread) == ("global memory overwritten in flight", (thread, 0, 0))


@pytest.mark.parametrize("draw", MOMENTS)
def test_atomics_go_together_with_bulk_reductions(device: CheckedDevice, draw: int | None) -> None:
    y = np.zeros(41, np.int32)
    device.launch("adds", 1, 32, y, 0, draw=draw)
    assert y[4:8].tolist() == [0, 102, 4, 6]
    report = reported(device, "adds", "adds", 1, 32, np.zeros(41, np.int32), 1, draw=draw)
    assert report.kind == "access before bulk wait"


@pytest.mark.parametrize("draw", MOMENTS)
def test_a_wait_for_older_groups_completes_their_stores(device: CheckedDevice, draw: int | None) -> None:
    y = np.zeros(41, np.int32)
    device.launch("first_of_two", 1, 32, y, 19, draw=draw)
    assert y.tolist() == made(15)
    report = reported(device, "first of two", "first_of_two", 1, 32, np.zeros(41, np.int32), 20, draw=draw)
    assert report.kind == "access before bulk wait"


# Products of tiles that threads store ---------------------------------------------------------------------------------


def matrices(tiles: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tiles of A, eight rows of B, and the products."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 3, shape).astype(bfloat16) for shape in ((tiles, 64, 64), (8, 64)))
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("draw", MOMENTS)
@pytest.mark.parametrize("steps", [4, 7])
def test_a_ring_may_be_filled_by_stores_ahead_of_products(device: CheckedDevice, steps: int, draw: int | None) -> None:
    """Threads have executed later fences, for other buffers, when the first product reads its operands."""
    a, b, exact = matrices(steps)
    y, none = np.zeros((64, 8), np.float32), np.zeros(1, np.int32)
    device.launch("filled_ahead", 1, 256, a, b, y, steps, -1, none.copy(), draw=draw)
    assert np.array_equal(y, exact.sum(0))
    for unfenced in range(steps):
        with pytest.raises(KernelFault) as raised:
            device.launch("filled_ahead", 1, 256, a, b, y, steps, unfenced, none.copy(), draw=draw)
        report = raised.value.report
        assert report.kind == "missing proxy fence"
        assert "thread (37, 0, 0)" in report.detail


@pytest.mark.parametrize("draw", MOMENTS)
def test_blocks_of_a_cluster_fence_their_own_stores(device: CheckedDevice, draw: int | None) -> None:
    """Both blocks' warpgroups execute the same product at the same time."""
    a, b, exact = matrices(4)
    y = np.zeros((2, 64, 8), np.float32)
    device.launch("beside", 2, 128, a, b, y, -1, draw=draw)
    assert np.array_equal(y, exact.reshape(2, 2, 64, 8).sum(0))
    for unfenced in (0, 1):
        with pytest.raises(KernelFault) as raised:
            device.launch("beside", 2, 128, a, b, y, unfenced, draw=draw)
        report = raised.value.report
        assert (report.kind, report.block) == ("missing proxy fence", (unfenced, 0, 0))
        assert f"block ({unfenced}, 0, 0), thread (37, 0, 0) has stored to" in report.detail
