"""NCCL through its Python bindings (package nccl4py): communicators of GPUs, and the calls of a group.

A communicator that is not blocking returns from every call at once; the calling thread then asks for its state until
NCCL has queued the work. So a rank that waits for another one can stop waiting.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.modes import Relaxed
from cudakit.errors import Closed, CollectiveTimeout, CudaError, CudakitError
from cudakit.libs import collectives
from cudakit.libs.collectives import OPERATIONS, TYPES, Call
from cudakit.libs.mapped import MappedMemory

_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t
_ZERO_CTA, _SYMMETRIC = 2, 1  # NCCL_CTA_POLICY_ZERO, NCCL_WIN_COLL_SYMMETRIC
_SPINS, _PAUSE_S = 200, 50e-6

_HINTS = {
    "UnhandledCudaError": "Set NCCL_DEBUG=WARN to see the failed call. Each rank needs a GPU of its own.",
    "SystemError": "Set NCCL_DEBUG=WARN to see the failed system call: /dev/shm may be full, or the network interface "
    "wrong (NCCL_SOCKET_IFNAME).",
    "InternalError": "Set NCCL_DEBUG=WARN to see the cause.",
    "InvalidArgument": "Set NCCL_DEBUG=WARN to see which argument.",
    "InvalidUsage": "Set NCCL_DEBUG=WARN to see the cause. Each rank needs a GPU of its own, and all ranks the same "
    "version of NCCL.",
    "RemoteError": "A process of the communicator has ended, or its network failed: close the communicator and make a "
    "new one.",
}


class Settings(NamedTuple):
    """Settings of a communicator. ctas: the smallest and the largest number of thread blocks per call; None: NCCL's
    choice. zero_ctas: use the copy engines if NCCL can."""

    blocking: bool
    ctas: tuple[int | None, int | None] = (None, None)
    zero_ctas: bool = False


def bindings() -> Any:
    """Return the module of NCCL's bindings, after NCCL was loaded. Raises CudakitError if one of them is missing."""
    try:
        module = importlib.import_module("nccl.bindings.nccl")
    except ImportError as error:
        raise CudakitError(
            f"collectives need nccl4py, which is not installed ({error}): pip install 'cudakit[nccl]'"
        ) from error
    try:
        module.get_version()
    except Exception as error:  # the bindings load the library when the first function is called
        raise CudakitError(
            f"NCCL cannot be loaded: {str(error).splitlines()[0]}. Install it: pip install 'cudakit[nccl]'"
        ) from error
    return module


def version(module: Any) -> str:
    number = int(module.get_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def unique_id(module: Any) -> bytes:
    """Return NCCL's id as bytes. The process that calls this must run until all ranks have joined."""
    return bytes(module.get_unique_id())


def told(error: Exception, module: Any, routine: str, more: str = "") -> Exception:
    """Return an error of the bindings as a CudaError; return any other error unchanged."""
    status = getattr(error, "status", None)
    if status is None:
        return error
    return failure(module, routine, int(status), more)


def failure(module: Any, routine: str, status: int, more: str = "") -> CudaError:
    try:
        name = module.Result(status).name
    except ValueError:
        name = str(status)
    text = str(module.get_error_string(status))
    return CudaError(routine, status, name, f"{text}: {more}" if more else text, _HINTS.get(name, ""))


class Link:
    """NCCL's communicator of one rank."""

    def __init__(self, module: Any, context: Context, settings: Settings, clique: list[Link]) -> None:
        self.module, self.context, self.settings = module, context, settings
        self.clique = clique  # the ranks of this process, this one among them
        self.why = ""
        self._held: list[Any] = []  # the communicator, until it is freed
        self.memory: list[tuple[Any, MappedMemory]] = []  # registered memory and its windows

    @property
    def comm(self) -> Any:
        """NCCL's handle. Raises Closed after close() and abort()."""
        if not self._held:
            raise Closed(f"the communicator was {f'aborted: {self.why}' if self.why else 'closed'}; make a new one")
        return self._held[0]

    def start(self, unique: bytes, rank: int, size: int) -> None:
        """Begin to join the other ranks; `settle` waits until all have."""
        module = self.module
        config = module.Config()
        config.blocking = int(self.settings.blocking)
        least, most = self.settings.ctas
        if least is not None:
            config.min_ctas = least
        if most is not None:
            config.max_ctas = most
        if self.settings.zero_ctas:
            config.cta_policy = _ZERO_CTA
        self.context.make_current()
        made = module.comm_init_rank_config(size, module.UniqueId.from_buffer(bytearray(unique)), rank, config.ptr)
        self._held.append(made)
        self._finalizer = self.context.adopt(self, _drop, self.context, module, self._held, self.memory)

    def settle(self, routine: str, timeout: float) -> None:
        """Wait until NCCL has queued the last call. Raises CollectiveTimeout, after abort(), if it takes too long."""
        self.expect_open()
        deadline, asked = time.monotonic() + timeout, 0
        while (state := int(self.module.comm_get_async_error(self.comm))) == _IN_PROGRESS:
            if time.monotonic() > deadline:
                self.abort(f"{routine} waited {timeout:g} s for other ranks")
                raise CollectiveTimeout(
                    f"{routine} waited {timeout:g} s for the other ranks: one of them has ended, hangs, or makes its "
                    "calls in another order. The communicator was aborted; make a new one"
                )
            asked += 1
            if asked > _SPINS:
                time.sleep(_PAUSE_S)
        if state != _SUCCESS:
            error = failure(self.module, routine, state, self._last_error())
            self.abort(f"{routine} failed")
            raise error

    def expect_open(self) -> None:
        """Raise Closed, ContextLost or ForkedProcess if the communicator cannot be used."""
        self.context.make_current()
        _ = self.comm

    def abort(self, why: str) -> None:
        """End the work in flight of this process's ranks, and free them."""
        for link in self.clique:
            link.why = link.why or why
            if link._held:
                link._finalizer()

    def close(self, timeout: float) -> None:
        """Free the communicator; the caller has waited for its work. Idempotent."""
        usable = not self.context.closed and self.context.lost is None and os.getpid() == self.context.pid
        if not self._held or not usable:
            self._held.clear()
            return
        self.context.make_current()
        comm, module = self._held[0], self.module
        with Relaxed(self.context.driver):
            _free(module, comm, self.memory)
            if not self.settings.blocking:
                _attempt(module.comm_finalize, comm)
                deadline = time.monotonic() + timeout
                while int(module.comm_get_async_error(comm)) == _IN_PROGRESS and time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
            self._held.clear()
            _attempt(module.comm_destroy, comm)
        self._finalizer()

    def _last_error(self) -> str:
        try:
            return str(self.module.get_last_error(self.comm)).strip()
        except Exception:
            return ""


def _attempt(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that frees; its failure leaves nothing to do."""
    try:
        function(*arguments)
    except Exception:
        return


def _free(module: Any, comm: Any, memory: list[tuple[Any, MappedMemory]]) -> None:
    while memory:
        window, held = memory.pop()
        _attempt(module.comm_window_deregister, comm, window)
        held.free()


def _drop(context: Context, module: Any, held: list[Any], memory: list[tuple[Any, MappedMemory]]) -> None:
    """Abort a communicator that was dropped without close(), or whose work does not end; for finalizers."""
    if held and context.attempt("cuCtxPushCurrent", context.handle) == 0:
        _attempt(module.comm_abort, held.pop())
        for _, each in memory:
            each.free()
        memory.clear()
        context.attempt("cuCtxPopCurrent")


def start(links: Sequence[Link], unique: bytes, ranks: Sequence[int], size: int, timeout: float) -> None:
    """Let the ranks of this process join, together."""
    module = links[0].module
    with nvtx.range("nccl.init"):
        joins = [functools.partial(link.start, unique, rank, size) for link, rank in zip(links, ranks, strict=True)]
        _grouped(module, "ncclCommInitRankConfig", joins)
        for link in links:
            link.settle("ncclCommInitRankConfig", timeout)


def launch(calls: Sequence[Call], timeout: float) -> None:
    """Queue the calls of one group."""
    links = [call.communicator.link for call in calls]
    for link in links:
        link.expect_open()
    module = links[0].module
    routine = f"nccl.{calls[0].form.kind}"
    with nvtx.range(routine):
        _grouped(module, routine, [_bound(call) for call in calls])
        for link in dict.fromkeys(links):
            if not link.settings.blocking:
                link.settle(routine, timeout)
    for call in calls:
        collectives.keep(call)


def _grouped(module: Any, routine: str, queued: Sequence[Callable[[], Any]]) -> None:
    """Make calls in one group of NCCL; one call alone needs none."""
    try:
        if len(queued) == 1:
            queued[0]()
            return
        module.group_start()
        try:
            for call in queued:
                call()
        except BaseException:
            _attempt(module.group_end)
            raise
        module.group_end()
    except Exception as error:
        raise told(error, module, routine) from error


def _bound(call: Call) -> Callable[[], Any]:
    """Return NCCL's call with its arguments."""
    form, link, stream = call.form, call.communicator.link, int(call.stream)
    module, type_, comm = link.module, TYPES[form.dtype], link.comm
    source = 0 if call.source is None else call.source.pointer
    target = 0 if call.target is None else call.target.pointer
    if form.kind == "send":
        return lambda: module.send(source, form.elements, type_, call.peer, comm, stream)
    if form.kind == "recv":
        return lambda: module.recv(target, form.elements, type_, call.peer, comm, stream)
    if form.kind == "broadcast":
        return lambda: module.broadcast(target, target, form.elements, type_, form.root, comm, stream)
    if form.kind == "all_gather":
        return lambda: module.all_gather(source, target, form.elements, type_, comm, stream)
    reduce = module.all_reduce if form.kind == "all_reduce" else module.reduce_scatter
    return lambda: reduce(source, target, form.elements, type_, OPERATIONS[form.op], comm, stream)


def register(links: Sequence[Link], memory: Sequence[MappedMemory], timeout: float) -> None:
    """Register memory of this process's ranks as one symmetric window; it is freed with the communicators."""
    module, windows = links[0].module, list[Any]()

    def one(link: Link, held: MappedMemory) -> None:
        link.expect_open()
        windows.append(module.comm_window_register(link.comm, held.address, held.nbytes, _SYMMETRIC))

    registrations = [functools.partial(one, link, held) for link, held in zip(links, memory, strict=True)]
    _grouped(module, "ncclCommWindowRegister", registrations)
    for link, window, held in zip(links, windows, memory, strict=True):
        link.settle("ncclCommWindowRegister", timeout)
        link.memory.append((window, held))
