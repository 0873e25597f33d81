"""Declared: the fields of a family, and the arrays and problems that follow from them.

Each method reads one part of the declaration, and falls back on its default (defaults.py).
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

#: The shape and dtype of an output.
Like = tuple[Shape, np.dtype[Any]]
# Shapes of outputs that are kept, by the shapes of inputs: the reference is not run at each call.
_MOST_LIKES = 256


@dataclass(frozen=True)
class PeerWork:
    """Another package's way to do a family's work. work(*inputs, *outputs, **options) queues it on the package's
    current stream, or returns the function that does; the arrays are the package's own."""

    name: str
    package: str
    idea: str
    work: Callable[..., Any]


@dataclass(eq=False, repr=False)
class Declared(Generic[P]):
    """The declaration of a family: what its variants compute, and what they are given.

    - `name`: in tables, on the command line, and of NVTX ranges.
    - `reference(*inputs, **options)`: the output (a tuple of several) in float64 numpy, or in whole numbers. Floats are
      passed to it as float64, so plain numpy code is enough; it may not write to them. Its keyword-only parameters are
      the family's options.
    - `widened`: False for a reference that widens floats itself, piece by piece: it gets the inputs as they are.
    - `variants`: the rungs, the simplest first; `@family.variant` adds one.
    - `inputs`: by name, such as {"a": "float32[m, k]", "b": "float32[k, n]"}: names or numbers per axis, or none for
      the problem's whole shape. Without a dtype, the kernel's signature has it, or `dtypes`. Or a function (shape,
      dtype, rng, **options) that returns new host arrays. Unless given: the reference's parameters, of one shape.
    - `outputs`: by name, likewise; one without extents has the reference's shape if no input has the problem's whole
      shape. Or a function (*inputs, **options) that returns the shape and dtype of the output, or a tuple of such
      pairs. Unless given: "out", of the reference's shape and the signature's dtype.
    - `in_place`: the name of the input that is the output. `initial`: what outputs are filled with before a launch,
      for kernels that add to what is there.
    - `options`: values that an option is tested with, by name; its default is the first.
    - `problem(inputs, output, **options)`: the argument of the variants' functions, if it is not a Problem; raises
      ValueError for arrays that the family refuses. `strided`: arrays of a Problem may have any strides.
    - `arguments(problem)`: the kernels' arguments, for launches that have none.
    - `rounding(exact, *inputs, **options)`: how far rounding may move each element of a correct result before it is
      rounded to its dtype (see cudakit.rounding); or one number for all. `tolerance`: instead, a share of the largest
      number along the last axis. Unless given, `cudakit.family.bound` derives one.
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
    peers: list[PeerWork] = field(default_factory=list)  # one list for a family and its copies
    call: Callable[..., Callable[[], Any] | None] | None = field(default=None, init=False, compare=False, repr=False)
    recent: Recent = field(default_factory=Recent, init=False, compare=False, repr=False)
    epoch: int = field(default=0, init=False, compare=False, repr=False)  # grows if calls are to be resolved anew

    def __post_init__(self) -> None:
        try:
            arrays, defaulted, self._any_option = references.parameters(self.reference)
        except TypeError as error:
            raise TypeError(f"family {self.name}: {error}") from error
        declared = self.inputs if isinstance(self.inputs, Mapping) else dict.fromkeys(arrays, "")
        written = self.outputs if isinstance(self.outputs, Mapping) else {}
        try:
            self.specs: dict[str, ArraySpec] = {name: ArraySpec.of(text) for name, text in declared.items()}
            if callable(self.inputs):  # arrays of any shapes: those that the function makes
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
        return {name: tuple(self.options.get(name, (default,))) for name, default in self.option_defaults.items()}

    def input_dtype(self, name: str, dtype: Any) -> np.dtype[Any]:
        """The dtype of an input: declared, or the one under test, or that of the signature."""
        spec = self.specs[name]
        if spec.dtype:
            return memory.as_dtype(spec.dtype)
        if self.dtypes and dtype is not None:
            return memory.as_dtype(dtype)
        return defaults.expect_dtype(self.name, name, self.signature().get(name), output=False)

    def inputs_for(self, shape: Shape, dtype: Any, rng: np.random.Generator, **options: Any) -> tuple[Any, ...]:
        """New random host arrays for one problem. Raises ValueError for a shape that it does not take."""
        if callable(self.inputs):
            try:
                return tuple(self.inputs(shape, memory.as_dtype(dtype), rng, **options))
            except (ValueError, MemoryError):
                raise  # a shape that it does not take, or that has no room
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
        """Shape and dtype of each output, for arrays on the host or on a device.

        Raises ValueError for arrays that the declaration does not take, TypeError for an unknown option.
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
                    f"{self.name}: the extent {error.args[0]!r} of an output is neither one of an input nor an option"
                ) from error
            return tuple(
                (shape, memory.as_dtype(spec.dtype)) for shape, spec in zip(shapes, self.written.values(), strict=True)
            )
        return self._outputs_of_reference(inputs, options)

    def _outputs_of_reference(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> tuple[Like, ...]:
        """Shapes by the reference of arrays of zeros, and dtypes by the declaration or the signature; kept."""
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
        """Whether the dtype and the shape of an output follow from its declaration and the inputs'."""
        whole = any(other.dims is None for other in self.specs.values())
        return bool(spec.dtype) and (spec.dims is not None or whole)

    def results(self, inputs: Sequence[Any], **options: Any) -> Any:
        """What the reference returns for host arrays: an array, or a tuple of several.

        Raises Refused if it fails, and for results that are not numbers.
        """
        return references.results(self.name, self.reference, inputs, {**self.option_defaults, **options})

    def passed(self, array: Any) -> Any:
        """An input as the reference gets it."""
        return defaults.wide(array) if self.widened else array

    def _named(self, count: int) -> tuple[str, ...]:
        """The names of the outputs of a reference that returns `count`. Raises Refused if others are declared."""
        found = self.output_names(count)
        if len(found) != count:
            raise Refused(
                f"family {self.name}: its reference returns {count} array{'' if count == 1 else 's'}, outputs= "
                f"declares {len(found)} ({', '.join(found)}): return a tuple of as many"
            )
        return found

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
        """Whether there is nothing to launch: no output has an element."""
        return not any(array.size for array in several(output))

    def traffic_of(self, problem: P, inputs: Sequence[Any], output: Any) -> int:
        """The fewest bytes that must move through device memory."""
        if self.traffic is not None:
            return self.traffic(problem)
        return sum(map(defaults.spread, (*inputs, *several(output))))

    def signature(self, inputs: Sequence[Any] | None = None) -> dict[str, str]:
        """The dtypes of arrays by name, as far as the signature of a variant's kernel shows them.

        inputs: the arrays of a call, if there are some: kernels may differ by the dtype.
        """
        if inputs is None:
            usual = self.dtypes[0] if self.dtypes else ""
            key = tuple(spec.dtype or usual for spec in self.specs.values())
        else:
            key = tuple(array.dtype.name for array in inputs)
        if key not in self._signatures:
            self._signatures[key] = kernels.dtypes_of(self, key)
        return self._signatures[key]
