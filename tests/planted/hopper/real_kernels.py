"""The kernels of kernels/hopper with one line changed."""

from __future__ import annotations

import functools
import runpy
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

import cudakit

from .catalogue import KERNELS, changed

LOAD = ("tensor_load(", "&x, tile % across")  # one statement of two lines
PACKED = ("const unsigned packed", "pack<__nv_bfloat16>(from")
WAIT_EMPTY = "barrier_wait(&shared.empty[place.stage]"
WAIT_FULL = "barrier_wait(&shared.full[place.stage]"
WGMMA = "wgmma<__nv_bfloat16, true, true>(sums, rows_a"


@functools.cache
def example() -> dict[str, Any]:
    """The names defined in examples/hopper.py."""
    return runpy.run_path(str(KERNELS.parents[1] / "examples" / "hopper.py"), run_name="hopper")


def launched(
    device: cudakit.Device, compiler: Any, function: str, inputs: Any, result: Any, *args: Any, **options: Any
) -> Any:
    """Run a function of the example, and return the result's contents. result: zeros of its shape and dtype."""
    arrays = [device.array(host) for host in (*inputs, result)]
    example()[function](compiler, *arrays, *args, **options).launch(device.default_stream)
    device.synchronize()
    return arrays[-1].numpy()


def ring(name: str, kind: str, idea: str, old: str, new: str, *named: str, shape: tuple[int, int] = (40, 300)) -> None:
    """Register a change of copy_ring, on a matrix of 3 x 3 tiles."""

    def run(device: cudakit.Device, compiler: Any) -> None:
        x = np.random.default_rng(3).integers(-50, 50, shape).astype(np.float32)
        got = launched(device, compiler, "copy_ring", (x,), np.zeros_like(x), 2.0, 1.0, blocks=1, stages=2)
        np.testing.assert_array_equal(got, 2 * x + 1)

    changed(kind, "copy_ring", name, idea, old, new, named, shape, run)


def product(
    name: str, kind: str, idea: str, old: str, new: str, *named: str, shape: tuple[int, int, int] = (256, 256, 192)
) -> None:
    """Register a change of wgmma_product, for two tiles per block, of three steps each."""

    def run(device: cudakit.Device, compiler: Any) -> None:
        m, n, k = shape
        rng = np.random.default_rng(3)
        a, b = (rng.integers(-2, 3, size).astype(bfloat16) for size in ((m, k), (n, k)))
        c = np.zeros((m, n), bfloat16)
        got = launched(device, compiler, "wgmma_product", (a, b), c, columns=128, stages=2, blocks=2)
        want = a.astype(np.float32) @ b.astype(np.float32).T
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(bfloat16).astype(np.float32))

    changed(kind, "wgmma_product", name, idea, old, new, named, shape, run)


def softmax(
    name: str, kind: str, idea: str, old: str, new: str, *named: str, shape: tuple[int, int] = (3, 1000)
) -> None:
    """Register a change of split_softmax, for three rows of one cluster of two blocks."""

    def run(device: cudakit.Device, compiler: Any) -> None:
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        got = launched(device, compiler, "split_softmax", (x,), np.zeros_like(x), cluster=2, threads=128, blocks=2)
        want = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), rtol=1e-4, atol=1e-7)

    changed(kind, "split_softmax", name, idea, old, new, named, shape, run)


# --- copy_ring -----------------------------------------------------------------------------------------------------

ring(
    "full_not_waited_for", "early", "Ring: consumers that wait for the wrong parity",
    "barrier_wait(&shared.full[place.stage], place.parity);",
    "barrier_wait(&shared.full[place.stage], place.parity ^ 1);",
    "v[i] = reinterpret_cast",
)  # fmt: skip
ring(
    "empty_not_waited_for", "arrivals", "Ring: buffers refilled before they are empty",
    "barrier_wait(&shared.empty[place.stage], place.parity ^ 1);", ";",
    "barrier_arrive_expect(&shared.full",
)  # fmt: skip
ring(
    "no_fence", "proxy fence", "Ring: no fence.proxy.async before the tensor store",
    "fence_async_shared();", ";", "tensor_store(&y",
)  # fmt: skip
ring(
    "fence_by_issuer", "proxy fence", "Ring: fence.proxy.async by the issuing thread only",
    "fence_async_shared();", "if (thread == 0) fence_async_shared();", "tensor_store(&y",
)  # fmt: skip
ring(
    "store_wait_too_low", "store source", "Ring: wait_group.read one too high",
    "if (thread == 0) bulk_wait_read<1>();  // the store of two tiles ago has read this buffer",
    "if (thread == 0) bulk_wait_read<2>();",
    "reinterpret_cast<float4*>(shared.out[buffer])", "make_float4(fmaf",
)  # fmt: skip
ring(
    "no_commit", "store commit", "Ring: tensor stores without a commit",
    "bulk_commit();", ";",
    "reinterpret_cast<float4*>(shared.out[buffer])", "make_float4(fmaf", "bulk_wait_read<",
)  # fmt: skip
ring(
    "half_the_bytes", "bytes", "Ring: expect_tx of half a tile",
    "barrier_arrive_expect(&shared.full[place.stage], kTile * 4);",
    "barrier_arrive_expect(&shared.full[place.stage], kTile * 2);",
    "barrier_arrive_expect(&shared.full", WAIT_FULL,
)  # fmt: skip
ring(
    "arrival_of_one_warp", "hang", "Ring: one warp arrives, but all are expected",
    "if (thread % kWarp == 0) barrier_arrive(&shared.empty[place.stage]);",
    "if (thread == 0) barrier_arrive(&shared.empty[place.stage]);",
    WAIT_EMPTY, WAIT_FULL,
)  # fmt: skip
ring(
    "no_barrier_after_init", "initialised", "Ring: no barrier after the initialisation",
    "__syncthreads();", ";", "barrier_wait(", "barrier_arrive",
)  # fmt: skip
ring(
    "first_barrier_again", "initialised again", "Ring: the first barrier initialised for every buffer",
    "barrier_init(&shared.full[i], 1);", "barrier_init(&shared.full[0], 1);", "barrier_init(&shared.full[0]",
)  # fmt: skip
ring(
    "map_copied", "map memory", "Ring: tensor map copied to a local variable",
    "tensor_store(&y, tile % across * COLS, tile / across * ROWS, shared.out[buffer]);",
    "const CUtensorMap map = y; tensor_store(&map, tile % across * COLS, tile / across * ROWS, shared.out[buffer]);",
    "tensor_store(&map",
)  # fmt: skip
ring(
    "rows_before_columns", "coordinates", "Ring: coordinates in the order of rows and columns",
    "tensor_store(&y, tile % across * COLS, tile / across * ROWS, shared.out[buffer]);",
    "tensor_store(&y, tile / across * ROWS, tile % across * COLS, shared.out[buffer]);",
    "tensor_store(&y",
)  # fmt: skip
ring(
    "tiles_rounded_up", "coordinates", "Ring: a row of tiles too many for whole tiles",
    "const int tiles = (rows + ROWS - 1) / ROWS * across;", "const int tiles = (rows / ROWS + 1) * across;",
    *LOAD, shape=(32, 300),
)  # fmt: skip

# --- wgmma_product ------------------------------------------------------------------------------------------------

product(
    "last_wait_too_low", "accumulator", "Product: the sums are rounded while the last products are in flight",
    "wgmma_wait<0>();", "wgmma_wait<1>();", *PACKED, "wgmma_result(sums)",
)  # fmt: skip
product(
    "sum_changed", "accumulator", "Product: a sum changed between products in flight",
    "wgmma_commit();", "wgmma_commit(), sums[0] += 1.0f, wgmma_result(sums);", "sums[0] += 1.0f",
)  # fmt: skip
product(
    "released_early", "operand", "Product: buffers released while products read them",
    "wgmma_wait<1>();  // the products of the step before are complete", "wgmma_wait<2>();",
    "tensor_load(shared.a", "tensor_load_to(shared.b",
)  # fmt: skip
product(
    "no_wgmma_fence", "wgmma fence", "Product: no wgmma.fence before the first products",
    "wgmma_fence();", ";", WGMMA,
)  # fmt: skip
product(
    "no_wgmma_commit", "wgmma commit", "Product: no commit",
    "wgmma_commit();", ";", "wgmma_wait<", *PACKED,
)  # fmt: skip
product(
    "half_warps", "half warp", "Product: wgmma by half of each warp",
    "wgmma<__nv_bfloat16, true, true>(sums, rows_a + 2 * i, rows_b + 2 * i, 1);",
    "if (lane < 16) wgmma<__nv_bfloat16, true, true>(sums, rows_a + 2 * i, rows_b + 2 * i, 1);",
    WGMMA,
)  # fmt: skip
product(
    "setmaxnreg_half_group", "setmaxnreg", "Product: setmaxnreg by half of each warpgroup",
    "registers_increase<232>();", "if (threadIdx.x % kGroup < 64) registers_increase<232>();",
    "registers_increase<232>",
)  # fmt: skip
product(
    "registers_kept", "registers", "Product: the producer keeps registers that the consumers wait for",
    "registers_decrease<40>();", "registers_decrease<64>();", "registers_increase<232>",
)  # fmt: skip
product(
    "tile_per_warp", "descriptors differ", "Product: each warp describes rows of its own",
    "const uint64 rows_b = wgmma_operand<true>(shared_address(shared.b[place.stage]));",
    "const uint64 rows_b = "
    "wgmma_operand<true>(shared_address(shared.b[place.stage] + threadIdx.x / kWarp % 2 * 8 * kDepth));",
    WGMMA,
)  # fmt: skip
product(
    "float_bytes_expected", "bytes", "Product: expect_tx of four bytes per element",
    "barrier_arrive_expect(full, (kRows + BN) * kDepth * 2);",
    "barrier_arrive_expect(full, (kRows + BN) * kDepth * 4);",
    "barrier_arrive_expect(full", WAIT_FULL,
)  # fmt: skip
product(
    "first_buffer_waited_for", "early", "Product: consumers that wait for the first buffer only",
    "barrier_wait(&shared.full[place.stage], place.parity);", "barrier_wait(&shared.full[0], place.parity);",
    WGMMA,
)  # fmt: skip
product(
    "released_to_one_block", "hang", "Product: buffers released to one of the two blocks that fill them",
    "if (reading >= 0 && lane < kBlocks) barrier_arrive_at(&shared.empty[reading], lane);",
    "if (reading >= 0 && lane < 1) barrier_arrive_at(&shared.empty[reading], lane);",
    WAIT_FULL, "barrier_wait<true>(&shared.empty",
)  # fmt: skip
product(
    "no_exit_handshake", "exited", "Product: blocks that exit while the other one arrives at their barriers",
    "cluster_sync();  // no block may exit while the other one arrives at its barriers", ";",
    "barrier_arrive_at(&shared.empty[reading]", "tensor_load_to(shared.b",
)  # fmt: skip
product(
    "init_of_one_block", "initialised", "Product: no cluster barrier after the initialisation",
    "cluster_sync();", "__syncthreads();",
    "barrier_arrive_at(&shared.empty[reading]", "tensor_load_to(shared.b",
)  # fmt: skip
product(
    "store_no_fence", "proxy fence", "Product: no fence.proxy.async between stmatrix and the tensor store",
    "fence_async_shared();", ";", "tensor_store(&c",
)  # fmt: skip
product(
    "store_waited_by_other", "store source", "Product: wait_group.read by a thread that has issued no store",
    "if (leader) bulk_wait_read<0>();  // the stores of the last tile have read the buffer",
    "if (threadIdx.x % kGroup == kWarp) bulk_wait_read<0>();",
    "store_matrices(shared.c", "bulk_wait_read<0>();",
)  # fmt: skip
product(
    "step_too_far", "coordinates", "Product: coordinates one box too far",
    "tensor_load(shared.a[place.stage], &a, step * kDepth, row_a, full);",
    "tensor_load(shared.a[place.stage], &a, (step + 1) * kDepth, row_a, full);",
    "tensor_load(shared.a",
)  # fmt: skip

# --- split_softmax ------------------------------------------------------------------------------------------------

softmax(
    "one_chunk_waited_for", "early", "Softmax: a wait for the first chunk only",
    "barrier_wait(&shared.full[i], parity);", "if (i == 0) barrier_wait(&shared.full[i], parity);",
    "const float4 v = from[k];",
)  # fmt: skip
softmax(
    "parts_not_waited_for", "early", "Softmax: a barrier of the block instead of a wait for the others' parts",
    "barrier_wait<true>(&shared.received, parity);", "__syncthreads();",
    "online_merge(total, shared.parts[i])",
)  # fmt: skip
softmax(
    "fence_by_issuer", "proxy fence", "Softmax: fence.proxy.async by the issuing thread only",
    "fence_async_shared();", "if (thread == 0) fence_async_shared();", "bulk_store(y",
)  # fmt: skip
softmax(
    "refilled_early", "store source", "Softmax: chunks refilled before the stores have read them",
    "bulk_wait_read<CHUNKS - 1 - CHUNK>();", "bulk_wait_read<CHUNKS - CHUNK>();",
    "bulk_load(", "shared.values[chunk], x + row", "load(row, CHUNK)",
)  # fmt: skip
softmax(
    "part_too_many_expected", "bytes", "Softmax: expect_tx of one part too many",
    "if (thread == 0) barrier_arrive_expect(&shared.received, CLUSTER * sizeof(Online));",
    "if (thread == 0) barrier_arrive_expect(&shared.received, (CLUSTER + 1) * sizeof(Online));",
    "barrier_arrive_expect(&shared.received", "barrier_wait<true>(&shared.received",
)  # fmt: skip
softmax(
    "megabytes_expected", "overflow", "Softmax: expect_tx of more bytes than a barrier can count",
    "barrier_arrive_expect(&shared.full[chunk], length(chunk) * 4);",
    "barrier_arrive_expect(&shared.full[chunk], length(chunk) * 32 * 1024);",
    "barrier_arrive_expect(&shared.full[chunk]",
)  # fmt: skip
softmax(
    "init_of_one_block", "initialised", "Softmax: no cluster barrier after the initialisation",
    "cluster_sync();", "__syncthreads();",
    "store_async(&shared.parts", "barrier_arrive_at(&shared.read",
)  # fmt: skip
softmax(
    "no_exit_handshake", "exited", "Softmax: blocks that exit before the others' last signal",
    "barrier_wait<true>(&shared.read, parity ^ 1);  // and until the last signal of the others has arrived", ";",
    "barrier_arrive_at(&shared.read",
)  # fmt: skip
