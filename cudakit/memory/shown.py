"""The repr of a device array: its values as numpy shows them, or its state if they cannot be read now."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.memory import peek
from cudakit.memory.peek import Peeked

_LEAD = "DeviceArray("


def summary(array: Any) -> str:
    """Return one line without values: shape, dtype, device, and the state if it is closed or its device is lost."""
    return _without_values(array, peek.state(array))


def text(array: Any) -> str:
    """Return the repr. Never waits and never raises."""
    try:
        found = _peek(array)
        if isinstance(found, str):
            return _without_values(array, found)
        body = _values(found, _LEAD)
        tail = f"{_facts(array)})"
        width = int(np.get_printoptions()["linewidth"])
        together = len(body.rpartition("\n")[2]) + len(tail) + 2 + (0 if "\n" in body else len(_LEAD))
        return f"{_LEAD}{body},{' ' if together <= width else chr(10) + ' ' * len(_LEAD)}{tail}"
    except Exception:
        # A repr must not fail, whatever state the array is in.
        return object.__repr__(array)


def html(array: Any) -> str:
    """Return the repr as HTML: a line of facts, and the values below it. Never waits and never raises."""
    try:
        found = _peek(array)
        state = f", {found}" if isinstance(found, str) and found else ""
        line = f"<div><b>DeviceArray</b> {escape(_facts(array) + state)}</div>"
        return line if isinstance(found, str) else f"{line}<pre>{escape(_values(found, ''))}</pre>"
    except Exception:
        return f"<code>{escape(object.__repr__(array))}</code>"


def _facts(array: Any) -> str:
    return f"shape={array.shape}, dtype={array.dtype}, device={array.context.spec!r}"


def _without_values(array: Any, state: str) -> str:
    return f"{_LEAD}{_facts(array)}{', ' if state else ''}{state})"


def _peek(array: Any) -> Peeked | str:
    options = np.get_printoptions()
    return peek.peek(array, int(options["threshold"]), int(options["edgeitems"]))


def _values(found: Peeked, prefix: str) -> str:
    options: dict[str, Any] = {"separator": ", ", "prefix": prefix, "suffix": ","}
    options |= {"threshold": 0, "edgeitems": found.edge} if found.edge else {"threshold": sys.maxsize}
    if found.unknown is None:
        return np.array2string(found.values, **options)
    return np.array2string(_marked(found.values, found.unknown), formatter={"all": str}, **options)


def _marked(values: npt.NDArray[Any], unknown: npt.NDArray[np.bool_]) -> npt.NDArray[np.object_]:
    """Return the elements as texts of one width, with "?" for each that is uninitialised."""
    known = values[~unknown]
    texts = []
    if known.size:
        joined = np.array2string(known, separator="\0", threshold=sys.maxsize, max_line_width=sys.maxsize)
        texts = joined[1:-1].split("\0")
        if len(texts) != known.size:
            texts = [str(value) for value in known]
    width = max((len(one) for one in texts), default=1)
    marked = np.full(values.shape, "?".rjust(width), object)
    marked[~unknown] = [one.rjust(width) for one in texts]
    return marked
