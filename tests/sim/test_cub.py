"""The algorithms of CUB and of cooperative groups, under the default checks: each whole result against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from paths import TESTS

TILE, THREADS, PART, UNTOUCHED = 384, 96, 301, -7
X = np.random.default_rng(0).integers(-1000, 1000, TILE).astype(np.int32)
FIRST, INDEX = X[:THREADS], np.arange(TILE)
LANES = np.arange(THREADS)


class Case(NamedTuple):
    """A kernel of `tests/cub/SOURCE.cu`, and its first results; it must not write the others."""

    source: str
    kernel: str
    expected: Callable[[], object]
    block: int = THREADS
    grid: int = 1
    cooperative: bool = False


def exclusive(rows):
    return np.cumsum(rows, axis=-1) - rows


def carried():
    """An exclusive scan whose threads have the sum of all items added to their first item."""
    out = exclusive(X)
    out[::4] += X.sum()
    return out


def exclusive_max():
    return np.maximum.accumulate(np.concatenate(([-5000], X[:-1])))


def sums():
    return [FIRST.sum(), FIRST[:70].sum(), X.sum()]


def stable(keys):
    return np.argsort(keys, kind="stable")


def rank(descending):
    """The position of each item in a stable sort by its bits 2 to 5."""
    digits = X >> 2 & 15
    order = stable(-digits if descending else digits)
    out = np.empty(TILE, int)
    out[order] = INDEX
    return out


def histogram():
    return 2 * np.bincount(X & 255, minlength=256)


def loaded():
    return np.where(PART > INDEX, X, -1)


def stored():
    return np.where(PART > INDEX, X, UNTOUCHED)


def scattered():
    out = np.empty_like(X)
    out[INDEX * 5 % TILE] = X
    return out


def heads_and_tails():
    bits = X & 1
    changes = bits[1:] != bits[:-1]
    return np.append(True, changes) + 2 * np.append(changes, True)


def difference_right():
    out = X.copy()
    out[: PART - 1] -= X[1:PART]
    return out


def run_lengths():
    return np.repeat(FIRST, LANES % 3 + 1)


def segments():
    """The sum of each segment at its head; segments start at multiples of 5 and of 32."""
    heads = np.flatnonzero((LANES % 5 == 0) | (LANES % 32 == 0))
    out = np.full(THREADS, UNTOUCHED)
    out[heads] = np.add.reduceat(FIRST, heads)
    return out


def tile_sums(width):
    return FIRST.reshape(-1, width).sum(axis=1)


def warp_scans(width):
    rows = FIRST.reshape(-1, width)
    return np.concatenate((rows.cumsum(axis=1).ravel(), exclusive(rows).ravel()))


def warp_striped():
    return X.reshape(3, 32, 4).transpose(0, 2, 1).ravel()


def by_warp(others):
    return np.where(INDEX % 128 < 100, X, others)


def tiles(width):
    return np.concatenate((tile_sums(width).repeat(width), warp_scans(width)))


def groups(labels, members=None):
    """Per thread: the sum of its group, its inclusive scan, and its rank; a group is one label in one warp."""
    out = np.full((3, THREADS), UNTOUCHED)
    for warp in range(3):
        for label in np.unique(labels):
            lanes = np.flatnonzero((warp == LANES // 32) & (labels == label))
            if members is None or label in members:
                out[0, lanes], out[1, lanes] = FIRST[lanes].sum(), FIRST[lanes].cumsum()
                out[2, lanes] = np.arange(len(lanes))
    return out.ravel()


QUICK = [
    Case("reductions", "reduce_raking", sums),
    Case("reductions", "reduce_commutative", sums),
    Case("reductions", "reduce_warps", sums),
    Case("reductions", "scan_raking", carried),
    Case("reductions", "scan_warps", carried),
    Case("groups", "tile_32", lambda: tiles(32)),
    Case("groups", "coalesced", lambda: groups(FIRST > 0, members=[True])),
    Case("groups", "labeled", lambda: groups(FIRST & 3)),
    Case("groups", "big_tile", lambda: X[:128].reshape(2, 64).sum(axis=1).repeat(64), block=128),
    Case("groups", "cluster", lambda: np.roll(X, -THREADS), grid=4),
]
LONG = [
    Case("reductions", "reduce_double", sums),
    Case("reductions", "reduce_long", sums),
    Case("reductions", "reduce_max", lambda: [FIRST[:70].max()]),
    Case("reductions", "scan_memoize", lambda: X.cumsum()),
    Case("reductions", "scan_double", lambda: X.cumsum()),
    Case("reductions", "scan_max", exclusive_max),
    Case("reductions", "scan_carry", lambda: X.cumsum()),
    Case("sorts", "sort_int", lambda: np.sort(X)),
    Case("sorts", "sort_float", lambda: np.sort(X)),
    Case("sorts", "sort_long", lambda: np.sort(X)),
    Case("sorts", "sort_double", lambda: np.sort(X)),
    Case("sorts", "sort_descending", lambda: np.sort(X)[::-1]),
    Case("sorts", "sort_bits", lambda: X[stable(X >> 3 & 63)]),
    Case("sorts", "sort_pairs", lambda: stable(X)),
    Case("sorts", "sort_striped", lambda: np.sort(X)),
    Case("sorts", "sort_descending_striped", lambda: stable(-X)),
    Case("sorts", "rank_up", lambda: rank(descending=False)),
    Case("sorts", "rank_down", lambda: rank(descending=True)),
    Case("sorts", "merge_block", lambda: np.sort(X[:256]), block=64),
    Case("sorts", "merge_partial", lambda: np.sort(X[:150]), block=64),
    Case("sorts", "merge_warp", lambda: np.sort(X.reshape(3, 128)).ravel()),
    Case("sorts", "histogram_sort", histogram),
    Case("sorts", "histogram_atomic", histogram),
    *(Case("moves", f"load_{a}", loaded) for a in ("direct", "vectorize", "transpose", "warp", "sliced")),
    *(Case("moves", f"store_{a}", stored) for a in ("direct", "transpose", "warp", "sliced")),
    Case("moves", "exchange_striped", lambda: X[INDEX % THREADS * 4 + INDEX // THREADS]),
    Case("moves", "exchange_blocked", lambda: X[INDEX % 4 * THREADS + INDEX // 4]),
    Case("moves", "exchange_scatter", scattered),
    Case("moves", "heads_and_tails", heads_and_tails),
    Case("moves", "difference_left", lambda: np.append(X[0], np.diff(X))),
    Case("moves", "difference_right", difference_right),
    Case("moves", "shuffle_up", lambda: np.append(0, X[:-1])),
    Case("moves", "shuffle_rotate", lambda: np.roll(FIRST, -5)),
    Case("moves", "run_length", run_lengths),
    *(Case("warps", f"warp_reduce_{w}", lambda w=w: tile_sums(w)) for w in (32, 16, 4)),
    Case("warps", "warp_reduce_head", segments),
    Case("warps", "warp_reduce_tail", segments),
    *(Case("warps", f"warp_scan_{w}", lambda w=w: warp_scans(w)) for w in (32, 16, 8)),
    Case("warps", "warp_exchange", warp_striped),
    *(Case("warps", f"warp_load_{a}", lambda: by_warp(-1)) for a in ("direct", "transpose")),
    *(Case("warps", f"warp_store_{a}", lambda: by_warp(UNTOUCHED)) for a in ("direct", "transpose")),
    Case("groups", "tile_8", lambda: tiles(8)),
    Case("groups", "binary", lambda: groups(FIRST > 0)),
    Case("groups", "copy", lambda: X[::-1]),
    Case("groups", "grid", lambda: X[::-1], grid=4, cooperative=True),
]


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)], ids=lambda case: case.kernel
)
def test_an_algorithm_agrees_with_numpy_and_raises_no_report(case, sim):
    module = sim.compile(TESTS / "cub" / f"{case.source}.cu")
    x, y = sim.array(X), sim.array(np.full(TILE, UNTOUCHED, np.int32))
    more = {"cooperative": True} if case.cooperative else {}
    module[case.kernel].launch(sim.default_stream, grid=case.grid, block=case.block, args=(x, y), **more)
    expected = np.full(TILE, UNTOUCHED)
    first = np.ravel(case.expected())
    expected[: len(first)] = first
    np.testing.assert_array_equal(y.numpy(), expected)
