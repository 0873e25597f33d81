"""What a pipeline did: bytes, seconds, rates, and the share it reached of what its slowest part allows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cudakit.errors import CudakitError

STAGES = ("read", "h2d", "compute", "d2h", "write")


@dataclass(frozen=True)
class ChunkSpan:
    """One part of one chunk's way, in seconds since the run began. lane: "read 0", "stream 2", "write 0"."""

    lane: str
    stage: str
    chunk: int
    begin: float
    end: float


@dataclass
class Link:
    """Pinned copies of chunk size measured by themselves in the same run, bytes a second over all devices together.

    h2d, d2h: one direction alone; both: each way while both run.
    """

    h2d: float
    d2h: float
    both: float

    def seconds(self, bytes_in: int, bytes_out: int) -> float:
        """The least time in which these bytes pass: both ways as long as both have work, then the rest one way."""
        rest = bytes_in - bytes_out
        return min(bytes_in, bytes_out) / self.both + abs(rest) / (self.h2d if rest > 0 else self.d2h)


@dataclass
class PipelineReport:
    """The end of a run.

    items, chunks, bytes_in, bytes_out: what this run did (skipped: items that an earlier run had finished). seconds:
    from the first read to the last write. chunk: items. busy: seconds for which each stage worked, added up over
    threads and streams (device stages on a GPU only). bounds: the least seconds each stage takes alone, from rates
    measured in this run: read and write by their own threads' medians, compute by its quickest chunk, the link by
    pinned copies. waited: seconds for which the work's queueing waited, by what for. spans: the timeline, where asked
    for.
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
    link: Link | None = None
    spans: list[ChunkSpan] = field(default_factory=list, repr=False)

    @property
    def bound(self) -> float | None:
        """The least seconds that the slowest stage allows; None where none was measured (a simulated device)."""
        return max(self.bounds.values(), default=None) if self.link is not None else None

    @property
    def bound_by(self) -> str | None:
        """Which stage that is."""
        return max(self.bounds, key=lambda stage: self.bounds[stage]) if self.link is not None else None

    @property
    def share(self) -> float | None:
        """The bound's part of the seconds it took. A little over 1 is possible: the link's rates are measured one way
        and both ways in equal parts, and traffic that is neither may do slightly better."""
        return None if self.bound is None or not self.seconds else self.bound / self.seconds

    @property
    def gbps_in(self) -> float:
        """GB/s from the host to the devices."""
        return self.bytes_in / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbps_out(self) -> float:
        """GB/s from the devices to the host."""
        return self.bytes_out / self.seconds / 1e9 if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the derived figures; without the spans."""
        result = {key: value for key, value in asdict(self).items() if key != "spans"}
        derived = ("gbps_in", "gbps_out", "bound", "bound_by", "share")
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
        return "\n".join(lines)


_NAMES = {"read": "reading", "link": "the link to the device", "compute": "the device's work", "write": "writing"}


class PipelineError(CudakitError):
    """A pipeline was stopped by a failure, which is its __cause__; the chunks before it are finished.

    chunk: the number of the chunk. start, stop: its items. stage: "read", "copy", "compute" (the function), "device"
    (the work that was queued: of the chunks queued together, any may have been the cause) or "write". report: what had
    been done by then.
    """

    def __init__(self, message: str, *, chunk: int, start: int, stop: int, stage: str, report: PipelineReport) -> None:
        self.chunk, self.start, self.stop, self.stage, self.report = chunk, start, stop, stage, report
        super().__init__(message)
