"""Strong accesses of different sizes: two volatile loads of the halves of 8 bytes, which another thread stores at once,
may see one half before and one after the store. In PTX such accesses are a race, although both are strong: two accesses
are morally strong only if they overlap completely. Accesses are aligned, so those of one size do.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.events import Events
from cudakit.sim.lockstep.access import MemoryAccess, unit_of
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.sites import Site

ADVICE = "access the value by one size: of two accesses of different sizes, one may see a part of the other"


def several(units: int) -> bool:
    """Whether a union of the units of strong accesses has more than one."""
    return units & (units - 1) != 0


def differ(access: MemoryAccess, site: Site) -> bool:
    """Whether an access, and an earlier one at a site, are strong and of different sizes."""
    other = unit_of(site.instruction)
    return access.unit != other and access.unit > 0 and other > 0


def torn(events: Events, access: MemoryAccess, numbers: Array, strong: Array) -> Array:
    """A mask of the accesses at the events ``numbers``, among those of ``strong``, whose size differs from that of an
    access to the same bytes."""
    found = np.zeros(strong.shape, np.bool_)
    cells = np.nonzero(strong)
    if len(cells[0]):
        kinds, which = np.unique(np.broadcast_to(numbers, strong.shape)[cells], return_inverse=True)
        found[cells] = np.array([differ(access, events.site(number)) for number in kinds.tolist()])[which]
    return found
