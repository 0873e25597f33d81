"""A case: one kernel in PTX, its inputs, which are derived from its name, and its launch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .tensor_maps import TensorMap

Bytes = NDArray[np.uint8]
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64"
UNTOUCHED = 0xA5  # the byte with which destinations are filled before a copy


@dataclass(frozen=True)
class Case:
    """One kernel and its launch.

    family: "wgmma", "copies" or "mbarrier". group: the row of the table. name: unique; inputs are derived from it.
    body: the PTX of the kernel after its parameters, which are `pin` and `pout` (addresses of input and output) and,
    for each of `maps`, `pmap0`, `pmap1`... (tensor maps). input, output: functions that return the initial bytes of
    both; the result is the output's bytes after the launch. flags: offsets of 32-bit words in the result that are not 0
    if a wait was given up. locate: a function that returns what a byte of the result is, as text.
    """

    family: str
    group: str
    name: str
    body: str = field(repr=False)
    input: Callable[[], Bytes] = field(repr=False, compare=False)
    output: Callable[[], Bytes] = field(repr=False, compare=False)
    block: int = 128
    cluster: int = 1
    maps: tuple[TensorMap, ...] = ()
    flags: tuple[int, ...] = field(default=(), repr=False)
    locate: Callable[[int], str] = field(default="byte {}".format, repr=False, compare=False)

    def gave_up(self, result: Bytes) -> bool:
        """Return whether a wait was given up in the launch that made a result."""
        return any(result[at : at + 4].any() for at in self.flags)

    @property
    def key(self) -> int:
        """A number that changes with the case's text, but not with the values of its inputs."""
        launch = f"{self.name}|{self.block}|{self.cluster}|{self.maps}|"
        return zlib.crc32((launch + self.body).encode())

    def entry(self, name: str) -> str:
        """Return the kernel's PTX."""
        parameters = [".param .u64 pin", ".param .u64 pout"]
        parameters += [f".param .align 64 .b8 pmap{k}[128]" for k in range(len(self.maps))]
        # the launch has the cluster's size, which for mapa and multicast need not be in the PTX
        return f".visible .entry {name}({', '.join(parameters)})\n{{\n{self.body}\n}}"


def module(cases: Sequence[Case]) -> str:
    """Return a module whose kernels k0, k1... run cases."""
    return "\n".join([HEADER, *(case.entry(f"k{number}") for number, case in enumerate(cases))]) + "\n"


def untouched(size: int) -> Bytes:
    """Return the initial bytes of an output of which every byte that no store reaches must stay as it is."""
    return np.full(size, UNTOUCHED, np.uint8)
