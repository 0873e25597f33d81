"""Machine code that counts: wavefronts of shared memory, sectors of global memory."""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, address, bump, raise_to
from cudakit.sim.compiled.ir import Module
from cudakit.sim.compiled.layout import LANES, PATTERN, PATTERN_BYTES, PATTERNS


def _count_shared(module: Module) -> None:
    """Count a request of shared memory. ``kind``: twice the bytes per lane, plus 1 if lanes may share wavefronts."""
    with module.function("count_shared", "void", context="ptr", site="ptr", offsets="ptr", mask="i32", kind="i32") as c:
        bump(c, c.site, "requests", 1)
        bump(c, c.site, "lanes", c.ones(c.mask).to("i64"))
        with c.if_(c.kind.lt(2)):
            c.return_()
        sane = c.offsets.load(I32, 32)
        first = c.first_bit(c.mask)
        steps = sane - sane[first].splat(LANES)
        row = c.lane_numbers("i32", LANES, 4) - (first * 4).splat(LANES)
        in_row = (steps.eq(row).bits("i32") | ~c.mask).eq(-1)
        with c.if_(c.kind.lt(10) & (in_row | steps.reduce("or").eq(0))):
            bump(c, c.site, "cost", 1)
            bump(c, c.site, "ideal", 1)
            raise_to(c, c.site, "worst", c.const("i64", 1))
            c.return_()
        c.call("pattern", "void", c.context, c.site, c.offsets, c.mask, c.kind)
        c.return_()


def _pattern(module: Module) -> None:
    """Count the wavefronts of a request. Patterns are remembered; Python computes the wavefronts of new ones."""
    with module.function("pattern", "void", context="ptr", site="ptr", offsets="ptr", mask="i32", kind="i32") as c:
        sane = c.offsets.load(I32, 32)
        # whole words that are added to all offsets only rotate the banks
        pattern = sane - (sane[c.first_bit(c.mask)] & -4).splat(LANES)
        factors = c.const(I32, [(2654435761 * (2 * lane + 1)) & 0xFFFFFFFF for lane in range(LANES)])
        mixed = (pattern * factors).reduce("add") + c.mask * 40503 + c.kind * 97531
        slot = (mixed ^ (mixed >> 15)) & (PATTERNS - 1)
        entry = address(c, "patterns").at(slot.to("i64") * PATTERN_BYTES)
        known = entry.at(PATTERN["offsets"]).load(I32, 32)
        differs = (known ^ pattern).reduce("or") | (entry.at(PATTERN["mask"]).load("i32") ^ c.mask)
        differs = differs | (entry.at(PATTERN["kind"]).load("i32") ^ c.kind)
        with c.if_(differs.ne(0), rare=True):
            entry.at(PATTERN["mask"]).store(c.mask)
            entry.at(PATTERN["kind"]).store(c.kind)
            entry.at(PATTERN["offsets"]).store(pattern, 32)
            c.call_pointer(address(c, "count_pattern"), "i32", entry)
        bump(c, c.site, "cost", entry.at(PATTERN["passes"]).load("i32").to("i64"))
        bump(c, c.site, "ideal", entry.at(PATTERN["fewest"]).load("i32").to("i64"))
        raise_to(c, c.site, "worst", entry.at(PATTERN["worst"]).load("i32").to("i64"))
        c.return_()


def _sectors(module: Module) -> None:
    """The number of different 32-byte sectors of the active lanes."""
    with module.function("sectors", "i64", addresses="ptr", mask="i32", low="i64") as c:
        relative = c.addresses.load(I64, 32) - (c.low & -32).splat(LANES)
        sectors = (relative >> 5).to("i32")
        left, count = c.variable("i32", 0), c.variable("i64", 0)
        left.value = c.mask
        with c.while_(lambda: left.value.ne(0)):
            same = sectors.eq(sectors[c.first_bit(left.value)].splat(LANES)).bits("i32")
            left.value = left.value & ~same
            count.value = count.value + 1
        c.return_(count.value)


FUNCTIONS = (_count_shared, _pattern, _sectors)
