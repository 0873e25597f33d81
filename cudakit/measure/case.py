"""One shape of a family under test: its arrays, its check, and the launches that are timed.

The output is filled with a poison pattern and placed between guard zones, so that unwritten elements and out-of-bounds
writes are detected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.compare import ADDS, POISON, Comparison, bounds, still_poisoned
from cudakit.errors import Refused
from cudakit.family import Ladder, Variant, one_or_all, several, wrong_results
from cudakit.measure.rows import LaunchShape, Rates, Row, Subject
from cudakit.measure.timing import Launch, Spread, rotations, wall_clock
from cudakit.memory.bounds import restrict
from cudakit.shapes import Shape, shape_text

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.memory.array import DeviceArray

GUARD_BYTES = 4096


class GuardedOutput:
    """An output array between two guard zones, all filled with a poison pattern.

    This detects unwritten elements and out-of-bounds writes; on the simulated device an out-of-bounds write is a fault
    that names the source line.
    """

    def __init__(self, device: Device, shape: Shape, dtype: np.dtype[Any], stream: Stream) -> None:
        inside = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._whole = device.empty((GUARD_BYTES + inside + GUARD_BYTES,), np.uint8, stream=stream)
        self._guards = (self._whole[:GUARD_BYTES], self._whole[GUARD_BYTES + inside :])
        self.array = self._whole[GUARD_BYTES : GUARD_BYTES + inside].view(dtype).reshape(shape)
        restrict(self._whole, self.array)

    def poison(self, stream: Stream) -> None:
        self._whole.fill(POISON, stream)

    def damage(self, stream: Stream) -> str | None:
        """Return a text about the guard zone that was written, or None."""
        for where, zone in zip(("before", "after"), self._guards, strict=True):
            changed = np.flatnonzero(zone.numpy(stream) != POISON)
            if changed.size:
                place = GUARD_BYTES - int(changed[-1]) if where == "before" else int(changed[0]) + 1
                return f"wrote {changed.size} bytes outside its output, the nearest at byte {place} {where} it"
        return None


def case_text(family: Ladder[Any], shape: Shape, dtype: str, mode: str) -> str:
    """Return a text such as "softmax 8x16 float32"."""
    return " ".join(part for part in (family.name, shape_text(shape), dtype, mode) if part)


def empty_row(
    family: Ladder[Any], shape: Shape, dtype: str, mode: str, variant: str, rung: int | None, idea: str
) -> Row:
    """Return the row of a variant or peer on one shape, before it is checked. shape: as `family.read_shape` returns
    it."""
    return Row(Subject(family.name, variant, rung, shape, dtype, mode, idea), Rates(ceiling=family.ceiling))


class BenchCase:
    """One shape of a family: its arrays on host and device, its reference, and the copies that timing rotates
    through."""

    def __init__(
        self, device: Device, family: Ladder[Any], shape: Shape, dtype: str, mode: str, stream: Stream, seed: int
    ) -> None:
        self.device, self.family, self.shape, self.stream = device, family, family.read_shape(shape), stream
        self.dtype, self.mode, self.options = dtype, mode, family.modes[mode]
        self.said = case_text(family, self.shape, dtype, mode)
        try:
            self.host = family.inputs_for(self.shape, dtype, np.random.default_rng(seed), **self.options)
        except ValueError as error:
            raise Refused(f"{family.name} does not support the shape {shape_text(shape)}: {error}") from error
        likes = family.outputs_like(self.host, **self.options)
        self.dtypes = [kind for _, kind in likes]
        self.reference = family.exact(self.host, self.dtypes, **self.options)
        self._allowed: dict[Any, Any] = {}
        self._bounds: dict[Any, list[Any]] = {}
        self.inputs: list[DeviceArray] = [device.array(array, stream=stream) for array in self.host]
        self.outputs = [GuardedOutput(device, *like, stream) for like in likes]
        made = tuple(guarded.array for guarded in self.outputs)
        if family.in_place:
            self.inputs[family.over] = made[0]
        self.output: Any = one_or_all(made)
        try:
            self.problem = family.problem_of(self.inputs, self.output, **self.options)
        except ValueError as error:
            raise Refused(f"{family.name} does not support the shape {shape_text(shape)}: {error}") from error
        self.traffic = family.traffic_of(self.problem, self.inputs, self.output)
        self.empty = family.is_empty(self.output)
        self.sets: list[tuple[list[DeviceArray], Any]] = [(self.inputs, self.output)]

    def row(self, variant: str, rung: int | None, idea: str) -> Row:
        return empty_row(self.family, self.shape, self.dtype, self.mode, variant, rung, idea)

    def launch(self, variant: Variant[Any]) -> None:
        """Launch `variant` on the first set of arrays."""
        self.family.launch(self.device, variant, self.inputs, self.output, self.stream, **self.options)

    def verdict(self, result: Any, variant: Variant[Any] | None = None, *, slack: float = 1.0) -> Comparison:
        """Compare a result (a tuple if there are several outputs) with the reference. variant: the variant that
        computed it, if any. slack: the factor by which errors may exceed the rounding bound."""
        allowed = self._allowed_for(self.family.rounding_of(variant), variant)
        if slack != 1.0:
            allowed = one_or_all(tuple(slack * limit for limit in several(allowed)))
        return self.family.compared(result, self.reference, allowed)

    def _allowed_for(self, kind: Any, variant: Variant[Any] | None) -> Any:
        """Return the rounding bound of a variant's results, cached by its `kind` (see `Ladder.rounding_of`)."""
        if kind not in self._allowed:
            self._allowed[kind] = self.family.allowed(self.reference, self.host, variant, self.dtypes, **self.options)
        return self._allowed[kind]

    def check(self, launch: Launch, row: Row, variant: Variant[Any] | None = None, *, errors: bool = True) -> None:
        """Run `launch` on the poisoned output and compare the result with the reference. variant: the variant launched,
        if any.

        errors: also measure the largest errors of a correct result, which takes ten times as long for a large one.
        """
        self._prepare_outputs()
        self.stream.synchronize()
        counters = None
        if self.device.kind == "sim":
            with self.device.counters() as counters:
                launch()
                self.stream.synchronize()
        else:
            launch()
            self.stream.synchronize()
        results = tuple(guarded.array.numpy(self.stream) for guarded in self.outputs)
        if not errors and self._inside(results, variant):
            verdict = Comparison(True, 0.0, 0.0, None)
        else:
            verdict = self.verdict(one_or_all(results), variant)
        if not verdict.ok and not self.family.in_place and self.family.initial is None:
            verdict = replace(verdict, why=verdict.why + still_poisoned(results) + self._adds(launch, variant))
        if not verdict.ok and variant is not None:

            def again(watch: wrong_results.Watch) -> None:
                self._prepare_outputs()
                with watch(self.output):
                    launch()
                    self.stream.synchronize()

            found = wrong_results.report(self.device, verdict, again, variant)
            verdict = replace(verdict, why=wrong_results.text([found]))
        row.judge(verdict)
        for guarded in self.outputs:
            damage = guarded.damage(self.stream)
            if damage is not None:
                row.fail(damage)
        if counters:  # an empty problem launches nothing
            row.counters = _counted(counters, sum(guarded.array.size for guarded in self.outputs))

    def _adds(self, launch: Launch, variant: Variant[Any] | None) -> str:
        """Return an addition to the error message if the result is correct on a zeroed output, which means that the
        kernel adds to its output; else ""."""
        for guarded in self.outputs:
            guarded.array.fill(0, self.stream)
        launch()
        results = tuple(guarded.array.numpy(self.stream) for guarded in self.outputs)
        return ADDS if self.verdict(one_or_all(results), variant).ok else ""

    def _inside(self, results: Sequence[np.ndarray[Any, Any]], variant: Variant[Any] | None) -> bool:
        """Return whether every element is within its rounding bound. The test is in the results' own precision and
        stricter than `verdict`; results of other dtypes never pass."""
        kind = self.family.rounding_of(variant)
        if kind not in self._bounds:
            self._bounds[kind] = [
                bounds(exact, allowed, dtype)
                for exact, allowed, dtype in zip(
                    several(self.reference), several(self._allowed_for(kind, variant)), self.dtypes, strict=True
                )
            ]
        return all(
            ends is not None and bool(np.all((result >= ends[0]) & (result <= ends[1])))
            for result, ends in zip(results, self._bounds[kind], strict=True)
        )

    def _prepare_outputs(self) -> None:
        """Fill the outputs with the poison pattern, or, if the family's kernels need it, with an initial value or the
        in-place input."""
        for guarded in self.outputs:
            guarded.poison(self.stream)
            if self.family.in_place:
                guarded.array.copy_from(self.host[self.family.over], self.stream)
            elif self.family.initial is not None:
                guarded.array.fill(self.family.initial, self.stream)

    def rotate(self) -> None:
        """Make copies of the arrays, so that timed launches do not find their inputs in the L2."""
        l2 = int(self.device.attribute("L2_CACHE_SIZE"))
        footprint = sum(array.nbytes for array in (*self.inputs, *several(self.output)))
        for _ in range(rotations(footprint, l2, free_bytes=self.device.memory_info()[0] // 2) - 1):
            inputs = [self.device.empty_like(array, stream=self.stream) for array in self.inputs]
            for copy, original in zip(inputs, self.inputs, strict=True):
                copy.copy_from(original, self.stream)
            made = tuple(self.device.empty_like(array, stream=self.stream) for array in several(self.output))
            if self.family.in_place:
                made = (inputs[self.family.over],)
            elif self.family.initial is not None:
                for array in made:
                    array.fill(self.family.initial, self.stream)
            self.sets.append((inputs, one_or_all(made)))

    def prepared(self, variant: Variant[Any]) -> list[Launch]:
        """Return one prepared run of `variant` per copy of the arrays. All runs share one scratch allocation."""
        if variant.run is not None:
            launch = functools.partial(self.family.launch, self.device, variant)
            return [functools.partial(launch, *arrays, self.stream, self.problem) for arrays in self.sets]
        kernels = self.family.launches(variant, self.problem)
        scratch = self.family.scratch(self.device, kernels, self.stream)
        launches: list[Launch] = []
        for inputs, output in self.sets:
            plans = []
            for each in kernels:
                kernel = self.family.kernel(self.device, variant, each)
                plans.append(
                    kernel.prepare(**self.family.keywords(each, kernel, self.problem, inputs, output, scratch))
                )
            launches.append(_bound([plan.launch for plan in plans], self.stream, scratch))
        return launches

    def launched(self, variant: Variant[Any]) -> LaunchShape | None:
        """Return the launch of the largest kernel of `variant`, with its occupancy; None if the variant makes its
        launches itself (`run`)."""
        if variant.run is not None:
            return None
        launches = self.family.launches(variant, self.problem)
        if not launches:
            return None
        largest = max(launches, key=lambda one: int(np.prod(one.grid)) * one.threads)
        kernel = self.family.kernel(self.device, variant, largest)
        blocks = kernel.occupancy(largest.block, largest.shared)
        most = int(self.device.attribute("MAX_THREADS_PER_MULTIPROCESSOR"))
        return {
            "grid": largest.grid,
            "block": largest.block,
            "shared": kernel.static_shared + largest.shared,
            "registers": kernel.registers,
            "occupancy": blocks * largest.threads / most,
        }

    def timed(self, row: Row, spread: Spread) -> None:
        """Set a row's time and the rates computed from it."""
        row.timed(spread, traffic=self.traffic, flops=self.family.flops(self.problem) or None)


class Transfers:
    """Times a variant end to end: copy to the device, launch, copy to the host, through pinned memory."""

    def __init__(self, case: BenchCase) -> None:
        self._case = case
        self._from = [case.device.pinned(array.shape, array.dtype) for array in case.host]
        for pinned, array in zip(self._from, case.host, strict=True):
            pinned[...] = array
        self._to = [case.device.pinned(array.shape, array.dtype) for array in several(case.output)]

    def time(self, launch: Launch) -> float:
        """Return milliseconds, measured with the host's clock because the work starts and ends on the host."""
        case = self._case

        def work() -> None:
            for array, pinned in zip(case.inputs, self._from, strict=True):
                array.copy_from(pinned, case.stream)
            launch()
            for array, host in zip(several(case.output), self._to, strict=True):
                array.copy_to(host, case.stream)
            case.stream.synchronize()

        work()
        return wall_clock(work, budget_s=0.1, most=10).median


def _bound(launches: Sequence[Callable[[Stream], object]], stream: Stream, scratch: Any) -> Launch:
    """Return one call that makes all of `launches` and keeps `scratch` alive."""
    if len(launches) == 1 and scratch is None:
        (launch,) = launches
        return lambda: launch(stream)

    def run(_held: Any = scratch) -> None:
        for launch in launches:
            launch(stream)

    return run


def _counted(counters: Mapping[str, Any], elements: int) -> dict[str, float]:
    """Return the sum of the counters of all kernels of a check, with the bytes of global memory traffic per output
    element."""
    summed = functools.reduce(_merged, counters.values())
    total: dict[str, float] = dict(summed.as_dict())
    total["bytes_per_element"] = total["global_traffic_bytes"] / elements if elements else 0.0
    return total


def _merged(total: Any, more: Any) -> Any:
    total.merge(more)
    return total
