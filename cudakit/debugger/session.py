"""A debugging session: it follows launches on the simulated device, and stops their threads.

The kernel runs in the thread that waits for it. When a thread of the kernel must stop, the session calls its frontend
from there, which returns once the kernel may continue. All threads of a fragment stop at the same instruction; one of
them is in focus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.code import Code, Entry, chain, code_of
from cudakit.debugger.dwarf import DebugFunction
from cudakit.debugger.state import CallFrame, Place, View, frames, places
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.watchpoints import Changed, Gone, VariableWatch, Watchpoint
from cudakit.debugger.words import index
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.report import Index3, KernelReport
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import Flow, row_of

# a source line on each level of calls, the outermost first; inlined calls are levels too
Lines = tuple[tuple[str, int, int], ...]


@dataclass
class Stop:
    """Why threads have stopped, and where. `lanes` are the positions of the threads in their fragment to which the
    reason applies; the first one comes into focus. `returned` is the function from which `finish` has returned."""

    reason: str  # "breakpoint", "step", "finish", "watchpoint", "report", "launch", "pause"
    place: Place
    lanes: Any
    breakpoint: Breakpoint | None = None
    changed: Changed | None = None
    writer: tuple[Fragment, Instruction, Any] | None = None
    report: KernelReport | None = None
    error: str = ""
    returned: DebugFunction | None = None


class Frontend(Protocol):
    """The user's side of a session."""

    def stopped(self, stop: Stop) -> None:
        """Threads have stopped; returns once they may continue."""

    def note(self, text: str) -> None:
        """Show a line about the session."""

    def loaded(self, code: Code) -> None:
        """The code of a module has been loaded, and the breakpoints in it are set."""


@dataclass
class Stepping:
    """A step in progress of one thread: `kind` is "step", "next", "finish", "stepi" or "nexti"; `lines` are those of
    its calls when it began, `left` the number of steps that remain, `function` what `finish` returns from."""

    kind: str
    batch: Batch
    lane: int
    lines: Lines
    depth: int
    left: int = 1
    function: DebugFunction | None = None


@dataclass
class Focus:
    """The thread that commands refer to: a lane of a batch, and the level of its calls, 0 for the innermost."""

    batch: Batch
    lane: int
    level: int = 0


@dataclass
class Session:
    """Breakpoints, watchpoints, the focus and the step in progress. A probe (sim/lockstep/probes.py).

    Attributes:
        frontend: Is called when threads stop.
        on_report: Stop at the fault when the simulated device reports one.
        stop_at_launch: Stop before the first statement of the next kernel.
        stop_at_every_launch: The same for each kernel.
        pausing: Stop at the next statement of a kernel that is followed. Another thread may set it.
    """

    frontend: Frontend
    on_report: bool = False
    stop_at_launch: bool = False
    stop_at_every_launch: bool = False
    pausing: bool = False
    breakpoints: list[Breakpoint] = field(default_factory=list)
    watchpoints: list[Watchpoint] = field(default_factory=list)
    stepping: Stepping | None = None
    focus: Focus | None = None
    stop: Stop | None = None
    launches: int = 0
    kernel: Any = None
    run: Any = None
    codes: list[Code] = field(default_factory=list)
    _armed: dict[int, list[Breakpoint]] = field(default_factory=dict)
    _numbers: int = 0
    _last: tuple[Fragment, Instruction] | None = None

    # ---- the probe ----

    def begin(self, function: Any, run: Any) -> bool:
        """Whether to follow a launch: a breakpoint is in its code, or something else may stop it."""
        self.launches += 1
        code = code_of(function.module)
        if code not in self.codes:
            self.codes.append(code)
            for one in self.breakpoints:
                one.entries(code)
            self._arm()
            self.frontend.loaded(code)
        reached = {program.name for program in function.reachable}
        stops = any(
            entry.program.name in reached for one in self.breakpoints if one.enabled for entry in one.entries(code)
        )
        follows = stops or self.stop_at_launch or self.stop_at_every_launch or self.on_report or bool(self.watchpoints)
        follows = follows or self.pausing
        if follows:
            self.kernel, self.run = function, run
            self._last = None
            self.stop_at_launch |= self.stop_at_every_launch
        return follows

    def hook(self, program: Any, instruction: Instruction) -> Spot:
        code = code_of(self.kernel.module)
        row = row_of(instruction)
        leaves = row.ends is Flow.EXIT or (row.ends is Flow.RETURN and program.function.entry)
        return Spot(self, code, instruction, code.at(program, instruction), leaves)

    def keeps(self, program: Any) -> list[int] | None:
        """The registers of variables; all registers of code that has no variables."""
        code = code_of(self.kernel.module)
        function = code.debug_function(program)
        if function is None:
            return None
        names = {name for variable in function.scope.all_variables() for name in variable.registers()}
        return [program.slots[name] for name in names if name in program.slots]

    def fault(self, f: Fragment, position: int, instruction: Instruction | None, report: KernelReport) -> None:
        """Stop at a fault, if that was requested."""
        if not self.on_report:
            return
        if instruction is None:
            block = f.program.blocks[f.block]
            instruction = block.instructions[0] if block.instructions else f.program.function.instructions[-1]
        self._stop(Stop("report", Place(f, instruction), np.array([position]), report=report))

    def end(self, run: Any) -> None:
        """A launch has ended: values that only it had are not watched any more."""
        for one in list(self.watchpoints):
            if not one.outlives:
                self._drop(one)
        self._drop_until()
        self.stepping = self.focus = self.stop = self._last = self.run = self.kernel = None

    # ---- arriving at instructions ----

    def arrive(self, spot: Spot, f: Fragment) -> None:
        """Threads are about to execute an instruction: stop them if there is a reason."""
        instruction = spot.instruction
        place = Place(f, instruction)
        if self.watchpoints:
            self._check_watchpoints(place)
        if self.pausing and spot.entry is not None and not spot.entry.prologue:
            self.pausing = False
            self._stop(Stop("pause", place, np.arange(f.lanes.count)))
        elif self.stop_at_launch and spot.entry is not None and not spot.entry.prologue:
            self.stop_at_launch = False
            self._stop(Stop("launch", place, np.arange(f.lanes.count)))
        elif not self._stopped_at_breakpoint(spot, place):
            self._take_step(spot, place)
        self._last = (f, instruction)

    def _stopped_at_breakpoint(self, spot: Spot, place: Place) -> bool:
        stopped = np.zeros(place.f.lanes.count, np.bool_)
        for one in tuple(self._armed.get(id(spot.instruction), ())):
            if not one.enabled or one not in self.breakpoints:
                continue
            view = self.view(place)
            error = ""
            try:
                mask = one.stops(spot.code, view)
            except ExpressionError as problem:
                mask, error = np.ones(view.count, np.bool_), f"the condition {one.condition!r} has no value: {problem}"
            if not mask.any():
                continue
            one.hits += 1
            if one.ignore > 0:
                one.ignore -= 1
                continue
            if stopped[mask].all():
                continue  # another breakpoint has stopped these threads here
            if one.temporary:
                self.breakpoints.remove(one)
                self._arm()
            stop = Stop("breakpoint", place, np.flatnonzero(mask), breakpoint=one, error=error)
            if one.instead is not None and not error:
                one.instead(stop)
                continue
            stopped |= mask
            self._stop(stop)
        return bool(stopped.any())

    def _take_step(self, spot: Spot, place: Place) -> None:
        step = self.stepping
        if step is None or step.batch is not place.f.batch:
            return
        position = place.holds(step.lane)
        if position is None:
            return
        if not self._step_ends(step, spot, place):
            if spot.leaves:
                self.stepping = None
                block, thread = place.f.lane_place(position)
                self.frontend.note(f"[thread {index(thread)} of block {index(block)} has ended]")
            return
        step.left -= 1
        if step.left > 0:
            step.lines, step.depth = self.lines(place), len(place.f.frames)
            return
        reason = "finish" if step.kind == "finish" else "step"
        self._stop(Stop(reason, place, np.array([position]), returned=step.function))

    def _step_ends(self, step: Stepping, spot: Spot, place: Place) -> bool:
        depth = len(place.f.frames)
        if step.kind == "stepi":
            return True
        if step.kind == "nexti":
            return depth <= step.depth
        if step.kind != "finish" and spot.entry is None:
            return False
        lines = self.lines(place)
        if step.kind == "finish":
            return len(lines) < len(step.lines)
        if spot.entry is None or spot.entry.prologue:
            return False
        if len(lines) > len(step.lines):
            return step.kind == "step"
        ended = lines[-1:] != step.lines[len(lines) - 1 : len(lines)]
        # back in the caller, in the middle of its statement
        step.lines = step.lines[: len(lines)]
        return ended

    def _check_watchpoints(self, place: Place) -> None:
        for one in list(self.watchpoints):
            try:
                new = one.current(place.f, place.instruction)
            except Gone:
                self._drop(one)
                continue
            if new is None or new == one.old:
                self._note_seen(one, place)
                continue
            changed = one.change(new)
            if not one.enabled:
                self._note_seen(one, place)
                continue
            one.hits += 1
            writer = None
            lanes = np.zeros(1, np.int64)
            last = one.seen if isinstance(one, VariableWatch) else self._last
            if isinstance(one, VariableWatch):
                lanes = np.array([place.holds(one.lane) or 0])
            if last is not None:
                f, instruction = last
                wrote = one.writers(f, instruction)
                writer = (f, instruction, wrote)
                if len(wrote) and (position := place.holds(int(f.lanes.lanes[wrote[-1]]))) is not None:
                    lanes = np.array([position])
            self._note_seen(one, place)
            self._stop(Stop("watchpoint", place, lanes, changed=changed, writer=writer))

    @staticmethod
    def _note_seen(one: Watchpoint, place: Place) -> None:
        if isinstance(one, VariableWatch) and place.holds(one.lane) is not None:
            one.seen = (place.f, place.instruction)

    def _drop(self, one: Watchpoint) -> None:
        self.watchpoints.remove(one)
        self.frontend.note(f"[{one} is deleted: the value does not exist any more]")

    def _stop(self, stop: Stop) -> None:
        self.stepping = None
        self._drop_until()
        self.stop = stop
        f = stop.place.f
        focus, lane = self.focus, int(f.lanes.lanes[stop.lanes[0]])
        # the thread in focus stays there if it is one of those that have stopped
        if focus is not None and focus.batch is f.batch:
            position = stop.place.holds(focus.lane)
            if position is not None and position in stop.lanes:
                lane = focus.lane
        # functions of CUDA's headers have no lines with -G: their caller is shown
        calls = (level for level, frame in enumerate(frames(stop.place)) if frame.instruction.location is not None)
        self.focus = Focus(f.batch, lane, next(calls, 0))
        self.frontend.stopped(stop)
        self.stop = None

    def _drop_until(self) -> None:
        """Delete the breakpoints of `until`, which last up to the next stop."""
        if any(one.until for one in self.breakpoints):
            self.breakpoints[:] = [one for one in self.breakpoints if not one.until]
            self._arm()

    # ---- breakpoints ----

    def number(self) -> int:
        """The number of the next breakpoint or watchpoint."""
        self._numbers += 1
        return self._numbers

    def add(self, one: Breakpoint) -> None:
        """Set a breakpoint. In modules that are not loaded yet, it is set once they are."""
        self.breakpoints.append(one)
        for code in self.codes:
            one.entries(code)
        self._arm()

    @property
    def points(self) -> list[Breakpoint | Watchpoint]:
        """All breakpoints and watchpoints, by number."""
        found: list[Breakpoint | Watchpoint] = [*self.breakpoints, *self.watchpoints]
        return sorted(found, key=lambda one: one.number)

    def remove(self, number: int) -> bool:
        """Delete the breakpoint or watchpoint with a number; False if there is none."""
        kept = [one for one in self.breakpoints if one.number != number]
        watched = [one for one in self.watchpoints if one.number != number]
        found = len(kept) + len(watched) < len(self.breakpoints) + len(self.watchpoints)
        self.breakpoints[:], self.watchpoints[:] = kept, watched
        self._arm()
        return found

    def _arm(self) -> None:
        # replaced as a whole: another thread may set breakpoints while a kernel runs
        armed: dict[int, list[Breakpoint]] = {}
        for one in self.breakpoints:
            for code in self.codes:
                for entry in one.entries(code):
                    armed.setdefault(id(entry.instruction), []).append(one)
        self._armed = armed

    @property
    def busy(self) -> bool:
        """Whether each instruction must be looked at, not only those with breakpoints."""
        return self.stepping is not None or bool(self.watchpoints) or self.stop_at_launch or self.pausing

    # ---- the stopped kernel ----

    def code(self, f: Fragment) -> Code:
        """The code of the kernel that runs."""
        return code_of(self.kernel.module)

    def places(self) -> list[Place]:
        """All live threads of the running batch."""
        return [] if self.stop is None else places(self.stop.place.f.batch, self.stop.place)

    def place_of(self, lane: int) -> tuple[Place, int] | None:
        """The fragment of a lane, and its position in it; None if the thread has ended."""
        for place in self.places():
            position = place.holds(lane)
            if position is not None:
                return place, position
        return None

    def frames(self) -> list[CallFrame]:
        """The calls of the thread in focus, the innermost first."""
        found = self.focused()
        return [] if found is None else list(frames(found[0]))

    def focused(self) -> tuple[Place, int] | None:
        return None if self.focus is None else self.place_of(self.focus.lane)

    def view(self, place: Place, level: int = 0) -> View:
        """The variables of all threads of a fragment at a level of their calls."""
        chosen = list(frames(place))[level]
        return View(self.code(place.f), chosen, np.arange(place.f.lanes.count))

    def focus_view(self) -> View | None:
        """The variables of the thread in focus, in its selected frame; None if nothing is stopped or it has ended."""
        found = self.focused()
        if found is None or self.focus is None:
            return None
        place, position = found
        chosen = list(frames(place))[self.focus.level]
        return View(self.code(place.f), chosen, np.array([position]))

    def needed_view(self) -> View:
        """The same as `focus_view`. Raises ExpressionError if no thread is stopped."""
        view = self.focus_view()
        if view is None:
            raise ExpressionError("no thread is stopped: set a breakpoint and let the script run")
        return view

    def select(self, block: Index3, thread: Index3) -> None:
        """Move the focus. Raises ExpressionError if the thread does not exist or has ended."""
        if self.stop is None:
            raise ExpressionError("no kernel is stopped")
        batch = self.stop.place.f.batch
        rows = np.flatnonzero((batch.indices == np.array(block)).all(axis=1))
        if not len(rows):
            raise ExpressionError(
                f"block {index(block)} is not running: it has not started, has ended, or is not in the grid"
            )
        x, y, z = batch.geometry.dims
        if any(not 0 <= i < n for i, n in zip(thread, (x, y, z), strict=True)):
            raise ExpressionError(f"thread {index(thread)} is not in the block of {x}x{y}x{z} threads")
        lane = int(rows[0]) * batch.geometry.threads + thread[0] + x * (thread[1] + y * thread[2])
        if self.place_of(lane) is None:
            raise ExpressionError(f"thread {index(thread)} of block {index(block)} has ended")
        self.focus = Focus(batch, lane)

    def step(self, kind: str, count: int = 1) -> None:
        """Let the thread in focus step once the kernel continues. Raises ExpressionError if nothing is stopped."""
        found = self.focused()
        if found is None or self.focus is None:
            raise ExpressionError("no thread is stopped")
        place, _ = found
        lines, function = self.lines(place), None
        if kind == "finish":
            level = self.focus.level
            outer = list(frames(place))[level]
            lines = lines[: self._virtual_depth(place, outer)]
            function = self.code(place.f).debug_function(outer.frame.program)
            if len(lines) < 2:
                raise ExpressionError("the kernel itself has no caller; use continue")
        depth = len(place.f.frames)
        self.stepping = Stepping(kind, place.f.batch, self.focus.lane, lines, depth, count, function)

    def _virtual_depth(self, place: Place, until: CallFrame) -> int:
        depth = 0
        for frame in reversed(list(frames(place))):
            depth += max(1, len(list(chain(frame.instruction.location))))
            if frame.depth == until.depth:
                break
        return depth

    def lines(self, place: Place) -> Lines:
        """The source lines of a fragment's calls, the outermost first, inlined calls too."""
        found: list[tuple[str, int, int]] = []
        for frame in reversed(list(frames(place))):
            name = frame.frame.program.name
            inner = [(name, one.file, one.line) for one in chain(frame.instruction.location)]
            found += reversed(inner or [(name, 0, 0)])
        return tuple(found)


class Spot:
    """The hook of one instruction: lets the session look at the threads that arrive there."""

    __slots__ = ("code", "entry", "instruction", "key", "leaves", "session")
    ends = False

    def __init__(
        self, session: Session, code: Code, instruction: Instruction, entry: Entry | None, leaves: bool
    ) -> None:
        self.session, self.code, self.instruction, self.entry = session, code, instruction, entry
        self.key = id(instruction)
        self.leaves = leaves

    def __call__(self, f: Fragment, r: Registers) -> None:
        session = self.session
        if self.key in session._armed or session.busy:
            session.arrive(self, f)

    def after(self, f: Fragment) -> None:
        """Never called: ``ends`` is False."""
