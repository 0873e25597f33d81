"""The kernels that a family's variants launch for its shapes, and recorded runs of them for the example.

`collect` returns the sources of these launches. A `Recording` runs each variant on the simulated device, compares the
result with the reference as a bench does, and returns samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.compare import POISON, Comparison, steps_of, still_poisoned
from cudakit.compile import headers
from cudakit.device import Device
from cudakit.errors import CudakitError, Refused
from cudakit.export.samples import Recorder, Sample
from cudakit.export.sources import Bundle, Source, Usual, Wanted
from cudakit.family import Ladder, Launch, Variant, one_or_all, several
from cudakit.launch.kernel import Kernel
from cudakit.memory.array import DeviceArray
from cudakit.shapes import Shape, shape_text
from cudakit.shipped import order

Key = tuple[Path, tuple[tuple[str, Any], ...]]


class WrongResult(CudakitError):
    """A variant's result is wrong on one of its family's problems. again(watch): runs the variant again within
    watch(output)."""

    def __init__(
        self, variant: str, title: str, verdict: Comparison, again: Callable[[Callable[..., Any]], None]
    ) -> None:
        super().__init__(f"{variant} is wrong on {title}: {verdict.why}")
        self.verdict = verdict
        self.again = again


@dataclass
class Problem:
    """One problem of a family on a simulated device. title: its shape, dtype and mode."""

    title: str
    hosts: tuple[Any, ...]
    options: dict[str, Any]
    inputs: list[DeviceArray]
    outputs: tuple[DeviceArray, ...]
    value: Any

    @property
    def output(self) -> Any:
        """The output, or a tuple if there are several outputs."""
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.inputs, *self.outputs))


@dataclass
class Kernels:
    """The kernels that a family's variants launch. sources: the sources, in the order of the variants. runs: each
    variant with the problems that it supports; `close` frees the arrays of the problems. left_out: why a variant has no
    kernel to export, by its name."""

    device: Device
    sources: list[Source]
    runs: list[tuple[Variant[Any], list[Problem]]]
    left_out: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Free the arrays of the problems. Idempotent."""
        for _, problems in self.runs:
            for problem in problems:
                for array in (*problem.inputs, *problem.outputs):
                    array.close()


def collect(family: Ladder[Any], variants: Sequence[str], architectures: Sequence[str], device: Device) -> Kernels:
    """Return the kernels that `variants` of `family` (all if empty) launch for the family's shapes, on a simulated
    device.

    Raises Refused for an unknown variant, and if there is nothing to export.
    """
    try:
        chosen = [family[name] for name in variants] or list(family.variants)
    except ValueError as error:
        raise Refused(str(error)) from error
    problems = sorted(_problems(family, device), key=lambda one: one.nbytes)
    wanted: dict[Key, dict[str, Wanted]] = {}
    found = Kernels(device, [], [])
    newest = max(map(order, architectures), default=(0, ""))
    for variant in chosen:
        if variant.run is not None:
            found.left_out[variant.name] = "it also calls a library, not only kernels"
            continue
        if order(variant.since)[0] > newest[0]:
            found.left_out[variant.name] = f"it needs {variant.since} or later"
            continue
        taken = [problem for problem in problems if not isinstance(variant.answer(problem.value), str)]
        if not taken:
            why = variant.answer(problems[0].value) if problems else "the family has no shapes"
            found.left_out[variant.name] = f"it supports none of the family's shapes for the simulated device: {why}"
            continue
        for problem in taken:
            for launch in family.launches(variant, problem.value):
                _add(wanted, variant, launch, problem)
        found.runs.append((variant, taken))
    if not found.runs:
        reasons = "; ".join(f"{name}: {why}" for name, why in found.left_out.items())
        raise Refused(f"{family.name} has no kernels to export: {reasons or 'it has no variants'}")
    found.sources = [
        Source(path, tuple(entries.values()), {"defines": dict(defines)}) for (path, defines), entries in wanted.items()
    ]
    return found


def _problems(family: Ladder[Any], device: Device) -> Iterator[Problem]:
    """Yield the family's problems for the simulated device, for each shape, dtype and mode, except empty problems."""
    for mode, options in family.modes.items():
        for dtype in family.usual_dtypes:
            for shape in family.shapes_for("sim"):
                made = _problem(family, shape, dtype, mode, dict(options), device)
                if not family.is_empty(made.output):
                    yield made


def _problem(
    family: Ladder[Any], shape: Shape, dtype: str, mode: str, options: dict[str, Any], device: Device
) -> Problem:
    hosts = family.inputs_for(shape, dtype, np.random.default_rng(0), **options)
    inputs = [device.array(host) for host in hosts]
    outputs = tuple(device.empty(*like) for like in family.outputs_like(hosts, **options))
    if family.in_place:
        outputs = (inputs[family.over],)
    title = " ".join(part for part in (shape_text(shape), dtype, mode) if part)
    output: Any = one_or_all(outputs)
    return Problem(title, hosts, options, inputs, outputs, family.problem_of(inputs, output, **options))


def _key(variant: Variant[Any], launch: Launch) -> tuple[Key, str]:
    """Return the source of a launch, with its macros, and the launch's entry in that source."""
    source, entry, defines = variant.entry_of(launch)
    return (headers.find_source(source), defines), entry


def _add(wanted: dict[Key, dict[str, Wanted]], variant: Variant[Any], launch: Launch, problem: Problem) -> None:
    key, entry = _key(variant, launch)
    cluster = None if launch.cluster is None else _three(launch.cluster)
    usual = Usual(problem.title, _three(launch.grid), _three(launch.block), launch.shared, cluster)
    defines = "".join(f" -D{name}={value}" for name, value in key[1])
    idea = f"{variant.name}{defines}: {variant.idea}" if variant.idea else f"{variant.name}{defines}"
    entries = wanted.setdefault(key, {})
    known = entries.get(entry, Wanted(entry, variant.since, idea, launch.cluster is not None, launch.cooperative))
    entries[entry] = replace(
        known,
        since=min(known.since, variant.since, key=order),
        cluster=known.cluster or launch.cluster is not None,
        cooperative=known.cooperative or launch.cooperative,
        usual=tuple(dict.fromkeys((*known.usual, usual))),
    )


def _three(extents: int | Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*((extents,) if isinstance(extents, int) else extents), 1, 1)[:3]
    return int(x), int(y), int(z)


# Runs -----------------------------------------------------------------------------------------------------------------


class Recording:
    """Runs variants on the simulated device and records them for a bundle with one image per source. current: the title
    of the current run. variant: the variant of the current run."""

    def __init__(self, family: Ladder[Any], kernels: Kernels, bundle: Bundle) -> None:
        self._family, self._kernels, self._bundle = family, kernels, bundle
        self.current, self.variant = "", kernels.runs[0][0]
        self._images = {
            (source.path, tuple(source.options["defines"].items())): number
            for number, source in enumerate(kernels.sources)
        }

    def samples(self) -> tuple[list[Sample], dict[int, str]]:
        """Run each variant on all problems that it supports.

        Returns samples of each variant's smallest problem and of problems that launch other kernels, and a dict with
        the reason for each entry that no sample launches, by the entry's number. Raises WrongResult, or the error of
        the simulated device.
        """
        made: list[Sample] = []
        launched: set[int] = set()
        for variant, problems in self._kernels.runs:
            mine: set[int] = set()
            for problem in problems:
                if variant.refusal(problem.value, self._kernels.device.arch) is not None:
                    continue
                numbers = {self._number(variant, one) for one in self._family.launches(variant, problem.value)}
                sample = self._run(variant, problem)
                if numbers - mine:
                    mine |= numbers
                    made.append(sample)
            launched |= mine
        reasons = {
            number: f"its variants need an architecture newer than the simulated {self._kernels.device.arch}"
            for number in range(len(self._bundle.entries))
            if number not in launched
        }
        return made, reasons

    def _number(self, variant: Variant[Any], launch: Launch) -> int:
        key, entry = _key(variant, launch)
        return self._bundle.entries.index(self._bundle.entry(self._images[key], entry))

    def _run(self, variant: Variant[Any], problem: Problem) -> Sample:
        """Run one variant on one problem, compare its result, and return the recorded sample."""
        family, self.variant = self._family, variant
        title = self.current = f"{family.name}/{variant.name} {problem.title}"
        names = [*family.specs] if len(family.specs) == len(problem.inputs) else []
        names = names or [f"in{number}" for number in range(len(problem.inputs))]
        arrays = dict(zip(names, problem.inputs, strict=True))
        written = family.output_names(len(problem.outputs))
        if family.in_place:
            written = (names[family.over],)
        arrays |= dict(zip(written, problem.outputs, strict=True))
        launches = family.launches(variant, problem.value)
        scratch = family.scratch(self._kernels.device, launches, self._kernels.device.default_stream)
        if scratch is not None:
            scratch.fill(POISON)
            arrays["scratch"] = scratch
        self._prepare(problem)
        recorder = Recorder(title, arrays)
        self._launch(variant, problem, scratch, recorder.launch)
        results = tuple(array.numpy() for array in problem.outputs)
        exact, allowed = self._judge(variant, problem, title, results, scratch)
        compared = {
            name: _bounds(one, several(exact)[number], several(allowed)[number])
            for number, (name, one) in enumerate(zip(written, results, strict=True))
        }
        return recorder.sample(compared)

    def _prepare(self, problem: Problem) -> None:
        """Fill the outputs before a run: with the input if the variant works in place, else with the family's initial
        value if it has one, else with the poison pattern."""
        for array in problem.outputs:
            if self._family.in_place:
                array.copy_from(np.ascontiguousarray(problem.hosts[self._family.over]))
            elif self._family.initial is not None:
                array.fill(self._family.initial)
            else:
                array.reshape(-1).view(np.uint8).fill(POISON)

    def _launch(self, variant: Variant[Any], problem: Problem, scratch: Any, launch: Callable[..., None]) -> None:
        family, stream = self._family, self._kernels.device.default_stream
        for each in family.launches(variant, problem.value):
            kernel = family.kernel(self._kernels.device, variant, each)
            keywords = family.keywords(each, kernel, problem.value, problem.inputs, problem.output, scratch)
            launch(self._number(variant, each), kernel, stream, keywords)
        self._kernels.device.synchronize()

    def _judge(
        self, variant: Variant[Any], problem: Problem, title: str, results: tuple[Any, ...], scratch: Any
    ) -> tuple[Any, Any]:
        """Return the reference and the rounding bound. Raises WrongResult if the result differs from the reference by
        more than the bound."""
        family, dtypes = self._family, [one.dtype for one in results]
        exact = family.exact(problem.hosts, dtypes, **problem.options)
        allowed = family.allowed(exact, problem.hosts, variant, dtypes, **problem.options)
        verdict = family.compared(one_or_all(results), exact, allowed)
        if verdict.ok:
            return exact, allowed

        def again(watch: Callable[[Any], AbstractContextManager[Any]]) -> None:
            self._prepare(problem)
            with watch(problem.output):
                self._launch(variant, problem, scratch, _plainly)

        if not family.in_place and family.initial is None:
            verdict = replace(verdict, why=verdict.why + still_poisoned(results))
        raise WrongResult(variant.name, title.partition(" ")[2], verdict, again)


def _plainly(number: int, kernel: Kernel, stream: Any, keywords: dict[str, Any]) -> None:
    kernel.launch(stream, **keywords)


def _bounds(result: np.ndarray[Any, Any], exact: Any, allowed: Any) -> tuple[Any, Any]:
    """The expected numbers of a result, and the tolerance of each."""
    if result.dtype.kind in "iub":
        return np.asarray(exact).astype(result.dtype), 0
    exact = np.asarray(exact)
    limits = np.broadcast_to(np.asarray(allowed, np.float64), exact.shape)
    if result.dtype.kind == "c":
        exact = np.ascontiguousarray(exact, np.complex128).reshape(-1).view(np.float64)
        limits = np.repeat(limits.reshape(-1), 2)
        steps = steps_of(np.dtype(result.real.dtype))
    else:
        steps = steps_of(result.dtype)
    exact = exact.astype(np.float64)
    size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    limits = np.where(np.isfinite(limits), limits, 0.0)
    return exact, limits + 2 * steps.last * (size + limits) + steps.least
