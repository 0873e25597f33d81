"""A cluster run's part in a worker process: one pipeline, which the shares of the items pass through one after another.

A task of Dask per share (`compute_share`) adds the share to the session of its run, and waits until its results are
finished in their temporary place. The pipeline keeps its streams and buffers from share to share, and reads a share
while it computes the one before. A session without a share for a while ends, so a run whose client died leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError
from cudakit.pipeline.engine import Execution
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.layout import plan
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.ranges import Range, left
from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.report import PipelineError, PipelineReport
from cudakit.pipeline.request import Options, RunRequest
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.sources import Item, Source
from cudakit.pipeline.state import Stopped
from cudakit.pipeline.tickets import Ticket

IDLE_SECONDS = 10.0  # after which a session without a share ends
_POLL = 0.05  # seconds between looks at a task's cancellation
_PATIENCE = 1.0  # seconds for the last chunks of a session to end by themselves
_TOLD = 0.2  # seconds between reports of the items computed


@dataclass(frozen=True)
class Job:
    """A run, for its workers.

    name: unique. even: items per worker if all were equal. unit: of the shares. identities: of the sources in the
    client's process, which a worker's must equal. topic: of the reports about items computed.
    """

    name: str
    function: Callable[..., Any]
    sources: tuple[Source, ...]
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    count: int
    even: int
    unit: int
    identities: Sequence[Any]
    options: Options
    topic: str


@dataclass(frozen=True)
class Devices:
    """The devices of a worker: their names for `Device`, and the number of workers on its host."""

    specs: tuple[str, ...]
    neighbours: int


@dataclass
class ShareDone:
    """A finished share. computed: items that this worker has computed in the run so far. chunk: items per chunk."""

    computed: int
    chunk: int


@dataclass
class ShareFailed:
    """The failure of a share: the fields of a PipelineError, and the error's text and traceback.

    cause: the error itself, if it can be pickled. refused: whether it was raised before anything was computed.
    """

    message: str
    stage: str
    start: int
    stop: int
    chunk: int
    text: str
    cause: BaseException | None
    refused: bool


@dataclass
class WorkerEnd:
    """A worker's report of its part in a run. began: time.time() at the start of its pipeline."""

    report: PipelineReport
    began: float


@dataclass(frozen=True)
class Place:
    """A worker's host, its CUDA_VISIBLE_DEVICES, and its number of GPUs: 0 if CUDAKIT_DEVICE names its device."""

    host: str
    visible: str | None
    gpus: int


def place() -> Place:
    """Return the place of this process."""
    gpus = 0
    if not os.environ.get("CUDAKIT_DEVICE"):
        with contextlib.suppress(CudakitError):  # no driver or no GPU
            gpus = drivers.count(drivers.open("gpu"))
    return Place(socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)


class _Part:
    """A share at work: its portions, one per sink, and the items that are not written yet."""

    def __init__(self, start: int, stop: int, portions: Sequence[Sink]) -> None:
        self.start, self.stop, self.portions = start, stop, portions
        self.left = [stop - start] * len(portions)
        self.given = start  # the item after those handed out to readers
        self.dropped = False
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether every item is written, or one could not be."""
        return self.error is not None or not any(self.left)


class _Routed(Sink):
    """The sink of a session: passes results to the portion of the share that they belong to."""

    def __init__(self, feed: Feed, place: int, unit: int) -> None:
        self._feed, self._place, self.unit = feed, place, unit

    def write(self, start: int, stop: int, items: HostArray) -> None:
        part = self._feed.take_part(self._place, (start, stop))
        if part.dropped or part.error is not None:
            return
        try:
            part.portions[self._place].write(start, stop, items)
        except Exception as error:  # fails the share, not the pipeline: the client may have removed a cancelled portion
            part.error = error
        self._feed.written(part, self._place, stop - start)


class Feed:
    """The chunks of a session, as `Tickets`: those of one share after the other, until it is closed.

    count, skipped: as of Tickets; the number of items is unknown until the end. places: number of sinks.
    """

    def __init__(self, periods: Sequence[int], places: int) -> None:
        self.count: int | None = None
        self.skipped = 0
        self.chunk = 1  # set after the layout
        self.stopped: Callable[[], bool] = lambda: False
        self.changed = threading.Condition()
        self._periods = periods
        self._parts: deque[_Part] = deque()
        # Per sink: the shares of the chunks that were handed out and not yet written. A share that was dropped and one
        # that came later may have the same items, so an item alone does not name its share.
        self._handed: list[dict[Range, deque[_Part]]] = [{} for _ in range(places)]
        self._closed = False
        self._coming = 0  # shares whose portions are being opened
        self._used = time.monotonic()

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Stay open for a share that is about to be added. Raises Stopped if the session has ended."""
        with self.changed:
            if self._closed:
                raise Stopped
            self._coming += 1
        try:
            yield
        finally:
            with self.changed:
                self._coming -= 1
                self._used = time.monotonic()

    def add(self, part: _Part) -> None:
        """Add a share."""
        with self.changed:
            self._parts.append(part)
            self.changed.notify_all()

    def remove(self, part: _Part) -> None:
        """Forget a share. Its remaining chunks are not read, and results of those in flight are dropped."""
        with self.changed:
            part.dropped = True
            self._used = time.monotonic()
            with contextlib.suppress(ValueError):
                self._parts.remove(part)

    def close(self) -> None:
        """End the chunks after those of the shares that were added."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def take_part(self, place: int, chunk: Range) -> _Part:
        """Return the share of a chunk that is about to be written to a sink."""
        with self.changed:
            parts = self._handed[place][chunk]
            part = parts.popleft()
            if not parts:
                del self._handed[place][chunk]
            return part

    def written(self, part: _Part, place: int, items: int) -> None:
        with self.changed:
            part.left[place] -= items
            self.changed.notify_all()

    def __iter__(self) -> Iterator[Ticket]:
        index = 0
        while (part := self._next()) is not None:
            for start, stop in left([(0, part.start)], part.stop, self.chunk, self._periods):
                if part.dropped:
                    break
                with self.changed:
                    for handed in self._handed:
                        handed.setdefault((start, stop), deque()).append(part)
                yield Ticket(index, start, stop)
                index += 1
            part.given = part.stop

    def _next(self) -> _Part | None:
        """Return the next share, as soon as there is one; None at the end."""
        with self.changed:
            while True:
                if self.stopped():
                    raise Stopped
                for part in self._parts:
                    if part.given < part.stop:
                        return part
                idle = not self._parts and not self._coming
                if idle and time.monotonic() - self._used > IDLE_SECONDS:
                    self._closed = True
                if self._closed:
                    return None
                self.changed.wait(_POLL)


class Session:
    """The pipeline of one run in this process. Raises what `RunRequest` and `plan` raise."""

    def __init__(self, job: Job, devices: Devices, tell: Callable[[int], None]) -> None:
        self.job = job
        expect_same_sources(job)
        on = [_device(spec) for spec in devices.specs or ("auto",)]
        self.feed = Feed([source.period for source in job.sources if source.period], len(job.outputs))
        sinks = [_Routed(self.feed, place, job.unit) for place in range(len(job.outputs))]
        options = replace(job.options, progress=lambda progress: tell(progress.items), resume=False, overwrite=False)
        request = RunRequest(job.function, job.sources, sinks, job.inputs, job.outputs, job.even, on, options)
        layout = plan(request, neighbours=devices.neighbours)
        self.feed.chunk = self.chunk = layout.chunk
        self.spec = SinkSpec(Item.of((), "uint8"), job.count, RunOrigin(job.sources, job.count))
        self.execution = Execution(request, layout, self.feed, [[] for _ in sinks])
        self.feed.stopped = lambda: self.execution.state.stopped
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"pipeline {job.name}", daemon=True)
        self._thread.start()

    @property
    def computed(self) -> int:
        """Items computed so far."""
        return self.execution.state.items_done

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.execution.run()
        except BaseException as error:
            self.error = error
        finally:
            self.feed.close()
            with self.feed.changed:
                self.feed.changed.notify_all()

    def process(self, start: int, stop: int, portions: Sequence[Sink], cancelled: Callable[[], bool]) -> bool:
        """Compute a share, and finish its portions. Returns False if it was cancelled.

        Raises Stopped if the session has ended; the failure of the pipeline; the error of a portion.
        """
        part = _Part(start, stop, portions)
        opened: list[Sink] = []
        try:
            with self.feed.coming():
                for portion, item in zip(portions, self.job.outputs, strict=True):
                    portion.open(replace(self.spec, item=item))
                    opened.append(portion)
                self.feed.add(part)
            with self.feed.changed:
                while not part.over and not self.over and not cancelled():
                    self.feed.changed.wait(_POLL)
            if self.error is not None:
                raise self.error
            if not part.over:
                if self.over:
                    raise Stopped
                return False
            if part.error is not None:
                if cancelled():
                    return False
                raise part.error
            for portion in portions:
                portion.finish(stop - start)
            return True
        finally:
            self.feed.remove(part)
            for portion in opened:
                portion.close()

    def end(self) -> WorkerEnd:
        """End the pipeline, and return the report. Shares that are not finished by now were dropped."""
        self.feed.close()
        self._thread.join(_PATIENCE)
        state = self.execution.state
        if self._thread.is_alive():
            with state.condition:
                state.stopped = True
                state.condition.notify_all()
            self._thread.join()
        return WorkerEnd(self.execution.report, time.time() - (time.perf_counter() - state.begin))


def expect_same_sources(job: Job) -> None:
    """Raise ContentsRefused if a source is not the client's: a file of the same name on another disk."""
    for source, there in zip(job.sources, job.identities, strict=True):
        first, theirs = source.first(), there.get("first")
        if first != theirs and theirs is not None:
            name = there.get("path", f"the source {type(source).__name__}")
            raise ContentsRefused(
                f"the first items of {name} on {socket.gethostname()} "
                + ("cannot be read there" if first is None else "differ from the client's")
                + ": put it on a file system that all workers share, or make its items the same on every host"
            )


_devices: dict[str, Device] = {}


def _device(spec: str) -> Device:
    """Return the device that the runs in this process share, with its compiled kernels; a new one if it was lost."""
    device = _devices.get(spec)
    if device is None or device.context.closed or device.context.lost:
        device = _devices[spec] = Device(spec, fresh=device is not None and device.kind == "sim")
    return device


_sessions: dict[str, Session] = {}
_ended: deque[str] = deque(maxlen=1000)  # the names of runs that are over: a late task must not write to their outputs
_lock = threading.Lock()


def _session(job: Job, devices: Devices, tell: Callable[[int], None]) -> Session | None:
    """Return the session of a run, made if there is none; None if the run is over."""
    with _lock:
        if job.name in _ended:
            return None
        for name in [name for name, session in _sessions.items() if session.over]:
            del _sessions[name]
        session = _sessions.get(job.name)
        if session is None:
            session = _sessions[job.name] = Session(job, devices, tell)
        return session


def compute_share(
    pickled: bytes, start: int, stop: int, portions: Sequence[Sink], devices: Devices
) -> ShareDone | ShareFailed | None:
    """A task of Dask: compute one share in this worker. Returns None if the task was cancelled, or its run is over."""
    from distributed import get_worker, secede

    worker = get_worker()
    key = worker.get_current_task()
    secede()  # the next share's task starts now, so that the pipeline does not run empty between shares
    begun = False
    try:
        job: Job = pickle.loads(pickled)
        topic = job.topic
        tell = _Teller(lambda items: worker.log_event(topic, {"worker": worker.address, "items": items}))
        while True:
            session = _session(job, devices, tell)
            if session is None:
                return None
            begun = True
            try:
                done = session.process(start, stop, portions, lambda: cancelled(worker, key))
            except Stopped:  # it ended while it was idle
                continue
            return ShareDone(session.computed, session.chunk) if done else None
    except BaseException as error:
        return _failed(error, start, stop, refused=not begun)


def end_session(name: str) -> WorkerEnd | None:
    """End a run in this worker, and return the report of its session; None if there is none."""
    with _lock:
        _ended.append(name)
        session = _sessions.pop(name, None)
    return None if session is None else session.end()


class _Teller:
    """Passes on the number of items computed, at most every _TOLD seconds."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._told = tell, 0.0

    def __call__(self, items: int) -> None:
        if time.monotonic() - self._told >= _TOLD:
            self._told = time.monotonic()
            self._tell(items)


def cancelled(worker: Any, key: str) -> bool:
    """Whether Dask no longer needs a task's result: it was cancelled, or its client is gone."""
    task = worker.state.tasks.get(key)
    return task is None or task.state in ("cancelled", "resumed", "released", "forgotten")


def _failed(error: BaseException, start: int, stop: int, *, refused: bool) -> ShareFailed:
    stage, chunk, message = "function", 0, f"{type(error).__name__}: {error}"
    cause: BaseException | None = error
    if isinstance(error, PipelineError):
        stage, chunk, start, stop, message = error.stage, error.chunk, error.start, error.stop, str(error)
        cause = error.__cause__
    elif not refused:
        stage = "write"
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:
        cause = None
    return ShareFailed(message, stage, start, stop, chunk, text, cause, refused)
