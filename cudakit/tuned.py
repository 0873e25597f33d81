"""The best configurations that tuning found, on disk: one JSON file each, in the folder `tuned` of the disk cache.

A choice (a variant and values of its constants) is kept per family, chip, shapes and dtypes of the arrays, and options.
It is valid while its fingerprint is unchanged: the variant's source and every header it includes (except CUDA's), the
compiler, and the architecture. A file is written under another name and renamed, so that several tuners may write at
once; the last to finish wins. A file that is damaged, of another program or of another user is ignored, with a
CacheWarning.

CUDAKIT_TUNED=ignore makes every lookup return nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit.compile import compiler, headers, ownership
from cudakit.compile import folder as cache
from cudakit.compile.cache import CacheWarning
from cudakit.compile.ownership import NotOurs

if TYPE_CHECKING:
    from cudakit.device import Device

SCHEMA = 1
FOLDER = "tuned"
# A choice for another shape is used if each extent is at most this many times larger or smaller.
NEAR = 2.0

_lock = threading.Lock()
_read: dict[str, tuple[int, list[tuple[Situation, Choice]]]] = {}
_fingerprints: dict[tuple[str, str], tuple[dict[str, tuple[int, int]], str]] = {}
_said: set[str] = set()


@dataclass(frozen=True)
class Situation:
    """The kind of call that a choice is for. chip: as `chip_of` returns it. arrays: shape and dtype of each input, then
    of each output. options: the family's, as text."""

    family: str
    chip: str
    arrays: tuple[tuple[tuple[int, ...], str], ...]
    options: str = ""

    def distance(self, other: Situation) -> float:
        """The distance to another situation's shapes: the sum of |log2| of the extents' ratios, 0 for the same shapes;
        infinite if anything except extents differs, or if an extent differs by more than NEAR."""
        if (self.family, self.chip, self.options) != (other.family, other.chip, other.options):
            return math.inf
        if len(self.arrays) != len(other.arrays):
            return math.inf
        total = 0.0
        for (shape, dtype), (theirs, other_dtype) in zip(self.arrays, other.arrays, strict=True):
            if dtype != other_dtype or len(shape) != len(theirs):
                return math.inf
            for mine, extent in zip(shape, theirs, strict=True):
                if mine != extent:
                    ratio = math.inf if not (mine and extent) else abs(math.log2(mine / extent))
                    total += ratio if ratio <= math.log2(NEAR) else math.inf
        return total


@dataclass(frozen=True)
class Choice:
    """A variant and its configuration, found best in a situation.

    cost: milliseconds, or slots of the simulated device's busiest unit, as `unit` names. usual: the cost of the variant
    that "auto" picks without this choice, measured in the same run; None if it was not measured. when: UTC, ISO 8601.
    """

    variant: str
    configuration: Mapping[str, Any]
    fingerprint: str
    cost: float
    unit: str
    usual: float | None = None
    when: str = ""


def chip_of(device: Device) -> str:
    """The chip that a choice is for: kind, name, architecture and number of multiprocessors (a partition of a GPU has
    fewer). A simulated chip differs from the GPU it simulates."""
    return f"{device.kind} {device.name} {device.arch} {device.multiprocessors}"


def fingerprint(source: str | os.PathLike[str], arch: str) -> str:
    """The digest (hex) of the contents of a source and its headers, and of the compiler.

    source: a `.cu` file, searched as by `Device.compile`. Files are read again if one of them has changed. Raises
    FileNotFoundError, or CompileError if the source is not UTF-8.
    """
    file = headers.find_source(source)
    known = _fingerprints.get((str(file), arch))
    if known is not None and known[0] == _stamps(known[0]):
        return known[1]
    stamps = _stamps([str(file)])
    request = compiler.request(headers.read_source(file), name=str(file), arch=arch)
    included = headers.scan(request.source, request.name, request.directories)
    parts = [str(SCHEMA), compiler.nvrtc_identity(), arch, request.source, *included.unknown]
    parts.append(headers.cuda_version() if included.uses_cuda else "")
    digest = hashlib.sha256()
    for part in (*(part.encode() for part in parts), *included.files.values()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    _fingerprints[str(file), arch] = {**stamps, **_stamps(included.files)}, digest.hexdigest()
    return digest.hexdigest()


def _stamps(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Modification time and size of files, to detect changes; zeros for missing files."""
    found = {}
    for path in paths:
        try:
            state = os.stat(path)
            found[path] = state.st_mtime_ns, state.st_size
        except OSError:
            found[path] = 0, 0
    return found


def plain(value: Any) -> Any:
    """A configuration's value in JSON's types: sequences become lists."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def folder() -> Path | None:
    """The folder of all choices, which need not exist; None if the disk cache is not used."""
    base = cache.directory()
    return None if base is None or cache.why_bypassed(base) else base / FOLDER


def keep(situation: Situation, choice: Choice, home: str = "") -> Path | None:
    """Write a choice to disk, replacing an earlier one for the same situation. Returns the file, or None, with a
    CacheWarning, if it cannot be written.

    home: distinguishes families with the same name, such as the folder of their sources.
    """
    within = folder()
    if within is None:
        _warn(f"a tuned configuration is not kept: {cache.why_bypassed(cache.directory())}")
        return None
    when = choice.when or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry: dict[str, Any] = {
        "schema": SCHEMA,
        **asdict(situation),
        **asdict(choice),
        "configuration": {name: plain(value) for name, value in choice.configuration.items()},
        "when": when,
    }
    entry["digest"] = _digest_of(entry)
    key = hashlib.sha256(json.dumps([asdict(situation), home]).encode()).hexdigest()[:32]
    path = within / _slug(situation.family) / f"{key}.json"
    aside = path.with_name(f".{uuid.uuid4().hex}")
    try:
        _make(within.parent, within, path.parent)
        ownership.write(aside, json.dumps(entry, indent=1).encode())
        os.replace(aside, path)
        with _lock:
            _read.pop(str(path.parent), None)  # its time stamp may be too coarse to show the change
    except (OSError, NotOurs) as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        _warn(f"the tuned configuration {path} could not be written ({error})")
        return None
    return path


def has_any(family: str) -> bool:
    """Whether any choice is kept for a family; cheap enough for every new kind of call."""
    return os.environ.get("CUDAKIT_TUNED", "") != "ignore" and bool(_entries(family))


def choices(situation: Situation, nearby: bool = True) -> Iterator[Choice]:
    """The choices kept for a situation, then, if `nearby`, those of other shapes, nearest first; of equally near ones,
    the latest first."""
    if os.environ.get("CUDAKIT_TUNED", "") == "ignore":
        return
    kept = _entries(situation.family)
    if not kept:
        return
    ranked = [(situation.distance(other), other, choice) for other, choice in kept]
    ranked = [each for each in ranked if each[0] == 0 or (nearby and math.isfinite(each[0]))]
    ranked.sort(key=lambda each: each[2].when, reverse=True)
    ranked.sort(key=lambda each: each[0])
    for _, _, choice in ranked:
        yield choice


def forget(family: str, chip: str | None = None) -> int:
    """Remove the choices kept for a family: those for `chip`, or all if it is None. Returns how many."""
    within = folder()
    removed = 0
    for path in _files(within / _slug(family)) if within is not None else ():
        entry = _parsed(path)
        if entry is not None and entry[0].family == family and chip in (None, entry[0].chip):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _make(*folders: Path) -> None:
    """Create folders that only this user can write to. Raises NotOurs if others may write to one."""
    for each in folders:
        Path(os.path.realpath(each)).mkdir(mode=0o700, parents=True, exist_ok=True)
        ownership.check(each, each.stat())


def _entries(family: str) -> list[tuple[Situation, Choice]]:
    """All choices kept for a family. An unchanged folder is read once per process."""
    within = folder()
    if within is None:
        return []
    place = within / _slug(family)
    try:
        state = place.stat()
        ownership.check(within, within.stat())
        ownership.check(place, state)
    except OSError:
        return []
    except NotOurs as error:
        _warn(f"tuned configurations are not used: {error}")
        return []
    with _lock:
        known = _read.get(str(place))
    if known is not None and known[0] == state.st_mtime_ns:
        return known[1]
    found = [entry for path in _files(place) if (entry := _parsed(path)) is not None and entry[0].family == family]
    with _lock:
        _read[str(place)] = (state.st_mtime_ns, found)
    return found


def _files(place: Path) -> Sequence[Path]:
    return sorted(place.glob("*.json")) if place.is_dir() else ()


def _parsed(path: Path) -> tuple[Situation, Choice] | None:
    """A file's situation and choice; None, with a CacheWarning, if it is damaged, of another program or another
    user's."""
    try:
        entry = json.loads(ownership.read(path))
        if entry["schema"] != SCHEMA:
            return None  # written by another release
        if entry.pop("digest") != _digest_of(entry):
            raise ValueError("it was changed after it was written")
        arrays = tuple((tuple(map(int, shape)), str(dtype)) for shape, dtype in entry["arrays"])
        situation = Situation(entry["family"], entry["chip"], arrays, entry["options"])
        names = ("variant", "configuration", "fingerprint", "cost", "unit", "usual", "when")
        choice = Choice(**{name: entry[name] for name in names})
        if not isinstance(choice.configuration, dict) or not isinstance(choice.when, str):
            raise ValueError("its configuration is not an object")
    except FileNotFoundError:
        return None  # another process has replaced it
    except (NotOurs, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _warn(f"the tuned configuration {path} is not used ({type(error).__name__}: {error}); remove it or tune again")
        return None
    return situation, choice


def _digest_of(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _slug(family: str) -> str:
    """A folder name for a family: readable and unique."""
    word = re.sub(r"[^\w-]", "_", family)[:64]
    return word if word == family else f"{word}.{hashlib.sha256(family.encode()).hexdigest()[:8]}"


def _warn(message: str) -> None:
    """Issue each warning once per process."""
    with _lock:
        if message in _said:
            return
        _said.add(message)
    warnings.warn("cudakit: " + message, CacheWarning, stacklevel=3)
