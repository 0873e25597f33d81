"""A family's reference: its parameters and its results. Errors name the family and the reference's line."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.errors import Refused
from cudakit.family.declaration import several
from cudakit.tracebacks import line_in


def parameters(reference: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any], bool]:
    """Return the names of a reference's arrays, the defaults of its options, and whether it accepts options of any
    name.

    Parameters without a default are arrays, keyword-only parameters with a default are options. Other parameters with a
    default, such as numpy's `axis`, keep it. Raises TypeError for a keyword-only parameter without a default, and if
    `reference` is not a function.
    """
    if isinstance(reference, np.ufunc):
        return (("x",) if reference.nin == 1 else tuple("abcdef"[: reference.nin])), {}, False
    if not callable(reference):
        raise TypeError(f"its reference is {reference!r}: pass a function of numpy arrays that returns the output")
    arrays: list[str] = []
    options: dict[str, Any] = {}
    bound = _bound(reference)
    signature = _signature(reference)
    for parameter in signature:
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise TypeError(
                    f"its reference's {parameter.name} is keyword-only and has no default: write "
                    f"{parameter.name}=VALUE for an option, or put it before the * for an array"
                )
            if parameter.name not in bound:
                options[parameter.name] = parameter.default
        elif parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"its reference takes *{parameter.name}: name each array")
        elif parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty:
            arrays.append(parameter.name)
    return tuple(arrays), options, any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature)


def most_arrays(reference: Callable[..., Any]) -> int:
    """Return the largest number of arrays that a reference takes by position."""
    if isinstance(reference, np.ufunc):
        return reference.nin
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in _signature(reference))


def _signature(reference: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(reference).parameters.values())
    except ValueError as error:
        raise TypeError(f"its reference {reference!r} has no signature: write lambda x: ... around it") from error


def _bound(reference: Callable[..., Any]) -> frozenset[str]:
    """Return the names that functools.partial made keyword-only. They are parameters of the inner function, not
    options."""
    if not isinstance(reference, functools.partial) or isinstance(reference.func, np.ufunc):
        return frozenset()
    inner = _signature(reference.func)
    return frozenset(parameter.name for parameter in inner if parameter.kind is not parameter.KEYWORD_ONLY)


def results(
    family: str, reference: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[np.ndarray[Any, Any], ...] | np.ndarray[Any, Any]:
    """Run the reference on host arrays, which are read-only, and return its result: an array, or a tuple of several.

    Raises Refused if it fails, and for results that are not numbers.
    """
    try:
        with _quiet():
            made = reference(*map(_locked, inputs), **options)
    except MemoryError:
        raise  # not an error of the reference
    except Exception as error:
        raise Refused(_failure(family, reference, inputs, options, error)) from error
    checked = tuple(_numbers(family, one) for one in several(made))
    return checked if isinstance(made, tuple) else checked[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress numpy's warnings about empty arrays, infinities and NaN, which test problems contain."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _locked(array: Any) -> Any:
    """Return a read-only view: a reference that works in place would change the inputs of kernels."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _failure(
    family: str, reference: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any], error: Exception
) -> str:
    arrays = ", ".join(f"{array.dtype}{list(array.shape)}" for array in inputs)
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    said = f"the reference of family {family} fails on {arrays}{given}: {type(error).__name__}: {error}"
    code = getattr(inspect.unwrap(reference), "__code__", None)
    said += line_in(error, "" if code is None else code.co_filename)
    return f"{said}. Work on a copy: x = x.copy()" if "read-only" in str(error) else said


def _numbers(family: str, result: Any) -> np.ndarray[Any, Any]:
    what = f"the reference of family {family} returns"
    if result is None:
        raise Refused(f"{what} None: return the output, or a tuple of several")
    try:
        made = np.asarray(result)
    except ValueError as error:
        raise Refused(f"{what} a {type(result).__name__} that is not an array: {error}") from error
    if made.dtype.kind not in "biuc" and not is_float(made.dtype):
        raise Refused(f"{what} a {type(result).__name__} of {made.dtype}: return an array of numbers")
    return made


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a float, including those of ml_dtypes, such as bfloat16."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8_", "float6_", "float4_"))
