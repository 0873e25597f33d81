"""The layouts of tensor copies, the bytes that they count, their fill values and their conversions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from . import tensor_copies
from .case import Case
from .copy_kernel import begin, by_first, init, ready, rounded
from .runner import Runner
from .tensor_maps import TensorMap
from .values import specials

_SLEEP = "nanosleep.u32 100000;"


def _indices(size: int) -> np.ndarray:
    return np.arange(size // 2, dtype=np.uint16).view(np.uint8)


def _loaded(runner: Runner, case: Case, given: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the tile of a case that loads from `given`, and what went wrong."""
    outcome = runner.here(replace(case, input=lambda: given))
    if outcome.result is None:
        return np.zeros(0, np.uint8), outcome.error
    return outcome.result[:-16], "a wait was given up" if case.gave_up(outcome.result) else "complete"


def _counted(runner: Runner, map_: TensorMap, at: tuple[int, ...]) -> Iterator[str]:
    """The 64 bits of an mbarrier, of which one arrival is pending, before and after a load."""
    tile = rounded(map_.footprint + 128)
    moves, operand = tensor_copies.coordinates(map_.place(at))
    copy = (
        f"cp.async.bulk.tensor.{map_.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[%tile], {operand}, [%bar]; {_SLEEP} {_SLEEP}"
    )
    words = [f"ld.volatile.shared.b64 %wide{k}, [%bar]; st.global.b64 [%out+{8 * k}], %wide{k};" for k in (0, 1)]
    lines = [*begin(tile, 1), ".reg .b32 %c<5>;", *init(), *ready(1)]
    lines += by_first([*moves, words[0], copy, words[1]])
    body = "\n".join([*lines, "bar.sync 0; ret;"])
    case = Case("facts", "", "", body, lambda: _indices(map_.room), lambda: np.zeros(16, np.uint8), maps=(map_,))
    outcome = runner.here(case)
    found = (
        outcome.error if outcome.result is None else " to ".join(f"{w:016x}" for w in outcome.result.view(np.uint64))
    )
    yield f"{map_} at {map_.place(at)}, {map_.bytes} bytes, counted: {found}"


def _elements(runner: Runner, map_: TensorMap, at: tuple[int, ...], rows: int = 6) -> Iterator[str]:
    """A load of a tensor whose elements are their numbers: the numbers in shared memory, by rows of 128 bytes."""
    tile, what = _loaded(runner, tensor_copies.load(map_, at, "facts"), _indices(map_.room))
    yield f"{map_} at {map_.place(at)}, {map_.bytes} bytes: {what}; elements by 128 bytes (. untouched):"
    yield from _rows(tile, 128, rows)


def _rows(found: np.ndarray, pitch: int, rows: int) -> Iterator[str]:
    for row in range(min(rows, len(found) // pitch)):
        words = found[pitch * row : pitch * row + pitch].view(np.uint16).tolist()
        yield "    " + " ".join("." if word == 0xA5A5 else str(word) for word in words)


def _maps() -> Iterator[tuple[TensorMap, tuple[int, ...]]]:
    """Yield the tensor maps, and coordinates, whose copies are shown."""
    for swizzle in (32, 64, 128):
        for width in range(16, swizzle, 16):
            yield TensorMap("u16", (64, 20), (128,), (width // 2, 8), swizzle=swizzle), (0, 0)
    for interleave, swizzle in ((16, 0), (32, 32)):
        for rank in (3, 4, 5):
            channels = interleave // 2
            dims = (channels, 6, 5, 4, 3)[:rank]
            strides = tuple(int(np.prod(dims[: k + 1])) * 2 for k in range(rank - 1))
            box = (channels, 4, 2, 2, 2)[:rank]
            map_ = TensorMap("u16", dims, strides, box, swizzle=swizzle, interleave=interleave)
            yield map_, (0,) * rank
            yield map_, (0, -1, *(1,) * (rank - 2))
            wide = replace(map_, dims=(3 * channels, *dims[1:]))
            yield wide, (interleave // 16, 1, *(0,) * (rank - 2))
            yield wide, (1, 1, *(0,) * (rank - 2))
    strided = TensorMap("u16", (64, 20), (128,), (16, 7), (1, 3))
    yield strided, (0, 0)
    yield strided, (-1, -2)
    yield replace(strided, steps=(3, 1)), (0, 0)
    # rows that end within 16 bytes
    ragged = TensorMap("u16", (43, 6), (128,), (16, 4))
    yield ragged, (4, 0)
    yield ragged, (5, 3)


def _fills(runner: Runner) -> Iterator[str]:
    for kind in ("f16", "bf16", "f32", "f32ftz", "tf32", "tf32ftz", "f64"):
        map_ = tensor_copies.tensor(kind, 2, nan=True)
        tile, what = _loaded(runner, tensor_copies.load(map_, (-64, 0), "facts"), np.zeros(8192, np.uint8))
        yield f"NaN fill of {kind}: {tile[:8].tobytes().hex(' ')}, {what}"


def _conversions(runner: Runner) -> Iterator[str]:
    more = [0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F802FFF, 0x3F803000, 0x3F803001, 0x7F7FFFFF, 0x7F800FFF, 0x00001000]
    words = np.array([*specials("f32").tolist(), *more, 0x7F801FFF, 0x00000FFF, 0x00800FFF], np.uint32)
    for kind in ("f32", "f32ftz", "tf32", "tf32ftz"):
        map_ = TensorMap(kind, (64,), (), (64,))
        given = np.zeros(64, np.uint32)
        given[: len(words)] = words
        tile, _ = _loaded(runner, tensor_copies.load(map_, (0,), "facts"), given.view(np.uint8))
        pairs = zip(words.tolist(), tile.view(np.uint32).tolist(), strict=False)
        yield f"{kind}: " + ", ".join(f"{a:08x} {'=' if a == b else f'to {b:08x}'}" for a, b in pairs)


def _stores(runner: Runner, map_: TensorMap, at: tuple[int, ...]) -> Iterator[str]:
    """The places of the elements of a box, whose values are their numbers in the box."""
    case = tensor_copies.store(map_, at, "facts")
    given = _indices(len(case.input()))
    outcome = runner.here(replace(case, input=lambda: given))
    yield f"store of {map_} at {map_.place(at)}, rows of the tensor (. untouched): {outcome.error}"
    if outcome.result is not None:
        yield from _rows(outcome.result, map_.strides[0], map_.dims[1])


_STORED = TensorMap("u16", (27, 8), (64,), (16, 4))
PARTS = (
    *(partial(one, map_=map_, at=at) for map_, at in _maps() for one in (_counted, _elements)),
    _fills,
    _conversions,
    partial(_stores, map_=replace(_STORED, steps=(1, 2)), at=(0, 0)),
    partial(_stores, map_=_STORED, at=(2, 3)),
    partial(_stores, map_=_STORED, at=(3, 6)),
    partial(_stores, map_=replace(_STORED, box=(8, 4), swizzle=64), at=(1, 1)),
)
