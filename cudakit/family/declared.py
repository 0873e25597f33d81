"""Declared: the fields of a family, and the arrays and problems that are derived from them.

Each method reads one part of the declaration and uses a default (defaults.py) if it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np

from cudakit.errors import Refused
from cudakit.family import defaults, kernels, mistakes, references
from cudakit.family.declaration import P, Variant, several
from cudakit.family.problem import ArraySpec, bind, dims_of, expect_inputs, problem_of
from cudakit.family.recent import Recent
from cudakit.family.scalars import Scalar
from cudakit.memory import array as memory
from cudakit.names import hint
from cudakit.shapes import Shape, shape_text
from cudakit.tracebacks import line_in

#: Shape and dtype of an output.
Like = tuple[Shape, np.dtype[Any]]
# The most cached output shapes, by the inputs' shapes; the cache avoids running the reference at each call.
_MOST_LIKES = 256


@dataclass(frozen=True)
class PeerWork:
    """Another package's implementation of a family.

    `work(*inputs, *outputs, **options)` queues the work on the package's current stream, or returns a function that
    does. The arrays are the package's own.
    """

    name: str
    package: str
    idea: str
    work: Callable[..., Any]


@dataclass(eq=False, repr=False)
class Declared(Generic[P]):
    """The declaration of a family: its reference, its variants, and the arrays and options that they take.

    - `name`: for tables, the command line and NVTX ranges.
    - `reference(*inputs, **options)`: returns the output (or a tuple of several) in float64 numpy, or in integers.
      Floats are passed as float64, so plain numpy code is enough; inputs are read-only. Its keyword-only parameters are
      the family's options.
    - `widened`: False for a reference that converts floats to float64 itself, part by part: inputs are then passed
      unchanged.
    - `variants`: the variants, the simplest first; `@family.variant` adds one.
    - `inputs`: by name, such as {"a": "float32[m, k]", "b": "float32[k, n]"}: per axis a name or a number. Without
      extents, the array has the problem's whole shape; without a dtype, it has the dtype in the kernel's signature, or
      one of `dtypes`. May also be a function (shape, dtype, rng, **options) that returns new host arrays. Default: the
      reference's parameters, all of one shape.
    - `outputs`: by name, in the same form. An output without extents has the reference's shape, unless an input has the
      problem's whole shape. May also be a function (*inputs, **options) that returns the shape and dtype of the output,
      or a tuple of such pairs. Default: "out", with the reference's shape and the signature's dtype.
    - `in_place`: the name of the input that is also the output. `initial`: the value that outputs are filled with
      before a launch, for kernels that add to their output.
    - `options`: values to test per option, by name; the first is the default.
    - `problem(inputs, output, **options)`: returns the argument of the variants' functions, if it is not a Problem;
      raises ValueError for unsupported arrays. `strided`: arrays of a Problem may have any strides.
    - `arguments(problem)`: the kernels' arguments, for launches without their own.
    - `rounding(exact, *inputs, **options)`: the largest rounding error per element of a correct result, before it is
      rounded to its dtype (see cudakit.rounding); or one number for all elements. `tolerance`: a bound to use instead
      of `rounding`, as a fraction of the largest number along the last axis. By default `cudakit.family.bound` derives
      a bound.
    - `baseline(*inputs, **options)`: plain numpy code in the same precision, for the CPU row of a table. Default: the
      reference.
    - `traffic(problem)`: the minimum bytes of device memory traffic. Default: the bytes of all arrays.
    - `flops(problem)`: operations, or 0 if bandwidth is the only metric.
    - `choose(problem, arch)`: the name of the variant for "auto". Default: the last that supports the problem.
    - `shapes`: the shapes that benches run: a sequence, or a mapping by "gpu", "sim", "sweep", "sim sweep"; "gpu once":
      fewer shapes, for profiles.
    - `dtypes`: the supported dtypes of inputs, the default first. `modes`: named settings of the options; the mode
      without a name is the default.
    - `instead(dtype)`: returns the family that handles inputs of this dtype, if it is not this family.
    - `scalars`: options that are plain numbers in the kernels' arguments, by name.
    - `ceiling`: the row that counts as 100 %: "copy" (a copy of the same bytes), the name of a peer's row ("cublas"),
      or a pattern of names ("peer:torch-*"), of which the fastest counts.
    - `read_shape(shape)`: returns the full shape of a short one (1024 for a square product).
    - `problems`: the hypothesis strategy of its problems: a function (elements, kind), or "module:function". Default:
      one derived from this declaration.

    Set `FAMILY.call = function` after the declaration if users call the family by a function of its own; benches then
    time that function. call(inputs, out, variant, stream, **options) returns a user's call, a function without
    arguments, or None if no call of the function runs the variant on these arrays. A copy (dataclasses.replace) has no
    `call`, because the function does not know the copy's variants; benches call the copy itself.
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
    widened: bool = True
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
    instead: Callable[[str], Any] = field(default=lambda dtype: None)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    ceiling: str = "copy"
    read_shape: Callable[[Shape], Shape] = field(default=lambda shape: shape)
    problems: str | Callable[..., Any] = ""
    peers: list[PeerWork] = field(default_factory=list)  # a family and its copies share this list
    call: Callable[..., Callable[[], Any] | None] | None = field(default=None, init=False, compare=False, repr=False)
    recent: Recent = field(default_factory=Recent, init=False, compare=False, repr=False)
    epoch: int = field(default=0, init=False, compare=False, repr=False)  # incremented if calls must be resolved again

    def __post_init__(self) -> None:
        try:
            arrays, defaulted, self._any_option = references.parameters(self.reference)
        except TypeError as error:
            raise TypeError(f"family {self.name}: {error}") from error
        declared = self.inputs if isinstance(self.inputs, Mapping) else dict.fromkeys(arrays, "")
        written = self.outputs if isinstance(self.outputs, Mapping) else {}
        try:
            self.specs: dict[str, ArraySpec] = {name: ArraySpec.of(text) for name, text in declared.items()}
            if callable(self.inputs):  # the function may make arrays of any shapes
                self.specs = {name: replace(spec, free=True) for name, spec in self.specs.items()}
            self.written: dict[str, ArraySpec] = {name: ArraySpec.of(text) for name, text in written.items()}
        except ValueError as error:
            raise ValueError(f"family {self.name}: {error}") from error
        self.option_defaults: dict[str, Any] = defaulted
        mistakes.expect_options(self, self._any_option)
        self.option_defaults = defaulted | {name: next(iter(values)) for name, values in self.options.items()}
        mistakes.expect_arrays(self, arrays)
        mistakes.expect_values(self)
        mistakes.expect_bounds(self)
        self.shapes = mistakes.shapes_of(self)
        self._likes: dict[Any, tuple[Like, ...]] = {}
        self._signatures: dict[tuple[str, ...], dict[str, str]] = {}

    def __repr__(self) -> str:
        variants = ", ".join(one.name for one in self.variants)
        return f"<{type(self).__name__} {self.name}: {variants or 'no variants'}>"

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the inputs' extents, in the order of a problem's shape."""
        return dims_of(list(self.specs.values()))

    @property
    def usual_dtypes(self) -> tuple[str, ...]:
        """The dtypes to test: `dtypes`, or the dtype of its first input."""
        if self.dtypes:
            return self.dtypes
        first = next(iter(self.specs), None)
        if first is None or not self._declared:
            return ("float32",)
        return (self.input_dtype(first, None).name,)

    @property
    def _declared(self) -> bool:
        """Whether its inputs are declared, not made by a function."""
        return not callable(self.inputs)

    def shapes_for(self, kind: str, *, sweep: bool = False, once: bool = False) -> tuple[Shape, ...]:
        """Return the shapes that benches run on a kind of device ("gpu" or "sim"). sweep: the whole list. once: the
        shapes for profiles, which run each launch tens of times, if they are declared."""
        shapes: dict[str, tuple[Shape, ...]] = self.shapes
        if sweep:
            return shapes["sweep" if kind == "gpu" else "sim sweep"]
        return shapes.get(f"{kind} once", shapes[kind]) if once else shapes[kind]

    def option_values(self) -> dict[str, tuple[Any, ...]]:
        """Return the values to test per option."""
        return {name: tuple(self.options.get(name, (default,))) for name, default in self.option_defaults.items()}

    def input_dtype(self, name: str, dtype: Any) -> np.dtype[Any]:
        """Return the dtype of an input: the declared dtype, `dtype` (the dtype under test), or the signature's
        dtype."""
        spec = self.specs[name]
        if spec.dtype:
            return memory.as_dtype(spec.dtype)
        if self.dtypes and dtype is not None:
            return memory.as_dtype(dtype)
        return defaults.expect_dtype(self.name, name, self.signature().get(name), output=False)

    def inputs_for(self, shape: Shape, dtype: Any, rng: np.random.Generator, **options: Any) -> tuple[Any, ...]:
        """Return new random host arrays for one problem. Raise ValueError for an unsupported shape."""
        if callable(self.inputs):
            try:
                return tuple(self.inputs(shape, memory.as_dtype(dtype), rng, **options))
            except (ValueError, MemoryError):
                raise  # an unsupported shape, or too little memory
            except Exception as error:
                raise Refused(
                    f"family {self.name}: inputs(shape, dtype, rng, **options) fails for {shape_text(shape)}: "
                    f"{type(error).__name__}: {error}{line_in(error)}"
                ) from error
        dims = defaults.bound(self.name, self.specs, shape)
        numbers = {**self.option_defaults, **options, **dims}
        return tuple(
            defaults.values(spec.within(numbers), spec.shape(shape, dims), self.input_dtype(name, dtype), rng)
            for name, spec in self.specs.items()
        )

    def outputs_like(self, inputs: Sequence[Any], **options: Any) -> tuple[Like, ...]:
        """Return the shape and dtype of each output, for arrays on the host or on a device.

        Raises ValueError for arrays that do not match the declaration, TypeError for an unknown option.
        """
        if self.problem is None:
            self._expect_options(options)
            expect_inputs(self.name, self.specs, inputs, self.dtypes)
        if self.in_place:
            over = inputs[self.over]
            return ((tuple(over.shape), over.dtype),)
        if callable(self.outputs):
            made = self.outputs(*inputs, **options)
            return made if isinstance(made[-1], tuple) else (made,)
        if self.written and all(self._is_placed(spec) for spec in self.written.values()):
            dims, whole = bind(self.name, self.specs, inputs)
            extents = {
                **{k: int(v) for k, v in {**self.option_defaults, **options}.items() if isinstance(v, int)},
                **dims,
            }
            try:
                shapes = [spec.shape(whole, extents) for spec in self.written.values()]
            except KeyError as error:
                raise ValueError(
                    f"{self.name}: the extent {error.args[0]!r} of an output is neither in the inputs nor an option"
                ) from error
            return tuple(
                (shape, memory.as_dtype(spec.dtype)) for shape, spec in zip(shapes, self.written.values(), strict=True)
            )
        return self._outputs_of_reference(inputs, options)

    def _outputs_of_reference(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> tuple[Like, ...]:
        """Return the outputs' shapes, found by running the reference on zeros, and their dtypes, declared or in the
        signature. Results are cached."""
        key = (tuple((tuple(x.shape), x.dtype.name) for x in inputs), repr(sorted(options.items())))
        found = self._likes.get(key)
        if found is None:
            if len(self._likes) >= _MOST_LIKES:
                self._likes.clear()
            found = self._likes[key] = self._like_results(inputs, options)
        return found

    def _like_results(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> tuple[Like, ...]:
        zeros = [np.broadcast_to(self.passed(np.zeros((), x.dtype)), tuple(x.shape)) for x in inputs]
        results = several(self.results(zeros, **options))
        found: dict[str, str] | None = None
        likes = []
        for name, result in zip(self._named(len(results)), results, strict=True):
            spec = self.written.get(name, ArraySpec())
            if not spec.dtype and found is None:
                found = self.signature(inputs)
            dtype = spec.dtype or (found or {}).get(name)
            likes.append((tuple(np.shape(result)), defaults.expect_dtype(self.name, name, dtype, output=True)))
        return tuple(likes)

    def _is_placed(self, spec: ArraySpec) -> bool:
        """Return whether the declarations of an output and of the inputs are enough for the output's dtype and
        shape."""
        whole = any(other.dims is None for other in self.specs.values())
        return bool(spec.dtype) and (spec.dims is not None or whole)

    def results(self, inputs: Sequence[Any], **options: Any) -> Any:
        """Run the reference on host arrays and return its result: an array, or a tuple of several.

        Raises Refused if it fails, and for results that are not numbers.
        """
        return references.results(self.name, self.reference, inputs, {**self.option_defaults, **options})

    def passed(self, array: Any) -> Any:
        """Return an input in the form that is passed to the reference."""
        return defaults.wide(array) if self.widened else array

    def _named(self, count: int) -> tuple[str, ...]:
        """Return the names of the outputs of a reference that returns `count` arrays. Raise Refused if another number
        is declared."""
        found = self.output_names(count)
        if len(found) != count:
            raise Refused(
                f"family {self.name}: its reference returns {count} array{'' if count == 1 else 's'}, outputs= "
                f"declares {len(found)} ({', '.join(found)}): return a tuple of {len(found)}"
            )
        return found

    def output_names(self, count: int = 1) -> tuple[str, ...]:
        """Return the names of its outputs."""
        if self.written:
            return tuple(self.written)
        return ("out",) if count == 1 else tuple(f"out{number}" for number in range(count))

    @property
    def over(self) -> int:
        """The index of the input that is also the output, for a family that works in place."""
        return list(self.specs).index(self.in_place)

    def problem_of(self, inputs: Sequence[Any], output: Any, **options: Any) -> P:
        """Return the problem of arrays on a device. Raise ValueError for unsupported arrays. output: an array, or a
        tuple of several."""
        if self.problem is not None:
            return self.problem(inputs, output, **options)
        self._expect_options(options)
        written = several(output)
        over = self.over if self.in_place else None
        names, given = self.output_names(len(written)), {**self.option_defaults, **options}
        made: Any = problem_of(
            self.name, self.specs, names, inputs, written, given, over=over, strided=self.strided, dtypes=self.dtypes
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    def _expect_options(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError for an option that the reference does not have."""
        unknown = [name for name in options if name not in self.option_defaults]
        if unknown and not self._any_option:
            known = ", ".join(self.option_defaults) or "none"
            raise TypeError(
                f"{self.name} has no option {unknown[0]!r}; it has {known}"
                f"{hint(unknown[0], self.option_defaults)}: options are the reference's keyword-only parameters"
            )

    def is_empty(self, output: Any) -> bool:
        """Return whether there is nothing to launch, because no output has elements."""
        return not any(array.size for array in several(output))

    def traffic_of(self, problem: P, inputs: Sequence[Any], output: Any) -> int:
        """Return the minimum bytes of device memory traffic."""
        if self.traffic is not None:
            return self.traffic(problem)
        return sum(map(defaults.spread, (*inputs, *several(output))))

    def signature(self, inputs: Sequence[Any] | None = None) -> dict[str, str]:
        """Return the dtypes of arrays by name, if the signature of a variant's kernel shows them.

        inputs: the arrays of a call, if there is one, because kernels may differ by dtype.
        """
        if inputs is None:
            usual = self.dtypes[0] if self.dtypes else ""
            key = tuple(spec.dtype or usual for spec in self.specs.values())
        else:
            key = tuple(array.dtype.name for array in inputs)
        if key not in self._signatures:
            self._signatures[key] = kernels.dtypes_of(self, key)
        return self._signatures[key]
