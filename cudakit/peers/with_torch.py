"""torch as a peer: its own kernels, and the same work in plain tensor operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cudakit.memory import DeviceArray
    from cudakit.peers import Peer
    from cudakit.stream import Stream
    from cudakit.timing import GpuTimer, Launch

# work(inputs, output, **options) queues the whole job on torch's current stream
Work = Callable[..., object]


def sees(ordinal: int) -> bool:
    """Whether this torch is built with CUDA and finds that GPU."""
    return bool(torch.cuda.is_available()) and ordinal < torch.cuda.device_count()


@contextmanager
def on_stream(stream: Stream, ordinal: int) -> Iterator[None]:
    """Makes `stream` torch's current stream."""
    external = torch.cuda.ExternalStream(int(stream.handle), device=torch.device("cuda", ordinal))
    with torch.cuda.device(ordinal), torch.cuda.stream(external), torch.no_grad():
        yield


def tensors(inputs: Sequence[DeviceArray], output: DeviceArray) -> tuple[list[Any], Any]:
    """The arrays as tensors over the same memory."""
    return [torch.from_dlpack(array) for array in inputs], torch.from_dlpack(output)


@dataclass(frozen=True)
class TorchPeer:
    """One torch implementation; `work` writes its output in place."""

    name: str
    idea: str
    work: Work
    ordinal: int
    options: Mapping[str, Any]
    rung: int | None = None

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        return None

    def on(self, stream: Stream) -> Any:
        return on_stream(stream, self.ordinal)

    def bind(self, sets: Sequence[tuple[list[DeviceArray], DeviceArray]], timer: GpuTimer) -> list[Launch]:
        return [functools.partial(self.work, *tensors(inputs, output), **self.options) for inputs, output in sets]


def _softmax(inputs: Sequence[Any], output: Any) -> None:
    torch.softmax(inputs[0], -1, out=output)


def _softmax_naive(inputs: Sequence[Any], output: Any) -> None:
    (x,) = inputs
    exponentials = torch.exp(x - x.amax(-1, keepdim=True))
    torch.div(exponentials, exponentials.sum(-1, keepdim=True), out=output)


def _add(inputs: Sequence[Any], output: Any) -> None:
    torch.add(inputs[0], inputs[1], out=output)


_WORK: dict[str, list[tuple[str, str, Work]]] = {
    "softmax": [
        ("peer:torch", "torch.softmax(out=)", _softmax),
        ("peer:torch-naive", "amax, sub, exp, sum, div as torch operations", _softmax_naive),
    ],
    "vector_add": [("peer:torch", "torch.add(out=)", _add)],
}


def peers(family: str, ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """torch's ways of doing `family` at its `options`."""
    return [TorchPeer(name, idea, work, ordinal, options) for name, idea, work in _WORK.get(family, [])]
