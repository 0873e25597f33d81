"""Commands that print, show and change values: print, picture, display, x, set and ptype."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cudakit.debugger import tables, texts, types
from cudakit.debugger.expressions import Value, bytes_of, evaluate, numbers_of
from cudakit.debugger.session import Session
from cudakit.debugger.setting import assign
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.words import Command, examined, form_of, numbers_in

_OVER = re.compile(r"(.+)@\s*(warp|block)\s*$", re.DOTALL)


class ValueCommands:
    """The commands of one session; `write` prints their output."""

    def __init__(self, session: Session, write: Callable[[str], None]) -> None:
        self.session = session
        self._write = write
        self.displays: dict[int, str] = {}
        self._history: list[Value] = []

    def commands(self) -> list[Command]:
        return [
            Command(("print", "p", "inspect"), "[/FORMAT] EXPRESSION [@ warp|block]", "print a value", self._print),
            Command(("picture",), "EXPRESSION [@ warp|block]", "draw a number per thread", self._picture),
            Command(("display",), "[/FORMAT] EXPRESSION", "print a value at each stop", self._display),
            Command(("undisplay",), "[N...]", "end displays", self._undisplay),
            Command(("x",), "/COUNT FORMAT SIZE ADDRESS", "show memory: x/8fw p", self._examine),
            Command(("set",), "var VARIABLE = EXPRESSION", "change a variable", self._set),
            Command(("ptype", "whatis"), "EXPRESSION | TYPE", "show a type", self._ptype),
        ]

    def _value(self, text: str, view: View) -> Value:
        view.history = self._history
        return evaluate(parse(text, lambda name: view.type(name) is not None), view)

    def _print(self, text: str) -> bool:
        form, text = form_of(text)
        if (match := _OVER.fullmatch(text)) is not None:
            view = self.session.needed_view()
            batch, lane = view.batch, int(view.f.lanes.lanes[view.positions[0]])
            values = tables.over(self.session, match[1].strip(), tables.lanes_of(batch, lane, match[2]), form)
            self._write("\n".join(tables.table(batch, values)))
            if values.missing:
                self._write(f"-: {values.missing}")
            return False
        view = self.session.needed_view()
        self._write(f"${len(self._history) + 1} = {self.printed(text, view, form)}")
        value = self._value(text, view)
        bytes_of(value, view)
        self._history.append(replace(value, register=""))
        return False

    def printed(self, text: str, view: View, form: str = "") -> str:
        """The text of an expression's value for the first thread of a view."""
        return texts.value_text(view, self._value(text, view), form)

    def _picture(self, text: str) -> bool:
        match = _OVER.fullmatch(text)
        expression, scope = (match[1].strip(), match[2]) if match is not None else (text, "block")
        view = self.session.needed_view()
        lanes = tables.lanes_of(view.batch, int(view.f.lanes.lanes[view.positions[0]]), scope)
        self._write("\n".join(tables.picture(view.batch, tables.over(self.session, expression, lanes))))
        return False

    def _display(self, text: str) -> bool:
        if text:
            self.displays[max(self.displays, default=0) + 1] = text
        if self.session.stop is not None:
            self.show_displays()
        return False

    def _undisplay(self, text: str) -> bool:
        for number in numbers_in(text) or list(self.displays):
            if self.displays.pop(number, None) is None:
                raise ExpressionError(f"no display number {number}")
        return False

    def show_displays(self) -> None:
        view = self.session.focus_view()
        for number, text in self.displays.items() if view is not None else ():
            form, expression = form_of(text)
            try:
                shown = self.printed(expression, view, form) if view is not None else ""
            except ExpressionError as error:
                shown = f"<{error}>"
            self._write(f"{number}: {expression} = {shown}")

    def _examine(self, text: str) -> bool:
        count, letters, expression = examined(text)
        view = self.session.needed_view()
        value = self._value(expression, view)
        address, element = _address_of(value, view)
        form = next((one for one in letters if one in "xduotcfs"), "" if element is not None else "x")
        size = next(({"b": 1, "h": 2, "w": 4, "g": 8}[one] for one in letters if one in "bhwg"), 0)
        if "i" in letters:
            raise ExpressionError("x shows memory, not instructions; disassemble shows the PTX of the line")
        if form == "s":
            self._write(f"{address:#x}:\t{texts.text_at(view, address)}")
            return False
        kind = _examined(element, form, size)
        per_row = max(1, 32 // max(kind.size, 1)) if kind.size <= 8 else 1
        for row in range(0, count, per_row):
            here = range(row, min(row + per_row, count))
            starts = np.array([address + number * kind.size for number in here], np.uint64)
            single = View(view.code, view.frame, np.repeat(view.positions[:1], len(here)))
            cells = "\t".join(texts.value_texts(single, Value(kind, None, starts), "" if form == "f" else form))
            self._write(f"{int(starts[0]):#x}:\t{cells}")
        return False

    def _set(self, text: str) -> bool:
        match = re.fullmatch(r"(?:var(?:iable)?\s+)?(.+?)\s*(?<![=!<>])=(?!=)\s*(.+)", text)
        if match is None:
            raise ExpressionError("set needs a variable and a value: set var i = 3")
        view = self.session.needed_view()
        target, value = self._value(match[1], view), self._value(match[2], view)
        assign(target, numbers_of(value, view), view)
        return False

    def _ptype(self, text: str) -> bool:
        view = self.session.needed_view()
        kind = view.type(text)
        if kind is None:
            kind = self._value(text, view).type
        self._write(f"type = {kind.name}")
        plain = kind.plain
        if isinstance(plain, types.Struct):
            for member in plain.members:
                self._write(f"    {member.type.name} {member.name or '(base)'};  // byte {member.offset}")
        if isinstance(plain, types.Enum):
            self._write("    " + ", ".join(f"{name} = {value}" for value, name in plain.names.items()))
        return False


def _address_of(value: Value, view: View) -> tuple[int, types.CType | None]:
    """The address that x examines: that in a pointer, an array's, or a number; and the type of what is there."""
    plain = value.type.plain
    if isinstance(plain, types.ArrayType) and value.addresses is not None:
        return int(value.addresses[0]), plain.element
    number = int(numbers_of(value, view)[0])
    return number & ((1 << 64) - 1), plain.target if isinstance(plain, types.Pointer) and plain.target.size else None


def _examined(element: types.CType | None, form: str, size: int) -> types.CType:
    """The type of the units that x shows."""
    if form == "f" and size:
        return {2: types.NAMED["__half"], 4: types.FLOAT, 8: types.DOUBLE}.get(size, types.FLOAT)
    if size:
        return types.base("", "signed" if form == "d" else "unsigned", size)
    return element if element is not None else types.FLOAT if form == "f" else types.UINT
