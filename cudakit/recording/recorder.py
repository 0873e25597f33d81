"""`record`: writes every launch of a block to a file, with the memory before and after it."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.launch import following
from cudakit.launch.following import Send, SentLaunch
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module
from cudakit.recording import triton_launches
from cudakit.recording.code import write_module
from cudakit.recording.file import MemberWriter, RecordingError
from cudakit.recording.launches import FORMAT, RecordedLaunch, as_json, folder
from cudakit.recording.snapshot import Call, Snapshot, call_of, take

DEFAULT_LIMIT = 1 << 30
_active: list[Recorder] = []


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    limit: int = DEFAULT_LIMIT,
    only: str | Sequence[str] | None = None,
    last: int | None = None,
) -> Iterator[None]:
    """Record the launches of a `with` block, for `cudakit replay` on this or another machine.

    Each launch is saved with its PTX, machine code, source and arguments, and with the memory that it can access before
    and after it. Every launch through cudakit is recorded: kernels, ops, kernels of the frontends, and launches by
    Triton's own `kernel[grid](...)` on a GPU. Each launch waits for the whole device, so kernels that wait for each
    other cannot be recorded. Launches that are left out are noted in the file.

    Args:
        path: The file. Each launch is on disk before it starts, so that the file survives a crash of the process.
        limit: The most bytes of memory to save, before compression; equal contents count once.
        only: Names of kernels to record, with wildcards: "softmax*". None for all.
        last: Keep only this number of launches, the last ones, in a file of limited size.

    Raises:
        RecordingError: If the file cannot be written, the limit is exceeded, a stream is being captured or a graph is
            launched, or another recording is active.
        ValueError: If `limit` or `last` is not a positive integer.

    Example:

        with cudakit.record("bug.cudakit", last=10):
            train()
    """
    if any(not isinstance(one, int) or one < 1 for one in (limit, 1 if last is None else last)):
        raise ValueError(f"limit and last must be integers of at least 1, got limit={limit!r} and last={last!r}")
    if _active:
        raise RecordingError(f"a recording to {path} was requested while one to {_active[0].path} is active; end it")
    recorder = Recorder(Path(path), limit, (only,) if isinstance(only, str) else only, last)
    _active.append(recorder)
    following.followers.append(recorder)
    nvtx.listeners.append(recorder)
    error: BaseException | None = None
    try:
        with triton_launches.followed(recorder):
            yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        nvtx.listeners.remove(recorder)
        following.followers.remove(recorder)
        _active.remove(recorder)
        recorder.close(error)


class Recorder:
    """One recording in progress. It is also a listener of NVTX ranges, which makes launch plans call it."""

    def __init__(self, path: Path, limit: int, only: Sequence[str] | None, last: int | None) -> None:
        self.path, self._limit, self._only, self._last = path, limit, only, last
        self._file = MemberWriter(path)
        self._lock = threading.RLock()
        self._number = 0
        self._kept: deque[tuple[int, list[str]]] = deque()  # number, members
        self._left_out: dict[str, int] = {}
        self._notes: dict[str, None] = {}
        self._device: Context | None = None
        self._modules: dict[int, tuple[object, str]] = {}  # by id: the object, kept alive, and its folder
        self._before: list[str] = []  # members of the launch that is running

    def push(self, name: str, color: str | None) -> None:
        pass

    def pop(self, raised: type[BaseException] | None) -> None:
        pass

    def mark(self, name: str, color: str | None) -> None:
        pass

    # Launches ---------------------------------------------------------------------------------------------------------

    def follow(self, context: Context, send: Send, arguments: Any) -> Send:
        launch = following.sent(send)

        def recorded(stream: Any, pointers: int, extra: Any) -> Any:
            kernel = _kernel(context, launch)
            offsets = tuple(parameter.offset for parameter in kernel.parameters)
            packed = _packed(pointers, [(each.offset, each.size) for each in kernel.parameters])
            call = call_of(kernel, launch, packed, offsets, arguments)
            with self.around(context, stream, call) as sent:
                result = send(stream, pointers, extra)
                sent.append(int(result[0]) == 0)
            return result

        return recorded

    def graph(self, context: Context) -> None:
        raise RecordingError(
            "a graph is launched within record(), which cannot record the launches of a graph; launch the kernels "
            "without a graph, or end the recording first"
        )

    @contextlib.contextmanager
    def around(self, context: Context, stream: Any, call: Call) -> Iterator[list[bool]]:
        """Record a launch that the block queues. The block appends whether the driver accepted it."""
        if self._only is not None and not any(fnmatch.fnmatchcase(call.name, pattern) for pattern in self._only):
            self._left_out[call.name] = self._left_out.get(call.name, 0) + 1
            yield []
            return
        with self._lock:
            self._expect_no_capture(context, stream, call)
            context.call("cuCtxSynchronize")
            launch, snapshot = self._begin(context, call)
            sent: list[bool] = []
            yield sent
            if sent == [False]:
                self._forget(launch)
            else:
                self._end(context, launch, snapshot)

    def _expect_no_capture(self, context: Context, stream: Any, call: Call) -> None:
        code, capturing = context.driver.cuStreamIsCapturing(stream)[:2]
        if code or int(capturing) or context.captures:
            raise RecordingError(
                f"{call.name} is launched on a stream that is being captured into a graph, but recording waits for "
                "each launch; launch without a graph, or end the recording first"
            )

    def _begin(self, context: Context, call: Call) -> tuple[RecordedLaunch, Snapshot]:
        """Write the launch and the memory before it."""
        if self._device is None:
            self._device = context
            self._file.text("recording.json", {"format": FORMAT, "device": _facts(context)})
        snapshot = take(context, call, self._limit)
        if id(call.module) not in self._modules:
            self._modules[id(call.module)] = call.module, write_module(self._file, call.code)
        states = snapshot.save(context, self._file)
        number = self._number + 1
        launch = RecordedLaunch(
            number,
            call.name,
            call.mangled,
            self._modules[id(call.module)][1],
            *call.config,
            values=snapshot.values.hex(),
            offsets=call.offsets,
            links=snapshot.links,
            maps=snapshot.maps,
            arrays=snapshot.arrays,
            regions=snapshot.regions,
            before=states,
            stack=snapshot.stack,
            heap=snapshot.heap,
            carveout=call.carveout,
            launched=call.launched,
            refusals=snapshot.refusals,
        )
        self._number = number
        self._before = [name for state in states for name in (state.memory, state.undefined) if name]
        self._file.use(self._before)
        self._kept.append((number, self._before))
        self._file.text(f"{folder(number)}/before.json", as_json(launch))
        while self._last is not None and len(self._kept) > self._last:
            self._drop(*self._kept.popleft())
        if self._file.memory > self._limit:
            self._forget(launch)
            raise RecordingError(
                f"the recording to {self.path} needs more than limit={self._limit} bytes at launch {number} "
                f"({call.name}); pass a larger limit, record fewer kernels (only=), or keep only the last launches "
                "(last=)"
            )
        self._file.flush()
        for refusal in snapshot.refusals:
            self.note(f"{call.name} cannot be replayed: {refusal}")
        return launch, snapshot

    def _end(self, context: Context, launch: RecordedLaunch, snapshot: Snapshot) -> None:
        """Wait for the launch, and write the memory after it. Raises the launch's error."""
        code = context.driver.cuCtxSynchronize()[0]
        if code:
            error = context.failed("cuCtxSynchronize", code)
            self._file.text(f"{folder(launch.number)}/after.json", {"states": None, "error": str(error)})
            self._file.flush()
            raise error
        states = snapshot.save(context, self._file)
        names = [name for state in states for name in (state.memory, state.undefined) if name]
        self._file.use(names)
        self._before += names  # the same list is in _kept
        data = [{"memory": one.memory, "undefined": one.undefined, "links": one.links} for one in states]
        self._file.text(f"{folder(launch.number)}/after.json", {"states": data, "error": ""})
        self._file.flush()

    def _forget(self, launch: RecordedLaunch) -> None:
        """Drop the last launch, which is not sent or was not accepted."""
        self._drop(*self._kept.pop())
        self._number = launch.number - 1

    def _drop(self, number: int, members: list[str]) -> None:
        self._file.drop(members, [f"{folder(number)}/{name}.json" for name in ("before", "after")])

    # The end ----------------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Note in the file that something was not recorded."""
        self._notes[text] = None

    def close(self, error: BaseException | None) -> None:
        """Write the end of the file. error: the exception that ended the block."""
        with self._lock:
            if self._device is None:
                self._file.text("recording.json", {"format": FORMAT, "device": {}})
            for name, count in self._left_out.items():
                self.note(f"{count} {'launch' if count == 1 else 'launches'} of {name} left out by only=")
            dropped = self._number - len(self._kept)
            if self._last is not None and dropped > 0:
                self.note(f"{dropped} earlier {'launch' if dropped == 1 else 'launches'} dropped by last={self._last}")
            said = "" if error is None else f"{type(error).__name__}: {error}"
            numbers = [number for number, _ in self._kept]
            self._file.text("end.json", {"exception": said, "notes": list(self._notes), "launches": numbers})
            self._file.flush()
            self._file.close()


def _facts(context: Context) -> dict[str, str]:
    """Return the device's description."""
    from cudakit.device import Device

    device = Device.of(context)
    return {**device.info(), "spec": context.spec}


def _kernel(context: Context, launch: SentLaunch) -> Kernel:
    """Return the kernel that is launched."""
    for thing in context.made():
        kernel = thing.kernel_of(launch.function) if isinstance(thing, Module) else None
        if kernel is not None:
            return kernel
    raise RecordingError("a launch of a kernel whose module is closed cannot be recorded; keep the module open")


def _packed(pointers: int, layout: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes of the arguments in the driver's layout. pointers: kernelParams. layout: offset and size."""
    packed = bytearray(max((offset + size for offset, size in layout), default=0))
    places = (ctypes.c_void_p * len(layout)).from_address(pointers) if layout else ()
    for place, (offset, size) in zip(places, layout, strict=True):
        packed[offset : offset + size] = ctypes.string_at(place, size)
    return bytes(packed)
