"""An expression over the threads of a warp or a block, as a table or a picture of characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.debugger import texts, types, unwritten
from cudakit.debugger.expressions import bytes_of, evaluate
from cudakit.debugger.session import Session
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.types import Array, CType
from cudakit.debugger.words import index
from cudakit.sim.lockstep.fragment import Batch

_SHADES = " .:-=+*#%@"
_WIDTH = 100


@dataclass
class OverThreads:
    """A value per thread: `texts` and `numbers` (None for a value that is not a number) by lane of the batch; "-" for
    threads that have ended or have no such value, for the reason `missing`."""

    lanes: Array
    texts: list[str]
    numbers: list[Any]
    type: CType | None
    missing: str


def over(session: Session, text: str, lanes: Array, form: str = "") -> OverThreads:
    """Evaluate an expression for lanes of the stopped batch, each at its own place. Raises ExpressionError if no thread
    has a value."""
    shown = dict.fromkeys(lanes.tolist(), "-")
    numbers: dict[int, Any] = dict.fromkeys(lanes.tolist())
    kind: CType | None = None
    missing = ""
    level = 0 if session.focus is None else session.focus.level
    for place in session.places():
        mine = np.flatnonzero(np.isin(place.f.lanes.lanes, lanes))
        if not len(mine):
            continue
        try:
            view = session.view(place, level if session.stop is not None and place is session.stop.place else 0)
            view = view.subset(np.isin(np.arange(view.count), mine))
            value = evaluate(parse(text, lambda name, view=view: view.type(name) is not None), view)  # type: ignore[misc]
            rows, written = bytes_of(value, view), texts.value_texts(view, value, form)
            undefined = unwritten.of(value, view)
        except ExpressionError as error:
            missing = missing or str(error)
            continue
        kind = value.type
        found = types.numbers(value.type, rows) if types.dtype_of(value.type) is not None else None
        for position, lane in enumerate(place.f.lanes.lanes[mine].tolist()):
            shown[lane] = written[position]
            known = found is not None and (undefined is None or not undefined[position].all())
            numbers[lane] = found[position] if known and found is not None else None
    if kind is None:
        raise ExpressionError(missing or "these threads have ended")
    return OverThreads(lanes, list(shown.values()), list(numbers.values()), kind, missing)


def lanes_of(batch: Batch, lane: int, scope: str) -> Array:
    """The lanes of the warp or the block of a lane."""
    geometry = batch.geometry
    same = geometry.warp == geometry.warp[lane] if scope == "warp" else geometry.block == geometry.block[lane]
    return np.flatnonzero(same)


def table(batch: Batch, values: OverThreads) -> list[str]:
    """Lines with the values in rows of the block's x extent, or of 32 lanes, headed by the thread of each row."""
    geometry = batch.geometry
    x = geometry.dims[0]
    per_row = x if x < len(values.lanes) and geometry.threads > x else 32
    width = max(len(text) for text in values.texts)
    fitting = max(1, (_WIDTH - 18) // (width + 1))
    step = min(per_row, 1 << (fitting.bit_length() - 1))
    lines = []
    for row in range(0, len(values.lanes), per_row):
        end = min(row + per_row, len(values.lanes))
        for start in range(row, end, step):
            lane = int(values.lanes[start])
            label = index(batch.thread_index(lane % geometry.threads))
            cells = " ".join(text.rjust(width) for text in values.texts[start : min(start + step, end)])
            lines.append(f"{label:>16}  {cells}")
    return lines


def picture(batch: Batch, values: OverThreads) -> list[str]:
    """Lines with one character per thread, in rows of the block's x extent: darker for larger numbers. Raises
    ExpressionError if the values are not numbers."""
    known = [float(one) for one in values.numbers if one is not None]
    if not known:
        raise ExpressionError("a picture needs a number per thread")
    finite = [one for one in known if np.isfinite(one)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    x = batch.geometry.dims[0]
    width = x if 1 < x <= _WIDTH and len(values.lanes) > x else 32
    symbols = [_symbol(one, low, high) for one in values.numbers]
    lines = ["".join(symbols[start : start + width]) for start in range(0, len(symbols), width)]
    scale = f"'{_SHADES[0]}' is {low:g}" + (f", '{_SHADES[-1]}' is {high:g}" if high > low else "")
    odd = "".join(
        f", '{mark}' is {name}"
        for mark, name in (("N", "nan"), ("I", "infinite"), ("_", "no value"))
        if mark in set(symbols)
    )
    return [*lines, scale + odd]


def _symbol(number: Any, low: float, high: float) -> str:
    if number is None:
        return "_"
    value = float(number)
    if value != value:
        return "N"
    if not np.isfinite(value):
        return "I"
    share = 0.0 if high == low else (value - low) / (high - low)
    return _SHADES[min(int(share * len(_SHADES)), len(_SHADES) - 1)]
