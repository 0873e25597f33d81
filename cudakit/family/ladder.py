"""Ladder: the variants of a declared family, how their results are judged, and how one is launched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit import names, nvtx
from cudakit.compare import Comparison, in_range, within
from cudakit.compile import compiler
from cudakit.errors import LaunchError, Refused, UnsupportedVariant
from cudakit.family import bound as bounds
from cudakit.family import kernels
from cudakit.family.declaration import Launch, P, Slot, Variant, scratch_bytes, several, variant
from cudakit.family.declared import Declared, PeerWork
from cudakit.family.recent import Recent

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.launch.kernel import Kernel
    from cudakit.memory.array import DeviceArray


@dataclass(eq=False, repr=False)
class Ladder(Declared[P]):
    """The variants that compute the same thing, from the simplest to the fastest (see Declared for the parameters)."""

    def __iter__(self) -> Iterator[Variant[P]]:
        return iter(self.variants)

    # The ladder -------------------------------------------------------------------------------------------------------

    def variant(self, source: str, **declared: Any) -> Callable[[Callable[..., Any]], Variant[P]]:
        """Adds the function under it as the next rung; see `cudakit.variant` for the parameters."""

        def add(function: Callable[..., Any]) -> Variant[P]:
            made: Variant[P] = variant(source, **declared)(function)
            if any(made.name == other.name for other in self.variants):
                raise ValueError(f"family {self.name} has a variant {made.name!r} already: give name=")
            self.variants = (*self.variants, made)
            self.forget_calls()
            return made

        return add

    def forget_calls(self) -> None:
        """Have calls choose their variants anew: "auto" may mean another one from now on."""
        self.recent = Recent()
        self.epoch += 1

    def peer(self, package: str, idea: str = "", name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Adds the function under it as a peer of benches: it does the family's work with `package` ("torch" or "cupy";
        kernels of Triton take torch's arrays), on arrays of that package: work(*inputs, *outputs, **options) writes the
        outputs, or returns a function that does, if something is to be set up once."""

        def add(work: Callable[..., Any]) -> Callable[..., Any]:
            text = idea or (work.__doc__ or package).strip().splitlines()[0].rstrip(".")
            self.peers.append(PeerWork(name or f"peer:{package}", package, text, work))
            return work

        return add

    def __getitem__(self, name: str) -> Variant[P]:
        """The variant called `name`. Raises ValueError if there is none."""
        for one in self.variants:
            if one.name == name:
                return one
        known = [v.name for v in self.variants]
        meant = names.hint(str(name), known)
        raise ValueError(f"{self.name} has no variant {name!r}; it has auto, {', '.join(known)}{meant}")

    def rung(self, one: Variant[P]) -> int:
        """The number of a variant in the ladder, from 1 on; of another one of the same name too."""
        return [other.name for other in self.variants].index(one.name) + 1

    def pick(self, name: str, problem: P, arch: str) -> Variant[P]:
        """The variant called `name`, or for "auto" the best that takes `problem` on `arch`.

        Raises UnsupportedVariant with the reason if it cannot take the problem.
        """
        if name == "auto" and self.choose is None:
            return self._last(problem, arch)
        one = self[self.choose(problem, arch) if name == "auto" and self.choose is not None else name]
        self.expect(one, problem, arch)
        return one

    def _last(self, problem: P, arch: str) -> Variant[P]:
        """The last variant that takes `problem`."""
        refusals: list[str] = []
        for one in reversed(self.variants):
            refusal = one.refusal(problem, arch)
            if refusal is None:
                return one
            refusals.append(f"{one.name}: {refusal}")
        reasons = "; ".join(refusals) or "it has no variants"
        raise UnsupportedVariant(f"no variant of {self.name} takes {problem}: {reasons}")

    def expect(self, one: Variant[P], problem: P, arch: str) -> None:
        """Raise UnsupportedVariant if a variant does not take a problem."""
        refusal = one.refusal(problem, arch)
        if refusal is not None:
            raise UnsupportedVariant(f"{self.name}/{one.name} cannot take {problem}: {refusal}")

    def call_of(
        self, one: Variant[P], inputs: Sequence[Any], out: Any, stream: Any = None, **options: Any
    ) -> Callable[[], Any] | None:
        """A user's call that runs a variant: the returned function makes it, without arguments.

        inputs, out: the arrays of one problem, of one library. options: one of the modes. None if no call of the
        function runs the variant: if it is not one of these, or the function takes another family for these arrays.
        """
        if not any(one is other for other in self.variants):
            return None
        if self.call is not None:
            return self.call(inputs, out, one.name, stream, **options)
        own: Any = self
        return functools.partial(own, *inputs, out=out, variant=one.name, stream=stream, **options)

    # Results ----------------------------------------------------------------------------------------------------------

    def exact(self, inputs: Sequence[Any], dtypes: Sequence[Any] | None = None, **options: Any) -> Any:
        """The reference of host arrays in float64, infinite if it is past the range of the outputs' dtypes (their usual
        ones unless given); or in whole numbers, which wrap around as a kernel's do. A tuple for several outputs."""
        if dtypes is None:
            dtypes = [dtype for _, dtype in self.outputs_like(inputs, **options)]
        made = self.results([self.passed(array) for array in inputs], **options)
        exacts = several(made)
        if len(exacts) != len(dtypes):
            raise Refused(
                f"family {self.name}: its reference returns {len(exacts)} outputs, there are {len(dtypes)}: return a "
                "tuple of all of them"
            )
        ranged = tuple(self._ranged(one, dtype) for one, dtype in zip(exacts, dtypes, strict=True))
        return ranged if isinstance(made, tuple) else ranged[0]

    def _ranged(self, exact: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
        """A result of the reference for an output of `dtype`."""
        if exact.dtype.kind == "c" and dtype.kind != "c":
            raise Refused(
                f"family {self.name}: its reference returns {exact.dtype}, the output is {dtype}: declare "
                'outputs={"out": "complex64[n]"}, or return real numbers'
            )
        if exact.dtype.kind in "iu" and dtype.kind in "iu":
            return exact.astype(dtype)  # wrapped around: numpy sums int32 in int64, a kernel in int32
        return exact if exact.dtype.kind in "iub" else in_range(exact, dtype)

    def rounding_of(self, one: Variant[P] | None) -> Any:
        """What results of a variant are judged by: a function, a number, or None for the default."""
        return self.rounding if one is None or one.rounding is None else one.rounding

    def allowed(
        self,
        exact: Any,
        inputs: Sequence[Any],
        one: Variant[P] | None = None,
        dtypes: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """How far rounding may move results of a variant (any, unless given) from `exact`, the reference of
        `inputs`, before they are rounded to the outputs' dtypes."""
        bound = self.rounding_of(one)
        if bound is None and self.tolerance is not None:
            return bounds.relative(exact, self.tolerance)
        if bound is None:
            kinds = dtypes or [dtype for _, dtype in self.outputs_like(inputs, **options)]
            return bounds.rounding(functools.partial(self.results, **options), exact, inputs, kinds)
        if not callable(bound):
            return (bound,) * len(exact) if isinstance(exact, tuple) else bound
        return bound(exact, *inputs, **options)

    def compared(self, result: Any, exact: Any, allowed: Any) -> Comparison:
        """The comparison of results with the reference: the first output that is wrong, or the last."""
        verdict = Comparison(True, 0.0, 0.0, None)
        results = several(result)
        names = self.output_names(len(results))
        judged = zip(names, results, several(exact), several(allowed), strict=True)
        for number, (name, one, reference, limit) in enumerate(judged):
            if np.shape(one) != np.shape(reference):
                raise Refused(
                    f"family {self.name}: output {name} has shape {np.shape(one)}, the reference returns "
                    f"{np.shape(reference)}: return the shape of the output, or declare its extents, such as "
                    f'outputs={{"{name}": "float32[m, n]"}}'
                )
            verdict = within(one, reference, limit)
            if not verdict.ok:
                where = f"output {name}: " if len(results) > 1 else ""
                return replace(verdict, why=where + verdict.why, output=number)
        return verdict

    def judge(
        self, result: Any, inputs: Sequence[np.ndarray], one: Variant[P] | None = None, **options: Any
    ) -> Comparison:
        """Compares a result on the host, of a variant if given, with the reference."""
        dtypes = [array.dtype for array in several(result)]
        exact = self.exact(inputs, dtypes, **options)
        return self.compared(result, exact, self.allowed(exact, inputs, one, dtypes, **options))

    def baseline_of(self, inputs: Sequence[Any], **options: Any) -> Any:
        """A numpy user's code on host arrays."""
        if self.baseline is None:
            return self.results(inputs, **options)
        with np.errstate(all="ignore"):
            return self.baseline(*inputs, **options)

    # Launching --------------------------------------------------------------------------------------------------------

    def kernel(self, device: Device, one: Variant[P], launch: Launch) -> Kernel:
        """The compiled kernel of a launch, kept on the device after the first call."""
        return kernels.kernel_of(device, one, launch)

    def request(self, device: Device, one: Variant[P], launch: Launch) -> compiler.Request:
        """The compile of a launch's kernel for a device."""
        return kernels.request_of(device, one, launch)

    def arguments_of(self, launch: Launch, kernel: Kernel, problem: P) -> tuple[Any, ...]:
        """The arguments of a launch, with Slots in the place of arrays."""
        return kernels.arguments_of(self, launch, kernel, problem)

    def launch(
        self,
        device: Device,
        one: Variant[P],
        inputs: Sequence[DeviceArray],
        output: Any,
        stream: Stream,
        problem: P | None = None,
        **options: Any,
    ) -> None:
        """Launches a variant on the arrays, in its own NVTX range `family.variant`; launches nothing if empty.

        output: an array, or a tuple of several. problem: theirs, if the caller has it already and has checked that the
        variant takes it.
        """
        if problem is None:
            problem = self.problem_of(inputs, output, **options)
            self.expect(one, problem, device.arch)
        if self.is_empty(output):
            return
        if one.run is not None:
            kernel_of = functools.partial(self.kernel, device, one)
            with self.range(one):
                one.run(device, kernel_of, problem, inputs, output, stream)
            return
        launches = self.launches(one, problem)
        kernels = [self.kernel(device, one, each) for each in launches]
        scratch = self.scratch(device, launches, stream)
        try:
            with self.range(one):
                for kernel, each in zip(kernels, launches, strict=True):
                    kernel.launch(stream, **self.keywords(each, kernel, problem, inputs, output, scratch))
        finally:
            if scratch is not None:
                scratch.close()  # in stream order: after the kernels

    def launches(self, one: Variant[P], problem: P) -> tuple[Launch, ...]:
        """The launches of a variant, in order, without those of no blocks if the outputs have their values beforehand:
        an empty input adds nothing. Raises UnsupportedVariant if the variant does not take the problem."""
        made = one.launches(problem)
        empty = [each for each in made if 0 in several(each.grid)]
        if empty and self.initial is None and not self.in_place:
            raise LaunchError(
                f"{self.name}/{one.name}: the grid is {empty[0].grid} for {problem}, whose output has elements: launch "
                "the blocks that write them; or, if the kernel adds to its output, declare initial=0, by which such a "
                "launch is left out"
            )
        return tuple(each for each in made if 0 not in several(each.grid)) if empty else made

    def keywords(
        self, launch: Launch, kernel: Kernel, problem: P, inputs: Sequence[Any], output: Any, scratch: Any
    ) -> dict[str, Any]:
        """The keywords of Kernel.launch and Kernel.prepare for a launch on these arrays."""
        outputs = several(output)
        arrays = (*inputs, *outputs, scratch)
        values = self.arguments_of(launch, kernel, problem)
        return launch.keywords(
            [value.among(arrays, len(inputs), len(outputs)) if isinstance(value, Slot) else value for value in values]
        )

    def scratch(self, device: Device, launches: Sequence[Launch], stream: Stream) -> DeviceArray | None:
        """The scratch memory that the launches of one run share, or None if they need none."""
        count = scratch_bytes(launches)
        return device.empty((count,), np.uint8, stream=stream) if count else None

    def range(self, one: Variant[P]) -> AbstractContextManager[Any]:
        """The NVTX range of a variant's launches."""
        return nvtx.range(f"{self.name}.{one.name}")
