"""The errors of a pipeline that does not start: files that are missing, in use, or not of this job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cudakit.errors import CudakitError


class PipelineRefused(CudakitError):
    """A pipeline was refused before it read or wrote an item. The text says what was requested and what to do."""


class FileRefused(PipelineRefused, OSError):
    """A file or folder cannot be used. Also an OSError."""


class FileMissing(FileRefused, FileNotFoundError):
    """A file or folder does not exist. Also a FileNotFoundError."""


class FileOccupied(FileRefused, FileExistsError):
    """Results exist where new ones should go. Also a FileExistsError."""


class OutputBusy(FileRefused):
    """Another run is writing to the output. pid: its process."""

    def __init__(self, message: str, pid: int) -> None:
        self.pid = pid
        super().__init__(message)


class ContentsRefused(PipelineRefused, ValueError):
    """A file's contents do not fit: not an `.npy` file, another job's journal, a changed source. Also a ValueError."""


@contextlib.contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Raises the system's refusal of a file as FileMissing or FileRefused, which say `what` it was for."""
    try:
        yield
    except FileRefused:
        raise
    except FileNotFoundError as error:
        raise FileMissing(f"{what} does not exist ({error.strerror or error}): {advice}") from error
    except OSError as error:
        raise FileRefused(f"{what} cannot be used ({error.strerror or error}): {advice}") from error
    except UnicodeError as error:
        raise ContentsRefused(f"{what} cannot be read as text or is not a valid name ({error}): {advice}") from error
