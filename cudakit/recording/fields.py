"""Dataclasses from the JSON of a recording, each field checked against its annotation: a file may be damaged, or made
to do harm."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast

MadeType = TypeVar("MadeType")
_SHOWN = 60  # characters of a wrong value
# surrogates alone cannot be printed either
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]|\r(?!\n)")

#: A number of bytes, or an address.
Size = Annotated[int, range(1 << 63)]
#: One extent of a grid, a block or a cluster.
Extent = Annotated[int, range(1, 1 << 31)]
#: A distance in bytes, which may be negative.
Signed = Annotated[int, range(-(1 << 63), 1 << 63)]


def made(kind: type[MadeType], data: Any, where: str) -> MadeType:
    """Return a dataclass with the fields in `data`; lists become tuples. Raises ValueError, whose text begins with
    `where`, if a field is missing, unknown or of a wrong type."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_text(data)}, not an object")
    hints = _hints(cast(Any, kind))
    unknown = set(data) - set(hints)
    if unknown:
        raise ValueError(f"{where} has an unknown field {_text(min(unknown))}")
    needed = [each.name for each in fields(cast(Any, kind)) if _is_needed(each)]
    missing = [name for name in needed if name not in data]
    if missing:
        raise ValueError(f"{where} has no field {missing[0]}")
    return kind(**{name: value(hints[name], one, f"{where}: {name}") for name, one in data.items()})


def value(kind: Any, data: Any, where: str) -> Any:
    """Return one value of an annotated type. Raises ValueError as `made` does."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        found = value(inner[0], data, where)
        if found not in inner[1]:
            raise ValueError(f"{where} is {_text(data)}, not an integer from {inner[1].start} to {inner[1].stop - 1}")
        return found
    if origin in (typing.Union, types.UnionType):  # of a type and None
        return None if data is None else value(inner[0], data, where)
    if origin is tuple and isinstance(data, list):
        kinds = [inner[0]] * len(data) if inner[1:] == (Ellipsis,) else inner
        if len(kinds) != len(data):
            raise ValueError(f"{where} has {len(data)} elements instead of {len(kinds)}")
        pairs = zip(kinds, data, strict=True)
        return tuple(value(one, each, f"{where}[{index}]") for index, (one, each) in enumerate(pairs))
    if origin is dict and isinstance(data, dict):
        return {value(str, key, where): value(inner[1], one, f"{where}[{_text(key)}]") for key, one in data.items()}
    if is_dataclass(kind):
        return made(cast(Any, kind), data, where)
    if origin is not None or type(data) is not kind:  # JSON's true is not an integer
        raise ValueError(f"{where} is {_text(data)}, not {getattr(origin or kind, '__name__', kind)}")
    return printable(data) if kind is str else data


def printable(text: str) -> str:
    """Return a text with its control characters replaced, which a terminal would obey. Line breaks and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _is_needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _text(data: Any) -> str:
    text = printable(repr(data))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
