"""Collectives between simulated devices of several processes, over loopback connections.

The process that makes the unique id runs a hub: a thread that accepts one connection per rank, collects the ranks'
calls, compares them, and sends every rank the other ranks' data. A call reads its source at once, after the earlier
work of its stream; its result is written in stream order.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from cudakit.errors import CollectiveTimeout, CudakitError
from cudakit.libs import collectives, host
from cudakit.libs.collectives import Call
from cudakit.libs.host import Array, DeviceOperand
from cudakit.memory.array import as_dtype

_MARK = b"cudakit simulated"
_KEY = 32
_LOCAL = "127.0.0.1"
#: Bytes of a unique id, as in NCCL.
ID_BYTES = 128


def unique_id() -> bytes:
    """Start a hub in this process and return the id with its port and key. The hub serves until the process ends."""
    key = secrets.token_bytes(_KEY)
    listener = Listener((_LOCAL, 0), backlog=64, authkey=key)
    port = int(listener.address[1])
    threading.Thread(target=_Hub(listener).serve, daemon=True, name="collectives of simulated devices").start()
    return (_MARK + port.to_bytes(2, "big") + key).ljust(ID_BYTES, b"\0")


def is_simulated(unique: bytes) -> bool:
    """Whether an id was made for simulated devices."""
    return unique.startswith(_MARK)


class _Hub:
    """The meeting point of the ranks. Messages are tuples; the first element says what they are."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._size = 0
        self._ranks: dict[int, Connection] = {}
        self._calls: dict[Any, dict[int, tuple[Any, bytes]]] = {}
        self._why = ""

    def serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            except Exception:  # a connection without the key
                continue
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: Connection) -> None:
        rank = None
        try:
            rank = self._join(connection)
            while rank is not None:
                message = connection.recv()
                if message[0] == "leave":
                    return
                with self._lock:
                    self._call(rank, *message[1:])
        except (EOFError, OSError):
            if rank is not None:
                with self._lock:
                    self._end(f"rank {rank} ended without close()")

    def _join(self, connection: Connection) -> int | None:
        rank, size = connection.recv()
        with self._lock:
            self._size = self._size or size
            if size != self._size or rank in self._ranks:
                twice = rank in self._ranks
                why = f"rank {rank} joined twice" if twice else f"sizes {self._size} and {size} were passed for one id"
                connection.send(("failed", why))
                self._end(why)
                return None
            self._ranks[rank] = connection
            if len(self._ranks) == size:
                self._tell(self._ranks, ("ready",))
        return int(rank)

    def _call(self, rank: int, key: Any, ranks: Sequence[int], form: Any, data: bytes) -> None:
        if self._why:
            self._tell([rank], ("failed", self._why))
            return
        calls = self._calls.setdefault(key, {})
        calls[rank] = form, data
        if len(calls) == len(ranks):
            del self._calls[key]
            why = collectives.mismatch(key[1], {each: collectives.Form(*form) for each, (form, _) in calls.items()})
            if why:
                self._end(why)
            else:
                self._tell(ranks, ("done", key, {each: data for each, (_, data) in calls.items()}))

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._tell(self._ranks, ("failed", self._why))

    def _tell(self, ranks: Any, message: Any) -> None:
        for rank in list(ranks):
            try:
                self._ranks[rank].send(message)
            except OSError:
                continue


class Member:
    """One rank's connection to the hub."""

    def __init__(self, unique: bytes, rank: int, size: int, timeout: float) -> None:
        port, key = int.from_bytes(unique[len(_MARK) :][:2], "big"), unique[len(_MARK) + 2 :][:_KEY]
        self.rank, self.size = rank, size
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._arrived: dict[Any, dict[int, bytes]] = {}
        self._broken: CudakitError | None = None
        try:
            self._connection = Client((_LOCAL, port), authkey=key)
        except (OSError, EOFError) as error:
            raise CudakitError(
                f"rank {rank} cannot reach the process that made the unique id ({error}): it must run until all ranks "
                "are done"
            ) from error
        self._connection.send((rank, size))
        self._receive(("ready",), f"rank {rank} of {size} waited {timeout:g} s for the other ranks to join", timeout)

    def launch(self, calls: Sequence[Call], timeout: float) -> None:
        """Exchange the data of one group of calls and queue the writing of the results."""
        with self._lock:
            if self._broken is not None:
                raise type(self._broken)(*self._broken.args)
            keys = [self._send(call) for call in calls]
            for call, (key, ranks) in zip(calls, keys, strict=True):
                while key not in self._arrived:
                    others = ", ".join(str(rank) for rank in ranks if rank != self.rank)
                    self._receive(
                        ("done", key),
                        f"{call.form.kind}, call number {key[1]} of rank {self.rank}, waited {timeout:g} s for rank "
                        f"{others}: a rank has not made the call, or makes its calls in another order",
                        timeout,
                    )
                _write(call, self._arrived.pop(key))

    def abort(self, why: str) -> None:
        self._broken = self._broken or collectives.broken(why)
        self._connection.close()

    def close(self) -> None:
        """Leave the hub. Idempotent."""
        if not self._connection.closed:
            with suppress(OSError):
                self._connection.send(("leave",))
            self._connection.close()

    def _send(self, call: Call) -> tuple[Any, list[int]]:
        ranks, name = list(range(self.size)), "all"
        if call.form.kind in collectives.PAIRWISE:
            ranks = [self.rank, call.peer] if call.form.kind == "send" else [call.peer, self.rank]
            name = f"{ranks[0]} to {ranks[1]}"
        self._counts[name] += 1
        key = name, self._counts[name]
        try:
            self._connection.send(("call", key, ranks, tuple(call.form), _read(call)))
        except OSError as error:
            self._fail(CudakitError(_gone(error)))
        return key, ranks

    def _receive(self, wanted: Any, missed: str, timeout: float) -> None:
        """Receive messages until `wanted` or a failure."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                    self._fail(CollectiveTimeout(missed))
                message = self._connection.recv()
            except (EOFError, OSError) as error:
                self._fail(CudakitError(_gone(error)))
            if message[0] == "failed":
                self._fail(collectives.broken(message[1]))
            if message[0] == "done":
                self._arrived[message[1]] = message[2]
            if message[: len(wanted)] == wanted:
                return

    def _fail(self, error: CudakitError) -> None:
        self._broken = error
        self._connection.close()
        raise error


def _gone(error: Exception) -> str:
    return f"the process that made the unique id has ended ({error or type(error).__name__}): run it until all are done"


def _read(call: Call) -> bytes:
    """Return the bytes of a call's source, after the earlier work of its stream."""
    if call.source is None or call.form.root not in (-1, call.communicator.rank):
        return b""
    source, read = _operand(call.source), list[bytes]()

    def work() -> None:
        read.append(source.view().tobytes())

    host.enqueue(call.context, int(call.stream), f"nccl.{call.form.kind}", work, [source], [])
    call.stream.synchronize()
    return b"".join(read)


def _write(call: Call, data: dict[int, bytes]) -> None:
    parts: dict[int, Array] = {
        rank: np.frombuffer(part, as_dtype(call.form.dtype)) for rank, part in data.items() if part
    }
    result = collectives.results(call.form, call.communicator.rank, parts)
    if result is not None and call.target is not None:
        target = _operand(call.target)

        def work() -> None:
            target.view()[...] = result

        host.enqueue(call.context, int(call.stream), f"nccl.{call.form.kind}", work, [], [target])
    collectives.keep(call)


def _operand(array: Any) -> DeviceOperand:
    return DeviceOperand(array.context, array.pointer, array.dtype, (array.size,), (array.itemsize,))
