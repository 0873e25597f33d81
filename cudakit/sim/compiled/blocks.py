"""Machine code for what concerns blocks: barriers, and the loop over the blocks of a grid."""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, address, get, put
from cudakit.sim.compiled.ir import Code, Module, Value
from cudakit.sim.compiled.layout import (
    BAIL,
    COUNT,
    EVERY,
    EXITED,
    FINE,
    LANES,
    MOST_TIME,
    PER_LANE,
    STATE_BYTES,
    WAITING,
)


def _run_block(module: Module) -> None:
    """Run the warps of one block in turn, from barrier to barrier."""
    with module.function("run_block", "i32", context="ptr", warp="ptr") as c:
        warps, states = get(c, "warps"), address(c, "states")
        registers, ids = address(c, "registers"), address(c, "thread_ids")
        running = c.variable("i1", 1)
        with c.while_(lambda: running.value):
            waiting, meeting = c.variable("i64", 0), c.variable("i32", 0)
            waiting.value = 0
            with c.for_(warps) as number:
                state = states.at(number * STATE_BYTES)
                own = registers.at(number * get(c, "register_bytes"))
                thread = number.to("i32") << 5
                status = c.call_pointer(c.warp, "i32", c.context, own, state, ids.at(number * 384), thread)
                with c.if_(status.is_("slt", 0), rare=True):
                    c.return_(status)
                with c.if_(status.ne(0)):
                    place = state.load(I32, 32).reduce("umin")
                    with c.if_(waiting.value.ne(0) & place.ne(meeting.value), rare=True):
                        c.return_(BAIL)
                    meeting.value = place
                    waiting.value = waiting.value + 1
            with c.if_(waiting.value.eq(0)):
                c.return_(FINE)
            # threads that have exited do not take part in barriers: the interpreter knows the rules
            with c.if_(get(c, "exited").ne(0), rare=True):
                c.return_(BAIL)
            _pass_barrier(c)
            with c.if_(get(c, "reduction").ne(0)):
                _set_results(c)
            with c.for_(warps) as number:
                state = states.at(number * STATE_BYTES)
                places = state.load(I32, 32)
                woken = places & (WAITING - 1)
                state.store(places.lt(EXITED).select(woken, places), 32)
        c.return_(FINE)


def _set_results(c: Code) -> None:
    """Set the result of a barrier that reduces a predicate, in all warps."""
    how, votes = get(c, "reduction"), get(c, "votes")
    form = how & (PER_LANE - 1)
    held = form.eq(EVERY).select(votes.eq(get(c, "voters")), votes.ne(0))
    with c.for_(get(c, "warps")) as number:
        place = address(c, "registers").at(number * get(c, "register_bytes")).at(get(c, "reduced"))

        def per_lane(place: Value = place) -> None:
            bits = held.select(c.const("i32", -1), c.const("i32", 0))
            c.either(
                form.eq(COUNT),
                lambda: place.store(votes.to("i32").splat(LANES), 32),
                lambda: place.store(bits),
            )

        def one(place: Value = place) -> None:
            c.either(form.eq(COUNT), lambda: place.store(votes.to("i32")), lambda: place.store(held.to("i8")))

        c.either(how.ge(PER_LANE), per_lane, one)
    for name in ("reduction", "votes", "voters"):
        put(c, name, 0)


def _pass_barrier(c: Code) -> None:
    now = get(c, "now")
    put(c, "floor", now)
    put(c, "now", now + 1)
    put(c, "phase", get(c, "phase") + 1)
    with c.if_(now.gt(MOST_TIME - 64), rare=True):
        c.return_(BAIL)
    for name in ("pending_count", "pending_chunks"):
        put(c, name, 0)
    with c.if_(get(c, "full").eq(0) & get(c, "looks").ne(0)):
        put(c, "looks", get(c, "looks") - 1)
        table, unset = address(c, "writes"), c.variable("i1", 0)
        with c.for_(get(c, "shared_cells")) as word:
            unset.value = unset.value | table.at(word * 8).load("i64").eq(0)
        with c.if_(~unset.value):
            put(c, "full", 1)


def _run_blocks(module: Module) -> None:
    """Run the blocks of a grid in order. ``warp``: the kernel."""
    with module.function("run_blocks", "i32", context="ptr", warp="ptr", start="i64", end="i64") as c:
        number = c.variable("i64", 0)
        number.value = c.start
        with c.while_(lambda: number.value.lt(c.end)):
            block, wide, high = number.value, get(c, "nctaid_x"), get(c, "nctaid_y")
            for name, value in (
                ("ctaid_x", block % wide),
                ("ctaid_y", block / wide % high),
                ("ctaid_z", block / wide / high),
            ):
                put(c, name, value)
            put(c, "block", block)
            false = c.const("i1", 0)
            size = get(c, "warps") * STATE_BYTES
            c.call("llvm.memcpy.p0.p0.i64", "void", address(c, "states"), address(c, "start_states"), size, false)
            words = get(c, "shared_cells") * 8
            threads = get(c, "warps") * get(c, "local_stride")
            fill = (
                (address(c, "local"), -1, get(c, "init").eq(0).select(threads * LANES, 0)),
                (address(c, "local_written"), 0, threads * 4),
                (address(c, "shared"), -1, get(c, "shared_bytes")),
                (address(c, "writes"), 0, words),
                (address(c, "reads"), 0, words),
            )
            for place, byte, count in fill:
                c.call("llvm.memset.p0.i64", "void", place, c.const("i8", byte), count, false)
            with c.if_(get(c, "unset_bytes").ne(0)), c.for_(get(c, "warps")) as warp:
                own = address(c, "registers").at(warp * get(c, "register_bytes"))
                c.call("llvm.memset.p0.i64", "void", own, c.const("i8", 0), get(c, "unset_bytes"), false)
            for name, start in (
                ("now", 1),
                ("floor", 0),
                ("last_write", 0),
                ("last_read", 0),
                ("full", 0),
                ("looks", 8),
                ("pending_count", 0),
                ("pending_chunks", 0),
                ("exited", 0),
                ("reduction", 0),
                ("votes", 0),
                ("voters", 0),
                ("phase", 0),
                ("flying", 0),
            ):
                put(c, name, start)
            status = c.call("run_block", "i32", c.context, c.warp)
            with c.if_(status.ne(FINE), rare=True):
                c.return_(status)
            number.value = block + 1
        c.return_(FINE)


FUNCTIONS = (_run_block, _run_blocks)
