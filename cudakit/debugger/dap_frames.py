"""Threads, frames and sources in the Debug Adapter Protocol.

A kernel may have thousands of threads. The client's list has the thread in focus, and one entry per range of threads
that are at one place; an entry stands for the first thread of its range. A thread's id follows from its place in the
grid, so that it is the same at each stop.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudakit.debugger import texts
from cudakit.debugger.code import Code, chain
from cudakit.debugger.dap_messages import Body, RequestError
from cudakit.debugger.session import Session
from cudakit.debugger.state import CallFrame, Place, View, frames
from cudakit.debugger.types import Array
from cudakit.debugger.words import index
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.report import plain_name

# the id of the script's own thread, which is listed while no kernel is stopped
SCRIPT = 1
_FIRST = 2
_MOST_ENTRIES = 64


@dataclass(frozen=True)
class Frame:
    """A frame that the client knows: a lane, and the level of its calls, 0 for the innermost."""

    lane: int
    level: int


class Frames:
    """The frames and sources of a session, by the ids that the client knows. `first_line` is the client's number of a
    file's first line."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frames: dict[int, Frame] = {}
        self._last = 0
        self._sources: list[tuple[Code, str]] = []
        self.first_line = 1

    def clear(self) -> None:
        """Forget the frames of a stop."""
        self._frames.clear()

    # ---- threads ----

    def id_of(self, lane: int) -> int:
        """The id of a lane of the stopped batch."""
        batch = self._batch()
        return _FIRST + batch.first_block * batch.geometry.threads + lane

    def lane_of(self, number: int) -> int:
        """The lane of the thread with an id."""
        batch = self._batch()
        lane = number - _FIRST - batch.first_block * batch.geometry.threads
        if not 0 <= lane < batch.geometry.lanes:
            raise RequestError(f"there is no thread with the id {number}")
        return lane

    def _batch(self) -> Batch:
        if self._session.stop is None:
            raise RequestError("no kernel is stopped", "notStopped")
        return self._session.stop.place.f.batch

    def threads(self) -> list[Body]:
        """The entries of the list of threads, the thread in focus first."""
        focus = self._session.focus
        lane = -1 if focus is None else focus.lane
        entries = [
            (lane in part, int(part[0]), self._range_text(place, part))
            for place in self._session.places()
            for part in self._parts(place, lane)
        ]
        entries.sort(key=lambda one: (not one[0], one[1]))
        left = len(entries) - _MOST_ENTRIES
        if left > 0:
            first = entries[_MOST_ENTRIES - 1][1]
            entries[_MOST_ENTRIES - 1 :] = [(False, first, f"{left + 1} more ranges: see `info threads`")]
        return [{"id": self.id_of(first), "name": name} for _, first, name in entries]

    @staticmethod
    def _parts(place: Place, lane: int) -> Iterator[Array]:
        """The lanes of a place in ranges; the one in focus is a range of its own."""
        lanes = place.f.lanes.lanes
        if place.holds(lane) is not None:
            yield np.array([lane])
            lanes = lanes[lanes != lane]
        if len(lanes):
            yield from texts.ranges(lanes)

    def _range_text(self, place: Place, part: Array) -> str:
        batch = place.f.batch
        first, last = (texts.thread_of(batch, int(part[end])) for end in (0, -1))
        if len(part) == 1:
            who = f"block {index(first[0])} thread {index(first[1])}"
        elif first[0] == last[0]:
            who = f"block {index(first[0])} threads {index(first[1])} to {index(last[1])}"
        else:
            ends = (f"{index(block)} thread {index(thread)}" for block, thread in (first, last))
            who = f"block {' to block '.join(ends)}"
        gaps = f", {len(part)} of them" if len(part) <= int(part[-1]) - int(part[0]) else ""
        file, line = texts.location(self._session.code(place.f), place.instruction)
        waits = f", waits for {place.waits}" if place.waits else ""
        return f"{who}{gaps}: {os.path.basename(file)}:{line}{waits}"

    # ---- frames ----

    def stack(self, thread: int) -> list[Body]:
        """The frames of a thread, the innermost first, and last the line of Python that launched the kernel."""
        lane = self.lane_of(thread)
        found = self._session.place_of(lane)
        if found is None:
            raise RequestError("this thread has ended")
        place, _ = found
        listed: list[Body] = []
        for level, frame in enumerate(frames(place)):
            listed += self._levels(lane, level, frame)
        return listed + self._launch()

    def _levels(self, lane: int, level: int, frame: CallFrame) -> Iterator[Body]:
        """A frame, and those of the calls that are inlined into it, the innermost first."""
        code = self._session.code(frame.f)
        title = code.title(frame.frame.program)
        places = [(code.file(one.file), one.line, one.function) for one in chain(frame.instruction.location)]
        for file, line, inlined in places or [("", 0, None)]:
            name = title if inlined is None else f"{plain_name(inlined)} (inlined)"
            body = self._frame(Frame(lane, level), name, self.source(code, file) if file else None, line)
            yield body | {"instructionPointerReference": instruction_reference(code, frame)}

    def _frame(self, frame: Frame, name: str, source: Body | None, line: int) -> Body:
        self._last += 1
        self._frames[self._last] = frame
        at = {"line": 0, "column": 0} if source is None else {"line": line + self.first_line - 1, "column": 1}
        return {"id": self._last, "name": name, **at} | ({} if source is None else {"source": source})

    def _launch(self) -> list[Body]:
        run, stop = self._session.run, self._session.stop
        place = getattr(run, "launched", None)
        if place is None or stop is None:
            return []
        kernel = self._session.code(stop.place.f).title(self._session.kernel.program)
        shape = ", ".join(index(dims).replace(",", ", ") for dims in (run.config.grid, run.config.block))
        source = {"name": os.path.basename(place.file), "path": os.path.abspath(place.file)}
        body = self._frame(Frame(-1, -1), f"{kernel}<<<{shape}>>>", source, place.line)
        return [body | {"presentationHint": "subtle"}]

    def frame(self, number: int) -> Frame:
        """The frame with an id. Raises RequestError for frames of an earlier stop."""
        found = self._frames.get(number)
        if found is None:
            raise RequestError("this frame is from an earlier stop", "notStopped")
        return found

    def view(self, frame: Frame) -> View | None:
        """The variables of a frame; None for the frame of Python. Raises RequestError if its thread has ended."""
        if frame.level < 0:
            return None
        found = self._session.place_of(frame.lane)
        if found is None:
            raise RequestError("this thread has ended")
        place, position = found
        chosen = list(frames(place))[frame.level]
        return View(self._session.code(place.f), chosen, np.array([position]))

    # ---- sources ----

    def source(self, code: Code, file: str) -> Body | None:
        """A source of a kernel: a file, or text that the client can request; None if it is not available."""
        body: Body = {"name": os.path.basename(file), "path": file}
        if os.path.isfile(file):
            return body
        if code.sources.lines(file) is None:
            return None
        if (code, file) not in self._sources:
            self._sources.append((code, file))
        return body | {"sourceReference": self._sources.index((code, file)) + 1}

    def source_text(self, reference: int) -> str:
        """The text of a source that is not a file."""
        if not 0 < reference <= len(self._sources):
            raise RequestError(f"there is no source with the reference {reference}")
        code, file = self._sources[reference - 1]
        return "\n".join(code.sources.lines(file) or ()) + "\n"

    def all_sources(self) -> list[Body]:
        """The sources of all loaded kernels."""
        found = {}
        for code in self._session.codes:
            for file in code.sources.files.values():
                body = self.source(code, file)
                if body is not None:
                    found[file, body.get("sourceReference", 0)] = body
        return list(found.values())


# ---- PTX ----

# a pseudo-address per instruction, as PTX has no addresses: the number of the function and of the instruction
_FUNCTION_SHIFT = 24


def instruction_reference(code: Code, frame: CallFrame) -> str:
    """The pseudo-address of the next instruction of a frame."""
    program = frame.frame.program
    number = list(code.programs).index(program.name) + 1
    return f"{(number << _FUNCTION_SHIFT) + code.number(program, frame.instruction):#x}"


def disassembled(code: Code, reference: str, offset: int, count: int) -> list[Body]:
    """`count` PTX instructions of a function, from `offset` instructions after a pseudo-address on. Those outside of
    the function are marked as invalid, because the client needs exactly so many."""
    try:
        start = int(reference, 0)
    except ValueError:
        raise RequestError(f"{reference!r} is not the address of an instruction") from None
    functions = list(code.programs.values())
    number = start >> _FUNCTION_SHIFT
    if not 0 < number <= len(functions):
        raise RequestError(f"there is no function at {reference}")
    instructions = functions[number - 1].function.instructions
    listed: list[Body] = []
    for address in range(start + offset, start + offset + count):
        index = address - (number << _FUNCTION_SHIFT)
        if not 0 <= index < len(instructions):
            listed.append({"address": f"{max(address, 0):#x}", "instruction": "", "presentationHint": "invalid"})
            continue
        one = instructions[index]
        body: Body = {"address": f"{address:#x}", "instruction": " ".join(one.text.split())}
        file, line = texts.location(code, one)
        if line:
            body |= {"location": {"name": os.path.basename(file), "path": file}, "line": line}
        listed.append(body)
    return listed
