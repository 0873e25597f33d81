"""Collectives on cudakit's arrays and streams: NCCL on GPUs, host functions on simulated devices.

One process for all devices:

    from cudakit.libs import nccl
    ranks = nccl.communicators(Device.several("gpu"))
    with nccl.group():                              # calls of several ranks from one thread need a group
        for rank, stream, x in zip(ranks, streams, arrays):
            rank.all_reduce(stream, x, out=x)

One process per GPU, after process 0 has sent `nccl.unique_id()` to the others by any means:

    rank = nccl.Communicator(device, rank=1, size=2, unique_id=received)
    y = rank.all_gather(stream, x)
    rank.wait(stream, timeout=60)                   # raises CollectiveTimeout if another process has ended

All ranks must make the same calls in the same order, with equal dtypes and sizes. Calls queue their work on a stream
and return without waiting for the device. Only calls of ranks of one process are compared before they are queued on a
GPU; on simulated devices all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.errors import DeviceMismatch
from cudakit.libs import host_processes, nccl_library
from cudakit.libs.communicator import SIMULATED_TIMEOUT_S, TIMEOUT_S, Communicator
from cudakit.libs.groups import group
from cudakit.libs.host_nccl import Clique
from cudakit.libs.mapped import MappedMemory
from cudakit.libs.nccl_library import Link, Settings
from cudakit.memory import array as memory
from cudakit.memory import layout
from cudakit.memory.allocation import Allocation, Uses
from cudakit.memory.array import DeviceArray


def unique_id(device: Device | str | None = None) -> bytes:
    """Return the bytes by which the ranks of several processes find each other. Call it in one process.

    Send the bytes to the processes by any means: an argument of `multiprocessing.Process`, a file, MPI. They hold for
    one set of communicators. The process must run until all ranks have joined; for simulated devices, until they are
    closed.

    Args:
        device: The kind of the ranks' devices: a Device, or a specification such as "gpu" or "sim"; None: the kind of
            `Device()`.

    Raises:
        CudakitError: If NCCL or its bindings are not installed.
    """
    kind = device.kind if isinstance(device, Device) else drivers.open(device).kind
    if kind == "sim":
        return host_processes.unique_id()
    module = nccl_library.bindings()
    try:
        return nccl_library.unique_id(module)
    except Exception as error:
        raise nccl_library.told(error, module, "ncclGetUniqueId") from error


def communicators(
    devices: Sequence[Device],
    *,
    timeout: float | None = None,
    blocking: bool = True,
    min_ctas: int | None = None,
    max_ctas: int | None = None,
    zero_ctas: bool = False,
) -> list[Communicator]:
    """Make all ranks of one process, one per device, and enable peer access between the devices.

    Args:
        devices: Different GPUs, or simulated devices of one `Device.several`. Rank i is on device i.
        timeout: As for `Communicator`.
        blocking: As for `Communicator`; here the default, since all ranks are in this process.
        min_ctas: As for `Communicator`.
        max_ctas: As for `Communicator`.
        zero_ctas: As for `Communicator`.

    Returns:
        The communicators, in the order of the devices.

    Raises:
        ValueError: If there is no device, or one is repeated.
        DeviceMismatch: If the devices are of different drivers.
        CudakitError: If NCCL or its bindings are not installed, or NCCL fails.
    """
    devices = list(devices)
    if not devices:
        raise ValueError("communicators() needs at least one device, got none")
    contexts = [device.context for device in devices]
    if len({context.ordinal for context in contexts}) != len(contexts):
        raise ValueError(f"each rank needs a device of its own, got {[context.spec for context in contexts]}")
    if any(context.driver is not contexts[0].driver for context in contexts):
        raise DeviceMismatch("the devices have different drivers: open them with Device.several()")
    for one in contexts:
        for other in contexts:
            # NCCL reads arrays of the process's other devices directly; access to pool memory is not enabled otherwise.
            if one is not other and one.call("cuDeviceCanAccessPeer", one.device, other.device):
                one.enable_peer(other)
    size = len(devices)
    if devices[0].kind == "sim":
        clique = Clique(size)
        return [Communicator.joined(device, rank, size, timeout, clique) for rank, device in enumerate(devices)]
    module = nccl_library.bindings()
    settings = Settings(blocking, (min_ctas, max_ctas), zero_ctas)
    links: list[Link] = []
    links += [Link(module, context, settings, links) for context in contexts]
    made = [Communicator.joined(device, rank, size, timeout, links[rank]) for rank, device in enumerate(devices)]
    nccl_library.start(links, unique_id(devices[0]), range(size), size, made[0].timeout)
    return made


def registered(ranks: Sequence[Communicator], shape: Any, dtype: Any = "float32") -> list[DeviceArray]:
    """Create arrays that NCCL has registered for its faster paths, one per rank of this process; contents undefined.

    All processes must call this in the same order, with equal shapes. The memory is freed with the communicators. On
    simulated devices the arrays are ordinary ones.

    Args:
        ranks: The ranks of this process.
        shape: Extents, in elements.
        dtype: A numpy dtype or its name.

    Returns:
        One array per rank.
    """
    kind = memory.as_dtype(dtype)
    if ranks[0].device.kind == "sim":
        return [rank.device.empty(shape, kind) for rank in ranks]
    extents = layout.as_shape(shape)
    nbytes = math.prod(extents) * kind.itemsize
    held = [MappedMemory(rank.context, nbytes) for rank in ranks]
    try:
        nccl_library.register([rank.link for rank in ranks], held, ranks[0].timeout)
    except BaseException:
        for each in held:
            each.free()
        raise
    arrays = []
    for rank, each in zip(ranks, held, strict=True):
        uses = Uses(rank.context, rank.device.default_stream)
        span = each.address, each.address + nbytes
        allocation = Allocation(rank.context, each.address, uses, rank, span)  # keeps the communicator alive
        arrays.append(DeviceArray(allocation, each.address, extents, layout.contiguous(extents, kind.itemsize), kind))
    return arrays


__all__ = ["SIMULATED_TIMEOUT_S", "TIMEOUT_S", "Communicator", "communicators", "group", "registered", "unique_id"]
