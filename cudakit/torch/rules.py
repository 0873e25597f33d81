"""Values computed from an op's arguments: constants, or functions that take the arguments they need by name."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any


class Rule:
    """A constant, or a function of some of the names in `known`. It is called with all values by name.

    Raises ValueError if the function has a required parameter outside `known`; `what` names the rule in the message.
    """

    def __init__(self, op: str, what: str, given: Any, known: Collection[str]) -> None:
        self._given = given
        self._names: tuple[str, ...] | None = None
        if callable(given):
            self._names = _names(op, what, given, known)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        if self._names is None:
            return self._given
        return self._given(**{name: values[name] for name in self._names})


def _names(op: str, what: str, function: Any, known: Collection[str]) -> tuple[str, ...]:
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return tuple(known)
        if name in known:
            names.append(name)
        elif parameter.default is parameter.empty:
            raise ValueError(f"{op}: {what} has the unknown parameter {name}: it may take {', '.join(known)}")
    return tuple(names)
