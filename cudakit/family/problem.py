"""The declared arrays of a family, such as "float32[rows, cols]", and the problem of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cudakit.family import checks
from cudakit.family.declaration import SCRATCH, Slot
from cudakit.memory import array as memory
from cudakit.names import hint
from cudakit.shapes import Shape

_TEXT = re.compile(r"\s*([A-Za-z_]\w*)?\s*(?:\[([^\]]*)\])?\s*")
#: Reserved names: attributes of a Problem that no array, extent or option may have.
RESERVED = frozenset(("arrays", "dims", "family", "names", "options", "scratch", "shared_limit", "sms"))


@dataclass(frozen=True)
class ArraySpec:
    """A declared array.

    Args:
        dtype: The dtype; "" if it is in the kernel's signature, or is the one of `dtypes` that is under test.
        dims: A name or a number per axis; None for the problem's whole shape.
        low: The smallest value that is drawn.
        high: The exclusive upper bound of drawn values, or the name of an extent or option that is the bound.
        free: The array may have any shape; the first array's shape is then the problem's.
    """

    dtype: str = ""
    dims: tuple[str | int, ...] | None = None
    low: float | None = None
    high: float | str | None = None
    free: bool = False

    @classmethod
    def of(cls, declared: str | ArraySpec) -> ArraySpec:
        """Return the array declared by a text such as "float32[rows, 4]", "[n]" or "uint8". Raise ValueError for other
        texts."""
        if isinstance(declared, ArraySpec):
            return declared
        match = _TEXT.fullmatch(declared)
        if match is None:
            raise ValueError(f"{declared!r} is not an array declaration: write dtype and extents: float32[rows, 4]")
        dtype, inside = match[1] or "", match[2]
        if dtype:
            try:
                memory.as_dtype(dtype)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{declared!r} is not an array declaration: {dtype} is not a dtype") from error
        if inside is None or inside.strip() == "...":
            return cls(dtype)
        parts = [part.strip() for part in inside.split(",")] if inside.strip() else []
        for part in parts:
            if not re.fullmatch(r"\d+|[A-Za-z_]\w*", part):
                raise ValueError(f"{declared!r}: an extent must be a name or a number, got {part!r}")
        return cls(dtype, tuple(int(part) if part.isdigit() else part for part in parts))

    def __str__(self) -> str:
        return self.dtype + ("" if self.dims is None else f"[{', '.join(map(str, self.dims))}]")

    def within(self, numbers: Mapping[str, Any]) -> ArraySpec:
        """Return a copy whose bound is a number. numbers: the extents and options by name."""
        return replace(self, high=numbers[self.high]) if isinstance(self.high, str) else self

    def shape(self, whole: Shape, dims: Mapping[str, int]) -> Shape:
        """Return its shape in a problem of shape `whole` with the extents `dims`."""
        if self.dims is None:
            return whole
        return tuple(dims[dim] if isinstance(dim, str) else dim for dim in self.dims)


def Input(declared: str, low: float | None = None, high: float | str | None = None) -> ArraySpec:
    """Declare an input whose values are drawn from `low` (included) to `high` (excluded).

    Input("int32[m]", low=0, high="n") declares indices into an array of n rows.

    Args:
        declared: The dtype and extents, such as "int32[m]".
        low: The smallest value, or None for no bound.
        high: The upper bound: a number, or the name of an extent or option. An extent that is a bound is drawn large
            enough to allow at least one value.

    Returns:
        The declared array.
    """
    spec = ArraySpec.of(declared)
    return ArraySpec(spec.dtype, spec.dims, low, high)


def dims_of(specs: Sequence[ArraySpec]) -> tuple[str, ...]:
    """Return the names of all extents, in the order of their first use."""
    return tuple(dict.fromkeys(dim for spec in specs for dim in spec.dims or () if isinstance(dim, str)))


def bind(what: str, specs: Mapping[str, ArraySpec], arrays: Sequence[Any]) -> tuple[dict[str, int], Shape]:
    """Return the extents by name and the problem's whole shape, by the arrays' shapes. Raise ValueError for shapes that
    do not match their declarations or each other."""
    dims: dict[str, int] = {}
    first: dict[str, str] = {}
    whole: Shape | None = None
    for (name, spec), array in zip(specs.items(), arrays, strict=True):
        shape = tuple(int(extent) for extent in array.shape)
        if spec.free:
            whole = shape if whole is None else whole
            continue
        if spec.dims is None:
            if whole is not None and shape != whole:
                raise ValueError(f"{what} takes arrays of one shape, {first['']} is {whole}, {name} is {shape}")
            whole = shape
            first.setdefault("", name)
            continue
        if len(shape) != len(spec.dims):
            raise ValueError(f"{what}: {name} is declared as {spec}, with {len(spec.dims)} axes; got shape {shape}")
        for dim, extent in zip(spec.dims, shape, strict=True):
            known = dim if isinstance(dim, int) else dims.setdefault(dim, extent)
            origin = "its declaration" if isinstance(dim, int) else first.setdefault(dim, name)
            if known != extent:
                raise ValueError(f"{what}: {name} is declared as {spec}, and {dim} is {known} by {origin}; got {shape}")
    return dims, whole if whole is not None else tuple(dims.values())


@dataclass(frozen=True)
class ArrayFacts(Slot):
    """An array of a problem: its properties that a launch may depend on. It is also the array's Slot in a kernel's
    arguments.

    strides: in elements. alignment: of the first element, in bytes, at most 16.
    """

    name: str = ""
    shape: Shape = ()
    strides: tuple[int, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    alignment: int = 1

    @classmethod
    def of(cls, role: int, name: str, array: Any) -> ArrayFacts:
        aligned = math.gcd(int(array.pointer), 16)
        return cls(
            role, 0, "", name, tuple(array.shape), tuple(array.strides_elements), array.dtype, aligned
        )  # fmt: skip

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def aligned(self, count: int) -> bool:
        """Return whether the address of its first element is a multiple of `count` bytes, at most 16."""
        return self.alignment % count == 0

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Problem:
    """One problem of a declared family. Each array, extent and option is an attribute of its name. `scratch` is the
    scratch memory, and `n` the number of elements of the problem's shape, unless an extent is called n.

    sms: the device's multiprocessors. shared_limit: the bytes of shared memory that it allows per block.
    """

    family: str
    arrays: tuple[ArrayFacts, ...]
    dims: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, Any], ...]
    sms: int
    shared_limit: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        values = self._named
        if name in values:
            return values[name]
        raise AttributeError(
            f"a problem of {self.family} has no {name!r}; it has {', '.join(values)}{hint(name, values)}"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arrays, extents and options."""
        return tuple(name for name in self._named if name != "scratch")

    @property
    def _named(self) -> dict[str, Any]:
        names: dict[str, Any] = {array.name: array for array in self.arrays}
        named = {**names, **dict(self.dims), **dict(self.options), "scratch": SCRATCH}
        return named

    @property
    def _key(self) -> tuple[Any, ...]:
        """All values that launches may depend on; hashable."""
        options = tuple((name, repr(value)) for name, value in self.options)
        return (self.family, self.arrays, self.dims, options, self.sms, self.shared_limit)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        return f"{self.family} of {', '.join(map(str, self.arrays))}{options}"


def counted(names: Sequence[str]) -> str:
    """Return a text such as "2 arrays (a, b)"."""
    return f"{len(names)} array{'' if len(names) == 1 else 's'} ({', '.join(names) or 'none'})"


def expect_inputs(
    what: str, specs: Mapping[str, ArraySpec], inputs: Sequence[Any], dtypes: Sequence[str]
) -> tuple[dict[str, int], Shape]:
    """Return the extents by name and the whole shape of inputs (see `bind`). Raise ValueError for a wrong number of
    arrays, and for wrong dtypes: inputs without a declared dtype must all have one of `dtypes`, if that is not
    empty."""
    if len(inputs) != len(specs):
        raise ValueError(f"{what} takes {counted(list(specs))} by position, got {len(inputs)}")
    open_dtypes: dict[str, str] = {}
    for (name, spec), array in zip(specs.items(), inputs, strict=True):
        if spec.dtype and array.dtype != memory.as_dtype(spec.dtype):
            raise ValueError(f"{what} takes {name} of {spec.dtype}, got {array.dtype}")
        if not spec.dtype and dtypes:
            if array.dtype.name not in dtypes:
                raise ValueError(f"{what} takes {name} of {' or '.join(dtypes)}, got {array.dtype}")
            open_dtypes.setdefault(array.dtype.name, name)
    if len(open_dtypes) > 1:
        mixed = ", ".join(f"{name} is {dtype}" for dtype, name in open_dtypes.items())
        raise ValueError(f"{what} takes arrays of one dtype: {mixed}")
    return bind(what, specs, inputs)


def problem_of(
    what: str,
    specs: Mapping[str, ArraySpec],
    outputs: Sequence[str],
    inputs: Sequence[Any],
    written: Sequence[Any],
    options: Mapping[str, Any],
    *,
    over: int | None = None,
    strided: bool = False,
    dtypes: Sequence[str] = (),
) -> Problem:
    """Return the problem of declared arrays. Raise ValueError for arrays that do not match the declaration.

    specs: the declared inputs. outputs: the outputs' names. written: the output arrays. over: the index of the input
    that is also the only output. strided: arrays may have any strides. dtypes: the dtypes of inputs without a declared
    one.
    """
    dims, whole = expect_inputs(what, specs, inputs, dtypes)
    if "n" not in (*specs, *outputs, *options):
        dims.setdefault("n", math.prod(whole))
    named = [*zip(specs, inputs, strict=True), *zip(outputs, written, strict=True)]
    for name, array in named:
        if not strided and not array.is_contiguous:
            raise ValueError(
                f"{what} takes contiguous arrays, {name} has strides {tuple(array.strides)} bytes: copy() it, or "
                "declare strided=True if the kernel takes strides"
            )
    if over is not None and not checks.same_places(inputs[over], written[0]):
        raise ValueError(f"{what} works in place: its output is {list(specs)[over]} itself, leave out= out")
    for number, (name, array) in enumerate(zip(outputs, written, strict=True)):
        others = [pair for place, pair in enumerate(named[: len(specs)]) if place != over]
        others += list(zip(outputs[:number], written, strict=False))
        checks.expect_output(f"{what}'s {name}" if len(outputs) > 1 else what, array, separate=others)
    facts = [ArrayFacts.of(number, name, array) for number, (name, array) in enumerate(named[: len(specs)])]
    if over is None:
        facts += [ArrayFacts.of(-1 - number, name, array) for number, (name, array) in enumerate(named[len(specs) :])]
    context = written[0].context
    return Problem(
        what,
        tuple(facts),
        tuple(dims.items()),
        tuple(options.items()),
        int(context.attribute("MULTIPROCESSOR_COUNT")),
        int(context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")),
    )
