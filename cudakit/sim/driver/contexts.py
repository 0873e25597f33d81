"""Driver calls about devices and contexts."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.chips.properties import DRIVER_VERSION
from cudakit.sim.driver.arguments import Handle, as_handle, size_t, unsigned
from cudakit.sim.driver.faults import CallError, Result, result, text
from cudakit.sim.driver.objects import Context, Stream
from cudakit.sim.driver.state import DriverState, call
from cudakit.sim.lockstep.report import FaultReport, Held, LeakReport, Origin, python_place

LIMITS = {
    cu.CUlimit.CU_LIMIT_STACK_SIZE: 1024,
    cu.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE: 7340032,
    cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE: 8388608,
    cu.CUlimit.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: 2,
    cu.CUlimit.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: 2048,
    cu.CUlimit.CU_LIMIT_MAX_L2_FETCH_GRANULARITY: 64,
    cu.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE: 0,
}
# lowest (numerically greatest) and highest stream priority, as on an H200
PRIORITIES = (0, -5)


_MEMORY_NAMES = {"device": "device memory", "host": "pinned host memory", "heap": "memory of the device heap"}


class ContextCalls(DriverState):
    """cuInit, cuDevice*, cuDevicePrimaryCtx*, cuCtx*, cuGetError*."""

    checks: frozenset[str]
    _leaks: list[Held]

    @call(context=False, initialised=False)
    def cuInit(self, Flags: int) -> None:
        if unsigned(Flags) != 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "Flags must be 0")
        self._initialised = True

    @call(1, context=False, initialised=False)
    def cuDriverGetVersion(self) -> int:
        return DRIVER_VERSION

    @call(1, context=False, initialised=False)
    def cuGetErrorName(self, error: Any) -> bytes:
        code = result(error)
        if code is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{error!r} is not a CUresult")
        return str(code.name).encode()

    @call(1, context=False, initialised=False)
    def cuGetErrorString(self, error: Any) -> bytes:
        code = result(error)
        if code is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{error!r} is not a CUresult")
        return text(code).encode()

    # ---- devices ----

    @call(1, context=False)
    def cuDeviceGetCount(self) -> int:
        return len(self.devices)

    @call(1, context=False)
    def cuDeviceGet(self, ordinal: int) -> Any:
        return cu.CUdevice(self._device(ordinal).ordinal)

    @call(1, context=False)
    def cuDeviceGetName(self, length: int, dev: Handle) -> bytes:
        chip = self._device(dev).chip
        name = f"Simulated {chip.model} ({chip.arch})".encode()[: max(length - 1, 0)]
        return name + b"\0" * (length - len(name))

    @call(1, context=False)
    def cuDeviceGetAttribute(self, attrib: Any, dev: Handle) -> int:
        device = self._device(dev)
        value = device.attributes.get(int(attrib))
        if value is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{attrib!r} is not a device attribute")
        return value

    @call(1, context=False)
    def cuDeviceTotalMem(self, dev: Handle) -> int:
        return self._device(dev).total_memory

    @call(1, context=False)
    def cuDeviceGetPCIBusId(self, length: int, dev: Handle) -> bytes:
        name = f"0000:{self._device(dev).ordinal + 1:02x}:00.0".encode()[: max(length - 1, 0)]
        return name + b"\0" * (length - len(name))

    @call(1, context=False)
    def cuDeviceGetUuid(self, dev: Handle) -> Any:
        uuid = cu.CUuuid()
        # the field cannot be set through the bindings
        ctypes.memmove(uuid.getPtr(), f"simulated-gpu-{self._device(dev).ordinal:02d}".encode(), 16)
        return uuid

    @call(1, context=False)
    def cuDeviceCanAccessPeer(self, dev: Handle, peerDev: Handle) -> int:
        return int(self._device(dev) is not self._device(peerDev))

    @call(1, context=False)
    def cuDeviceGetDefaultMemPool(self, dev: Handle) -> Any:
        return cu.CUmemoryPool(self._device(dev).default_pool.handle)

    @call(1, context=False)
    def cuDeviceGetMemPool(self, dev: Handle) -> Any:
        return cu.CUmemoryPool(self._device(dev).pool.handle)

    # ---- primary contexts ----

    def _make_context(self, device: Any, flags: int = 0) -> Context:
        context = Context(self._new_handle(), device, flags=flags)
        context.legacy = Stream(context, 0, 0, 0, legacy=True)
        context.limits = {int(limit): value for limit, value in LIMITS.items()}
        self._objects[context.handle] = context
        return context

    def _clear_context(self, context: Context) -> None:
        """Destroy all objects of a context, report those still alive as leaks, and reset its faults."""
        self._scheduler.cancel(context)
        self._unseen += self._take_unseen(context)
        held = self._held(context)
        self._leaks.extend(held)
        if held and "leaks" in self.checks and context.sticky is None:
            self._reports.append(leak_report(context, held))
        for loaded in list(context.modules.values()):
            self._unload(loaded)
        for memory in [m for m in self._memory.values() if m.context is context]:
            self._release(memory, "with its context")
        holders: tuple[dict[int, Any], ...] = (context.streams, context.events, context.graphs)
        for things in holders:
            for handle in things:
                self._objects.pop(handle, None)
            things.clear()
        context.per_thread.clear()
        context.legacy.last = None
        context.peers.clear()
        context.mistakes.clear()
        context.told.clear()
        context.sticky = context.report = None
        context.limits = {int(limit): value for limit, value in LIMITS.items()}

    def _take_unseen(self, context: Context) -> list[FaultReport]:
        """Take the reports of a context's mistakes, and of its fault, that no call has returned."""
        fault, unseen = context.report, context.mistakes
        context.mistakes = []
        # after Ctrl-C the interrupted call has raised KeyboardInterrupt
        if fault is not None and fault.kind != "interrupted" and not (fault.told or fault.taken):
            unseen = [fault]
        for report in unseen:
            report.taken = True
        return unseen

    def _held(self, context: Context, own: Container[int] = ()) -> tuple[Held, ...]:
        """The live objects of a context, grouped by the line that made them, most bytes first. ``own`` are handles and
        addresses to leave out. Memory whose free is queued counts as freed."""
        groups: dict[tuple[str, str], Held] = {}

        def add(what: str, origin: str | None, size: int = 0) -> None:
            held = groups.get((what, str(origin)))
            if held is None:
                place = python_place(origin.file, origin.line) if isinstance(origin, Origin) else None
                held = groups[what, str(origin)] = Held(what, 0, 0, str(origin or ""), place)
            held.count += 1
            held.bytes += size

        for memory in self._memory.values():
            what = _MEMORY_NAMES.get(memory.allocation.kind)
            if what and memory.context is context and not memory.freeing and memory.allocation.address not in own:
                what = "registered host memory" if memory.registered else what
                add(what, memory.allocation.origin, memory.allocation.size)
        holders: list[tuple[str, dict[int, Any]]] = [
            ("stream", context.streams),
            ("event", context.events),
            ("module", context.modules),
            ("graph", context.graphs),
        ]
        for name, things in holders:
            for handle, thing in things.items():
                if handle not in own:
                    add(name, thing.place)
        return tuple(sorted(groups.values(), key=lambda held: -held.bytes))

    @call(1, context=False)
    def cuDevicePrimaryCtxRetain(self, dev: Handle) -> Any:
        device = self._device(dev)
        device.retained += 1
        device.primary.active = True
        return cu.CUcontext(device.primary.handle)

    @call(context=False)
    def cuDevicePrimaryCtxRelease(self, dev: Handle) -> None:
        device = self._device(dev)
        if device.retained == 0:
            raise CallError(
                Result.CUDA_ERROR_INVALID_CONTEXT, f"the primary context of device {device.ordinal} is not retained"
            )
        device.retained -= 1
        if device.retained == 0:
            # run the work that is still queued, so that its faults are found
            self._scheduler.finish(self._scheduler.pending_of(device.primary))
            self._clear_context(device.primary)
            device.primary.active = False

    @call(context=False)
    def cuDevicePrimaryCtxReset(self, dev: Handle) -> None:
        device = self._device(dev)
        self._clear_context(device.primary)

    @call(2, context=False)
    def cuDevicePrimaryCtxGetState(self, dev: Handle) -> tuple[int, int]:
        primary = self._device(dev).primary
        return primary.flags, int(primary.active)

    @call(context=False)
    def cuDevicePrimaryCtxSetFlags(self, dev: Handle, flags: int) -> None:
        self._device(dev).primary.flags = unsigned(flags)

    # ---- contexts ----

    @call(1, context=False)
    def cuCtxCreate(self, ctxCreateParams: Any, flags: int, dev: Handle) -> Any:
        if ctxCreateParams is not None:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, "context creation parameters are not simulated")
        context = self._make_context(self._device(dev), unsigned(flags))
        self._stack().append(context)
        return cu.CUcontext(context.handle)

    @call(context=False)
    def cuCtxDestroy(self, ctx: Handle) -> None:
        context = self._context_of(ctx)
        if context is context.device.primary:
            raise CallError(Result.CUDA_ERROR_INVALID_CONTEXT, "a primary context cannot be destroyed: release it")
        self._scheduler.finish(self._scheduler.pending_of(context))
        self._clear_context(context)
        context.active = False
        del self._objects[context.handle]
        stack = self._stack()
        if stack and stack[-1] is context:
            stack.pop()

    @call(context=False)
    def cuCtxSetCurrent(self, ctx: Handle) -> None:
        stack = self._stack()
        if as_handle(ctx) == 0:
            if stack:
                stack.pop()
            return
        context = self._context_of(ctx)
        if not context.active:
            raise CallError(
                Result.CUDA_ERROR_CONTEXT_IS_DESTROYED,
                f"the primary context of device {context.device.ordinal} is not retained",
            )
        if stack:
            stack[-1] = context
        else:
            stack.append(context)

    @call(1, context=False)
    def cuCtxGetCurrent(self) -> Any:
        stack = self._stack()
        return cu.CUcontext(stack[-1].handle if stack else 0)

    @call(context=False)
    def cuCtxPushCurrent(self, ctx: Handle) -> None:
        self._stack().append(self._context_of(ctx))

    @call(1, context=False)
    def cuCtxPopCurrent(self) -> Any:
        stack = self._stack()
        if not stack:
            raise CallError(Result.CUDA_ERROR_INVALID_CONTEXT, "no context is current on this thread")
        return cu.CUcontext(stack.pop().handle)

    @call(1)
    def cuCtxGetDevice(self) -> Any:
        return cu.CUdevice(self._context().device.ordinal)

    @call(1, context=False)
    def cuCtxGetId(self, ctx: Handle) -> int:
        return (self._context_of(ctx) if as_handle(ctx) else self._context()).handle

    @call(1)
    def cuCtxGetFlags(self) -> int:
        return self._context().flags

    @call(1, context=False)
    def cuCtxGetApiVersion(self, ctx: Handle) -> int:
        return 3020

    @call()
    def cuCtxSynchronize(self) -> None:
        self._not_captured("cuCtxSynchronize", *self._context().all_streams())
        self._finish_context(self._context())

    @call(1)
    def cuCtxGetLimit(self, limit: Any) -> int:
        value = self._context().limits.get(int(limit))
        if value is None:
            raise CallError(Result.CUDA_ERROR_UNSUPPORTED_LIMIT, f"{limit!r} is not simulated")
        return value

    @call()
    def cuCtxSetLimit(self, limit: Any, value: int) -> None:
        context = self._context()
        if int(limit) not in context.limits:
            raise CallError(Result.CUDA_ERROR_UNSUPPORTED_LIMIT, f"{limit!r} is not simulated")
        context.limits[int(limit)] = size_t(value)

    @call(2)
    def cuCtxGetStreamPriorityRange(self) -> tuple[int, int]:
        return PRIORITIES

    @call()
    def cuCtxEnablePeerAccess(self, peerContext: Handle, Flags: int) -> None:
        context, peer = self._context(), self._context_of(peerContext)
        if unsigned(Flags) != 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "Flags must be 0")
        if peer.device is context.device:
            raise CallError(Result.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "a device is not a peer of itself")
        if peer.handle in context.peers:
            raise CallError(Result.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already")
        context.peers.add(peer.handle)

    @call()
    def cuCtxDisablePeerAccess(self, peerContext: Handle) -> None:
        context, peer = self._context(), self._context_of(peerContext)
        if peer.handle not in context.peers:
            raise CallError(Result.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access was not enabled")
        context.peers.discard(peer.handle)


def leak_report(context: Context, held: tuple[Held, ...]) -> LeakReport:
    """The report of the objects still alive at the end of a context."""
    count = sum(h.count for h in held)
    return LeakReport(
        "leak",
        f"{count} object{'s are' if count > 1 else ' is'} still alive at the end of the context of device"
        f" {context.device.ordinal}",
        places=tuple(h.place for h in held[:1] if h.place is not None),
        held=held,
        notes=["before the device is closed, call close() on each, use a `with` block, or drop all references"],
    )
