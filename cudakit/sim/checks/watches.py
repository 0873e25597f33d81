"""Watches of global memory: objects that are notified of every write to some bytes, by kernels, copies and fills.

``StoreWatch`` keeps the last store of a kernel: the line that wrote a wrong result. ``WriteLog`` (write_history.py)
keeps all writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.checks.global_memory import places_of
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.report import KernelReport, Origin
from cudakit.sim.lockstep.transfers import Transfer, same_lane

# address, bytes per row, rows, bytes between rows
Rows = tuple[int, int, int, int]


class Launched(NamedTuple):
    """A launch: the kernel's mangled name, the line that made it, the device ("sim:1"; "" if there is only one), the
    label and value of each parameter that may be an address, and the labels of all parameters."""

    kernel: str
    place: Origin
    device: str
    pointers: tuple[tuple[str, int], ...]
    labels: tuple[str, ...]


class HostWrite(NamedTuple):
    """Work of the host that writes memory: "copy from host", "fill"..., its call, the line that queued it, and the rows
    that it reads if they are memory of a device."""

    kind: str
    call: str
    place: Origin
    source: Rows | None = None


class Watch:
    """Watches ``size`` bytes at ``address``. The methods are called before memory changes, if not stated otherwise."""

    #: Whether ``read`` and ``copy_shared`` are called.
    reads = False

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def touched(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The pieces in the allocation of the watched bytes."""
        end = self.address + self.size
        for piece in pieces:
            home = piece.home
            if isinstance(home, Allocation) and home.address < end and self.address < home.address + home.size:
                yield piece

    def note(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        """A store or an atomic of a kernel to memory of any space. The checks have passed."""

    def land(self, transfer: Transfer) -> None:
        """An asynchronous copy writes its destination."""
        target = transfer.destination
        if target is not None and isinstance(target.home, Allocation):
            lanes = same_lane(transfer.f.batch.geometry, transfer.lane, len(target.index))
            self.note(transfer.f, target.access, [target.piece(lanes)])

    def read(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        """A load of a kernel, from memory of any space."""

    def copy_shared(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """A copy to shared memory has been started by the lanes of a piece; it may write later."""

    def launched(self, launch: Launched) -> None:
        """A kernel has ended, or was stopped."""

    def write(self, work: HostWrite, rows: Rows) -> None:
        """A copy or a fill writes rows of global or pinned memory."""

    def written(self) -> None:
        """The copy or fill has ended."""

    def freed(self, allocation: Allocation, origin: str) -> None:
        """An allocation is about to be freed."""


class StoreWatch(Watch):
    """Keeps the last store of a kernel to the watched bytes: ``store`` is a report of the kind "store", or None."""

    def __init__(self, address: int, size: int) -> None:
        super().__init__(address, size)
        self.store: KernelReport | None = None

    def note(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        for piece in self.touched(pieces):
            places = places_of(access, piece)
            hits = np.flatnonzero((places < self.address + self.size) & (places + access.size > self.address))
            if hits.size:
                self._keep(f, access, int(piece.lanes.lanes[hits[-1]]))  # the last lane wins

    def _keep(self, f: Fragment, access: MemoryAccess, lane: int) -> None:
        block, thread = lane_place(f, lane)
        instruction = access.site.instruction
        self.store = KernelReport(
            "store",
            access.named,
            kernel=f.batch.run.config.kernel,
            block=block,
            thread=thread,
            places=f.batch.run.place(instruction),
            address=self.address,
            size=access.size,
            space="global",
            access=access.site.kind,
            instruction=instruction.text.strip(),
        )

    def launched(self, launch: Launched) -> None:
        store = self.store
        if store is not None and store.launched is None:
            store.launched, store.device = launch.place, launch.device


def lane_place(f: Fragment, lane: int) -> tuple[Any, Any]:
    """The block and thread indices of a lane of the fragment's batch."""
    block, thread = divmod(lane, f.batch.geometry.threads)
    return f.batch.block_index(block), f.batch.thread_index(thread)
