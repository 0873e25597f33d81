"""Products and softmax over several devices, with NCCL's collectives between them.

    from cudakit import parallel
    from cudakit.libs import nccl

    ranks = nccl.communicators(devices)
    c = parallel.column_product(streams, ranks, a, b)   # b: some columns of B on each device; c: all of C on each

`ranks` are the communicators of this process: all of them, or one per process. Each other argument is a list with one
entry per communicator. All ranks of all processes must make the same calls in the same order, with equal shapes.

Calls queue their work and return without waiting; the results are complete in the order of `streams`. Collectives run
on the side streams of the communicators, so that they overlap with products.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.driver.stream import Stream
from cudakit.families.gemm import gemm
from cudakit.families.softmax_problem import row_and_column
from cudakit.family import CPP, ceil_div, cpp_bool
from cudakit.launch.strides import strided
from cudakit.libs import nccl
from cudakit.libs.collectives import expect_operand
from cudakit.libs.nccl import Communicator
from cudakit.libs.products import product_shape
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray

#: Blocks of rows per product, unless the caller passes others.
BLOCKS = 5
_UNIT = 128  # blocks of large products are multiples of this many rows, a whole number of every kernel's tiles
_PAIR = 8  # bytes: a maximum and a sum in float32
_SOURCE = "parallel/row_split_softmax.cu"


def row_blocks(rows: int, count: int = BLOCKS) -> list[int]:
    """Return the extents of `count` blocks of rows, the last one a quarter of the others.

    The collective of the last block overlaps with no product, so the last block is small.

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
    last = max(1, round(rows / (4 * count - 3) / unit)) * unit
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
    scratch: Sequence[DeviceArray] | None = None,
) -> list[DeviceArray]:
    """Compute A @ B with the columns of B split over the ranks, and gather all of the product on each.

    Each rank multiplies one block of rows at a time by its columns; an all-gather of the block overlaps with the
    product of the next one. The gathered block is then copied into the rows of the result.

    Args:
        streams: The stream of each rank's products.
        ranks: The communicators of this process.
        a: All of A on each rank, (m, k); float32, float16 or bfloat16.
        b: Each rank's columns of B, (k, columns[rank]), in the order of the ranks.
        out: The results, (m, n) on each rank, contiguous; new arrays if None.
        columns: The number of columns of every rank, of all processes; equal numbers if None.
        blocks: The number of blocks (see `row_blocks`), or the extent of each. More blocks leave less of the
            all-gather without a product to overlap with; each block costs a launch and a call of NCCL.
        variant: The variant of `ops.gemm`, or "auto".
        scratch: Memory for the gathered blocks, contiguous, of the operands' dtype, for example of `nccl.registered`:
            at least m * size * max(columns) elements per rank. If None it is allocated in stream order.

    Returns:
        `out`.

    Raises:
        ValueError: If shapes or extents do not fit; nothing was queued.
        TypeError: If dtypes do not fit, or an operand is not a device array; nothing was queued.
    """
    on = _streams(streams, ranks)
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
    out = _outputs("column_product", on, ranks, out, (m, n), a[0].dtype)
    if size == 1:
        return [gemm(a[0], b[0], out[0], variant=variant, stream=on[0])]
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
                whole[first:last, start:stop].copy_from(part[source][:, : stop - start], rank.side_stream)
    _join(on, ranks)
    if scratch is None:
        _close(kept)
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
    on = _streams(streams, ranks)
    _expect_products("row_product", ranks, a, b, equal_columns=True)
    m, n, size = a[0].shape[0], b[0].shape[1], ranks[0].size
    if scatter and m % size:
        raise ValueError(f"row_product: the {m} rows must be a multiple of the {size} ranks to be scattered: pad A")
    out = _outputs("row_product", on, ranks, out, (m // size if scatter else m, n), a[0].dtype)
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
        _close(whole)
    return list(out)


def softmax(
    streams: Sequence[Any],
    ranks: Sequence[Communicator],
    x: Sequence[DeviceArray],
    out: Sequence[DeviceArray] | None = None,
    *,
    mask: Sequence[DeviceArray] | None = None,
) -> list[DeviceArray]:
    """Compute the softmax of rows whose columns are split over the ranks.

    Each rank computes the maximum of its columns and the sum of their exponentials; an all-gather of these pairs, 8
    bytes per row and rank, is the only transfer. NaN, infinities and masks are handled as in `ops.softmax`: a visible
    NaN or +inf, or only -inf in all visible columns, makes the whole row NaN, on all ranks.

    Args:
        streams: The stream of each rank.
        ranks: The communicators of this process.
        x: Each rank's columns, (rows, columns), any strides; float32, float16 or bfloat16. The numbers of columns may
            differ.
        out: The results, with the shapes and dtypes of `x`, which they may be; new arrays if None.
        mask: Bool arrays that broadcast to `x`; False hides an element. The result of a completely hidden row is 0.

    Returns:
        `out`.

    Raises:
        ValueError: If shapes do not fit; nothing was queued.
        TypeError: If dtypes do not fit, or an operand is not a device array; nothing was queued.
    """
    on = _streams(streams, ranks)
    lists = {"x": x} | ({} if out is None else {"out": out}) | ({} if mask is None else {"mask": mask})
    for name, each in lists.items():
        _expect_list("softmax", ranks, name, each)
    masks = _masks(x, mask)
    for one, result in zip(x, out or x, strict=True):
        if one.ndim != 2 or one.shape[0] != x[0].shape[0] or one.dtype.name not in CPP:
            raise ValueError(
                f"softmax: x must be 2-D, with one number of rows on all ranks, in {', '.join(CPP)}; got shape "
                f"{one.shape}, {one.dtype}"
            )
        if result.shape != one.shape or result.dtype != one.dtype:
            raise ValueError(
                f"softmax: out must have x's shape and dtype, {one.shape} {one.dtype}, got {result.shape} "
                f"{result.dtype}"
            )
    if out is None:
        out = [memory.empty(one.context, stream, one.shape, one.dtype) for one, stream in zip(x, on, strict=True)]
    rows, size = x[0].shape[0], ranks[0].size
    if not rows:
        return list(out)
    pairs = [
        memory.empty(rank.context, stream, (size, rows, _PAIR), np.dtype(np.uint8))
        for rank, stream in zip(ranks, on, strict=True)
    ]
    kernels = [_softmax_kernels(rank, one.dtype.name, mask is not None) for rank, one in zip(ranks, x, strict=True)]
    for rank, stream, one, (seen, steps), pair, (sums, _) in zip(ranks, on, x, masks, pairs, kernels, strict=True):
        args = (
            strided(one),
            strided(seen),
            pair[rank.rank],
            *row_and_column(one.strides_elements),
            *steps,
            one.shape[1],
        )
        sums.launch(stream, grid=rows, block=_block(one), args=args)
    with nccl.group():
        for rank, stream, pair in zip(ranks, on, pairs, strict=True):
            rank.all_gather(stream, pair[rank.rank], out=pair)
    for stream, one, (seen, steps), pair, result, (_, scale) in zip(on, x, masks, pairs, out, kernels, strict=True):
        both = (*row_and_column(one.strides_elements), *steps, *row_and_column(result.strides_elements))
        args = (strided(one), strided(seen), strided(result), pair, *both, rows, one.shape[1], size)
        scale.launch(stream, grid=rows, block=_block(one), args=args)
    _close(pairs)
    return list(out)


# Checks and helpers ---------------------------------------------------------------------------------------------------


def _streams(streams: Sequence[Any], ranks: Sequence[Communicator]) -> list[Stream]:
    if len(streams) != len(ranks) or not ranks:
        raise ValueError(f"one stream per communicator is needed, got {len(streams)} for {len(ranks)} communicators")
    if len(ranks) not in (1, ranks[0].size):
        raise ValueError(f"pass all {ranks[0].size} communicators of this process, or its only one, got {len(ranks)}")
    return [Stream.of(rank.context, stream) for rank, stream in zip(ranks, streams, strict=True)]


def _expect_list(name: str, ranks: Sequence[Communicator], argument: str, arrays: Sequence[Any]) -> None:
    if len(arrays) != len(ranks):
        raise ValueError(f"{name}: {argument} must have one array per communicator, {len(ranks)}, got {len(arrays)}")


def _expect_products(
    name: str, ranks: Sequence[Communicator], a: Sequence[Any], b: Sequence[Any], *, equal_columns: bool
) -> None:
    """Raise ValueError or TypeError unless there is one product per rank, with equal dtypes and shapes, except the
    columns of b."""
    for argument, arrays in (("a", a), ("b", b)):
        _expect_list(name, ranks, argument, arrays)
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


def _outputs(
    name: str, streams: Sequence[Stream], ranks: Sequence[Communicator], out: Any, shape: tuple[int, int], dtype: Any
) -> list[DeviceArray]:
    if out is None:
        return [memory.empty(rank.context, stream, shape, dtype) for rank, stream in zip(ranks, streams, strict=True)]
    _expect_list(name, ranks, "out", out)
    for rank, each in zip(ranks, out, strict=True):
        expect_operand(name, "out", each, rank.context)
        each.expect_writable()
        if each.shape != shape or each.dtype != dtype:
            raise ValueError(f"{name}: out must be {dtype} of shape {shape}, got {each.dtype} of shape {each.shape}")
    return list(out)


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


def _join(streams: Sequence[Stream], ranks: Sequence[Communicator]) -> None:
    """Order later work of the streams after the collectives and copies of the side streams."""
    for rank, stream in zip(ranks, streams, strict=True):
        stream.wait(rank.side_stream)


def _close(arrays: Sequence[DeviceArray]) -> None:
    for array in arrays:
        array.close()  # in the order of the streams that use it


def _block(x: DeviceArray) -> int:
    return max(32, min(512, ceil_div(x.shape[1], 32) * 32))


def _softmax_kernels(rank: Communicator, dtype: str, masked: bool) -> tuple[Any, Any]:
    kept = rank.device.kept.get(("row-split softmax", dtype, masked))
    if kept is None:
        types = f"{CPP[dtype]}, {'bool' if masked else CPP[dtype]}, {cpp_bool(masked)}"
        names = [f"{kernel}<{types}>" for kernel in ("local_sums", "scale")]
        module = rank.device.compile(_SOURCE, names=names)
        kept = rank.device.kept["row-split softmax", dtype, masked] = tuple(module[name] for name in names)
    first, second = kept
    return first, second


def _masks(x: Sequence[DeviceArray], mask: Sequence[DeviceArray] | None) -> list[tuple[DeviceArray, tuple[int, int]]]:
    """Return each rank's mask and its strides; without masks a placeholder that is not read."""
    if mask is None:
        return [(one, (0, 0)) for one in x]
    found = []
    for one, each in zip(x, mask, strict=True):
        fits = len(each.shape) <= 2 and all(
            m in (1, n) for m, n in zip(each.shape[::-1], one.shape[::-1], strict=False)
        )
        if each.dtype != np.bool_ or not fits:
            raise ValueError(
                f"softmax: a mask must be bool and broadcast to x of {one.shape}, got {each.dtype} of shape "
                f"{each.shape}"
            )
        steps = [0 if m == 1 else step for m, step in zip(each.shape, each.strides_elements, strict=True)]
        found.append((each, row_and_column(steps)))
    return found


__all__ = ["BLOCKS", "column_product", "row_blocks", "row_product", "softmax"]
