"""Checks of a declaration when the family is made: each error names the family, the wrong part and the correction."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cudakit import names
from cudakit.family.defaults import shapes_by_device
from cudakit.family.problem import RESERVED, counted
from cudakit.family.references import most_arrays
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text


def expect_arrays(family: Any, arrays: Sequence[str]) -> None:
    """Raise ValueError if inputs differ from the reference's arrays, or if a name is used twice.

    arrays: the names of the reference's arrays.
    """
    what, specs = f"family {family.name}", list(family.specs)
    if not callable(family.inputs):
        most = most_arrays(family.reference)
        if not specs:
            raise ValueError(f"{what}: its reference has no array parameters: declare inputs= and name them in it")
        if not len(arrays) <= len(specs) <= most:
            raise ValueError(
                f"{what}: its reference takes {counted(arrays)}, inputs= declares {counted(specs)}: use the same "
                "names in both"
            )
        if sorted(specs) == sorted(arrays) and specs != list(arrays):
            raise ValueError(
                f"{what}: inputs= has the order {', '.join(specs)}, its reference {', '.join(arrays)}: arrays are "
                "passed in the order of inputs="
            )
    if family.in_place and family.in_place not in specs:
        raise ValueError(f"{what}: in_place={family.in_place!r} is not one of its inputs ({', '.join(specs)})")
    if family.in_place and family.outputs is not None:
        raise ValueError(f"{what}: in_place={family.in_place!r} is already its output: leave outputs= out")
    outputs = () if family.in_place else family.output_names()
    declared = (*specs, *outputs, *family.dims, *family.option_defaults)
    twice = [name for name, count in Counter(declared).items() if count > 1]
    if twice:
        raise ValueError(
            f"{what}: the name {twice[0]!r} is used twice among arrays, extents, options and outputs (the default name "
            "of an output is out): rename one of them"
        )
    unknown = [
        (name, dim)
        for name, spec in family.written.items()
        for dim in spec.dims or ()
        if isinstance(dim, str) and dim not in (*family.dims, *family.option_defaults)
    ]
    if unknown:
        name, dim = unknown[0]
        have = ", ".join((*family.dims, *family.option_defaults)) or "none"
        raise ValueError(
            f"{what}: the extent {dim!r} of output {name} is neither in the inputs nor an option; there are {have}: "
            "leave the extents out to use the reference's shape"
        )
    taken = [name for name in declared if name in RESERVED]
    if taken:
        raise ValueError(f"{what}: {taken[0]!r} is a reserved name: choose another one")


def expect_options(family: Any, any_option: bool) -> None:
    """Raise ValueError for options and modes that the reference does not have, or that have no value.

    any_option: whether the reference accepts options of any name.
    """
    what, known = f"family {family.name}", family.option_defaults
    for name, values in family.options.items():
        if isinstance(values, str) or not isinstance(values, Iterable) or not tuple(values):
            raise ValueError(f"{what}: options={{{name!r}: {values!r}}} needs a sequence of values")
    if not family.modes:
        raise ValueError(f'{what}: modes= is empty: declare the default mode, {{"": {{}}}}, and others')
    asked = {
        **dict.fromkeys(family.options, "options="),
        **{n: "modes=" for mode in family.modes.values() for n in mode},
    }
    for name, part in asked.items():
        if name not in known and not any_option:
            have = ", ".join(known) or "none"
            raise ValueError(
                f"{what}: {part} has {name!r}, which its reference does not have ({have}){names.hint(name, known)}: "
                f"options are keyword-only, as in lambda x, *, {name}=1.0: ..."
            )


def expect_values(family: Any) -> None:
    """Raise ValueError for an initial value that is not a number, and for dtypes that do not exist."""
    what = f"family {family.name}"
    if family.initial is not None and not isinstance(family.initial, numbers.Number):
        raise ValueError(f"{what}: initial={family.initial!r} is not a number")
    if isinstance(family.dtypes, str):
        raise ValueError(f"{what}: dtypes={family.dtypes!r} needs a tuple, such as ({family.dtypes!r},)")
    for dtype in family.dtypes:
        try:
            memory.as_dtype(dtype)
        except TypeError as error:
            raise ValueError(f"{what}: dtypes= has {dtype!r}, which is not a dtype") from error


def expect_bounds(family: Any) -> None:
    """Raise ValueError if the bound of an input's values names neither an extent nor an option."""
    known = (*family.dims, *family.option_defaults)
    for name, spec in family.specs.items():
        if isinstance(spec.high, str) and spec.high not in known:
            raise ValueError(
                f"family {family.name}: high={spec.high!r} of input {name} is neither an extent nor an option; "
                f"there are {', '.join(known) or 'none'}{names.hint(spec.high, known)}"
            )


def shapes_of(family: Any) -> dict[str, tuple[Shape, ...]]:
    """Return the shapes of a family by kind of device. Raise ValueError for shapes with a wrong number of extents."""
    what, dims = f"family {family.name}", family.dims
    try:
        shapes = shapes_by_device(family.shapes, len(dims) or 1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error
    if dims and not callable(family.inputs):
        for shape in (shape for several in shapes.values() for shape in several):
            if len(family.read_shape(shape)) != len(dims):
                raise ValueError(
                    f"{what}: shapes= has {shape_text(shape)}, needed are {len(dims)} extents ({', '.join(dims)})"
                )
    return shapes
