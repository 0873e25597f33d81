"""The workbench of a family on one device: compiles configurations, checks them, and measures their time or
counters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.compile import cache, compiler
from cudakit.device import Device
from cudakit.errors import CudakitError, Refused
from cudakit.family import wrong_results
from cudakit.measure.case import BenchCase
from cudakit.measure.timing import GpuTimer, Launch
from cudakit.shapes import Shape
from cudakit.tuning.counts import Load
from cudakit.tuning.space import Point, Space
from cudakit.tuning.trial import Trial, Unfit, Wrong

if TYPE_CHECKING:
    from cudakit.driver.stream import Event, Stream
    from cudakit.family import Ladder, Variant
    from cudakit.family import Launch as KernelLaunch
    from cudakit.launch.kernel import Kernel

# GPU milliseconds of a short measurement, and of one turn of the shortest race; turns per race; prepared launches to
# cache.
SHORT_MS, TURN_MS, TURNS, KEPT = 3.0, 6.0, 5, 32
# The most milliseconds that the host may add to the time of a first launch between two events.
HOST_MS = 5.0

Timer = Callable[[Device, "Stream"], GpuTimer]


class FamilyBench:
    """One shape, dtype and mode of a family on a device.

    variants: the names of those to search, by default all. cold: leave out the default configurations. timer: makes the
    timer; by default a GPU's events. On the simulated device there is none, and costs are counts. failed:
    configurations that are not launched. `device` is replaced after a fault on the simulated device. Raises Refused for
    a shape that the family does not support.
    """

    def __init__(
        self,
        device: Device,
        family: Ladder[Any],
        shape: Shape,
        dtype: str,
        mode: str = "",
        *,
        variants: Sequence[str] | None = None,
        cold: bool = False,
        seed: int = 0,
        timer: Timer | None = None,
        failed: Sequence[Trial] = (),
    ) -> None:
        self.device, self.family, self._cold = device, family, cold
        self._case_of = (shape, dtype, mode, seed)
        self._failed = [(trial.variant, dict(trial.configuration)) for trial in failed]
        self._make_timer = timer if timer is not None or device.kind == "sim" else GpuTimer
        self.exact = self._make_timer is None
        self._open()
        chosen = [family[name] for name in variants] if variants else list(family.variants)
        chosen = [one for one in chosen if self._measurable(one)]
        tunes = {one.name: dict(one.tune) for one in chosen}
        self._defaults = {one.name: one.usual for one in family.variants}
        usual = family.pick("auto", self.case.problem, device.arch)
        if self._measurable(usual):
            tunes.setdefault(usual.name, {})
        self.space = Space(tunes, self._refuses)
        self.auto = self._usual(usual) if self._measurable(usual) else None
        self.usual = [self._usual(one) for one in chosen]

    def _measurable(self, one: Variant[Any]) -> bool:
        """Return whether events or counters cover all of a variant's work. They do not if the variant waits for the
        device, or if it calls a library on the simulated device."""
        return not one.waits and not (self.exact and one.run is not None)

    def _open(self) -> None:
        shape, dtype, mode, seed = self._case_of
        self.stream = self.device.stream()
        self.case = BenchCase(self.device, self.family, shape, dtype, mode, self.stream, seed)
        if self.case.empty:
            raise Refused(f"{self.case.said} is empty: no kernel is launched, so there is nothing to tune")
        self._timer = None if self._make_timer is None else self._make_timer(self.device, self.stream)
        self._prepared: OrderedDict[Point, list[Launch]] = OrderedDict()
        self._rotated = False

    def close(self) -> None:
        """Release its launches and its stream."""
        self._prepared.clear()
        if self.device.context.lost is None:
            self.stream.close()

    @property
    def unit(self) -> str:
        """The unit of costs: "ms", or "slots" (see `counts`)."""
        return "slots" if self.exact else "ms"

    def _usual(self, one: Variant[Any]) -> Point:
        names = self.space.axes[one.name].names
        return self.space.point(one.name, {name: self._defaults[one.name][name] for name in names})

    def variant(self, point: Point) -> Variant[Any]:
        """Return the variant with a point's configuration."""
        one = self.family[point.variant]
        configuration = self.space.configuration(point)
        return one.configured(**configuration) if configuration else one

    def _refuses(self, variant: str, configuration: dict[str, Any]) -> str | None:
        one = self.family[variant].configured(**configuration)
        if self._cold and configuration == self._defaults[variant]:
            return "the default configuration, which a cold start leaves out"
        if (variant, configuration) in self._failed:
            return "failed before"
        try:
            refusal = one.refusal(self.case.problem, self.device.arch)
            if refusal is not None:
                return refusal
            launches = one.launches(self.case.problem)
        except Exception as error:  # a user's function, perhaps called with these values for the first time
            return f"its function raises {type(error).__name__}: {error}"
        threads = int(self.device.attribute("MAX_THREADS_PER_BLOCK"))
        shared = int(self.device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
        for launch in launches:
            if launch.threads > threads:
                return f"more than {threads} threads per block"
            if launch.shared > shared:
                return f"more than {shared} bytes of shared memory per block"
        return None

    # Called by a Tuner ----------------------------------------------------------------------------------------------

    def compile(self, point: Point) -> None:
        """Compile a point's kernels, or find them in the cache. Loads nothing, because that would disturb
        measurements."""
        one = self.variant(point)
        for launch in one.launches(self.case.problem):
            cache.compiled(self.family.request(self.device, one, launch), compiler.compile_in_threads)

    def check(self, trial: Trial) -> float:
        """Launch a point once on the poisoned output and check the result. Return its cost from the counters, or on a
        GPU a lower bound of a launch's milliseconds."""
        one = self.variant(trial.point)
        self._fit(one, trial)
        row = self.case.row(one.name, None, "")
        events: list[Event] = []

        def launch() -> None:
            if self.device.kind == "gpu":
                events.append(self.stream.record(timing=True))
            self.case.launch(one)
            if self.device.kind == "gpu":
                events.append(self.stream.record(timing=True))

        try:
            self.case.check(launch, row, one, errors=False)
        except CudakitError as error:
            trial.why = wrong_results.text(wrong_results.of_error(error, one))
            raise
        if row.ok is not True:
            raise Wrong(row.verdict.why or "the result is wrong")
        if not self.exact:
            return max(0.0, float(events[1].elapsed_since(events[0])) - HOST_MS) if events else 0.0
        load = Load.of(row.counters or {})
        trial.details["slots"] = load.as_dict()
        trial.details["busiest"] = load.busiest
        names = ("global_load_sectors", "global_store_sectors", "instructions", "bank_conflicts", "divergent_branches")
        trial.details["counters"] = {name: (row.counters or {}).get(name, 0) for name in names}
        return load.cost

    def cost(self, point: Point) -> float:
        """Return a launch's milliseconds from a short measurement."""
        return self._time(point, SHORT_MS)

    def race(self, points: Sequence[Point], effort: int) -> list[float]:
        """Return the milliseconds of each point's launches: the median of TURNS turns. Each turn starts with another
        point."""
        samples: list[list[float]] = [[] for _ in points]
        for turn in range(TURNS):
            for step in range(len(points)):
                number = (turn + step) % len(points)
                samples[number].append(self._time(points[number], TURN_MS * effort))
        return [float(np.median(taken)) for taken in samples]

    def recover(self) -> str | None:
        """Replace a simulated device that a fault has lost. Return the reason why a lost GPU cannot be replaced, else
        None."""
        lost = self.device.context.lost
        if lost is None:
            return None
        spec = self.device.context.spec
        if self.device.kind == "gpu":
            return f"{spec} was lost, and the search ended: {str(lost).splitlines()[0]}"
        self.device.close()
        self.device = Device(spec, fresh=True)
        self._open()
        return None

    # -----------------------------------------------------------------------------------------------------------------

    def _kernels(self, one: Variant[Any]) -> list[tuple[KernelLaunch, Kernel]]:
        return [(launch, self.family.kernel(self.device, one, launch)) for launch in one.launches(self.case.problem)]

    def _fit(self, one: Variant[Any], trial: Trial) -> None:
        """Record a configuration's registers, spills, shared memory and occupancy. Raise Unfit if its block, or its
        cooperative grid, cannot be resident."""
        most = int(self.device.attribute("MAX_THREADS_PER_MULTIPROCESSOR"))
        shares = []
        for launch, kernel in self._kernels(one):
            blocks = kernel.occupancy(launch.block, launch.shared)
            if not blocks:
                if launch.threads > kernel.max_threads:
                    raise Unfit(
                        f"at most {kernel.max_threads} threads per block by its {kernel.registers} registers or "
                        f"its __launch_bounds__, got {launch.threads}"
                    )
                raise Unfit(
                    f"at most {kernel.static_shared + kernel.max_dynamic_shared} bytes of shared memory per block, got "
                    f"{kernel.static_shared + launch.shared}"
                )
            grid = int(np.prod(launch.grid))
            if launch.cooperative and grid > blocks * self.device.multiprocessors:
                raise Unfit(
                    f"at most {blocks * self.device.multiprocessors} resident blocks in a cooperative grid, got {grid}"
                )
            shares.append(blocks * launch.threads / most)
            for name, value in (("registers", kernel.registers), ("spills", kernel.spills)):
                trial.details[name] = max(value, trial.details.get(name, 0))
            trial.details["shared"] = max(kernel.static_shared + launch.shared, trial.details.get("shared", 0))
        if shares:
            trial.details["occupancy"] = min(shares)

    def _time(self, point: Point, budget_ms: float) -> float:
        if self._timer is None:
            raise ValueError("a workbench without a timer has counts only, which are the same each time")
        if not self._rotated:
            self.case.rotate()
            self._rotated = True
        launches = self._prepared.get(point)
        if launches is None:
            launches = self._prepared[point] = self.case.prepared(self.variant(point))
            if len(self._prepared) > KEPT:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(point)
        self._timer.budget_ms = budget_ms
        return self._timer.time(launches).median
