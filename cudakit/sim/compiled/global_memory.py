"""Machine code for accesses to global memory, with their checks.

The checks are coarser than those of ``sim/checks/global_memory.py``, never finer.
"""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, address, bump, by_width, conditions, get, note_atomic, scatter
from cudakit.sim.compiled.ir import Code, Module, Value, Variable
from cudakit.sim.compiled.layout import (
    ATOMIC,
    BAIL,
    BLOCK,
    CACHE,
    FINE,
    GLOBAL_SEVERAL,
    GLOBAL_THREAD,
    GLOBAL_TIME,
    LANES,
    LOADS,
    STORES,
    UPDATES,
    WIDTH,
)


def _global_access(module: Module) -> None:
    """Check and note an access to global memory: 1 if the interpreter might report it. ``cells``: per lane."""
    arguments = {
        "cache": "ptr",
        "addresses": "ptr",
        "mask": "i32",
        "cells": "i32",
        "thread": "i32",
        "does": "i32",
        "row": "i1",
    }
    with module.function("global_access", "i32", context="ptr", **arguments) as c:
        writes, reads = (c.cache.at(CACHE[n]).load("ptr") for n in ("writes", "reads"))
        undefined, base = c.cache.at(CACHE["undefined"]).load("ptr"), c.cache.at(CACHE["base"]).load("i64")
        shift = get(c, "global_shift")
        stores, updates = c.does.eq(STORES), c.does.eq(UPDATES)
        changes = stores | updates
        has_writes, has_undefined = writes.ne(None), undefined.ne(None) & ~stores
        block = get(c, "block") + 1
        stamp = (block << BLOCK) | (get(c, "now") << GLOBAL_TIME)
        lowest = (block << BLOCK) | (get(c, "floor") << GLOBAL_TIME) | ((1 << GLOBAL_TIME) - 1)
        alone = (get(c, "nctaid_x") * get(c, "nctaid_y") * get(c, "nctaid_z")).eq(1)
        wrong, left = c.variable("i1", 0), c.variable("i32", 0)
        left.value = c.mask
        with c.if_(c.row & stores & c.mask.eq(-1) & c.cells.eq(1) & reads.eq(None)):
            # a whole warp stores to words that no thread has stored to: a frequent case
            cells = writes.at(((c.addresses.load("i64") - base) >> shift) * 8)
            with c.if_(cells.load(I64, 8).reduce("or").eq(0)):
                cells.store((stamp | c.thread.to("i64")).splat(LANES) + c.lane_numbers("i64", LANES), 8)
                left.value = 0
        with c.each_bit(left.value) as lane:
            me = (c.thread + lane).to("i64")
            first = (c.addresses.at(lane.to("i64") * 8).load("i64") - base) >> shift
            with c.for_(c.cells) as number:
                place = first + number.to("i64")
                written = c.variable("i64", 0)
                written.value = 0
                with c.if_(has_writes):
                    cell = writes.at(place * 8)
                    old = cell.load("i64")
                    written.value = old
                    kind, here = (old >> GLOBAL_SEVERAL) & 3, (old >> BLOCK).eq(block)
                    mine = (old & GLOBAL_THREAD).eq(me) & kind.lt(2)
                    near = old.gt(lowest) & ~mine
                    # after an atomic nothing remains of a store, which other blocks may race with
                    plain = kind.eq(0) & ~(here & (mine | (old.le(lowest) & alone)))
                    against = updates.select(plain, ~here | kind.eq(3) | near)
                    wrong.value = wrong.value | (old.ne(0) & against)
                    others = kind.ne(0) & (~here | kind.eq(3))
                    many = others.select(c.const("i64", 3), (kind.ne(0) & near).select(c.const("i64", 2), 1))
                    with c.if_(changes):
                        cell.store(stamp | updates.select(many << GLOBAL_SEVERAL, 0) | me)
                with c.if_(reads.ne(None)):
                    cell = reads.at(place * 8)
                    old = cell.load("i64")
                    several = (old >> GLOBAL_SEVERAL) & 3
                    far = old.ne(0) & ((old >> BLOCK).ne(block) | several.eq(2))
                    near = old.ne(0) & old.gt(lowest) & ((old & GLOBAL_THREAD).ne(me) | several.ne(0))

                    def stored(far: Value = far, near: Value = near) -> None:
                        wrong.value = wrong.value | far | near

                    def loaded(far: Value = far, near: Value = near, cell: Value = cell, me: Value = me) -> None:
                        one = near.select(c.const("i64", 1), c.const("i64", 0))
                        kind = far.select(c.const("i64", 2), one)
                        cell.store(stamp | (kind << GLOBAL_SEVERAL) | me)

                    c.either(changes, stored, loaded)
                with c.if_(has_undefined):
                    unset = c.variable("i32", 0)

                    def word(place: Value = place, unset: Variable = unset) -> None:
                        unset.value = undefined.at(place * 4).load("i32")

                    def byte(place: Value = place, unset: Variable = unset) -> None:
                        unset.value = undefined.at(place).load("i8").to("i32")

                    c.either(shift.eq(2), word, byte)
                    wrong.value = wrong.value | (unset.value.ne(0) & written.value.eq(0))
        c.return_(wrong.value.to("i32"))


def _find(c: Code, low: Value, end: Value, ones: Value, failed: int) -> None:
    """Find the allocation of the bytes from ``low`` up to ``end``; return ``failed`` if there is none, or if an address
    is misaligned. ``ones``: the bits that any of the addresses has."""
    outside = low.lt(c.cache.at(CACHE["low"]).load("i64")) | end.gt(c.cache.at(CACHE["high"]).load("i64"))
    with c.if_(outside, rare=True):
        found = c.call_pointer(address(c, "find"), "i32", c.cache, low, end)
        with c.if_(found.ne(FINE), rare=True):
            c.return_(failed)
    with c.if_((ones & (c.size - 1)).ne(0), rare=True):
        c.return_(failed)


def _check(c: Code, addresses: Value, does: Value, row: Value, failed: int) -> None:
    """Return ``failed`` if the interpreter might report the access."""
    cells = (c.size >> get(c, "global_shift")).to("i32")
    wrong = c.call("global_access", "i32", c.context, c.cache, addresses, c.mask, cells, c.thread, does, row)
    with c.if_(wrong.ne(0), rare=True):
        c.return_(failed)


def _global_place(module: Module) -> None:
    """Find the allocation of an access and check its bounds. Lanes access ``size`` bytes at ``bases`` + ``offset``;
    ``addresses`` receives their addresses, valid in all lanes. Returns BAIL, or 1 if the lanes access consecutive
    elements, otherwise 0."""
    arguments = {"cache": "ptr", "bases": "ptr", "offset": "i64", "mask": "i32", "size": "i64", "addresses": "ptr"}
    arguments |= {"site": "ptr", "thread": "i32", "does": "i32"}
    with module.function("global_place", "i32", context="ptr", **arguments) as c:
        given = c.bases.load(I64, 32) + c.offset.splat(LANES)
        first = c.first_bit(c.mask)
        start = given[first]
        sane = conditions(c, c.mask, LANES).select(given, start.splat(LANES))
        c.addresses.store(sane, 32)
        origin = start - first.to("i64") * c.size
        row = origin.splat(LANES) + c.lane_numbers("i64", LANES) * c.size.splat(LANES)
        in_row = (given.eq(row).bits("i32") | ~c.mask).eq(-1)
        low, high = c.variable("i64", 0), c.variable("i64", 0)

        def consecutive() -> None:
            low.value = start
            high.value = origin + c.last_bit(c.mask).to("i64") * c.size

        def scattered() -> None:
            low.value = sane.reduce("umin")
            high.value = sane.reduce("umax")

        c.either(in_row, consecutive, scattered)
        _find(c, low.value, high.value + c.size, sane.reduce("or"), BAIL)
        with c.if_(get(c, "counting").ne(0)):
            count = c.ones(c.mask).to("i64")
            bump(c, c.site, "requests", 1)
            bump(c, c.site, "lanes", count)
            cost, fewest = c.variable("i64", 0), (count * c.size + 31) >> 5

            def few() -> None:
                cost.value = (high.value >> 5) - (low.value >> 5) + 1

            def many() -> None:
                cost.value = c.call("sectors", "i64", c.addresses, c.mask, low.value)

            # lanes that do not take part may leave out a sector
            active = c.mask >> first
            c.either(in_row & (active & (active + 1)).eq(0), few, many)
            bump(c, c.site, "cost", cost.value)
            # fewer if lanes share bytes
            bump(c, c.site, "ideal", fewest.gt(cost.value).select(cost.value, fewest))
        with c.if_(c.cache.at(CACHE["flags"]).load("i64").ne(0)):
            _check(c, c.addresses, c.does, in_row, BAIL)
        c.return_(in_row.to("i32"))


_GLOBAL = {
    "cache": "ptr",
    "bases": "ptr",
    "offset": "i64",
    "mask": "i32",
    "values": "ptr",
    "elements": "i32",
    "width": "i32",
}
_GLOBAL |= {"thread": "i32", "site": "ptr"}


def _global_load(module: Module) -> None:
    """A load of global memory: ``elements`` of ``width`` bytes, into the registers at ``values``."""
    with module.function("global_load", "i32", context="ptr", **_GLOBAL) as c:
        addresses, row, shift = place_access(c, LOADS)
        with c.if_(row.ne(0) & c.elements.eq(1) & c.width.eq(4) & c.mask.eq(-1)):
            values = c.pointer(addresses.load("i64") + shift).load(I32, 4)
            c.values.load("ptr").store(values, 32)
            c.return_(FINE)
        with c.if_(c.width.eq(4)):
            _gather(c, addresses, shift)
            c.return_(FINE)
        with c.each_bit(c.mask) as lane:
            place = c.pointer(addresses.at(lane.to("i64") * 8).load("i64") + shift)
            with c.for_(c.elements) as number:
                to = c.values.at(number.to("i64") * 8).load("ptr")
                source = place.at((number * c.width).to("i64"))

                def load(bits: int, source: Value = source, to: Value = to, lane: Value = lane) -> None:
                    to.at(lane.to("i64") * (bits // 8)).store(source.load(f"i{bits}", 1))

                def narrow(bits: int, source: Value = source, to: Value = to, lane: Value = lane) -> None:
                    to.at(lane.to("i64") * 4).store(source.load(f"i{bits}", 1).to("i32"))

                by_width(c, load, narrow)
        c.return_(FINE)


def _gather(c: Code, addresses: Value, shift: Value) -> None:
    """Load elements of 4 bytes, a vector of WIDTH lanes at a time."""
    ints, longs = f"<{WIDTH} x i32>", f"<{WIDTH} x i64>"
    with c.for_(c.const("i64", LANES // WIDTH)) as chunk:
        here = conditions(c, c.mask >> (chunk.to("i32") * WIDTH), WIDTH)
        places = addresses.at(chunk * (8 * WIDTH)).load(longs, 32) + shift.splat(WIDTH)
        steps = places - places[0].splat(WIDTH)
        equal = steps.reduce("or").eq(0)
        row = (steps - c.lane_numbers("i64", WIDTH, 4)).reduce("or").eq(0)
        with c.for_(c.elements) as number:
            offset = (number * 4).to("i64")
            to = c.values.at(number.to("i64") * 8).load("ptr").at(chunk * (4 * WIDTH))
            found = c.variable(ints, 0)

            def same(found: Variable = found, places: Value = places, offset: Value = offset) -> None:
                found.value = c.pointer(places[0] + offset).load("i32", 1).splat(WIDTH)

            def others(
                found: Variable = found, places: Value = places, offset: Value = offset, row: Value = row
            ) -> None:
                def consecutive() -> None:
                    found.value = c.pointer(places[0] + offset).load(ints, 1)

                def scattered() -> None:
                    pointers = (places + offset.splat(WIDTH)).convert("inttoptr", "ptr")
                    found.value = c.gather(ints, pointers)

                c.either(row, consecutive, scattered)

            c.either(equal, same, others)
            to.mix(here, found.value, 4)


def place_access(c: Code, does: int) -> tuple[Value, Value, Value]:
    """Call ``global_place``; returns the addresses, whether they are in a row, and what to add for the host's."""
    addresses = c.array("i64", LANES)
    size = (c.elements * c.width).to("i64")
    arguments = (
        c.context,
        c.cache,
        c.bases,
        c.offset,
        c.mask,
        size,
        addresses,
        c.site,
        c.thread,
        c.const("i32", does),
    )
    row = c.call("global_place", "i32", *arguments)
    with c.if_(row.is_("slt", 0), rare=True):
        c.return_(BAIL)
    return addresses, row, c.cache.at(CACHE["shift"]).load("i64")


def _global_store(module: Module) -> None:
    """A store to global memory, as ``global_load``."""
    with module.function("global_store", "i32", context="ptr", **_GLOBAL) as c:
        addresses, row, shift = place_access(c, STORES)
        with c.if_(row.ne(0) & c.elements.eq(1) & c.width.eq(4) & c.mask.eq(-1)):
            c.pointer(addresses.load("i64") + shift).store(c.values.load("ptr").load(I32, 32), 4)
            c.return_(FINE)
        scatter(c, lambda lane: c.pointer(addresses.at(lane.to("i64") * 8).load("i64") + shift))
        c.return_(FINE)


def _global_one(module: Module) -> None:
    """A load of ``size`` bytes at one address by all active lanes. Returns the host's address, 0 to bail out."""
    arguments = {"cache": "ptr", "place": "i64", "mask": "i32", "size": "i64", "thread": "i32", "site": "ptr"}
    with module.function("global_one", "i64", context="ptr", **arguments) as c:
        _find(c, c.place, c.place + c.size, c.place, 0)
        with c.if_(get(c, "counting").ne(0)):
            for name in ("requests", "cost", "ideal"):
                bump(c, c.site, name, 1)
            bump(c, c.site, "lanes", c.ones(c.mask).to("i64"))
        with c.if_(c.cache.at(CACHE["flags"]).load("i64").ne(0)):
            addresses = c.array("i64", LANES)
            addresses.store(c.place.splat(LANES), 32)
            false = c.const("i1", 0)
            _check(c, addresses, c.const("i32", LOADS), false, 0)
        c.return_(c.place + c.cache.at(CACHE["shift"]).load("i64"))


def _global_atomic(module: Module) -> None:
    """The checks and counts of an atomic on one element of ``width`` bytes per lane. ``hosts``: receives the host's
    addresses. ``table``: the atomic's place in the table of atomics; ``ordered``: its results depend on the order of
    the lanes, which is the interpreter's only if all blocks execute it after as many barriers."""
    arguments = {"cache": "ptr", "bases": "ptr", "offset": "i64", "mask": "i32", "elements": "i32", "width": "i32"}
    arguments |= {"hosts": "ptr", "table": "ptr", "ordered": "i1", "thread": "i32", "site": "ptr"}
    with module.function("global_atomic", "i32", context="ptr", **arguments) as c:
        addresses, _, shift = place_access(c, UPDATES)
        note_atomic(c, addresses, (c.elements * c.width).to("i64"))
        with c.if_(c.ordered):
            phase, place = get(c, "phase") + 1, c.table.at(ATOMIC["phase"])
            known = place.load("i64")
            with c.if_(known.ne(0) & known.ne(phase), rare=True):
                c.return_(BAIL)
            place.store(phase)
        c.hosts.store(addresses.load(I64, 32) + shift.splat(LANES), 32)
        c.return_(FINE)


FUNCTIONS = (_global_access, _global_place, _global_load, _global_one, _global_store, _global_atomic)
