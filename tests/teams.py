"""Devices that make collective calls: three simulated ones, or two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit.libs import nccl
from cudakit.pytest_plugin import why_no_gpu


@dataclass
class Team:
    devices: list[cudakit.Device]
    ranks: list[nccl.Communicator]
    streams: list[Any]

    @property
    def size(self) -> int:
        return len(self.devices)

    def arrays(self, hosts: Any) -> list[Any]:
        """One host array per rank, copied to the devices."""
        members = zip(self.devices, hosts, self.streams, strict=True)
        return [device.array(np.ascontiguousarray(host), stream=stream) for device, host, stream in members]

    def numpy(self, arrays: Any) -> list[np.ndarray]:
        """The arrays on the host; waits with the communicators' timeout."""
        for rank, stream in zip(self.ranks, self.streams, strict=True):
            rank.wait(stream)
        return [array.numpy(stream) for array, stream in zip(arrays, self.streams, strict=True)]


def gpus(count: int) -> list[cudakit.Device]:
    """Open `count` GPUs; skip the test if there are fewer, or NCCL is missing."""
    if (reason := why_no_gpu()) is not None:
        pytest.skip(f"no GPU: {reason}")
    try:
        nccl.unique_id("gpu")
        return cudakit.Device.several("gpu", count)
    except cudakit.CudakitError as error:
        pytest.skip(f"{count} GPUs with NCCL are not here: {str(error).splitlines()[0]}")


def opened(spec: str, timeout: float | None = None) -> Iterator[Team]:
    devices = gpus(2) if spec == "gpu" else cudakit.Device.several("sim", 3)
    try:
        ranks = nccl.communicators(devices, timeout=timeout or (60 if spec == "gpu" else 5))
        yield Team(devices, ranks, [device.stream() for device in devices])
        for rank in ranks:
            rank.close()
    finally:
        for device in reversed(devices):
            device.close()
