"""`ToZarr` at a URL: an array in an object store, which fsspec opens. It has no rename and no lock of its own.

A stored chunk is one object, written in place, whole or not at all. The lock, the job and each finished range are
objects next to the array, under ARRAY.cudakit, that are created only if they do not exist ("exclusive create"). The
array's zarr.json is written last, so that readers find an array only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.journal import expect_same_job
from cudakit.pipeline.ranges import Range, gaps, merged
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied, FileRefused, OutputBusy, explained
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.zarr_arrays import GROUP, METADATA, Place, StoredArray, read_metadata, same_array


class Objects:
    """The objects below a URL.

    place: of the array.
    """

    def __init__(self, place: Place) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(f"{place} needs the package fsspec: pip install 'cudakit[zarr]' fsspec") from error
        self._fs, self.root = url_to_fs(place.url, **(place.options or {}))

    def at(self, key: str) -> str:
        """Return the path of one of the array's objects."""
        return f"{self.root.rstrip('/')}/{key}"

    def create(self, path: str, text: str) -> bool:
        """Create an object; return False if it exists."""
        try:
            self._fs.pipe_file(path, text.encode(), mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, objects: dict[str, Any]) -> None:
        """Write objects."""
        self._fs.pipe({path: bytes(data) for path, data in objects.items()})

    def get(self, path: str) -> bytes | None:
        """Return an object's contents; None if it does not exist."""
        try:
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError:
            return None
        return data

    def below(self, path: str) -> dict[str, int]:
        """Return the sizes of the objects below a path, by their paths from there."""
        self._fs.invalidate_cache()
        found = self._fs.find(path, detail=True)
        return {
            name[name.index(path.strip("/")) + len(path.strip("/")) + 1 :]: info["size"] for name, info in found.items()
        }

    def remove(self, path: str, *, below: bool = False) -> None:
        """Remove an object, or all below a path."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(path, recursive=below)


class ObjectLock:
    """The lock of an output in an object store: of several objects lock-0, lock-1, ... the last counts. A run whose
    process has ended is followed by the next object, which only one run can create.

    objects: the store. path: of the lock objects, without their numbers.
    """

    def __init__(self, objects: Objects, path: str) -> None:
        self._objects, self._path = objects, path
        self._held: int | None = None

    def _numbers(self) -> list[int]:
        folder, name = self._path.rsplit("/", 1)
        found = (re.fullmatch(re.escape(name) + r"-(\d+)", key) for key in self._objects.below(folder))
        return sorted(int(match[1]) for match in found if match)

    def take(self, output: str) -> None:
        """Take the lock. Raises OutputBusy, or FileRefused if the store cannot create objects exclusively."""
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 0
        if numbers:
            self._expect_ended(f"{self._path}-{numbers[-1]}", output)
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "run": uuid.uuid4().hex}
        path = f"{self._path}-{number}"
        try:
            made = self._objects.create(path, json.dumps(mine))
            again = made and self._objects.create(path, json.dumps(mine))
        except (NotImplementedError, TypeError, ValueError) as error:
            raise FileRefused(_no_create(output, f"{type(error).__name__}: {error}")) from error
        if not made:
            self._expect_ended(path, output)
            raise OutputBusy(f"{output} is being written by another run: wait until it has finished", 0)
        if again:
            self._objects.remove(path)
            raise FileRefused(_no_create(output, "it replaced an object that exists"))
        self._held = number

    def _expect_ended(self, path: str, output: str) -> None:
        """Raise OutputBusy unless the run that made a lock object is known to have ended."""
        try:
            held = json.loads(self._objects.get(path) or b"{}")
            host, pid = str(held.get("host", "?")), int(held.get("pid", 0))
        except (ValueError, AttributeError):
            host, pid = "?", 0
        if host == socket.gethostname() and not _alive(pid):
            return
        raise OutputBusy(
            f"{output} is being written by process {pid} on {host}: wait until it has finished, stop it, or pass "
            f"another output. If that run has ended, remove the object {path}",
            pid,
        )

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._held is not None:
            for number in [number for number in self._numbers() if number <= self._held]:
                self._objects.remove(f"{self._path}-{number}")
            self._held = None


def _no_create(output: str, why: str) -> str:
    return (
        f"the store of {output} cannot create an object only if it does not exist ({why}), so two runs could write "
        "to it at once: write to a local folder, and copy it"
    )


def _alive(pid: int) -> bool:
    """Whether a process of this host exists; True if it cannot be known."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


class ZarrObjects(Sink):
    """Writes each stored chunk of a new array as an object.

    place: of the array. make: returns the array for results; its second argument is the one of an earlier run.
    """

    promise = (
        "an object store has no rename: the chunks of a share are written to their places, each one whole or not at "
        "all; they can be written twice, if a worker that the cluster lost is still running, with the same bytes if "
        "the function is deterministic"
    )

    def __init__(self, place: Place, make: Callable[[SinkSpec, StoredArray | None], StoredArray]) -> None:
        self._at, self._make, self.where = place, make, place.url
        self.private = "memory:// is in the client's process: pass a folder" if place.scheme == "memory" else ""
        self._array: StoredArray | None = None
        self._store: Objects | None = None
        self._lock: ObjectLock | None = None
        self._have: list[Range] = []
        self._turn = threading.Lock()
        self._begun = self._whole = False

    @property
    def _objects(self) -> Objects:
        if self._store is None:
            self._store = Objects(self._at)
        return self._store

    @property
    def _record(self) -> str:
        return f"{self._objects.root.rstrip('/')}.cudakit"

    def open(self, spec: SinkSpec) -> list[Range]:
        with explained(f"{self._at}, the place for the results,", "pass another output"):
            lock = ObjectLock(self._objects, f"{self._record}/lock")
            lock.take(self._at.url)
            self._lock, self._whole, self._begun = lock, False, False
            return self._open(spec)

    def _open(self, spec: SinkSpec) -> list[Range]:
        there, job = self._objects.get(self._objects.at(METADATA)), self._objects.get(f"{self._record}/job.json")
        if there is not None and not spec.overwrite and not (spec.resume and job is not None):
            return self._finished(spec, there)
        if there is not None and spec.overwrite:
            read_metadata(there, self._at)  # only an array is removed
        before: dict[str, Any] | None = None
        if job is not None and not spec.overwrite:
            before = _read_job(job, f"{self._record}/job.json")
            if not spec.resume and self._ranges(spec.count):
                raise FileOccupied(
                    f"{self._at} has the results of an unfinished run, recorded in {self._record}: pass resume=True to "
                    "continue it, or overwrite=True to start again"
                )
        stored = StoredArray(before["zarr"]) if before is not None and spec.resume else None
        self._array = array = self._make(spec, stored)
        described = {**spec.job(), "zarr": array.metadata}
        finished: list[Range] = []
        if before is not None and spec.resume:
            finished = self._ranges(spec.count)
            if finished:
                expect_same_job(f"{self._record}/job.json", before, described)
                self._expect_chunks(array, finished)
        if not finished:
            self._objects.remove(self._objects.root, below=True) if there is not None else None
            self._objects.remove(f"{self._record}/done", below=True)
            self._objects.remove(f"{self._record}/job.json")
            self._objects.create(f"{self._record}/job.json", json.dumps(described, sort_keys=True))
        self._begun, self._have, self.unit = True, finished, array.unit
        return finished

    def _finished(self, spec: SinkSpec, there: bytes) -> list[Range]:
        """Return the items of a finished array if it is of this job. Raises FileOccupied otherwise."""
        if spec.resume:
            before = StoredArray(read_metadata(there, self._at))
            if same_array(before, self._make(spec, before), any_count=spec.count is None):
                self.unit = before.unit
                return merged([(0, before.count)])
        raise FileOccupied(f"{self._at} already exists: pass overwrite=True, or another path")

    def _ranges(self, count: int | None) -> list[Range]:
        """Return the recorded ranges. Raises ContentsRefused if one is not a range of items."""
        ranges = []
        for name in self._objects.below(f"{self._record}/done"):
            match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", name)
            start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
            if start >= stop or (count is not None and stop > count):
                raise ContentsRefused(
                    f"{self._record}/done is damaged: its object {name!r} is not a range of the items. Remove it, or "
                    "pass overwrite=True to start again"
                )
            ranges.append((start, stop))
        return merged(ranges)

    def _expect_chunks(self, array: StoredArray, finished: Sequence[Range]) -> None:
        """Raise ContentsRefused if a stored chunk that is recorded is missing, or has another size."""
        there = self._objects.below(self._objects.root)
        for start, stop in finished:
            for key in array.keys(start, stop):
                size = there.get(key, 0)
                if not size or (not array.compressed and size != array.chunk_bytes):
                    raise ContentsRefused(
                        f"{self._objects.at(key)} has {size:,} bytes, and its record {self._record} requires the "
                        "stored chunk: it has been changed. Restore it, or pass overwrite=True to start again"
                    )

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._array is None or not self._begun:
            raise ValueError(f"{self._at} is not open")
        put_objects(self._objects, self._array, start, items)
        self.adopt("", start, stop)

    def portion(self, attempt: str) -> Sink:
        if self._array is None:
            raise ValueError(f"{self._at} is not open")
        return ObjectPortion(self._at, self._array)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        if not self._begun:
            return  # an earlier run finished all items
        with self._turn:
            new = list(gaps(self._have, start, stop))
            self._have = merged([*self._have, *new])
        for begin, end in new:
            self._objects.create(f"{self._record}/done/{begin}-{end}", "")

    def finish(self, count: int) -> None:
        if self._array is None or not self._begun:
            return  # an earlier run finished it
        for group in self._at.groups:
            place = Objects(Place(None, group, options=self._at.options))
            place.create(place.at(METADATA), json.dumps(GROUP, indent=2))
        text = json.dumps(self._array.counted(count), indent=2)
        self._objects.put({self._objects.at(METADATA): text.encode()})
        self._whole = True

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            if self._begun and (self._whole or not self._have):
                self._objects.remove(f"{self._record}/done", below=True)
                self._objects.remove(f"{self._record}/job.json")
        finally:
            self._begun = False
            lock.release()


class ObjectPortion(Sink):
    """Writes the stored chunks of a worker's share to their places. The client's process records them."""

    def __init__(self, place: Place, array: StoredArray) -> None:
        self._place, self._array, self.unit = place, array, array.unit
        self._objects: Objects | None = None

    def open(self, spec: SinkSpec) -> list[Range]:
        self._objects = Objects(self._place)
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._objects is None:
            raise ValueError(f"{self._place} is not open")
        put_objects(self._objects, self._array, start, items)


def put_objects(objects: Objects, array: StoredArray, start: int, items: HostArray) -> None:
    """Write items as stored chunks. Raises ValueError if they do not start at a whole one."""
    objects.put({objects.at(key): data for key, data in array.encode(start, items).items()})


def _read_job(text: bytes, where: str) -> dict[str, Any]:
    try:
        job: dict[str, Any] = json.loads(text)
        read_metadata(json.dumps(job["zarr"]), where)
    except (ValueError, KeyError, TypeError) as error:
        raise ContentsRefused(f"{where} is not the record of a run, or is damaged: pass overwrite=True") from error
    return job
