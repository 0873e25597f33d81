"""Measures a family's ladder on one device: every rung checked first, then timed beside its ceiling and its peers.

On a GPU the figures are times; a simulated device has no clock, and gives counters instead. Everything here is driven
by the declarations in `cudakit.ops`: nothing about a kernel is known to this module.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit import nvtx
from cudakit.compare import Comparison, compare
from cudakit.errors import ContextLost, CudakitError, Refused, UnsupportedVariant
from cudakit.measure.peers import Peer, peers_of
from cudakit.measure.timing import GpuTimer, Launch, Spread, rotations, wall_clock
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.families.variant import Family, Variant
    from cudakit.memory.array import DeviceArray
    from cudakit.pipeline import Report as Streamed

GUARD_BYTES = 4096
POISON = 0xFF  # in every byte: a NaN in each float type
# The large copy of the ceilings: bytes read and bytes written together.
LARGE_COPY = 4 << 30


@dataclass
class Row:
    """One variant on one shape: the contract's row, and beside it the mode, the idea, the place of the worst error, why
    it is false, what its ceiling is, the launch (grid, block, shared bytes, registers, occupancy) of its largest
    kernel, and of a pipeline what it told at its end."""

    family: str
    variant: str
    rung: int | None
    shape: Shape
    dtype: str
    mode: str = ""
    idea: str = ""
    ok: bool | None = None
    skipped: str | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    worst_at: tuple[int, ...] | None = None
    why: str | None = None
    time_ms: dict[str, float] | None = None
    end_to_end_ms: float | None = None
    gbps: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None
    ceiling: str = "copy"
    counters: dict[str, float] | None = None
    launch: dict[str, Any] | None = None
    pipeline: dict[str, Any] | None = None

    def judge(self, verdict: Comparison) -> None:
        self.ok = verdict.ok
        self.max_abs_error, self.max_rel_error = verdict.max_abs_error, verdict.max_rel_error
        self.worst_at, self.why = verdict.worst_at, verdict.why or None

    def fail(self, why: str) -> None:
        self.ok, self.why = False, why

    def took(self, done: Streamed) -> None:
        """The figures of a pipeline: bytes both ways, and on a GPU its time and its share of the bound."""
        self.pipeline = done.as_dict()
        self.ceiling = "bound"
        if all(spec.startswith("gpu") for spec in done.devices):
            self.time_ms = Spread.of([done.seconds * 1e3]).as_dict()
            self.gbps = (done.bytes_in + done.bytes_out) / done.seconds / 1e9
            self.of_ceiling = done.share


@dataclass
class Report:
    """What a run measured, in the contract's form."""

    device: dict[str, Any]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    ceilings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No row is false. A skipped row is not."""
        return not any(row.ok is False for row in self.rows)

    def merge(self, other: Report) -> None:
        """Takes in another run's rows and ceilings, of the same device."""
        self.rows += other.rows
        copies = [*self.ceilings.get("copy", []), *other.ceilings.get("copy", [])]
        self.ceilings |= other.ceilings | ({"copy": copies} if copies else {})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Guarded:
    """An output array between two guard zones, every byte of all three poisoned.

    What a kernel leaves unwritten is then seen, and what it writes outside its output too.
    """

    def __init__(self, device: Device, shape: Shape, dtype: np.dtype[Any], stream: Stream) -> None:
        inside = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._whole = device.empty((GUARD_BYTES + inside + GUARD_BYTES,), np.uint8, stream=stream)
        self._guards = (self._whole[:GUARD_BYTES], self._whole[GUARD_BYTES + inside :])
        self.array = self._whole[GUARD_BYTES : GUARD_BYTES + inside].view(dtype).reshape(shape)

    def poison(self, stream: Stream) -> None:
        self._whole.fill(POISON, stream)

    def damage(self, stream: Stream) -> str | None:
        """Which guard zone was written, or None."""
        for where, zone in zip(("before", "behind"), self._guards, strict=True):
            changed = np.flatnonzero(zone.numpy(stream) != POISON)
            if changed.size:
                place = GUARD_BYTES - int(changed[-1]) if where == "before" else int(changed[0]) + 1
                return f"wrote {changed.size} bytes outside its output, the nearest at byte {place} {where} it"
        return None


class _Case:
    """One shape of a family: its arrays on host and device, its reference, and the copies that timing rotates over."""

    def __init__(
        self, device: Device, family: Family[Any], shape: Shape, dtype: str, mode: str, stream: Stream, seed: int
    ) -> None:
        self.device, self.family, self.shape, self.stream = device, family, family.read_shape(shape), stream
        self.dtype, self.mode, self.options = dtype, mode, family.modes[mode]
        self.said = " ".join(part for part in (family.name, shape_text(self.shape), dtype, mode) if part)
        try:
            self.host = family.make_inputs(
                self.shape, memory.as_dtype(dtype), np.random.default_rng(seed), **self.options
            )
        except ValueError as error:
            raise Refused(f"{family.name} does not take the shape {shape_text(shape)}: {error}") from error
        self.reference = family.reference(self.host, **self.options)
        self.plain = family.plain(self.host, **self.options)
        self.inputs: list[DeviceArray] = [device.array(array, stream=stream) for array in self.host]
        self.output = Guarded(device, *family.output_like(self.host, **self.options), stream)
        try:
            self.problem = family.problem(self.inputs, self.output.array, **self.options)
        except ValueError as error:
            raise Refused(f"{family.name} does not take the shape {shape_text(shape)}: {error}") from error
        self.traffic = family.traffic(self.problem)
        self.sets: list[tuple[list[DeviceArray], DeviceArray]] = [(self.inputs, self.output.array)]

    def row(self, variant: str, rung: int | None, idea: str) -> Row:
        family = self.family
        return Row(family.name, variant, rung, self.shape, self.dtype, self.mode, idea, ceiling=family.ceiling)

    def launch(self, variant: Variant[Any]) -> None:
        """Runs `variant` on the first set of arrays."""
        self.family.launch(self.device, variant, self.inputs, self.output.array, self.stream, **self.options)

    def check(self, launch: Launch, row: Row) -> None:
        """Runs `launch` on the poisoned output and judges what it wrote."""
        self.output.poison(self.stream)
        self.stream.synchronize()
        counters = None
        if self.device.kind == "sim":
            with self.device.counters() as counters:
                launch()
                self.stream.synchronize()
        else:
            launch()
            self.stream.synchronize()
        row.judge(compare(self.output.array.numpy(self.stream), self.reference, self.plain))
        damage = self.output.damage(self.stream)
        if damage is not None:
            row.fail(damage)
        if counters:  # an empty problem launches nothing
            row.counters = _counted(counters, self.output.array.size)

    def rotate(self) -> None:
        """Makes the copies that keep timed launches from finding their inputs in the L2."""
        l2 = int(self.device.attribute("L2_CACHE_SIZE"))
        footprint = sum(array.nbytes for array in (*self.inputs, self.output.array))
        for _ in range(rotations(footprint, l2, free_bytes=self.device.memory_info()[0] // 2) - 1):
            inputs = [self.device.empty_like(array, stream=self.stream) for array in self.inputs]
            for copy, original in zip(inputs, self.inputs, strict=True):
                copy.copy_from(original, self.stream)
            output = self.device.empty_like(self.output.array, stream=self.stream)
            self.sets.append((inputs, output))

    def prepared(self, variant: Variant[Any]) -> list[Launch]:
        """A prepared run of `variant` for each of the rotated copies; they share their scratch memory, in turn."""
        if variant.run is not None:
            launch = functools.partial(self.family.launch, self.device, variant)
            return [functools.partial(launch, *arrays, self.stream, self.problem) for arrays in self.sets]
        configs = variant.configs(self.problem)
        scratch = self.family.scratch(self.device, variant, self.problem, self.stream)
        launches: list[Launch] = []
        for inputs, output in self.sets:
            plans = [
                self.family.kernel(self.device, variant, config).prepare(
                    **config.keywords(
                        (config.arguments or self.family.arguments)(self.problem, inputs, output, scratch)
                    )
                )
                for config in configs
            ]
            launches.append(_bound([plan.launch for plan in plans], self.stream, scratch))
        return launches

    def launched(self, variant: Variant[Any]) -> dict[str, Any] | None:
        """How the largest kernel of `variant` is launched here, and what share of a multiprocessor's threads can be
        resident; None where it launches as it goes."""
        if variant.run is not None:
            return None
        config = max(variant.configs(self.problem), key=lambda config: np.prod(config.grid) * np.prod(config.block))
        kernel = self.family.kernel(self.device, variant, config)
        threads = int(np.prod(config.block))
        blocks = kernel.occupancy(config.block, config.shared)
        most = int(self.device.attribute("MAX_THREADS_PER_MULTIPROCESSOR"))
        return {
            "grid": config.grid,
            "block": config.block,
            "shared": kernel.static_shared + config.shared,
            "registers": kernel.registers,
            "occupancy": blocks * threads / most,
        }

    def timed(self, row: Row, spread: Spread) -> None:
        """Fills in a row's time and what follows from it."""
        row.time_ms = spread.as_dict()
        seconds = spread.median / 1000
        row.gbps = self.traffic / seconds / 1e9
        flops = self.family.flops(self.problem)
        row.tflops = flops / seconds / 1e12 if flops else None


def _bound(launches: Sequence[Callable[[Stream], object]], stream: Stream, scratch: Any) -> Launch:
    """All of `launches` in one call. `scratch` is held for as long as the call may be made."""
    if len(launches) == 1 and scratch is None:
        (launch,) = launches
        return lambda: launch(stream)

    def run(_held: Any = scratch) -> None:
        for launch in launches:
            launch(stream)

    return run


def _in_turn(launches: Iterator[Launch], stream: Stream) -> None:
    """The next of several launches, to its end."""
    next(launches)()
    stream.synchronize()


def _counted(counters: Mapping[str, Any], elements: int) -> dict[str, float]:
    """The counters of all kernels of a check added up, with bytes of global memory moved for each element of output."""
    summed = functools.reduce(_merged, counters.values())
    total: dict[str, float] = dict(summed.as_dict())
    total["bytes_per_element"] = total["global_sector_bytes"] / elements if elements else 0.0
    return total


def _merged(total: Any, more: Any) -> Any:
    total.merge(more)
    return total


def copy_ceiling(device: Device, timer: GpuTimer, traffic: int) -> dict[str, Any]:
    """A device-to-device copy that reads and writes `traffic` bytes in all, rotated over the L2 as the variants are."""
    half = max(traffic // 2, 1)
    l2, free = int(device.attribute("L2_CACHE_SIZE")), device.memory_info()[0]
    stream = timer.stream
    launches: list[Launch] = []
    for _ in range(rotations(2 * half, l2, free_bytes=free // 2)):
        source = device.empty((half,), np.uint8, stream=stream)
        target = device.empty((half,), np.uint8, stream=stream)
        source.fill(1, stream)
        launches.append(_copy(target, source, stream))
    spread = timer.time(launches)
    return {"bytes": 2 * half, "gbps": 2 * half / spread.median / 1e6, "time_ms": spread.as_dict()}


def fp32_peak(device: Device) -> float:
    """TFLOP/s of float32 fused multiply-adds at the highest clock: multiprocessors x lanes x 2 x clock."""
    lanes = 64 if device.arch in ("sm_70", "sm_75", "sm_80") else 128
    multiprocessors = int(device.attribute("MULTIPROCESSOR_COUNT"))
    return multiprocessors * lanes * 2 * int(device.attribute("CLOCK_RATE")) * 1000 / 1e12


def _copy(target: DeviceArray, source: DeviceArray, stream: Stream) -> Launch:
    return lambda: target.copy_from(source, stream)


def _silent(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Asked:
    """What of a family a run is for; None is all variants, the usual dtype, the usual mode."""

    variants: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    modes: Sequence[str] | None = None

    def of(self, family: Family[Any]) -> tuple[list[Variant[Any]], Sequence[str], Sequence[str]]:
        """The variants, dtypes and modes. Raises Refused for a name that is none."""
        try:
            ours = [family.variant(name) for name in self.variants] if self.variants else list(family.variants)
        except ValueError as error:
            raise Refused(str(error)) from error
        for what, asked, known in (("dtype", self.dtypes, family.dtypes), ("mode", self.modes, family.modes)):
            wrong = [name for name in asked or () if name not in known]
            if wrong:
                have = ", ".join(map(repr, known))
                raise Refused(f"{family.name} has no {what} {wrong[0]!r}; it has {have}")
        return ours, self.dtypes or family.dtypes[:1], self.modes or list(family.modes)[:1]


@dataclass
class Bench:
    """Runs ladders on one device. `once`: each variant is launched once, checked and not timed, without peers.

    `step` is told what runs next. `timer` makes what times launches on a stream: only a GPU has a clock to make one of.
    """

    device: Device
    once: bool = False
    seed: int = 0
    step: Callable[[str], None] = _silent
    timer: Callable[[Device, Stream], GpuTimer] = GpuTimer

    @property
    def times(self) -> bool:
        return not self.once and (self.device.kind == "gpu" or self.timer is not GpuTimer)

    def peers(self, family: Family[Any], options: Mapping[str, Any]) -> list[Peer]:
        """The peers that can run here."""
        on_gpu = self.times and self.device.kind == "gpu"
        return peers_of(family.name, self.device.ordinal, options) if on_gpu else []

    def steps(self, family: Family[Any], shapes: Sequence[Shape], asked: Asked | None = None) -> int:
        """How often a run calls `step`, for a progress bar."""
        asked = asked or Asked()
        ours, dtypes, modes = asked.of(family)
        rows = sum(
            (len(ours) + len(self.peers(family, family.modes[mode]))) * (2 if self.times else 1) + (not self.once)
            for mode in modes
        )
        return len(shapes) * len(dtypes) * rows + self.times

    def run(self, family: Family[Any], shapes: Sequence[Shape], asked: Asked | None = None) -> Report:
        """What was asked for of a family on every shape. Raises Refused for a shape or a name that is none.

        A kernel that faults loses the device: the run ends there, with a report that is not ok.
        """
        ours, dtypes, modes = (asked or Asked()).of(family)
        report = Report(self.device.info())
        with self.device.stream() as stream:
            timer = self.timer(self.device, stream) if self.times else None
            if timer is not None:
                self.step("copy of a large array")
                size = min(LARGE_COPY, self.device.memory_info()[0] // 4)
                report.ceilings = {
                    "copy_large": copy_ceiling(self.device, timer, size),
                    "copy": [],
                    "fp32_tflops": fp32_peak(self.device),
                }
            try:
                for mode, dtype, shape in itertools.product(modes, dtypes, shapes):
                    case = _Case(self.device, family, shape, dtype, mode, stream, self.seed)
                    self._case(report, case, ours, timer)
            except ContextLost:
                # A kernel ended all work on this device. Its row says so, and what was measured before is still shown.
                if report.ok:
                    raise
        return report

    def _case(self, report: Report, case: _Case, variants: Sequence[Variant[Any]], timer: GpuTimer | None) -> None:
        ours = [case.row(variant.name, variant.rung, variant.idea) for variant in variants]
        peers = self.peers(case.family, case.options)
        theirs = [case.row(peer.name, peer.rung, peer.idea) for peer in peers]
        if not self.once:
            report.rows.append(self._cpu(case))
        report.rows += [*ours, *theirs]

        # Everything is checked before anything is timed.
        for variant, row in zip(variants, ours, strict=True):
            self.step(f"{case.said} {variant.name}")
            self._check(case, variant, row)
        if timer is None:
            return
        for peer, row in zip(peers, theirs, strict=True):
            self.step(f"{case.said} {peer.name}")
            _check_peer(case, peer, row, timer)
        if not case.family.empty(case.problem):
            self._time(
                report, case, timer, list(zip(variants, ours, strict=True)), list(zip(peers, theirs, strict=True))
            )

    def _cpu(self, case: _Case) -> Row:
        row = case.row("cpu", None, "numpy on the host")
        self.step(f"{case.said} cpu")
        row.judge(compare(case.family.baseline(case.host, **case.options), case.reference, case.plain))
        spread = wall_clock(lambda: case.family.baseline(case.host, **case.options))
        if not case.family.empty(case.problem):
            case.timed(row, spread)
        return row

    def _check(self, case: _Case, variant: Variant[Any], row: Row) -> None:
        if self.once and variant.run is not None:
            row.skipped = "a profile has each rung launch once, and this one is a library's many launches"
            return
        try:
            case.check(lambda: case.launch(variant), row)
            if not case.family.empty(case.problem):
                row.launch = case.launched(variant)
        except UnsupportedVariant:
            row.skipped = variant.refusal(case.problem, case.device.arch)
        except CudakitError as error:  # a kernel that does not compile, or faults, is a false row; the others go on
            row.fail(str(error))

    def _time(
        self,
        report: Report,
        case: _Case,
        timer: GpuTimer,
        ours: Sequence[tuple[Variant[Any], Row]],
        theirs: Sequence[tuple[Peer, Row]],
    ) -> None:
        """Times what was right. A peer that is the ceiling goes first, where the chip is coolest."""
        family = case.family
        case.rotate()
        ceiling: float | None = None
        if family.ceiling == "copy":
            copy = copy_ceiling(self.device, timer, case.traffic)
            report.ceilings["copy"].append({"shape": case.shape, "dtype": case.dtype, "mode": case.mode, **copy})
            ceiling = copy["time_ms"]["median"]
        for peer, row in sorted(theirs, key=lambda pair: pair[0].name != family.ceiling):
            self.step(f"{case.said} {peer.name}, timed")
            if row.ok:
                with peer.on(case.stream):
                    case.timed(row, timer.time(peer.bind(case.sets, timer)))
                if peer.name == family.ceiling and row.time_ms is not None:
                    ceiling = row.time_ms["median"]
        transfers = _Transfers(case)
        for variant, row in ours:
            self.step(f"{case.said} {variant.name}, timed")
            if row.ok:
                launches = case.prepared(variant)
                with nvtx.range(f"bench {family.name}.{variant.name}"):
                    # What waits for the device in its midst is timed by the host's clock: there is no other for it.
                    waiting = functools.partial(_in_turn, itertools.cycle(launches), case.stream)
                    case.timed(row, wall_clock(waiting) if variant.waits else timer.time(launches))
                row.end_to_end_ms = transfers.time(launches[0])
        for row in (row for _, row in (*ours, *theirs)):
            if ceiling is not None and row.time_ms is not None:
                row.of_ceiling = ceiling / row.time_ms["median"]


def _check_peer(case: _Case, peer: Peer, row: Row, timer: GpuTimer) -> None:
    row.skipped = peer.refusal(case.shape, case.dtype)
    if row.skipped is not None:
        return
    try:
        with peer.on(case.stream):
            (launch,) = peer.bind(case.sets[:1], timer)
            case.check(launch, row)
    except Exception as error:  # not our code: what it cannot do must not end our run
        row.skipped = f"{type(error).__name__}: {error}".splitlines()[0]


class _Transfers:
    """Host to device, launch, device to host, through pinned memory: a variant's time end to end."""

    def __init__(self, case: _Case) -> None:
        self._case = case
        self._from = [case.device.pinned(array.shape, array.dtype) for array in case.host]
        for pinned, array in zip(self._from, case.host, strict=True):
            pinned[...] = array
        self._to = case.device.pinned(case.output.array.shape, case.output.array.dtype)

    def time(self, launch: Launch) -> float:
        """Milliseconds by the host's clock, which is the right one for work that starts and ends on the host."""
        case = self._case

        def work() -> None:
            for array, pinned in zip(case.inputs, self._from, strict=True):
                array.copy_from(pinned, case.stream)
            launch()
            case.output.array.copy_to(self._to, case.stream)
            case.stream.synchronize()

        work()
        return wall_clock(work, budget_s=0.1, most=10).median
