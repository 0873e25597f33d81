"""Options that are plain numbers among a kernel's arguments: a call with another number needs no other kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

P = TypeVar("P")


@dataclass(frozen=True)
class Scalar:
    """How a family takes an option that its kernels are only passed.

    field: of the problem, which holds what `read` returns. read(value): the number for a value that the caller gave;
    it raises what the family's `problem` raises. kind(value): whatever of the value choices depend on (variant, launch,
    refusals): for equal kinds they are the same. It does not raise for a value that `read` takes.
    """

    field: str
    read: Callable[[Any], Any]
    kind: Callable[[Any], Any] | None = None


class MarkedFloat(float):
    """A float that knows which option it is, times a constant: arguments of kernels are found again by it."""

    option: str
    factor: float

    def __mul__(self, factor: Any) -> Any:
        return marked(self.option, float(self) * factor, self.factor * factor)

    __rmul__ = __mul__


class MarkedInt(int):
    """The same for an int."""

    option: str
    factor: None = None


def marked(option: str, number: Any, factor: float = 1.0) -> MarkedFloat | MarkedInt:
    """`number` as the value of an option."""
    if isinstance(number, int):
        whole = MarkedInt(number)
        whole.option = option
        return whole
    made = MarkedFloat(number)
    made.option, made.factor = option, factor
    return made


def unmarked(value: Any) -> Any:
    """The plain number of a marked one, for which a message names its type; anything else as it is."""
    return float(value) if isinstance(value, MarkedFloat) else int(value) if isinstance(value, MarkedInt) else value


def mark(problem: P, scalars: Mapping[str, Scalar], options: Mapping[str, Any]) -> P:
    """`problem` with the options' numbers marked; an option that is None is the family's own value, and stays."""
    fields = {
        scalar.field: marked(name, getattr(problem, scalar.field))
        for name, scalar in scalars.items()
        if options.get(name) is not None
    }
    result: Any = replace(problem, **fields) if fields else problem  # type: ignore[type-var]
    return result  # type: ignore[no-any-return]
