"""An mbarrier program as a kernel, and the result that the rules determine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Bytes, Case, untouched
from .program_walk import Walk
from .programs import LANES, SLOT, SLOTS, Op, Program
from .values import Draw

COUNT = 2000  # programs
_DATA = SLOT * SLOTS  # bytes of the slots of a block
_POLLS = 300  # the most polls of a wait with try_wait; test_wait does not suspend, so it has more
_TESTS = 20000
_FINAL = 2  # words per barrier at the end: whether the last phase is complete, the pending count
# offsets in shared memory: slots, what is sent to the other block, then the barriers
_SOURCES = _DATA
_BARRIERS = 2 * _DATA


def _round(size: int) -> int:
    return -(-size // 4) * 4


def _final_word(program: Program) -> int:
    return program.words


def _dump_word(program: Program) -> int:
    return _round(program.words + _FINAL * len(program.counts))


def _size(program: Program) -> int:
    """Return the bytes of the result."""
    return 4 * _dump_word(program) + program.blocks * _DATA


class _Writer:
    """Writes the statements of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.labels = 0
        tokens = [op.token for segment in program.segments for ops in segment.values() for op in ops]
        self.tokens = 1 + max(tokens, default=-1)

    @property
    def clustered(self) -> bool:
        return self.program.blocks > 1

    @property
    def release(self) -> str:
        return ".release.cluster" if self.clustered else ".release.cta"

    def place(self, op: Op, remote: bool, state: str = "") -> str:
        """Return the state space of an instruction on a barrier, and its first operands."""
        given = f"{state}, " if state else ""
        if remote:
            return f".shared::cluster.b64 {given}[%f{op.barrier}]"
        return f".shared::cta.b64 {given}[%b{op.barrier}]"

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def body(self) -> str:
        program = self.program
        lines = [*self._begin()]
        for number, (segment, renewed) in enumerate(zip(program.segments, program.renewed, strict=True)):
            if number:
                lines += self._meet()
            if renewed:
                lines += [*self._renew(renewed), *self._meet()]
            for warp, ops in segment.items():
                if ops:
                    other = self.label()
                    lines.append(f"setp.ne.u32 %p, %warp, {warp}; @%p bra {other};")
                    for op in ops:
                        lines += self._op(op, warp)
                    lines.append(f"{other}:")
        return "\n".join([*lines, *self._meet(), *self._end(), "ret;"])

    # Begin and end ----------------------------------------------------------------------------------------------------

    def _begin(self) -> Iterator[str]:
        program = self.program
        yield f".shared .align 128 .b8 tile[{2 * _DATA + 8 * len(program.counts)}];"
        yield ".reg .b64 %in, %out, %at, %w; .reg .b32 %warp, %lane, %rank, %tile, %x, %s, %n, %flag, %v<4>;"
        yield ".reg .pred %p, %q, %one, %first; .reg .b32 %b<4>, %f<4>, %far;"
        if self.tokens:
            yield f".reg .b64 %k<{self.tokens}>;"
        yield "ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];"
        yield "cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;"
        yield "mov.u32 %x, %tid.x; and.b32 %lane, %x, 31; shr.u32 %warp, %x, 5; setp.eq.u32 %first, %x, 0;"
        yield "setp.eq.u32 %one, %lane, 0; mov.u32 %tile, tile; mov.u32 %flag, 0; mov.u32 %rank, %cluster_ctarank;"
        # the slots are 0; the sources are the input's part of this block
        yield f"mul.wide.u32 %w, %rank, {_DATA}; add.u64 %at, %in, %w; shl.b32 %x, %x, 4; cvt.u64.u32 %w, %x;"
        yield f"add.u64 %at, %at, %w; add.u64 %at, %at, {program.blocks * _DATA}; add.u32 %s, %tile, %x;"
        yield "mov.u32 %v0, 0;"
        more, done = self.label(), self.label()
        yield f"{more}: setp.ge.u32 %p, %x, {_DATA}; @%p bra {done};"
        yield "st.shared.v4.b32 [%s], {%v0, %v0, %v0, %v0}; ld.global.v4.b32 {%n, %v1, %v2, %v3}, [%at];"
        yield f"st.shared.v4.b32 [%s+{_SOURCES}], {{%n, %v1, %v2, %v3}};"
        step = 16 * LANES * program.warps
        yield f"add.u32 %x, %x, {step}; add.u32 %s, %s, {step}; add.u64 %at, %at, {step}; bra {more}; {done}:"
        for k, home in enumerate(program.homes):
            yield f"add.u32 %b{k}, %tile, {_BARRIERS + 8 * k};"
            if self.clustered:  # the barrier's address in the cluster, for the other block
                yield f"mapa.shared::cluster.u32 %f{k}, %b{k}, {home};"
        if self.clustered:
            yield f"mad.lo.u32 %warp, %rank, {program.warps}, %warp;"
            yield "xor.b32 %x, %rank, 1; mapa.shared::cluster.u32 %far, %tile, %x;"
        yield from self._renew(dict(enumerate(program.counts)), again=False)
        yield "fence.proxy.async;"
        yield from self._meet()

    def _renew(self, counts: dict[int, int], again: bool = True) -> Iterator[str]:
        """Initialise barriers, by the first thread of their blocks."""
        for number, count in counts.items():
            skip = self.label()
            other = f"setp.ne.and.u32 %p, %rank, {self.program.homes[number]}, %first;" if self.clustered else ""
            yield f"@!%first bra {skip}; {other}" + (f" @%p bra {skip};" if other else "")
            yield f"mbarrier.inval.shared.b64 [%b{number}];" * again
            yield f"mbarrier.init.shared.b64 [%b{number}], {count}; fence.mbarrier_init.release.cluster; {skip}:"

    def _meet(self) -> Iterator[str]:
        yield "barrier.cluster.arrive; barrier.cluster.wait;" if self.clustered else "bar.sync 0;"

    def _end(self) -> Iterator[str]:
        """Store what is left of the barriers, the slots and whether a wait was given up."""
        program = self.program
        for number, (warp, parity, _) in enumerate(program.final):
            other, at = self.label(), 4 * (_final_word(program) + _FINAL * number)
            yield f"setp.ne.u32 %p, %warp, {warp}; @%p bra {other}; @!%one bra {other};"
            yield f"mbarrier.test_wait.parity.shared.b64 %q, [%b{number}], {parity}; selp.u32 %v0, 1, 0, %q;"
            yield f"mbarrier.arrive.shared.b64 %w, [%b{number}]; mbarrier.pending_count.b64 %v1, %w;"
            yield from (f"st.global.b32 [%out+{at + 4 * k}], %v{k};" for k in range(_FINAL))
            yield f"{other}:"
        yield "setp.eq.u32 %p, %flag, 0; @!%p st.global.b32 [%out], 1;"
        yield f"mov.u32 %x, %tid.x; shl.b32 %x, %x, 4; mul.lo.u32 %n, %rank, {_DATA}; add.u32 %n, %n, %x;"
        yield f"cvt.u64.u32 %w, %n; add.u64 %at, %out, %w; add.u64 %at, %at, {4 * _dump_word(program)};"
        yield "add.u32 %s, %tile, %x;"
        more, done = self.label(), self.label()
        step = 16 * LANES * program.warps
        yield f"{more}: setp.ge.u32 %p, %x, {_DATA}; @%p bra {done};"
        yield "ld.shared.v4.b32 {%v0, %v1, %v2, %v3}, [%s]; st.global.v4.b32 [%at], {%v0, %v1, %v2, %v3};"
        yield f"add.u32 %x, %x, {step}; add.u32 %s, %s, {step}; add.u64 %at, %at, {step}; bra {more}; {done}:"

    # Operations -------------------------------------------------------------------------------------------------------

    def _op(self, op: Op, warp: int) -> Iterator[str]:
        remote = op.barrier >= 0 and self.program.homes[op.barrier] != warp // self.program.warps
        only = "@%one " if op.lanes == 1 else ""
        if op.what == "arrive":
            yield from self._arrive(op, remote, only)
        elif op.what in ("expect", "complete"):
            scope = "cluster" if remote else "cta"
            yield f"{only}mbarrier.{op.what}_tx.relaxed.{scope}{self.place(op, remote)}, {op.tx};"
        elif op.what in ("wait", "test"):
            yield from self._wait(op) if op.what == "wait" else self._test(op)
        elif op.what == "read":
            yield f"shl.b32 %x, %lane, 2; add.u32 %s, %tile, %x; ld.shared.b32 %v0, [%s+{SLOT * op.slot}];"
            yield f"cvt.u64.u32 %w, %x; add.u64 %at, %out, %w; st.global.b32 [%at+{4 * op.at}], %v0;"
        else:
            yield from self._copy(op, only, self.program.homes[op.barrier])

    def _arrive(self, op: Op, remote: bool, only: str) -> Iterator[str]:
        name = "mbarrier.arrive" + "_drop" * op.drop
        state = f"%k{op.token}" if op.token >= 0 else "_"
        count = f", {op.count}" if op.count > 1 or not op.complete else ""
        if not op.complete:  # the state may not be discarded
            state = state if op.token >= 0 else "%w"
            yield f"{only}{name}.noComplete.release.cta.shared::cta.b64 {state}, [%b{op.barrier}]{count};"
        else:
            tx = ".expect_tx" * bool(op.tx)
            place = self.place(op, remote, state)
            yield f"{only}{name}{tx}{self.release}{place}{f', {op.tx}' if op.tx else count};"
        if op.at >= 0 and op.at in self.program.expected:
            yield f"mbarrier.pending_count.b64 %x, %k{op.token}; @%one st.global.b32 [%out+{4 * op.at}], %x;"

    def _phase(self, op: Op, what: str) -> str:
        """Return the test of a phase, whose result is %q."""
        scope = ".acquire.cluster" if self.clustered else ""
        by = f"[%b{op.barrier}], " + (f"%k{op.token}" if op.token >= 0 else str(op.parity))
        hint = ", 1000" if op.how == "hint" else ""
        return f"mbarrier.{what}{'.parity' * (op.token < 0)}{scope}.shared::cta.b64 %q, {by}{hint};"

    def _wait(self, op: Op) -> Iterator[str]:
        again, done = self.label(), self.label()
        what, limit = ("test_wait", _TESTS) if op.how == "test" else ("try_wait", _POLLS)
        if op.lanes == 1:
            yield f"@!%one bra {done};"
        yield f"mov.u32 %n, 0; {again}: {self._phase(op, what)} @%q bra {done};"
        yield f"add.u32 %n, %n, 1; setp.lt.u32 %p, %n, {limit}; @%p bra {again}; mov.u32 %flag, 1;"
        yield f"{done}: bar.warp.sync 0xffffffff;"

    def _test(self, op: Op) -> Iterator[str]:
        skip = self.label()
        yield f"@!%one bra {skip}; {self._phase(op, 'try_wait' if op.how == 'try' else 'test_wait')}"
        yield f"selp.u32 %x, 1, 0, %q; st.global.b32 [%out+{4 * op.at}], %x; {skip}:"

    def _copy(self, op: Op, only: str, home: int) -> Iterator[str]:
        place, completes = SLOT * op.slot, "mbarrier::complete_tx::bytes"
        if op.what == "load":
            yield f"add.u32 %s, %tile, {place}; add.u64 %at, %in, {_DATA * home + place};"
            yield f"{only}cp.async.bulk.shared::cluster.global.{completes} [%s], [%at], {op.tx}, [%b{op.barrier}];"
        elif op.what == "send":
            yield f"add.u32 %s, %tile, {_SOURCES + place}; add.u32 %x, %far, {place};"
            yield f"{only}cp.async.bulk.shared::cluster.shared::cta.{completes} [%x], [%s], {op.tx}, [%f{op.barrier}];"
        elif op.what == "store":
            vector, values = (".b32", "%v0") if op.lanes > 1 else (".v2.b32", "{%v0, %v1}")
            yield "shl.b32 %x, %lane, 2; add.u32 %s, %tile, %x; add.u32 %x, %x, %far;"
            yield f"{only}ld.shared{vector} {values}, [%s+{_SOURCES + place}];"
            yield f"{only}st.async.weak.shared::cluster.{completes}{vector} [%x+{place}], {values}, [%f{op.barrier}];"
        else:  # cp.async
            size = 4 if op.lanes > 1 else 16
            yield "shl.b32 %x, %lane, 2; add.u32 %s, %tile, %x; cvt.u64.u32 %w, %x; add.u64 %at, %in, %w;"
            yield f"{only}cp.async.ca.shared.global [%s+{place}], [%at+{_DATA * home + place}], {size};"
            yield f"{only}cp.async.mbarrier.arrive.noinc.shared.b64 [%b{op.barrier}];"


def source(program: Program) -> Bytes:
    """Return the input: what each block loads, then what each sends."""
    return Draw(program.name).bytes(2 * program.blocks * _DATA)


def determined(program: Program) -> Bytes:
    """Return the result as far as the rules determine it, which is all of it but words that are not stored."""
    given, made = source(program), untouched(_size(program))
    words = made.view(np.uint32)
    words[0] = 0
    slots = np.zeros((program.blocks, SLOTS, SLOT), np.uint8)
    for (home, slot), (op, size) in program.copies.items():
        part = home if op.what in ("load", "cp.async") else program.blocks + 1 - home
        at = part * _DATA + slot * SLOT
        slots[home, slot, :size] = given[at : at + size]
    for at, value in program.expected.items():
        words[at] = value
    for at, home, slot in program.reads:
        words[at : at + SLOT // 4] = slots[home, slot].view(np.uint32)
    last, dump = _final_word(program), 4 * _dump_word(program)
    words[last : last + _FINAL * len(program.final)] = np.ravel([(1, pending) for _, _, pending in program.final])
    made[dump:] = slots.ravel()
    return made


def _before(program: Program) -> Bytes:
    made = untouched(_size(program))
    made[:4] = 0
    return made


def case(program: Program) -> Case:
    return Case(
        "mbarrier",
        "mbarrier programs, " + ("two blocks" if program.blocks > 1 else "one block"),
        program.name,
        _Writer(program).body(),
        lambda: source(program),
        lambda: _before(program),
        LANES * program.warps,
        program.blocks,
        flags=(0,),
    )


def programs(count: int = COUNT) -> list[Program]:
    return [Walk(seed).program() for seed in range(count)]


def cases(count: int = COUNT) -> list[Case]:
    return [case(program) for program in programs(count)]
