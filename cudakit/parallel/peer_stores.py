"""The product of `column_product` without a collective: its kernels store every tile in the results of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cudakit.driver.stream import Stream
from cudakit.families.gemm import FAMILY, choose_for_several, stream_k
from cudakit.family import apply
from cudakit.libs.nccl import Communicator
from cudakit.memory.array import DeviceArray

VARIANTS = ("packed", "stream_k")


def variant_for(a: DeviceArray, b: DeviceArray, columns: int, variant: str) -> str:
    """Return the variant of `ops.gemm` for one rank's product, or "" if its kernels cannot store it on other devices.

    columns: those of all ranks. variant: as for `column_product`.
    """
    if variant == "auto":
        return choose_for_several(a, b, columns)
    return variant if variant in VARIANTS and choose_for_several(a, b, columns) else ""


def refusal(
    streams: Sequence[Stream], ranks: Sequence[Communicator], a: Sequence[DeviceArray], out: Sequence[DeviceArray]
) -> str:
    """Return the reason why the ranks cannot store in each other's results, or ""."""
    if len(ranks) != ranks[0].size:
        return "the ranks are in several processes"
    if str(a[0].dtype) != "float32":
        return f"only kernels of float32 store on other devices, the operands are {a[0].dtype}"
    for rank, other in itertools.permutations(ranks, 2):
        if not rank.context.can_access(other.context):
            return f"{rank.context.spec} has no access to the memory of {other.context.spec}"
    for array in out:
        if not (array.allocation.owner is None or isinstance(array.allocation.owner, Communicator)):
            return f"{array.summary} is memory of another library, which other devices may not access"
    if len({array.pointer % 16 for array in out}) > 1:
        return "the results are aligned differently"
    for stream in streams:
        if (stream.context.captures or stream.foreign) and stream.capturing:
            return f"{stream!r} is being captured"
    return stream_k.arch_refusal(ranks[0].device.arch)


def product(
    streams: Sequence[Stream],
    ranks: Sequence[Communicator],
    a: Sequence[DeviceArray],
    b: Sequence[DeviceArray],
    out: Sequence[DeviceArray],
    places: Sequence[int],
    variant: str,
) -> None:
    """Queue the product. places: the first column of each rank, and the column after the last one."""
    # No kernel stores before the earlier work on the results of all ranks is done, and later work needs all stores.
    _meet([stream for stream in streams if not stream.done], streams)
    size, first = out[0].itemsize, [whole.pointer for whole in out]
    for number, (stream, one, other) in enumerate(zip(streams, a, b, strict=True)):
        start, stop = places[number], places[number + 1]
        others = tuple(pointer + start * size for rank, pointer in enumerate(first) if rank != number)
        options = {"alpha": 1.0, "beta": 0.0, "dtype": None, "others": others}
        apply(FAMILY, (one, other), out[number][:, start:stop], variant, stream, options)
    for whole, stream in itertools.product(out, streams):
        whole.allocation.uses.add(stream)
    _meet(streams, streams)


def _meet(before: Sequence[Stream], after: Sequence[Stream]) -> None:
    """Order later work of the streams `after` after the work so far of the streams `before`."""
    for one in before:
        with one.record(timing=False) as event:
            for other in after:
                if other is not one:
                    other.wait(event)
