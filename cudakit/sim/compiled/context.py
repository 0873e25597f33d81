"""Helpers that the functions of the runtime share: words of the context, counts, masks, and elements of all widths."""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled.ir import Code, Value
from cudakit.sim.compiled.layout import CONTEXT, LANES, SHIFTS, SITE

I32, I64 = f"<{LANES} x i32>", f"<{LANES} x i64>"


def get(code: Code, name: str) -> Value:
    """A word of the context."""
    return code.context.at(CONTEXT[name]).load("i64")


def put(code: Code, name: str, value: Value | int) -> None:
    value = value if isinstance(value, Value) else code.const("i64", value)
    code.context.at(CONTEXT[name]).store(value)


def address(code: Code, name: str) -> Value:
    """A word of the context as a pointer."""
    return code.pointer(get(code, name))


def bump(code: Code, site: Value, name: str, by: Value | int) -> None:
    """Add to a count of a site."""
    place = site.at(SITE[name])
    place.store(place.load("i64") + by)


def raise_to(code: Code, site: Value, name: str, value: Value) -> None:
    place = site.at(SITE[name])
    old = place.load("i64")
    place.store(old.gt(value).select(old, value))


def conditions(code: Code, mask: Value, count: int) -> Value:
    """A condition per lane from the lowest bits of a mask."""
    # by shifts that LLVM does not know: of others it makes slow code that extracts one bit after the other
    shifts = code.context.at(SHIFTS).load(f"<{count} x i32>", 32)
    return (mask.splat(count) << shifts).is_("slt", 0)


def by_width(c: Code, plain: Callable[[int], None], narrow: Callable[[int], None]) -> None:
    """Write code for elements of 64 and 32 bits, and for elements of 16 and 8 bits, which have 32 bits in registers."""

    def small() -> None:
        c.either(c.width.eq(2), lambda: narrow(16), lambda: narrow(8))

    c.either(c.width.eq(8), lambda: plain(64), lambda: c.either(c.width.eq(4), lambda: plain(32), small))


def scatter(c: Code, place_of: object) -> None:
    """Store the elements of each lane, in the order of lanes."""
    with c.each_bit(c.mask) as lane:
        place = place_of(lane)  # type: ignore[operator]
        with c.for_(c.elements) as number:
            source = c.values.at(number.to("i64") * 8).load("ptr")
            to = place.at((number * c.width).to("i64"))

            def store(bits: int, source: Value = source, to: Value = to, lane: Value = lane) -> None:
                to.store(source.at(lane.to("i64") * (bits // 8)).load(f"i{bits}"), 1)

            def narrow(bits: int, source: Value = source, to: Value = to, lane: Value = lane) -> None:
                to.store(source.at(lane.to("i64") * 4).load("i32").to(f"i{bits}"), 1)

            by_width(c, store, narrow)
