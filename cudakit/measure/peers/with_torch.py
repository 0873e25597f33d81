"""torch as a peer: its own kernels, and the same work as plain tensor operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cudakit import ops
from cudakit.family import Ladder, several
from cudakit.measure.peers import torch_attention, torch_fft
from cudakit.measure.peers.peer import call_of_work

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost, Peer
    from cudakit.memory.array import DeviceArray

# work(*inputs, output, **options) on tensors: see call_of_work.
Work = Callable[..., Any]


def _peer(family: str, idea: str, name: str = "peer:torch") -> Callable[[Work], Work]:
    """Add the decorated function as a peer of one of cudakit's families."""
    return ops.families()[family].peer("torch", idea, name)


def sees(ordinal: int) -> bool:
    """Return whether torch is built with CUDA and finds GPU number `ordinal`."""
    return bool(torch.cuda.is_available()) and ordinal < torch.cuda.device_count()


@contextmanager
def on_stream(stream: Stream, ordinal: int) -> Iterator[None]:
    """Make `stream` torch's current stream within a context."""
    external: Any = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call,unused-ignore]
        int(stream.handle), device=torch.device("cuda", ordinal)
    )
    with torch.cuda.device(ordinal), torch.cuda.stream(external), torch.no_grad():
        yield


def tensors(inputs: Sequence[DeviceArray], output: Any) -> tuple[list[Any], Any]:
    """Return the arrays as tensors that share their memory; a tuple for several outputs."""
    import_array: Any = torch.utils.dlpack.from_dlpack
    made = tuple(import_array(array) for array in several(output))
    return [import_array(array) for array in inputs], made if isinstance(output, tuple) else made[0]


@dataclass(frozen=True)
class TorchPeer:
    """One torch implementation; `work` writes into the output."""

    name: str
    idea: str
    work: Work
    ordinal: int
    options: Mapping[str, Any]
    rung: int | None = None
    arrays: str = "torch"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if self.options.get("to") == "int32":
            return "torch casts to int32 towards zero"
        return torch_fft.refusal(self.work, dtype)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return on_stream(stream, self.ordinal)

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        inputs, outputs = tensors(*arrays)
        return call_of_work(self.work, (*inputs, *several(outputs)), self.options)

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]


class AttentionPeer(TorchPeer):
    """torch's scaled_dot_product_attention with the backend named by the end of the peer's name.

    Its causal mask is aligned at the first query and key. The function cannot write into an existing array, so the
    first call of a launch copies the result to the output for the check; later calls do not, so that no copy is timed.
    """

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        return torch_attention.refusal(self.name, shape, dtype, self.options)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        with super().on(stream), torch_attention.backend(self.name):
            yield

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self._launch(arrays, stream) for arrays in sets]

    def _launch(self, arrays: ArraySet, stream: Stream) -> Call:
        call = self.call(arrays, stream)
        inputs, output = tensors(*arrays)
        lengths = inputs[3] if self.options.get("padded") else None
        unchecked = [output]

        def launch() -> None:
            result = call()
            while unchecked:
                torch_attention.store(unchecked.pop(), result, lengths)

        return launch


@_peer("softmax", "torch.softmax(out=)")
def _softmax(x: Any, output: Any) -> Call:
    return lambda: torch.softmax(x, -1, out=output)


@_peer("softmax", "amax, sub, exp, sum, div as torch operations", "peer:torch-naive")
def _softmax_naive(x: Any, output: Any) -> Call:

    def call() -> None:
        exponentials = torch.exp(x - x.amax(-1, keepdim=True))
        torch.div(exponentials, exponentials.sum(-1, keepdim=True), out=output)

    return call


@_peer("softmax_modes", "mul, masked_fill, softmax(out=) or log_softmax(out=)")
def _softmax_modes(x: Any, *others: Any, log: bool = False, scale: float = 1.0, masked: bool = False) -> Call:
    function = torch.log_softmax if log else torch.softmax
    *mask, output = others

    def call() -> None:
        scaled = x * scale if scale != 1.0 else x
        if masked:
            scaled = scaled.masked_fill(mask[0].logical_not(), -torch.inf)
        function(scaled, -1, out=output)

    return call


@_peer("softmax_backward", "the function that torch's autograd calls")
def _softmax_backward(grad: Any, y: Any, output: Any, log: bool = False, scale: float = 1.0) -> Call:
    dtype = y.dtype
    if log:
        gradient = functools.partial(torch.ops.aten._log_softmax_backward_data.out, grad, y, -1, dtype, out=output)
    else:
        gradient = functools.partial(torch.ops.aten._softmax_backward_data.out, grad, y, -1, dtype, grad_input=output)
    return gradient if scale == 1.0 else lambda: gradient().mul_(scale)


@_peer("vector_add", "torch.add(out=)")
@_peer("matrix_add", "torch.add(out=)")
@_peer("add", "torch.add(out=)")
def _add(a: Any, b: Any, output: Any, operand: str = "row") -> Call:
    return lambda: torch.add(a, b, out=output)


@_peer("add_broadcast", "torch.add(out=) and Tensor.add_")
def _add_broadcast(volume: Any, plane: Any, line: Any, output: Any) -> Call:

    def call() -> None:
        torch.add(volume, plane[:, :, None], out=output)
        output.add_(line[:, None, None])

    return call


@_peer("scale", "torch.mul(out=)")
def _scale(x: Any, output: Any, factor: float = 0.7) -> Call:
    return lambda: torch.mul(x, factor, out=output)


@_peer("threshold", "comparison and torch.where(out=)")
def _threshold(x: Any, output: Any, limit: float = 0.3) -> Call:
    zero = torch.zeros((), device=x.device, dtype=x.dtype)
    return lambda: torch.where(x < limit, zero, x, out=output)


@_peer("cast", "Tensor.copy_")
def _cast(x: Any, output: Any, to: str = "float16") -> Call:
    return lambda: output.copy_(x)


@_peer("fill", "Tensor.fill_")
def _fill(x: Any, output: Any, value: Any = 1.0) -> Call:
    return lambda: output.fill_(value)


def _reduced(function: Any, x: Any, output: Any, axis: int | None = -1) -> Call:
    x, along = (x.reshape(-1), -1) if axis is None else (x, axis)
    return lambda: function(x, along, out=output)


for _name, _function in (("sum", torch.sum), ("max", torch.amax), ("argmax", torch.argmax)):
    _peer(_name, f"torch.{_function.__name__}(out=)")(functools.partial(_reduced, _function))


@_peer("gemm", "torch.matmul(out=), no TF32")
@_peer("gemm_half", "torch.matmul(out=)")
def _matmul(a: Any, b: Any, output: Any) -> Call:
    torch.backends.cuda.matmul.allow_tf32 = False  # full fp32 precision
    return lambda: torch.matmul(a, b, out=output)


@_peer("blur", "conv2d and a copy into the output")
def _blur(x: Any, output: Any, border: str = "zero") -> Call:
    mode = {"zero": "", "clamp": "replicate"}.get(border, "reflect")
    line = torch.tensor([1.0, 2.0, 1.0], device=x.device)
    weights = (line[:, None] * line / 16)[None, None]

    def call() -> None:
        images = x.reshape(-1, 1, *x.shape[-2:])
        if mode:
            images = torch.nn.functional.pad(images, (1, 1, 1, 1), mode=mode)
        output.copy_(torch.nn.functional.conv2d(images, weights, padding=int(not mode)).reshape(x.shape))

    return call


def peers(family: Ladder[Any], ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """Return torch's implementations of the family with its `options`."""
    return [
        (AttentionPeer if family.name == "attention" else TorchPeer)(each.name, each.idea, each.work, ordinal, options)
        for each in family.peers
        if each.package == "torch"
    ]


def on_host(family: Ladder[Any]) -> HostPeer | None:
    """Return torch's implementation of the family (its row `peer:torch`) for tensors in host memory; None if there is
    none."""
    for each in family.peers:
        if (each.package, each.name) == ("torch", "peer:torch") and not family.in_place:
            return HostPeer(each.idea, each.work)
    return None


@dataclass(frozen=True)
class HostPeer:
    """A torch implementation on tensors in host memory. It uses all of torch's CPU threads."""

    work_idea: str
    work: Work
    name: str = "cpu:torch"

    @property
    def idea(self) -> str:
        threads = torch.get_num_threads()
        return f"{self.work_idea} on the host, {threads} {'thread' if threads == 1 else 'threads'}"

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any], options: Mapping[str, Any]) -> Call:
        """Return a call that computes numpy arrays `outputs` from numpy arrays `inputs`, in place of their contents."""
        return call_of_work(self.work, [torch.from_numpy(array) for array in (*inputs, *outputs)], options)
