"""Communicator: one rank of a set of devices; its calls, waiting with a timeout, and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cudakit.device import Device
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, CollectiveTimeout
from cudakit.libs import groups, host_processes, nccl_library
from cudakit.libs.collectives import OPERATIONS, Call, Form, expect_operand, expect_pair
from cudakit.libs.nccl_library import Link, Settings
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray

#: Seconds after which a call or `Communicator.wait` stops waiting for other ranks: on GPUs, and on simulated devices.
TIMEOUT_S, SIMULATED_TIMEOUT_S = 300.0, 10.0
_PAUSE_S = 20e-6


class Communicator:
    """One rank of a set of devices that make collective calls together.

    This is a rank in a process of its own; `communicators` makes all ranks of one process. It waits until all ranks
    have joined.

    Args:
        device: The rank's GPU, or its simulated device.
        rank: Its number, from 0.
        size: The number of ranks.
        unique_id: The bytes that `unique_id` returned in one of the processes.
        timeout: Seconds after which joining, a call or `wait` gives up waiting for other ranks; 300 by default, 10 on
            simulated devices.
        blocking: Let calls wait for other ranks inside NCCL. A call is then some microseconds faster, but `timeout`
            applies only to `wait`.
        min_ctas: The fewest thread blocks that NCCL uses per call; its choice if None.
        max_ctas: The most thread blocks; fewer leave more multiprocessors to kernels that run at the same time.
        zero_ctas: Let the copy engines move the data if NCCL supports it: version 2.28 or later, an all-gather in
            arrays of `registered`.

    Attributes:
        rank: Its number.
        size: The number of ranks.
        device: Its device.
        timeout: The seconds that later calls wait for other ranks; it may be changed.

    Raises:
        CollectiveTimeout: If not all ranks join in time.
        CudaError: If NCCL fails; with its text.
        CudakitError: If NCCL or its bindings are not installed.
        ValueError: If `rank`, `size` or `unique_id` is not possible.
    """

    def __init__(
        self,
        device: Device,
        rank: int,
        size: int,
        unique_id: bytes,
        *,
        timeout: float | None = None,
        blocking: bool = False,
        min_ctas: int | None = None,
        max_ctas: int | None = None,
        zero_ctas: bool = False,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank must be from 0 to size - 1, got rank {rank} of size {size}")
        if not isinstance(unique_id, bytes) or len(unique_id) != host_processes.ID_BYTES:
            raise ValueError(f"unique_id must be the {host_processes.ID_BYTES} bytes that nccl.unique_id() returned")
        simulated = device.kind == "sim"
        if simulated != host_processes.is_simulated(unique_id):
            made = "simulated devices" if not simulated else "GPUs"
            raise ValueError(f"{device.context.spec} cannot join: the unique id was made for {made}")
        self._set(device, rank, size, timeout)
        if simulated:
            self.link: Any = host_processes.Member(unique_id, rank, size, self.timeout)
            return
        settings = Settings(blocking, (min_ctas, max_ctas), zero_ctas)
        links: list[Link] = []
        links.append(Link(nccl_library.bindings(), device.context, settings, links))
        self.link = links[0]
        nccl_library.start(links, unique_id, [rank], size, self.timeout)

    def _set(self, device: Device, rank: int, size: int, timeout: float | None) -> None:
        self.device, self.rank, self.size = device, rank, size
        self.timeout = timeout or (SIMULATED_TIMEOUT_S if device.kind == "sim" else TIMEOUT_S)
        self.closed = False
        self._streams: dict[int, Stream] = {}  # those that were used since the last wait
        self._side: Stream | None = None

    @classmethod
    def joined(cls, device: Device, rank: int, size: int, timeout: float | None, link: Any) -> Communicator:
        """Return the rank over a link that has joined already, for `nccl.communicators`."""
        made = cls.__new__(cls)
        made._set(device, rank, size, timeout)
        made.link = link
        return made

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Communicator(rank {self.rank} of {self.size}, {self.device.context.spec!r}{state})"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()  # other ranks may not make their calls any more

    @property
    def context(self) -> Context:
        """The device's context."""
        return self.device.context

    @property
    def side_stream(self) -> Stream:
        """A stream of the highest priority for calls that overlap with kernels; the same one at each use.

        The thread blocks of a collective on a stream of lower priority would run after those of a kernel that was
        queued earlier on another stream.
        """
        if self._side is None or self._side.closed:
            self._side = self.device.stream(self.context.stream_priorities()[1])
            self.context.own.add(self._side)
        return self._side

    # Calls ------------------------------------------------------------------------------------------------------------

    def all_reduce(self, stream: Any, x: DeviceArray, out: DeviceArray | None = None, op: str = "sum") -> DeviceArray:
        """Queue the element-wise reduction of all ranks' arrays; every rank gets the result.

        Args:
            stream: The stream the call is queued on.
            x: This rank's array, contiguous; all ranks' have one dtype and size.
            out: The result; a new array if None. It may be `x`.
            op: "sum", "prod", "max", "min" or "avg". Floating-point max and min ignore NaN.

        Returns:
            `out`.
        """
        on = self._expect("all_reduce", stream, x, op=op)
        made = self._out("all_reduce", on, x, out, x.shape, (1, 1))
        self._queue(Form("all_reduce", x.dtype.name, x.size, op), on, x, made)
        return made

    def all_gather(self, stream: Any, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        """Queue the concatenation of all ranks' arrays, in the order of the ranks; every rank gets the result.

        Args:
            stream: The stream the call is queued on.
            x: This rank's array, contiguous; all ranks' have one dtype and size.
            out: The result, of `size` times as many elements, contiguous; a new array of shape (size, *x.shape) if
                None. `x` may be this rank's part of it.

        Returns:
            `out`.
        """
        on = self._expect("all_gather", stream, x)
        made = self._out("all_gather", on, x, out, (self.size, *x.shape), (1, self.size))
        self._queue(Form("all_gather", x.dtype.name, x.size), on, x, made)
        return made

    def reduce_scatter(
        self, stream: Any, x: DeviceArray, out: DeviceArray | None = None, op: str = "sum"
    ) -> DeviceArray:
        """Queue the element-wise reduction of all ranks' arrays; each rank gets its part of the result.

        Args:
            stream: The stream the call is queued on.
            x: This rank's array, contiguous, of `size` equal parts along the first axis; all ranks' have one dtype and
                size.
            out: This rank's part, contiguous; a new array if None. It may be that part of `x`.
            op: As for `all_reduce`.

        Returns:
            `out`.
        """
        on = self._expect("reduce_scatter", stream, x, op=op)
        if out is None and (not x.ndim or x.shape[0] % self.size):
            raise ValueError(
                f"reduce_scatter: x has shape {x.shape}, and its first extent must be a multiple of the {self.size} "
                "ranks: pad it"
            )
        shape = (x.shape[0] // self.size, *x.shape[1:]) if x.ndim else ()
        made = self._out("reduce_scatter", on, x, out, shape, (self.size, 1))
        self._queue(Form("reduce_scatter", x.dtype.name, made.size, op), on, x, made)
        return made

    def broadcast(self, stream: Any, x: DeviceArray, root: int = 0) -> DeviceArray:
        """Queue the copy of one rank's array to all other ranks' arrays.

        Args:
            stream: The stream the call is queued on.
            x: Read on rank `root`, written on the others; contiguous, of one dtype and size on all ranks.
            root: The rank of the source.

        Returns:
            `x`.
        """
        on = self._expect("broadcast", stream, x)
        self._expect_rank("broadcast", "root", root)
        if self.rank != root:
            x.expect_writable()
        self._queue(Form("broadcast", x.dtype.name, x.size, root=root), on, x, x)
        return x

    def send(self, stream: Any, x: DeviceArray, peer: int) -> None:
        """Queue sending an array to another rank, which must call `recv`.

        Calls of one process, and sends and receives between two ranks in both directions, need a `group`.

        Args:
            stream: The stream the call is queued on.
            x: The array, contiguous.
            peer: The rank that receives it.
        """
        on = self._expect("send", stream, x)
        self._expect_rank("send", "peer", peer)
        self._queue(Form("send", x.dtype.name, x.size), on, x, None, peer)

    def recv(self, stream: Any, out: DeviceArray, peer: int) -> DeviceArray:
        """Queue receiving an array from another rank, which must call `send`.

        Args:
            stream: The stream the call is queued on.
            out: The array that is written, contiguous, with the dtype and size of the sent one.
            peer: The rank that sends.

        Returns:
            `out`.
        """
        on = self._expect("recv", stream, out, name="out")
        self._expect_rank("recv", "peer", peer)
        out.expect_writable()
        self._queue(Form("recv", out.dtype.name, out.size), on, None, out, peer)
        return out

    def _expect(self, kind: str, stream: Any, array: Any, name: str = "x", op: str = "sum") -> Stream:
        self._expect_open()
        expect_operand(kind, name, array, self.context)
        if op not in OPERATIONS:
            raise ValueError(f"{kind}: op must be {', '.join(map(repr, OPERATIONS))}, got {op!r}")
        if stream is None:
            raise TypeError(f"{kind} needs a stream as its first argument, got None: pass device.default_stream")
        on = Stream.of(self.context, stream)
        on.expect_open()
        return on

    def _expect_open(self) -> None:
        self.context.make_current()
        if self.closed:
            raise Closed(f"{self!r} was closed; make new communicators")

    def _expect_rank(self, kind: str, name: str, rank: int) -> None:
        if not 0 <= rank < self.size or (name == "peer" and rank == self.rank):
            other = " other than this one" if name == "peer" else ""
            raise ValueError(f"{kind}: {name} must be a rank{other}, from 0 to {self.size - 1}, got {rank}")

    def _out(
        self, kind: str, stream: Stream, x: DeviceArray, out: Any, shape: Sequence[int], parts: tuple[int, int]
    ) -> DeviceArray:
        if out is None:
            return memory.empty(self.context, stream, tuple(shape), x.dtype)
        expect_operand(kind, "out", out, self.context)
        expect_pair(kind, x, out, parts, self.rank)
        made: DeviceArray = out
        return made

    def _queue(self, form: Form, stream: Stream, source: Any, target: Any, peer: int = -1) -> None:
        if form.elements:
            self._streams[int(stream)] = stream
            groups.add(Call(self, form, stream, source, target, peer))

    # Waiting and ending -----------------------------------------------------------------------------------------------

    def wait(self, stream: Any, timeout: float | None = None) -> None:
        """Wait until the work of a stream is done, but not forever: `Stream.synchronize` would, if a rank were lost.

        Args:
            stream: The stream.
            timeout: Seconds; the communicator's timeout if None.

        Raises:
            CollectiveTimeout: If the work is not done in time. The communicator was aborted, so the stream's work has
                ended, with undefined results.
            CudaError: If NCCL or the work failed.
        """
        self._expect_open()
        on = Stream.of(self.context, stream)
        if self.device.kind == "sim":
            on.synchronize()
            return
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while not on.query():
            if time.monotonic() > deadline:
                self.abort()
                raise CollectiveTimeout(
                    f"{self!r} waited {limit:g} s for {on!r}: another rank has ended, hangs, or makes its calls in "
                    "another order. The communicator was aborted; make a new one"
                )
            self.link.settle("wait", limit)
            time.sleep(_PAUSE_S)

    def abort(self) -> None:
        """End the work in flight of this process's ranks, with undefined results, and free them. Idempotent."""
        if not self.closed:
            self.closed = True
            self._streams.clear()
            self.link.abort(f"{self!r} was aborted")

    def close(self) -> None:
        """Wait for the work of the streams used, and free the communicator. Idempotent.

        Raises:
            CollectiveTimeout: As `wait`.
        """
        if self.closed:
            return
        if not self.context.closed and self.context.lost is None and self.device.kind == "gpu":
            for stream in list(self._streams.values()):
                if not stream.closed:
                    self.wait(stream)
        self.closed = True
        self._streams.clear()
        if self._side is not None:
            self._side.close()
        if isinstance(self.link, Link):
            self.link.close(self.timeout)
        elif isinstance(self.link, host_processes.Member):
            self.link.close()
