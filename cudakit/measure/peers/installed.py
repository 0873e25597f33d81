"""The peers of a family that can run here, because their package is installed and sees the GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from cudakit.family import Ladder
from cudakit.measure.peers import with_cublas, with_cufft
from cudakit.measure.peers.peer import Peer


def peers_of(family: Ladder[Any], ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """Return the peers of `family` with its `options`, if their package is installed and sees GPU number `ordinal`.
    cuBLAS and cuFFT, the ceilings of products and Fourier transforms, are included even if their bindings are not
    installed; their rows then have the reason."""
    peers: list[Peer] = [*with_cublas.peers(family, options), *with_cufft.peers(family, options)]
    if importlib.util.find_spec("cupy") is not None:
        from cudakit.measure.peers import with_cupy

        if with_cupy.sees(ordinal):
            peers += with_cupy.peers(family, ordinal, options)
    with_torch = torch_on(ordinal)
    if with_torch is None:
        return peers
    peers += with_torch.peers(family, ordinal, options)
    if importlib.util.find_spec("triton") is not None:
        from cudakit.measure.peers import with_triton

        peers += with_triton.peers(family, ordinal, options)
    return peers


def torch_on(ordinal: int) -> ModuleType | None:
    """Return the module `with_torch` if torch is installed and sees GPU number `ordinal`, else None."""
    if importlib.util.find_spec("torch") is None:
        return None
    from cudakit.measure.peers import with_torch

    return with_torch if with_torch.sees(ordinal) else None


def host_peer_of(family: Ladder[Any]) -> Any:
    """Return the implementation of `family` by a library that uses all CPU cores, with_torch.HostPeer; None if torch is
    not installed or has no implementation of it."""
    if importlib.util.find_spec("torch") is None:
        return None
    from cudakit.measure.peers import with_torch

    return with_torch.on_host(family)
