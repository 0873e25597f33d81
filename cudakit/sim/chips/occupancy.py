"""Occupancy: the number of blocks that fit on a multiprocessor, as the driver and NVIDIA's calculator compute it."""

from __future__ import annotations

from dataclasses import dataclass

from cudakit.sim.chips.properties import Chip


@dataclass(frozen=True)
class Occupancy:
    """Blocks per multiprocessor, and the limiting resource: "threads", "registers", "shared memory" or "blocks".
    ``warps`` is the number of warps of those blocks, ``most_warps`` the maximum of a multiprocessor."""

    blocks: int
    limit: str
    warps: int
    most_warps: int

    @property
    def fraction(self) -> float:
        """Theoretical occupancy: resident warps over the maximum of a multiprocessor."""
        return self.warps / self.most_warps


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def registers_per_warp(chip: Chip, registers: int) -> int:
    """Registers that one warp takes when each thread uses ``registers``."""
    return _round_up(max(registers, 1) * chip.warp_size, chip.register_unit)


def max_threads(chip: Chip, registers: int) -> int:
    """The largest block whose registers fit, as a multiple of the warp size and within the chip's limit."""
    warps = chip.registers_per_block // registers_per_warp(chip, registers)
    warps -= warps % chip.partitions if warps >= chip.partitions else 0
    return min(chip.max_threads_per_block, warps * chip.warp_size)


def shared_footprint(chip: Chip, shared: int) -> int:
    """Bytes of a multiprocessor's shared memory that a block with ``shared`` bytes takes."""
    total = shared + chip.reserved_shared_per_block
    return _round_up(total, chip.shared_granularity) if total else 0


def active_blocks(chip: Chip, threads: int, registers: int, shared: int) -> Occupancy:
    """Blocks of ``threads`` threads that fit, with ``registers`` per thread and ``shared`` bytes (static and dynamic)
    per block; 0 blocks if not even one fits."""
    warps, most_warps = -(-threads // chip.warp_size), chip.max_threads_per_multiprocessor // chip.warp_size
    per_partition = chip.registers_per_multiprocessor // chip.partitions // registers_per_warp(chip, registers)
    by = {
        "threads": most_warps // warps,
        "blocks": chip.max_blocks_per_multiprocessor,
        "registers": per_partition * chip.partitions // warps,
    }
    footprint = shared_footprint(chip, shared)
    if footprint:
        by["shared memory"] = chip.shared_per_multiprocessor // footprint
    if threads > chip.max_threads_per_block or shared > chip.shared_per_block_optin:
        return Occupancy(0, "threads" if threads > chip.max_threads_per_block else "shared memory", 0, most_warps)
    limit = min(by, key=lambda name: by[name])
    return Occupancy(by[limit], limit, by[limit] * warps, most_warps)


def available_shared(chip: Chip, blocks: int, static: int) -> int:
    """Dynamic shared memory available to each of ``blocks`` blocks on one multiprocessor; 0 if none is left."""
    share = chip.shared_per_multiprocessor // blocks
    share -= share % chip.shared_granularity
    room = min(share - chip.reserved_shared_per_block, chip.shared_per_block_optin) - static
    return max(room, 0)


def active_clusters(chip: Chip, cluster: int, blocks_per_multiprocessor: int) -> int:
    """Clusters of ``cluster`` blocks that run at the same time; all blocks of a cluster are in one GPC."""
    return sum(gpc * blocks_per_multiprocessor // cluster for gpc in chip.gpcs)
