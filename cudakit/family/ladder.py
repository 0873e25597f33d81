"""Ladder: the variants of a declared family, the comparison of their results, and their launches."""

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
from cudakit.family.declaration import Launch, P, Variant, scratch_bytes, several, variant
from cudakit.family.declared import Declared, PeerWork
from cudakit.family.recent import Recent

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.launch.kernel import Kernel
    from cudakit.memory.array import DeviceArray


@dataclass(eq=False, repr=False)
class Ladder(Declared[P]):
    """The ordered list of a family's variants, from the simplest to the fastest (see Declared for the parameters)."""

    def __iter__(self) -> Iterator[Variant[P]]:
        return iter(self.variants)

    # The ladder -------------------------------------------------------------------------------------------------------

    def variant(self, source: str, **declared: Any) -> Callable[[Callable[..., Any]], Variant[P]]:
        """Add the decorated function as the ladder's next variant; see `cudakit.variant` for the parameters."""

        def add(function: Callable[..., Any]) -> Variant[P]:
            made: Variant[P] = variant(source, **declared)(function)
            if any(made.name == other.name for other in self.variants):
                raise ValueError(f"family {self.name} already has a variant {made.name!r}: pass another name=")
            self.variants = (*self.variants, made)
            self.forget_calls()
            return made

        return add

    def forget_calls(self) -> None:
        """Make later calls resolve again, because "auto" may now select another variant."""
        self.recent = Recent()
        self.epoch += 1

    def peer(self, package: str, idea: str = "", name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add the decorated function as a peer for benches: another package's implementation of the family.

        The function, work(*inputs, *outputs, **options), gets arrays of that package. It writes the outputs, or, if it
        needs a set-up, returns a function that does.

        Args:
            package: "torch" or "cupy"; Triton kernels use "torch".
            idea: One line for tables, by default the first line of the function's docstring.
            name: The row's name, by default "peer:" and the package.

        Returns:
            A decorator that returns the function.
        """

        def add(work: Callable[..., Any]) -> Callable[..., Any]:
            text = idea or (work.__doc__ or package).strip().splitlines()[0].rstrip(".")
            self.peers.append(PeerWork(name or f"peer:{package}", package, text, work))
            return work

        return add

    def __getitem__(self, name: str) -> Variant[P]:
        """Return the variant called `name`. Raise ValueError if there is none."""
        for one in self.variants:
            if one.name == name:
                return one
        known = [v.name for v in self.variants]
        meant = names.hint(str(name), known)
        raise ValueError(f"{self.name} has no variant {name!r}; it has auto, {', '.join(known)}{meant}")

    def rung(self, one: Variant[P]) -> int:
        """Return the position of a variant in the ladder, counted from 1, by its name."""
        return [other.name for other in self.variants].index(one.name) + 1

    def pick(self, name: str, problem: P, arch: str) -> Variant[P]:
        """Return the variant called `name`, or for "auto" the preferred one that supports `problem` on `arch`.

        Raises UnsupportedVariant with the reason if it does not support the problem.
        """
        if name == "auto" and self.choose is None:
            return self._last(problem, arch)
        one = self[self.choose(problem, arch) if name == "auto" and self.choose is not None else name]
        self.expect(one, problem, arch)
        return one

    def _last(self, problem: P, arch: str) -> Variant[P]:
        """Return the last variant that supports `problem`."""
        refusals: list[str] = []
        for one in reversed(self.variants):
            refusal = one.refusal(problem, arch)
            if refusal is None:
                return one
            refusals.append(f"{one.name}: {refusal}")
        reasons = "; ".join(refusals) or "it has no variants"
        raise UnsupportedVariant(f"no variant of {self.name} supports {problem}: {reasons}")

    def expect(self, one: Variant[P], problem: P, arch: str) -> None:
        """Raise UnsupportedVariant if a variant does not support a problem."""
        refusal = one.refusal(problem, arch)
        if refusal is not None:
            raise UnsupportedVariant(f"{self.name}/{one.name} does not support {problem}: {refusal}")

    def call_of(
        self, one: Variant[P], inputs: Sequence[Any], out: Any, stream: Any = None, **options: Any
    ) -> Callable[[], Any] | None:
        """Return a function without arguments that makes a user's call of a variant.

        Args:
            one: The variant.
            inputs: The inputs of one problem, all of one library.
            out: The output, of that library.
            stream: The stream, or None.
            options: The options of one of the modes.

        Returns:
            The function; None if no user's call runs the variant, because it is not in this ladder, or because the op
            uses another family for these arrays.
        """
        if not any(one is other for other in self.variants):
            return None
        if self.call is not None:
            return self.call(inputs, out, one.name, stream, **options)
        own: Any = self
        return functools.partial(own, *inputs, out=out, variant=one.name, stream=stream, **options)

    # Results ----------------------------------------------------------------------------------------------------------

    def exact(self, inputs: Sequence[Any], dtypes: Sequence[Any] | None = None, **options: Any) -> Any:
        """Return the reference's results for host arrays, in float64 or in integers; a tuple for several outputs.

        Values out of range of the outputs' dtypes (`dtypes`, by default the usual ones) become infinite; integers wrap
        around, as in a kernel.
        """
        if dtypes is None:
            dtypes = [dtype for _, dtype in self.outputs_like(inputs, **options)]
        made = self.results([self.passed(array) for array in inputs], **options)
        exacts = several(made)
        if len(exacts) != len(dtypes):
            raise Refused(
                f"family {self.name}: its reference returns {len(exacts)} outputs, expected {len(dtypes)}: return a "
                "tuple of all of them"
            )
        ranged = tuple(self._ranged(one, dtype) for one, dtype in zip(exacts, dtypes, strict=True))
        return ranged if isinstance(made, tuple) else ranged[0]

    def _ranged(self, exact: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
        """Return a result of the reference converted for an output of `dtype`."""
        if exact.dtype.kind == "c" and dtype.kind != "c":
            raise Refused(
                f"family {self.name}: its reference returns {exact.dtype}, the output is {dtype}: declare "
                'outputs={"out": "complex64[n]"}, or return real numbers'
            )
        if exact.dtype.kind in "iu" and dtype.kind in "iu":
            return exact.astype(dtype)  # wraps around: numpy sums int32 in int64, a kernel in int32
        return exact if exact.dtype.kind in "iub" else in_range(exact, dtype)

    def rounding_of(self, one: Variant[P] | None) -> Any:
        """Return the rounding bound of a variant: a function, a number, or None for the default."""
        return self.rounding if one is None or one.rounding is None else one.rounding

    def allowed(
        self,
        exact: Any,
        inputs: Sequence[Any],
        one: Variant[P] | None = None,
        dtypes: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return the largest error that rounding may cause in a variant's results, before they are rounded to the
        outputs' dtypes. `exact` is the reference's result for `inputs`. one: the variant, or None for the family's own
        bound."""
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
        """Compare results with the reference. Return the comparison of the first wrong output, or of the last output if
        all are correct."""
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
        """Compare a host result, of the variant `one` if given, with the reference."""
        dtypes = [array.dtype for array in several(result)]
        exact = self.exact(inputs, dtypes, **options)
        return self.compared(result, exact, self.allowed(exact, inputs, one, dtypes, **options))

    def baseline_of(self, inputs: Sequence[Any], **options: Any) -> Any:
        """Return the baseline's result for host arrays."""
        if self.baseline is None:
            return self.results(inputs, **options)
        with np.errstate(all="ignore"):
            return self.baseline(*inputs, **options)

    # Launching --------------------------------------------------------------------------------------------------------

    def kernel(self, device: Device, one: Variant[P], launch: Launch) -> Kernel:
        """Return the compiled kernel of a launch, cached on the device."""
        return kernels.kernel_of(device, one, launch)

    def request(self, device: Device, one: Variant[P], launch: Launch) -> compiler.Request:
        """Return the compile request of a launch's kernel for a device."""
        return kernels.request_of(device, one, launch)

    def arguments_of(self, launch: Launch, kernel: Kernel, problem: P) -> tuple[Any, ...]:
        """Return the arguments of a launch, with Slots for arrays and TensorMapSlots for their maps."""
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
        """Launch a variant on arrays, in its own NVTX range `family.variant`. Launches nothing if the output is empty.

        output: an array, or a tuple of several. problem: the problem of the arrays, if the caller already has it and
        has checked that the variant supports it.
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
        """Return the launches of a variant, in order. Launches with an empty grid are left out if the outputs have
        initial values, because an empty input adds nothing. Raise UnsupportedVariant if the variant does not support
        the problem."""
        made = one.launches(problem)
        empty = [each for each in made if 0 in several(each.grid)]
        if empty and self.initial is None and not self.in_place:
            raise LaunchError(
                f"{self.name}/{one.name}: the grid is {empty[0].grid} for {problem}, whose output is not empty: launch "
                "the blocks that write it; or, if the kernel adds to its output, declare initial=0, and empty "
                "launches are left out"
            )
        return tuple(each for each in made if 0 not in several(each.grid)) if empty else made

    def keywords(
        self, launch: Launch, kernel: Kernel, problem: P, inputs: Sequence[Any], output: Any, scratch: Any
    ) -> dict[str, Any]:
        """Return the keywords of Kernel.launch and Kernel.prepare for a launch on these arrays."""
        outputs = several(output)
        arrays = (*inputs, *outputs, scratch)
        values = self.arguments_of(launch, kernel, problem)
        return launch.keywords(kernels.placed(self.name, kernel, values, arrays, len(inputs), len(outputs)))

    def scratch(self, device: Device, launches: Sequence[Launch], stream: Stream) -> DeviceArray | None:
        """Return new scratch memory that the launches of one run share, or None if they need none."""
        count = scratch_bytes(launches)
        return device.empty((count,), np.uint8, stream=stream) if count else None

    def range(self, one: Variant[P]) -> AbstractContextManager[Any]:
        """Return the NVTX range of a variant's launches."""
        return nvtx.range(f"{self.name}.{one.name}")
