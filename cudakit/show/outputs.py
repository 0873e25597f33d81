"""Files that results are written to: checked before anything runs, and JSON that can be read and compared."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cudakit.errors import Refused


def check_destination(flag: str, destination: str | None) -> None:
    """Raises Refused where `destination`, the value of `flag`, is no file that can be written; - and None are fine."""
    if destination is None or destination == "-":
        return
    path = Path(destination)
    if path.is_dir():
        raise Refused(f"{flag} {destination}: that is a folder. Name a file in it")
    if not path.parent.is_dir():
        raise Refused(f"{flag} {destination}: there is no folder {path.parent}. Make it first, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Refused(f"{flag} {destination}: it may not be written. Change its permissions, or name another file")


def finite(value: Any) -> Any:
    """`value` as JSON can carry it: numbers that are not finite become null, numpy's become Python's."""
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
    """`result` as JSON with a line for each entry and each row, so that a committed one can be read and compared."""
    entries = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(item, allow_nan=False) for item in value) + "\n ]"
        else:
            text = json.dumps(value, allow_nan=False)
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}"


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text. Raises Refused if it cannot be read, or is not UTF-8. encoding: "utf-8-sig" leaves out a byte
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
            path.write_text(content, encoding="utf-8")
    except (OSError, ValueError) as error:
        if new:
            with contextlib.suppress(OSError):
                path.unlink()
        raise Refused(f"{path} cannot be written: {reason(error)}") from error


@contextlib.contextmanager
def reading(said: str) -> Iterator[None]:
    """Refuses JSON that has the form of a report but not its contents: an error in the block is raised as Refused, with
    `said` and the reason."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise Refused(f"{said}: {why}") from error


def reason(error: BaseException) -> str:
    """The reason of an error in a few words: an OSError's without its number and file."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def write_json(result: Mapping[str, Any], destination: str) -> None:
    """Writes `result` to a file, or to stdout for `-`."""
    text = json_text(finite(result))
    if destination == "-":
        sys.stdout.write(text + "\n")
    else:
        write_file(destination, text + "\n")


def load(path: Path) -> Mapping[str, Any]:
    """A report, or another JSON file, read back. Raises Refused if it does not exist or is not JSON."""
    text = read_text(path)
    try:
        report = json.loads(text)
    except RecursionError as error:
        raise Refused(f"{path} cannot be read as a report: it is nested too deeply") from error
    except ValueError as error:
        raise Refused(f"{path} cannot be read as a report: {error}") from error
    if not isinstance(report, dict):
        raise Refused(f"{path} is no report: it is a {type(report).__name__}, not an object")
    return report


def load_toml(path: Path) -> Mapping[str, Any]:
    """A TOML file. Raises Refused if it does not exist or is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = read_text(path)
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise Refused(f"{path} cannot be read as TOML: {reason(error)}") from error
    return document
