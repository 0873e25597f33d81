"""Limits and attributes of the simulated devices: those of one real GPU per architecture.

Limits (threads, registers, shared memory, grid and block sizes, caches) are those of the real chip, so that launch
configurations and occupancy are the same as on it. The attribute of a feature that the simulated driver does not
support (managed memory, virtual memory management, RDMA ...) is 0, even if the chip has the feature.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from cuda.bindings import driver as cu

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# the simulated driver's version is the CUDA version of the bindings
DRIVER_VERSION: int = cu.CUDA_VERSION
DEFAULT_MEMORY = 8 * GIB


@dataclass(frozen=True)
class Chip:
    """The limits of one GPU. Sizes are bytes, clocks kHz, ``bus`` bits; ``gpcs`` lists the SMs of each GPC.

    ``arch`` is the architecture that code is compiled for. With a letter (sm_90a, sm_100f) the chip also has the
    instructions that only this chip, or only its family, has. Registers are allocated to warps in units of
    ``register_unit``; an SM has ``partitions`` schedulers, each with an equal share of the registers. Clusters have up
    to ``portable_cluster`` blocks, or up to ``largest_cluster`` if the function opts in.
    """

    arch: str
    model: str
    multiprocessors: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    shared_per_block_optin: int
    reserved_shared_per_block: int
    shared_granularity: int
    l2_size: int
    clock: int
    memory_clock: int
    bus: int
    single_to_double: int
    gpcs: tuple[int, ...] = ()
    max_threads_per_block: int = 1024
    max_block: tuple[int, int, int] = (1024, 1024, 64)
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_per_block: int = 48 * KIB
    registers_per_block: int = 65536
    registers_per_multiprocessor: int = 65536
    max_registers_per_thread: int = 255
    register_unit: int = 256
    partitions: int = 4
    portable_cluster: int = 8
    largest_cluster: int = 16
    warp_size: int = 32
    constant_memory: int = 64 * KIB

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, (major, minor)."""
        return divmod(int(self.arch[3:].rstrip("af")), 10)

    def runs(self, target: str) -> bool:
        """Whether PTX for a target such as "sm_80" or "sm_90a" runs on the chip. A target with "a" runs on no other
        chip, a target with "f" on chips of its family from its number on; the chip must have a letter too."""
        number, suffix = int(target[3:].rstrip("af")), target[-1:]
        major, minor = self.capability
        own = 10 * major + minor
        if suffix == "a":
            return target == self.arch
        if suffix == "f":
            return self.arch[-1:] in ("a", "f") and number // 10 == major and number <= own
        return number <= own

    @property
    def has_clusters(self) -> bool:
        return self.capability[0] >= 9


CHIPS = {
    chip.arch: chip
    for chip in (
        Chip("sm_75", "Tesla T4", 40, 1024, 16, 64 * KIB, 64 * KIB, 0, 256, 4 * MIB, 1590000, 5001000, 256, 32),
        Chip("sm_80", "A100", 108, 2048, 32, 164 * KIB, 163 * KIB, KIB, 128, 40 * MIB, 1410000, 1593000, 5120, 2),
        Chip("sm_86", "A10", 72, 1536, 16, 100 * KIB, 99 * KIB, KIB, 128, 6 * MIB, 1695000, 6251000, 384, 32),
        Chip("sm_89", "L40S", 142, 1536, 24, 100 * KIB, 99 * KIB, KIB, 128, 96 * MIB, 2520000, 9001000, 384, 64),
        Chip(
            "sm_90", "H200", 132, 2048, 32, 228 * KIB, 227 * KIB, KIB, 128, 60 * MIB, 1980000, 3201000, 6144, 2,
            (16, 16, 16, 16, 16, 16, 18, 18),
        ),
        Chip(
            "sm_100", "B200", 148, 2048, 32, 228 * KIB, 227 * KIB, KIB, 128, 126 * MIB + 512 * KIB, 1965000, 3996000,
            8192, 2, (18, 18, 18, 18, 18, 18, 20, 20),
        ),
        Chip(
            "sm_120", "GeForce RTX 5090", 170, 1536, 24, 100 * KIB, 99 * KIB, KIB, 128, 96 * MIB, 2407000, 14001000,
            512, 64, (14, 14, 14, 14, 14, 14, 14, 14, 14, 14, 14, 16),
        ),
    )
}  # fmt: skip


# the first compute capability of chips whose architecture may have a letter
_SUFFIXES = {"": (0, 0), "a": (9, 0), "f": (10, 0)}


def chip(arch: str) -> Chip:
    """Return the chip of an architecture such as "sm_90" or "sm_90a"; raises ValueError if it is not simulated."""
    match = re.fullmatch(r"(sm_\d+)([af]?)", arch)
    known = CHIPS.get(match[1]) if match else None
    if match is None or known is None or known.capability < _SUFFIXES[match[2]]:
        raise ValueError(
            f"no simulated device for {arch!r}; there are {', '.join(CHIPS)}, from sm_90 on also with a (sm_90a), and"
            " from sm_100 on with f"
        )
    return replace(known, arch=arch)


# the same on all these chips
_TEXTURES = {
    "MAXIMUM_TEXTURE1D_WIDTH": 131072,
    "MAXIMUM_TEXTURE2D_WIDTH": 131072,
    "MAXIMUM_TEXTURE2D_HEIGHT": 65536,
    "MAXIMUM_TEXTURE3D_WIDTH": 16384,
    "MAXIMUM_TEXTURE3D_HEIGHT": 16384,
    "MAXIMUM_TEXTURE3D_DEPTH": 16384,
    "MAXIMUM_TEXTURE2D_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_LAYERED_HEIGHT": 32768,
    "MAXIMUM_TEXTURE2D_LAYERED_LAYERS": 2048,
    "MAXIMUM_TEXTURE1D_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURE1D_LAYERED_LAYERS": 2048,
    "MAXIMUM_TEXTURE2D_GATHER_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_GATHER_HEIGHT": 32768,
    "MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE": 8192,
    "MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE": 8192,
    "MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE": 32768,
    "MAXIMUM_TEXTURECUBEMAP_WIDTH": 32768,
    "MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS": 2046,
    "MAXIMUM_SURFACE1D_WIDTH": 32768,
    "MAXIMUM_SURFACE2D_WIDTH": 131072,
    "MAXIMUM_SURFACE2D_HEIGHT": 65536,
    "MAXIMUM_SURFACE3D_WIDTH": 16384,
    "MAXIMUM_SURFACE3D_HEIGHT": 16384,
    "MAXIMUM_SURFACE3D_DEPTH": 16384,
    "MAXIMUM_SURFACE1D_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACE1D_LAYERED_LAYERS": 2048,
    "MAXIMUM_SURFACE2D_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACE2D_LAYERED_HEIGHT": 32768,
    "MAXIMUM_SURFACE2D_LAYERED_LAYERS": 2048,
    "MAXIMUM_SURFACECUBEMAP_WIDTH": 32768,
    "MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS": 2046,
    "MAXIMUM_TEXTURE1D_LINEAR_WIDTH": 268435456,
    "MAXIMUM_TEXTURE2D_LINEAR_WIDTH": 131072,
    "MAXIMUM_TEXTURE2D_LINEAR_HEIGHT": 65000,
    "MAXIMUM_TEXTURE2D_LINEAR_PITCH": 2097120,
    "MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT": 32768,
    "MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH": 32768,
}


def attributes(chip: Chip, ordinal: int) -> dict[int, int]:
    """The value of every ``CUdevice_attribute``, by its number."""
    major, minor = chip.capability
    hopper = int(chip.has_clusters)
    named: dict[str, int] = {
        "MAX_THREADS_PER_BLOCK": chip.max_threads_per_block,
        "MAX_BLOCK_DIM_X": chip.max_block[0],
        "MAX_BLOCK_DIM_Y": chip.max_block[1],
        "MAX_BLOCK_DIM_Z": chip.max_block[2],
        "MAX_GRID_DIM_X": chip.max_grid[0],
        "MAX_GRID_DIM_Y": chip.max_grid[1],
        "MAX_GRID_DIM_Z": chip.max_grid[2],
        "MAX_SHARED_MEMORY_PER_BLOCK": chip.shared_per_block,
        "TOTAL_CONSTANT_MEMORY": chip.constant_memory,
        "WARP_SIZE": chip.warp_size,
        "MAX_PITCH": 2**31 - 1,
        "MAX_REGISTERS_PER_BLOCK": chip.registers_per_block,
        "CLOCK_RATE": chip.clock,
        "TEXTURE_ALIGNMENT": 512,
        "GPU_OVERLAP": 1,
        "MULTIPROCESSOR_COUNT": chip.multiprocessors,
        "CAN_MAP_HOST_MEMORY": 1,
        "SURFACE_ALIGNMENT": 512,
        "CONCURRENT_KERNELS": 1,
        "ECC_ENABLED": 1,
        "PCI_BUS_ID": 1 + ordinal,
        "MEMORY_CLOCK_RATE": chip.memory_clock,
        "GLOBAL_MEMORY_BUS_WIDTH": chip.bus,
        "L2_CACHE_SIZE": chip.l2_size,
        "MAX_THREADS_PER_MULTIPROCESSOR": chip.max_threads_per_multiprocessor,
        "ASYNC_ENGINE_COUNT": 3,
        "UNIFIED_ADDRESSING": 1,
        "CAN_TEX2D_GATHER": 1,
        "TEXTURE_PITCH_ALIGNMENT": 32,
        "COMPUTE_CAPABILITY_MAJOR": major,
        "COMPUTE_CAPABILITY_MINOR": minor,
        "STREAM_PRIORITIES_SUPPORTED": 1,
        "GLOBAL_L1_CACHE_SUPPORTED": 1,
        "LOCAL_L1_CACHE_SUPPORTED": 1,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": chip.shared_per_multiprocessor,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": chip.registers_per_multiprocessor,
        "MULTI_GPU_BOARD_GROUP_ID": ordinal,
        "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": chip.single_to_double,
        "COMPUTE_PREEMPTION_SUPPORTED": 1,
        "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": 1,
        "COOPERATIVE_LAUNCH": 1,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": chip.shared_per_block_optin,
        "HOST_REGISTER_SUPPORTED": 1,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": chip.max_blocks_per_multiprocessor,
        "MAX_PERSISTING_L2_CACHE_SIZE": chip.l2_size * 5 // 8 if major >= 8 else 0,
        "MAX_ACCESS_POLICY_WINDOW_SIZE": 128 * MIB if major >= 8 else 0,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": chip.reserved_shared_per_block,
        "MEMORY_POOLS_SUPPORTED": 1,
        "CLUSTER_LAUNCH": hopper,
        "MEM_SYNC_DOMAIN_COUNT": 4 if hopper else 1,
        "NUMA_ID": -1,
        "HOST_NUMA_ID": 0,
        **_TEXTURES,
    }
    values = {int(member): 0 for member in cu.CUdevice_attribute}
    for name, value in named.items():
        member: Any = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if member is not None:
            values[int(member)] = value
    # the number of attributes, not an attribute
    values.pop(int(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX), None)
    return values
