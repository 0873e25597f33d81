"""Cases of tensormap.replace: a map is copied to shared memory, changed there, copied to global memory and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .case import Case, untouched
from .copy_kernel import THREADS, begin, by_first, dump, dumped, fill, flags, init, ready, rounded, wait
from .tensor_copies import contents, coordinates, tensor
from .tensor_maps import TensorMap

# instructions number the types unlike the driver's enum
_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32ftz", "f64", "bf16", "tf32", "tf32ftz")
_SWIZZLES = (0, 32, 64, 128)
_MAP = 128


def _edits(before: TensorMap, after: TensorMap) -> Iterator[str]:
    """Yield the statements that change one map to another, in shared memory at %s."""

    def edit(field: str, value: object, ordinal: int | None = None, wide: bool = False) -> str:
        place = "[%s]" if ordinal is None else f"[%s], {ordinal}"
        return f"tensormap.replace.tile.{field}.shared::cta.b1024.b{64 if wide else 32} {place}, {value};"

    if before.offset != after.offset:
        yield f"add.u64 %at, %in, {after.offset}; " + edit("global_address", "%at", wide=True)
    if before.rank != after.rank:
        yield edit("rank", after.rank - 1)
    for d, (old, new) in enumerate(zip(before.dims, after.dims, strict=False)):
        if old != new:
            yield f"mov.b32 %x, {new}; " + edit("global_dim", "%x", d)
    for d, (old, new) in enumerate(zip(before.strides, after.strides, strict=False)):
        if old != new:
            yield f"mov.b64 %w, {new}; " + edit("global_stride", "%w", d, wide=True)
    for d, (old, new) in enumerate(zip(before.box, after.box, strict=False)):
        if old != new:
            yield f"mov.b32 %x, {new}; " + edit("box_dim", "%x", d)
    for d, (old, new) in enumerate(zip(before.steps, after.steps, strict=False)):
        if old != new:
            yield f"mov.b32 %x, {new}; " + edit("element_stride", "%x", d)
    if before.kind != after.kind:
        yield edit("elemtype", _TYPES.index(after.kind))
    if before.swizzle != after.swizzle:
        yield edit("swizzle_mode", _SWIZZLES.index(after.swizzle))
    if before.nan != after.nan:
        yield edit("fill_mode", int(after.nan))


def _case(what: str, before: TensorMap, after: TensorMap, at: tuple[int, ...]) -> Case:
    tile = rounded(after.footprint + 128)
    given = rounded(max(one.offset + one.extent for one in (before, after)))
    moves, operand = coordinates(after.place(at))
    words = [f"ld.param.b64 %w, [pmap0+{8 * k}]; st.shared.b64 [%s+{8 * k}], %w;" for k in range(_MAP // 8)]
    issue = [
        *moves,
        f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {after.bytes};",
        f"cp.async.bulk.tensor.{after.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[%tile], {operand}, [%bar];",
    ]
    lines = [
        *begin(tile, 1),
        ".shared .align 128 .b8 edited[128]; .reg .b32 %c<5>;",
        *fill(tile),
        # the changed map is after the tensor, in the input
        f"mov.u32 %s, edited; add.u64 %map0, %in, {given};",
        *by_first([*words, *_edits(before, after)], "EDITED"),
        *init(),
        *ready(1),
        "setp.ge.u32 %p, %thread, 32; @%p bra SENT; bar.warp.sync 0xffffffff;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%map0], [%s], 128;",
        *by_first(["fence.proxy.tensormap::generic.acquire.gpu [%map0], 128;", *issue]),
        "SENT:",
        *wait(),
        *dump(tile, 1),
    ]
    name = f"tensormap.replace of {what}: {before} to {after} at {after.place(at)}"
    return Case(
        "copies",
        "tensormap.replace",
        name,
        "\n".join(lines),
        lambda: contents(name, after.kind, given + _MAP),
        lambda: untouched(dumped(tile)),
        THREADS,
        1,
        (before,),
        flags(tile),
    )


def cases() -> list[Case]:
    base = tensor("u16", 2, steps=(1, 1))
    real = tensor("f32", 3, steps=(1, 1, 1))
    wide = tensor("u16", 2, 128)
    made = [
        _case("nothing", base, base, (1, 1)),
        _case("the address", base, replace(base, offset=96), (1, 1)),
        _case("the rank", tensor("u16", 3), tensor("u16", 2), (-1, 2)),
        _case("dimension 0", base, replace(base, dims=(29, 13)), (3, 1)),
        _case("dimension 1", base, replace(base, dims=(41, 7)), (1, 5)),
        _case("stride 0", base, replace(base, strides=(208,)), (1, 1)),
        _case("stride 1", real, replace(real, strides=(real.strides[0], real.strides[1] + 64)), (1, 1, 1)),
        _case("the box", base, replace(base, box=(24, 6)), (1, 1)),
        _case("the rows of the box", base, replace(base, box=(16, 9)), (1, 1)),
        _case("an element stride", base, replace(base, steps=(1, 2)), (1, 1)),
        _case("the type", base, replace(base, kind="f16"), (-1, 1)),
        _case("the type", real, replace(real, kind="tf32"), (1, 1, 1)),
        _case("the type", real, replace(real, kind="f32ftz"), (1, 1, 1)),
        _case("the swizzle", wide, replace(wide, swizzle=128), (1, 1)),
        _case("the fill mode", real, replace(real, nan=True), (5, -1, 3)),
        _case("the fill mode", replace(real, nan=True), real, (5, -1, 3)),
        _case(
            "all fields",
            base,
            replace(base, offset=32, dims=(27, 9), strides=(192,), box=(8, 5), steps=(1, 2), kind="f32", nan=True),
            (5, -1),
        ),
    ]
    return made
