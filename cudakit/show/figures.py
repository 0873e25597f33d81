"""Look up one figure of a JSON file by its place: `rows[variant=tree_reduce,shape=8192x8192].gbps .0f`.

A place is keys joined by dots. `[variant=one,shape=8x16]` is the only entry of a list with these values; extents are
written as on the command line, and an absent or empty value as nothing (`mode=`). `[0]` is an entry by its index;
`["dram.sum"]` is a key with dots in it. Places and numbers may be joined by `+ - * /`, with blanks, and are evaluated
from left to right. The last word may be a format, as in Python: `,.0f`, `.1%`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.shapes import shape_text
from cudakit.show.digits import number

_STEP = re.compile(r"\.?(?P<key>\w+)|\[(?P<number>\d+)\]|\[\"(?P<quoted>[^\"]+)\"\]|\[(?P<where>\w+=[^\]]*)\]")
_FORMAT = re.compile(r"[+,]*(?:\.\d+)?[efg%d]")
_OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _same(value: Any, text: str) -> bool:
    if value is None:
        return text == ""
    if isinstance(value, list):
        return shape_text(value) == text
    return str(value) == text


def _only(entries: Any, where: str) -> Any:
    """The only entry with the values in `where`."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise Refused(f"[{where}] is applied to a value that is not a list")
    pairs = [pair.partition("=")[::2] for pair in re.split(r",(?=\w+=)", where)]
    mappings = [entry for entry in entries if isinstance(entry, Mapping)]
    those = [entry for entry in mappings if all(_same(entry.get(key), text) for key, text in pairs)]
    if len(those) != 1:
        raise Refused(f"{len(those) or 'no'} {'entries have' if those else 'entry has'} {where.replace(',', ', ')}")
    return those[0]


def at(document: Any, path: str) -> Any:
    """The value at a place of a JSON document. Raises Refused unless exactly one value matches."""
    value, end = document, 0
    while end < len(path):
        step = _STEP.match(path, end)
        if step is None:
            raise Refused(f"{path} is not a path: {path[end:]!r} is neither .key, [number] nor [key=value]")
        end = step.end()
        key = step["key"] or step["quoted"]
        if key is not None:
            if not isinstance(value, Mapping):
                raise Refused(f"{path[: step.start()]} has no {key!r}: it is not a mapping")
            if key not in value:
                raise Refused(f"{path[: step.start()] or 'it'} has no {key!r}: {', '.join(value)}")
            value = value[key]
        elif step["number"] is not None:
            many = len(value) if isinstance(value, list) else 0
            if int(step["number"]) >= many:
                raise Refused(f"{path[: step.start()] or 'it'} has {many} entries, none with index {step['number']}")
            value = value[int(step["number"])]
        else:
            value = _only(value, step["where"])
    return value


def _number_at(document: Any, path: str) -> Any:
    try:
        return float(path)
    except ValueError:
        pass
    value = at(document, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{path} is {'null' if value is None else repr(value)}, which is not a number")
    return value


def _words(expression: str) -> list[str]:
    """Split at blanks outside brackets: values may have blanks (`[variant=1 stream]`)."""
    return re.findall(r"(?:\[[^\]]*(?:\]|$)|[^\s\[])+", expression)


def written(expression: str, document: Any) -> str:
    """The text of the figure that `expression` names. Raises Refused if it does not exist or is not in that format."""
    *places, last = _words(expression) or [""]
    form = None
    if places and places[-1] not in _OPERATORS and _FORMAT.fullmatch(last):
        form = last
    else:
        places.append(last)
    if not places[0]:
        raise Refused("a figure's definition names no place: write one, such as rows[variant=tree_reduce].gbps")
    if len(places) == 1:
        value = at(document, places[0])
    else:
        operators = places[1::2]
        if len(places) % 2 == 0 or not all(operator in _OPERATORS for operator in operators):
            raise Refused(f"{expression} is not a figure: join places by one of {' '.join(_OPERATORS)}, with blanks")
        value = _number_at(document, places[0])
        for operator, place in zip(operators, places[2::2], strict=True):
            other = _number_at(document, place)
            if operator == "/" and not other:
                raise Refused(f"{expression}: {place} is 0, and cannot be a divisor")
            value = _OPERATORS[operator](value, other)
    if value is None or isinstance(value, Mapping | list):
        raise Refused(f"{expression} is {'null' if value is None else 'no single figure'}")
    if form is None:
        return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    try:
        text = format(int(value) if form.endswith("d") else value, form)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused(f"{expression}: {value!r} cannot be written as {form}") from error
    return text.replace("%", " %")
