"""cuFFT as version 0 of the Fourier transforms: a plan of `cudakit.libs.fft`, made before the timing, through
nvmath-python's bindings (the extra `libs`), without torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudakit.families.fft_problem import problem
from cudakit.family import Ladder
from cudakit.libs import fft
from cudakit.measure.peers.vendor import VendorPeer

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost

_KINDS = {"fft": "C2C", "rfft": "R2C", "irfft": "C2R"}


@dataclass(frozen=True)
class CufftPeer(VendorPeer):
    """cuFFT's transform with a family's options; a factor other than 1 is a second pass, by cuBLAS. form: the family's
    name."""

    name: str = "cufft"
    idea: str = "NVIDIA's library, plan made beforehand"
    form: str = "fft"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if dtype == "float16":
            return "cudakit.libs.fft supports single and double precision"
        axes = self.options.get("axes", 1)
        if not isinstance(axes, int) or axes > 3:
            return "cudakit.libs.fft transforms one to three last axes"
        return super().refusal(shape, dtype)

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        if len(sets) == 1 and self.form == "irfft":  # cuFFT overwrites its input, which later checks need
            inputs, output = sets[0]
            return [self.call(([inputs[0].copy(stream)], output), stream)]
        return super().bind(sets, stream, cost)

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        inputs, output = arrays
        p = problem(self.form, inputs, output, **self.options)
        batch = p.x.size // math.prod(p.x.shape[p.axes[0] :])
        plan = fft.plan_for(stream, p.lengths, _KINDS[self.form], batch, "complex64")
        direction = fft.INVERSE if p.inverse else fft.FORWARD
        return functools.partial(plan.run, inputs[0], output, direction, stream, p.scale)


def peers(family: Ladder[Any], options: Mapping[str, Any]) -> list[CufftPeer]:
    """Return cuFFT as a peer, if the family is a Fourier transform."""
    return [CufftPeer(options, form=family.name)] if family.ceiling == "cufft" else []
