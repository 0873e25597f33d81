"""Options that are plain numbers in a kernel's arguments: a new value does not need a new kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

P = TypeVar("P")


@dataclass(frozen=True)
class Scalar:
    """An option that is only passed to the kernels, as a number.

    Args:
        field: The problem's field that holds the number.
        read: Converts the caller's value to the number; raises the errors that the family's `problem` raises.
        kind: Returns the part of the value that affects the choice of variant, the launch or the checks. These are the
            same for values of equal kind. It must not raise for a value that `read` accepts.
    """

    field: str
    read: Callable[[Any], Any]
    kind: Callable[[Any], Any] | None = None


class MarkedFloat(float):
    """A float marked with its option, and a factor: identifies the option among a kernel's arguments."""

    option: str
    factor: float

    def __mul__(self, factor: Any) -> Any:
        return marked(self.option, float(self) * factor, self.factor * factor)

    __rmul__ = __mul__


class MarkedInt(int):
    """An int marked with its option."""

    option: str
    factor: None = None


def marked(option: str, number: Any, factor: float = 1.0) -> MarkedFloat | MarkedInt:
    """Return `number` marked as the value of an option."""
    if isinstance(number, int):
        whole = MarkedInt(number)
        whole.option = option
        return whole
    made = MarkedFloat(number)
    made.option, made.factor = option, factor
    return made


def unmarked(value: Any) -> Any:
    """Return the plain number of a marked one, so that messages name its type; other values are returned unchanged."""
    return float(value) if isinstance(value, MarkedFloat) else int(value) if isinstance(value, MarkedInt) else value


def mark(problem: P, scalars: Mapping[str, Scalar], options: Mapping[str, Any]) -> P:
    """Return `problem` with the options' numbers marked. An option that is None is skipped: its value is the family's
    own."""
    fields = {
        scalar.field: marked(name, getattr(problem, scalar.field))
        for name, scalar in scalars.items()
        if options.get(name) is not None
    }
    result: Any = replace(problem, **fields) if fields else problem  # type: ignore[type-var]
    return result  # type: ignore[no-any-return]
