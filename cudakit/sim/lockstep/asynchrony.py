"""Threads that wait for asynchronous copies, and the moments at which the copies complete.

By default a copy completes only when the threads that can still run have all stopped: those that wait for its mbarrier
could not go on otherwise. With a seed, the moment is drawn: any copy in flight may complete after any basic block.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, Protocol

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, Choice, LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier, Mbarriers
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.transfers import BulkGroups, Transfer
from cudakit.sim.ptx.ir import Instruction

# how often, in the drawn mode, a copy completes after a basic block, and a wait gives up although it could wait on. The
# first wait of an instruction gives up more often (by default always), which shows one whose result is not used.
_LANDS, _GIVES_UP, _GIVES_UP_FIRST = 0.05, 0.2, 0.5


class Wait(Protocol):
    """The wait of a parked fragment's lanes."""

    instruction: Instruction
    site: Any

    def ready(self) -> Array:
        """A mask of the lanes that may go on."""

    def passed(self, lanes: LaneSet, mask: Array) -> None:
        """The lanes of ``mask`` go on, because what they waited for has happened."""

    def some(self, choice: Choice) -> Wait:
        """The wait of some of the lanes."""

    def barriers(self) -> list[Mbarrier]:
        """The barriers that some lanes still wait for."""


class Parked(NamedTuple):
    """A fragment that waits. ``slot`` receives whether the wait has succeeded, per lane."""

    f: Fragment
    slot: int
    wait: Wait


class Asynchrony:
    """The asynchronous copies and mbarriers of a batch, and the fragments that wait for them."""

    def __init__(self, batch: Batch, queue: FragmentQueue) -> None:
        self.batch, self.queue = batch, queue
        self.mbarriers = Mbarriers(batch)
        self.groups = BulkGroups(batch)
        self.transfers: list[Transfer] = []
        self.parked: list[Parked] = []
        # the waits that were last given up, and the last poll that failed: for reports of hangs
        self.given_up: list[Parked] = []
        self.polled: Wait | None = None
        # the sites of waits that have found a phase incomplete
        self.tried: set[int] = set()
        seed = batch.run.config.draw
        self.random = None if seed is None else random.Random(f"{seed} {batch.first_block}")

    # ---- transfers ----

    def add(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)

    def land(self, transfer: Transfer) -> None:
        """Complete a transfer that is in flight."""
        self.transfers.remove(transfer)
        transfer.land()

    def waits_for(self, barrier: Mbarrier) -> bool:
        """Whether a parked fragment waits for a barrier."""
        return any(barrier in parked.wait.barriers() for parked in self.parked)

    def draw(self) -> None:
        """In the drawn mode: now and then complete a transfer or a product, or read the source of a transfer. Called
        after a basic block."""
        chance = self.random
        if chance is None:
            return
        if self.batch.warpgroups is not None and chance.random() < _LANDS:
            self.batch.warpgroups.finish_some(chance.randrange)
        if not self.transfers or chance.random() >= _LANDS * len(self.transfers):
            return
        transfer = chance.choice(self.transfers)
        if chance.random() < 0.3:
            transfer.take()
        else:
            self.land(transfer)

    # ---- waits ----

    def meet(self, f: Fragment, slot: int, wait: Wait) -> bool:
        """Wait with a fragment that is already past the instruction; True if it may go on at once."""
        mask = wait.ready()
        # each way below writes the register
        f.frames[-1].undefined.pop(slot, None)
        if mask.all():
            wait.passed(f.lanes, mask)
            f.regs[slot] = np.bool_(True)
            return True
        first = wait.site.number not in self.tried
        self.tried.add(wait.site.number)
        if first if self.random is None else self.random.random() < (_GIVES_UP_FIRST if first else _GIVES_UP):
            wait.passed(f.lanes, mask)
            f.regs[slot] = mask
            return True
        f.regs[slot] = np.bool_(False)
        self.parked.append(Parked(f, slot, wait))
        return False

    def release(self) -> bool:
        """Release the parked lanes whose waits are over; True if there were some."""
        if not self.parked:
            return False
        parked, self.parked = self.parked, []
        epoch = self.queue.epoch()
        released = False
        for f, slot, wait in parked:
            mask = wait.ready()
            if mask.any():
                released = True
                self._go_on(f, slot, wait, mask, epoch)
            else:
                self.parked.append(Parked(f, slot, wait))
        return released

    def _go_on(self, f: Fragment, slot: int, wait: Wait, mask: Array, epoch: int) -> None:
        wait.passed(f.lanes, mask)
        if mask.all():
            going = f
        else:
            found = f.lanes.split(mask)
            going = f.part(found.yes, found.set_yes, f.block)
            self.parked.append(Parked(f.part(found.no, found.set_no, f.block), slot, wait.some(found.no)))
        going.regs[slot] = np.bool_(True)
        going.epoch = epoch
        self.batch.progress += 1
        self.queue.add(going)

    def stalled(self) -> bool:
        """Release lanes once no others can run, completing the transfers that they wait for; True if there were any."""
        if self.release():
            return True
        wanted = {id(barrier) for parked in self.parked for barrier in parked.wait.barriers()}
        if not wanted:
            return False
        landed = self._land_for(wanted)
        while landed:
            if self.release():
                return True
            landed = self._land_for(wanted)
        return False

    def _land_for(self, wanted: set[int]) -> bool:
        """Complete the transfers in flight of some barriers; of several for one barrier, in the order of their issue.
        With a seed: one drawn transfer of any barrier."""
        mine = [transfer for transfer in self.transfers if id(transfer.barrier) in wanted]
        if self.random is not None and mine:
            mine = [self.random.choice(mine)]
        for transfer in mine:
            if transfer in self.transfers:
                self.land(transfer)
        return bool(mine)

    def polls(self, wait: Wait) -> None:
        """Lanes have polled what they wait for, without success."""
        self.polled = wait

    def poll(self) -> None:
        """A loop that may poll has run for a while: release the parked lanes that may go on, and complete the transfers
        that they and the last poll wait for."""
        if self.parked:
            self.release()
        if self.transfers:
            waits = [parked.wait for parked in self.parked]
            if self.polled is not None:
                waits.append(self.polled)
            self._land_for({id(barrier) for wait in waits for barrier in wait.barriers()})

    def give_up(self) -> bool:
        """Let all parked lanes go on without success, as on a GPU after a time limit; True if there were some."""
        if not self.parked:
            return False
        self.given_up, self.parked = self.parked, []
        for f, slot, wait in self.given_up:
            mask = wait.ready()
            f.regs[slot] = mask if mask.any() else np.bool_(False)
            # the search for hangs sees that it has run again
            f.epoch += 1
            self.queue.add(f)
        return True

    def stuck(self) -> list[Wait]:
        """The waits that parked lanes gave up and that polls repeat, as far as they are not over."""
        waits = [parked.wait for parked in (*self.parked, *self.given_up)]
        if self.polled is not None:
            waits.append(self.polled)
        return [wait for wait in waits if wait.barriers()]

    def leave(self, blocks: Array) -> None:
        """Some blocks of the batch, a mask, have exited: finish the copies out of their shared memory, and report those
        into it."""
        for transfer in list(self.transfers):
            if transfer not in self.transfers:
                continue
            source, target = transfer.source_block(), transfer.destination_block()
            if target >= 0 and blocks[target]:
                self._report_exited(transfer, target)
            if source >= 0 and blocks[source]:
                self.land(transfer)

    def finish(self) -> None:
        """All lanes have exited: complete what is still in flight."""
        while self.transfers:
            self.land(self.transfers[0])

    def _report_exited(self, transfer: Transfer, block: int) -> None:
        f = transfer.f
        own = int(f.lanes.block[0]) == block
        who = "its own block" if own else f"block {self.batch.block_index(block)} of the cluster"
        f.fail(
            transfer.site.instruction,
            "use after free",
            f"{transfer.site.kind} into the shared memory of {who}, which has exited before the copy is sure to be "
            "complete",
            space="shared",
            access=transfer.site.kind,
            notes=["wait for the copy's mbarrier in that block before it exits"],
        )
