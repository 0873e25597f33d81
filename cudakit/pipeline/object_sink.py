"""A sink that writes results as objects of equal numbers of items, in a store without rename and locks.

Each object is written in place, whole or not at all. The lock, the job and each finished range are objects next to the
results, under URL.cudakit, that are created only if they do not exist ("exclusive create"). The index, which describes
the results, is written last, so that readers find results only when they are complete.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.journal import expect_same_job
from cudakit.pipeline.objects import ObjectLock, Objects, reachable, scheme_of
from cudakit.pipeline.ranges import Range, gaps, merged
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied
from cudakit.pipeline.sink import Sink, SinkSpec


class StoredItems(Protocol):
    """The division of results into objects. It can be pickled.

    metadata: describes it, as JSON: the contents of the index. unit: items per object.
    """

    @property
    def metadata(self) -> dict[str, Any]: ...

    @property
    def count(self) -> int: ...

    @property
    def unit(self) -> int: ...

    def counted(self, count: int) -> dict[str, Any]:
        """Return the metadata with another number of items."""

    def sizes(self, start: int, stop: int) -> Iterator[tuple[str, int | None]]:
        """Yield the keys of the objects that have the items start..stop, each with its bytes; None if that depends on
        the contents."""

    def encode(self, start: int, items: HostArray) -> dict[str, Any]:
        """Return the bytes of each object by its key. start: the number of the first item, a multiple of `unit`."""


class ObjectSink(Sink):
    """Writes items as objects below a URL.

    A subclass has `index`, the key of the object that is written last, and `_make`, `_parse` and `_same`. url:
    absolute. options: of fsspec.
    """

    index = ""

    promise = (
        "an object store has no rename: the objects of a share are written to their places, each one whole or not at "
        "all; they can be written twice, if a worker that the cluster lost is still running, with the same bytes if "
        "the function is deterministic"
    )

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self.url, self._options, self.where = url, options, url
        self.private = "memory:// is in the client's process: pass a folder" if scheme_of(url) == "memory" else ""
        self._stored: StoredItems | None = None
        self._store: Objects | None = None
        self._lock: ObjectLock | None = None
        self._have: list[Range] = []
        self._turn = threading.Lock()
        self._begun = self._whole = False

    def _make(self, spec: SinkSpec, before: StoredItems | None) -> StoredItems:
        """Return the division of results. before: that of an earlier run."""
        raise NotImplementedError

    def _parse(self, text: bytes, where: object) -> StoredItems:
        """Return the division that an index describes. Raises ContentsRefused if it is not one."""
        raise NotImplementedError

    def _same(self, before: StoredItems, now: StoredItems, *, any_count: bool) -> bool:
        """Whether a finished output is of this job. any_count: whatever its number of items."""
        raise NotImplementedError

    def _clear(self, *, complete: bool) -> None:
        """Remove the results of an earlier run. complete: whether there is an index."""
        if complete:
            self._objects.remove(self._objects.root, below=True)

    @property
    def _objects(self) -> Objects:
        if self._store is None:
            self._store = Objects(self.url, self._options)
        return self._store

    @property
    def _record(self) -> str:
        return f"{self._objects.root.rstrip('/')}.cudakit"

    def open(self, spec: SinkSpec) -> list[Range]:
        with reachable(f"{self.url}, the place for the results,", "pass another output"):
            if "/" not in self._objects.root:
                raise ValueError(f"{self.url} is a whole bucket: pass a folder in it, such as {self.url}/out")
            lock = ObjectLock(self._objects, f"{self._record}/lock")
            lock.take(self.url)
            self._lock, self._whole, self._begun = lock, False, False
            return self._open(spec)

    def _open(self, spec: SinkSpec) -> list[Range]:
        there, job = self._objects.get(self._objects.at(self.index)), self._objects.get(f"{self._record}/job.json")
        if there is not None and not spec.overwrite and not (spec.resume and job is not None):
            return self._finished(spec, there)
        if there is not None and spec.overwrite:
            self._parse(there, self.url)  # only results are removed
        before: dict[str, Any] | None = None
        if job is not None and not spec.overwrite:
            before = self._read_job(job)
            if not spec.resume and self._ranges(spec.count):
                raise FileOccupied(
                    f"{self.url} has the results of an unfinished run, recorded in {self._record}: pass resume=True to "
                    "continue it, or overwrite=True to start again"
                )
        earlier = self._described(before) if before is not None and spec.resume else None
        self._stored = stored = self._make(spec, earlier)
        described = {**spec.job(), "stored": stored.metadata}
        finished: list[Range] = []
        if before is not None and spec.resume:
            finished = self._ranges(spec.count)
            if finished:
                expect_same_job(f"{self._record}/job.json", before, described)
                self._expect_objects(stored, finished)
        if not finished:
            if there is not None or job is not None:
                self._clear(complete=there is not None)
            self._objects.remove(f"{self._record}/done", below=True)
            self._objects.remove(f"{self._record}/job.json")
            self._objects.create(f"{self._record}/job.json", json.dumps(described, sort_keys=True))
        self._begun, self._have, self.unit = True, finished, stored.unit
        return finished

    def _finished(self, spec: SinkSpec, there: bytes) -> list[Range]:
        """Return the items of a finished output if it is of this job. Raises FileOccupied otherwise."""
        if spec.resume:
            before = self._parse(there, self.url)
            if self._same(before, self._make(spec, before), any_count=spec.count is None):
                self.unit = before.unit
                return merged([(0, before.count)])
        raise FileOccupied(f"{self.url} already exists: pass overwrite=True, or another path")

    def _described(self, job: Mapping[str, Any]) -> StoredItems:
        return self._parse(json.dumps(job["stored"]).encode(), f"{self._record}/job.json")

    def _read_job(self, text: bytes) -> dict[str, Any]:
        where = f"{self._record}/job.json"
        try:
            job: dict[str, Any] = json.loads(text)
            self._described(job)
        except (ValueError, KeyError, TypeError) as error:
            raise ContentsRefused(f"{where} is not the record of a run, or is damaged: pass overwrite=True") from error
        return job

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

    def _expect_objects(self, stored: StoredItems, finished: Sequence[Range]) -> None:
        """Raise ContentsRefused if an object that is recorded is missing, or has another size."""
        there = self._objects.below(self._objects.root)
        for start, stop in finished:
            for key, due in stored.sizes(start, stop):
                size = there.get(key, 0)
                if not size or due not in (None, size):
                    raise ContentsRefused(
                        f"{self._objects.at(key)} has {size:,} bytes, and its record {self._record} requires "
                        f"{'some' if due is None else f'{due:,}'}: it has been changed. Restore it, or pass "
                        "overwrite=True"
                    )

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._stored is None or not self._begun:
            raise ValueError(f"{self.url} is not open")
        put_objects(self._objects, self._stored, start, items)
        self.adopt("", start, stop)

    def portion(self, attempt: str) -> Sink:
        if self._stored is None:
            raise ValueError(f"{self.url} is not open")
        return ObjectPortion(self.url, self._options, self._stored)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        if not self._begun:
            return  # an earlier run finished all items
        with self._turn:
            new = list(gaps(self._have, start, stop))
            self._have = merged([*self._have, *new])
        for begin, end in new:
            self._objects.create(f"{self._record}/done/{begin}-{end}", "")

    def finish(self, count: int) -> None:
        if self._stored is None or not self._begun:
            return  # an earlier run finished it
        text = json.dumps(self._stored.counted(count), indent=2)
        self._objects.put({self._objects.at(self.index): text.encode()})
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
    """Writes the objects of a worker's share to their places. The client's process records them."""

    def __init__(self, url: str, options: Mapping[str, Any] | None, stored: StoredItems) -> None:
        self._url, self._options, self._stored, self.unit = url, options, stored, stored.unit
        self._objects: Objects | None = None

    def open(self, spec: SinkSpec) -> list[Range]:
        self._objects = Objects(self._url, self._options)
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._objects is None:
            raise ValueError(f"{self._url} is not open")
        put_objects(self._objects, self._stored, start, items)


def put_objects(objects: Objects, stored: StoredItems, start: int, items: HostArray) -> None:
    """Write items as objects. Raises ValueError if they do not start at a whole one."""
    objects.put({objects.at(key): data for key, data in stored.encode(start, items).items()})
