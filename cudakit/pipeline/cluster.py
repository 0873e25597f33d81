"""`pipeline.run(..., on=client)`: a pipeline in each worker of a Dask cluster, and the one record of what is finished.

The client's process opens the sinks, holds the outputs' locks, and divides the items into shares (`Shares`). Each share
is one task of Dask on one worker (`worker.compute_share`), which reads the items, computes them with that worker's
pipeline, and writes the results to a temporary place of its own. This process moves them into place and records them
(`Sink.adopt`). A result therefore counts once, however often it was computed, and a worker that was lost, or whose
client was killed, changes nothing. Scheduling, membership and heartbeats are Dask's.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudakit import system
from cudakit.errors import CudakitError
from cudakit.pipeline.chunk import Progress, WorkerProgress
from cudakit.pipeline.layout import unit_of
from cudakit.pipeline.ranges import Range, aligned, common, gaps
from cudakit.pipeline.report import PipelineError, PipelineReport, WorkerReport
from cudakit.pipeline.request import RunRequest
from cudakit.pipeline.shares import ItemsLost, Share, Shares
from cudakit.pipeline.worker import (
    Devices,
    Job,
    Place,
    ShareDone,
    ShareFailed,
    WorkerEnd,
    compute_share,
    end_session,
    place,
)

if TYPE_CHECKING:
    from distributed import Client, Future

JOB_BYTES = 16 << 20  # a function and sources that need more hold data
_POLL = 0.05  # seconds between looks at the workers' results
_MEMBERSHIP = 0.5  # seconds between looks at the cluster's workers
_PATIENCE = 60.0  # seconds without a worker after which the run stops
_FETCH = 1.0  # seconds to wait for the result of a task that has ended
_PROGRESS = 0.1


class WorkerLost(CudakitError):
    """The worker or workers that computed a share left the cluster; or no worker is left."""


@dataclass(eq=False)
class _Assigned:
    """A share at a worker. attempt: the name of its temporary place."""

    share: Share
    attempt: str
    future: Future


@dataclass(eq=False)
class _Member:
    """A worker: its name in the cluster, its place, and its position among the workers of its host."""

    name: str
    place: Place
    position: int
    lost: bool = False


class ClusterRun:
    """One run of a request on a cluster's workers; not reusable.

    Args:
        client: A client of `dask.distributed`.
        request: The request, without devices.
        specs: The devices of each worker, as names; none to choose them by the workers of each host.

    Raises:
        TypeError: If it is not such a client.
        ValueError: If the workers cannot use a source or a sink, or there is no worker.
    """

    def __init__(self, client: Client, request: RunRequest, specs: Sequence[str]) -> None:
        expect_client(client)
        expect_shareable(request)
        self._client, self._request, self._specs = client, request, tuple(specs)
        self._members: dict[str, _Member] = {}
        self._look()
        if not self._members:
            raise ValueError("the cluster has no workers yet: call client.wait_for_workers(1) first")
        self._name = uuid.uuid4().hex[:12]
        self._pickled = b""
        self._finished: list[Range] = []
        self._at_work: dict[Share, _Assigned] = {}
        self._dropped: list[str] = []
        self._attempts = 0
        self._results: queue.SimpleQueue[_Assigned] = queue.SimpleQueue()
        self._reported: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._told = self._looked = 0.0
        self._ends: dict[str, WorkerEnd] = {}

    def prepare(self, finished: Sequence[Sequence[Range]]) -> None:
        """Prepare the job of the workers, after the sinks were opened. finished: the ranges that each sink has.

        Raises ValueError if the job cannot be sent to them.
        """
        request, count = self._request, self._request.count or 0
        done = list(finished[0])
        for ranges in finished[1:]:
            done = common(done, ranges)
        unit = unit_of(request)
        self._finished = done = aligned(done, unit, count)
        chunk = request.options.chunk
        self._unit = math.lcm(unit, chunk or 1)
        options = replace(request.options, progress=None, measure=bool(request.options.measure))
        job = Job(
            self._name, request.function, tuple(request.indexed), request.inputs, request.outputs, count,
            max(-(-count // len(self._members)), 1), unit, request.origin.identity, options,
            f"cudakit-{self._name}",
        )  # fmt: skip
        self._topic = job.topic
        self._pickled = pickled(job)
        self._shares = Shares(gaps(done, 0, count), self._unit, rivals=not any(sink.promise for sink in request.sinks))

    def run(self) -> PipelineReport:
        """Run it. Raises PipelineError from the failure that stopped it."""
        before = system.peak_memory_from_now()
        self._begin = time.perf_counter()
        began = time.time()
        self._client.subscribe_topic(self._topic, lambda event: self._reported.put(event[1]))
        complete = False
        try:
            for address in self._members:
                self._shares.join(address)
            self._work()
            self._end()
            self._discard()
            for sink in self._request.sinks:
                sink.finish(self._request.count or 0)
            complete = True
            self._tell(force=True)
        except ItemsLost as lost:
            start, stop, workers = lost.args
            raise self._error(
                f"items {start:,} to {stop - 1:,} were lost with {workers} workers in a row, which these items, the "
                "function or a lack of memory may have ended: see the workers' logs",
                "function", start, stop,
            ) from WorkerLost(f"{workers} workers were lost")  # fmt: skip
        except OSError as error:
            raise self._error(f"writing the output failed: {type(error).__name__}: {error}", "write", 0, 0) from error
        finally:
            self._client.unsubscribe_topic(self._topic)
            if not complete:
                with contextlib.suppress(Exception):  # must not hide the failure
                    self._cancel()
            for thing in (*self._request.sources, *self._request.sinks):
                thing.close()
        return self._report(time.perf_counter() - self._begin, began, system.peak_memory() - before)

    # The loop ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        alone = time.perf_counter()
        while not self._shares.over:
            self._assign()
            with contextlib.suppress(queue.Empty):
                self._settle(self._results.get(timeout=_POLL))
                for _ in range(self._results.qsize()):
                    self._settle(self._results.get_nowait())
            with contextlib.suppress(queue.Empty):
                while True:
                    report = self._reported.get_nowait()
                    if report["worker"] in self._shares.members:
                        self._shares.computed(report["worker"], report["items"], time.perf_counter())
            now = time.perf_counter()
            if now - self._looked >= _MEMBERSHIP:
                self._follow_members()
            if any(not member.lost for member in self._members.values()):
                alone = now
            elif now - alone > _PATIENCE:
                raise self._error(
                    f"the cluster has had no worker for {_PATIENCE:.0f} seconds", "function", 0, 0
                ) from WorkerLost("all workers left the cluster")
            self._tell()

    def _assign(self) -> None:
        new, dropped = self._shares.assign(time.perf_counter())
        for share in dropped:
            self._drop(share)
        for share in new:
            self._attempts += 1
            attempt = f"{self._name}-{self._attempts}"
            portions = [sink.portion(attempt) for sink in self._request.sinks]
            future = self._client.submit(
                compute_share, self._pickled, share.start, share.stop, portions, self._devices_of(share.worker),
                key=f"cudakit-{attempt}", workers=[share.worker], pure=False, retries=0,
            )  # fmt: skip
            assigned = self._at_work[share] = _Assigned(share, attempt, future)
            future.add_done_callback(lambda _, assigned=assigned: self._results.put(assigned))

    def _settle(self, assigned: _Assigned) -> None:
        """Adopt the results of a task that has ended, unless its share was dropped."""
        share = assigned.share
        if self._at_work.get(share) is not assigned:
            return
        if assigned.future.status == "error" and not _is_loss(assigned.future):
            error = assigned.future.exception()
            text = f"worker {self._members[share.worker].name}: {type(error).__name__}: {error}"
            raise self._error(text, "function", share.start, share.stop) from error
        try:
            result = assigned.future.result(timeout=_FETCH) if assigned.future.status == "finished" else None
        except TimeoutError:  # the worker left with the result, which the look at the members will find, or is slow
            self._results.put(assigned)
            return
        if isinstance(result, ShareFailed):
            raise self._failure(result, share)
        if not isinstance(result, ShareDone):  # lost with its worker, or cancelled by Dask
            self._forfeit(share.worker)
            return
        try:
            for sink in self._request.sinks:
                sink.adopt(assigned.attempt, share.start, share.stop)
        except OSError as error:
            text = f"moving the results of worker {self._members[share.worker].name} into place failed: {error}"
            raise self._error(text, "write", share.start, share.stop) from error
        del self._at_work[share]
        now = time.perf_counter()
        self._shares.computed(share.worker, result.computed, now)
        rival = self._shares.finish(share, now)
        if rival is not None:
            self._drop(rival)

    def _drop(self, share: Share) -> None:
        assigned = self._at_work.pop(share, None)
        if assigned is not None:
            self._dropped.append(assigned.attempt)
            assigned.future.cancel()

    def _forfeit(self, worker: str) -> None:
        """Return a lost worker's shares to the others."""
        for share in self._shares.forfeit(worker):
            self._drop(share)

    def _cancel(self) -> None:
        for share in list(self._at_work):
            self._drop(share)
        self._end()
        self._discard()

    def _end(self) -> None:
        """End the workers' pipelines, and collect their reports."""
        there = [address for address, member in self._members.items() if not member.lost]
        if not there:
            return
        ends = self._client.run(end_session, self._name, workers=there, on_error="return")
        self._ends = {address: end for address, end in ends.items() if isinstance(end, WorkerEnd)}

    def _discard(self) -> None:
        for attempt in self._dropped:
            for sink in self._request.sinks:
                sink.discard(attempt)
        self._dropped.clear()

    # Members ----------------------------------------------------------------------------------------------------------

    def _look(self) -> set[str]:
        """Add the cluster's new workers, and return the addresses of all that it has now."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        new = [address for address in workers if address not in self._members or self._members[address].lost]
        places = self._client.run(place, workers=new, on_error="return") if new else {}
        for address, found in places.items():
            if isinstance(found, Place):
                position = self._position(found.host)
                self._members[address] = _Member(str(workers[address]["name"]), found, position)
        return set(workers)

    def _position(self, host: str) -> int:
        used = {member.position for member in self._on(host)}
        return next(number for number in range(len(used) + 1) if number not in used)

    def _on(self, host: str) -> list[_Member]:
        return [member for member in self._members.values() if member.place.host == host and not member.lost]

    def _follow_members(self) -> None:
        for assigned in self._at_work.values():
            if assigned.future.status != "pending":  # in case its callback was not called
                self._results.put(assigned)
        there = self._look()
        for address, member in self._members.items():
            if address in there:
                self._shares.join(address)
            elif not member.lost:
                member.lost = True
                self._shares.leave(address)
                self._forfeit(address)
        self._looked = time.perf_counter()

    def _devices_of(self, address: str) -> Devices:
        member = self._members[address]
        beside = self._on(member.place.host)
        specs = self._specs or part_of_host(member.place, member.position, [other.place for other in beside])
        return Devices(specs, len(beside))

    # Reports ----------------------------------------------------------------------------------------------------------

    def _done(self) -> int:
        return sum(member.adopted for member in self._shares.members.values())

    def _tell(self, force: bool = False) -> None:
        """Call the progress function if it is due."""
        tell, now = self._request.options.progress, time.perf_counter()
        if tell is None or (not force and now - self._told < _PROGRESS):
            return
        seconds, done = max(now - self._begin, 1e-9), self._done()
        read, written = (sum(item.nbytes for item in items) for items in (self._request.inputs, self._request.outputs))
        skipped = sum(stop - start for start, stop in self._finished)
        workers = tuple(
            WorkerProgress(self._members[address].name, member.adopted, member.rate(now))
            for address, member in self._shares.members.items()
            if not self._members[address].lost
        )
        tell(
            Progress(
                skipped + done, self._request.count, seconds, read * done / seconds / 1e9,
                written * done / seconds / 1e9, workers,
            )
        )  # fmt: skip
        self._told = time.perf_counter()

    def _report(self, seconds: float, began: float, growth: int) -> PipelineReport:
        request, ends = self._request, self._ends
        done = self._done()
        reports = [end.report for end in ends.values()]
        merged = PipelineReport(
            [name for report in reports for name in report.devices], request.options.streams,
            max((report.chunk for report in reports), default=request.options.chunk or 0), request.count,
            sum(report.device_bytes for report in reports), sum(report.host_bytes for report in reports),
            items=done, skipped=sum(stop - start for start, stop in self._finished),
            chunks=sum(report.chunks for report in reports),
            bytes_in=done * sum(item.nbytes for item in request.inputs),
            bytes_out=done * sum(item.nbytes for item in request.outputs), seconds=seconds, host_growth=growth,
            busy=_sums(report.busy for report in reports), waited=_sums(report.waited for report in reports),
            taken=self._shares.taken, doubled=self._shares.doubled,
        )  # fmt: skip
        computing = [report.computing for report in reports if report.computing is not None]
        merged.computing = sum(computing) if computing else None
        for address, member in self._members.items():
            counted = self._shares.members[address]
            worker = WorkerReport(
                member.name, member.place.host, items=counted.adopted, shares=counted.shares, lost=member.lost
            )
            end = ends.get(address)
            if end is not None:
                worker.devices, worker.computed = end.report.devices, end.report.items
                worker.gbps_in, worker.gbps_out = end.report.gbps_in, end.report.gbps_out
                merged.spans += [
                    replace(
                        span, lane=f"{member.name}: {span.lane}", begin=span.begin + end.began - began,
                        end=span.end + end.began - began,
                    )
                    for span in end.report.spans
                ]  # fmt: skip
            merged.shares += counted.shares
            merged.workers.append(worker)
        merged.spans.sort(key=lambda span: span.begin)
        return merged

    def _failure(self, failed: ShareFailed, share: Share) -> PipelineError:
        name = self._members[share.worker].name
        cause = failed.cause or WorkerLost(f"the error on worker {name}:\n{failed.text}")
        error = self._error(f"worker {name}: {failed.message}", failed.stage, failed.start, failed.stop, failed.chunk)
        error.__cause__ = cause
        if failed.cause is not None:
            error.add_note(f"the traceback on worker {name}:\n{failed.text}")
        return error

    def _error(self, text: str, stage: str, start: int, stop: int, chunk: int = 0) -> PipelineError:
        places = [sink.where for sink in self._request.sinks if sink.where]
        done = self._done() + sum(end - begin for begin, end in self._finished)
        kept = f"{done:,} of {self._request.count:,} items are finished"
        if places and done:
            kept += f", in {', '.join(places)}"
            if not any(sink.forgets for sink in self._request.sinks):
                kept += "; pass resume=True to continue"
        report = PipelineReport([], self._request.options.streams, 0, self._request.count, 0, 0, items=done)
        return PipelineError(
            f"{text.rstrip('.')}. {kept}.", chunk=chunk, start=start, stop=stop, stage=stage, report=report
        )


def part_of_host(place: Place, position: int, beside: Sequence[Place]) -> tuple[str, ...]:
    """Return the names of a worker's GPUs: its part of its host's, which the workers `beside` it, itself too, divide.

    Workers with different CUDA_VISIBLE_DEVICES, as dask-cuda starts them, use the first of theirs. Without a GPU it is
    empty, for the default device.
    """
    if not place.gpus:
        return ()
    if len({other.visible for other in beside}) > 1:
        return ("gpu:0",)
    mine = [number for number in range(place.gpus) if number % len(beside) == position]
    return tuple(f"gpu:{number}" for number in mine or [position % place.gpus])


def _is_loss(future: Future) -> bool:
    """Whether a task failed because its worker was lost."""
    from distributed import KilledWorker

    return isinstance(future.exception(), KilledWorker)


def _sums(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def expect_client(client: Any) -> None:
    """Raise TypeError or ValueError if `client` is not a client that a run can use."""
    try:
        from distributed import Client
    except ImportError as error:
        raise TypeError("on= needs Dask's scheduler: pip install 'cudakit[dask]'") from error
    if not isinstance(client, Client):
        raise TypeError(
            f"on= must be a dask.distributed.Client, got {type(client).__name__}: pass Client(...), or "
            "cluster.get_client()"
        )
    if client.asynchronous:
        raise ValueError("on= must be a client that waits: make it without asynchronous=True")


def expect_shareable(request: RunRequest) -> None:
    """Raise ValueError if workers cannot open a source, or write to a sink."""
    if request.blocks is not None:
        raise ValueError(
            "a generator cannot be a source on a cluster, as it is in this process: pass paths, or Filled(...), whose "
            "function makes any range of items"
        )
    if not request.sinks:
        raise ValueError("a run on a cluster needs a sink: pass a path, or None to drop the results")
    for name, things in (("source", request.indexed), ("sink", request.sinks)):
        for thing in things:
            if thing.private:
                raise ValueError(
                    f"the {name} {type(thing).__name__} cannot be used by a cluster's workers: {thing.private}"
                )


def pickled(job: Job) -> bytes:
    """Return a job for the workers. Raises ValueError if it cannot be pickled, or holds data."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise ValueError(
            f"the function and the sources cannot be sent to the workers: {type(error).__name__}: {error}. A function "
            "may not use open files, locks, devices or streams from outside; chunk.device is the worker's"
        ) from error
    if len(data) > JOB_BYTES:
        raise ValueError(
            f"the function and the sources have {len(data) / 1e6:,.1f} MB, at most {JOB_BYTES / 1e6:,.1f} MB are sent "
            "to the workers: let the function load its data there, from a path, instead of using a variable"
        )
    return data


def specs_of(devices: Any) -> tuple[str, ...]:
    """Return the names of each worker's devices, from the argument `devices` of a run on a cluster."""
    given = (devices,) if isinstance(devices, str) else () if devices is None else tuple(devices)
    if not all(isinstance(spec, str) for spec in given):
        raise TypeError(
            "devices of a run on a cluster are names that each worker opens, such as 'gpu:0' or 'sim', or None for its "
            f"part of its host's GPUs; got {devices!r}"
        )
    return given
