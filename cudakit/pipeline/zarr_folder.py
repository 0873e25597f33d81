"""`ToZarr` in local files: an array in a folder, which gets its name when it is complete; or an existing array."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from cudakit import system
from cudakit.pipeline.chunk_files import ChunkFiles, write_synced
from cudakit.pipeline.file_sinks import JournaledSink, expect_disk, expect_folder
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.journal import Journal, read_text
from cudakit.pipeline.ranges import Range, aligned, merged
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied, FileRefused, explained
from cudakit.pipeline.shares_folder import SharesFolder
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.zarr_arrays import GROUP, METADATA, Place, StoredArray, read_metadata, same_array

#: Returns the array for results; before: the unfinished or finished one, if an earlier run left one.
Make = Callable[[SinkSpec, "StoredArray | None"], StoredArray]


class ZarrFolder(JournaledSink):
    """Writes each stored chunk of an array as a file.

    place: of the array. make: of a new array; None to write into the array that is there.
    """

    promise = ""

    def __init__(self, place: Place, make: Make | None) -> None:
        super().__init__(place.root.joinpath(*place.inner), place.next_to_store(".lock"))
        self._at, self._make = place, make
        self._part = place.next_to_store(".part") if make else self.path
        self._shares = SharesFolder(place.next_to_store(".shares"))
        self._replaces = self._began = False
        self._array: StoredArray | None = None
        self._files: ChunkFiles | None = None
        self.where = str(self._part)

    @property
    def _record(self) -> Path:
        return self._at.next_to_store(".journal")

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_folder(self._at.root)
        self._expect_groups()
        self._lock.take(None, self.path)
        self._began = True
        self._shares.remove()  # of a run that was killed
        if self._make is None:
            self._array = array = self._existing(spec)
        else:
            there, begun = self.path.exists(), self._record.exists()
            if there and not spec.overwrite and not (spec.resume and begun and self._part.exists()):
                return self._finished(spec, self._make)
            if there and spec.overwrite:
                self._expect_array()
            if self._part.exists() and not begun and not spec.overwrite:
                raise FileOccupied(
                    f"{self._part}, the place for unfinished results, exists without a journal, so it is not from a "
                    "pipeline: remove it, pass overwrite=True, or pass another path"
                )
            self._replaces = spec.overwrite or there
            before = _array_in(self._part) if begun and spec.resume and not spec.overwrite else None
            self._array = array = self._make(spec, before)
        journal, finished = self._begin(spec, {"zarr": array.metadata})
        if finished:
            self._expect_whole(array, finished, finished[-1][1] if spec.count is None else spec.count)
        if not spec.overwrite and not array.compressed:  # the size of compressed chunks is unknown
            expect_disk(self._at.root.parent, spec, sum(stop - start for start, stop in finished))
        self._start(journal, finished, array)
        self.unit = array.unit
        return finished

    def _existing(self, spec: SinkSpec) -> StoredArray:
        array = _array_in(self.path)
        if array is None:
            raise ContentsRefused(f"the Zarr array {self.path} was removed: make it again, or pass another one")
        expect_same_item(array.item, spec.item, f"the Zarr array {self.path}")
        if spec.count is not None and spec.count != array.count:
            raise ValueError(f"{self.path} must have room for {spec.count:,} items, got {array.count:,}")
        return array

    def _finished(self, spec: SinkSpec, make: Make) -> list[Range]:
        """Return the items of a finished array if it is of this job. Raises FileOccupied otherwise."""
        before = _array_in(self.path) if spec.resume else None
        if before is not None and same_array(before, make(spec, before), any_count=spec.count is None):
            if before.count:
                spec.origin.expect_older(None, self.path, (self.path / METADATA).stat().st_mtime_ns)
            self._record.unlink(missing_ok=True)  # left by a run that was killed at its end
            self.unit = before.unit
            return merged([(0, before.count)])
        raise FileOccupied(f"{self.path} already exists: pass overwrite=True, or another path")

    def _start(self, journal: Journal, finished: Sequence[Range], array: StoredArray) -> None:
        """Create the journal, then the unfinished array, in this order: one without a journal belongs to no run."""
        with explained(f"{self._part}, the place for the results,", "pass another output, or free disk space"):
            new = self._make is not None and not finished
            if new and self._part.exists():
                shutil.rmtree(self._part)
            self._journal = journal
            journal.open(finished)
            if new:
                self._part.mkdir()
                write_synced(self._part / METADATA, json.dumps(array.metadata, indent=2))
            self._files = ChunkFiles(self._part)
            journal.follow(self._files.sync)

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._array is None or self._files is None or self._journal is None:
            raise ValueError(f"{self.path} is not open")
        if self._make is None:
            expect_room(stop, self._array.count, str(self.path))
        # A recorded chunk is not written again: its new file would not be on disk yet.
        for begin, end in self._journal.missing(start, stop):
            put_items(self._files, self._array, begin, items[begin - start : end - start])
        self._journal.add(start, stop)

    def portion(self, attempt: str) -> Sink:
        if self._array is None:
            raise ValueError(f"{self.path} is not open")
        return ZarrPortion(self._shares.new(attempt), self._array)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        if self._array is None or self._files is None or self._journal is None:
            return  # an earlier run finished all items
        place = self._shares.place(attempt)
        for key in self._array.keys(start, stop):
            self._files.move(place / key, key)
        self._shares.discard(attempt)
        self._journal.add(start, stop)

    def discard(self, attempt: str) -> None:
        self._shares.discard(attempt)

    def finish(self, count: int) -> None:
        if self._array is None or self._journal is None:
            return  # an earlier run finished it
        if self._make is None:
            expect_full(count, self._array.count, str(self.path))
        super().finish(count)
        if self._make is None:
            return
        self._whole = False
        # Written again even if the number of items was known: its time is that of the last result.
        write_synced(self._part / METADATA, json.dumps(self._array.counted(count), indent=2))
        if self.path.exists() and not self._replaces:
            raise FileOccupied(
                f"{self.path} was made by another program during the run: move it, and pass resume=True to save the "
                "results"
            )
        self._move_into_place()
        self._whole = True

    def _move_into_place(self) -> None:
        for group in map(Path, self._at.groups):
            if not (group / METADATA).exists():
                group.mkdir()
                write_synced(group / METADATA, json.dumps(GROUP, indent=2))
        old = self._at.next_to_store(".replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self.path.exists():
            self.path.rename(old)
        self._part.rename(self.path)
        system.sync_path(self.path.parent)
        shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        if self._began:
            self._shares.remove()
        nothing = self._journal is not None and not self._journal.added and not self._whole
        super().close()
        if nothing and self._make is not None:
            shutil.rmtree(self._part, ignore_errors=True)
        self._began, self._files = False, None

    # Checks -----------------------------------------------------------------------------------------------------------

    def _expect_groups(self) -> None:
        """Raise FileRefused if the array would be inside something else than Zarr groups."""
        for folder in map(Path, self._at.groups):
            kind = _kind_of(folder)
            if kind == "array" or (kind is None and folder.exists()):
                raise FileRefused(
                    f"{folder} is {'a Zarr array' if kind else 'not a Zarr group'}, so {self.path} cannot be made in "
                    "it: pass another path"
                )

    def _expect_array(self) -> None:
        """Raise FileOccupied if overwriting would remove something else than an array."""
        try:
            array = _array_in(self.path) is not None or (self.path / ".zarray").is_file()
        except ContentsRefused:
            array = False
        if not array:
            raise FileOccupied(
                f"{self.path} is not a Zarr array, so overwrite=True does not remove it: remove it, pass the array's "
                "path in a group, or pass another folder"
            )

    def _expect_whole(self, array: StoredArray, finished: list[Range], count: int) -> None:
        """Raise ContentsRefused if the journal has parts of stored chunks, or a file that it requires is missing or has
        another size."""
        if finished != aligned(finished, array.unit, count):
            raise ContentsRefused(
                f"{self._record} is damaged: its ranges are not whole stored chunks of {array.unit:,} items. Pass "
                "overwrite=True to start again, or restore the file"
            )
        sizes: dict[str, int | None] = {METADATA: None}
        for start, stop in finished:
            sizes |= dict(array.sizes(start, stop))
        for key, due in sizes.items():
            path = self._part / key
            size = path.stat().st_size if path.is_file() else 0
            if not size or (due is not None and size != due):
                raise ContentsRefused(
                    f"{path} has {size:,} bytes, and its record {self._record} requires "
                    f"{'some' if due is None else format(due, ',')}: it has been changed. Restore it, or pass "
                    "overwrite=True to start again"
                )


class ZarrPortion(Sink):
    """Writes the stored chunks of a worker's share below a folder of their own, which must not exist. If that is
    removed, as for a worker that was given up, its next write fails.

    folder: the folder. array: the array of the whole run.
    """

    def __init__(self, folder: Path, array: StoredArray) -> None:
        self._array, self._files = array, ChunkFiles(folder)
        self.unit = array.unit

    def open(self, spec: SinkSpec) -> list[Range]:
        with explained(f"{self._files.folder}, the place for a share,", "use a file system that all workers share"):
            self._files.folder.mkdir()
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        put_items(self._files, self._array, start, items)

    def finish(self, count: int) -> None:
        self._files.sync()


def put_items(files: ChunkFiles, array: StoredArray, start: int, items: HostArray) -> None:
    """Write items as stored chunks. Raises ValueError if they do not start at a whole one."""
    for key, data in array.encode(start, items).items():
        files.put(key, data)


def _kind_of(folder: Path) -> str | None:
    """Return "array" or "group"; None if the folder is neither."""
    path = folder / METADATA
    try:
        kind = json.loads(read_text(path)).get("node_type") if path.is_file() else None
    except (ValueError, AttributeError):
        return None
    return kind if kind in ("array", "group") else None


def _array_in(folder: Path) -> StoredArray | None:
    """Return the array of a folder; None if it has no metadata. Raises ContentsRefused if that is of something else."""
    path = folder / METADATA
    return StoredArray(read_metadata(read_text(path), path)) if path.is_file() else None
