"""A source that reads a file to device memory with KvikIO, NVIDIA's interface of GPUDirect Storage. kvikio is imported
when it is needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.memory.array import DeviceArray
from cudakit.pipeline.refusals import ContentsRefused, explained
from cudakit.pipeline.sources import FromFile, Item


def kvikio_package(context: Context) -> Any:
    """Return the module kvikio; None for the simulated device, whose memory it cannot reach. Raises ImportError with
    the command that installs it."""
    if context.kind != "gpu":
        return None
    try:
        import kvikio
        import kvikio.defaults
    except (ImportError, RuntimeError) as error:  # RuntimeError: a library that it loads is missing
        raise ImportError(
            f"FromKvikIO needs the package kvikio: pip install 'cudakit[kvikio]' ({type(error).__name__}: {error})"
        ) from error
    return kvikio


class FromKvikIO(FromFile):
    """Items of an `.npy` file or a raw file, read to device memory by KvikIO, without pinned buffers of the pipeline.

    With GPUDirect Storage the disk writes to the device's memory. Without its driver (nvidia-fs), KvikIO is in its
    compatibility mode: it reads through host buffers of its own. Reads are fastest if items start on a page, as in a
    file that `ToFile(direct=True)` wrote. Each reader thread requests one chunk; KvikIO divides it among its threads.

    A run with it has one device. On the simulated device it reads to the host, and copies.

    Args:
        path: The file; its first axis counts the items.
        shape: Extents of one item, or an int for one axis, of a raw file: items without a header. None for an `.npy`
            file.
        dtype: The dtype of a raw file's elements; or, for an `.npy` file, as for `FromFile`.
        offset: Bytes before the first item of a raw file.
        threads: KvikIO's threads, which all its files in the process share; None for its own setting: KVIKIO_NTHREADS,
            or 1.

    Raises:
        FileMissing: If the file does not exist.
        ContentsRefused: If it is not an `.npy` file that can be read in ranges, is truncated, or has no whole items.
        ValueError: If the shape of a raw file is passed without its dtype, or `threads` is below 1.
    """

    on_device = True

    def __init__(
        self, path: str | os.PathLike[str], shape: Any = None, dtype: Any = None, *, offset: int = 0,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._threads, self._handle = threads, None
        if shape is None and not offset:
            super().__init__(path, dtype)
            return
        if shape is None or dtype is None or offset < 0:
            raise ValueError(
                f"a raw file needs shape=, dtype= and an offset of at least 0, got shape={shape!r}, dtype={dtype!r}, "
                f"offset={offset!r}"
            )
        self.path = Path(path)
        item = Item.of(shape, dtype)
        with explained(f"the source {str(path)!r}", "name a raw file"):
            there = self.path.stat().st_size - offset
        count, rest = divmod(there, item.nbytes) if item.nbytes else (0, there)
        if rest or there < 0:
            raise ContentsRefused(
                f"{path} has {there:,} bytes after the first {offset:,}, which are not whole items of {item.nbytes:,} "
                f"bytes ({item}): pass its shape, dtype and offset, or write the file again"
            )
        self._begin(self.path, item, count, offset)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_handle": None}

    def expect_device(self, context: Context) -> None:
        kvikio_package(context)

    def read_device(self, start: int, stop: int, into: DeviceArray) -> None:
        kvikio = kvikio_package(into.context)
        if not into.nbytes:
            return
        if kvikio is None:
            host = np.empty(into.shape, into.dtype)
            self.read(start, stop, host)
            into.copy_from(host)
            into.stream.synchronize()
            return
        offset = self._offset + start * self.item.nbytes
        done = self._opened_by(kvikio).pread(DeviceBytes(into), into.nbytes, offset).get()
        if done < into.nbytes:
            raise EOFError(
                f"{self.path} ends at byte {offset + done:,}, {into.nbytes - done:,} bytes too early: write the file "
                "again"
            )

    def _opened_by(self, kvikio: Any) -> Any:
        """Return KvikIO's open file; after `close` it is opened again."""
        with self._lock:
            if self._handle is None:
                if self._threads is not None:
                    kvikio.defaults.set({"num_threads": self._threads})
                self._handle = kvikio.CuFile(self.path, "r")
            return self._handle

    def close(self) -> None:
        super().close()
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


class DeviceBytes:
    """The bytes of a contiguous device array, for KvikIO, which does not have all dtypes.

    array: the array, which is kept alive.
    """

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shape, data = (self.array.nbytes,), (self.array.pointer, False)
        return {"shape": shape, "typestr": "|u1", "data": data, "strides": None, "version": 3}
