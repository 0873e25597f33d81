"""Machine code for local memory: arrays of one thread.

Each warp has its own memory, in which a word of all lanes is contiguous: byte b of a lane is at
b // 4 * 128 + lane * 4 + b % 4. For each byte of a thread's memory there are the lanes that have written it, as bits.
"""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled.context import I32, I64, address, bump, conditions, get
from cudakit.sim.compiled.ir import Code, Module, Value
from cudakit.sim.compiled.layout import BAIL, FINE, LANES

# bytes of a word of all lanes
_ROW = 4 * LANES
_ACCESS = {"bases": "ptr", "offset": "i64", "mask": "i32", "values": "ptr", "elements": "i32", "width": "i32"}
_ACCESS |= {"thread": "i32", "site": "ptr"}


def _offsets(c: Code) -> Value:
    """The lanes' offsets, of which inactive lanes have that of the first active one. Bail out unless all are aligned
    and in the thread's memory."""
    given = c.bases.load(I64, 4) + c.offset.splat(LANES)
    first = given[c.first_bit(c.mask)]
    sane = conditions(c, c.mask, LANES).select(given, first.splat(LANES))
    size, limit = (c.elements * c.width).to("i64"), get(c, "local_limit")
    high = sane.reduce("umax")
    with c.if_(high.gt(limit) | (high + size).gt(limit) | (sane.reduce("or") & (size - 1)).ne(0), rare=True):
        c.return_(BAIL)
    with c.if_(get(c, "counting").ne(0)):
        bump(c, c.site, "requests", 1)
        bump(c, c.site, "lanes", c.ones(c.mask).to("i64"))
    return sane


class _Warp:
    """The local memory of a warp."""

    def __init__(self, c: Code) -> None:
        stride, warp = get(c, "local_stride"), (c.thread >> 5).to("i64")
        self.c = c
        self.bytes = address(c, "local").at(warp * stride * LANES)
        self.written = address(c, "local_written").at(warp * stride * 4)

    def row(self, byte: Value) -> Value:
        """The words of all lanes at a byte of their memory."""
        return self.bytes.at((byte >> 2) * _ROW)

    def place(self, byte: Value, lane: Value) -> Value:
        return self.row(byte).at(lane.to("i64") * 4).at(byte & 3)

    def expect_written(self, byte: Value, lanes: Value) -> None:
        """Bail out if some lanes have not written bytes that they load."""
        c = self.c
        missing = c.variable("i32", 0)
        missing.value = 0
        with c.if_(get(c, "init").ne(0)), c.for_((c.elements * c.width).to("i64")) as number:
            missing.value = missing.value | (lanes & ~self.written.at((byte + number) * 4).load("i32"))
        with c.if_(missing.value.ne(0), rare=True):
            c.return_(BAIL)

    def mark_written(self, byte: Value, lanes: Value) -> None:
        c = self.c
        with c.for_((c.elements * c.width).to("i64")) as number:
            place = self.written.at((byte + number) * 4)
            place.store(place.load("i32") | lanes)


def _access(
    module: Module,
    name: str,
    check: Callable[[_Warp, Value, Value], None],
    whole: Callable[[Value, Value, Value], None],
    part: Callable[[str, Value, Value], None],
) -> None:
    """Write a function that accesses ``elements`` of ``width`` bytes at ``bases`` + ``offset``, and their registers at
    ``values``. ``check`` receives the lanes that access a byte of their memory; ``whole`` accesses a word of the lanes
    that a condition selects, in memory and in a register; ``part`` an element of one lane, of an integer type."""
    with module.function(name, "i32", context="ptr", **_ACCESS) as c:
        sane, memory, width = _offsets(c), _Warp(c), c.width.to("i64")
        first = sane[0]
        same = (sane - first.splat(LANES)).reduce("or").eq(0)
        with c.if_(same & c.width.eq(4)):
            check(memory, first, c.mask)
            here = conditions(c, c.mask, LANES)
            with c.for_(c.elements) as number:
                register = c.values.at(number.to("i64") * 8).load("ptr")
                whole(here, memory.row(first + number.to("i64") * 4), register)
            c.return_(FINE)
        offsets = c.array("i64", LANES)
        offsets.store(sane, 32)
        with c.each_bit(c.mask) as lane:
            start = offsets.at(lane.to("i64") * 8).load("i64")
            check(memory, start, c.const("i32", 1) << lane)
            with c.for_(c.elements) as number:
                byte = start + number.to("i64") * width
                place = memory.place(byte, lane)
                # elements of 16 and 8 bits have 32 bits in registers
                register = (
                    c.values.at(number.to("i64") * 8)
                    .load("ptr")
                    .at(lane.to("i64") * width.eq(8).select(c.const("i64", 8), 4))
                )

                def long(place: Value = place, register: Value = register) -> None:
                    part("i32", place, register)
                    part("i32", place.at(_ROW), register.at(4))

                def others(place: Value = place, register: Value = register) -> None:
                    def short() -> None:
                        c.either(
                            c.width.eq(2), lambda: part("i16", place, register), lambda: part("i8", place, register)
                        )

                    c.either(c.width.eq(4), lambda: part("i32", place, register), short)

                c.either(c.width.eq(8), long, others)
        c.return_(FINE)


def _local_load(module: Module) -> None:
    def whole(here: Value, row: Value, register: Value) -> None:
        register.mix(here, row.load(I32, 4), 4)

    def part(kind: str, place: Value, register: Value) -> None:
        register.store(place.load(kind, 1).to("i32"), 4)

    _access(module, "local_load", _Warp.expect_written, whole, part)


def _local_store(module: Module) -> None:
    def whole(here: Value, row: Value, register: Value) -> None:
        row.mix(here, register.load(I32, 4), 4)

    def part(kind: str, place: Value, register: Value) -> None:
        place.store(register.load("i32", 4).to(kind), 1)

    _access(module, "local_store", _Warp.mark_written, whole, part)


FUNCTIONS = (_local_load, _local_store)
