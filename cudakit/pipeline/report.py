"""The report of a pipeline: bytes, seconds, rates, and the fraction of the speed that its slowest stage allows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cudakit.errors import CudakitError

STAGES = ("read", "h2d", "compute", "d2h", "write")


@dataclass(frozen=True)
class ChunkSpan:
    """One stage of one chunk.

    Attributes:
        lane: The thread or stream: "read 0", "stream 2", "write 0".
        stage: "read", "h2d", "compute", "d2h" or "write".
        chunk: The number of the chunk.
        begin, end: Seconds since the start of the run.
    """

    lane: str
    stage: str
    chunk: int
    begin: float
    end: float


@dataclass
class Link:
    """Rates of pinned copies of chunk size, measured without other work right before and after the run (the mean), in
    the memory that it uses, over all devices together.

    Attributes:
        h2d: Bytes per second to the devices, alone.
        d2h: Bytes per second to the host, alone.
        both: Bytes per second in each direction while both run.
    """

    h2d: float
    d2h: float
    both: float

    def seconds(self, bytes_in: int, bytes_out: int) -> float:
        """Return the least time for a transfer: both directions at once as far as possible, then the rest alone.

        Args:
            bytes_in: Bytes to the devices.
            bytes_out: Bytes to the host.
        """
        rest = bytes_in - bytes_out
        return min(bytes_in, bytes_out) / self.both + abs(rest) / (self.h2d if rest > 0 else self.d2h)


@dataclass
class WorkerReport:
    """The part of one worker of a cluster in a run.

    Attributes:
        name: Its name in the cluster.
        host: The name of its machine.
        devices: The names of its devices; empty if it was lost.
        items: Items of the shares that count: those whose results were moved into place.
        computed: Items it computed, results that were dropped included; None if it was lost.
        shares: Number of shares that count.
        gbps_in, gbps_out: GB/s to its devices and from them, while its pipeline existed; None if it was lost.
        lost: Whether it left the cluster during the run.
    """

    name: str
    host: str
    devices: list[str] = field(default_factory=list)
    items: int = 0
    computed: int | None = None
    shares: int = 0
    gbps_in: float | None = None
    gbps_out: float | None = None
    lost: bool = False


@dataclass
class PipelineReport:
    """The result of a run.

    Attributes:
        devices: The names of the devices.
        streams: Streams per device.
        chunk: Items per chunk.
        count: Number of items in all; None if a generator did not end.
        device_bytes: Device memory of the buffers, on all devices.
        host_bytes: Pinned memory of the buffers.
        items: Items that this run processed.
        skipped: Items that an earlier run had finished.
        chunks: Chunks that this run processed.
        bytes_in: Bytes copied to the devices.
        bytes_out: Bytes copied to the host.
        seconds: Time from the first read until all results are written and the sinks are finished. A sink that writes
            one `.npy` file ends with a sync to disk.
        host_growth: Growth of the process's peak memory, in bytes.
        busy: Seconds of work per stage, summed over threads and streams; device stages on a GPU only.
        bounds: The least seconds per stage if it ran alone, from rates measured in this run: the median chunk for
            reading and writing, the fastest chunk for compute (but at most `computing`), pinned copies for the link.
        waited: Seconds that queueing waited, by what it waited for.
        computing: Seconds in which at least one stream's function was at work on its device, summed over devices, by
            the device's timer; None if not measured, as on a simulated device.
        link: The measured rates of the link; None if not measured.
        spans: The timeline, if requested.
        workers: The part of each worker of a cluster; empty in a run without one. The run's busy and waited are sums
            over them; bytes are those of the shares that count.
        shares: Number of shares that count, in a run on a cluster.
        taken: Shares that a worker lost to an idle one before it started them.
        doubled: Shares that two workers computed at once; the first to finish counts.
    """

    devices: list[str]
    streams: int
    chunk: int
    count: int | None
    device_bytes: int
    host_bytes: int
    items: int = 0
    skipped: int = 0
    chunks: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    host_growth: int = 0
    busy: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    computing: float | None = None
    link: Link | None = None
    spans: list[ChunkSpan] = field(default_factory=list, repr=False)
    workers: list[WorkerReport] = field(default_factory=list)
    shares: int = 0
    taken: int = 0
    doubled: int = 0

    @property
    def bound(self) -> float | None:
        """The least seconds of the slowest stage; None if it was not measured, as on a simulated device."""
        return max(self.bounds.values(), default=None) if self.link is not None else None

    @property
    def bound_by(self) -> str | None:
        """The slowest stage, which sets the bound; None if it was not measured."""
        return max(self.bounds, key=lambda stage: self.bounds[stage]) if self.link is not None else None

    @property
    def share(self) -> float | None:
        """The bound divided by the seconds of the run; None if it was not measured.

        It can be slightly over 1: the link's rates are measured for one direction and for equal traffic in both, and
        other traffic may be slightly faster.
        """
        return None if self.bound is None or not self.seconds else self.bound / self.seconds

    @property
    def compute_share(self) -> float | None:
        """The fraction of the run in which a device computed: `computing` divided by seconds and devices; None if it
        was not measured, as on a simulated device."""
        if self.computing is None or not self.seconds:
            return None
        return self.computing / self.seconds / max(len(self.devices), 1)

    @property
    def streams_by_rule(self) -> float | None:
        """2 C/T + 1, for C seconds of kernels and T seconds of copies, the run's `bounds`: a common rule for the number
        of streams, which docs/lessons/05_streams.md tests; None if they were not measured."""
        kernels, copies = self.bounds.get("compute"), self.bounds.get("link")
        return None if not kernels or not copies else 2 * kernels / copies + 1

    @property
    def gbps_in(self) -> float:
        """GB/s from the host to the devices."""
        return self.bytes_in / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbps_out(self) -> float:
        """GB/s from the devices to the host."""
        return self.bytes_out / self.seconds / 1e9 if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with the derived figures and without the spans."""
        result = {key: value for key, value in asdict(self).items() if key != "spans"}
        derived = ("gbps_in", "gbps_out", "bound", "bound_by", "share", "compute_share", "streams_by_rule")
        return result | {name: getattr(self, name) for name in derived}

    def __str__(self) -> str:
        lines = [
            f"{self.items:,} items in {self.chunks:,} chunks through {self.streams} streams of "
            f"{', '.join(self.devices)}" + (f"; {self.skipped:,} were finished before" if self.skipped else ""),
            f"{self.bytes_in / 1e9:.3f} GB in and {self.bytes_out / 1e9:.3f} GB out in {self.seconds:.3f} s: "
            f"{self.gbps_in:.1f} GB/s in, {self.gbps_out:.1f} GB/s out",
            f"{self.host_bytes / 1e6:,.1f} MB of pinned and {self.device_bytes / 1e6:,.1f} MB of device memory for the "
            f"buffers; the process grew by {self.host_growth / 1e6:,.1f} MB",
        ]
        if self.share is not None and self.bound is not None:
            lines.append(
                f"{self.share:.0%} of the bound of {self.bound:.3f} s that {_NAMES.get(str(self.bound_by))} sets ("
                + ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in self.bounds.items())
                + ")"
            )
        if self.busy:
            lines.append(
                "working: "
                + ", ".join(f"{stage} {self.busy[stage]:.3f} s" for stage in STAGES if stage in self.busy)
                + "; queueing waited "
                + ", ".join(f"{seconds:.3f} s for {what}" for what, seconds in self.waited.items())
            )
        for worker in self.workers:
            rate = "" if worker.gbps_in is None else f", {worker.gbps_in:.1f} GB/s in, {worker.gbps_out:.1f} GB/s out"
            on = ", ".join(worker.devices)
            lines.append(
                f"worker {worker.name} on {worker.host}{f' ({on})' if on else ''}: {worker.items:,} items in "
                f"{worker.shares:,} shares{rate}{'; lost' if worker.lost else ''}"
            )
        if self.taken or self.doubled:
            lines.append(
                f"{self.taken:,} unstarted shares went to an idle worker, {self.doubled:,} were computed by two workers"
            )
        return "\n".join(lines)


_NAMES = {
    "read": "reading", "link": "the link to the device", "compute": "the device's work", "write": "writing",
    "disk": "the disk",
}  # fmt: skip


class PipelineError(CudakitError):
    """A failure, its `__cause__`, stopped a pipeline. The chunks before the failed one are finished.

    Attributes:
        chunk: The number of the chunk.
        start, stop: Its items.
        stage: "read", "copy", "compute" (the function), "device" (queued work: any of the chunks that were queued
            together may be the cause) or "write".
        report: The report up to the failure.
    """

    def __init__(self, message: str, *, chunk: int, start: int, stop: int, stage: str, report: PipelineReport) -> None:
        self.chunk, self.start, self.stop, self.stage, self.report = chunk, start, stop, stage, report
        super().__init__(message)
