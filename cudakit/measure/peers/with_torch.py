"""torch as a peer: its own kernels, and the same work in plain tensor operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost, Peer
    from cudakit.memory.array import DeviceArray

# work(inputs, output, **options) returns the call as a user of torch writes it, on tensors it already has; made once
# per set of arrays, it queues the whole job on torch's current stream.
Work = Callable[..., "Call"]


def sees(ordinal: int) -> bool:
    """Whether this torch is built with CUDA and finds that GPU."""
    return bool(torch.cuda.is_available()) and ordinal < torch.cuda.device_count()


@contextmanager
def on_stream(stream: Stream, ordinal: int) -> Iterator[None]:
    """Makes `stream` torch's current stream."""
    external: Any = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call,unused-ignore]
        int(stream.handle), device=torch.device("cuda", ordinal)
    )
    with torch.cuda.device(ordinal), torch.cuda.stream(external), torch.no_grad():
        yield


def tensors(inputs: Sequence[DeviceArray], output: DeviceArray) -> tuple[list[Any], Any]:
    """The arrays as tensors over the same memory."""
    import_array: Any = torch.utils.dlpack.from_dlpack
    return [import_array(array) for array in inputs], import_array(output)


@dataclass(frozen=True)
class TorchPeer:
    """One torch implementation; `work` writes its output in place."""

    name: str
    idea: str
    work: Work
    ordinal: int
    options: Mapping[str, Any]
    rung: int | None = None
    arrays: str = "torch"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        return "torch casts to int32 towards zero" if self.options.get("to") == "int32" else None

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return on_stream(stream, self.ordinal)

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        return self.work(*tensors(*arrays), **self.options)

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]


class AttentionPeer(TorchPeer):
    """torch's scaled_dot_product_attention with the backend that its name ends in.

    Its causal limit is aligned at the first query and key. It writes into no array it is given: the first call of a
    launch copies its result to the output, to be checked; the calls that follow leave it where torch put it, so that no
    copy is timed.
    """

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if dtype == "float32" and self.name != "peer:torch-efficient":
            return "it takes float16 and bfloat16"
        if self.name == "peer:torch-efficient" and shape[1] != shape[2]:
            return "it has no grouped queries"
        if self.options.get("causal") and shape[3] != shape[4]:
            return "torch aligns the causal limit at the beginning, so that the masks differ where queries and keys do"
        return None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with super().on(stream), sdpa_kernel(getattr(SDPBackend, _BACKENDS[self.name])):
            yield

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self._launch(arrays, stream) for arrays in sets]

    def _launch(self, arrays: ArraySet, stream: Stream) -> Call:
        call = self.call(arrays, stream)
        _, output = tensors(*arrays)
        unchecked = [output]

        def launch() -> None:
            result = call()
            while unchecked:
                unchecked.pop().copy_(result)

        return launch


def _attention(inputs: Sequence[Any], output: Any, causal: bool = False, scale: float | None = None) -> Call:
    q, k, v = inputs
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


def _softmax(inputs: Sequence[Any], output: Any) -> Call:
    (x,) = inputs
    return lambda: torch.softmax(x, -1, out=output)


def _softmax_naive(inputs: Sequence[Any], output: Any) -> Call:
    (x,) = inputs

    def call() -> None:
        exponentials = torch.exp(x - x.amax(-1, keepdim=True))
        torch.div(exponentials, exponentials.sum(-1, keepdim=True), out=output)

    return call


def _softmax_modes(
    inputs: Sequence[Any], output: Any, log: bool = False, scale: float = 1.0, masked: bool = False
) -> Call:
    function = torch.log_softmax if log else torch.softmax

    def call() -> None:
        x = inputs[0]
        if scale != 1.0:
            x = x * scale
        if masked:
            x = x.masked_fill(inputs[1].logical_not(), -torch.inf)
        function(x, -1, out=output)

    return call


def _softmax_backward(inputs: Sequence[Any], output: Any, log: bool = False, scale: float = 1.0) -> Call:
    """What torch's autograd calls for the gradient."""
    grad, y = inputs
    dtype = y.dtype
    if log:
        gradient = functools.partial(torch.ops.aten._log_softmax_backward_data.out, grad, y, -1, dtype, out=output)
    else:
        gradient = functools.partial(torch.ops.aten._softmax_backward_data.out, grad, y, -1, dtype, grad_input=output)
    return gradient if scale == 1.0 else lambda: gradient().mul_(scale)


def _add(inputs: Sequence[Any], output: Any, operand: str = "row") -> Call:
    a, b = inputs
    return lambda: torch.add(a, b, out=output)


def _add_broadcast(inputs: Sequence[Any], output: Any) -> Call:
    volume, plane, line = inputs

    def call() -> None:
        torch.add(volume, plane[:, :, None], out=output)
        output.add_(line[:, None, None])

    return call


def _scale(inputs: Sequence[Any], output: Any, factor: float = 0.7) -> Call:
    (x,) = inputs
    return lambda: torch.mul(x, factor, out=output)


def _threshold(inputs: Sequence[Any], output: Any, limit: float = 0.3) -> Call:
    (x,) = inputs
    zero = torch.zeros((), device=x.device, dtype=x.dtype)
    return lambda: torch.where(x < limit, zero, x, out=output)


def _cast(inputs: Sequence[Any], output: Any, to: str = "float16") -> Call:
    (x,) = inputs
    return lambda: output.copy_(x)


def _fill(inputs: Sequence[Any], output: Any, value: Any = 1.0) -> Call:
    return lambda: output.fill_(value)


def _reduced(function: Any, inputs: Sequence[Any], output: Any, axis: int | None = -1) -> Call:
    x, along = (inputs[0].reshape(-1), -1) if axis is None else (inputs[0], axis)
    return lambda: function(x, along, out=output)


def _matmul(inputs: Sequence[Any], output: Any) -> Call:
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    a, b = inputs
    return lambda: torch.matmul(a, b, out=output)


def _blur(inputs: Sequence[Any], output: Any, border: str = "zero") -> Call:
    (x,) = inputs
    mode = {"zero": "", "clamp": "replicate"}.get(border, "reflect")
    line = torch.tensor([1.0, 2.0, 1.0], device=x.device)
    weights = (line[:, None] * line / 16)[None, None]

    def call() -> None:
        images = x.reshape(-1, 1, *x.shape[-2:])
        if mode:
            images = torch.nn.functional.pad(images, (1, 1, 1, 1), mode=mode)
        output.copy_(torch.nn.functional.conv2d(images, weights, padding=int(not mode)).reshape(x.shape))

    return call


_BACKENDS = {
    "peer:torch-flash": "FLASH_ATTENTION",
    "peer:torch-cudnn": "CUDNN_ATTENTION",
    "peer:torch-efficient": "EFFICIENT_ATTENTION",
}
_WORK: dict[str, list[tuple[str, str, Work]]] = {
    "attention": [
        (name, f"scaled_dot_product_attention, {backend}", _attention) for name, backend in _BACKENDS.items()
    ],
    "gemm": [("peer:torch", "torch.matmul(out=), no TF32", _matmul)],
    "gemm_half": [("peer:torch", "torch.matmul(out=)", _matmul)],
    "softmax": [
        ("peer:torch", "torch.softmax(out=)", _softmax),
        ("peer:torch-naive", "amax, sub, exp, sum, div as torch operations", _softmax_naive),
    ],
    "softmax_modes": [("peer:torch", "mul, masked_fill, softmax(out=) or log_softmax(out=)", _softmax_modes)],
    "softmax_backward": [("peer:torch", "the gradient as torch's autograd calls it", _softmax_backward)],
    "vector_add": [("peer:torch", "torch.add(out=)", _add)],
    "matrix_add": [("peer:torch", "torch.add(out=)", _add)],
    "add_broadcast": [("peer:torch", "torch.add(out=) and Tensor.add_", _add_broadcast)],
    "add": [("peer:torch", "torch.add(out=)", _add)],
    "scale": [("peer:torch", "torch.mul(out=)", _scale)],
    "threshold": [("peer:torch", "comparison and torch.where(out=)", _threshold)],
    "cast": [("peer:torch", "Tensor.copy_", _cast)],
    "fill": [("peer:torch", "Tensor.fill_", _fill)],
    "blur": [("peer:torch", "conv2d and a copy into the output", _blur)],
    "sum": [("peer:torch", "torch.sum(out=)", functools.partial(_reduced, torch.sum))],
    "max": [("peer:torch", "torch.amax(out=)", functools.partial(_reduced, torch.amax))],
    "argmax": [("peer:torch", "torch.argmax(out=)", functools.partial(_reduced, torch.argmax))],
}


def peers(family: str, ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """torch's ways of doing `family` at its `options`."""
    kind = AttentionPeer if family == "attention" else TorchPeer
    return [kind(name, idea, work, ordinal, options) for name, idea, work in _WORK.get(family, [])]
