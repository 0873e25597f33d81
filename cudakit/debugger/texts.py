"""Texts about a stopped kernel: frames, source lines, threads, barriers and shared memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from cudakit.debugger import types, unwritten
from cudakit.debugger.code import Code
from cudakit.debugger.dwarf import InMemory
from cudakit.debugger.expressions import bytes_of, dereferenced
from cudakit.debugger.session import Session, Stop
from cudakit.debugger.state import CallFrame, Place, View, frames
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.types import Array, Pointer
from cudakit.debugger.words import index
from cudakit.sim.checks.shadow import LANES
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.memory import SHARED_START
from cudakit.sim.lockstep.program import CALL, INDIRECT
from cudakit.sim.lockstep.report import Index3
from cudakit.sim.ptx.ir import Instruction

# the most rows for the threads at one place
_MOST_RANGES = 8


def thread_of(batch: Batch, lane: int) -> tuple[Index3, Index3]:
    """The block and the thread index of a lane."""
    block, thread = divmod(lane, batch.geometry.threads)
    return batch.block_index(block), batch.thread_index(thread)


def location(code: Code, instruction: Instruction) -> tuple[str, int]:
    """The source file and line of an instruction: "??" and 0 if they are unknown."""
    where = instruction.location
    return ("??", 0) if where is None else (code.file(where.file), where.line)


def source_line(code: Code, file: str, line: int) -> str:
    """A line of source with its number; the reason if it is not available."""
    lines = code.sources.lines(file)
    if lines is None or not 0 < line <= len(lines):
        return f"{line}\t(the source is not available)"
    return f"{line}\t{lines[line - 1]}"


def value_text(view: View, value: Any, form: str = "") -> str:
    """The text of the first thread's value. A reference shows what it refers to."""
    return value_texts(view, value, form, lambda address: text_at(view, address), depth=0, most=1)[0]


def value_texts(
    view: View,
    value: Any,
    form: str = "",
    characters_at: types.ReadText | None = None,
    depth: int = 1,
    most: int | None = None,
) -> list[str]:
    """The text of a value for each thread, or for the first ones. A reference shows what it refers to."""
    plain = value.type.plain
    if isinstance(plain, Pointer) and plain.reference:
        value = dereferenced(value, view)
    rows = bytes_of(value, view)[:most]
    unset = unwritten.of(value, view)
    return [
        types.show(value.type, row, form, characters_at, depth, None if unset is None else unset[number])
        for number, row in enumerate(rows)
    ]


def text_at(view: View, address: int) -> str:
    """The characters at an address, up to 200; "" if they cannot be read."""
    addresses = np.array([address], np.uint64)
    for size in (types.MOST_SHOWN, 32, 8, 1):
        try:
            data = view.load(addresses, size)[0]
        except ExpressionError:
            continue
        unset = unwritten.in_memory(view, addresses, size)[0] != 0
        known = int(np.argmax(unset)) if unset.any() else size
        return types.quoted(data[:known].tobytes()) if known else ""
    return ""


def variable_text(view: View, variable: Any) -> str:
    """A variable's value, or in angle brackets the reason why it is not available."""
    try:
        return value_text(view, view.value(variable))
    except ExpressionError as error:
        return "<no value here>" if view.held_in(variable) is None else f"<{error}>"


def frame_text(code: Code, view: View, number: int | None = None) -> str:
    """A frame in gdb's form: scale<float, 4> (p=0x1000, i=3) at k.cu:12."""
    frame = view.frame
    file, line = location(code, frame.instruction)
    arguments = ", ".join(f"{v.name}={variable_text(view, v)}" for v in view.locals(parameters=True))
    head = "" if number is None else f"#{number:<3}"
    return f"{head}{code.title(view.program)} ({arguments}) at {file}:{line}"


def inlined(code: Code, frame: CallFrame) -> Iterator[str]:
    """The calls into which a frame's instruction is inlined, the innermost first."""
    where = frame.instruction.location
    while where is not None and where.inlined_at is not None:
        where = where.inlined_at
        yield f"      inlined at {code.file(where.file)}:{where.line}"


def stop_text(session: Session, stop: Stop, view: View) -> list[str]:
    """The lines that announce a stop."""
    code = session.code(stop.place.f)
    lines: list[str] = []
    where = frame_text(code, view)
    if stop.report is not None:
        lines += ["The simulated device reports:", *str(stop.report).splitlines(), ""]
    elif stop.breakpoint is not None:
        kind = "Temporary breakpoint" if stop.breakpoint.temporary else "Breakpoint"
        lines.append(f"\n{kind} {stop.breakpoint.number}, {where}")
    elif stop.changed is not None:
        lines += _changed_text(session, stop, view)
    elif stop.reason == "launch":
        lines.append(f"\nLaunch {session.launches}, {where}")
    else:
        lines += _returned(view, stop)
        if stop.reason == "finish":
            lines.append(where)
    if stop.error:
        lines.append(f"error: {stop.error}")
    file, line = location(code, view.frame.instruction)
    lines.append(source_line(code, file, line))
    lines.append(focus_text(session, stop))
    return lines


def focus_text(session: Session, stop: Stop) -> str:
    """The kernel and the thread in focus, and how many threads have stopped with it."""
    if session.focus is None:
        return ""
    block, thread = thread_of(session.focus.batch, session.focus.lane)
    kernel = session.code(stop.place.f).title(session.kernel.program)
    count = len(stop.lanes)
    others = f"; {count} threads stopped here" if stop.reason == "breakpoint" and count > 1 else ""
    return f"[kernel {kernel}, block {index(block)}, thread {index(thread)}{others}]"


def _changed_text(session: Session, stop: Stop, view: View) -> list[str]:
    changed = stop.changed
    if changed is None:
        return []
    lines = [f"\nWatchpoint {changed.watch.number}: {changed.watch.text}"]
    lines += [f"  old value = {changed.old}", f"  new value = {changed.new}"]
    if stop.writer is not None:
        f, instruction, positions = stop.writer
        code = session.code(f)
        calls = [frame.instruction for frame in frames(Place(f, instruction)) if frame.instruction.location is not None]
        file, line = location(code, calls[0] if calls else instruction)
        if len(positions):
            block, thread = f.lane_place(int(positions[-1]))
            more = f" (and {len(positions) - 1} more threads; the last one wins)" if len(positions) > 1 else ""
            lines.append(f"  written by block {index(block)}, thread {index(thread)}{more} at {file}:{line}")
        else:
            lines.append(f"  by an asynchronous copy, or by the instruction before, at {file}:{line}")
        lines.append(f"  {source_line(code, file, line)}")
    return [*lines, f"now in {frame_text(session.code(stop.place.f), view)}"]


def _returned(view: View, stop: Stop) -> list[str]:
    """The value that a function has returned, after finish."""
    f, function = stop.place.f, stop.returned
    if function is None or not function.returns.size or not 0 < f.block <= len(f.program.blocks):
        return []
    block = f.program.blocks[f.block - 1]
    if block.kind not in (CALL, INDIRECT) or not block.results:
        return []
    data = view.raw_register(block.results[0])[0]
    text = types.show(function.returns, np.ascontiguousarray(data).view(np.uint8)[: function.returns.size])
    return [f"{function.name} returned {text}"]


# ---- threads ----


def ranges(lanes: Array) -> list[Array]:
    """Lanes as ranges without gaps; as one range with gaps if they would be many."""
    parts = np.split(lanes, np.flatnonzero(np.diff(lanes) != 1) + 1)
    return parts if len(parts) <= _MOST_RANGES else [lanes]


def thread_table(session: Session) -> list[str]:
    """The threads of the running blocks, in ranges that are at one place."""
    rows: list[tuple[int, list[str]]] = []
    focus = session.focus
    for place in session.places():
        batch, lanes = place.f.batch, place.f.lanes.lanes
        code = session.code(place.f)
        file, line = location(code, place.instruction)
        for part in ranges(lanes):
            first, last = int(part[0]), int(part[-1])
            (block_a, thread_a), (block_b, thread_b) = thread_of(batch, first), thread_of(batch, last)
            here = focus is not None and focus.batch is batch and focus.lane in part
            state = f"waits for {place.waits}" if place.waits else ""
            if session.stop is not None and place is session.stop.place:
                state = "stopped"
            if len(part) <= last - first:
                state = f"{state}, with gaps" if state else "with gaps"
            cells = [
                "*" if here else " ",
                index(block_a),
                index(thread_a),
                index(block_b),
                index(thread_b),
                str(len(part)),
                f"{os.path.basename(file)}:{line}",
                code.title(place.f.program),
                state,
            ]
            rows.append((first, cells))
    head = ["", "from block", "thread", "to block", "thread", "count", "line", "function", "state"]
    return _columns([head, *(cells for _, cells in sorted(rows))])


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def warp_table(session: Session) -> list[str]:
    """The warps of the block in focus: the lanes that are live, and where they are."""
    focus = session.focus
    if focus is None:
        return ["No kernel is stopped."]
    geometry = focus.batch.geometry
    block = focus.lane // geometry.threads
    rows = [["", "warp", "lanes", "line", "state"]]
    for place in session.places():
        lanes = place.f.lanes
        mine = lanes.lanes[lanes.block == block]
        code = session.code(place.f)
        file, line = location(code, place.instruction)
        for warp in np.unique(geometry.warp[mine]).tolist():
            here = mine[geometry.warp[mine] == warp]
            bits = int(np.bitwise_or.reduce(np.uint64(1) << geometry.laneid[here].astype(np.uint64)))
            mark = "*" if focus.lane in here else " "
            number = warp - block * geometry.warps_per_block
            state = f"waits for {place.waits}" if place.waits else ""
            rows.append([mark, str(number), f"{bits:#010x}", f"{os.path.basename(file)}:{line}", state])
    return _columns([rows[0], *sorted(rows[1:], key=lambda row: (int(row[1]), row[2]))])


def block_table(session: Session) -> list[str]:
    """The blocks that are running, in ranges, and the size of the grid."""
    focus = session.focus
    if focus is None or session.run is None:
        return ["No kernel is stopped."]
    batch = focus.batch
    live = np.flatnonzero(batch.live_blocks > 0)
    names = [index(batch.block_index(int(block))) for block in live]
    shown = ", ".join(names[:12]) + (f", ... {names[-1]}" if len(names) > 12 else "")
    first, count = batch.first_block, batch.geometry.blocks
    total = session.run.config.blocks
    return [
        f"grid of {total} blocks: {first} have ended, {count} run together, {total - first - count} have not started",
        f"live: {shown}",
    ]


# ---- barriers and shared memory ----


def barrier_lines(session: Session) -> list[str]:
    """The barriers at which threads wait, and the mbarriers of the block in focus."""
    focus = session.focus
    if focus is None:
        return ["No kernel is stopped."]
    batch = focus.batch
    lines = []
    for place in session.places():
        if place.waits:
            code = session.code(place.f)
            file, line = location(code, place.instruction)
            first, last = (thread_of(batch, int(place.f.lanes.lanes[end])) for end in (0, -1))
            lines.append(
                f"{place.f.lanes.count} threads, block {index(first[0])} thread {index(first[1])} to block "
                f"{index(last[0])} thread {index(last[1])}, wait at {os.path.basename(file)}:{line} for {place.waits}"
            )
    block = focus.lane // batch.geometry.threads
    mbarriers = batch.asynchrony.mbarriers.at.values() if batch.asynchrony is not None else ()
    for one in mbarriers:
        if one.block == block:
            lines.append(f"mbarrier at byte {one.offset} of shared memory: {one.missing()}, {one.expected} expected")
    return lines or ["No thread waits at a barrier."]


def shared_lines(session: Session) -> list[str]:
    """The shared variables of the block in focus: which bytes are initialised, and who has stored to them last."""
    view = session.focus_view()
    if view is None:
        return ["No kernel is stopped."]
    batch = view.batch
    guard: Any = batch.guard
    if batch.shared is None:
        return ["The kernel has no shared memory."]
    block = int(view.f.lanes.block[view.positions[0]])
    lines = [f"{batch.run.shared_bytes} bytes of shared memory in block {index(batch.block_index(block))}"]
    table = getattr(guard, "shared", None)
    for name, symbol, size in _shared_symbols(view):
        start = batch.run.config.shared_symbols[symbol] - SHARED_START
        if table is None:
            lines.append(
                f"{name}: bytes {start} to {start + size - 1}; what is initialised is not tracked without checks"
            )
            continue
        lines += _stored(batch, block, name, start, size, table, guard)
    return lines


def _shared_symbols(view: View) -> Iterator[tuple[str, str, int]]:
    """The name, the name in PTX and the bytes of each shared variable of the kernel and the functions that it calls."""
    config = view.batch.run.config
    for variables in view.code.shared.values():
        for name, variable in variables.items():
            symbol = next((place.symbol for _, place in variable.places if isinstance(place, InMemory)), name)
            if symbol in config.shared_symbols:
                size = variable.type.size or config.dynamic_shared
                if size:
                    yield name, symbol, size


def _stored(batch: Batch, block: int, name: str, start: int, size: int, table: Any, guard: Any) -> Iterator[str]:
    """The ranges of a variable's bytes that one instruction has stored last, and those that are uninitialised."""
    granule = 1 << table.shift
    first = block * table.granules + start // granule
    words: Array = table.writes.first[first : first + -(-size // granule)]
    events = LANES.event(words)
    count = int((words != 0).sum()) * granule
    yield f"{name}: {min(count, size)} of {size} bytes are initialised"
    cuts = [0, *(np.flatnonzero(np.diff(events)) + 1).tolist(), len(events)]
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        if number == 12:
            yield f"  ... {len(cuts) - 13} more ranges"
            return
        span = f"  bytes {low * granule} to {min(high * granule, size) - 1}"
        if not words[low]:
            yield f"{span}: not initialised"
            continue
        others = (
            guard.writer_of(block * batch.shared.stride + start + low * granule) if batch.shared is not None else ()
        )
        for other in others:
            place = other.places[0] if other.places else None
            at = f" at {os.path.basename(place.file)}:{place.line}" if place is not None else ""
            last = int(LANES.owner(words[high - 1]))
            _, thread = thread_of(batch, last)
            until = f" to {index(thread)}" if other.thread is not None and thread != other.thread else ""
            who = f"thread {index(other.thread)}{until}" if other.thread is not None else "a thread"
            yield f"{span}: {other.access} by {who}{at}"
