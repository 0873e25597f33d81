"""The report of threads that wait forever at mbarriers: each warp, its barrier and phase, and what is missing."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier
from cudakit.sim.lockstep.phases import PhaseWait
from cudakit.sim.ptx.ir import Instruction

# the most waits that a report lists
_MOST = 12


def report_stuck(f: Fragment, waits: list[PhaseWait], others: list[tuple[Fragment, Instruction, str]]) -> NoReturn:
    """Stop the kernel: the lanes of ``waits`` wait for phases that cannot complete. ``others``: the fragments that wait
    at other barriers, their instruction, and the barrier in words."""
    batch = f.batch
    wait = waits[0]
    barrier = wait.barriers()[0]
    # lanes that poll may wait in the same place twice
    notes = list(dict.fromkeys(note for one in waits for note in _notes(batch, one)))
    for other, instruction, what in others:
        notes += [f"{who} at {_place(batch, instruction)}: {what}" for who in _warps(batch, other.lanes)]
    if len(notes) > _MOST:
        notes = [*notes[:_MOST], f"and {len(notes) - _MOST} more"]
    position = int(np.argmax((wait.which == wait.objects.index(barrier)) & ~wait.ready()))
    missed = next((found for one in waits for found in _missed(one)), None)
    if missed is None and all(later := [_missed(one, again=True) for one in waits]):
        # all are too late; if some were not, those would be the cause
        missed = later[0][0]
    if missed is not None:
        late, lane, meant, theirs = missed
        _fail(
            f,
            theirs,
            lane,
            "mbarrier phase missed",
            f"a wait for parity {meant & 1} of {late.named()}: phase {meant} is over and phase {meant + 1} too, so the "
            f"wait is for phase {late.phase}, which cannot complete; {late.missing()}",
            notes=notes,
        )
    short = next((one for w in waits for one in w.barriers() if not one.pending and one.tx), None)
    if short is not None and _starved(waits) & (short.senders - short.sent):
        # the block that sends the missing bytes is stuck itself
        short = None
    if short is not None and short.expecting is not None:
        site, lane = short.expecting
        came = f"{short.received} bytes have arrived and no other copy is in flight"
        _report(
            f,
            lane,
            site.instruction,
            "mbarrier bytes differ",
            f"{site.kind}: phase {short.phase} of {short.named()} expects {short.requested} bytes, but {came}",
            others=(batch.other(wait.site, int(wait.lanes.lanes[position])),),
            notes=[*notes, "expect exactly the bytes of the copies, of whole boxes also if they overhang the tensor"],
        )
    detail = f"a wait for {barrier.named()} that cannot end: {barrier.missing()}"
    _fail(f, wait, int(wait.lanes.lanes[position]), "deadlock", detail, notes=notes)


def _starved(waits: list[PhaseWait]) -> set[int]:
    """The blocks of the batch with threads that wait for arrivals."""
    found: set[int] = set()
    for wait in waits:
        for number, barrier in enumerate(wait.objects):
            if barrier.pending and (mine := (wait.which == number) & ~wait.ready()).any():
                found.update(wait.lanes.block[mine].tolist())
    return found


def _missed(wait: PhaseWait, *, again: bool = False) -> list[tuple[Mbarrier, int, int, PhaseWait]]:
    """The barriers of which a waiting warp, that never waited for them before, has missed the first phase; ``again``:
    that has waited for them before and has missed the phase after that one."""
    found = []
    for number, barrier in enumerate(wait.objects):
        mine = np.flatnonzero(wait.which == number)
        first = int(mine[0])
        meant = barrier.waited.get(int(wait.lanes.warp[first]), -1) + 1
        if barrier.phase - meant >= 2 and int(wait.parity[first]) == meant & 1 and again == (meant > 0):
            found.append((barrier, int(wait.lanes.lanes[first]), meant, wait))
    return found


def _notes(batch: Batch, wait: PhaseWait) -> list[str]:
    """One line per barrier and block: the warps that wait there, at which source line, and what is missing."""
    where = _place(batch, wait.instruction)
    ready = wait.ready()
    found = []
    for number, barrier in enumerate(wait.objects):
        mine = (wait.which == number) & ~ready
        if not mine.any():
            continue
        _, lanes = wait.lanes.subset(mine)
        parity = int(wait.parity[np.flatnonzero(mine)[0]])
        found += [
            f"{who} at {where}: parity {parity} of {barrier.named()}; {barrier.missing()}"
            for who in _warps(batch, lanes)
        ]
    return found


def _place(batch: Batch, instruction: Instruction) -> str:
    """The line that calls a wait, not one in a header."""
    places = batch.run.place(instruction)
    return f"{places[-1].file}:{places[-1].line}" if places else instruction.text.strip()


def _warps(batch: Batch, lanes: LaneSet) -> list[str]:
    """The warps of some lanes in words, per block."""
    found, count = [], batch.geometry.warps_per_block
    for block in np.unique(lanes.block).tolist():
        inner = [warp % count for warp in lanes.warps[lanes.warps // count == block]]
        warps = f"warp {inner[0]}" if len(inner) == 1 else f"warps {inner[0]} to {inner[-1]}"
        if len(inner) > 1 and inner[-1] - inner[0] != len(inner) - 1:
            warps = "warps " + ", ".join(map(str, inner))
        found.append(f"{warps} of block {batch.block_index(block)}")
    return found


def _fail(f: Fragment, wait: PhaseWait, lane: int, kind: str, detail: str, **more: Any) -> NoReturn:
    _report(f, lane, wait.instruction, kind, detail, **more)


def _report(f: Fragment, lane: int, instruction: Any, kind: str, detail: str, **more: Any) -> NoReturn:
    f.alone(lane).fail(instruction, kind, detail, **more)
