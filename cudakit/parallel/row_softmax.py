"""The softmax of rows whose columns are split over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.families.softmax_problem import row_and_column
from cudakit.family import CPP, ceil_div, cpp_bool
from cudakit.launch.strides import strided
from cudakit.libs import nccl
from cudakit.libs.nccl import Communicator
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray
from cudakit.parallel.operands import close_all, expect_list, on_streams

_PAIR = 8  # bytes: a maximum and a sum in float32
_SOURCE = "parallel/row_split_softmax.cu"


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
    on = on_streams(streams, ranks)
    lists = {"x": x} | ({} if out is None else {"out": out}) | ({} if mask is None else {"mask": mask})
    for name, each in lists.items():
        expect_list("softmax", ranks, name, each)
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
    close_all(pairs)
    return list(out)


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
