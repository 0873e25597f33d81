"""Files of a pipeline: the header of an `.npy` file, the offset of a memory map, and complete reads and writes."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cudakit import system
from cudakit.memory.array import as_dtype
from cudakit.pipeline.refusals import ContentsRefused, explained

HostArray = npt.NDArray[Any]

_PIECE = 1 << 30  # Linux reads and writes at most 2^31 bytes per call


def file_of(array: np.memmap[Any, Any]) -> Path | None:
    """Return the file of a memory map; None for a result of arithmetic, which only has the type of a map."""
    mapped: Any = array._mmap  # type: ignore[attr-defined]
    return None if array.filename is None or mapped is None else Path(array.filename)


def place_in_file(array: np.memmap[Any, Any]) -> int:
    """Return the offset of a memory map's first element in its file.

    It is computed from the address, because a slice has the `offset` of the whole map.
    """
    mapped: Any = array._mmap  # type: ignore[attr-defined]
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return int(begin + array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data)


def is_result(name: str, suffix: str | tuple[str, ...] = ".npy") -> bool:
    """Whether a file of this name in a folder is an item."""
    return name.endswith(suffix) and not name.startswith(".")


def npy_header(path: Path, dtype_: Any = None) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, dtype and data offset of an `.npy` file. Raises ContentsRefused if it cannot be read in ranges.

    dtype_: the elements' dtype, if the file's dtype only states the size (bfloat16); it must have the same size.
    """
    advice = "pass an .npy file, a folder of them, or a list of their paths"
    with explained(f"the source {str(path)!r}", advice), path.open("rb") as file:
        return parsed_npy_header(file, path, dtype_)


def parsed_npy_header(file: BinaryIO, path: object, dtype_: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return what `npy_header` does for an open file. path: its name in errors."""
    try:
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        offset = file.tell()
    except OSError:
        raise
    except Exception as error:  # numpy's reader raises errors of several types for damaged headers
        raise ContentsRefused(f"{path} is not a readable .npy file: {error}. Write it with numpy.save") from error
    if dtype.hasobject:
        raise ContentsRefused(f"{path} has Python objects: save an array of numbers")
    if fortran and len(shape) > 1:
        raise ContentsRefused(f"{path} is in Fortran order: save it with numpy.ascontiguousarray first")
    if dtype_ is not None:
        known = as_dtype(dtype_)
        if known.itemsize != dtype.itemsize:
            raise ContentsRefused(
                f"{path} has elements of {dtype.itemsize} bytes, and {known} has {known.itemsize}: pass a dtype of the "
                "same size"
            )
        dtype = known
    return tuple(int(extent) for extent in shape), dtype, offset


def read_whole(file: int, into: HostArray, offset: int, path: Path) -> None:
    """Fill a contiguous array from a file. Raises EOFError if the file is too short."""
    data = as_bytes(into)
    done = 0
    while done < len(data):
        got = system.read_at(file, data[done : done + _PIECE], offset + done)
        if got == 0:
            raise EOFError(
                f"{path} ends at byte {offset + done:,}, {len(data) - done:,} bytes too early: write the file again"
            )
        done += got


def write_whole(file: int, data: HostArray, offset: int) -> None:
    """Write a contiguous array to a file at `offset`."""
    view = as_bytes(data)
    done = 0
    while done < len(view):
        done += system.write_at(file, view[done : done + _PIECE], offset + done)


def as_bytes(array: HostArray) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    flat: Any = array.reshape(-1).view(np.uint8) if array.nbytes else b""
    return memoryview(flat)
