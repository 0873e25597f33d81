"""Collectives: NCCL on two GPUs, host functions on three simulated devices, one process and several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from teams import Team, gpus, opened

import cudakit
from cudakit import libs
from cudakit.errors import Closed, CollectiveTimeout, CudaError, CudakitError, DeviceMismatch, ForkedProcess
from cudakit.libs import nccl, nccl_library
from cudakit.memory.array import as_dtype

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    yield from opened(request.param)


@pytest.fixture
def trio() -> Iterator[Team]:
    """Three simulated devices that a test may break; a missing call is reported after 0.3 s."""
    yield from opened("sim", timeout=0.3)


def values(rank: int, dtype: str, shape: Any) -> np.ndarray:
    """Small whole numbers, different per rank: exact in every dtype, and so are their sums."""
    return (np.arange(np.prod(shape)).reshape(shape) % 5 + 2 * rank + 1).astype(as_dtype(dtype))


def each(team: Team, call: Callable[..., Any], *lists: Any) -> list[Any]:
    """Call `call(rank, stream, ...)` for all ranks in one group."""
    with nccl.group():
        return [call(*one) for one in zip(team.ranks, team.streams, *lists, strict=True)]


# Results --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_in_every_dtype(team: Team, dtype: str) -> None:
    size = team.size
    hosts = [values(rank, dtype, (2 * size, 3)) for rank in range(size)]
    total = sum(host.astype(np.float64) for host in hosts)
    x = team.arrays(hosts)
    for got in team.numpy(each(team, lambda rank, stream, a: rank.all_reduce(stream, a), x)):
        np.testing.assert_array_equal(got.astype(np.float64), total)
    for got in team.numpy(each(team, lambda rank, stream, a: rank.all_gather(stream, a), x)):
        assert got.shape == (size, 2 * size, 3)
        np.testing.assert_array_equal(got, np.stack(hosts))
    parts = team.numpy(each(team, lambda rank, stream, a: rank.reduce_scatter(stream, a), x))
    np.testing.assert_array_equal(np.concatenate(parts).astype(np.float64), total)
    root = size - 1
    for got in team.numpy(each(team, lambda rank, stream, a: rank.broadcast(stream, a, root), x)):
        np.testing.assert_array_equal(got, hosts[root])


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
def test_every_reduction(team: Team, op: str) -> None:
    hosts = [values(rank, "float64", (7,)) for rank in range(team.size)]
    exact = {
        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "avg": np.mean,
    }[op](np.stack(hosts), axis=0)  # fmt: skip
    for got in team.numpy(each(team, lambda rank, stream, a: rank.all_reduce(stream, a, a, op=op), team.arrays(hosts))):
        np.testing.assert_allclose(got, exact, rtol=1e-15)


def test_calls_in_place_and_into_given_arrays(team: Team) -> None:
    size = team.size
    hosts = [values(rank, "float32", (size, 4)) for rank in range(size)]
    whole = team.arrays(hosts)
    each(team, lambda rank, stream, a: rank.all_gather(stream, a[rank.rank], out=a), whole)
    for got in team.numpy(whole):
        np.testing.assert_array_equal(got, np.stack([host[rank] for rank, host in enumerate(hosts)]))
    again = team.arrays(hosts)
    each(team, lambda rank, stream, a: rank.reduce_scatter(stream, a, out=a[rank.rank]), again)
    for rank, got in enumerate(team.numpy(again)):
        np.testing.assert_array_equal(got[rank], sum(hosts)[rank])


def test_sends_go_around_a_ring_in_one_group(team: Team) -> None:
    size = team.size
    hosts = [values(rank, "int32", (5,)) for rank in range(size)]
    x, y = team.arrays(hosts), team.arrays([np.zeros(5, np.int32)] * size)

    def shift(rank: nccl.Communicator, stream: Any, source: Any, target: Any) -> None:
        rank.send(stream, source, (rank.rank + 1) % size)
        rank.recv(stream, target, (rank.rank - 1) % size)

    each(team, shift, x, y)
    for rank, got in enumerate(team.numpy(y)):
        np.testing.assert_array_equal(got, hosts[(rank - 1) % size])


def test_a_call_waits_for_earlier_work_of_its_stream_and_later_work_for_it(team: Team) -> None:
    x = team.arrays([np.zeros(1000, np.float32)] * team.size)
    for step in range(1, 4):
        for a, stream in zip(x, team.streams, strict=True):
            a.fill(step, stream)
        each(team, lambda rank, stream, a: rank.all_reduce(stream, a, a), x)
        for got in team.numpy(x):
            np.testing.assert_array_equal(got, step * team.size)


def test_an_empty_call_is_not_queued(team: Team) -> None:
    x = team.arrays([np.zeros((0, 3), np.float32)] * team.size)
    assert [y.shape for y in each(team, lambda rank, stream, a: rank.all_reduce(stream, a), x)] == [(0, 3)] * team.size


def test_a_rank_per_thread_needs_no_group(team: Team) -> None:
    x = team.arrays([values(rank, "float32", (9,)) for rank in range(team.size)])
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(3):
                team.ranks[number].all_reduce(team.streams[number], x[number], x[number], op="max")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(team.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    for got in team.numpy(x):
        np.testing.assert_array_equal(got, values(team.size - 1, "float32", (9,)))


def test_the_library_and_the_communicators_say_what_they_are(team: Team) -> None:
    named = libs.library(team.devices[0], "nccl")
    assert named.startswith("NCCL 2." if team.devices[0].kind == "gpu" else "numpy ")
    assert repr(team.ranks[1]).startswith(f"Communicator(rank 1 of {team.size}")
    assert team.ranks[0].side_stream is team.ranks[0].side_stream


def test_registered_arrays_are_gathered(team: Team) -> None:
    arrays = nccl.registered(team.ranks, (team.size, 1024), "bfloat16")
    for rank, stream, a in zip(team.ranks, team.streams, arrays, strict=True):
        stream.wait(rank.device.default_stream)
        a[rank.rank].copy_from(values(rank.rank, "bfloat16", (1024,)), stream)
    each(team, lambda rank, stream, a: rank.all_gather(stream, a[rank.rank], out=a), arrays)
    for got in team.numpy(arrays):
        np.testing.assert_array_equal(got, np.stack([values(r, "bfloat16", (1024,)) for r in range(team.size)]))


# Rejected calls -------------------------------------------------------------------------------------------------------


def test_wrong_operands_are_rejected_before_anything_is_queued(team: Team) -> None:
    rank, stream, device = team.ranks[0], team.streams[0], team.devices[0]
    x = device.zeros((4, 6), stream=stream)
    other = team.devices[1].zeros((4, 6), stream=team.streams[1])
    closed = device.zeros(3, stream=stream)
    closed.close()
    wrong: list[tuple[type[BaseException], str, Callable[[], Any]]] = [
        (TypeError, "not a cudakit device array", lambda: rank.all_reduce(stream, np.zeros(3))),
        (TypeError, "supported are int8", lambda: rank.all_reduce(stream, device.zeros(3, "complex64", stream))),
        (TypeError, "x is float32 and out is int32", lambda: rank.all_reduce(stream, x, device.zeros((4, 6), "int32"))),
        (ValueError, "must be contiguous", lambda: rank.all_reduce(stream, x[:, ::2])),
        (ValueError, "out must have 24", lambda: rank.all_reduce(stream, x, device.zeros(23, stream=stream))),
        (ValueError, "out must have", lambda: rank.all_gather(stream, x, device.zeros(24, stream=stream))),
        (ValueError, "must be a multiple of", lambda: rank.reduce_scatter(stream, device.zeros(7, stream=stream))),
        (ValueError, "overlap, but not in place", lambda: rank.all_reduce(stream, x[:3], x[1:])),
        (ValueError, "op must be 'sum'", lambda: rank.all_reduce(stream, x, op="mean")),
        (ValueError, "root must be a rank", lambda: rank.broadcast(stream, x, team.size)),
        (ValueError, "peer must be a rank other", lambda: rank.send(stream, x, 0)),
        (TypeError, "needs a stream", lambda: rank.all_reduce(None, x)),
        (DeviceMismatch, "not on the communicator's device", lambda: rank.all_reduce(stream, other)),
        (DeviceMismatch, "the stream is on", lambda: rank.all_reduce(team.streams[1], x)),
        (Closed, "was closed", lambda: rank.all_reduce(stream, closed)),
    ]
    for kind, words, call in wrong:
        with pytest.raises(kind, match=words):
            call()
    test_every_reduction(team, "sum")


def test_different_calls_in_one_group_are_rejected_and_the_ranks_stay_usable(team: Team) -> None:
    sizes = [3 + rank for rank in range(team.size)]
    x = team.arrays([np.zeros(size, np.float32) for size in sizes])
    with pytest.raises(
        CudakitError, match=r"rank 0: all_reduce of 3 float32.*rank 1: all_reduce of 4.*Nothing was que"
    ):
        each(team, lambda rank, stream, a: rank.all_reduce(stream, a), x)
    with pytest.raises(CudakitError, match=r"rank 0: broadcast of 3 float32 per rank, root 0.*root 1"):
        each(team, lambda rank, stream, a: rank.broadcast(stream, a[:3], rank.rank), x)
    test_every_reduction(team, "sum")


def test_a_group_that_raises_queues_nothing(team: Team) -> None:
    x = team.arrays([np.ones(3, np.float32)] * team.size)

    def interrupted() -> None:
        with nccl.group():
            team.ranks[0].all_reduce(team.streams[0], x[0], x[0])
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    test_every_reduction(team, "sum")
    np.testing.assert_array_equal(team.numpy(x)[0], 1)


def test_wrong_communicators_are_rejected() -> None:
    with cudakit.Device("sim") as device:
        for arguments, words in (
            ((device, 2, 2, b"\0" * 128), "rank must be"),
            ((device, 0, 2, b"short"), "128 bytes"),
            ((device, 0, 2, b"\0" * 128), "made for GPUs"),
        ):
            with pytest.raises(ValueError, match=words):
                nccl.Communicator(*arguments)
        with pytest.raises(ValueError, match="at least one device"):
            nccl.communicators([])
        with pytest.raises(ValueError, match="a device of its own"):
            nccl.communicators([device, device])
        with cudakit.Device("sim", fresh=True, devices=2) as other, pytest.raises((ValueError, DeviceMismatch)):
            nccl.communicators([device, other])


# Deadlocks ------------------------------------------------------------------------------------------------------------


def test_calls_of_one_thread_without_a_group_are_reported(trio: Team) -> None:
    x = trio.arrays([np.zeros(3, np.float32)] * 3)
    with pytest.raises(
        CollectiveTimeout, match=r"all_reduce, call number 1 of rank 0, waited 0.3 s for ranks 1, 2.*group"
    ):
        trio.ranks[0].all_reduce(trio.streams[0], x[0])
    with pytest.raises(CollectiveTimeout, match="make new"):
        trio.ranks[1].all_reduce(trio.streams[1], x[1])


def test_a_wrong_order_of_calls_is_reported(trio: Team) -> None:
    x = trio.arrays([np.zeros(3, np.float32)] * 3)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        rank, stream = trio.ranks[number], trio.streams[number]
        calls = [lambda: rank.all_reduce(stream, x[number]), lambda: rank.broadcast(stream, x[number])]
        try:
            for call in calls if number else reversed(calls):
                call()
        except CudakitError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(failures) == 3
    assert "call number 1 of the communicator" in str(failures[0])
    assert "rank 0: broadcast" in str(failures[0])


def test_a_send_without_a_recv_is_reported(trio: Team) -> None:
    x = trio.arrays([np.zeros(3, np.float32)] * 3)
    with pytest.raises(CollectiveTimeout, match=r"send, call number 1 of rank 2, waited 0.3 s for rank 0"):
        trio.ranks[2].send(trio.streams[2], x[2], 0)


def test_a_missing_wait_is_a_wrong_result(trio: Team) -> None:
    """The stream of the call must wait for the stream that writes its operand."""
    sides = [device.stream() for device in trio.devices]
    x = trio.arrays([np.zeros(3, np.float32)] * 3)
    trio.numpy(x)
    for a, side in zip(x, sides, strict=True):
        a.fill(1, side)
    y = each(trio, lambda rank, stream, a: rank.all_reduce(stream, a), x)
    with pytest.raises((AssertionError, CudakitError)):
        np.testing.assert_array_equal(trio.numpy(y), np.full((3, 3), 3))


# Ends -----------------------------------------------------------------------------------------------------------------


def test_close_is_idempotent_and_ends_the_use(trio: Team) -> None:
    rank = trio.ranks[0]
    x = trio.devices[0].zeros(3, stream=trio.streams[0])
    rank.close()
    rank.close()
    with pytest.raises(Closed, match="make new communicators"):
        rank.all_reduce(trio.streams[0], x)


def test_a_with_block_that_raises_aborts_the_other_ranks_calls(trio: Team) -> None:
    with pytest.raises(KeyError), trio.ranks[0]:
        raise KeyError
    x = trio.devices[1].zeros(3, stream=trio.streams[1])
    with pytest.raises(CudakitError, match="was aborted"):
        trio.ranks[1].all_reduce(trio.streams[1], x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_rejected(trio: Team) -> None:
    x = trio.devices[0].zeros(3, stream=trio.streams[0])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            trio.ranks[0].all_reduce(trio.streams[0], x)
        except ForkedProcess:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Several processes ----------------------------------------------------------------------------------------------------


def member(spec: str, rank: int, size: int, unique: bytes, plan: str, pipe: Any) -> None:
    """A process of its own: one rank."""
    try:
        with cudakit.Device(spec) as device:
            stream = device.stream()
            made = nccl.Communicator(device, rank, size, unique, timeout=60)
            made.timeout = 30 if plan == "works" else 8 if device.kind == "gpu" else 3
            if plan == "dies" and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x = device.array(values(rank, "float32", (6,)), stream=stream)
            if plan == "differs" and rank == 1:
                x = device.zeros(5, stream=stream)
            if plan == "late" and rank == 1:
                pipe.send(None)
                time.sleep(60)
            total = made.all_reduce(stream, x)
            whole = made.all_gather(stream, x)
            with nccl.group():
                made.send(stream, x, (rank + 1) % size)
                other = made.recv(stream, device.empty(6, stream=stream), (rank - 1) % size)
            made.wait(stream)
            result = [array.numpy(stream) for array in (total, whole, other)]
            made.close()
            pipe.send(result)
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


def processes(specs: list[str], plan: str) -> list[Any]:
    """The result of each rank: arrays, the text of an error, or None if the process was killed."""
    context = multiprocessing.get_context("spawn")
    unique = nccl.unique_id(specs[0])
    ends, workers = [], []
    for rank, spec in enumerate(specs):
        mine, theirs = context.Pipe()
        worker = context.Process(target=member, args=(spec, rank, len(specs), unique, plan, theirs), daemon=True)
        worker.start()
        theirs.close()
        ends.append(mine)
        workers.append(worker)
    results = []
    for end in ends:
        try:
            results.append(end.recv() if end.poll(60) else "no answer")
        except EOFError:
            results.append(None)
    for worker in workers:
        worker.terminate()
        worker.join(10)
    return results


@pytest.mark.parametrize("spec", DEVICES)
def test_a_process_per_device(spec: str) -> None:
    specs = ["sim"] * 3
    if spec == "gpu":
        for device in gpus(2):
            device.close()
        specs = ["gpu:0", "gpu:1"]
    size = len(specs)
    hosts = [values(rank, "float32", (6,)) for rank in range(size)]
    results = processes(specs, "works")
    for rank, result in enumerate(results):
        assert isinstance(result, list), result
        np.testing.assert_array_equal(result[0], sum(hosts))
        np.testing.assert_array_equal(result[1], np.stack(hosts))
        np.testing.assert_array_equal(result[2], hosts[(rank - 1) % size])


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("dies", "rank 1 ended without close"),
        ("differs", "rank 1: all_reduce of 5 float32"),
        ("late", "CollectiveTimeout: all_reduce, call number 1 of rank 0, waited 3 s for rank 1"),
    ],
)
def test_a_lost_process_does_not_hang_the_other(plan: str, words: str) -> None:
    first, second = processes(["sim"] * 2, plan)
    assert words in first
    assert (second is None) == (plan in ("dies", "late"))


@pytest.mark.gpu
def test_a_lost_process_does_not_hang_the_other_gpu() -> None:
    for device in gpus(2):
        device.close()
    first, second = processes(["gpu:0", "gpu:1"], "dies")
    assert second is None
    assert first.startswith(("CollectiveTimeout", "CudaError")), first


# The bindings ---------------------------------------------------------------------------------------------------------


class Failed(Exception):
    status = 5


def fake_bindings(state: list[int]) -> Any:
    """The functions of the bindings that a call and its end need. state: the answers of comm_get_async_error; the last
    one is repeated."""
    module = types.SimpleNamespace(aborted=[], destroyed=[])
    module.comm_get_async_error = lambda comm: state.pop(0) if len(state) > 1 else state[0]
    module.comm_abort = module.aborted.append
    module.comm_destroy = module.destroyed.append
    module.comm_finalize = lambda comm: None
    module.get_error_string = lambda status: "invalid usage"
    module.get_last_error = lambda comm: "rank 1 has another version"
    module.Result = lambda status: types.SimpleNamespace(name={5: "InvalidUsage", 6: "RemoteError"}[status])
    module.Config = types.SimpleNamespace
    module.UniqueId = types.SimpleNamespace(from_buffer=bytes)
    config: dict[str, Any] = {}

    def init(size: int, unique: bytes, rank: int, pointer: Any) -> int:
        return 77

    module.comm_init_rank_config = init
    module.config = config
    return module


@pytest.fixture
def link(sim: cudakit.Device) -> nccl_library.Link:
    module = fake_bindings([7, 7, 0])
    module.Config = lambda: types.SimpleNamespace(ptr=1)
    settings = nccl_library.Settings(blocking=False, ctas=(1, 4), zero_ctas=True)
    clique: list[nccl_library.Link] = []
    clique.append(nccl_library.Link(module, sim.context, settings, clique))
    nccl_library.start(clique, bytes(128), [0], 1, 5)
    return clique[0]


def test_a_call_in_progress_is_awaited_and_given_up_after_the_timeout(link: nccl_library.Link) -> None:
    link.module.comm_get_async_error = lambda comm: 7
    with pytest.raises(CollectiveTimeout, match=r"nccl.all_reduce waited 0.05 s for the other ranks"):
        link.settle("nccl.all_reduce", 0.05)
    assert link.module.aborted == [77]
    with pytest.raises(Closed, match=r"was aborted: nccl.all_reduce waited"):
        link.settle("nccl.all_reduce", 0.05)
    link.close(1)
    assert link.module.destroyed == []


def test_errors_have_the_text_and_a_hint(link: nccl_library.Link) -> None:
    link.module.comm_get_async_error = lambda comm: 6
    with pytest.raises(
        CudaError, match=r"RemoteError.*rank 1 has another version.*A process of the communicator"
    ) as got:
        link.settle("nccl.all_reduce", 1)
    assert (got.value.code, got.value.name) == (6, "RemoteError")
    assert link.module.aborted == [77]
    assert "InvalidUsage" in str(nccl_library.told(Failed(), link.module, "ncclSend"))


def test_a_closed_link_is_destroyed_once(link: nccl_library.Link) -> None:
    link.module.comm_get_async_error = lambda comm: 0
    link.close(1)
    link.close(1)
    assert (link.module.destroyed, link.module.aborted) == ([77], [])


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(nccl_library.importlib, "import_module", missing)
    with pytest.raises(CudakitError, match=r"pip install 'cudakit\[nccl\]'"):
        nccl_library.bindings()
