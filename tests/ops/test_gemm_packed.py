"""Packing of operands: the contents of the scratch memory, one launch for both operands, and its memory traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit.families import gemm, gemm_half
from cudakit.families.gemm_packed import Packing, pack_launches, packing_of
from cudakit.family import Slot
from cudakit.memory import array as memory
from cudakit.memory.bounds import restrict
from cudakit.testing import Layout

FAMILIES = {"float32": gemm.FAMILY, "float16": gemm_half.FAMILY, "bfloat16": gemm_half.FAMILY}


def numbers(layout: Layout, seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(layout.shape, dtype=np.float32)
    return values.astype(memory.as_dtype(layout.dtype))


def placed(device: cudakit.Device, layout: Layout, values: np.ndarray) -> Any:
    """The values with these strides on the device. All other elements of the buffer are NaN; on the simulated device
    kernels must not read them."""
    host = np.full(layout.extent, np.nan, values.dtype)
    layout.of(host)[...] = values
    buffer = device.array(host)
    array = layout.on(buffer, device.default_stream)
    restrict(buffer, array)
    return array


def pack(device: cudakit.Device, a: Any, b: Any, **options: Any) -> tuple[Packing, np.ndarray, int]:
    """Return the packing of A @ B, the scratch memory, which is NaN before it is packed, and the number of launches."""
    family, dtype = FAMILIES[a.dtype.name], a.dtype
    out = device.empty((*a.shape[:-1], b.shape[-1]), dtype)
    p = family.problem_of((a, b), out)
    packing = packing_of(p, **options)
    scratch = device.full((max(1, packing.end),), np.nan, dtype=dtype)
    launches = pack_launches(packing, p)
    for launch in launches:
        kernel = family.kernel(device, family["packed"], launch)
        arrays = (a, b, out, scratch)
        args = [value.among(arrays, 2, 1) if isinstance(value, Slot) else value for value in launch.args]
        kernel.launch(device.default_stream, **launch.keywords(args))
    return packing, scratch.numpy(), len(launches)


def expect(packing: Packing, memory: np.ndarray, index: int, values: np.ndarray, along_k: bool) -> None:
    """`values`: the operand with lines as rows. Its rows follow each other; the last piece of a row ends with zeros."""
    (one,) = (each for each in packing.packed if each.index == index)
    assert one.along_k == along_k
    rows = values if along_k else np.swapaxes(values, -1, -2)
    rows = rows.reshape(-1, rows.shape[-1])
    start = one.place.offset // values.dtype.itemsize
    found = memory[start : start + len(rows) * one.pitch].reshape(len(rows), one.pitch)
    np.testing.assert_array_equal(found[:, : rows.shape[1]], rows)
    assert not found[:, rows.shape[1] :].any()
    assert one.pitch * values.dtype.itemsize % 16 == 0
    assert one.pitch - rows.shape[1] < 16 // values.dtype.itemsize


LAYOUTS = [(1, 0), (0, 1), (3, 5), (2, 2), (8, 7)]  # the gap after a row and the first element in its buffer
SHAPES = [(37, 61, 75), (5, 700, 3), (130, 2, 517), (1, 9, 8)]


@pytest.mark.parametrize("dtype", FAMILIES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("gap", "lead"), LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("keep", [False, True])
def test_both_operands_are_copied_by_one_launch(
    device: cudakit.Device, dtype: str, turned: bool, gap: int, lead: int, m: int, n: int, k: int, keep: bool
) -> None:
    """A is contiguous along k and B across its lines or, turned, the reverse; neither is aligned."""

    def layout(rows: int, cols: int) -> Layout:
        pitch = 2 * ((rows if turned else cols) + gap) + 1  # odd
        return Layout((rows, cols), (1, pitch) if turned else (pitch, 1), lead, dtype)

    of_a, of_b = layout(m, k), layout(k, n)
    a, b = numbers(of_a), numbers(of_b, seed=2)
    packing, memory, launches = pack(device, placed(device, of_a, a), placed(device, of_b, b), along_k=True, keep=keep)
    assert launches == 1
    assert len(packing.packed) == 2
    expect(packing, memory, 0, a, along_k=keep and not turned)
    expect(packing, memory, 1, b.T, along_k=keep and turned)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("strides", [(200, 2), (2, 200), (-200, -1), (0, 2), (3, 0)])
@pytest.mark.parametrize("keep", [False, True])
def test_any_strides_and_batches(device: cudakit.Device, dtype: str, strides: tuple[int, int], keep: bool) -> None:
    m, n, k = 40, 32, 50
    of_a, of_b = Layout((3, m, k), (9001, *strides), 1, dtype), Layout((k, n), (n, 1), 0, dtype)
    a = numbers(of_a)
    for axis, stride in enumerate(strides):
        if stride == 0:
            a[...] = a.take([0], axis + 1)
    packing, memory, launches = pack(
        device, placed(device, of_a, a), placed(device, of_b, numbers(of_b)), along_k=True, keep=keep
    )
    assert launches == 1
    assert [each.index for each in packing.packed] == [0]  # B is aligned
    expect(packing, memory, 0, a, along_k=keep and abs(strides[1]) < abs(strides[0]))


def test_aligned_operands_and_no_k_need_no_launch(sim: cudakit.Device) -> None:
    a, b = sim.zeros((16, 24), np.float16), sim.zeros((24, 8), np.float16)
    assert pack(sim, a, b, along_k=True)[2] == 0
    assert pack(sim, sim.zeros((16, 0), np.float16), sim.zeros((0, 7), np.float16))[2] == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_traffic_is_near_the_least(sim: cudakit.Device, dtype: str) -> None:
    """Stores are whole sectors. Each shifted piece is read from two aligned ones, the second of which is in the
    first-level cache; reads of single elements would request each sector at least 4 times."""
    m, n, k = 24, 1023, 1023
    a, b = sim.zeros((m, k), memory.as_dtype(dtype)), sim.zeros((k, n), memory.as_dtype(dtype))
    with sim.counters() as counters:
        packing, _, _ = pack(sim, a, b, along_k=True, keep=dtype != "float32")
        sim.synchronize()
    (counted,) = (each for kernel, each in counters.items() if "pack" in str(kernel))
    item = a.itemsize
    assert counted.global_store_sectors == packing.end * item / 32
    assert counted.global_load_sectors * 32 <= 2.4 * (m * k + k * n) * item
