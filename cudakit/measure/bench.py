"""Benchmark a family's ladder on one device: check every variant first, then time it together with its ceiling and
peers.

On a GPU the figures are times; the simulated device does not model time and reports counters instead. Everything is
derived from the family's declaration: this module is independent of any kernel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit import names, nvtx
from cudakit.device import Device
from cudakit.errors import CompileError, ContextLost, CudakitError, OutOfMemory, Refused, UnsupportedVariant
from cudakit.family import Ladder, Variant, one_or_all, several, wrong_results
from cudakit.measure.calls import take_calls
from cudakit.measure.case import BenchCase, Transfers, case_text, empty_row
from cudakit.measure.ceilings import copy_ceiling, fp32_peak, large_copy_ceiling
from cudakit.measure.peers.installed import host_peer_of, peers_of
from cudakit.measure.peers.peer import Cost, Peer
from cudakit.measure.rows import BenchReport, Row
from cudakit.measure.timing import GpuTimer, Launch, wall_clock
from cudakit.shapes import Shape

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream


# Runs on the host whose median is a row's time; fewer if they take longer than ten seconds.
CPU_RUNS = 5

# The factor by which errors of a library on the host may exceed the bound for kernels. torch's softmax on a CPU has a
# fast exponential and adds long rows in sequence: its errors are 17 times the bound for one row of 2**20.
HOST_SLACK = 32.0


def _silent(text: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True)
class Selection:
    """Which variants, dtypes and modes of a family to run.

    Args:
        variants: Names of variants; None for all.
        dtypes: Names of dtypes; None for the default one.
        modes: Names of modes; None for the default one.
    """

    variants: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    modes: Sequence[str] | None = None

    def of(self, family: Ladder[Any]) -> tuple[list[Variant[Any]], Sequence[str], Sequence[str]]:
        """Return the variants, dtypes and modes of a family. Raise Refused for an unknown name."""
        try:
            ours = [family[name] for name in self.variants] if self.variants else list(family.variants)
        except ValueError as error:
            raise Refused(str(error)) from error
        for what, asked, known in (("dtype", self.dtypes, family.usual_dtypes), ("mode", self.modes, family.modes)):
            wrong = [name for name in asked or () if name not in known]
            if wrong:
                have = ", ".join(map(repr, known))
                meant = names.hint(wrong[0], known)
                raise Refused(f"{family.name} has no {what} {wrong[0]!r}; it has {have}{meant}")
        return ours, self.dtypes or family.usual_dtypes[:1], self.modes or list(family.modes)[:1]


@dataclass
class Bench:
    """Runs ladders on one device.

    Args:
        device: The device.
        once: Launch and check each variant once, without timing and without peers.
        seed: The seed of random inputs.
        step: Called with a text before each step, for progress.
        back_to_back: Also time launches in a row on the same arrays, by `GpuTimer.back_to_back`.
        timer: Makes the timer of a stream; GpuTimer works on GPUs only.
        kernels_only: Time only kernels and peers: no rows of the host, no transfers, no host time per call.
    """

    device: Device
    once: bool = False
    seed: int = 0
    step: Callable[[str], None] = _silent
    back_to_back: bool = False
    timer: Callable[[Device, Stream], GpuTimer] = GpuTimer
    kernels_only: bool = False

    def __post_init__(self) -> None:
        self._facts = self.device.info()
        self._lost: str | None = None  # the reason why this GPU can run nothing more

    @property
    def times(self) -> bool:
        return not self.once and (self.device.kind == "gpu" or self.timer is not GpuTimer)

    @property
    def _runs_cpu(self) -> bool:
        return not (self.once or self.kernels_only)

    @property
    def times_calls(self) -> bool:
        """Whether the host's cost per call is measured; the cost on a simulated device would be meaningless."""
        return self.times and self.device.kind == "gpu"

    def peers(self, family: Ladder[Any], options: Mapping[str, Any]) -> list[Peer]:
        """Return the peers that can run here."""
        return peers_of(family, self.device.ordinal, options) if self.times_calls else []

    def steps(self, family: Ladder[Any], shapes: Sequence[Shape], selection: Selection | None = None) -> int:
        """Return how often a run calls `step`, for a progress bar."""
        selection = selection or Selection()
        ours, dtypes, modes = selection.of(family)
        rows = sum(
            (len(ours) + len(self.peers(family, family.modes[mode]))) * (2 if self.times else 1)
            + self._runs_cpu
            + (self.times_calls and not self.kernels_only)
            for mode in modes
        )
        return len(shapes) * len(dtypes) * rows + self.times

    def run(self, family: Ladder[Any], shapes: Sequence[Shape], selection: Selection | None = None) -> BenchReport:
        """Run the selection of a family on every shape.

        A kernel that faults makes the device unusable, and its row fails. A simulated device is opened again, as
        `device`, and the run continues; on a GPU the remaining rows are reported as not run.

        Args:
            family: The family.
            shapes: The shapes to run.
            selection: The variants, dtypes and modes to run; by default all variants in the default dtype and mode.

        Returns:
            The report with one row per variant, peer and shape.

        Raises:
            Refused: If a shape or name is wrong.
        """
        ours, dtypes, modes = (selection or Selection()).of(family)
        report = BenchReport(self._facts)
        if self.times and self._lost is None:
            self.step("copy of a large array")
            with self.device.stream() as stream:
                timer = self.timer(self.device, stream)
                report.ceilings = {
                    "copy_large": large_copy_ceiling(self.device, timer),
                    "copy": [],
                    "fp32_tflops": fp32_peak(self.device),
                }
        for mode, dtype, shape in itertools.product(modes, dtypes, shapes):
            self._shape(report, family, shape, dtype, mode, ours)
        return report

    def _shape(
        self,
        report: BenchReport,
        family: Ladder[Any],
        shape: Shape,
        dtype: str,
        mode: str,
        variants: Sequence[Variant[Any]],
    ) -> None:
        """Run one shape until every row has its verdict; a lost simulated device is replaced as often as needed."""
        place = family.read_shape(shape)
        rows = [empty_row(family, place, dtype, mode, one.name, family.rung(one), one.idea) for one in variants]
        first = len(report.rows)
        report.rows += rows
        every = left = list(zip(variants, rows, strict=True))
        cpu = self._runs_cpu
        while left and self._lost is None:
            try:
                with self.device.stream() as stream:
                    case = BenchCase(self.device, family, shape, dtype, mode, stream, self.seed)
                    if cpu:
                        report.rows[first:first] = self._cpu(case)
                        cpu = False
                    left = self._case(report, case, every, left)
            except ContextLost as error:
                # The row that was being checked caused the fault.
                variant, row = left[0]
                row.fail(wrong_results.text(wrong_results.of_error(error, variant)))
                left = left[1:]
            except (MemoryError, OutOfMemory) as error:
                for _, row in left:
                    row.not_run(f"out of memory: {error}")
                return
            self._replace_lost(case_text(family, place, dtype, mode))
        if self._lost is not None:
            untimed = [row for row in rows if self.times and row.ok and row.times.device is None]
            for row in (*untimed, *(row for _, row in left)):
                row.not_run(self._lost)

    def _replace_lost(self, where: str) -> None:
        """Replace a lost simulated device by a new one; record the reason for a lost GPU."""
        lost = self.device.context.lost
        if lost is None:
            return
        if self.device.kind == "gpu":
            self._lost = f"{self.device.context.spec} was lost at {where}: {str(lost).splitlines()[0]}"
            return
        self.device.close()
        self.device = self.device.reopened()

    def _case(
        self,
        report: BenchReport,
        case: BenchCase,
        every: list[tuple[Variant[Any], Row]],
        left: list[tuple[Variant[Any], Row]],
    ) -> list[tuple[Variant[Any], Row]]:
        """Check the rows `left` until one loses the device; if none does, time the rows of `every`. Return the rows
        that remain to be run on another device."""
        # Everything is checked before anything is timed.
        for number, (variant, row) in enumerate(left, 1):
            self.step(f"{case.said} {variant.name}")
            self._check(case, variant, row)
            if self.device.context.lost is not None:
                return left[number:]
        if not self.times:
            return []
        timer = self.timer(self.device, case.stream)
        peers = self.peers(case.family, case.options)
        theirs = [case.row(peer.name, peer.rung, peer.idea) for peer in peers]
        report.rows += theirs
        for peer, row in zip(peers, theirs, strict=True):
            self.step(f"{case.said} {peer.name}")
            _check_peer(case, peer, row, timer)
        if not case.empty:
            try:
                self._time(report, case, timer, every, list(zip(peers, theirs, strict=True)))
            except ContextLost as error:
                rows = [*theirs, *(row for _, row in every)]
                blamed, *others = [row for row in rows if row.ok and row.times.device is None] or rows[-1:]
                blamed.fail(str(error))
                for row in others:
                    row.not_run(f"{case.said} lost the device before this row was timed: {str(error).splitlines()[0]}")
        return []

    def _cpu(self, case: BenchCase) -> list[Row]:
        """Return the rows of the host: numpy and, on a GPU, a library that uses all cores."""
        row = case.row("cpu", None, "numpy on the host")
        self.step(f"{case.said} cpu")
        row.judge(case.verdict(case.family.baseline_of(case.host, **case.options)))
        spread = wall_clock(lambda: case.family.baseline_of(case.host, **case.options), least=CPU_RUNS)
        if not case.empty:
            case.timed(row, spread)
        library = time_host_peer(case) if self.times_calls else None
        return [row] if library is None else [row, library]

    def _check(self, case: BenchCase, variant: Variant[Any], row: Row) -> None:
        if self.once and variant.run is not None:
            row.skip("a profile launches each variant once, but this one makes many launches through a library")
            return
        try:
            case.check(lambda: case.launch(variant), row, variant)
            if not case.empty:
                row.launch = case.launched(variant)
        except UnsupportedVariant:
            row.skip(variant.refusal(case.problem, case.device.arch))
        except CompileError as error:  # the same for all variants of the source, so tables show it once
            row.fail(str(error))
        except CudakitError as error:  # a kernel that faults fails its row; the others continue
            row.fail(wrong_results.text(wrong_results.of_error(error, variant)))

    def _time(
        self,
        report: BenchReport,
        case: BenchCase,
        timer: GpuTimer,
        ours: Sequence[tuple[Variant[Any], Row]],
        theirs: Sequence[tuple[Peer, Row]],
    ) -> None:
        """Time the rows whose check passed. Peers that may be the ceiling are timed first, when the chip is
        coolest; the fastest of them is the ceiling."""
        family = case.family
        case.rotate()
        ceiling: float | None = None
        if family.ceiling == "copy":
            copy = copy_ceiling(self.device, timer, case.traffic)
            report.ceilings["copy"].append({"shape": case.shape, "dtype": case.dtype, "mode": case.mode, **copy})
            ceiling = copy["time_ms"]["median"]
        highest: list[Row] = []
        for peer, row in sorted(theirs, key=lambda pair: not fnmatch(pair[0].name, family.ceiling)):
            self.step(f"{case.said} {peer.name}, timed")
            if row.ok:
                with peer.on(case.stream):
                    launches = peer.bind(case.sets, case.stream, _cost(timer))
                    case.timed(row, timer.time(launches))
                    if self.back_to_back:
                        row.times.back_to_back = timer.back_to_back(launches[0])
                if fnmatch(peer.name, family.ceiling) and row.times.device is not None:
                    highest.append(row)
        transfers = None if self.kernels_only else Transfers(case)
        for variant, row in ours:
            self.step(f"{case.said} {variant.name}, timed")
            if row.ok:
                launches = case.prepared(variant)
                with nvtx.range(f"bench {family.name}.{variant.name}"):
                    # Variants that synchronise midway can only be timed on the host.
                    waiting = functools.partial(_in_turn, itertools.cycle(launches), case.stream)
                    case.timed(row, wall_clock(waiting) if variant.waits else timer.time(launches))
                    if self.back_to_back and not variant.waits:
                        row.times.back_to_back = timer.back_to_back(launches[0])
                if transfers is not None:
                    row.times.end_to_end = transfers.time(launches[0])
        named = ""
        if highest:
            ceiling, named = min((row.times.device.median, row.subject.variant) for row in highest if row.times.device)
        if ceiling is not None:
            for _, row in (*ours, *theirs):
                row.hold_against(ceiling)
                row.rates.ceiling = named or row.rates.ceiling
        if self.times_calls and not self.kernels_only:
            self.step(f"{case.said} calls")
            take_calls(case, ours, theirs)


def time_host_peer(case: BenchCase) -> Row | None:
    """Check and time torch on all cores of the host, and return its row; None without torch, or if the case is not
    float32 throughout."""
    library = host_peer_of(case.family)
    if library is None or any(array.dtype != np.float32 for array in (*case.host, *several(case.output))):
        return None
    row = case.row(library.name, None, library.idea)
    results = tuple(np.zeros(array.shape, np.float32) for array in several(case.output))
    try:
        call = library.call(case.host, results, case.options)
        call()
    except Exception as error:  # an error in a peer's code must not end our run
        row.skip(f"{type(error).__name__}: {error}".splitlines()[0])
        return row
    row.judge(case.verdict(one_or_all(results), slack=HOST_SLACK))
    if row.ok and not case.empty:
        case.timed(row, wall_clock(call, least=CPU_RUNS))
    return row


def _check_peer(case: BenchCase, peer: Peer, row: Row, timer: GpuTimer) -> None:
    refusal = peer.refusal(case.shape, case.dtype)
    if refusal is not None:
        row.skip(refusal)
        return
    try:
        with peer.on(case.stream):
            (launch,) = peer.bind(case.sets[:1], case.stream, _cost(timer))
            case.check(launch, row)
    except Exception as error:  # an error in a peer's code must not end our run
        row.skip(f"{type(error).__name__}: {error}".splitlines()[0])


def _cost(timer: GpuTimer) -> Cost:
    return lambda launches: timer.time(launches).median


def _in_turn(launches: Iterator[Launch], stream: Stream) -> None:
    """Make the next of several launches and wait for it."""
    next(launches)()
    stream.synchronize()
