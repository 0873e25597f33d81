"""Thread block clusters on the simulated device: ranks, distributed shared memory, barriers, and errors."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import CheckedDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ unsigned special(int which) {
    unsigned v = 0;
    switch (which) {
        case 0: asm("mov.u32 %0, %%clusterid.x;" : "=r"(v)); break;
        case 1: asm("mov.u32 %0, %%clusterid.y;" : "=r"(v)); break;
        case 2: asm("mov.u32 %0, %%nclusterid.x;" : "=r"(v)); break;
        case 3: asm("mov.u32 %0, %%nclusterid.y;" : "=r"(v)); break;
        case 4: asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v)); break;
        case 5: asm("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v)); break;
        case 6: asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v)); break;
        case 7: asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v)); break;
        case 8: asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v)); break;
        case 9: asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v)); break;
        case 10: asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v)); break;
    }
    return v;
}

// out: (gridDim.y, gridDim.x, 11)
__global__ void specials(unsigned* out) {
    if (threadIdx.x < 11) out[(blockIdx.y * gridDim.x + blockIdx.x) * 11 + threadIdx.x] = special(threadIdx.x);
}

// in, out: (blocks, 64); every block gives out what the next of its cluster has in shared memory
__global__ void __cluster_dims__(4, 1, 1) ring(const int* in, int* out) {
    __shared__ int tile[64];
    cg::cluster_group cluster = cg::this_cluster();
    tile[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    cluster.sync();
    int next = (cluster.block_rank() + 1) % cluster.num_blocks();
    int* theirs = cluster.map_shared_rank(tile, next);
    out[blockIdx.x * 64 + threadIdx.x] = theirs[63 - threadIdx.x] + 1000 * cluster.query_shared_rank(theirs);
    cluster.sync();
}

// in: (blocks, 256), out: (clusters, 64): a histogram spread over the blocks of a cluster, 64 / blocks bins each
__global__ void histogram(const unsigned* in, unsigned* out) {
    extern __shared__ unsigned bins[];
    cg::cluster_group cluster = cg::this_cluster();
    int each = 64 / cluster.num_blocks();
    for (int i = threadIdx.x; i < each; i += blockDim.x) bins[i] = 0;
    cluster.sync();
    unsigned bin = in[blockIdx.x * blockDim.x + threadIdx.x] % 64;
    atomicAdd(cluster.map_shared_rank(bins, bin / each) + bin % each, 1u);
    cluster.sync();
    for (int i = threadIdx.x; i < each; i += blockDim.x)
        out[blockIdx.x / cluster.num_blocks() * 64 + cluster.block_rank() * each + i] = bins[i];
}

// every block of a cluster writes to block 0, through PTX of its own
__global__ void gather(unsigned* out, unsigned long long* wide) {
    __shared__ unsigned inbox[8][4];
    __shared__ unsigned count;
    __shared__ unsigned long long big[8];
    unsigned rank = special(8), size = special(9), base, remote, at;
    if (threadIdx.x == 0) count = 0;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    base = (unsigned)__cvta_generic_to_shared(&inbox[rank][0]);
    if (threadIdx.x == 0) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(base), "r"(0));
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
            :: "r"(remote), "r"(rank), "r"(rank + 10), "r"(rank + 20), "r"(rank + 30) : "memory");
        asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(at) : "r"(remote));
        unsigned counter = (unsigned)__cvta_generic_to_shared(&count), old;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(counter), "r"(0));
        asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;"
            : "=r"(old) : "r"(counter), "r"(1 + at) : "memory");
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" :: "r"(counter), "r"(100u) : "memory");
        unsigned long long generic = (unsigned long long)&big[rank], there;
        asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(generic), "r"(0));
        *(unsigned long long*)there = 1000000007ull * rank;
        int own, cluster, global;
        asm volatile("{ .reg .pred p, q, r; isspacep.shared::cta p, %3; isspacep.shared::cluster q, %3;"
            " isspacep.global r, %3; selp.s32 %0, 1, 0, p; selp.s32 %1, 1, 0, q; selp.s32 %2, 1, 0, r; }"
            : "=r"(own), "=r"(cluster), "=r"(global) : "l"(there));
        out[100 + rank] = own + 2 * cluster + 4 * global;
        unsigned rank_of;
        asm volatile("getctarank.u64 %0, %1;" : "=r"(rank_of) : "l"(generic));
        out[120 + rank] = rank_of;
    }
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
    if (rank == 0 && threadIdx.x < size) {
        for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = inbox[threadIdx.x][i];
        wide[threadIdx.x] = big[threadIdx.x];
        if (threadIdx.x == 0) out[99] = count;
    }
}

// a pointer to a block's shared memory means that memory in every block of the cluster
__global__ void passed(int* out) {
    __shared__ int value;
    __shared__ int* pointer;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        value = 10 + cluster.block_rank();
        *cluster.map_shared_rank(&pointer, cluster.block_rank() ^ 1) = &value;
    }
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = *pointer;
    cluster.sync();
}

// lanes part, and some exit before the last barrier
__global__ void phases(int* out, int rounds) {
    __shared__ int seen[3];
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < 3) seen[threadIdx.x] = 0;
    cluster.sync();
    int rank = cluster.block_rank(), n = cluster.num_blocks();
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) *cluster.map_shared_rank(&seen[round % 3], (rank + round) % n) += round + rank;
        cluster.barrier_arrive();
        if (threadIdx.x % 7 == round % 7) out[blockIdx.x * blockDim.x + threadIdx.x] += 1;
        cluster.barrier_wait();
    }
    if (threadIdx.x == 1) out[gridDim.x * blockDim.x + blockIdx.x] = seen[0] + seen[1] + seen[2];
    if (threadIdx.x >= 40) return;
    cluster.sync();
}

// threads that arrive and then exit are waited for no more
__global__ void leavers(int* out) {
    __shared__ int value;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) value = 0;
    cluster.sync();
    cluster.barrier_arrive();
    if (threadIdx.x < 16) return;
    for (int i = 0; i < (int)(100 * cluster.block_rank()); ++i) asm volatile("");
    if (threadIdx.x == 16) *(volatile int*)&value = 5 + cluster.block_rank();
    cluster.barrier_wait();
    cluster.sync();
    out[blockIdx.x * 32 + threadIdx.x] = *cluster.map_shared_rank(&value, cluster.block_rank() ^ 1);
    cluster.sync();
}
__global__ void leave_early(int* out) {
    __shared__ int value;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) value = 0;
    cluster.sync();
    if (threadIdx.x < 16) { cluster.barrier_arrive(); asm volatile("exit;"); }
    if (threadIdx.x == 16) value = 5 + cluster.block_rank();
    cluster.sync();
    out[blockIdx.x * 32 + threadIdx.x] = *cluster.map_shared_rank(&value, cluster.block_rank() ^ 1);
    cluster.sync();
}

// the blocks of a cluster hand on a value through global memory, round by round; bug: without the barrier
__global__ void relay(int* out, int rounds, int bug) {
    cg::cluster_group cluster = cg::this_cluster();
    int first = blockIdx.x - cluster.block_rank();
    for (int round = 0; round < rounds; ++round) {
        if (round % cluster.num_blocks() == cluster.block_rank() && threadIdx.x == 0)
            out[first] = out[first] * 2 + round;  // line: relay
        if (!bug) cluster.sync();
    }
}

// the first barrier orders what the blocks do before it; bug: the last one is left out
__global__ void exchange(int* out, int bug) {
    __shared__ int value[32];
    cg::cluster_group cluster = cg::this_cluster();
    value[threadIdx.x] = threadIdx.x + 100 * cluster.block_rank();
    if (bug != 1) cluster.sync(); else __syncthreads();
    int theirs = cluster.map_shared_rank(value, cluster.block_rank() ^ 1)[threadIdx.x];  // line: exchange
    if (bug != 2) cluster.sync(); else __syncthreads();
    value[31 - threadIdx.x] = theirs;  // line: exchange
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = value[threadIdx.x];
    cluster.sync();
}

// the last cell of out is a flag between the blocks; bug: raised without a fence
__global__ void flagged(int* out, int bug) {
    __shared__ int value[32];
    cg::cluster_group cluster = cg::this_cluster();
    int* flag = out + 63;
    if (cluster.block_rank() == 0 && threadIdx.x == 0) *flag = 0;
    cluster.sync();
    if (cluster.block_rank() == 1) {
        value[threadIdx.x] = threadIdx.x + 7;
        __syncwarp();
        if (!bug) __threadfence();
        if (threadIdx.x == 0) atomicExch(flag, 1);
    } else {
        if (threadIdx.x == 0)
            while (atomicAdd(flag, 0) == 0) {}
        __syncwarp();
        __threadfence();
        out[threadIdx.x] = cluster.map_shared_rank(value, 1)[threadIdx.x];  // line: flagged
    }
    cluster.sync();
}

__global__ void unwritten(int* out) {
    __shared__ int value[64];
    value[threadIdx.x] = 1;
    cg::this_cluster().sync();
    out[threadIdx.x] = cg::this_cluster().map_shared_rank(value, 0)[threadIdx.x + 1];  // line: unwritten
    cg::this_cluster().sync();
}

__global__ void far(int* out, int rank) {
    __shared__ int value;
    value = 7;
    cg::this_cluster().sync();
    out[threadIdx.x] = *cg::this_cluster().map_shared_rank(&value, rank);  // line: far
    cg::this_cluster().sync();
}

__global__ void beyond(int* out, int index) {
    __shared__ int values[4];
    if (threadIdx.x < 4) values[threadIdx.x] = 7;
    cg::this_cluster().sync();
    out[threadIdx.x] = cg::this_cluster().map_shared_rank(values, 1)[index];  // line: beyond
    cg::this_cluster().sync();
}

__global__ void gone(int* out) {
    __shared__ int value;
    value = 7;
    cg::this_cluster().sync();
    if (cg::this_cluster().block_rank() == 1) return;
    for (int i = 0; i < 10; ++i) __syncthreads();
    out[threadIdx.x] = *cg::this_cluster().map_shared_rank(&value, 1);  // line: gone
}

__global__ void narrow(int* out) {
    __shared__ int value;
    unsigned at = (unsigned)__cvta_generic_to_shared(&value);
    int got;
    asm volatile("mapa.shared::cluster.u32 %0, %0, 1;" : "+r"(at));
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(got) : "r"(at));  // line: narrow
    out[0] = got;
}

__global__ void alone(int* out) {
    if (cg::this_cluster().block_rank() == 0) cg::this_cluster().sync();  // line: alone
    else while (*(volatile int*)out == 0) {}
}

__global__ void waits_only(int* out) {
    if (threadIdx.x == 0) asm volatile("barrier.cluster.wait;");  // line: waits_only
    out[0] = 1;
}

__global__ void arrives_twice(int* out) {
    asm volatile("barrier.cluster.arrive;");
    asm volatile("barrier.cluster.arrive;");  // line: arrives_twice
    out[0] = 1;
}

__global__ void parted(int* out) {
    if (threadIdx.x < 5) {
        asm volatile("barrier.cluster.arrive.aligned;");  // line: parted
    } else {
        out[threadIdx.x] = 3;
        asm volatile("barrier.cluster.arrive.aligned;");  // line: parted
    }
    asm volatile("barrier.cluster.wait;");
}
"""


@pytest.fixture(scope="module")
def device():
    return CheckedDevice(SOURCE, name="clusters.cu")


def line_of(mark):
    return [n for n, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"// line: {mark}")]


@pytest.mark.parametrize(("grid", "cluster"), [((8, 1), (4, 1, 1)), ((4, 6), (2, 3, 1)), ((3, 4), (1, 2, 1))])
def test_every_block_knows_its_cluster_and_its_rank(device, grid, cluster):
    out = np.zeros((grid[1], grid[0], 11), np.uint32)
    device.launch("specials", grid, 32, out, cluster=cluster)
    y, x = np.mgrid[: grid[1], : grid[0]]
    cx, cy, _ = cluster
    want = [x // cx, y // cy, grid[0] // cx + 0 * x, grid[1] // cy + 0 * x, x % cx, y % cy, cx + 0 * x, cy + 0 * x]
    want += [y % cy * cx + x % cx, cx * cy + 0 * x, 1 + 0 * x]
    assert (out == np.stack(want, axis=-1)).all()


def test_without_a_cluster_every_block_is_one(device):
    out = np.zeros((2, 3, 11), np.uint32)
    device.launch("specials", (3, 2), 32, out)
    assert out[1, 2].tolist() == [2, 1, 3, 2, 0, 0, 1, 1, 0, 1, 0]


def test_a_compiled_cluster_reads_the_next_block(device):
    values = np.arange(8 * 64, dtype=np.int32).reshape(8, 64)
    out = np.zeros_like(values)
    assert device.kernel("ring").required_cluster == (4, 1, 1)
    device.launch("ring", 8, 64, values, out)
    following = [1, 2, 3, 0, 5, 6, 7, 4]
    assert (out == values[following, ::-1] + 1000 * (np.array(following) % 4)[:, None]).all()


@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_atomics_reach_all_shared_memory_of_a_cluster(device, cluster):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 20, (8, 256), np.uint32)
    out = np.zeros((8 // cluster, 64), np.uint32)
    device.launch("histogram", 8, 256, values, out, shared=256, cluster=(cluster, 1, 1))
    want = [np.bincount(part.ravel() % 64, minlength=64) for part in values.reshape(8 // cluster, -1)]
    assert (out == want).all()


def test_mapa_vectors_and_generic_addresses(device):
    out, wide = np.zeros(200, np.uint32), np.zeros(8, np.uint64)
    device.launch("gather", 8, 32, out, wide, cluster=(8, 1, 1))
    rank = np.arange(8)
    assert (out[:32].reshape(8, 4) == rank[:, None] + [0, 10, 20, 30]).all()
    assert out[99] == 8 * 101
    assert (wide == rank.astype(np.uint64) * 1000000007).all()
    # the address is in the cluster's window for all blocks, in the own block's for block 0, in global memory for none
    assert out[100:108].tolist() == [3] + [2] * 7
    assert (out[120:128] == rank).all()


def test_pointers_to_shared_memory_can_be_handed_over(device):
    out = np.zeros(4, np.int32)
    device.launch("passed", 4, 32, out, cluster=(2, 1, 1))
    assert out.tolist() == [11, 10, 11, 10]


def test_barrier_phases_and_early_exits(device):
    out = np.zeros(6 * 64 + 6, np.int32)
    device.launch("phases", 6, 64, out, 10, cluster=(3, 1, 1))
    lanes = np.arange(64)
    want = np.array([sum(lane % 7 == turn % 7 for turn in range(10)) for lane in lanes])
    assert (out[:-6].reshape(6, 64) == want).all()
    sums = [0, 0, 0]
    for turn in range(10):
        for rank in range(3):
            sums[(rank + turn) % 3] += turn + rank
    assert out[-6:].tolist() == sums * 2


FAULTS = [
    ("far", (2,), "out of bounds", "of rank 2; the cluster has ranks 0 to 1"),
    ("far", (-1,), "out of bounds", "of rank 255; the cluster has ranks 0 to 1"),
    ("beyond", (4,), "out of bounds", "byte 16 of shared memory; the block has 16 bytes"),
    ("gone", (), "use after free", r"the shared memory of block \(1, 0, 0\), which has exited"),
    ("narrow", (), "out of bounds", ".shared::cta access can only reach its own block"),
    ("alone", (), "hang", "32 other lanes wait at a barrier"),
    ("waits_only", (), "divergent barrier", "waits at the cluster barrier without having arrived"),
    ("arrives_twice", (), "divergent barrier", "arrives at the cluster barrier twice"),
    ("parted", (), "divergent barrier", "at different .aligned instructions"),
]


@pytest.mark.parametrize(("kernel", "arguments", "kind", "words"), FAULTS)
def test_mistakes_are_reported_with_their_line(device, kernel, arguments, kind, words):
    out = np.zeros(64, np.int32)
    with pytest.raises(KernelFault, match=words) as caught:
        device.launch(kernel, 2, 32, out, *arguments, cluster=(2, 1, 1))
    report = caught.value.report
    assert report.kind == kind
    if kernel != "alone":
        assert report.line in line_of(kernel), str(report)


@pytest.mark.parametrize("kernel", ["leavers", "leave_early"])
def test_threads_that_arrive_and_exit_are_not_waited_for(device, kernel):
    out = np.zeros((4, 32), np.int32)
    device.launch(kernel, 4, 32, out, cluster=(2, 1, 1))
    assert (out[:, 16:] == np.array([6, 5, 6, 5])[:, None]).all()
    assert (out[:, :16] == 0).all()


def test_batches_hold_whole_clusters(device):
    out = np.zeros(1200, np.int32)
    device.launch("relay", 1200, 32, out, 7, 0, cluster=(6, 1, 1))
    want = 0
    for turn in range(7):
        want = want * 2 + turn
    assert (out.reshape(-1, 6) == [want, 0, 0, 0, 0, 0]).all()


def test_a_cluster_barrier_orders_global_memory(device):
    out = np.zeros(8, np.int32)
    device.launch("relay", 8, 32, out, 9, 0, cluster=(4, 1, 1))
    want = 0
    for turn in range(9):
        want = want * 2 + turn
    assert out.tolist() == [want, 0, 0, 0] * 2


def test_a_cluster_barrier_orders_shared_memory(device):
    out = np.zeros(128, np.int32)
    device.launch("exchange", 4, 32, out, 0, cluster=(2, 1, 1))
    assert (out.reshape(4, 32) == np.arange(31, -1, -1) + np.array([100, 0, 100, 0])[:, None]).all()


def test_a_flag_with_fences_orders_the_shared_memory_of_a_cluster(device):
    out = np.zeros(64, np.int32)
    device.launch("flagged", 2, 32, out, 0, cluster=(2, 1, 1))
    assert (out[:32] == np.arange(32) + 7).all()


@pytest.mark.parametrize(
    ("kernel", "arguments", "kind"),
    [
        ("flagged", (1,), "shared memory race"),
        ("relay", (4, 1), "global memory race"),
        ("exchange", (1,), "shared memory race"),
        ("exchange", (2,), "shared memory race"),
        ("unwritten", (), "uninitialised read"),
    ],
)
def test_what_no_cluster_barrier_orders_is_a_race(device, kernel, arguments, kind):
    with pytest.raises(KernelFault) as caught:
        device.launch(kernel, 2, 32, np.zeros(64, np.int32), *arguments, cluster=(2, 1, 1))
    report = caught.value.report
    assert report.kind == kind
    assert report.line in line_of(kernel)


def test_a_block_that_leaves_the_cluster_to_wait_is_a_deadlock(device):
    source = r"""
    __global__ void stuck(int* out) {
        if (blockIdx.x == 0) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;");
        else if (threadIdx.x == 0) asm volatile("bar.sync 1, 64;");
        out[0] = 1;
    }
    """
    with pytest.raises(KernelFault, match="1 of 32 threads of the block have arrived at barrier 1") as caught:
        CheckedDevice(source).launch("stuck", 2, 32, np.zeros(1, np.int32), cluster=(2, 1, 1))
    assert caught.value.report.kind == "deadlock"


def test_a_grid_that_is_no_multiple_of_its_cluster_is_refused(device):
    with pytest.raises(ValueError, match="not a multiple of cluster"):
        device.launch("ring", 6, 64, np.zeros(1, np.int32), np.zeros(1, np.int32))


def test_many_clusters_run_in_batches(device):
    values = np.arange(1000 * 64, dtype=np.int32).reshape(1000, 64)
    out = np.zeros_like(values)
    device.launch("ring", 1000, 64, values, out)
    following = np.arange(1000) // 4 * 4 + (np.arange(1000) + 1) % 4
    assert (out == values[following, ::-1] + 1000 * (following % 4)[:, None]).all()
