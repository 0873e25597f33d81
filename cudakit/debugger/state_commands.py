"""Commands that move the focus and show the state: cuda, backtrace, frame, list, disassemble and info."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from cudakit import names
from cudakit.debugger import texts, types
from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.session import Focus, Session
from cudakit.debugger.state import View, frames
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.words import Command, count_of, index, parse_index

_INFO = (
    "breakpoints", "threads", "warps", "blocks", "kernels", "locals", "args", "registers", "barriers", "shared", "line",
    "frame", "source", "display",
)  # fmt: skip


class StateCommands:
    """The commands of one session; `write` prints their output, `displays` are those of `display`."""

    def __init__(self, session: Session, write: Callable[[str], None], displays: Mapping[int, str]) -> None:
        self.session = session
        self._write = write
        self._displays = displays
        # the file and the line at which list continues
        self.listed: tuple[str, int] | None = None

    def commands(self) -> list[Command]:
        return [
            Command(("info", "i"), " | ".join(_INFO), "show the state", self._info),
            Command(("cuda",), "[block (x,y,z)] [thread (x,y,z)] [warp N] [lane N]", "move the focus", self._cuda),
            Command(("thread",), "(x,y,z)", "move the focus in the block", lambda text: self._cuda(f"thread {text}")),
            Command(("block",), "(x,y,z)", "move the focus to a block", lambda text: self._cuda(f"block {text}")),
            Command(("backtrace", "bt", "where"), "", "show the calls of the thread in focus", self._backtrace),
            Command(("frame", "f"), "[N]", "show or select a call", self._frame),
            Command(("up",), "[N]", "select the caller", lambda text: self._move(count_of(text))),
            Command(("down",), "[N]", "select the called function", lambda text: self._move(-count_of(text))),
            Command(("list", "l"), "[LINE | FILE:LINE]", "show the source", self._list),
            Command(("disassemble", "disas"), "", "show the PTX of the current line", self._disassemble),
        ]

    # ---- the focus ----

    def _cuda(self, text: str) -> bool:
        focus = self.session.focus
        if focus is None or self.session.stop is None:
            raise ExpressionError("no kernel is stopped")
        block, thread = texts.thread_of(focus.batch, focus.lane)
        geometry = focus.batch.geometry
        linear = focus.lane % geometry.threads
        words = list(re.finditer(r"(kernel|grid|block|thread|warp|lane)\s*(\([^)]*\)|[\d,]+)?", text))
        rest = re.sub(r"(kernel|grid|block|thread|warp|lane)\s*(\([^)]*\)|[\d,]+)?", "", text).strip()
        if rest or (text and not words):
            raise ExpressionError("the focus is set by: cuda block (x,y,z) thread (x,y,z), or cuda warp N lane N")
        changes = False
        for word in words:
            if word[2] is None or word[1] in ("kernel", "grid"):
                continue
            changes = True
            if word[1] == "block":
                block = parse_index(word[2], "block")
                thread = thread if "thread" in text else (0, 0, 0)
            elif word[1] == "thread":
                thread = parse_index(word[2], "thread")
            elif word[1] == "warp":
                linear = 32 * count_of(word[2])
                thread = geometry.thread_index(linear)
            else:
                linear = linear // 32 * 32 + count_of(word[2])
                thread = geometry.thread_index(linear)
        if changes:
            self.session.select(block, thread)
            self.show_frame()
        else:
            self._write(texts.focus_text(self.session, self.session.stop))
        return False

    def _backtrace(self, text: str) -> bool:
        found = self.session.focused()
        if found is None:
            raise ExpressionError("no thread is stopped")
        place, position = found
        code = self.session.code(place.f)
        for number, frame in enumerate(frames(place)):
            view = View(code, frame, np.array([position]))
            self._write(texts.frame_text(code, view, number))
            for line in texts.inlined(code, frame):
                self._write(line)
        return False

    def _frame(self, text: str) -> bool:
        if text:
            self._select(count_of(text, 0))
        self.show_frame()
        return False

    def _move(self, by: int) -> bool:
        if self.session.focus is None:
            raise ExpressionError("no thread is stopped")
        self._select(self.session.focus.level + by)
        self.show_frame()
        return False

    def _select(self, level: int) -> None:
        focus = self.session.focus
        count = len(self.session.frames())
        if focus is None or not count:
            raise ExpressionError("no thread is stopped")
        if not 0 <= level < count:
            raise ExpressionError(f"no frame {level}: the thread has frames 0 to {count - 1}")
        self.session.focus = Focus(focus.batch, focus.lane, level)

    def show_frame(self) -> None:
        view = self.session.needed_view()
        level = self.session.focus.level if self.session.focus is not None else 0
        self._write(texts.frame_text(view.code, view, level))
        file, line = texts.location(view.code, view.frame.instruction)
        self._write(texts.source_line(view.code, file, line))
        if self.session.stop is not None:
            self._write(texts.focus_text(self.session, self.session.stop))

    # ---- source ----

    def _list(self, text: str) -> bool:
        view = self.session.needed_view()
        file, line = texts.location(view.code, view.frame.instruction)
        if text:
            name, _, number = text.rpartition(":")
            if name:
                numbers = view.code.files(name)
                if not numbers:
                    raise ExpressionError(f"the kernel has no source file {name!r}")
                file = view.code.file(numbers[0])
            first = max(1, count_of(number) - 5)
        elif self.listed is not None and self.listed[0] == file:
            first = self.listed[1]
        else:
            first = max(1, line - 5)
        lines = view.code.sources.lines(file)
        if lines is None:
            raise ExpressionError(f"the source {file} is not available")
        for shown in range(first, min(first + 10, len(lines) + 1)):
            self._write(f"{shown}{' =>' if shown == line else ''}\t{lines[shown - 1]}")
        self.listed = file, first + 10
        return False

    def _disassemble(self, text: str) -> bool:
        view = self.session.needed_view()
        here = view.frame.instruction
        instructions = view.program.function.instructions
        where = texts.location(view.code, here)
        for number, one in enumerate(instructions):
            if texts.location(view.code, one) == where:
                mark = "=>" if one is here else "  "
                self._write(f"{mark} {number:5}  {one.text.strip()}")
        return False

    # ---- info ----

    def _info(self, text: str) -> bool:
        words = text.removeprefix("cuda ").split()
        if not words:
            raise ExpressionError(f"info needs one of {', '.join(_INFO)}")
        chosen = [name for name in _INFO if name == words[0]] or [n for n in _INFO if n.startswith(words[0])]
        if not chosen:
            raise ExpressionError(f"info has no {words[0]!r}{names.hint(words[0], _INFO)}: {', '.join(_INFO)}")
        self._write("\n".join(getattr(self, f"_info_{chosen[0]}")(words[1:])))
        return False

    def _info_breakpoints(self, words: list[str]) -> list[str]:
        lines = []
        for one in self.session.points:
            state = "" if one.enabled else " (disabled)"
            times = f", stopped {one.hits} time{'s' * (one.hits != 1)}"
            pending = ", no kernel with this code yet" if isinstance(one, Breakpoint) and not one.resolved else ""
            lines.append(f"{one}{state}{times}{pending}")
        return lines or ["No breakpoints."]

    def _info_threads(self, words: list[str]) -> list[str]:
        self.session.needed_view()
        return texts.thread_table(self.session)

    def _info_warps(self, words: list[str]) -> list[str]:
        self.session.needed_view()
        return texts.warp_table(self.session)

    def _info_blocks(self, words: list[str]) -> list[str]:
        return texts.block_table(self.session)

    def _info_kernels(self, words: list[str]) -> list[str]:
        run = self.session.run
        if run is None:
            return ["No kernel is stopped."]
        config = run.config
        name = self.session.code(self.session.needed_view().f).title(self.session.kernel.program)
        grid, block = index(config.grid), index(config.block)
        shared = f"{config.shared_bytes} bytes of shared memory per block"
        return [f"launch {self.session.launches}: {name}, grid {grid}, block {block}, {shared}"]

    def _info_locals(self, words: list[str]) -> list[str]:
        return self._variables(parameters=False) or ["No locals."]

    def _info_args(self, words: list[str]) -> list[str]:
        return self._variables(parameters=True) or ["No arguments."]

    def _variables(self, *, parameters: bool) -> list[str]:
        view = self.session.needed_view()
        if not view.code.debug:
            raise ExpressionError(view.missing("").replace("no variable ''", "no variables"))
        return [f"{v.name} = {texts.variable_text(view, v)}" for v in view.locals(parameters=parameters)]

    def _info_registers(self, words: list[str]) -> list[str]:
        view = self.session.needed_view()
        wanted = {f"%{word.lstrip('%$')}" for word in words}
        lines = []
        for name, kind, held in view.registers():
            if not wanted or name in wanted:
                value = held[0]
                plain = types.number_text(value)
                raw = "" if value.dtype == np.bool_ else f"  {types.number_text(value, form='x')}"
                lines.append(f"{name:<8} {kind:<5} {plain}{raw}")
        if not lines:
            raise ExpressionError(f"no register {', '.join(sorted(wanted))} in {view.code.title(view.program)}")
        return lines

    def _info_barriers(self, words: list[str]) -> list[str]:
        return texts.barrier_lines(self.session)

    def _info_shared(self, words: list[str]) -> list[str]:
        return texts.shared_lines(self.session)

    def _info_line(self, words: list[str]) -> list[str]:
        view = self.session.needed_view()
        file, line = texts.location(view.code, view.frame.instruction)
        return [f"{file}:{line}, PTX line {view.frame.instruction.line}: {view.frame.instruction.text.strip()}"]

    def _info_frame(self, words: list[str]) -> list[str]:
        view = self.session.needed_view()
        level = self.session.focus.level if self.session.focus is not None else 0
        return [texts.frame_text(view.code, view, level), *texts.inlined(view.code, view.frame)]

    def _info_source(self, words: list[str]) -> list[str]:
        return list(self.session.needed_view().code.sources.files.values())

    def _info_display(self, words: list[str]) -> list[str]:
        return [f"{number}: {text}" for number, text in self._displays.items()] or ["No displays."]
