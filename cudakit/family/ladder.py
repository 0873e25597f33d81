"""Ladder: the variants that compute the same thing, their reference, how results are judged, and how one is launched.

`Family` (family.py) is a Ladder that can be called. Each method here reads one part of the declaration, and falls back
on its default (defaults.py).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from cudakit import names, nvtx
from cudakit.compare import Comparison, in_range, within
from cudakit.compile import compiler
from cudakit.device import Device
from cudakit.errors import LaunchError, Refused, UnsupportedVariant
from cudakit.family import defaults
from cudakit.family.declaration import Launch, P, Slot, Variant, several, variant
from cudakit.family.problem import RESERVED, ArraySpec, Problem, bind, dims_of, problem_of
from cudakit.family.scalars import Scalar
from cudakit.launch.arguments import pointer_dtypes
from cudakit.memory import array as memory
from cudakit.shapes import Shape

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.launch.kernel import Kernel
    from cudakit.memory.array import DeviceArray

#: The shape and dtype of an output.
Like = tuple[Shape, np.dtype[Any]]


def _none() -> None:
    return None


class Recent(threading.local):
    """One thread's last calls of a family: weak references to guards of resolved calls, which their devices keep.

    last(): the guard of the very last one, or None. by_shape: those of others, by the shape of the first input.
    """

    MOST = 256

    def __init__(self) -> None:
        self.last: Callable[[], Any] = _none
        self.by_shape: dict[Any, weakref.ref[Any]] = {}

    def keep(self, shape: Any, guard: Any) -> None:
        """Have `guard` tried first at the next call."""
        if len(self.by_shape) >= self.MOST:
            self.by_shape.clear()
        self.last = self.by_shape[shape] = weakref.ref(guard)

    def of_shape(self, array: Any) -> Any:
        """The guard of the last call with a first input of this shape, which becomes `last`; None if it is `last`."""
        try:
            found = self.by_shape.get(array.shape)
        except (AttributeError, TypeError):  # not an array: the rules say so
            return None
        if found is None or found is self.last:
            return None
        self.last = found
        return found()


@dataclass(frozen=True)
class PeerWork:
    """Another package's way to do a family's work. work(*inputs, *outputs, **options) queues it on the package's
    current stream, or returns the function that does; the arrays are the package's own."""

    name: str
    package: str
    idea: str
    work: Callable[..., Any]


@dataclass(eq=False)
class Ladder(Generic[P]):
    """The declaration of a family: what its variants compute, and what they are given.

    - `name`: in tables, on the command line, and of NVTX ranges.
    - `reference(*inputs, **options)`: the output (a tuple of several) in float64 numpy, or in whole numbers. Floats are
      passed to it as float64, so plain numpy code is enough. Its keyword-only parameters are the family's options.
    - `variants`: the rungs, the simplest first; `@family.variant` adds one.
    - `inputs`: by name, such as {"a": "float32[m, k]", "b": "float32[k, n]"}: names or numbers per axis, or none for
      the problem's whole shape. Without a dtype, the kernel's signature has it, or `dtypes`. Or a function (shape,
      dtype, rng, **options) that returns new host arrays. Unless given: the reference's parameters, of one shape.
    - `outputs`: by name, likewise; or a function (*inputs, **options) that returns the shape and dtype of the output,
      or a tuple of such pairs. Unless given: "out", of the reference's shape and the signature's dtype.
    - `in_place`: the name of the input that is the output. `initial`: what outputs are filled with before a launch,
      for kernels that add to what is there.
    - `options`: values that an option is tested with, by name; its default is the first.
    - `problem(inputs, output, **options)`: the argument of the variants' functions, if it is not a Problem; raises
      ValueError for arrays that the family refuses. `strided`: arrays of a Problem may have any strides.
    - `arguments(problem)`: the kernels' arguments, for launches that have none.
    - `rounding(exact, *inputs, **options)`: how far rounding may move each element of a correct result before it is
      rounded to its dtype (see cudakit.rounding); or one number for all. `tolerance`: instead, a share of the largest
      number along the last axis. Unless given, `defaults.rounding` derives one.
    - `baseline(*inputs, **options)`: a numpy user's code, in the same precision: the CPU row of a table; the reference
      unless given.
    - `traffic(problem)`: the fewest bytes that must move through device memory; those of all arrays unless given.
    - `flops(problem)`: operations, or 0 if bandwidth is the only measure.
    - `choose(problem, arch)`: the name of the variant that "auto" means; the last that takes the problem unless given.
    - `shapes`: what benches run: a sequence, or by "gpu", "sim", "sweep", "sim sweep"; "gpu once": those of a profile,
      if it should take fewer.
    - `dtypes`: the dtypes of inputs that it takes, the usual one first. `modes`: named settings of the options; the
      unnamed mode is the usual one.
    - `instead(dtype)`: the family that a call takes for inputs of a dtype, if it is another one.
    - `scalars`: the options that are plain numbers among the kernels' arguments, by name.
    - `ceiling`: the row that is 100 %: "copy" (a copy of the same bytes) or the name of a peer's row ("cublas").
    - `read_shape(shape)`: the full shape for one that a user wrote short (1024 for a square product).
    - `problems`: the hypothesis strategy of its problems: a function (elements, kind), or "module:function"; one made
      of this declaration unless given.

    `FAMILY.call = function`, set after the declaration, is for a family that users call by a function of its own, which
    benches time then: call(inputs, out, variant, stream, **options) returns a user's call, without arguments, or None
    if no call of the function runs the variant on these arrays. A copy (dataclasses.replace), whose variants the
    function does not know, has none: benches call the copy itself.
    """

    name: str
    reference: Callable[..., Any]
    variants: tuple[Variant[P], ...] = ()
    inputs: Mapping[str, str | ArraySpec] | Callable[..., tuple[Any, ...]] | None = None
    outputs: Mapping[str, str | ArraySpec] | Callable[..., Any] | None = None
    in_place: str = ""
    initial: float | None = None
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    problem: Callable[..., P] | None = None
    strided: bool = False
    arguments: Callable[[P], tuple[Any, ...]] | None = None
    rounding: Callable[..., Any] | float | None = None
    tolerance: float | None = None
    baseline: Callable[..., Any] | None = None
    traffic: Callable[[P], int] | None = None
    flops: Callable[[P], int] = field(default=lambda problem: 0)
    choose: Callable[[P, str], str] | None = None
    shapes: Any = None
    dtypes: tuple[str, ...] = ()
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    instead: Callable[[str], Ladder[Any] | None] = field(default=lambda dtype: None)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    ceiling: str = "copy"
    read_shape: Callable[[Shape], Shape] = field(default=lambda shape: shape)
    problems: str | Callable[..., Any] = ""
    peers: tuple[PeerWork, ...] = ()
    call: Callable[..., Callable[[], Any] | None] | None = field(default=None, init=False, compare=False, repr=False)
    recent: Recent = field(default_factory=Recent, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        arrays, self._options = defaults.parameters(self.reference)
        self._options |= {name: values[0] for name, values in self.options.items()}
        declared = self.inputs if isinstance(self.inputs, Mapping) else dict.fromkeys(arrays, "")
        self.specs: dict[str, ArraySpec] = {name: ArraySpec.of(text) for name, text in declared.items()}
        written = self.outputs if isinstance(self.outputs, Mapping) else {}
        self.written: dict[str, ArraySpec] = {name: ArraySpec.of(text) for name, text in written.items()}
        if self.in_place and self.in_place not in self.specs:
            known = ", ".join(self.specs)
            raise ValueError(f"family {self.name}: in_place={self.in_place!r} is not one of its inputs ({known})")
        taken = [name for name in (*self.specs, *self.written, *self.dims, *self._options) if name in RESERVED]
        if taken:
            raise ValueError(f"family {self.name}: {taken[0]!r} is a name of every problem; choose another name for it")
        axes = len(self.dims) if self.dims else 1
        self.shapes = defaults.shapes_by_device(self.shapes, axes)

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
            return made

        return add

    def peer(self, package: str, idea: str = "", name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Adds the function under it as a peer of benches: it does the family's work with `package` ("torch" or "cupy";
        kernels of Triton take torch's arrays), on arrays of that package: work(*inputs, *outputs, **options) writes the
        outputs, or returns a function that does, if something is to be set up once."""

        def add(work: Callable[..., Any]) -> Callable[..., Any]:
            text = idea or (work.__doc__ or package).strip().splitlines()[0].rstrip(".")
            self.peers = (*self.peers, PeerWork(name or f"peer:{package}", package, text, work))
            return work

        return add

    def __getitem__(self, name: str) -> Variant[P]:
        """The variant called `name`. Raises ValueError if there is none."""
        for one in self.variants:
            if one.name == name:
                return one
        known = [v.name for v in self.variants]
        meant = names.hint(name, known)
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

    # Arrays and problems ----------------------------------------------------------------------------------------------

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the extents of its inputs, in the order of a problem's shape."""
        return dims_of(list(self.specs.values()))

    @property
    def usual_dtypes(self) -> tuple[str, ...]:
        """The dtypes that it is tested in: those declared, or that of its first input."""
        if self.dtypes:
            return self.dtypes
        first = next(iter(self.specs), None)
        if first is None or not self._declared:
            return ("float32",)
        return (self.input_dtype(first, None).name,)

    @property
    def _declared(self) -> bool:
        """Whether its inputs are made of the declaration, not by a function."""
        return not callable(self.inputs)

    def shapes_for(self, kind: str, *, sweep: bool = False, once: bool = False) -> tuple[Shape, ...]:
        """The shapes that benches run on a kind of device ("gpu" or "sim"). sweep: the whole list. once: those of a
        profile, which takes tens of passes over each launch, if it has fewer for it."""
        shapes: dict[str, tuple[Shape, ...]] = self.shapes
        if sweep:
            return shapes["sweep" if kind == "gpu" else "sim sweep"]
        return shapes.get(f"{kind} once", shapes[kind]) if once else shapes[kind]

    def option_values(self) -> dict[str, tuple[Any, ...]]:
        """The values that each option is tested with."""
        return {name: tuple(self.options.get(name, (default,))) for name, default in self._options.items()}

    def input_dtype(self, name: str, dtype: Any) -> np.dtype[Any]:
        """The dtype of an input: declared, or the one under test, or that of the signature."""
        spec = self.specs[name]
        if spec.dtype:
            return memory.as_dtype(spec.dtype)
        if self.dtypes and dtype is not None:
            return memory.as_dtype(dtype)
        return defaults.expect_dtype(self.name, name, self.signature.get(name))

    def inputs_for(self, shape: Shape, dtype: Any, rng: np.random.Generator, **options: Any) -> tuple[Any, ...]:
        """New random host arrays for one problem. Raises ValueError for a shape that it does not take."""
        if callable(self.inputs):
            return tuple(self.inputs(shape, memory.as_dtype(dtype), rng, **options))
        dims = defaults.bound(self.name, self.specs, shape)
        return tuple(
            defaults.values(spec, spec.shape(shape, dims), self.input_dtype(name, dtype), rng)
            for name, spec in self.specs.items()
        )

    def outputs_like(self, inputs: Sequence[Any], **options: Any) -> tuple[Like, ...]:
        """Shape and dtype of each output, for arrays on the host or on a device."""
        if self.in_place:
            over = inputs[self.over]
            return ((tuple(over.shape), over.dtype),)
        if callable(self.outputs):
            made = self.outputs(*inputs, **options)
            return made if isinstance(made[-1], tuple) else (made,)
        if self.written and all(spec.dtype for spec in self.written.values()):
            dims, whole = bind(self.name, self.specs, inputs)
            extents = {**{k: int(v) for k, v in {**self._options, **options}.items() if isinstance(v, int)}, **dims}
            try:
                shapes = [spec.shape(whole, extents) for spec in self.written.values()]
            except KeyError as error:
                raise ValueError(
                    f"{self.name}: the extent {error.args[0]!r} of an output is neither one of an input nor an option"
                ) from error
            return tuple(
                (shape, memory.as_dtype(spec.dtype)) for shape, spec in zip(shapes, self.written.values(), strict=True)
            )
        return self._outputs_of_reference(inputs, options)

    def _outputs_of_reference(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> tuple[Like, ...]:
        """Shapes by the reference of arrays of zeros, and dtypes by the declaration or the signature."""
        zeros = [np.broadcast_to(np.zeros((), x.dtype), tuple(x.shape)) for x in inputs]
        with np.errstate(all="ignore"):
            results = several(self.reference(*map(defaults.wide, zeros), **options))
        likes = []
        for number, result in enumerate(results):
            name = self.output_names(len(results))[number]
            spec = self.written.get(name, ArraySpec())
            dtype = spec.dtype or self.signature.get(name)
            likes.append((tuple(np.shape(result)), defaults.expect_dtype(self.name, name, dtype)))
        return tuple(likes)

    def output_names(self, count: int = 1) -> tuple[str, ...]:
        """The names of its outputs."""
        if self.written:
            return tuple(self.written)
        return ("out",) if count == 1 else tuple(f"out{number}" for number in range(count))

    @property
    def over(self) -> int:
        """The number of the input that is the output, for a family that works in place."""
        return list(self.specs).index(self.in_place)

    def problem_of(self, inputs: Sequence[Any], output: Any, **options: Any) -> P:
        """The problem of arrays on a device; ValueError says what it refuses. output: an array, or a tuple of them."""
        if self.problem is not None:
            return self.problem(inputs, output, **options)
        unknown = [name for name in options if name not in self._options]
        if unknown:
            known = ", ".join(self._options) or "none"
            raise TypeError(f"{self.name} has no option {unknown[0]!r}; it has {known}")
        written = several(output)
        over = self.over if self.in_place else None
        made: Any = problem_of(
            self.name, self.specs, self.output_names(len(written)), inputs, written, {**self._options, **options},
            over=over, strided=self.strided,
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    def is_empty(self, output: Any) -> bool:
        """Whether there is nothing to launch: no output has an element."""
        return not any(array.size for array in several(output))

    def traffic_of(self, problem: P, inputs: Sequence[Any], output: Any) -> int:
        """The fewest bytes that must move through device memory."""
        if self.traffic is not None:
            return self.traffic(problem)
        return sum(map(defaults.spread, (*inputs, *several(output))))

    # Results ----------------------------------------------------------------------------------------------------------

    def exact(self, inputs: Sequence[Any], dtypes: Sequence[Any] | None = None, **options: Any) -> Any:
        """The reference of host arrays in float64 or in whole numbers, infinite if it is past the range of the outputs'
        dtypes (their usual ones unless given). A tuple for several outputs."""
        if dtypes is None:
            dtypes = [dtype for _, dtype in self.outputs_like(inputs, **options)]
        with np.errstate(all="ignore"):
            made = self.reference(*map(defaults.wide, inputs), **options)
        exacts = several(made)
        if len(exacts) != len(dtypes):
            raise ValueError(
                f"{self.name}: the reference returns {len(exacts)} arrays, there are {len(dtypes)} outputs"
            )
        ranged = tuple(
            np.asarray(one) if np.asarray(one).dtype.kind in "iub" else in_range(np.asarray(one), dtype)
            for one, dtype in zip(exacts, dtypes, strict=True)
        )
        return ranged if isinstance(made, tuple) else ranged[0]

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
            return defaults.relative(exact, self.tolerance)
        if bound is None:
            kinds = dtypes or [dtype for _, dtype in self.outputs_like(inputs, **options)]
            return defaults.rounding(self.reference, exact, inputs, kinds, **options)
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
        with np.errstate(all="ignore"):
            return (self.baseline or self.reference)(*inputs, **options)

    # Launching --------------------------------------------------------------------------------------------------------

    def kernel(self, device: Device, one: Variant[P], launch: Launch) -> Kernel:
        """The compiled kernel of a launch, kept on the device after the first call."""
        key = _, entry, _ = one.entry_of(launch)
        kernel: Kernel | None = device.kept.get(key)
        if kernel is None:
            kernel = device.kept[key] = device.module_of(self.request(device, one, launch))[entry]
        return kernel

    def request(self, device: Device, one: Variant[P], launch: Launch) -> compiler.Request:
        """The compile of a launch's kernel for a device."""
        source, entry, defines = one.entry_of(launch)
        return compiler.request_of(
            source, arch=device.arch, names=(entry,) if "<" in entry else (), defines=dict(defines)
        )

    def arguments_of(self, launch: Launch, kernel: Kernel, problem: P) -> tuple[Any, ...]:
        """The arguments of a launch, with Slots in the place of arrays."""
        if launch.args is not None:
            return launch.args
        if self.arguments is not None:
            return self.arguments(problem)
        return tuple(self._by_name(kernel, problem, number) for number in range(len(kernel.parameters)))

    def _by_name(self, kernel: Kernel, problem: Any, number: int) -> Any:
        """The argument of a parameter: what the problem has by its name, or for a pointer to write to, an output."""
        parameter = kernel.parameters[number]
        if isinstance(problem, Problem):
            outputs = [array for array in problem.arrays if array.role is not None and array.role < 0]
            if parameter.name and (hasattr(problem, parameter.name)):
                return getattr(problem, parameter.name)
            free = [
                other
                for other in kernel.parameters
                if other.kind == "pointer" and not _reads(other) and not hasattr(problem, other.name or "?")
            ]
            if parameter in free and free.index(parameter) < len(outputs):
                return outputs[free.index(parameter)]
        raise LaunchError(
            f"{kernel.signature}: {parameter.label} has no argument: no array, extent or option of {self.name} has "
            "its name. Give args= to its Launch, or rename one of them"
        )

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
        if self.initial is None and not self.in_place:
            return made
        return tuple(each for each in made if 0 not in several(each.grid))

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
        count = max((each.scratch for each in launches), default=0)
        return device.empty((count,), np.uint8, stream=stream) if count else None

    def range(self, one: Variant[P]) -> AbstractContextManager[Any]:
        """The NVTX range of a variant's launches."""
        return nvtx.range(f"{self.name}.{one.name}")

    # The kernel's signature -------------------------------------------------------------------------------------------

    @functools.cached_property
    def signature(self) -> dict[str, str]:
        """The dtypes of arrays by name, as far as the signature of the first variant's kernel shows them.

        An input is the parameter that its launch puts it at, or that has its name; likewise outputs, of which the only
        one may have any name.
        """
        if not self.variants:
            raise Refused(f"family {self.name} has no variants: add one with @{self.name.upper()}.variant(...)")
        one = self.variants[0]
        shape = self.shapes["sim"][0]
        dims = defaults.bound(self.name, self.specs, shape)
        likely = [
            _Stand(spec.shape(shape, dims), memory.as_dtype(spec.dtype or "float32"), not spec.dtype)
            for spec in self.specs.values()
        ]
        with Device("sim") as device:
            stands = [device.empty(like.shape, like.dtype) for like in likely]
            out = [device.empty(shape, np.float32) for shape in self._reference_shapes(likely)]
            if self.in_place:
                out = [stands[self.over]]
            problem = self.problem_of(stands, out[0] if len(out) == 1 else tuple(out))
            launch = one.launches(problem)[0]
            kernel = self.kernel(device, one, launch)
            values = self.arguments_of(launch, kernel, problem)
            found: dict[str, str] = {}
            for value, parameter in zip(values, kernel.parameters, strict=True):
                target = parameter.type.target
                dtypes = pointer_dtypes(target) if parameter.kind == "pointer" and target is not None else None
                name = getattr(value, "name", None) if isinstance(value, Slot) else None
                if name and dtypes and dtypes[0] != "void":
                    found[name] = dtypes[0]
        return found

    def _reference_shapes(self, likes: Sequence[_Stand]) -> list[Shape]:
        """The shapes of the reference's results for arrays whose dtypes are not known yet."""
        failure: Exception | None = None
        for kind in (np.float64, np.int64):
            zeros = [np.zeros(like.shape, kind if like.guessed else like.dtype) for like in likes]
            try:
                with np.errstate(all="ignore"):
                    results = several(self.reference(*zeros, **self._options))
            except (TypeError, ValueError, IndexError) as error:
                failure = failure or error
                continue
            return [tuple(np.shape(result)) for result in results]
        raise Refused(f"family {self.name}: the reference fails on zeros: {failure}") from failure


@dataclass(frozen=True)
class _Stand:
    shape: Shape
    dtype: np.dtype[Any]
    guessed: bool


def _reads(parameter: Any) -> bool:
    """Whether a pointer parameter is one to constants."""
    return bool(parameter.type.target is not None and parameter.type.target.const)
