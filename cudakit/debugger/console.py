"""The debugger's command line: reads commands, with the names of cuda-gdb, and prints what they show."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable

from cudakit import names
from cudakit.debugger import texts
from cudakit.debugger.breakpoints import Breakpoint, check_condition, split_location
from cudakit.debugger.code import Code
from cudakit.debugger.session import Session, Stop
from cudakit.debugger.state_commands import StateCommands
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.value_commands import ValueCommands
from cudakit.debugger.watchpoints import watch
from cudakit.debugger.words import Command, condition_of, count_of, numbers_in

PROMPT = "(cudakit) "


class Quit(SystemExit):
    """The user has ended the session: the script and its kernels are stopped."""


class Console:
    """A frontend of a session that reads commands: first those in `commands`, then the terminal's.

    `read` returns the next line of the user, or None at its end: the session then ends.
    """

    def __init__(
        self,
        commands: Iterable[str] = (),
        read: Callable[[str], str | None] | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.session = Session(self)
        self.given = deque(commands)
        self.read = read if read is not None else _read_line
        self._write = write if write is not None else _write_line
        self.values = ValueCommands(self.session, self._write)
        self.state = StateCommands(self.session, self._write, self.values.displays)
        self.stops = 0
        self._last = ""
        self.running = False
        self._shown: tuple[int, str] | None = None
        listed = [*self._commands(), *self.values.commands(), *self.state.commands()]
        self.commands = {name: one for one in listed for name in one.names}

    # ---- the frontend of the session ----

    def stopped(self, stop: Stop) -> None:
        """Show a stop, and run commands until the kernel continues."""
        self.stops += 1
        sys.stdout.flush()
        self._show_stop(stop)
        commands = stop.breakpoint.commands if stop.breakpoint is not None else []
        for line in commands:
            if self.execute(line):
                return
        self.loop()

    def note(self, text: str) -> None:
        self._write(text)

    def loaded(self, code: Code) -> None:
        pass

    def start(self) -> None:
        """Run commands before the script starts, until `run`."""
        self.loop()
        self.running = True

    def loop(self) -> None:
        """Run commands until one of them continues the kernel or the script. Raises Quit at the end of the input."""
        while True:
            if self.given:
                line = self.given.popleft()
                self._write(f"{PROMPT}{line}")
            else:
                try:
                    found = self.read(PROMPT)
                except KeyboardInterrupt:
                    self._write("(quit ends the script)")
                    continue
                if found is None:
                    raise Quit
                line = found.strip() or self._last
                self._last = line if line.split(" ")[0] in self._repeatable else ""
            if self.execute(line):
                return

    _repeatable = frozenset(
        ("s", "step", "n", "next", "si", "stepi", "ni", "nexti", "c", "continue", "l", "list", "up")
    )

    def execute(self, line: str) -> bool:
        """Run one command; returns whether the kernel continues. Errors are printed."""
        line = line.strip()
        if not line or line.startswith("#"):
            return False
        try:
            match = re.match(r"[A-Za-z_-]+", line)
            if match is None:
                raise ExpressionError(f"no command {line.split()[0]!r}; `help` lists the commands")
            return self._command(match[0]).run(line[match.end() :].strip())
        except ExpressionError as error:
            self._write(f"error: {error}")
        except Exception as error:  # a mistake in the debugger must not end the kernel
            self._write(f"error: {line!r} failed in the debugger: {type(error).__name__}: {error}")
        return False

    def _command(self, word: str) -> Command:
        found = self.commands.get(word)
        if found is not None:
            return found
        fitting = {id(one): one for name, one in self.commands.items() if name.startswith(word)}
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        if fitting:
            raise ExpressionError(f"{word!r} may be {', '.join(sorted(one.names[0] for one in fitting.values()))}")
        raise ExpressionError(f"no command {word!r}{names.hint(word, list(self.commands))}; `help` lists the commands")

    def _commands(self) -> list[Command]:
        return [
            Command(("run", "r"), "", "start the script", self._run),
            Command(("continue", "c", "fg"), "[N]", "continue; skip N-1 stops of this breakpoint", self._continue),
            Command(("break", "b", "br"), "FILE:LINE|LINE|FUNCTION [if CONDITION]", "set a breakpoint", self._break),
            Command(("tbreak", "tb"), "LOCATION [if CONDITION]", "set a breakpoint for one stop", self._tbreak),
            Command(("watch",), "EXPRESSION [if CONDITION]", "stop when a variable or an element changes", self._watch),
            Command(("delete", "d"), "[N...]", "delete breakpoints and watchpoints", self._delete),
            Command(("disable",), "[N...]", "switch breakpoints off", lambda text: self._enable(text, False)),
            Command(("enable",), "[N...]", "switch breakpoints on", lambda text: self._enable(text, True)),
            Command(("condition",), "N [CONDITION]", "change or remove a breakpoint's condition", self._condition),
            Command(("ignore",), "N COUNT", "skip the next COUNT stops of a breakpoint", self._ignore),
            Command(("step", "s"), "[N]", "to the next line, into functions", lambda text: self._step("step", text)),
            Command(("next", "n"), "[N]", "to the next line, over functions", lambda text: self._step("next", text)),
            Command(("stepi", "si"), "[N]", "one PTX instruction", lambda text: self._step("stepi", text)),
            Command(("nexti", "ni"), "[N]", "one PTX instruction, over calls", lambda text: self._step("nexti", text)),
            Command(("finish", "fin"), "", "to the end of the function", lambda text: self._step("finish", "")),
            Command(("until", "u", "advance"), "LOCATION", "continue up to a line or a function", self._until),
            Command(("help", "h"), "[COMMAND]", "show the commands", self._help),
            Command(("quit", "q", "exit", "kill"), "", "end the script", self._quit),
        ]  # fmt: skip

    # ---- running ----

    def _run(self, text: str) -> bool:
        if self.running:
            raise ExpressionError("the script runs already; use continue, or quit and start again")
        return True

    def _continue(self, text: str) -> bool:
        count = count_of(text)
        stop = self.session.stop
        if count > 1 and stop is not None and stop.breakpoint is not None:
            stop.breakpoint.ignore = count - 1
        return True

    def _step(self, kind: str, text: str) -> bool:
        self.session.step(kind, count_of(text))
        view = self.session.focus_view()
        self._shown = None if view is None else (len(view.f.frames), view.program.name)
        return True

    def _until(self, text: str) -> bool:
        if not text:
            raise ExpressionError("until needs a line or a function: until 42")
        view = self.session.needed_view()
        block, thread = view.thread(0)
        one = self._located(text)
        one.block, one.thread, one.until = block, thread, True
        self.session.add(one)
        return True

    def _quit(self, text: str) -> bool:
        raise Quit

    # ---- breakpoints ----

    def _break(self, text: str) -> bool:
        self._add(text, temporary=False)
        return False

    def _tbreak(self, text: str) -> bool:
        self._add(text, temporary=True)
        return False

    def _add(self, text: str, *, temporary: bool) -> None:
        one = self._located(text)
        one.temporary = temporary
        self.add(one)

    def _located(self, text: str) -> Breakpoint:
        """The breakpoint of "k.cu:12 if i == 3". Raises ExpressionError if the text is not a location."""
        location, condition = condition_of(text)
        file, view = "", self.session.focus_view()
        if view is not None:
            file, line = texts.location(view.code, view.frame.instruction)
            location = location or str(line)
        if not location:
            raise ExpressionError("break needs a line or a function: break kernel.cu:12")
        if re.fullmatch(r"[+-]\d+", location) and view is not None:
            location = str(line + int(location))
        if re.fullmatch(r"\d+", location) and not file:
            raise ExpressionError(f"no kernel is stopped, so line {location} needs its file: break FILE.cu:{location}")
        if condition:
            check_condition(condition)
        return Breakpoint(self.session.number(), location, condition, default_file=file)

    def add(self, one: Breakpoint) -> None:
        """Set a breakpoint, and print what it is."""
        self.session.add(one)
        pending = "" if one.resolved else " (set once a kernel with this code is launched)"
        self._write(f"{str(one)[0].upper()}{str(one)[1:]}{pending}")
        line = split_location(one.location)[1]
        if one.resolved and line not in (None, one.line):
            self._write(f"  line {line} has no code: it stops at line {one.line}")

    def _watch(self, text: str) -> bool:
        expression, condition = condition_of(text)
        if condition:
            raise ExpressionError("watch takes no condition: the kernel stops at each change")
        view = self.session.needed_view()
        node = parse(expression, lambda name: view.type(name) is not None)
        one = watch(self.session.number(), expression, node, view.code, view)
        self.session.watchpoints.append(one)
        self._write(f"Watchpoint {one.number}: {expression}, now {one.shown()}")
        return False

    def _delete(self, text: str) -> bool:
        numbers = numbers_in(text.removeprefix("breakpoints"))
        if not numbers:
            numbers = [one.number for one in self.session.points]
        for number in numbers:
            if not self.session.remove(number):
                raise ExpressionError(f"no breakpoint number {number}")
        return False

    def _enable(self, text: str, on: bool) -> bool:
        numbers = numbers_in(text)
        known = {one.number: one for one in self.session.points}
        for number in numbers or known:
            if number not in known:
                raise ExpressionError(f"no breakpoint number {number}")
            known[number].enabled = on
        return False

    def _breakpoint(self, text: str) -> tuple[Breakpoint, str]:
        word, _, rest = text.partition(" ")
        for one in self.session.breakpoints:
            if word == str(one.number):
                return one, rest.strip()
        raise ExpressionError(f"no breakpoint number {word or '(missing)'}")

    def _condition(self, text: str) -> bool:
        one, rest = self._breakpoint(text)
        if rest:
            check_condition(rest)
        one.condition = rest
        self._write(str(one) if rest else f"breakpoint {one.number} has no condition now")
        return False

    def _ignore(self, text: str) -> bool:
        one, rest = self._breakpoint(text)
        one.ignore = count_of(rest, 0)
        self._write(f"The next {one.ignore} stops of breakpoint {one.number} are skipped")
        return False

    def _show_stop(self, stop: Stop) -> None:
        view = self.session.needed_view()
        lines = texts.stop_text(self.session, stop, view)
        if stop.reason == "step" and self._shown != (len(view.f.frames), view.program.name):
            lines.insert(0, texts.frame_text(view.code, view))
        if stop.reason == "step" and self._shown is not None:
            lines = [line for line in lines if not line.startswith("[kernel ")]
        self._shown = None
        self.state.listed = None
        self._write("\n".join(lines))
        self.values.show_displays()

    def _help(self, text: str) -> bool:
        if text:
            chosen = [self._command(text.split()[0])]
        else:
            chosen = list({id(one): one for one in self.commands.values()}.values())
        width = max(len(", ".join(one.names)) for one in chosen)
        for one in chosen:
            self._write(
                f"{', '.join(one.names):<{width}}  {one.purpose}"
                + (f": {one.names[0]} {one.arguments}" if one.arguments else "")
            )
        return False


def _read_line(prompt: str) -> str | None:
    """A line of the terminal, with editing and a history; None at the end of the input."""
    with contextlib.suppress(ImportError):  # Windows
        import readline  # noqa: F401 (input() uses it)
    try:
        return input(prompt)
    except EOFError:
        return None


def _write_line(text: str) -> None:
    print(text, flush=True)
