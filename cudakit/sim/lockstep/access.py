"""Memory accesses of lanes: loads and stores in every state space.

``locate`` turns addresses into pieces: a typed view of a store, and the element of it that each lane accesses. Loads,
stores and atomics work on pieces, so their code is the same for every space.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, choose
from cudakit.sim.lockstep.locate import AddressResolver
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import row_of
from cudakit.sim.values.lanewise import width

_STRONG = frozenset(("volatile", "relaxed", "acquire", "release", "mmio"))
# an atomic with one of these does not acquire
_NO_ACQUIRE = frozenset(("relaxed", "release", "cas", "exch"))
# the scopes of strong accesses and fences: the threads of a block, of a cluster, or of the whole device and system
BLOCK, CLUSTER, DEVICE = range(3)


def scope_of(instruction: Instruction) -> int:
    """The scope of a strong access or a fence: BLOCK, CLUSTER or DEVICE."""
    if "cta" in instruction.modifiers:
        return BLOCK
    return CLUSTER if "cluster" in instruction.modifiers else DEVICE


def unit_of(instruction: Instruction) -> int:
    """The bytes that a strong access reads or writes as one: 4, 8 or 16 for each element; 0 if the access is weak, or
    of smaller elements, on which cuda::atomic uses both accesses of their size and atomics of 4 bytes."""
    kind = instruction.modifiers[-1]
    size = width(kind) // 8
    return size if size >= 4 and not kind.endswith("16x2") and _is_strong(instruction) else 0


def _is_strong(instruction: Instruction) -> bool:
    if instruction.opcode == "tensormap":
        return False  # the release of cp_fenceproxy is that of its fence: the copy is weak
    return row_of(instruction).mix == "atomic" or not _STRONG.isdisjoint(instruction.modifiers)


def _acquires(instruction: Instruction) -> bool:
    if instruction.opcode == "red":
        return False  # its read is not part of an acquire pattern
    if not {"acquire", "acq_rel"}.isdisjoint(instruction.modifiers):
        return True
    # PTX makes atomicAdd() and its like relaxed. But no fence follows the atomic that counts the blocks in the
    # programming guide's own last-block reduction, and an H200 shows no stale value after one. Those of locks and lists
    # need the fence.
    return instruction.opcode == "atom" and _NO_ACQUIRE.isdisjoint(instruction.modifiers)


class MemoryAccess(AddressResolver):
    """One access instruction.

    ``strong``: volatile, relaxed, acquire, release or atomic, so that two such accesses are not a race if the
    ``scope`` of each includes the other's thread, and their elements are of one size (``unit``). ``releases``: it
    publishes earlier accesses without a fence. ``acquires``: accesses that follow it see what the write that it reads
    publishes, without a fence.
    ``unused`` are the elements whose values are never read, such as the padding of a structure, ``copied`` those whose
    values are only stored again. ``followed``: it loads registers, so that undefined values are followed and reported
    when they are used."""

    __slots__ = ("acquires", "copied", "followed", "releases", "scope", "strong", "unit", "unused")

    def __init__(self, site: Site, space: str, offset: int, width: int, count: int) -> None:
        super().__init__(site, space, offset, width, count)
        instruction = site.instruction
        self.strong = _is_strong(instruction)
        self.unit = unit_of(instruction) if self.strong else 0
        self.scope = scope_of(instruction)
        self.releases = "release" in instruction.modifiers or "acq_rel" in instruction.modifiers
        self.acquires = _acquires(instruction)
        self.followed = instruction.opcode in ("ld", "ldu")
        self.unused: tuple[int, ...] = ()
        self.copied: tuple[int, ...] = ()

    def matter(self, missing: Array, granules: int) -> Array:
        """A mask of the uninitialised elements to report, per lane or for all lanes, from a mask of the uninitialised
        granules (``granules`` per access).

        An element that is partly initialised is not reported: compilers load a structure's padding too. Neither is an
        unused element, nor a copied one if other elements of its access are initialised."""
        if granules == 1:
            return missing
        found: Array = np.all(missing.reshape(*missing.shape[:-1], self.count, -1), axis=-1)
        if self.unused:
            found[..., list(self.unused)] = False
        if self.copied:
            there: Array = np.any(~missing, axis=-1)
            for element in self.copied:
                found[..., element] &= ~there
        return found

    def load(self, f: Fragment, address: Array) -> Array:
        """Load the elements at each lane's address, in memory's dtype: (lanes,) or (lanes, count), without the first
        dimension if all lanes have the same address."""
        lanes = f.lanes
        pieces = self.locate(f, lanes, address)
        if f.batch.guard is not None:
            f.batch.guard.read(f, self, pieces)
        view, index, choice, *_ = pieces[0]
        if choice is None:
            if isinstance(index, slice):
                run: Array = view[index].copy()
                return run
            if isinstance(index, int):
                found: Array = view[index]
                return found if self.count == 1 else found.copy()
            gathered: Array = view.take(index, axis=0)
            return gathered
        out = np.empty((lanes.count, self.count) if self.count > 1 else lanes.count, self.dtype)
        for view, index, choice, *_ in pieces:
            out[choice] = view[index]
        return out

    def load_vector(self, f: Fragment, address: Array) -> tuple[Array, ...]:
        """``load`` a vector: one array per element."""
        found = self.load(f, address)
        if found.ndim == 1:
            return tuple(found)
        return tuple(np.ascontiguousarray(found[:, k]) for k in range(self.count))

    def store(self, f: Fragment, address: Array, value: Array) -> None:
        """Store each lane's value; if several lanes store to one address, the last one wins."""
        f.batch.progress += 1
        pieces = self.locate(f, f.lanes, address)
        if f.batch.guard is not None:
            f.batch.guard.write(f, self, pieces, value)
        for view, index, choice, *_ in pieces:
            part = value if choice is None else choose(value, choice)
            if isinstance(index, int) and part.ndim:
                part = part[-1]
            view[index] = part

    def store_vector(self, f: Fragment, address: Array, values: tuple[Array, ...]) -> None:
        """``store`` a vector, given as one array per element."""
        rows = np.empty((f.lanes.count, self.count), self.dtype)
        for k, value in enumerate(values):
            rows[:, k] = value
        self.store_rows(f, address, rows)

    def store_rows(self, f: Fragment, address: Array, rows: Array) -> None:
        f.batch.progress += 1
        pieces = self.locate(f, f.lanes, address)
        if f.batch.guard is not None:
            f.batch.guard.write(f, self, pieces, rows)
        for view, index, choice, *_ in pieces:
            part = rows if choice is None else rows[choice]
            view[index] = part[-1] if isinstance(index, int) else part
