"""Products and softmax over several devices: against float64 references, and with planted errors."""

from __future__ import annotations

import multiprocessing
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from teams import Team, gpus, opened

import cudakit
from cudakit import ops, parallel
from cudakit.compare import within
from cudakit.errors import CudakitError
from cudakit.libs import nccl
from cudakit.memory.array import as_dtype
from cudakit.parallel import products

DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]
DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(scope="module", params=DEVICES)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    yield from opened(request.param)


@pytest.fixture
def trio() -> Iterator[Team]:
    yield from opened("sim", timeout=1)


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(as_dtype(dtype))


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def allowed(exact: np.ndarray, a: np.ndarray, b: np.ndarray) -> Any:
    return ops.families()["gemm" if a.dtype == np.float32 else "gemm_half"].allowed(exact, (a, b))


def parts(array: np.ndarray, size: int, axis: int) -> list[np.ndarray]:
    return np.array_split(array, size, axis=axis)


def check_columns(
    module: Any, team: Team, dtype: str = "float32", n: int = 0, at_once: bool = False, **options: Any
) -> None:
    """at_once: read each result after its own stream only."""
    m, k, n = 37, 24, n or 8 * team.size
    a, b = normal((m, k), dtype, 1), normal((k, n), dtype, 2)
    exact = wide(a) @ wide(b)
    held = team.arrays([a] * team.size), team.arrays(parts(b, team.size, 1))
    out = team.arrays([np.full((m, n), np.nan, a.dtype)] * team.size)
    for _ in range(2):  # the second call must not overwrite data that the first one still sends
        module.column_product(team.streams, team.ranks, *held, out, **options)
    for got in [x.numpy(s) for x, s in zip(out, team.streams, strict=True)] if at_once else team.numpy(out):
        comparison = within(got, exact, allowed(exact, a, b))
        assert comparison.ok, comparison.why


def check_gather(module: Any, team: Team) -> None:
    check_columns(module, team, exchange="all_gather")


def check_stores(module: Any, team: Team) -> None:
    """The same with `module` in place of peer_stores."""
    with mock.patch.object(products, "peer_stores", module):
        check_columns(parallel, team, exchange="stores", at_once=True)


def check_scratch(module: Any, team: Team) -> None:
    """Scratch memory of the caller's: no free of it orders the streams."""
    scratch = nccl.registered(team.ranks, (37 * team.size * 8,))
    for stream, rank in zip(team.streams, team.ranks, strict=True):
        stream.wait(rank.device.default_stream)
    check_columns(module, team, scratch=scratch)


def check_rows(module: Any, team: Team, dtype: str = "float32", scatter: bool = False) -> None:
    size = team.size
    m, k, n = 4 * size, 8 * size, 19
    a, b = normal((m, k), dtype, 3), normal((k, n), dtype, 4)
    exact = wide(a) @ wide(b)
    held = team.arrays(parts(a, size, 1)), team.arrays(parts(b, size, 0))
    got = team.numpy(module.row_product(team.streams, team.ranks, *held, scatter=scatter))
    # Each rank's product, and each of the sums of them, is rounded to the dtype.
    terms = [np.abs(wide(x) @ wide(y)) for x, y in zip(parts(a, size, 1), parts(b, size, 0), strict=True)]
    step = 0.5 * {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    rounding = allowed(exact, a, b) + 2 * step * sum(terms)
    for each in [np.concatenate(got)] if scatter else got:
        comparison = within(each, exact, rounding)
        assert comparison.ok, comparison.why


def rows_to_test(dtype: str, columns: int) -> np.ndarray:
    x = 4 * normal((7, columns), dtype, 5).astype(np.float32)
    x[1] = -np.inf
    x[2, 1] = np.nan
    x[3, : columns // 2] = -np.inf  # all columns of the first rank
    x[4, -1] = np.inf
    x[5] += 3e4 if dtype == "float16" else 1e30 if dtype == "float32" else 1e3
    return x.astype(as_dtype(dtype))


def check_softmax(
    module: Any, team: Team, dtype: str = "float32", masked: bool = False, in_place: bool = False
) -> None:
    x = rows_to_test(dtype, 11 * team.size + 1)
    mask = np.random.default_rng(6).random(x.shape) < 0.7
    mask[0], mask[3, : x.shape[1] // 2] = False, False
    family = ops.families()["softmax_modes" if masked or dtype != "float32" else "softmax"]
    operands = (x, mask) if masked else (x,)
    exact = family.results((x.astype(np.float64), *operands[1:]))
    exact = exact[0] if isinstance(exact, tuple) else exact
    held = team.arrays(parts(x, team.size, 1))
    options: dict[str, Any] = {"mask": team.arrays(parts(mask, team.size, 1))} if masked else {}
    out = held if in_place else None
    got = np.concatenate(team.numpy(module.softmax(team.streams, team.ranks, held, out, **options)), axis=1)
    comparison = within(got, exact, family.allowed(exact, operands))
    assert comparison.ok, comparison.why
    assert np.isnan(got[2]).all() or masked


# Results --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [1, 5, (30, 7)])
def test_columns_are_gathered_on_every_device(team: Team, dtype: str, blocks: Any) -> None:
    check_columns(parallel, team, dtype, blocks=blocks, exchange="all_gather")


@pytest.mark.parametrize("variant", ["auto", "packed", "stream_k"])
def test_kernels_store_on_every_device(team: Team, variant: str) -> None:
    check_columns(parallel, team, variant=variant, exchange="stores", at_once=True)
    check_columns(parallel, team, n=5 * team.size, variant=variant, exchange="stores")  # stores of 4 bytes
    n = 130 * team.size + 1
    widths = [part.shape[1] for part in parts(np.empty((1, n)), team.size, 1)]
    check_columns(parallel, team, n=n, columns=widths, variant=variant, exchange="stores")


def test_unequal_columns_and_given_scratch(team: Team) -> None:
    n = 5 * team.size + 1
    widths = [part.shape[1] for part in parts(np.empty((1, n)), team.size, 1)]
    check_columns(parallel, team, n=n, columns=widths)
    check_scratch(parallel, team)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scatter", [False, True])
def test_rows_are_summed(team: Team, dtype: str, scatter: bool) -> None:
    check_rows(parallel, team, dtype, scatter)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_of_split_rows(team: Team, dtype: str, masked: bool) -> None:
    check_softmax(parallel, team, dtype, masked)


def test_softmax_in_place(team: Team) -> None:
    check_softmax(parallel, team, in_place=True)


def test_one_device_alone() -> None:
    with cudakit.Device("sim") as device:
        (rank,) = nccl.communicators([device])
        alone = Team([device], [rank], [device.stream()])
        check_columns(parallel, alone)
        check_rows(parallel, alone)
        check_softmax(parallel, alone)
        rank.close()


def test_blocks_end_with_a_small_one() -> None:
    assert parallel.row_blocks(8192, 3) == [3840, 3840, 512]
    for rows in (1, 2, 7, 100, 4096, 8192, 16384, 16385):
        for count in (1, 2, 5, 9):
            extents = parallel.row_blocks(rows, count)
            assert sum(extents) == rows
            assert len(extents) <= count
            assert min(extents) >= 1
            assert extents[-1] == min(extents)
    with pytest.raises(ValueError, match="at least 1"):
        parallel.row_blocks(5, 0)


# Several processes ----------------------------------------------------------------------------------------------------


def member(spec: str, rank: int, size: int, unique: bytes, pipe: Any) -> None:
    try:
        with cudakit.Device(spec) as device, nccl.Communicator(device, rank, size, unique, timeout=60) as made:
            stream = device.stream()
            a, b = normal((20, 16), "float32", 1), normal((16, 6 * size), "float32", 2)
            x = rows_to_test("float32", 8 * size)
            shard, columns = (np.ascontiguousarray(parts(y, size, 1)[rank]) for y in (b, x))
            held = [[device.array(y, stream=stream)] for y in (a, shard, columns)]
            (product,) = parallel.column_product([stream], [made], *held[:2], blocks=3)
            (row,) = parallel.softmax([stream], [made], held[2])
            pipe.send([product.numpy(stream), row.numpy(stream)])
            del held, product, row
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("spec", DEVICES)
def test_a_process_per_device(spec: str) -> None:
    if spec == "gpu":
        for device in gpus(2):
            device.close()
    specs = ["gpu:0", "gpu:1"] if spec == "gpu" else ["sim", "sim"]
    context = multiprocessing.get_context("spawn")
    unique, ends = nccl.unique_id(specs[0]), []
    for rank, each in enumerate(specs):
        mine, theirs = context.Pipe()
        context.Process(target=member, args=(each, rank, 2, unique, theirs), daemon=True).start()
        ends.append(mine)
    got = [end.recv() if end.poll(90) else "no answer" for end in ends]
    assert not any(isinstance(each, str) for each in got), got
    a, b = normal((20, 16), "float32", 1), normal((16, 12), "float32", 2)
    exact = wide(a) @ wide(b)
    for product, _ in got:
        assert within(product, exact, allowed(exact, a, b)).ok
    x = rows_to_test("float32", 16)
    family = ops.families()["softmax"]
    exact = family.results((wide(x),))
    exact = exact[0] if isinstance(exact, tuple) else exact
    assert within(np.concatenate([row for _, row in got], axis=1), exact, family.allowed(exact, (x,))).ok


# Rejected calls -------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_rejected(team: Team) -> None:
    streams, ranks, size = team.streams, team.ranks, team.size
    a = team.arrays([np.zeros((4, 6), np.float32)] * size)
    b = team.arrays([np.zeros((6, 2), np.float32)] * size)
    other = team.arrays([np.zeros((6, 2 + (i == 0)), np.float32) for i in range(size)])
    square = team.arrays([np.zeros((2 * size, 2 * size), np.float32)] * size)
    columns = [x[:, :2] for x in square]
    half = team.arrays([np.zeros((2, 2), np.float16)] * size)
    stores: dict[str, Any] = {"exchange": "stores"}
    gather: dict[str, Any] = {"exchange": "all_gather"}
    for words, call in (
        ("one stream per communicator", lambda: parallel.column_product(streams[:1], ranks, a, b)),
        ("b must have one array per comm", lambda: parallel.column_product(streams, ranks, a, b[:1])),
        ("columns of every rank", lambda: parallel.column_product(streams, ranks, a, other)),
        ("columns, 6, are not", lambda: parallel.column_product(streams, ranks, a, a)),
        ("blocks must be at least", lambda: parallel.column_product(streams, ranks, a, b, blocks=(3, 2), **gather)),
        ("out must be float32 of shape", lambda: parallel.column_product(streams, ranks, a, b, out=b)),
        ("exchange must be one of", lambda: parallel.column_product(streams, ranks, a, b, exchange="nccl")),
        ("out of rank 0 overlaps a", lambda: parallel.column_product(streams, ranks, square, columns, square)),
        ("variant naive does not", lambda: parallel.column_product(streams, ranks, a, b, variant="naive", **stores)),
        ("only kernels of float32", lambda: parallel.column_product(streams, ranks, half, half, **stores)),
        ("scratch needs at least", lambda: parallel.column_product(streams, ranks, a, b, scratch=b)),
        ("equal shapes and dtypes", lambda: parallel.row_product(streams, ranks, a, other)),
        ("a mask must be bool", lambda: parallel.softmax(streams, ranks, a, mask=a)),
        ("out must have x's shape", lambda: parallel.softmax(streams, ranks, a, out=b)),
        ("x must be 2-D", lambda: parallel.softmax(streams, ranks, [one[0] for one in a])),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="pass device arrays"):
        parallel.column_product(streams, ranks, [np.zeros((4, 6))] * size, b)


# Planted errors -------------------------------------------------------------------------------------------------------


def planted(old: str, new: str) -> Any:
    """The functions of the module that has the line `old`, with one change."""
    sources = [path.read_text(encoding="utf-8") for path in Path(parallel.__file__).parent.glob("*.py")]
    (source,) = [source for source in sources if old in source]
    module = types.ModuleType("planted")
    exec(compile(source.replace(old, new), "planted.py", "exec"), module.__dict__)
    return module


SIDE_WAITS = "            rank.side_stream.wait(stream)\n"
SUM = "rank.all_reduce(rank.side_stream, result[first:last], out=result[first:last])"
PLANTED = {
    "wrong column offset": ("whole[first:last, start:stop]", "whole[first:last, 0 : stop - start]", check_gather),
    "wrong rank's part": ("part[source][:, : stop", "part[rank.rank][:, : stop", check_gather),
    "missing wait for the product": (SIDE_WAITS, "", check_gather),
    "missing wait for the copies": ("    _join(on, ranks)\n    if scratch", "    if scratch", check_scratch),
    "wrong rows of a block": (
        "gemm(one[first:last], other, res",
        "gemm(one[: last - first], other, res",
        check_gather,
    ),
    "stores at the wrong columns": ("pointer + start * size for", "pointer for", check_stores),
    "stores on one device only": ("if rank != number)", "if rank > number)", check_stores),
    "stores before the results are free": ("not stream.done], streams)", "False], streams)", check_stores),
    "results read before the stores": ("_meet(streams, streams)", "pass", check_stores),
    "missing all-reduce": (SUM, "pass", check_rows),
    "missing wait for the sum's operands": (SIDE_WAITS, "", check_rows),
    "missing all-gather of the sums": ("rank.all_gather(stream, pair[rank.rank], out=pair)", "pass", check_softmax),
    "local sums only": ("rows, one.shape[1], size)", "rows, one.shape[1], 1)", check_softmax),
}


@pytest.mark.filterwarnings("ignore::cudakit.UnseenFault")  # an error may be found before all work was waited for
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name: str, trio: Team) -> None:
    old, new, check = PLANTED[name]
    with pytest.raises((AssertionError, CudakitError)):
        check(planted(old, new), trio)
