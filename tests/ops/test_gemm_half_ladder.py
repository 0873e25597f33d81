"""The introductory variants of the 16-bit product for Hopper: every element, unsupported problems, and the reports of
common mistakes in them, on the simulated device under all checks."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit.errors import DeviceFault, UnsupportedVariant
from cudakit.families.gemm_half import DTYPES, FAMILY
from cudakit.families.gemm_half import problem as problem_of
from cudakit.families.gemm_half_ladder import VARIANTS
from cudakit.memory import array as memory
from cudakit.sim.driver.api import ALL_CHECKS

LADDER = replace(FAMILY, variants=VARIANTS)
NAMES = [variant.name for variant in VARIANTS]
PERSISTENT = ("persistent", "stored")
# Tiles at the edges of an operand have boxes wholly outside of it, which are zeros.
CHECKS = ALL_CHECKS - {"clipping"}


@functools.wraps(problem_of)
def on_two_multiprocessors(*args: Any, **options: Any) -> Any:
    return replace(problem_of(*args, **options), sms=2)


FEW_BLOCKS = replace(LADDER, problem=on_two_multiprocessors)


@pytest.fixture(scope="module")
def checked() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", checks=CHECKS) as device:
        yield device


def integers(*shape: int, seed: int = 1, dtype: str = "float16") -> np.ndarray:
    """Integers so small that products and sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(memory.as_dtype(dtype))


def placed(device: cudakit.Device, host: np.ndarray, by_columns: bool = False) -> Any:
    """The array on the device, contiguous along rows or along columns."""
    if not by_columns:
        return device.array(host)
    return device.array(np.ascontiguousarray(np.swapaxes(host, -1, -2))).transpose(*range(host.ndim - 2), -1, -2)


def expect(
    device: cudakit.Device,
    name: str,
    a: np.ndarray,
    b: np.ndarray,
    turned: tuple[bool, bool, bool] = (False, False, False),
    family: Any = LADDER,
    **options: Any,
) -> None:
    """Every element of the product is exact, with A, B and the output contiguous along columns if `turned`."""
    exact = options.get("alpha", 1.0) * np.matmul(a.astype(np.float32), b.astype(np.float32))
    want = exact.astype(memory.as_dtype(options.get("dtype", a.dtype)))
    out = placed(device, np.full_like(want, np.nan), turned[2])
    family(placed(device, a, turned[0]), placed(device, b, turned[1]), out=out, variant=name, **options)
    np.testing.assert_array_equal(out.numpy().astype(np.float32), want.astype(np.float32))


# Every element --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(264, 264, 72), (8, 8, 8), (200, 72, 328)])
def test_a_product_has_every_element(
    checked: cudakit.Device, name: str, dtype: str, shape: tuple[int, int, int]
) -> None:
    """Several tiles and one, all with edges; k smaller and larger than the ring, not a multiple of a stage."""
    m, n, k = shape
    expect(checked, name, integers(m, k, dtype=dtype), integers(k, n, seed=2, dtype=dtype))


@pytest.mark.parametrize("name", NAMES)
def test_operands_are_contiguous_in_either_direction(checked: cudakit.Device, name: str) -> None:
    """Each pair of directions of two of the three arrays."""
    a, b = integers(136, 136), integers(136, 264, seed=2)
    for turned in ((False, False, False), (False, True, True), (True, False, True), (True, True, False)):
        expect(checked, name, a, b, turned)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shared", ["", "A", "B"])
def test_batches(checked: cudakit.Device, name: str, shared: str) -> None:
    a = integers(*(() if shared == "A" else (3,)), 136, 72)
    b = integers(*(() if shared == "B" else (3,)), 72, 40, seed=2)
    expect(checked, name, a, b)
    expect(checked, name, a, b, (True, False, True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_float32_result_times_alpha_is_not_rounded(checked: cudakit.Device, name: str, dtype: str) -> None:
    a, b = integers(72, 328, dtype=dtype) * 100, integers(328, 264, seed=2, dtype=dtype)
    expect(checked, name, a, b, dtype="float32", alpha=-0.5)
    expect(checked, name, a, b, (False, True, True), dtype="float32", alpha=2.0)


@pytest.mark.parametrize("name", PERSISTENT)
@pytest.mark.parametrize("shape", [(264, 520, 328), (4360, 264, 8)])
def test_a_block_computes_several_tiles(checked: cudakit.Device, name: str, shape: tuple[int, int, int]) -> None:
    """Uneven numbers of steps in the ring; several bands of tiles."""
    m, n, k = shape
    expect(checked, name, integers(m, k), integers(k, n, seed=2), family=FEW_BLOCKS)
    expect(checked, name, integers(2, 136, k), integers(k, n, seed=2), family=FEW_BLOCKS)


@pytest.mark.parametrize("name", NAMES[1:])
def test_tensor_copies_take_any_extent_in_aligned_rows(checked: cudakit.Device, name: str) -> None:
    """A row of 37 elements in 40: the other three are NaN, and are not multiplied."""
    a, b = np.full((130, 40), np.nan, np.float16), np.full((37, 264), np.nan, np.float16)
    a[:, :37], b[:] = integers(130, 37), integers(37, 264, seed=2)
    out = checked.full((130, 264), np.nan, dtype=np.float16)
    LADDER(checked.array(a)[:, :37], checked.array(b), out=out, variant=name)
    np.testing.assert_array_equal(out.numpy(), a[:, :37].astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(40)])
def test_the_moments_at_which_copies_complete_do_not_matter(seed: int) -> None:
    a, b = integers(136, 328, seed=seed), integers(328, 264, seed=seed + 1)
    with cudakit.Device("sim", fresh=True, order="random", seed=seed, checks=CHECKS) as device:
        for name in NAMES[1:]:
            expect(device, name, a, b, family=FEW_BLOCKS)


# Unsupported problems -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, 'no fused epilogue .*: pass variant="auto"'),
        ({"scale": 2.0}, 'no fused epilogue .*: pass variant="auto"'),
        ({"beta": 1.0}, r"computes alpha \* A @ B without beta \* C: pass"),
    ],
)
def test_more_than_a_product_is_refused(sim: cudakit.Device, name: str, options: Any, words: str) -> None:
    a = sim.zeros((8, 8), np.float16)
    with pytest.raises(UnsupportedVariant, match=words):
        LADDER(a, a, out=sim.zeros((8, 8), np.float16), variant=name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_tensor_copies_cannot_access_are_refused(sim: cudakit.Device, name: str) -> None:
    wide, odd = sim.zeros((16, 16), np.float16), sim.zeros((16, 9), np.float16)
    for a, b, out, which in (
        (odd[:, :8], wide[:8], None, "A"),
        (wide, wide[:, 1:9], None, "B"),
        (wide, wide[:, :8], odd[:, :8], "the output"),
        (wide[:, ::-1], wide, None, "neither axis of A"),
    ):
        with pytest.raises(UnsupportedVariant, match=which):
            LADDER(a, b, out=out, variant=name)
    with pytest.raises(UnsupportedVariant, match="k is 0"):
        LADDER(wide[:, :0], wide[:0], variant=name)


def test_ordinary_loads_need_whole_pieces(sim: cudakit.Device) -> None:
    a, b = sim.zeros((16, 16), np.float16)[:, :12], sim.zeros((12, 16), np.float16)
    with pytest.raises(UnsupportedVariant, match=r"A's contiguous axis must .* 8 elements each; got 12 elements"):
        LADDER(a, b, variant="wgmma")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PERSISTENT])
def test_more_batches_than_a_grid_has_layers_are_refused(sim: cudakit.Device, name: str) -> None:
    a, out = sim.empty((65_536, 8, 8), np.float16), sim.empty((65_536, 8, 8), np.float16)
    with pytest.raises(UnsupportedVariant, match=r"at most 65535 columns of .* and batches supported, got 1 and 65536"):
        LADDER(a, a[0], out=out, variant=name)


# Mistakes -------------------------------------------------------------------------------------------------------------

WAIT_FULL = "barrier_wait(&full[step % 2], step / 2 % 2);"
WAIT_EMPTY = "barrier_wait<true>(&empty"
STORE_FENCE = "fence_async_shared();\n            named_sync"
OVERWRITTEN = "shared memory overwritten in flight"
MISTAKES = [
    ("wgmma", "05_wgmma.cu", "fence_async_shared();", "", "missing proxy fence"),
    ("wgmma", "05_wgmma.cu", "wgmma_fence();", "", "missing wgmma.fence"),
    ("wgmma", "05_wgmma.cu", "wgmma_wait<0>();", "", OVERWRITTEN),
    ("wgmma", "05_wgmma.cu", "__syncthreads();", "", "shared memory race"),
    ("tensor_copies", "06_tensor_copies.cu", WAIT_FULL, "", "read before mbarrier wait"),
    ("tensor_copies", "06_tensor_copies.cu", WAIT_FULL, "__syncthreads();", "read before mbarrier wait"),
    ("tensor_copies", "06_tensor_copies.cu", "wgmma_wait<0>();", "", OVERWRITTEN),
    ("producer", "07_producer.cu", "barrier_wait(&empty[place.stage], place.parity ^ 1);", "", "mbarrier count"),
    ("producer", "07_producer.cu", "wgmma_wait<1>();", "", OVERWRITTEN),
    ("producer", "07_producer.cu", "barrier_arrive(&empty[reading])", "(void)0", "deadlock"),
    ("wide", "ring.cuh", "if (reading >= 0) release<SHARES>(&empty[reading], lane);", "", "deadlock"),
    ("wide", "ring.cuh", "barrier_wait(&full[place.stage], place.parity);", "", "uninitialised read"),
    ("cluster", "09_cluster.cu", "cluster_sync();  // the other", "__syncthreads();  //", "mbarrier not initialised"),
    ("cluster", "09_cluster.cu", "cluster_sync();  // no block", "//", "use after free"),
    ("cluster", "09_cluster.cu", "lane < kShares", "lane < 1", "deadlock"),
    ("cluster", "09_cluster.cu", WAIT_EMPTY, f"if (step < 0) {WAIT_EMPTY}", "mbarrier count"),
    ("persistent", "ring.cuh", "release<SHARES>(&empty[reading], lane);\n    }", "}", "deadlock"),
    ("persistent", "10_persistent.cu", "    ring.sync();", "", "use after free"),
    ("stored", "warpgroup_store.cuh", STORE_FENCE, "named_sync", "missing proxy fence"),
    ("stored", "warpgroup_store.cuh", "bulk_wait_read<BUFFERS / BATCH - 1>();", ";", OVERWRITTEN),
    ("stored", "warpgroup_store.cuh", "bulk_wait_read<0>();", ";", OVERWRITTEN),
]


@pytest.mark.parametrize(("name", "file", "old", "new", "kind"), MISTAKES)
def test_mistakes_are_reported(tmp_path: Path, name: str, file: str, old: str, new: str, kind: str) -> None:
    for folder in ("common", "gemm_half"):
        shutil.copytree(ROOT / "kernels" / folder, tmp_path / folder)
    changed = tmp_path / "gemm_half" / file
    text = changed.read_text()
    assert text.count(old) == 1
    changed.write_text(text.replace(old, new))
    variant = replace(LADDER[name], source=str(tmp_path / LADDER[name].source))
    family = replace(FEW_BLOCKS, variants=(variant,))
    a, b = integers(136, 456), integers(456, 264, seed=2)
    device = cudakit.Device("sim", fresh=True, checks=CHECKS)
    with pytest.raises(DeviceFault) as raised:
        expect(device, name, a, b, family=family)
    assert raised.value.report.kind == kind
