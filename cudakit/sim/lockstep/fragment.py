"""The state of a running kernel: a batch of its blocks, and fragments of lanes in lockstep.

A fragment is a set of lanes at one place of the program with its own registers: dense arrays of only its lanes, so that
instructions need no masks. A register with the same value in all lanes may be a numpy scalar. Register arrays are never
written in place; they may be shared between registers, fragments and views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cudakit.sim.lockstep.lanes import Array, Choice, Geometry, LaneSet, choose
from cudakit.sim.lockstep.memory import MemoryFault, round_up
from cudakit.sim.lockstep.observer import AccessObserver
from cudakit.sim.lockstep.pieces import SharedAddresses
from cudakit.sim.lockstep.program import Program
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.report import Index3, KernelFault, KernelReport, Other
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Instruction


class Store:
    """Bytes that can be viewed as any element type: ``count`` rows of ``stride`` bytes, one per block or lane."""

    __slots__ = ("_views", "bytes", "stride")

    def __init__(self, count: int, stride: int, fill: int) -> None:
        self.stride = stride
        self.bytes = np.full(count * stride, fill, np.uint8)
        self._views: dict[Any, Array] = {}

    def view(self, dtype: npt.DTypeLike) -> Array:
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.bytes.view(dtype)
        return found


class Batch:
    """Some blocks of a launch, run together: their shared and local memory, and which lanes are live.

    Blocks are numbered cluster by cluster, and within a cluster by rank; without clusters, in the order of the grid.
    """

    def __init__(self, run: KernelRun, geometry: Geometry, first_block: int) -> None:
        self.run = run
        self.geometry = geometry
        self.first_block = first_block
        self.shared = Store(geometry.blocks, round_up(run.shared_bytes, 128), 0xFF) if run.shared_bytes else None
        self.local = Store(geometry.lanes, round_up(run.local_bytes, 32), 0xFF) if run.local_bytes else None
        self.live = geometry.lanes
        self.live_blocks = geometry.all.block_counts.copy()
        self.live_warps = geometry.all.warp_counts
        # which lanes are live, if the kernel has cluster barriers
        self.alive = np.ones(geometry.lanes if run.config.cluster_barriers else 0, np.bool_)
        # increases with every sign of progress: a store, an exit, a completed barrier
        self.progress = 0
        self.specials: dict[str, Any] = {}
        # facts about the registers that were last used as shared addresses, by their ids
        self.shared_addresses: dict[int, SharedAddresses] = {}
        # the cp.async copies in flight; all other asynchronous copies, mbarriers, and the fragments that wait for them
        self.copies: Any = None
        self.asynchrony: Any = None
        # the scheduler that runs it
        self.scheduler: Any = None
        # the products of warpgroups in flight (warpgroup_checks.py); None: there has been none
        self.warpgroups: Any = None
        # the number of each lane's last call at each depth, and how many calls there were (owners.py)
        self.local_calls: dict[int, Array] = {}
        self.call_count = 0
        # the ends of the lanes' frames that may grow, by depth (stack.py)
        self.frame_ends: dict[int, Array] = {}
        # the checks of its accesses; None: no checks
        self.guard: AccessObserver | None = None

    def leave(self, lanes: LaneSet) -> None:
        """Note lanes that have exited: barriers no longer wait for them."""
        self.live -= lanes.count
        self.live_blocks = self.live_blocks - lanes.block_counts
        self.live_warps = self.live_warps - lanes.warp_counts
        if len(self.alive):
            self.alive[lanes.lanes] = False
        self.progress += 1

    def block_index(self, block: int) -> Index3:
        """The grid index of a block of this batch."""
        x, y, z = self.indices[block].tolist()
        return x, y, z

    @cached_property
    def indices(self) -> Array:
        """The grid index of each block, (blocks, 3) of int64."""
        return self.run.block_indices(self.first_block + np.arange(self.geometry.blocks))

    def grid_index(self, number: int) -> Index3:
        """The grid index of the launch's block with this number, which may be in another batch."""
        x, y, z = self.run.block_indices(np.array([number]))[0].tolist()
        return x, y, z

    def thread_index(self, thread: int) -> Index3:
        return self.geometry.thread_index(thread)

    def other(self, site: Site, lane: int) -> Other:
        """The access of a lane at a site, for a report of another one."""
        block, thread = divmod(lane, self.geometry.threads)
        place = self.run.place(site.instruction)
        return Other(site.kind, self.block_index(block), self.thread_index(thread), place)


class Frame:
    """An active function call: its registers, the block at which its caller resumes, the base of its local memory."""

    __slots__ = ("local_base", "origin", "program", "regs", "resume", "taken", "undefined")

    def __init__(self, program: Program, regs: Registers, resume: int, local_base: int) -> None:
        # the lanes and registers of the fragment that this one was split from, and the values taken from them: when the
        # parts reunite, a register that no part has written since is the original array
        self.origin: tuple[LaneSet, Registers] | None = None
        self.taken: dict[int, Any] = {}
        # the registers without a defined value (undefined.py): codes by slot, one per lane
        self.undefined: dict[int, Array] = {}
        self.program = program
        self.regs = regs
        self.resume = resume
        self.local_base = local_base


class Fragment:
    """Lanes in lockstep, at the start of block ``block`` of the top frame's program."""

    __slots__ = (
        "batch",
        "block",
        "careful",
        "epoch",
        "frames",
        "jumps",
        "lanes",
        "loaded",
        "program",
        "regs",
        "released",
        "storing",
        "value",
    )

    def __init__(self, batch: Batch, lanes: LaneSet, frames: list[Frame], block: int, epoch: int) -> None:
        self.batch = batch
        self.lanes = lanes
        self.frames = frames
        self.program = frames[-1].program
        self.regs = frames[-1].regs
        self.block = block
        self.epoch = epoch
        self.jumps = 0
        # the lanes' operand of a barrier that reduces
        self.value: Any = None
        # whether the warp operation at the start of the block need not wait any longer
        self.released = False
        # whether the current block is run with hooks (undefined.py)
        self.careful = False
        # the codes of undefined values that the current instruction stores, and that it has loaded: (lanes, elements)
        self.storing: Array | None = None
        self.loaded: Array | None = None

    def path(self) -> tuple[int, ...]:
        """The position of the fragment: the numbers of the blocks that called, and of its own. Fragments with equal
        paths may be united. Lanes in a function are before those that have returned from it."""
        own = self.program.blocks[self.block].number
        if len(self.frames) == 1:
            return (own,)
        calls = (a.program.blocks[b.resume - 1].number for a, b in pairwise(self.frames))
        return (*calls, own)

    def part(self, choice: Choice, lanes: LaneSet, block: int) -> Fragment:
        """A new fragment of some of the lanes, at ``block``, with the registers that are live there."""
        frames = []
        for depth, frame in enumerate(self.frames):
            program = frame.program
            top = depth == len(self.frames) - 1
            needed = program.live[block] if top else program.live[self.frames[depth + 1].resume]
            regs, old = list(program.template), frame.regs
            made = Frame(program, regs, frame.resume, frame.local_base)
            made.origin = (self.lanes, old)
            for slot in needed:
                value = old[slot]
                if value.ndim:
                    value = value[choice] if isinstance(choice, slice) else value.take(choice, axis=0)
                    made.taken[slot] = value
                regs[slot] = value
            for slot in frame.undefined.keys() & set(needed) if frame.undefined else ():
                codes = choose(frame.undefined[slot], choice)
                if codes.any():
                    made.undefined[slot] = codes
            frames.append(made)
        out = Fragment(self.batch, lanes, frames, block, self.epoch)
        if self.value is not None:
            out.value = choose(self.value, choice)
        return out

    def borrow(self, choice: Choice, lanes: LaneSet, slots: Sequence[int]) -> Fragment:
        """A new fragment of some of the lanes for one instruction, with only the registers ``slots``."""
        top = self.frames[-1]
        regs = list(top.program.template)
        for slot in slots:
            regs[slot] = choose(top.regs[slot], choice)
        frames = [*self.frames[:-1], Frame(top.program, regs, top.resume, top.local_base)]
        return Fragment(self.batch, lanes, frames, self.block, self.epoch)

    def alone(self, lane: int) -> Fragment:
        """A fragment of one lane of the batch at this place, for reports and checks, also if it has gone on."""
        lanes = LaneSet(self.batch.geometry, np.array([lane]), 1)
        return Fragment(self.batch, lanes, self.frames, self.block, self.epoch)

    # ---- reports ----

    def lane_place(self, position: int) -> tuple[Index3, Index3]:
        """The block and thread indices of the lane at a position of this fragment."""
        geometry = self.batch.geometry
        block, thread = divmod(int(self.lanes.lanes[position]), geometry.threads)
        return self.batch.block_index(block), self.batch.thread_index(thread)

    def spread(self, positions: Array) -> str:
        """The range of the lanes at some positions, in words: "up to thread (127, 0, 0)"."""
        if len(positions) < 2:
            return ""
        linear = self.lanes.lanes[positions] // self.batch.geometry.threads
        blocks = len(np.unique(linear))
        last = positions[int(np.argmax(self.lanes.lanes[positions]))]
        block, thread = self.lane_place(int(last))
        return f"in {blocks} blocks, up to block {block}" if blocks > 1 else f"up to thread {thread}"

    def fail(
        self,
        instruction: Instruction | None,
        kind: str,
        detail: str,
        position: int = 0,
        lanes: int | Array = 1,
        **more: Any,
    ) -> NoReturn:
        """Stop the kernel with a report about the lane at ``position``. ``lanes`` are the positions, or the number, of
        the lanes with the same fault."""
        block, thread = self.lane_place(position)
        if isinstance(lanes, int) and lanes == self.lanes.count:
            lanes = np.arange(lanes)
        if not isinstance(lanes, int):
            more["spread"] = self.spread(lanes)
            lanes = len(lanes)
        run = self.batch.run
        places = run.place(instruction) if instruction is not None else ()
        report = KernelReport(
            kind=kind,
            detail=detail,
            kernel=run.config.kernel,
            block=block,
            thread=thread,
            places=places,
            instruction=instruction.text.strip() if instruction is not None else "",
            lanes=lanes,
            **more,
        )
        for probe in run.probes:
            probe.fault(self, position, instruction, report)
        raise KernelFault(report)

    def fail_access(self, site: Site, fault: MemoryFault, space: str, position: int, lanes: int | Array) -> NoReturn:
        """Stop the kernel with the report of a memory fault."""
        self.fail(
            site.instruction,
            fault.kind,
            f"{site.kind} of {fault.where}",
            position,
            lanes,
            address=fault.address,
            size=fault.size,
            space=space,
            access=site.kind,
            allocation=fault.allocation,
        )


def divide(waiting: list[Fragment], chosen: Callable[[LaneSet], Array]) -> tuple[list[Fragment], list[Fragment]]:
    """Divide waiting fragments into those with the lanes that ``chosen`` selects and those with the rest; ``chosen``
    returns a mask of a set's lanes. Fragments with lanes of both kinds are split."""
    going: list[Fragment] = []
    staying: list[Fragment] = []
    for f in waiting:
        mask = chosen(f.lanes)
        if mask.all():
            going.append(f)
        elif mask.any():
            found = f.lanes.split(mask)
            going.append(f.part(found.yes, found.set_yes, f.block))
            staying.append(f.part(found.no, found.set_no, f.block))
        else:
            staying.append(f)
    return going, staying


def unite(fragments: list[Fragment]) -> Fragment:
    """Unite fragments with equal paths into one."""
    first = fragments[0]
    batch = first.batch
    lanes, places = batch.geometry.unite(tuple(f.lanes for f in fragments))
    frames = []
    for depth, frame in enumerate(first.frames):
        program = frame.program
        top = depth == len(first.frames) - 1
        needed = program.live[first.block] if top else program.live[first.frames[depth + 1].resume]
        regs = list(program.template)
        parts = [f.frames[depth].regs for f in fragments]
        origin = frame.origin
        if origin is not None and (
            origin[0] is not lanes or any(not _same_origin(f.frames[depth].origin, origin) for f in fragments)
        ):
            origin = None
        for slot in needed:
            if origin is not None and all(
                f.frames[depth].taken.get(slot) is p[slot] for f, p in zip(fragments, parts, strict=True)
            ):
                regs[slot] = origin[1][slot]
                continue
            regs[slot] = _join([p[slot] for p in parts], places, lanes.count)
        made = Frame(program, regs, frame.resume, frame.local_base)
        for slot in {slot for f in fragments for slot in f.frames[depth].undefined}.intersection(needed):
            codes = made.undefined[slot] = np.zeros(lanes.count, np.uint16)
            for f, place in zip(fragments, places, strict=True):
                codes[place] = f.frames[depth].undefined.get(slot, 0)
        frames.append(made)
    out = Fragment(batch, lanes, frames, first.block, min(f.epoch for f in fragments))
    out.jumps = max(f.jumps for f in fragments)
    out.released = all(f.released for f in fragments)
    return out


def _same_origin(a: tuple[LaneSet, Registers] | None, b: tuple[LaneSet, Registers]) -> bool:
    return a is not None and a[0] is b[0] and a[1] is b[1]


def _join(values: list[Any], places: list[Choice], count: int) -> Any:
    first = values[0]
    if all(v.ndim == 0 for v in values) and all(v is first or v.tobytes() == first.tobytes() for v in values[1:]):
        return first
    if first.dtype.kind == "V" or first.ndim == 2:
        # a parameter of a call: rows of bytes, one per lane
        rows = [np.frombuffer(v.tobytes(), np.uint8) if v.ndim == 0 else v for v in values]
        out = np.empty((count, rows[0].shape[-1]), np.uint8)
    else:
        rows = values
        out = np.empty(count, first.dtype)
    for place, value in zip(places, rows, strict=True):
        out[place] = value
    return out
