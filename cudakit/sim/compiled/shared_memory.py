"""Machine code for accesses to shared memory, with their checks.

The checks are coarser than those of ``sim/checks/shared_memory.py``, never finer.
"""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, address, conditions, get, note_atomic, put, scatter
from cudakit.sim.compiled.ir import Code, Module, Value, Variable
from cudakit.sim.compiled.layout import (
    ANYHOW,
    BAIL,
    COMMITTED,
    COPIES,
    COPIES_MOST,
    COPY,
    COPY_BYTES,
    EQUAL,
    FINE,
    IN_A_ROW,
    IN_FLIGHT,
    LANES,
    PENDING,
    PENDING_BYTES,
    PENDING_MOST,
    SEVERAL,
    SYNCED,
    THREAD,
    TIME,
    WIDTH,
)


def _flush(module: Module) -> None:
    """Enter the pending loads in the table of reads."""
    with module.function("flush", "void", context="ptr") as c:
        records, table, shift = address(c, "pending"), address(c, "reads"), get(c, "shared_shift").to("i32")
        lowest = (get(c, "floor") << TIME) | ((1 << TIME) - 1)
        count = get(c, "pending_count")
        put(c, "pending_count", 0)
        with c.for_(count) as number:
            record = records.at(number * PENDING_BYTES)
            time = record.at(PENDING["time"]).load("i64")
            put(c, "last_read", time)
            mask, thread = record.at(PENDING["mask"]).load("i32"), record.at(PENDING["thread"]).load("i32")
            offsets, bases = record.at(PENDING["offsets"]).load("ptr"), record.at(PENDING["bases"])
            with c.for_(record.at(PENDING["count"]).load("i32")) as place:
                offset = offsets.at(place.to("i64") * 4).load("i32")
                left = c.variable("i32", 0)
                left.value = mask
                with c.if_(shift.eq(2)):
                    _enter_row(c, bases, offset, left, table, lowest, (time << TIME) | thread.to("i64"))
                with c.each_bit(left.value) as lane:
                    byte = bases.at(lane.to("i64") * 4).load("i32") + offset
                    cell = table.at((byte >> shift).to("i64") * 8)
                    old, me = cell.load("i64"), (thread + lane).to("i64")
                    who = old & THREAD
                    near = (who >> 5).eq(me >> 5).select(c.const("i64", 1), c.const("i64", 2))
                    met = who.eq(me).select(c.const("i64", 0), near)
                    several = (old >> SEVERAL) & 3
                    several = several.gt(met).select(several, met)
                    several = old.le(lowest).select(c.const("i64", 0), several)
                    cell.store((time << TIME) | (several << SEVERAL) | me)
        c.return_()


def _enter_row(c: Code, bases: Value, offset: Value, left: Variable, table: Value, lowest: Value, word: Value) -> None:
    """Enter loads of consecutive words by a whole warp, if these have not been read since the last barrier: a frequent
    case. ``left`` are the lanes that remain to be entered."""
    offsets = bases.load(I32, 32)
    row = (offsets - offsets[0].splat(LANES) - c.lane_numbers("i32", LANES, 4)).reduce("or").eq(0)
    with c.if_(row & left.value.eq(-1)):
        cells = table.at(((offsets[0] + offset) >> 2).to("i64") * 8)
        with c.if_(cells.load(I64, 8).reduce("umax").le(lowest)):
            cells.store(word.splat(LANES) + c.lane_numbers("i64", LANES), 8)
            left.value = 0


def _unordered(c: Code, old: Value, me: Value, lowest: Value, synced: Value) -> Value:
    """Whether an earlier store or atomics are not ordered before an access by ``me``, or a copy is in flight."""
    who, several = old & THREAD, (old >> SEVERAL) & 3
    ordered = (who >> 5).eq(me >> 5) & old.le(synced) & several.ne(3)
    return (old.gt(lowest) & (who.ne(me) | several.ge(2)) & ~ordered) | old.ge(IN_FLIGHT)


def _marks(c: Code) -> tuple[Value, Value]:
    """The largest words of accesses before the block's last barrier, and before the warp's last bar.warp.sync."""
    whole = (1 << TIME) - 1
    return (get(c, "floor") << TIME) | whole, (c.state.at(SYNCED).load("i64") << TIME) | whole


def _shared_group(module: Module) -> None:
    """The checks and counts of loads of shared memory at the same addresses plus constants. ``bases``: the addresses,
    ``start`` the address of the first byte; ``out``: receives the byte offsets, valid in all lanes. ``offsets``: the
    units that the loads access. Returns how the offsets lie, or BAIL."""
    arguments = {"bases": "ptr", "start": "i32", "out": "ptr", "mask": "i32", "offsets": "ptr", "count": "i32"}
    arguments |= {"lowest": "i32", "highest": "i32", "odd": "i32", "kind": "i32", "thread": "i32", "site": "ptr"}
    with module.function("shared_group", "i32", context="ptr", state="ptr", **arguments) as c:
        sane = _sane(c)
        c.out.store(sane, 32)
        _within(c, sane, c.lowest, c.highest, c.odd)
        with c.if_(get(c, "checked").ne(0)):
            recent = get(c, "last_write").gt(get(c, "floor")) | get(c, "flying").ne(0)
            with c.if_(recent | get(c, "full").eq(0)):
                _check_loads(c)
            with c.if_(get(c, "pending_count").ge(PENDING_MOST), rare=True):
                c.call("flush", "void", c.context)
            number = get(c, "pending_count")
            record = address(c, "pending").at(number * PENDING_BYTES)
            for name, value in (
                ("time", get(c, "now")),
                ("mask", c.mask),
                ("thread", c.thread),
                ("offsets", c.offsets),
                ("count", c.count),
            ):
                record.at(PENDING[name]).store(value)
            record.at(PENDING["bases"]).store(sane, 32)
            put(c, "pending_count", number + 1)
        with c.if_(get(c, "counting").ne(0)):
            c.call("count_shared", "void", c.context, c.site, c.out, c.mask, c.kind)
        starts = sane.shuffle([lane // WIDTH * WIDTH for lane in range(LANES)])
        steps = sane - starts
        with c.if_(steps.reduce("or").eq(0)):
            c.return_(EQUAL)
        row = c.const(I32, [lane % WIDTH * 4 for lane in range(LANES)])
        with c.if_((steps - row).reduce("or").eq(0)):
            c.return_(IN_A_ROW)
        c.return_(ANYHOW)


def _sane(c: Code) -> Value:
    """The byte offsets of a shared access; inactive lanes have that of the first active one."""
    offsets = c.bases.load(I32, 32) - c.start.splat(LANES)
    first = offsets[c.first_bit(c.mask)]
    return conditions(c, c.mask, LANES).select(offsets, first.splat(LANES))


def _within(c: Code, sane: Value, lowest: Value, highest: Value, odd: Value) -> None:
    """Bail out unless all accesses are aligned and in the block's memory."""
    bias = 1 << 31
    low = (sane ^ bias).reduce("umin") ^ bias
    high = (sane ^ bias).reduce("umax") ^ bias
    limit = get(c, "shared_limit").to("i32")
    outside = (low + lowest).is_("slt", 0) | (high + highest).is_("sgt", limit)
    crooked = (sane.reduce("or") & odd).ne(0)
    with c.if_(outside | crooked, rare=True):
        c.return_(BAIL)


def _check_loads(c: Code) -> None:
    table, init = address(c, "writes"), get(c, "full").eq(0) & get(c, "init").ne(0)
    lowest, synced = (mark.splat(LANES) for mark in _marks(c))
    me = c.thread.to("i64").splat(LANES) + c.lane_numbers("i64", LANES)
    unset = init.select(c.const("i64", 0), -1).splat(LANES)
    shift = get(c, "shared_shift").to("i32").splat(LANES)
    wrong = c.variable("i32", 0)
    wrong.value = 0
    with c.for_(c.count) as place:
        bytes_ = c.out.load(I32, 32) + c.offsets.at(place.to("i64") * 4).load("i32").splat(LANES)
        cells = c.let(f"<{LANES} x ptr>", f"getelementptr i64, {table}, {(bytes_ >> shift).to(I64)}")
        old = c.gather(I64, cells)
        wrong.value = wrong.value | (old.eq(unset) | _unordered(c, old, me, lowest, synced)).bits("i32")
    with c.if_((wrong.value & c.mask).ne(0), rare=True):
        c.return_(BAIL)


def _shared_store(module: Module) -> None:
    """A store to shared memory: ``elements`` of ``width`` bytes. ``values``: the addresses of their registers."""
    _write_store(module, "shared_store", flight=0)


def _shared_copy(module: Module) -> None:
    """A copy to shared memory, as ``shared_store``. The bytes are written at once, since nothing may access them before
    the copy has been waited for."""
    _write_store(module, "shared_copy", flight=IN_FLIGHT)


def _write_store(module: Module, name: str, flight: int) -> None:
    arguments = {"bases": "ptr", "start": "i32", "mask": "i32", "values": "ptr", "elements": "i32", "width": "i32"}
    arguments |= {"kind": "i32", "thread": "i32", "site": "ptr"}
    with module.function(name, "i32", context="ptr", state="ptr", **arguments) as c:
        sane = _sane(c)
        size = c.elements * c.width
        _within(c, sane, c.const("i32", 0), size, size - 1)
        out = c.array("i32", LANES)
        out.store(sane, 32)
        first = sane[0]
        row = first.splat(LANES) + c.lane_numbers("i32", LANES, 4)
        plain = (sane - row).reduce("or").eq(0) & c.mask.eq(-1) & c.elements.eq(1) & c.width.eq(4)
        with c.if_(get(c, "checked").ne(0)):
            _check_store(c, out, size, plain, flight)
            if flight:
                _remember_copy(c, sane, size)
        with c.if_(get(c, "counting").ne(0)):
            c.call("count_shared", "void", c.context, c.site, out, c.mask, c.kind)
        memory = address(c, "shared")
        with c.if_(plain):
            memory.at(first.to("i64")).store(c.values.load("ptr").load(I32, 32), 4)
            c.return_(FINE)
        scatter(c, lambda lane: memory.at(out.at(lane.to("i64") * 4).load("i32").to("i64")))
        c.return_(FINE)


def _store_after_reads(c: Code, reads: Value, lowest: Value, wrong: Variable) -> None:
    """Set ``wrong`` if words that a warp stores in a row were read since the last barrier by another thread."""
    old = reads.load(I64, 8)
    own = (old & ((1 << TIME) - 1)).eq(c.thread.to("i64").splat(LANES) + c.lane_numbers("i64", LANES))
    fine = own | old.le(lowest.splat(LANES))
    wrong.value = fine.bits("i32").ne(-1)


def _remember_copy(c: Code, sane: Value, size: Value) -> None:
    number = c.state.at(COPIES).load("i64")
    with c.if_(number.ge(COPIES_MOST), rare=True):
        c.return_(BAIL)
    c.state.at(COPIES).store(number + 1)
    put(c, "flying", get(c, "flying") + 1)
    first = (c.thread >> 5).to("i64") * COPIES_MOST
    record = address(c, "copies").at((first + number) * COPY_BYTES)
    granules = size >> get(c, "shared_shift").to("i32")
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
                with c.each_bit(lanes) as lane:
                    cell = record.at(COPY["offsets"]).at(lane.to("i64") * 4).load("i32") >> shift
                    word = (now << TIME) | (c.thread + lane).to("i64")
                    with c.for_(record.at(COPY["count"]).load("i32")) as granule:
                        writes.at((cell + granule).to("i64") * 8).store(word)
                put(c, "last_write", now)
                put(c, "flying", get(c, "flying") - 1)

            c.either(record.at(COPY["group"]).load("i64").is_("slt", c.limit), land, stay)
        c.state.at(COPIES).store(left.value)
        c.return_(FINE)


def _check_store(c: Code, out: Value, size: Value, plain: Value, flight: int) -> None:
    shift = get(c, "shared_shift").to("i32")
    with c.if_(get(c, "pending_count").ne(0)):
        c.call("flush", "void", c.context)
    writes, reads = address(c, "writes"), address(c, "reads")
    lowest, synced = _marks(c)
    now = get(c, "now")
    put(c, "last_write", now)
    any_reads = get(c, "last_read").gt(get(c, "floor"))
    wrong, left = c.variable("i1", 0), c.variable("i32", 0)
    wrong.value = 0
    left.value = c.mask
    with c.if_(plain & shift.eq(2)):
        first = (out.load("i32") >> 2).to("i64") * 8
        latest = writes.at(first).load(I64, 8).reduce("umax")
        with c.if_(any_reads):
            _store_after_reads(c, reads.at(first), lowest, wrong)
        with c.if_(latest.le(lowest) & ~wrong.value):
            word = (now << TIME) | flight | c.thread.to("i64")
            writes.at(first).store(word.splat(LANES) + c.lane_numbers("i64", LANES), 8)
            left.value = 0
        wrong.value = 0
    with c.each_bit(left.value) as lane:
        cell = out.at(lane.to("i64") * 4).load("i32") >> shift
        me = (c.thread + lane).to("i64")
        with c.for_(size >> shift) as number:
            place = (cell + number).to("i64") * 8
            old = writes.at(place).load("i64")
            writes.at(place).store((now << TIME) | flight | me)
            wrong.value = wrong.value | _unordered(c, old, me, lowest, synced)
            with c.if_(any_reads):
                old = reads.at(place).load("i64")
                several, who = (old >> SEVERAL) & 3, old & THREAD
                mine = several.eq(0) & who.eq(me)
                ordered = (who >> 5).eq(me >> 5) & several.ne(2) & old.le(synced)
                wrong.value = wrong.value | (old.gt(lowest) & ~mine & ~ordered)
    with c.if_(wrong.value, rare=True):
        c.return_(BAIL)


def _shared_atomic(module: Module) -> None:
    """The checks and counts of an atomic on one element of ``width`` bytes per lane. ``hosts``: receives the host's
    addresses; ``table``: the atomic's place in the table of atomics; ``reads``: the old values matter."""
    arguments = {"bases": "ptr", "start": "i32", "mask": "i32", "width": "i32", "kind": "i32", "reads": "i1"}
    arguments |= {"hosts": "ptr", "table": "ptr", "thread": "i32", "site": "ptr"}
    with module.function("shared_atomic", "i32", context="ptr", state="ptr", **arguments) as c:
        sane = _sane(c)
        _within(c, sane, c.const("i32", 0), c.width, c.width - 1)
        out, places = c.array("i32", LANES), c.array("i64", LANES)
        out.store(sane, 32)
        places.store(sane.to("i64"), 32)
        with c.if_(get(c, "checked").ne(0)):
            _check_atomic(c, out)
        with c.if_(get(c, "counting").ne(0)):
            c.call("count_shared", "void", c.context, c.site, out, c.mask, c.kind)
        note_atomic(c, places, c.width.to("i64"))
        c.hosts.store(places.load(I64, 32) + get(c, "shared").splat(LANES), 32)
        c.return_(FINE)


def _check_atomic(c: Code, out: Value) -> None:
    shift = get(c, "shared_shift").to("i32")
    with c.if_(get(c, "pending_count").ne(0)):
        c.call("flush", "void", c.context)
    writes, reads = address(c, "writes"), address(c, "reads")
    lowest, _ = _marks(c)
    now = get(c, "now")
    put(c, "last_write", now)
    any_reads = get(c, "last_read").gt(get(c, "floor"))
    init = get(c, "init").ne(0) & c.reads
    wrong = c.variable("i1", 0)
    wrong.value = 0
    with c.each_bit(c.mask) as lane:
        cell = out.at(lane.to("i64") * 4).load("i32") >> shift
        me = (c.thread + lane).to("i64")
        with c.for_(c.width >> shift) as number:
            place = (cell + number).to("i64") * 8
            old = writes.at(place).load("i64")
            who, several, recent = old & THREAD, (old >> SEVERAL) & 3, old.gt(lowest)
            # after an atomic nothing remains of a store, so it must be by the same thread or before the last barrier
            against = (recent & several.eq(0) & who.ne(me)) | old.ge(IN_FLIGHT)
            wrong.value = wrong.value | against | (init & old.eq(0))
            near = (who >> 5).eq(me >> 5) & several.ne(3)
            many = near.select(who.eq(me).select(several, 2), c.const("i64", 3))
            many = (recent & several.ne(0)).select(many, c.const("i64", 1))
            writes.at(place).store((now << TIME) | (many << SEVERAL) | me)
            with c.if_(any_reads):
                old = reads.at(place).load("i64")
                several, who = (old >> SEVERAL) & 3, old & THREAD
                wrong.value = wrong.value | (old.gt(lowest) & ~(several.eq(0) & who.eq(me)))
    with c.if_(wrong.value, rare=True):
        c.return_(BAIL)


FUNCTIONS = (_flush, _shared_group, _shared_store, _shared_copy, _land, _shared_atomic)
