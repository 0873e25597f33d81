"""Machine code for accesses to shared memory, with their checks.

The checks are coarser than those of ``sim/checks/shared_memory.py``, never finer.
"""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, address, conditions, get, note_atomic, put, scatter
from cudakit.sim.compiled.ir import Code, Module, Value, Variable
from cudakit.sim.compiled.layout import (
    ANYHOW,
    BAIL,
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
        for name in ("pending_count", "pending_chunks"):
            put(c, name, 0)
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
                with c.if_(left.value.ne(0)):
                    places = bases.load(I32, 32) + offset.splat(LANES)
                    _enter_reads(c, cells_of(c, table, places), mask, thread, time, lowest)
        c.return_()


def _enter_reads(c: Code, cells: Value, mask: Value, thread: Value, time: Value, lowest: Value) -> None:
    """Enter a load by the lanes of a mask, each of one word."""
    me, word = _words(c, mask, thread, time << TIME)

    def more(several: Value, other: Value) -> Value:
        return several.gt(other).select(several, other)

    old = c.gather(I64, cells)
    who = old & THREAD
    near = (who >> 5).eq(me >> 5).select(c.const(I64, 1), c.const(I64, 2))
    several = more((old >> SEVERAL) & 3, who.eq(me).select(c.const(I64, 0), near))
    several = old.le(lowest.splat(LANES)).select(c.const(I64, 0), several)
    entered = word | (several << SEVERAL)
    c.scatter(entered, cells)
    # of lanes that read the same word one is in the table: the others add that they are several
    back = c.gather(I64, cells)
    lost = back.ne(entered)
    with c.if_(lost.bits("i32").ne(0)):
        several = more(more(several, (back >> SEVERAL) & 3), c.const(I64, 1))
        c.scatter(word | (several << SEVERAL), cells, lost)


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
        sane = sane_offsets(c)
        c.out.store(sane, 32)
        expect_within(c, sane, c.lowest, c.highest, c.odd)
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
            least, most = sane.reduce("umin"), sane.reduce("umax")
            chunks = c.variable("i64", 0)
            chunks.value = get(c, "pending_chunks")
            with c.for_(c.count) as place:
                offset = c.offsets.at(place.to("i64") * 4).load("i32")
                chunks.value = chunks.value | _chunks(c, least + offset, most + offset)
            put(c, "pending_chunks", chunks.value)
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


def sane_offsets(c: Code) -> Value:
    """The byte offsets of a shared access; inactive lanes have that of the first active one."""
    offsets = c.bases.load(I32, 32) - c.start.splat(LANES)
    first = offsets[c.first_bit(c.mask)]
    return conditions(c, c.mask, LANES).select(offsets, first.splat(LANES))


def expect_within(c: Code, sane: Value, lowest: Value, highest: Value, odd: Value) -> None:
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
    me, _ = words_of(c, c.mask, 0)
    unset = init.select(c.const("i64", 0), -1).splat(LANES)
    wrong = c.variable(f"<{LANES} x i1>", 0)
    wrong.value = 0
    with c.for_(c.count) as place:
        offsets = c.out.load(I32, 32) + c.offsets.at(place.to("i64") * 4).load("i32").splat(LANES)
        old = c.gather(I64, cells_of(c, table, offsets))
        wrong.value = wrong.value | old.eq(unset) | _unordered(c, old, me, lowest, synced)
    with c.if_(wrong.value.bits("i32").ne(0), rare=True):
        c.return_(BAIL)


def _shared_store(module: Module) -> None:
    """A store to shared memory: ``elements`` of ``width`` bytes. ``values``: the addresses of their registers."""
    arguments = {"bases": "ptr", "start": "i32", "mask": "i32", "values": "ptr", "elements": "i32", "width": "i32"}
    arguments |= {"kind": "i32", "thread": "i32", "site": "ptr"}
    with module.function("shared_store", "i32", context="ptr", state="ptr", **arguments) as c:
        sane = sane_offsets(c)
        size = c.elements * c.width
        expect_within(c, sane, c.const("i32", 0), size, size - 1)
        out = c.array("i32", LANES)
        out.store(sane, 32)
        first = sane[0]
        row = first.splat(LANES) + c.lane_numbers("i32", LANES, 4)
        plain = (sane - row).reduce("or").eq(0) & c.mask.eq(-1) & c.elements.eq(1) & c.width.eq(4)
        with c.if_(get(c, "checked").ne(0)):
            _check_store(c, out, size, plain)
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


def _check_store(c: Code, out: Value, size: Value, plain: Value) -> None:
    shift = get(c, "shared_shift").to("i32")
    begin_store(c, out.load(I32, 32), size)
    left = c.variable("i1", 1)
    left.value = 1
    with c.if_(plain & shift.eq(2)):
        writes, reads, wrong = address(c, "writes"), address(c, "reads"), c.variable("i1", 0)
        lowest, _ = _marks(c)
        wrong.value = 0
        first = (out.load("i32") >> 2).to("i64") * 8
        latest = writes.at(first).load(I64, 8).reduce("umax")
        with c.if_(get(c, "last_read").gt(get(c, "floor"))):
            _store_after_reads(c, reads.at(first), lowest, wrong)
        with c.if_(latest.le(lowest) & ~wrong.value):
            word = (get(c, "now") << TIME) | c.thread.to("i64")
            writes.at(first).store(word.splat(LANES) + c.lane_numbers("i64", LANES), 8)
            left.value = 0
    with c.if_(left.value):
        enter_store(c, out.load(I32, 32), size, 0)


def _chunks(c: Code, first: Value, last: Value) -> Value:
    """The chunks of shared memory from one byte to another, as bits."""
    shift = get(c, "chunk_shift")
    low, high = first.to("i64") >> shift, last.to("i64") >> shift
    return ((c.const("i64", 2) << high) - 1) & ~((c.const("i64", 1) << low) - 1)


def begin_store(c: Code, sane: Value, size: Value) -> None:
    """A store of ``size`` bytes at byte offsets, per lane, follows at the current time: enter the pending loads if one
    of them may be of the same bytes."""
    chunks = _chunks(c, sane.reduce("umin"), sane.reduce("umax") + size - 1)
    with c.if_((get(c, "pending_chunks") & chunks).ne(0)):
        c.call("flush", "void", c.context)
    put(c, "last_write", get(c, "now"))


def cells_of(c: Code, table: Value, offsets: Value) -> Value:
    """The places in a table of the words for byte offsets, per lane."""
    cells = offsets >> get(c, "shared_shift").to("i32").splat(LANES)
    return c.let(f"<{LANES} x ptr>", f"getelementptr i64, {table}, {cells.to(I64)}")


def words_of(c: Code, mask: Value, flight: int) -> tuple[Value, Value]:
    """The lanes' threads, and the words of their accesses now; inactive lanes have those of the first active one."""
    return _words(c, mask, c.thread, (get(c, "now") << TIME) | flight)


def _words(c: Code, mask: Value, thread: Value, word: Value) -> tuple[Value, Value]:
    threads = thread.to("i64").splat(LANES) + c.lane_numbers("i64", LANES)
    first = threads[c.first_bit(mask)]
    me = conditions(c, mask, LANES).select(threads, first.splat(LANES))
    return me, me | word.splat(LANES)


def enter_store(c: Code, sane: Value, size: Value, flight: int) -> None:
    """Check and enter stores of ``size`` bytes at byte offsets, per lane. Bail out if the interpreter might report one,
    or if two lanes store to one place."""
    writes, reads = address(c, "writes"), address(c, "reads")
    low, synced = (mark.splat(LANES) for mark in _marks(c))
    me, word = words_of(c, c.mask, flight)
    any_reads = get(c, "last_read").gt(get(c, "floor"))
    shift = get(c, "shared_shift").to("i32")
    wrong = c.variable(f"<{LANES} x i1>", 0)
    wrong.value = 0
    with c.for_(size >> shift) as number:
        offsets = sane + (number << shift).splat(LANES)
        cells = cells_of(c, writes, offsets)
        old = c.gather(I64, cells)
        c.scatter(word, cells)
        wrong.value = wrong.value | _unordered(c, old, me, low, synced) | c.gather(I64, cells).ne(word)
        with c.if_(any_reads):
            old = c.gather(I64, cells_of(c, reads, offsets))
            several, who = (old >> SEVERAL) & 3, old & THREAD
            mine = several.eq(0) & who.eq(me)
            ordered = (who >> 5).eq(me >> 5) & several.ne(2) & old.le(synced)
            wrong.value = wrong.value | (old.gt(low) & ~mine & ~ordered)
    with c.if_(wrong.value.bits("i32").ne(0), rare=True):
        c.return_(BAIL)


def _shared_atomic(module: Module) -> None:
    """The checks and counts of an atomic on one element of ``width`` bytes per lane. ``hosts``: receives the host's
    addresses; ``table``: the atomic's place in the table of atomics; ``reads``: the old values matter."""
    arguments = {"bases": "ptr", "start": "i32", "mask": "i32", "width": "i32", "kind": "i32", "reads": "i1"}
    arguments |= {"hosts": "ptr", "table": "ptr", "thread": "i32", "site": "ptr"}
    with module.function("shared_atomic", "i32", context="ptr", state="ptr", **arguments) as c:
        sane = sane_offsets(c)
        expect_within(c, sane, c.const("i32", 0), c.width, c.width - 1)
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
    begin_store(c, out.load(I32, 32), c.width)
    writes, reads = address(c, "writes"), address(c, "reads")
    lowest, _ = _marks(c)
    now = get(c, "now")
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


FUNCTIONS = (_flush, _shared_group, _shared_store, _shared_atomic)
