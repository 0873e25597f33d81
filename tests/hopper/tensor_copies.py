"""Cases of cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: tiles of tensors of rank 1 to 5.

The coordinates of dimension 0 count chunks of 16 bytes: on an H200 another one is an illegal instruction, as is a
negative coordinate of a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .bulk_copies import DONE, GLOBAL_OPERATIONS, kinds
from .case import Bytes, Case, untouched
from .copy_kernel import THREADS, begin, by_first, dump, dumped, fill, flags, init, ready, rounded, take, wait
from .tensor_maps import TYPES, TensorMap
from .values import BITS, Draw, elements

_LOADS, _STORES, _REDUCTIONS = (
    "cp.async.bulk.tensor, loads",
    "cp.async.bulk.tensor, stores",
    "cp.reduce.async.bulk.tensor",
)
_DIMS = {1: (203,), 2: (41, 13), 3: (25, 9, 5), 4: (21, 7, 4, 3), 5: (19, 5, 4, 3, 3)}
_BOX = {1: (), 2: (6,), 3: (4, 3), 4: (4, 2, 2), 5: (3, 2, 2, 2)}
_NEAR = (1, 1, 1, 1, 1)  # coordinates of a box inside
_FLOATING = ("f16", "f32", "f64", "bf16", "f32ftz", "tf32", "tf32ftz")
_KIND_OF = {"f32ftz": "f32", "tf32": "f32", "tf32ftz": "f32"}


def tensor(kind: str, rank: int, inner: int = 32, **more: object) -> TensorMap:
    """Return the map of a small tensor with rows of odd length and gaps between them; inner: bytes of a box's row."""
    size = TYPES[kind][1]
    dims = _DIMS[rank]
    strides, at = [], rounded(dims[0] * size, 16) + 16
    for extent in dims[1:]:
        strides.append(at)
        at = at * extent + 32
    return TensorMap(kind, dims, tuple(strides), (inner // size, *_BOX[rank]), **more)  # type: ignore[arg-type]


def contents(name: str, kind: str, size: int, values: str = "") -> Bytes:
    """Return the bytes of a buffer: elements of the type, of several kinds of values if it is a floating-point one."""
    draw, kind = Draw(name), _KIND_OF.get(kind, kind)
    if kind not in ("f16", "f32", "f64", "bf16"):
        return draw.bytes(size)
    count = -(-8 * size // BITS[kind])
    if values:
        return elements(kind, values, "c", draw, count)[:size]
    parts = [elements(kind, one, "c", draw, count).reshape(count, -1) for one in ("normal", "special", "any")]
    which = draw.below(len(parts), count).astype(np.int64)
    found: Bytes = np.stack(parts)[which, np.arange(count)].ravel()[:size]
    return found


def coordinates(at: tuple[int, ...], register: str = "%c") -> tuple[list[str], str]:
    """Return statements that set registers to coordinates, and the operand of a tensor copy."""
    names = [f"{register}{k}" for k in range(len(at))]
    moves = [f"mov.s32 {name}, {value};" for name, value in zip(names, at, strict=True)]
    return moves, f"[%map0, {{{', '.join(names)}}}]"


def _place(at: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, at)) + ")"


def load(map_: TensorMap, at: tuple[int, ...], what: str, *, to: int = 0, hint: bool = False, before: str = "") -> Case:
    """Return a case that loads a box. to: its offset in the tile; before: a statement, of which "$" is the operand."""
    tile, at = rounded(to + map_.footprint + 128), map_.place(at)
    moves, operand = coordinates(at)
    cache, policy = (".L2::cache_hint", ", %policy") if hint else ("", "")
    issue = [*moves, f"add.u32 %s, %tile, {to};", before.replace("$", operand)]
    if hint:
        issue.append("createpolicy.fractional.L2::evict_last.b64 %policy, 1.0;")
    issue.append(f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {map_.bytes};")
    issue.append(
        f"cp.async.bulk.tensor.{map_.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{cache} "
        f"[%s], {operand}, [%bar]{policy};"
    )
    lines = [*begin(tile, 1), ".reg .b32 %c<5>;", *fill(tile), *init(), *ready(1), *by_first(issue), *wait()]
    name = f"tensor load {what}: {map_} at {_place(at)}" + f" to {to}" * bool(to)
    return Case(
        "copies",
        _LOADS,
        name,
        "\n".join([*lines, *dump(tile, 1)]),
        lambda: contents(name, map_.kind, map_.room),
        lambda: untouched(dumped(tile)),
        THREADS,
        1,
        (map_,),
        flags(tile),
    )


def store(map_: TensorMap, at: tuple[int, ...], what: str, op: str = "", values: str = "", start: int = 0) -> Case:
    """Return a case that stores a box, or reduces it with `op`; its result is the buffer of the tensor. start: the
    box's offset in the tile."""
    map_, at = replace(map_, of_output=True), map_.place(at)
    tile, total = rounded(start + map_.footprint), rounded(map_.offset + map_.extent) + 64
    moves, operand = coordinates(at)
    begun = f"cp.reduce.async.bulk.tensor.{map_.rank}d" if op else f"cp.async.bulk.tensor.{map_.rank}d"
    issue = [
        *moves,
        f"add.u32 %s, %tile, {start};",
        f"{begun}.global.shared::cta{f'.{op}' if op else ''}.tile.bulk_group {operand}, [%s];",
        DONE,
    ]
    lines = [*begin(tile, 1), ".reg .b32 %c<5>;", *take(tile), *ready(1), *by_first(issue), "ret;"]
    name = f"tensor {f'{op} ' if op else ''}store {what}: {map_} at {_place(at)}{f' {values}' if values else ''}"
    name += f" from {start}" * bool(start)
    return Case(
        "copies",
        _REDUCTIONS if op else _STORES,
        name,
        "\n".join(lines),
        lambda: contents(name, map_.kind, tile, values),
        lambda: contents(f"{name} before", map_.kind, total, values) if op else untouched(total),
        THREADS,
        1,
        (map_,),
    )


def edges(map_: TensorMap) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield coordinates at which the box overhangs, with a description."""
    rank, element = map_.rank, map_.element
    box = (-(-map_.box[0] * element // 16), *map_.box[1:])
    inside, dims = _NEAR[:rank], (-(-map_.dims[0] * element // 16), *map_.dims[1:])
    low = tuple(-(size // 2) if size > 1 else -1 for size in box)
    high = tuple(extent - (size + 1) // 2 for size, extent in zip(box, dims, strict=True))
    for d in range(rank):
        yield f"below dimension {d}", (*inside[:d], low[d], *inside[d + 1 :])
        yield f"above dimension {d}", (*inside[:d], high[d], *inside[d + 1 :])
    if rank > 1:
        yield "below all", low
        yield "above all", high
    yield "outside below", tuple(-size for size in box)
    yield "outside above", dims
    yield "far outside", (-(2**27) * element, *inside[1:])
    yield "far outside, above", (*inside[:-1], 2**31 - 1 if rank > 1 else (2**27 - 1) * element)


def _types() -> Iterator[Case]:
    """Every type and rank, inside and at a corner."""
    for kind in TYPES:
        for rank in _DIMS:
            map_ = tensor(kind, rank)
            yield load(map_, _NEAR[:rank], "inside")
            if kind in ("u8", "f32ftz", "tf32", "u64"):
                yield store(map_, _NEAR[:rank], "inside")
        yield store(tensor(kind, 2), (41 * TYPES[kind][1] // 16, 9), "at a corner")
    for rank in _DIMS:  # a tensor that does not start at its buffer
        yield load(tensor("u16", rank, offset=48), _NEAR[:rank], "inside")


def _overhangs() -> Iterator[Case]:
    """Boxes that overhang on each side, with both fill modes; boxes larger than the tensor."""
    for rank in _DIMS:
        for number, (kind, nan) in enumerate((("u16", False), ("f32", True))):
            for what, at in edges(tensor(kind, rank)):
                yield load(tensor(kind, rank, nan=nan), at, what)
                if not number and min(at) >= 0:
                    yield store(tensor(kind, rank), at, what)
    for kind in _FLOATING:
        yield load(tensor(kind, 2, nan=True), (-1, 10), "below and above")
        yield load(tensor(kind, 2), (-1, 10), "below and above")
    for kind, box, dims in (("u8", (64, 8), (33, 5)), ("f16", (32, 4), (9, 3)), ("f32", (16, 4), (5, 2))):
        map_ = TensorMap(kind, dims, (64,), box, nan=kind != "u8")
        yield load(map_, (-1, -1), "larger than the tensor")
        yield store(map_, (0, 0), "larger than the tensor")


def _strides() -> Iterator[Case]:
    """Element strides, by which a box takes every second, third... element."""
    for rank in range(2, 6):
        for step in (2, 3, 8):
            for d in range(rank):  # the one of dimension 0 is ignored
                steps = tuple(step if k == d else 1 for k in range(rank))
                map_ = tensor("u16", rank)
                box = tuple(min(extent, size * step) if k == d and d else size for k, (extent, size) in
                            enumerate(zip(map_.dims, map_.box, strict=True)))  # fmt: skip
                yield load(replace(map_, steps=steps, box=box), _NEAR[:rank], "strided")
    for steps, rows, at in (
        ((1, 2, 3), (5, 4), (0, 0, 0)),
        ((1, 2, 3), (5, 4), (-1, -1, -2)),
        ((1, 2, 3), (5, 4), (2, 6, 3)),
        ((2, 2, 2), (4, 4), (1, 1, 1)),
        ((1, 4, 1), (9, 2), (2, -5, 1)),
    ):
        for kind in ("u16", "f32"):
            map_ = tensor(kind, 3, nan=kind == "f32")
            yield load(replace(map_, steps=steps, box=(map_.box[0], *rows)), at, "strided")
    for at in ((0, 0), (1, 1), (4, 11)):
        yield store(replace(tensor("u16", 2), steps=(1, 2), box=(16, 6)), at, "strided")


def _swizzles() -> Iterator[Case]:
    """Every swizzle: boxes as wide as its span and narrower, and destinations that are not at its start."""
    for swizzle in (32, 64, 128):
        for kind in ("u8", "u16", "u32", "u64"):
            for rank in range(2, 6):
                map_ = tensor(kind, rank, swizzle, swizzle=swizzle)
                yield load(map_, (1, *_NEAR[1:rank]), "swizzled")
        for kind, nan in (("u16", False), ("bf16", True)):
            map_ = replace(tensor(kind, 2, swizzle, swizzle=swizzle, nan=nan), box=(swizzle // 2, 11))
            yield load(map_, (-1, 5), "swizzled, overhanging")
        for width in range(16, swizzle, 16):
            map_ = replace(tensor("u16", 2, width, swizzle=swizzle), box=(width // 2, 9))
            yield load(map_, (3, 2), "narrower than its swizzle")
            yield store(map_, (3, 2), "narrower than its swizzle")
        for to in range(128, 8 * swizzle, 128):
            map_ = replace(tensor("u16", 2, swizzle, swizzle=swizzle), box=(swizzle // 2, 12))
            yield load(map_, (2, 0), "swizzled", to=to)
        for kind, rank in (("u8", 2), ("u16", 2), ("u32", 3), ("u16", 4), ("u64", 5)):
            yield store(tensor(kind, rank, swizzle, swizzle=swizzle), _NEAR[:rank], "swizzled")
        yield store(
            replace(tensor("u16", 2, swizzle, swizzle=swizzle), box=(swizzle // 2, 12)), (2, 0), "swizzled", start=256
        )


def _hints() -> Iterator[Case]:
    """Options without an effect on results: L2 promotion, cache hints, prefetches; and the largest boxes."""
    for promotion in (64, 128, 256):
        for rank in (2, 4):
            yield load(tensor("u32", rank, promotion=promotion), _NEAR[:rank], "promoted")
    for rank in _DIMS:
        yield load(tensor("u32", rank), _NEAR[:rank], "with a cache hint", hint=True)
        prefetch = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile $;"
        yield load(tensor("u32", rank), _NEAR[:rank], "after a prefetch", before=prefetch)
        yield load(
            tensor("u8", rank), _NEAR[:rank], "after a prefetch of its map", before="prefetch.tensormap [%map0];"
        )
    yield load(TensorMap("u8", (300,), (), (256,)), (2,), "of 256 elements")
    yield load(TensorMap("u8", (256, 256), (256,), (16, 256)), (1, 0), "of 256 rows")
    yield load(TensorMap("f64", (40, 40), (320,), (32, 32)), (3, 5), "of 8 KB")


def _interleaved() -> Iterator[Case]:
    """Interleaved layouts: slices of 16 or 32 bytes of channels."""
    for interleave, swizzle in ((16, 0), (32, 32)):
        for kind in ("u8", "u16", "f32"):
            for rank in (3, 4, 5):
                size = TYPES[kind][1]
                dims = (interleave // size, 6, 5, 4, 3)[:rank]
                strides = tuple(int(np.prod(dims[: k + 1])) * size + interleave * k for k in range(rank - 1))
                box = (interleave // size, 4, 2, 2, 2)[:rank]
                map_ = TensorMap(kind, dims, strides, box, swizzle=swizzle, interleave=interleave)
                yield load(map_, (0, 1, 1, 1, 1)[:rank], "in slices")
                yield load(map_, (0, -1, 4, 1, 1)[:rank], "in slices, overhanging")
    # a box of more slices than one, of which one is taken; element strides count along dimension 0 too
    for interleave, swizzle in ((16, 0), (16, 64), (32, 128)):
        strides = tuple(interleave * count for count in (26, 160, 1450))
        for steps in ((), (2, 1, 1, 1), (4, 2, 3, 2)):
            map_ = TensorMap("f16", (24, 6, 9, 3), strides, (8, 2, 20, 2), steps, swizzle, interleave)
            for what, at in (("", (1, 1, 2, 0)), (", overhanging", (20, 5, 8, 2)), (", outside", (0, 0, 9, 0))):
                yield load(map_, at, f"in slices{what}")
                yield store(map_, at, f"in slices{what}")
            yield load(replace(map_, nan=True), (-1, -1, 3, -1), "in slices, overhanging")


def _multicasts() -> Iterator[Case]:
    """One block's load to the same place in several blocks."""
    for cluster, mask, issuer in ((2, 3, 0), (2, 2, 0), (2, 3, 1), (4, 15, 0), (4, 10, 1), (4, 6, 3)):
        for map_, at in (
            (tensor("u16", 2, 128, swizzle=128), (-2, 3)),
            (tensor("f32", 3, nan=True), (5, 1, 1)),
            (tensor("u8", 1, 256), (11,)),
        ):
            tile = rounded(map_.bytes)
            at = map_.place(at)
            moves, operand = coordinates(at)
            receives = f"mov.u32 %x, {mask}; shr.u32 %x, %x, %rank; and.b32 %x, %x, 1; setp.eq.u32 %p, %x, 0;"
            expect = f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {map_.bytes};"
            copy = (
                f"cp.async.bulk.tensor.{map_.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                f".multicast::cluster [%tile], {operand}, [%bar], %mask;"
            )
            lines = [*begin(tile, 1), ".reg .b32 %c<5>;", *fill(tile), *init(), *ready(cluster), receives]
            lines += ["@%p bra EXPECTED;", *by_first([expect], "FIRST"), "EXPECTED:", *moves, f"mov.b16 %mask, {mask};"]
            lines += [f"setp.ne.u32 %q, %rank, {issuer}; @%q bra SENT;", *by_first([copy]), "SENT:"]
            lines += [receives, "@%p bra NOTHING;", *wait(cluster), "NOTHING:", *dump(tile, cluster)]
            name = f"tensor multicast by rank {issuer} of {cluster} to {mask:#b}: {map_} at {_place(at)}"
            yield Case(
                "copies",
                _LOADS,
                name,
                "\n".join(lines),
                lambda name=name, map_=map_: contents(name, map_.kind, rounded(map_.extent)),  # type: ignore[misc]
                lambda tile=tile, cluster=cluster: untouched(dumped(tile, cluster)),  # type: ignore[misc]
                THREADS,
                cluster,
                (map_,),
                flags(tile, cluster),
            )


def _reductions() -> Iterator[Case]:
    """Each operation on each type that it has, and on boxes that overhang."""
    mapped = {"b32": "u32", "b64": "u64"}
    for op, types in GLOBAL_OPERATIONS.items():
        for kind in types:
            for values in kinds(kind, op):
                given = values if kind in _FLOATING else ""
                yield store(tensor(mapped.get(kind, kind), 2), (3, 2), "inside", op, given)
    for rank in _DIMS:
        for what, at in edges(tensor("u32", rank)):
            if min(at) >= 0 and "far" not in what:
                yield store(tensor("u32", rank), at, what, "add")
    for swizzle in (32, 64, 128):
        yield store(tensor("u32", 2, swizzle, swizzle=swizzle), (3, 2), "swizzled", "add")


def cases() -> list[Case]:
    """Return all cases, each once."""
    made = (
        _types(), _overhangs(), _strides(), _swizzles(), _hints(), _interleaved(), _multicasts(), _reductions()
    )  # fmt: skip
    return list({case.name: case for part in made for case in part}.values())
