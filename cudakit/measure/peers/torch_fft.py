"""torch.fft as a peer of the Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudakit import ops


def _axes(axes: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-axes, 0)) if isinstance(axes, int) else tuple(axes)


@ops.families()["fft"].peer("torch", "torch.fft.fftn(out=)")
def _fft(
    x: Any, output: Any, axes: int | Sequence[int] = 1, norm: str | None = "backward", inverse: bool = False
) -> Callable[[], Any]:
    function = torch.fft.ifftn if inverse else torch.fft.fftn
    norm = norm or ("forward" if inverse else "backward")
    return lambda: function(x, dim=_axes(axes), norm=norm, out=output)


@ops.families()["rfft"].peer("torch", "torch.fft.rfftn(out=)")
def _rfft(x: Any, output: Any, axes: int | Sequence[int] = 1, norm: str | None = "backward") -> Callable[[], Any]:
    return lambda: torch.fft.rfftn(x, dim=_axes(axes), norm=norm or "backward", out=output)


@ops.families()["irfft"].peer("torch", "torch.fft.irfftn(out=)")
def _irfft(
    x: Any, output: Any, axes: int | Sequence[int] = 1, norm: str | None = "backward", n: int | None = None
) -> Callable[[], Any]:
    dims = _axes(axes)
    extents = [output.shape[axis] for axis in dims]
    return lambda: torch.fft.irfftn(x, s=extents, dim=dims, norm=norm or "forward", out=output)


WORKS = (_fft, _rfft, _irfft)


def refusal(work: Any, dtype: str) -> str | None:
    """Return the reason why torch has no transform of a dtype, or None."""
    return "torch has no FFT of pairs of float16" if work in WORKS and dtype == "float16" else None
