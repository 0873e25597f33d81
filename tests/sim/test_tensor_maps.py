"""Tensor maps on the simulated device: their bytes, the places of a box in memory, and the driver's rules."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from paths import ROOT
from simulated import INVALID_VALUE, OK, start

from cudakit.sim.lockstep.tensor_map_rules import mistakes
from cudakit.sim.lockstep.tensor_maps import (
    ELEMENT_TYPES,
    SPANS,
    InvalidTensorMap,
    TensorMap,
    box_places,
    fill_of,
    loaded,
    swizzled,
)

F16, F32, TF32 = 6, 7, 11
PLAIN = TensorMap(F32, 0x10000, (100, 40), (400,), (32, 8), (1, 1))
SLICED = TensorMap(1, 0, (64, 6, 5), (2048, 32768), (16, 2, 2), (1, 1, 1), 1)  # an interleave of 16 bytes


# Bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        PLAIN,
        TensorMap(0, 0xFFFF_FFFF_FFFF_FFF0, (1,), (), (16,), (1,)),
        TensorMap(9, 16, (2**32, 1, 2**32, 3, 2**32), ((1 << 40) - 16, 0, 16, 32), (256,) * 5, (8,) * 5, 2, 1, 3, 1),
        TensorMap(200, 7, (0, 2**32 - 1), (1,), (2**32 - 1, 0), (0, 2**32 - 1), 9, 9, 9, 9),  # breaks rules
    ],
)
def test_bytes_hold_every_field(tensor: TensorMap) -> None:
    data = tensor.encode()
    assert len(data) == 128
    assert TensorMap.decode(data) == tensor


def test_what_has_no_place_in_the_bytes_is_refused() -> None:
    for change in ({"address": 1 << 64}, {"box": (1 << 32, 8)}, {"strides": (-16,)}):
        with pytest.raises(ValueError, match="does not fit"):
            replace(PLAIN, **change).encode()
    with pytest.raises(ValueError, match="at most 5 dimensions, got 6"):
        TensorMap(F32, 0, (1,) * 6, (16,) * 5, (4,) * 6, (1,) * 6).encode()


def test_garbage_is_refused_with_the_reason() -> None:
    data = PLAIN.encode()
    for wrong, reason in (
        (bytes(128), "not a tensor map.*all are zero"),
        (bytes(range(128)), "not a tensor map.*00 01 02"),
        (data[:64], "has 128 bytes, got 64"),
    ):
        with pytest.raises(InvalidTensorMap, match=reason):
            TensorMap.decode(wrong)
    for place in range(4, 128):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(InvalidTensorMap, match=r"changed by something else than tensormap\.replace"):
            TensorMap.decode(bytes(changed))


# Places ---------------------------------------------------------------------------------------------------------------


def _expected(tensor: TensorMap, at: tuple[int, ...]) -> tuple[dict[int, int], set[int]]:
    """Byte of the tile to byte of the tensor, one by one, and the bytes of the tile that are filled."""
    size = 16 * tensor.interleave or ELEMENT_TYPES[tensor.data_type].size
    steps = tensor.element_strides if tensor.interleave else (1, *tensor.element_strides[1:])
    counts = [(box + step - 1) // step for box, step in zip(tensor.box, steps, strict=True)]
    if tensor.interleave:
        counts[tensor.rank - 2] = 1
    pitch = max(counts[0] * size, 0 if tensor.interleave else SPANS[tensor.swizzle])
    copied, filled = {}, set()
    rows = itertools.product(*(range(count) for count in reversed(counts[1:])))
    for row, reversed_outer in enumerate(rows):
        for x in range(counts[0]):
            index = (x, *reversed(reversed_outer))
            where = [a + i * step for a, i, step in zip(at, index, steps, strict=True)]
            inside = all(0 <= w < extent for w, extent in zip(where, tensor.dims, strict=True))
            begin = where[0] * size + sum(w * s for w, s in zip(where[1:], tensor.strides, strict=True))
            for byte in range(size):
                shared = row * pitch + x * size + byte
                if inside:
                    copied[shared] = begin + byte
                else:
                    filled.add(shared)
    return copied, filled


def _found(tensor: TensorMap, at: tuple[int, ...]) -> tuple[dict[int, int], set[int], int]:
    places = box_places(tensor, at)
    inside = np.ones(len(places.global_offsets), bool) if places.inside is None else places.inside
    copied, filled = {}, set()
    for place, offset, there in zip(places.shared_offsets, places.global_offsets, inside, strict=True):
        assert place % places.unit == offset % places.unit == 0
        for byte in range(places.unit):
            if there:
                copied[int(place) + byte] = int(offset) + byte
            else:
                filled.add(int(place) + byte)
    return copied, filled, places.unit


def _drawn(rng: np.random.Generator) -> tuple[TensorMap, tuple[int, ...]]:
    kind, rank = int(rng.choice(list(ELEMENT_TYPES))), int(rng.integers(1, 6))
    interleave = int(rng.integers(1, 3)) if rank > 2 and rng.random() < 0.3 else 0
    swizzle = int(rng.integers(0, 4))
    size = ELEMENT_TYPES[kind].size
    first = int(rng.integers(1, (SPANS[swizzle] or 64) // 16 + 1)) * 16 // size
    box = (first, *rng.integers(1, 4, rank - 1).tolist())
    dims = tuple(rng.integers(1, 40, 1).tolist() + rng.integers(1, 6, rank - 1).tolist())
    strides = tuple((16 * rng.integers(0, 20, rank - 1)).tolist())
    steps = tuple(rng.integers(1, 4, rank).tolist())
    at = tuple(int(rng.integers(-b - 1, d + 2)) for b, d in zip(box, dims, strict=True))
    return TensorMap(kind, 0, dims, strides, box, steps, interleave, swizzle), at


@pytest.mark.parametrize("seed", range(4))
def test_places_are_those_of_the_elements_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        tensor, at = _drawn(rng)
        copied, filled = _expected(tensor, at)
        assert _found(tensor, at)[:2] == (copied, filled), f"{tensor} at {at}"
        assert tensor.box_bytes == len(copied) + len(filled)
        assert tensor.tile_bytes == max(itertools.chain(copied, filled)) + 1


def test_a_first_coordinate_outside_on_every_side_fills_everything() -> None:
    for at in ((-32, 0), (100, 0), (0, -8), (0, 40), (-1000, -1000), (2**31 - 1, -(2**31))):
        copied, filled, _ = _found(PLAIN, at)
        assert not copied
        assert len(filled) == 32 * 8 * 4


def test_units_are_as_large_as_the_edges_allow() -> None:
    assert box_places(PLAIN, (4, 0)).unit == 16
    assert box_places(PLAIN, (2, 0)).unit == 8
    assert box_places(PLAIN, (-3, 0)).unit == 4
    odd = replace(PLAIN, dims=(99, 40))
    assert box_places(odd, (0, 0)).unit == 16  # the edge is not in the box
    assert box_places(odd, (96, 0)).unit == 4
    assert box_places(TensorMap(0, 0, (100,), (), (16,), (1,)), (3,)).unit == 1


def test_a_row_narrower_than_the_swizzle_occupies_its_span() -> None:
    narrow = TensorMap(F16, 0, (64, 64), (128,), (16, 3), (1, 1), swizzle=3)
    assert (narrow.row_pitch, narrow.box_bytes, narrow.tile_bytes) == (128, 96, 2 * 128 + 32)
    assert replace(narrow, swizzle=0).row_pitch == 32


# Results of an H100. A run is bytes of the tile and of the tensor at which it begins, and its bytes.
RUNS: list[tuple[TensorMap, tuple[int, ...], int, list[tuple[int, int | None, int]]]] = [
    (SLICED, (1, 1, 1), 512, [(0, 34832, 256), (256, 67600, 256)]),
    (replace(SLICED, interleave=2), (1, 1, 1), 1024, [(0, 34848, 512), (512, 67616, 512)]),
    (replace(SLICED, data_type=0, box=(16, 3, 2)), (0, 0, 0), 512, [(0, 0, 256), (256, 32768, 256)]),
    (replace(SLICED, dims=(19, 6, 5), box=(32, 2, 1)), (0, 1, 1), 512, [(0, 34816, 304), (304, None, 208)]),
    (SLICED, (0, -1, 0), 512, [(0, None, 512)]),
    (SLICED, (0, 0, -1), 512, [(0, None, 256), (256, 0, 256)]),
    (
        replace(SLICED, box=(32, 4, 3), element_strides=(4, 1, 2)),
        (0, 1, 1),
        256,
        [(128 * k + 16 * i, 34816 + 65536 * k + 64 * i, 16) for k in range(2) for i in range(8)],
    ),
    (
        replace(SLICED, data_type=2, dims=(32, 6, 5), box=(4, 3, 2), swizzle=3),
        (0, 0, 0),
        128,
        [(0, 0, 64), (64, 32768, 64)],
    ),
    (
        TensorMap(1, 0, (64, 6, 5, 4), (1024, 8192, 65536), (16, 2, 2, 2), (1,) * 4, 1),
        (16, 1, 1, 1),
        1024,
        [(0, 75008, 256), (256, 76032, 256), (512, 140544, 256), (768, 141568, 256)],
    ),
]


@pytest.mark.parametrize(("tensor", "at", "size", "runs"), RUNS)
def test_an_interleaved_box_is_one_slice_of_whole_chunks_as_on_a_gpu(
    tensor: TensorMap, at: tuple[int, ...], size: int, runs: list[tuple[int, int | None, int]]
) -> None:
    copied = {to + byte: begin + byte for to, begin, count in runs if begin is not None for byte in range(count)}
    filled = {to + byte for to, begin, count in runs if begin is None for byte in range(count)}
    assert _found(tensor, at)[:2] == (copied, filled)
    assert tensor.box_bytes == tensor.tile_bytes == size


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_the_swizzle_exchanges_chunks_by_the_bits_of_the_address(swizzle: int) -> None:
    bits = {1: 1, 2: 2, 3: 3}[swizzle]
    offsets = np.arange(4096)
    for base in (0, 128, 256, 1024, 1152):
        changed = swizzled(offsets, base, swizzle)
        assert sorted(changed) == list(range(4096))
        for offset in range(0, 4096, 7):
            address = base + offset
            chunk = address >> 4 & (1 << bits) - 1 ^ address >> 7 & (1 << bits) - 1
            wanted = address & ~((1 << bits) - 1 << 4) | chunk << 4
            assert changed[offset] == wanted - base
    assert swizzled(offsets, 128, 0) is offsets


# Values ---------------------------------------------------------------------------------------------------------------


def test_tf32_is_rounded_when_loaded_and_other_types_are_copied() -> None:
    tensor = TensorMap(TF32, 0, (64,), (), (32,), (1,))
    bits = [0x3F800000, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0x7F7FFFFF, 0xFF800000, 0x80001000, 1]
    wanted = [0x3F800000, 0x3F800000, 0x3F800000, 0x3F802000, 0x3F804000, 0x7F800000, 0xFF800000, 0x80000000, 0]
    values = np.array(bits, np.uint32).view(np.uint8)
    assert loaded(tensor, values).view(np.uint32).tolist() == wanted
    nan = loaded(tensor, np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.uint8)).view(np.float32)
    assert np.isnan(nan).all()
    assert loaded(replace(tensor, data_type=F32), values) is values


def test_elements_outside_are_zeros_or_nan() -> None:
    assert fill_of(PLAIN) == 0
    for dtype in (np.float16, np.float32, np.float64):
        assert np.isnan(np.full(4, fill_of(replace(PLAIN, fill=1)), np.uint16).view(dtype)).all()


# The driver -----------------------------------------------------------------------------------------------------------


def call(driver: Any, tensor: TensorMap, **changed: Any) -> tuple[Any, Any]:
    given = {
        "kind": tensor.data_type, "rank": tensor.rank, "address": tensor.address, "dims": tensor.dims,
        "strides": tensor.strides, "box": tensor.box, "steps": tensor.element_strides,
    }  # fmt: skip
    given |= changed
    return driver.cuTensorMapEncodeTiled(
        given["kind"],
        given["rank"],
        given["address"],
        [cu.cuuint64_t(size) for size in given["dims"]],
        [cu.cuuint64_t(stride) for stride in given["strides"]],
        [cu.cuuint32_t(size) for size in given["box"]],
        [cu.cuuint32_t(step) for step in given["steps"]],
        tensor.interleave,
        tensor.swizzle,
        tensor.promotion,
        tensor.fill,
    )


def bytes_of(made: Any) -> bytes:
    return ctypes.string_at(made.getPtr(), 128)


DEEP = TensorMap(1, 0x10000, (64, 6, 5), (128, 768), (8, 2, 2), (1, 1, 1))
WRONG = [
    (PLAIN, {"data_type": 13}, r"tensorDataType is a packed type of later architectures, got 13"),
    (PLAIN, {"data_type": 99}, r"tensorDataType is not a type, got 99"),
    (PLAIN, {"interleave": 3}, r"interleave must be NONE, 16B or 32B"),
    (PLAIN, {"interleave": 1}, r"tensorRank must be 3 to 5 for an interleaved layout, got 2"),
    (PLAIN, {"swizzle": 4}, r"swizzle must be NONE, 32B, 64B or 128B"),
    (
        DEEP,
        {"interleave": 1, "box": (4, 2, 2)},
        r"boxDim\[0\] is 4 elements of 2 bytes, 8 bytes: they must be a multip",
    ),
    (
        DEEP,
        {"interleave": 2, "swizzle": 1, "address": 0x10010},
        r"globalAddress must be a multiple of 32 with an inter",
    ),
    (
        DEEP,
        {"interleave": 2, "swizzle": 1, "strides": (128, 784)},
        r"globalStrides\[1\] must be a multiple of 32 bytes",
    ),
    (PLAIN, {"promotion": 4}, r"l2Promotion must be"),
    (PLAIN, {"fill": 2}, r"oobFill must be zeros or NaN"),
    (DEEP, {"fill": 1}, r"oobFill must be zeros for u16"),
    (PLAIN, {"address": 0x10008}, r"globalAddress must be a multiple of 16, got 0x10008"),
    (PLAIN, {"dims": (0, 40)}, r"globalDim\[0\] must be 1 to 2\^32 elements, got 0"),
    (PLAIN, {"dims": (100, 2**32 + 1)}, r"globalDim\[1\] must be 1 to 2\^32 elements, got 4294967297"),
    (PLAIN, {"strides": (404,)}, r"globalStrides\[0\] must be a multiple of 16 bytes below 2\^40, got 404"),
    (PLAIN, {"strides": (1 << 40,)}, r"globalStrides\[0\] must be a multiple of 16 bytes below 2\^40"),
    (PLAIN, {"box": (32, 0)}, r"boxDim\[1\] must be 1 to 256 elements, got 0"),
    (PLAIN, {"box": (32, 257)}, r"boxDim\[1\] must be 1 to 256 elements, got 257"),
    (PLAIN, {"box": (6, 8)}, r"boxDim\[0\] is 6 elements of 4 bytes, 24 bytes: they must be a multiple of 16"),
    (
        PLAIN,
        {"swizzle": 2},
        r"boxDim\[0\] is 32 elements of 4 bytes, 128 bytes: a row must not exceed the span of a 64B",
    ),
    (PLAIN, {"element_strides": (1, 9)}, r"elementStrides\[1\] must be 1 to 8, got 9"),
    (PLAIN, {"element_strides": (1, 0)}, r"elementStrides\[1\] must be 1 to 8, got 0"),
    (PLAIN, {"element_strides": (9, 1)}, r"elementStrides\[0\] must be 1 to 8, got 9"),
    (PLAIN, {"address": 1 << 57}, r"globalAddress must be below 2\^57, got 0x200000000000000"),
    (PLAIN, {"box": (252, 232)}, r"boxDim has 252 x 232 elements of 4 bytes, 233856 bytes: they must not exceed"),
    (
        PLAIN,
        {"box": (256, 256), "element_strides": (1, 1)},
        r"boxDim has 256 x 256 elements of 4 bytes, 262144 bytes: they must not exceed 233472, the shared memory of an",
    ),
]
FINE: list[tuple[TensorMap, dict[str, Any]]] = [
    (PLAIN, {}),
    (DEEP, {"interleave": 1, "swizzle": 3}),
    (DEEP, {"interleave": 2}),
    (DEEP, {"interleave": 1, "swizzle": 1, "box": (64, 2, 2)}),
    (PLAIN, {"address": 1 << 56}),
    (PLAIN, {"swizzle": 3, "fill": 1, "promotion": 3}),
    (PLAIN, {"dims": (2**32, 1), "strides": ((1 << 40) - 16,)}),
    (PLAIN, {"box": (4, 256)}),
    (PLAIN, {"box": (256, 256), "element_strides": (2, 1)}),
    (PLAIN, {"element_strides": (1, 8)}),
    (PLAIN, {"box": (228, 256)}),
]


@pytest.mark.parametrize(("tensor", "change", "said"), WRONG)
def test_a_broken_rule_is_named_with_its_dimension(tensor: TensorMap, change: dict[str, Any], said: str) -> None:
    driver = start().driver
    assert call(driver, replace(tensor, **change)) == (INVALID_VALUE, None)
    assert re.match(f"cuTensorMapEncodeTiled: {said}", driver.simLastMessage())


@pytest.mark.parametrize(("tensor", "change"), FINE)
def test_values_at_the_limits_are_encoded(tensor: TensorMap, change: dict[str, Any]) -> None:
    wanted = replace(tensor, **change)
    code, made = call(start().driver, wanted)
    assert code == OK
    assert TensorMap.decode(bytes_of(made)) == wanted


def _recorded() -> Iterator[tuple[int, TensorMap]]:
    """The code that a GPU's driver returned, and the map that it was asked for."""
    for line in (ROOT / "tests" / "data" / "tensor_maps_h100.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        code, kind, _, address, *rows, interleave, swizzle, promotion, fill = line.split()
        fields = (() if row == "-" else tuple(map(int, row.split("x"))) for row in rows)
        modes = (int(interleave), int(swizzle), int(promotion), int(fill))
        yield int(code), TensorMap(int(kind), int(address, 16), *fields, *modes)


def test_the_rules_are_those_of_a_gpus_driver() -> None:
    recorded = list(_recorded())
    assert len(recorded) > 500
    broken = [(code, tensor, next(mistakes(tensor), None)) for code, tensor in recorded]
    assert [case for case in broken if bool(case[0]) != (case[2] is not None)] == []


def test_ranks_and_arrays_must_agree() -> None:
    driver = start().driver
    for rank in (0, 6):
        strides = [16] * max(rank - 1, 1)
        code, _ = call(driver, PLAIN, rank=rank, dims=[4] * rank, strides=strides, box=[4] * rank, steps=[1] * rank)
        assert code == INVALID_VALUE
        assert f"tensorRank must be 1 to 5, got {rank}" in driver.simLastMessage()
    assert call(driver, PLAIN, strides=())[0] == INVALID_VALUE
    assert "globalStrides must have at least 1 for this rank, got 0" in driver.simLastMessage()
    line = TensorMap(F32, 0x10000, (100,), (), (32,), (1,))
    assert call(driver, line, strides=())[0] == INVALID_VALUE  # as on a GPU, although it is not read
    code, made = call(driver, line, strides=(7,))
    assert code == OK
    assert TensorMap.decode(bytes_of(made)) == line
    with pytest.raises(TypeError, match="cannot convert int to cuuint64_t"):
        driver.cuTensorMapEncodeTiled(F32, 1, 0, [4], [], [cu.cuuint32_t(4)], [cu.cuuint32_t(1)], 0, 0, 0, 0)


def test_an_address_is_replaced_in_a_map_only() -> None:
    driver = start().driver
    _, made = call(driver, PLAIN)
    assert driver.cuTensorMapReplaceAddress(made, 0x20000) == (OK,)
    assert TensorMap.decode(bytes_of(made)) == replace(PLAIN, address=0x20000)
    assert driver.cuTensorMapReplaceAddress(made, 0x20008) == (INVALID_VALUE,)
    assert "globalAddress must be a multiple of 16" in driver.simLastMessage()
    assert driver.cuTensorMapReplaceAddress(made, 0) == (INVALID_VALUE,)
    assert TensorMap.decode(bytes_of(made)).address == 0x20000
    assert driver.cuTensorMapReplaceAddress(cu.CUtensorMap(), 0x20000) == (INVALID_VALUE,)
    assert "not a tensor map" in driver.simLastMessage()
    assert driver.cuTensorMapReplaceAddress(None, 0) == (INVALID_VALUE,)


def test_im2col_and_older_chips_are_refused_by_name() -> None:
    driver, old = start().driver, start(arch="sm_89").driver
    refused = cu.CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert driver.cuTensorMapEncodeIm2col(*[0] * 14) == (refused, None)
    assert "no im2col tensor maps (cuTensorMapEncodeIm2col)" in driver.simLastMessage()
    assert driver.cuTensorMapEncodeIm2colWide(*[0] * 15) == (refused, None)
    assert call(old, PLAIN) == (refused, None)
    assert "sm_89 has no tensor maps" in old.simLastMessage()
