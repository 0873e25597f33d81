"""The count that kernels read as %clock and %globaltimer: instructions, not time."""

from __future__ import annotations

# added to the clock by a read in a loop that waits, so that the loop ends soon
_WAIT = 512
# reads of one instruction after which its loop counts as one that waits
_OFTEN = 1000


class Clock:
    """The clock of a launch: the instructions that its warps have executed so far. Each read returns more than the one
    before. A read that repeats without other reads in between, or for the 1000th time, also adds 512."""

    def __init__(self) -> None:
        self.last = 0
        self.waited = 0
        self.reads: dict[object, int] = {}
        self.reader: object = None

    def read(self, executed: int, reader: object) -> int:
        """The count at a read by the instruction ``reader``, before which ``executed`` instructions were executed."""
        self.reads[reader] = self.reads.get(reader, 0) + 1
        if reader is self.reader or self.reads[reader] > _OFTEN:
            self.waited += _WAIT
        self.reader = reader
        self.last = max(self.last + 1, executed + self.waited)
        return self.last
