"""The streams, operands and outputs of one call, in lists with one entry per rank of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudakit.driver.stream import Stream
from cudakit.libs.collectives import expect_operand
from cudakit.libs.nccl import Communicator
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray


def on_streams(streams: Sequence[Any], ranks: Sequence[Communicator]) -> list[Stream]:
    if len(streams) != len(ranks) or not ranks:
        raise ValueError(f"one stream per communicator is needed, got {len(streams)} for {len(ranks)} communicators")
    if len(ranks) not in (1, ranks[0].size):
        raise ValueError(f"pass all {ranks[0].size} communicators of this process, or its only one, got {len(ranks)}")
    return [Stream.of(rank.context, stream) for rank, stream in zip(ranks, streams, strict=True)]


def expect_list(name: str, ranks: Sequence[Communicator], argument: str, arrays: Sequence[Any]) -> None:
    if len(arrays) != len(ranks):
        raise ValueError(f"{name}: {argument} must have one array per communicator, {len(ranks)}, got {len(arrays)}")


def outputs(
    name: str, streams: Sequence[Stream], ranks: Sequence[Communicator], out: Any, shape: tuple[int, int], dtype: Any
) -> list[DeviceArray]:
    if out is None:
        return [memory.empty(rank.context, stream, shape, dtype) for rank, stream in zip(ranks, streams, strict=True)]
    expect_list(name, ranks, "out", out)
    for rank, each in zip(ranks, out, strict=True):
        expect_operand(name, "out", each, rank.context)
        each.expect_writable()
        if each.shape != shape or each.dtype != dtype:
            raise ValueError(f"{name}: out must be {dtype} of shape {shape}, got {each.dtype} of shape {each.shape}")
    return list(out)


def close_all(arrays: Sequence[DeviceArray]) -> None:
    for array in arrays:
        array.close()  # in the order of the streams that use it
