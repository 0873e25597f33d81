"""Helpers that the functions of the runtime share: words of the context, counts, masks, and elements of all widths."""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled.ir import Code, Value
from cudakit.sim.compiled.layout import ATOMIC, CONTEXT, LANES, SHIFTS, SITE

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


def note_atomic(c: Code, places: Value, size: Value) -> None:
    """Note the places that the active lanes of an atomic access, and count those of one address."""
    values = places.load(I64, 32)
    for name, value in (("low", values.reduce("umin")), ("high", values.reduce("umax") + size)):
        bound = c.table.at(ATOMIC[name])
        old = bound.load("i64")
        bound.store((value.lt(old) if name == "low" else value.gt(old)).select(value, old))
    with c.if_(get(c, "counting").ne(0)):
        left, deepest = c.variable("i32", 0), c.variable("i32", 0)
        left.value = c.mask
        deepest.value = 0
        with c.while_(lambda: left.value.ne(0)):
            now = left.value
            same = values.eq(values[c.first_bit(now)].splat(LANES)).bits("i32") & now
            count, most = c.ones(same), deepest.value
            deepest.value = count.gt(most).select(count, most)
            left.value = now & ~same
        bump(c, c.site, "depth", deepest.value.to("i64"))
        raise_to(c, c.site, "deepest", deepest.value.to("i64"))


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
