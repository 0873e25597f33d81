"""Matrix products with the columns or the rows of B split over the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from cudakit.driver.stream import Stream
from cudakit.families.gemm import gemm
from cudakit.libs import nccl
from cudakit.libs.collectives import expect_operand
from cudakit.libs.nccl import Communicator
from cudakit.libs.products import product_shape
from cudakit.memory import array as memory
from cudakit.memory import copies
from cudakit.memory.array import DeviceArray
from cudakit.parallel import peer_stores
from cudakit.parallel.operands import close_all, expect_list, on_streams, outputs

EXCHANGES = ("auto", "stores", "all_gather")
#: Blocks of rows per product, unless the caller passes others.
BLOCKS = 3
_UNIT = 128  # blocks of large products are multiples of this many rows, a whole number of every kernel's tiles


def row_blocks(rows: int, count: int = BLOCKS) -> list[int]:
    """Return the extents of `count` blocks of rows: equal ones, and a last one of about a sixteenth of the rows.

    The collective of the last block overlaps with no product, so that block is small; it is as large as it is so that
    the collective of the block before it overlaps with its product.

    Args:
        rows: The number of rows.
        count: The number of blocks; fewer are returned if there are too few rows.

    Raises:
        ValueError: If `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if count == 1 or rows < 2:
        return [rows] if rows else []
    unit = _UNIT if rows >= 4 * count * _UNIT else 1
    last = max(1, min(round(rows / 16 / unit), rows // count // unit)) * unit
    cuts = [(rows - last) * i // (count - 1) // unit * unit for i in range(count - 1)] + [rows - last, rows]
    return [stop - start for start, stop in itertools.pairwise(cuts) if stop > start]


def column_product(
    streams: Sequence[Any],
    ranks: Sequence[Communicator],
    a: Sequence[DeviceArray],
    b: Sequence[DeviceArray],
    out: Sequence[DeviceArray] | None = None,
    *,
    columns: Sequence[int] | None = None,
    blocks: int | Sequence[int] = BLOCKS,
    variant: str = "auto",
    exchange: str = "auto",
    scratch: Sequence[DeviceArray] | None = None,
) -> list[DeviceArray]:
    """Compute A @ B with the columns of B split over the ranks, and gather all of the product on each.

    The product is exchanged in one of two ways:

    - "stores": each rank's kernels store their tiles in the results of all ranks; events keep the ranks together. All
      ranks are in this process and access each other's memory, the operands are float32, and the variant is "packed" or
      "stream_k". NCCL is not called.
    - "all_gather": each rank multiplies one block of rows at a time by its columns; NCCL's all-gather of the block
      overlaps with the product of the next one. The gathered block is then copied into the rows of the result.

    Args:
        streams: The stream of each rank's products.
        ranks: The communicators of this process.
        a: All of A on each rank, (m, k); float32, float16 or bfloat16.
        b: Each rank's columns of B, (k, columns[rank]), in the order of the ranks.
        out: The results, (m, n) on each rank, contiguous; new arrays if None.
        columns: The number of columns of every rank, of all processes; equal numbers if None.
        blocks: The number of blocks of the all-gather (see `row_blocks`), or the extent of each. More blocks leave less
            of it without a product to overlap with; each block costs a launch and a call of NCCL.
        variant: The variant of `ops.gemm`, or "auto".
        exchange: "stores" or "all_gather"; "auto": stores if they are possible and there is no `scratch`.
        scratch: Memory for the gathered blocks of the all-gather, contiguous, of the operands' dtype, for example of
            `nccl.registered`: at least m * size * max(columns) elements per rank. If None it is allocated in stream
            order.

    Returns:
        `out`.

    Raises:
        ValueError: If shapes or extents do not fit, a result overlaps an operand, or `exchange` is "stores", which is
            not possible; nothing was queued.
        TypeError: If dtypes do not fit, or an operand is not a device array; nothing was queued.
    """
    on = on_streams(streams, ranks)
    if exchange not in EXCHANGES:
        raise ValueError(f"column_product: exchange must be one of {', '.join(EXCHANGES)}, got {exchange!r}")
    _expect_products("column_product", ranks, a, b, equal_columns=False)
    m, size = a[0].shape[0], ranks[0].size
    widths = [b[0].shape[1]] * size if columns is None else list(columns)
    for rank, part in zip(ranks, b, strict=True):
        if len(widths) != size or part.shape[1] != widths[rank.rank]:
            raise ValueError(
                f"column_product: rank {rank.rank} has {part.shape[1]} columns of B, but columns are {widths} for "
                f"{size} ranks: pass the number of columns of every rank as columns="
            )
    places = [0, *itertools.accumulate(widths)]
    n, widest = places[-1], max(widths)
    out = outputs("column_product", on, ranks, out, (m, n), a[0].dtype)
    if size == 1:
        return [gemm(a[0], b[0], out[0], variant=variant, stream=on[0])]
    _expect_apart(ranks, a, b, out)
    if exchange == "stores" or (exchange == "auto" and scratch is None):
        stored = peer_stores.variant_for(a[0], b[0], n, variant)
        why = peer_stores.refusal(on, ranks, a, out)
        why = why or ("" if stored else f"variant {variant} does not store on other devices, or A @ B is empty")
        if not why:
            peer_stores.product(on, ranks, a, b, out, places, stored)
            return list(out)
        if exchange == "stores":
            raise ValueError(f'column_product: exchange="stores" is not possible: {why}. Pass exchange="all_gather"')
    cuts, row = _cuts(m, blocks), size * widest
    if scratch is None:
        kept = [memory.empty(one.context, stream, (m * row,), one.dtype) for one, stream in zip(a, on, strict=True)]
    else:
        kept = [_flat(rank, each, m * row, a[0].dtype) for rank, each in zip(ranks, scratch, strict=True)]
    if min(widths) < widest:
        for each, stream in zip(kept, on, strict=True):
            each.fill(0, stream)  # NCCL gathers equal parts, so those of fewer columns are padded
    for first, last in cuts:
        gathered = [each[first * row : last * row].reshape(size, last - first, widest) for each in kept]
        for rank, stream, one, other, part in zip(ranks, on, a, b, gathered, strict=True):
            result = part[rank.rank][:, : widths[rank.rank]]
            gemm(one[first:last], other, result, variant=variant, stream=stream)
            rank.side_stream.wait(stream)
        with nccl.group():
            for rank, part in zip(ranks, gathered, strict=True):
                rank.all_gather(rank.side_stream, part[rank.rank], out=part)
        for rank, part, whole in zip(ranks, gathered, out, strict=True):
            for source, (start, stop) in enumerate(itertools.pairwise(places)):
                result, gotten = whole[first:last, start:stop], part[source][:, : stop - start]
                if last == m:  # no product is running any more
                    result.copy_from(gotten, rank.side_stream)
                else:
                    _copy_beside_products(result, gotten, rank.side_stream)
    _join(on, ranks)
    if scratch is None:
        close_all(kept)
    return list(out)


def row_product(
    streams: Sequence[Any],
    ranks: Sequence[Communicator],
    a: Sequence[DeviceArray],
    b: Sequence[DeviceArray],
    out: Sequence[DeviceArray] | None = None,
    *,
    scatter: bool = False,
    blocks: int | Sequence[int] = BLOCKS,
    variant: str = "auto",
) -> list[DeviceArray]:
    """Compute A @ B with the rows of B, and the columns of A, split over the ranks, and sum the ranks' products.

    Each rank's product is rounded to the operands' dtype before the sum.

    Args:
        streams: The stream of each rank's products.
        ranks: The communicators of this process.
        a: Each rank's columns of A, (m, k / size); float32, float16 or bfloat16.
        b: The same rows of B, (k / size, n).
        out: The results, contiguous; new arrays if None. (m, n) on each rank; with `scatter` its part (m / size, n).
        scatter: Leave each rank only its part of the rows, by a reduce-scatter of the whole product. Otherwise all
            ranks get all rows, by an all-reduce of each block that overlaps with the next block's product.
        blocks: The number of blocks (see `row_blocks`), or the extent of each; not used with `scatter`.
        variant: The variant of `ops.gemm`, or "auto".

    Returns:
        `out`.

    Raises:
        ValueError: If shapes or extents do not fit; nothing was queued.
        TypeError: If dtypes do not fit, or an operand is not a device array; nothing was queued.
    """
    on = on_streams(streams, ranks)
    _expect_products("row_product", ranks, a, b, equal_columns=True)
    m, n, size = a[0].shape[0], b[0].shape[1], ranks[0].size
    if scatter and m % size:
        raise ValueError(f"row_product: the {m} rows must be a multiple of the {size} ranks to be scattered: pad A")
    out = outputs("row_product", on, ranks, out, (m // size if scatter else m, n), a[0].dtype)
    whole = list(out)
    if scatter:
        whole = [memory.empty(rank.context, stream, (m, n), a[0].dtype) for rank, stream in zip(ranks, on, strict=True)]
    for first, last in [(0, m)] if scatter else _cuts(m, blocks):
        for rank, stream, one, other, result in zip(ranks, on, a, b, whole, strict=True):
            gemm(one[first:last], other, result[first:last], variant=variant, stream=stream)
            rank.side_stream.wait(stream)
        with nccl.group():
            for rank, result, part in zip(ranks, whole, out, strict=True):
                if scatter:
                    rank.reduce_scatter(rank.side_stream, result, out=part)
                else:
                    rank.all_reduce(rank.side_stream, result[first:last], out=result[first:last])
    _join(on, ranks)
    if scatter:
        close_all(whole)
    return list(out)


def _expect_products(
    name: str, ranks: Sequence[Communicator], a: Sequence[Any], b: Sequence[Any], *, equal_columns: bool
) -> None:
    """Raise ValueError or TypeError unless there is one product per rank, with equal dtypes and shapes, except the
    columns of b."""
    for argument, arrays in (("a", a), ("b", b)):
        expect_list(name, ranks, argument, arrays)
        for array in arrays:
            if not isinstance(array, DeviceArray):
                raise TypeError(f"{name}: {argument} has a {type(array).__name__}; pass device arrays")
            if array.ndim != 2:
                raise ValueError(f"{name}: {argument} must have 2-D arrays, got shape {array.shape}")
    kinds = set()
    for one, other in zip(a, b, strict=True):
        product_shape(one.shape, other.shape)
        kinds.add((one.shape, other.shape if equal_columns else other.shape[0], one.dtype, other.dtype))
    if len(kinds) > 1:
        said = "; ".join(f"{x.shape} {x.dtype} @ {y.shape} {y.dtype}" for x, y in zip(a, b, strict=True))
        raise ValueError(f"{name}: all ranks need operands of equal shapes and dtypes, got {said}")


def _expect_apart(
    ranks: Sequence[Communicator], a: Sequence[DeviceArray], b: Sequence[DeviceArray], out: Sequence[DeviceArray]
) -> None:
    """Raise ValueError if a result overlaps an operand, which is read until the end."""
    for rank, *operands, result in zip(ranks, a, b, out, strict=True):
        for name, operand in zip(("a", "b"), operands, strict=True):
            if memory.touch(operand, result):
                raise ValueError(
                    f"column_product: out of rank {rank.rank} overlaps {name}, which is read until the end: pass a "
                    "separate array"
                )


def _cuts(rows: int, blocks: int | Sequence[int]) -> list[tuple[int, int]]:
    """Return the first row of each block, and the row after its last one."""
    extents = row_blocks(rows, blocks) if isinstance(blocks, int) else list(blocks)
    if sum(extents) != rows or any(extent < 1 for extent in extents):
        raise ValueError(f"blocks must be at least one row each and {rows} together, got {extents}")
    return list(itertools.pairwise(itertools.accumulate(extents, initial=0)))


def _flat(rank: Communicator, scratch: DeviceArray, elements: int, dtype: Any) -> DeviceArray:
    expect_operand("column_product", "scratch", scratch, rank.context)
    if scratch.size < elements or scratch.dtype != dtype:
        raise ValueError(
            f"column_product: scratch needs at least {elements} elements of {dtype}, got {scratch.size} of "
            f"{scratch.dtype}"
        )
    return scratch.reshape(-1)


def _copy_beside_products(target: DeviceArray, source: DeviceArray, stream: Stream) -> None:
    """Queue a copy within a device by a copy engine: the products occupy all multiprocessors."""
    for array in (target, source):
        array.allocation.uses.add(stream)
    to, from_ = (target.pointer, target.strides), (source.pointer, source.strides)
    copies.beside_kernels(target.context, stream.expect_open(), target.shape, target.itemsize, to, from_)


def _join(streams: Sequence[Stream], ranks: Sequence[Communicator]) -> None:
    """Order later work of the streams after the collectives and copies of the side streams."""
    for rank, stream in zip(ranks, streams, strict=True):
        stream.wait(rank.side_stream)
