"""Machine code for copies from global to shared memory (cp.async).

The bytes are written at once, since nothing may access them before the copy has been waited for: until then the table
of writes marks them.
"""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, address, conditions, get, put
from cudakit.sim.compiled.global_memory import place_access
from cudakit.sim.compiled.ir import Code, Module, Value
from cudakit.sim.compiled.layout import (
    BAIL,
    COMMITTED,
    COPIES,
    COPIES_MOST,
    COPY,
    COPY_BYTES,
    FINE,
    IN_FLIGHT,
    LANES,
    LOADS,
)
from cudakit.sim.compiled.shared_memory import (
    begin_store,
    cells_of,
    enter_store,
    expect_within,
    sane_offsets,
    words_of,
)


def _copy_source(module: Module) -> None:
    """The checks and counts of the loads of copies of ``elements`` of ``width`` bytes. ``hosts``: receives the host's
    addresses for the active lanes."""
    arguments = {"cache": "ptr", "bases": "ptr", "offset": "i64", "mask": "i32", "elements": "i32", "width": "i32"}
    arguments |= {"hosts": "ptr", "thread": "i32", "site": "ptr"}
    with module.function("copy_source", "i32", context="ptr", **arguments) as c:
        addresses, _, shift = place_access(c, LOADS)
        c.hosts.mix(conditions(c, c.mask, LANES), addresses.load(I64, 32) + shift.splat(LANES), 8)
        c.return_(FINE)


def _shared_copy(module: Module) -> None:
    """A copy of ``size`` bytes per lane, from the host's addresses ``hosts`` to shared memory."""
    arguments = {"bases": "ptr", "start": "i32", "mask": "i32", "hosts": "ptr", "size": "i32", "kind": "i32"}
    arguments |= {"thread": "i32", "site": "ptr"}
    with module.function("shared_copy", "i32", context="ptr", state="ptr", **arguments) as c:
        sane = sane_offsets(c)
        expect_within(c, sane, c.const("i32", 0), c.size, c.size - 1)
        out = c.array("i32", LANES)
        out.store(sane, 32)
        begin_store(c, sane, c.size)
        enter_store(c, sane, c.size, IN_FLIGHT)
        _remember(c, sane)
        with c.if_(get(c, "counting").ne(0)):
            c.call("count_shared", "void", c.context, c.site, out, c.mask, c.kind)
        memory = address(c, "shared")
        with c.each_bit(c.mask) as lane:
            source = c.pointer(c.hosts.at(lane.to("i64") * 8).load("i64"))
            target = memory.at(out.at(lane.to("i64") * 4).load("i32").to("i64"))
            with c.for_(c.size >> 2) as number:
                at = number.to("i64") * 4
                target.at(at).store(source.at(at).load("i32", 1), 4)
        c.return_(FINE)


def _remember(c: Code, sane: Value) -> None:
    number = c.state.at(COPIES).load("i64")
    with c.if_(number.ge(COPIES_MOST), rare=True):
        c.return_(BAIL)
    c.state.at(COPIES).store(number + 1)
    put(c, "flying", get(c, "flying") + 1)
    first = (c.thread >> 5).to("i64") * COPIES_MOST
    record = address(c, "copies").at((first + number) * COPY_BYTES)
    granules = c.size >> get(c, "shared_shift").to("i32")
    for name, value in (("group", c.state.at(COMMITTED).load("i64")), ("mask", c.mask), ("count", granules)):
        record.at(COPY[name]).store(value)
    record.at(COPY["offsets"]).store(sane, 32)


def _land(module: Module) -> None:
    """Wait for the copies of a warp in the groups below ``limit``: they count as stores made now. BAIL if a lane that
    issued one does not wait."""
    with module.function("land", "i32", context="ptr", state="ptr", mask="i32", limit="i64", thread="i32") as c:
        count, left = c.state.at(COPIES).load("i64"), c.variable("i64", 0)
        left.value = 0
        records = address(c, "copies").at((c.thread >> 5).to("i64") * (COPIES_MOST * COPY_BYTES))
        writes, shift, now = address(c, "writes"), get(c, "shared_shift").to("i32"), get(c, "now")
        with c.for_(count) as number:
            record = records.at(number * COPY_BYTES)

            def stay(record: Value = record) -> None:
                size, false = c.const("i64", COPY_BYTES), c.const("i1", 0)
                to = records.at(left.value * COPY_BYTES)
                c.call("llvm.memmove.p0.p0.i64", "void", to, record, size, false)
                left.value = left.value + 1

            def land(record: Value = record) -> None:
                lanes = record.at(COPY["mask"]).load("i32")
                with c.if_((lanes & ~c.mask).ne(0), rare=True):
                    c.return_(BAIL)
                _, word = words_of(c, lanes, 0)
                offsets = record.at(COPY["offsets"]).load(I32, 32)
                with c.for_(record.at(COPY["count"]).load("i32")) as granule:
                    c.scatter(word, cells_of(c, writes, offsets + (granule << shift).splat(LANES)))
                put(c, "last_write", now)
                put(c, "flying", get(c, "flying") - 1)

            c.either(record.at(COPY["group"]).load("i64").is_("slt", c.limit), land, stay)
        c.state.at(COPIES).store(left.value)
        c.return_(FINE)


FUNCTIONS = (_copy_source, _shared_copy, _land)
