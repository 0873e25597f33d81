"""One shape of a family under test: its arrays, its check, and the launches that are timed.

The output is poisoned and lies between guard zones, so that elements left unwritten and writes outside of it are seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.compare import Comparison, within
from cudakit.errors import Refused
from cudakit.measure.rows import LaunchShape, Rates, Row, Subject
from cudakit.measure.timing import Launch, Spread, rotations, wall_clock
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.families.variant import Family, Variant
    from cudakit.memory.array import DeviceArray

GUARD_BYTES = 4096
POISON = 0xFF  # in every byte: a NaN in each float type


class GuardedOutput:
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


def case_text(family: Family[Any], shape: Shape, dtype: str, mode: str) -> str:
    """ "softmax 8x16 float32"."""
    return " ".join(part for part in (family.name, shape_text(shape), dtype, mode) if part)


def empty_row(
    family: Family[Any], shape: Shape, dtype: str, mode: str, variant: str, rung: int | None, idea: str
) -> Row:
    """The row of something on one shape, before it is checked. shape: as `family.read_shape` returns it."""
    return Row(Subject(family.name, variant, rung, shape, dtype, mode, idea), Rates(ceiling=family.ceiling))


class BenchCase:
    """One shape of a family: its arrays on host and device, its reference, and the copies that timing rotates over."""

    def __init__(
        self, device: Device, family: Family[Any], shape: Shape, dtype: str, mode: str, stream: Stream, seed: int
    ) -> None:
        self.device, self.family, self.shape, self.stream = device, family, family.read_shape(shape), stream
        self.dtype, self.mode, self.options = dtype, mode, family.modes[mode]
        self.said = case_text(family, self.shape, dtype, mode)
        try:
            self.host = family.make_inputs(
                self.shape, memory.as_dtype(dtype), np.random.default_rng(seed), **self.options
            )
        except ValueError as error:
            raise Refused(f"{family.name} does not take the shape {shape_text(shape)}: {error}") from error
        self.reference = family.reference(self.host, **self.options)
        self._rounding: dict[Any, Any] = {}
        self.inputs: list[DeviceArray] = [device.array(array, stream=stream) for array in self.host]
        self.output = GuardedOutput(device, *family.output_like(self.host, **self.options), stream)
        try:
            self.problem = family.problem(self.inputs, self.output.array, **self.options)
        except ValueError as error:
            raise Refused(f"{family.name} does not take the shape {shape_text(shape)}: {error}") from error
        self.traffic = family.traffic(self.problem)
        self.sets: list[tuple[list[DeviceArray], DeviceArray]] = [(self.inputs, self.output.array)]

    def row(self, variant: str, rung: int | None, idea: str) -> Row:
        return empty_row(self.family, self.shape, self.dtype, self.mode, variant, rung, idea)

    def launch(self, variant: Variant[Any]) -> None:
        """Runs `variant` on the first set of arrays."""
        self.family.launch(self.device, variant, self.inputs, self.output.array, self.stream, **self.options)

    def verdict(self, result: np.ndarray[Any, Any], variant: Variant[Any] | None = None) -> Comparison:
        """Judges a result of this shape, of `variant` if given."""
        rounding = self.family.rounding_of(variant)
        if rounding not in self._rounding:
            self._rounding[rounding] = rounding(self.host, self.reference, **self.options)
        return within(result, self.reference, self._rounding[rounding])

    def check(self, launch: Launch, row: Row, variant: Variant[Any] | None = None) -> None:
        """Runs `launch`, which is of `variant` if given, on the poisoned output and judges what it wrote."""
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
        row.judge(self.verdict(self.output.array.numpy(self.stream), variant))
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

    def launched(self, variant: Variant[Any]) -> LaunchShape | None:
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
        """Fill in a row's time and the rates that follow from it."""
        row.timed(spread, traffic=self.traffic, flops=self.family.flops(self.problem) or None)


class Transfers:
    """Host to device, launch, device to host, through pinned memory: a variant's time end to end."""

    def __init__(self, case: BenchCase) -> None:
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


def _bound(launches: Sequence[Callable[[Stream], object]], stream: Stream, scratch: Any) -> Launch:
    """All of `launches` in one call. `scratch` is held for as long as the call may be made."""
    if len(launches) == 1 and scratch is None:
        (launch,) = launches
        return lambda: launch(stream)

    def run(_held: Any = scratch) -> None:
        for launch in launches:
            launch(stream)

    return run


def _counted(counters: Mapping[str, Any], elements: int) -> dict[str, float]:
    """The counters of all kernels of a check added up, with bytes of global memory moved for each element of output."""
    summed = functools.reduce(_merged, counters.values())
    total: dict[str, float] = dict(summed.as_dict())
    total["bytes_per_element"] = total["global_sector_bytes"] / elements if elements else 0.0
    return total


def _merged(total: Any, more: Any) -> Any:
    total.merge(more)
    return total
