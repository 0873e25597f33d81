"""Recording: a file of recorded launches that can be replayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cudakit.recording import replaying
from cudakit.recording.launches import SavedLaunches
from cudakit.recording.reading import load_as

if TYPE_CHECKING:
    from cudakit.device import Device


class Recording(SavedLaunches):
    """A recording, read from a file by `load`.

    Attributes:
        path: The file.
        launches: Its launches, in order.
        device: Name, architecture, driver and NVRTC of the recorded device.
        complete: Whether the file was closed; False after a crash of the process.
        exception: The exception that ended the block, as text; "" if there was none.
        notes: Sentences about what was not recorded.
    """

    def replay(
        self,
        device: Device | str | None = None,
        launches: Iterable[int] | None = None,
        *,
        who: str | None = None,
        checks: Iterable[str] | None = None,
    ) -> replaying.Report:
        """Replay launches, each from its recorded memory, and compare the memory after it with the recorded one.

        Args:
            device: A device or its name; by default a simulated device of the recorded architecture.
            launches: Numbers of launches; None for all.
            who: An element such as "y[3, 4]": report the last store to it, even if it does not differ. Only on the
                simulated device.
            checks: The checks of a simulated device that is opened by its name; its default ones if None.

        Returns:
            The outcomes; `ok` is True if all results are equal, except for rounding.

        Raises:
            RecordingError: If there is no such launch or element, or the file is damaged.
            DeviceUnavailable: If there is no such device.
        """
        return replaying.replay(self, device, launches, who=who, checks=checks)


def load(path: Any) -> Recording:
    """Read a recording.

    Args:
        path: The file that `cudakit.record` wrote. If the recorded process crashed, the launches up to the crash are
            read.

    Raises:
        RecordingError: If it is not a recording, is damaged, or was written by a later version of the format.
    """
    return load_as(Recording, path)
