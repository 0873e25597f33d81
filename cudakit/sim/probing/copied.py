"""The places that an asynchronous copy reads, for each byte that it writes."""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.transfers import Transfer, Units


def origin_in_shared(transfer: Transfer, source: Units, unit: int, byte: int) -> int:
    """The byte of shared memory from which a copy has a byte of a unit of its destination. The copy may arrange the
    units of its source in any way, so it arranges their places here, one digit at a time."""
    access, place = source.access, 0
    places = source.index[:, None] * access.size + np.arange(access.size)
    for shift in (0, 8, 16, 24):
        digits = (places >> shift & 0xFF).astype(np.uint8).view(access.dtype)
        units = digits if access.count > 1 else digits[:, 0]
        place |= bytes_of(units if transfer.arrange is None else transfer.arrange(units), unit)[byte] << shift
    return place


def origin_in_global(transfer: Transfer, source: Units, target: Units, unit: int, byte: int) -> int | None:
    """The address from which a copy has a byte of a unit of its destination in shared memory; None if the byte is not
    from memory. Such a copy does not change the order of its bytes: it only fills those outside the tensor."""
    number, rest = divmod(unit * target.access.size + byte, source.access.size)
    if transfer.inside is not None:
        if not transfer.inside[number]:
            return None
        number = int(np.count_nonzero(transfer.inside[:number]))
    return int(source.home.base) + int(source.index[number]) * source.access.size + rest


def bytes_of(units: Array, unit: int) -> bytes:
    """The bytes of a unit."""
    return np.ascontiguousarray(units[unit]).tobytes()


def unit_at(units: Units, place: int) -> tuple[int, int] | None:
    """The number of the unit that contains a byte of memory, and the byte in it; None if there is none."""
    hits = np.flatnonzero(units.index == place // units.access.size)
    return (int(hits[-1]), place % units.access.size) if len(hits) else None
