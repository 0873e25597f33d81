"""Read and write result files; check their paths before anything runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cudakit.errors import Refused


def check_destination(flag: str, destination: str | None) -> None:
    """Raise Refused if `destination`, the value of `flag`, is not a writable file; - and None are allowed."""
    if destination is None or destination == "-":
        return
    path = Path(destination)
    if path.is_dir():
        raise Refused(f"{flag} {destination} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise Refused(f"{flag} {destination}: the folder {path.parent} does not exist. Create it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Refused(f"{flag} {destination} is not writable: change its permissions, or name another file")


def finite(value: Any) -> Any:
    """`value` for JSON: numbers that are not finite become null, numpy scalars become Python numbers."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(result: Mapping[str, Any]) -> str:
    """`result` as JSON with one line per entry and per row, so that a diff of a committed file is readable."""
    entries = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(item, allow_nan=False) for item in value) + "\n ]"
        else:
            text = json.dumps(value, allow_nan=False)
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}"


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return a file's text. Raises Refused if it cannot be read, or is not UTF-8. encoding: "utf-8-sig" skips a byte
    order mark."""
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise Refused(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}; save it as UTF-8"
        ) from error
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {reason(error)}") from error


def write_file(destination: str | Path, content: str | bytes) -> None:
    """Write a whole file. Raises Refused if that fails, and leaves no part of a new file."""
    path = Path(destination)
    new = not path.exists()
    try:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        if new:
            with contextlib.suppress(OSError):
                path.unlink()
        raise Refused(f"{path} cannot be written: {reason(error)}") from error


@contextlib.contextmanager
def reading(said: str) -> Iterator[None]:
    """Convert an error in the block, caused by JSON with a missing entry or a wrong type, to Refused with the message
    `said` and the reason."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise Refused(f"{said}: {why}") from error


def reason(error: BaseException) -> str:
    """The reason for an error in a few words: for an OSError, without the error number and the file."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def write_json(result: Mapping[str, Any], destination: str) -> None:
    """Write `result` as JSON to a file, or to stdout for `-`."""
    text = json_text(finite(result))
    if destination == "-":
        sys.stdout.write(text + "\n")
    else:
        write_file(destination, text + "\n")


def load(path: Path) -> Mapping[str, Any]:
    """Read a report or another JSON file. Raises Refused if it does not exist or is not JSON."""
    text = read_text(path)
    try:
        report = json.loads(text)
    except RecursionError as error:
        raise Refused(f"{path} cannot be read as a report: it is nested too deeply") from error
    except ValueError as error:
        raise Refused(f"{path} cannot be read as a report: {error}") from error
    if not isinstance(report, dict):
        raise Refused(f"{path} is not a report: got a {type(report).__name__}, not an object")
    return report


def load_toml(path: Path) -> Mapping[str, Any]:
    """Read a TOML file. Raises Refused if it does not exist or is not TOML."""
    text = read_text(path)
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise Refused(f"{path} cannot be read as TOML: {reason(error)}") from error
    return document
