"""The errors raised before a pipeline starts: files that are missing, in use, or of another job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cudakit.errors import CudakitError


class PipelineRefused(CudakitError):
    """A pipeline cannot start; no item was read or written. The text states what was requested and what to do."""


class FileRefused(PipelineRefused, OSError):
    """A file or folder cannot be used. Also an OSError."""


class FileMissing(FileRefused, FileNotFoundError):
    """A file or folder does not exist. Also a FileNotFoundError."""


class FileOccupied(FileRefused, FileExistsError):
    """The output already has results. Also a FileExistsError."""


class OutputBusy(FileRefused):
    """Another run is writing to the output.

    Attributes:
        pid: The id of its process.
    """

    def __init__(self, message: str, pid: int) -> None:
        self.pid = pid
        super().__init__(message)


class ContentsRefused(PipelineRefused, ValueError):
    """A file has the wrong contents: not an `.npy` file, another job's journal, a changed source. Also a ValueError."""


@contextlib.contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Convert an OSError to FileMissing or FileRefused, with `what` the file was used for and an advice."""
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
