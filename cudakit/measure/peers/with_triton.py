"""Triton as a peer: the fused softmax, one row per program, and the masked add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from cudakit.family import Ladder
from cudakit.measure.peers.with_torch import on_stream, tensors

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost, Peer

# A program holds its row in registers. With more columns than this, spills make a comparison meaningless.
WIDEST_ROW = 65536
ADD_BLOCK = 1024
_USUAL_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _softmax_kernel(x, y, x_row, y_row, cols, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)  # row * stride exceeds 2^31
    offsets = tl.arange(0, BLOCK)
    inside = offsets < cols
    values = tl.load(x + row * x_row + offsets, mask=inside, other=-float("inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * y_row + offsets, exponentials / tl.sum(exponentials, axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_kernel(a, b, c, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(c + offsets, tl.load(a + offsets, mask=inside) + tl.load(b + offsets, mask=inside), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def scale_kernel(x, y, factor, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    # y = factor * x: four arguments, for timing a launch
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(y + offsets, factor * tl.load(x + offsets, mask=inside), mask=inside)


def _softmax(inputs: Sequence[Any], output: Any, warps: int) -> Call:
    (x,) = inputs
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    return lambda: _softmax_kernel[(rows,)](
        x, output, x.stride(0), output.stride(0), cols, BLOCK=block, num_warps=warps
    )


def _add(inputs: Sequence[Any], output: Any, warps: int) -> Call:
    a, b = inputs
    n = a.numel()
    return lambda: _add_kernel[(triton.cdiv(n, ADD_BLOCK),)](a, b, output, n, BLOCK=ADD_BLOCK, num_warps=warps)


class TritonPeer:
    """A Triton kernel with the fastest number of warps for the shape."""

    name = "peer:triton"
    rung = None
    arrays = "torch"

    def __init__(
        self, idea: str, work: Callable[[Sequence[Any], Any, int], Call], widest: int | None, ordinal: int
    ) -> None:
        self.idea = idea
        self._work, self._widest, self._ordinal = work, widest, ordinal

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if self._widest is not None and (len(shape) != 2 or shape[-1] > self._widest):
            return f"at most {self._widest} columns supported (one row per program)"
        return None

    def on(self, stream: Stream) -> Any:
        return on_stream(stream, self._ordinal)

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        return self._work(*tensors(*arrays), _USUAL_WARPS)  # the number of warps does not affect the host's cost

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        if len(sets) == 1:  # for the check, not for timing
            return [self.call(sets[0], stream)]
        converted = [tensors(inputs, output) for inputs, output in sets]

        def launches(warps: int) -> list[Call]:
            return [self._work(inputs, output, warps) for inputs, output in converted]

        return min((launches(warps) for warps in (4, 8, 16, 32)), key=cost)


def peers(family: Ladder[Any], ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """Return Triton's implementations of the family; an empty list if there are none or the family has options."""
    if options:
        return []
    if family.name == "softmax":
        return [TritonPeer("fused, one row per program, best number of warps", _softmax, WIDEST_ROW, ordinal)]
    if family.name == "vector_add":
        return [TritonPeer("masked add, best number of warps", _add, None, ordinal)]
    return []
