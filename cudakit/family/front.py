"""Calls of every op: from arrays of any library to launches on a stream.

`apply` first tries the guards (`guards`) of the family's last call and of its last call with the same first shape. If
neither accepts the call, it makes the call's signature: family, variant, options, and for each array dtype, shape,
strides, device and address modulo 16. If the thread has a ResolvedCall for the signature, its addresses and numbers are
updated and its kernels launched. Otherwise `_first` checks the call by every rule and resolves it. All three paths
launch the same ResolvedCall.

Work on arrays of torch and CuPy is queued on the library's current stream, on which its allocator keeps the order of
use. If the caller names another stream, that stream first waits for the current one, and the arrays' memory is not
reused until the work has finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.errors import GraphError
from cudakit.family.choice import tuned_variant
from cudakit.family.declaration import Variant, one_or_all, several
from cudakit.family.guards import make_guard, renew
from cudakit.family.ladder import Ladder
from cudakit.family.readers import Reader, expect_one_library, reader_of
from cudakit.family.recent import Recent
from cudakit.family.resolved import ResolvedCall, thread_calls

MOST_CALLS = 1024  # the most resolved calls per thread and device

_NONE: Mapping[str, Any] = {}
# Equal values of these types are interchangeable. Floats are compared by their bytes, because 0.0 equals -0.0. Objects
# of other types could be mutable, such as arrays without axes.
_PLAIN = (bool, int, str, type(None), type)
_BY_BYTES = (float, complex, np.number, np.bool_)
_names: dict[Any, str] = {}


def apply(
    family: Ladder[Any], inputs: Sequence[Any], out: Any, variant: str, stream: Any, options: Mapping[str, Any] = _NONE
) -> Any:
    """Run a family on arrays and return its output.

    Args:
        family: The family; its `instead` may select another one for the inputs' dtype.
        inputs: The inputs, all of one library.
        out: The output, or None for a new array of the inputs' library.
        variant: The name of a variant, or "auto".
        stream: A stream, or None for the default or current one.
        options: The family's options, by name.

    Returns:
        The output.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    recent = family.recent
    guard = recent.last()
    if guard is not None:
        made = guard(inputs, out, variant, stream, options)
        if made is not None:
            return made
    guard = recent.of_shape(inputs[0])
    if guard is not None:
        made = guard(inputs, out, variant, stream, options)
        if made is not None:
            return made
    family = family.instead(dtype_name(inputs[0])) or family
    arrays = inputs if out is None else (*inputs, *several(out))
    reader = reader_of(arrays)
    seen = reader.read(*arrays)
    if seen is None:
        return _first(family, inputs, out, variant, stream, options, reader, recent, None)
    pointers, where, layouts = seen
    try:
        ladder = id(family), family.epoch
        signature = (ladder, variant, out is None, layouts, _known_by(family, options) if options else None)
        call = thread_calls(device := reader.device(where)).get(signature)
    except Exception:  # _first raises the error; a mutable option is resolved at each call
        return _first(family, inputs, out, variant, stream, options, reader, recent, None)
    if call is None or not call.takes(pointers, out is None):
        return _first(family, inputs, out, variant, stream, options, reader, recent, signature)
    if call.guard is not None:
        renew(call, device, arrays)
        recent.keep(inputs[0].shape, call.guard)
    on = reader.stream(device, stream)
    if out is None:
        out, address = reader.empty(device, on, call.shape, call.dtype)
        if family.initial is not None:
            reader.view(device, on, out).fill(family.initial, on)
        pointers = (*pointers, address)
        arrays = (*inputs, out)
    for (
        name,
        number,
    ) in call.numbers.items():  # last, so that errors are raised in the same order as in _first
        if options[name] is not number.value:
            number.become(options[name])
    call(on, pointers)
    reader.used(arrays, on, stream)
    return out


def _known_by(family: Ladder[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the part of the options that the choice of kernels depends on. Raise TypeError for a mutable value."""
    known: list[Any] = []
    for name, value in options.items():
        scalar = family.scalars.get(name)
        if scalar is None:
            kind = type(value)
            if isinstance(value, _BY_BYTES):
                known += (name, kind, np.asarray(value).tobytes())
            elif kind is np.void:
                known += (name, value.dtype, value.tobytes())
            elif kind in _PLAIN or isinstance(value, np.dtype) or _is_of_ints(value):
                known += (name, kind, value)
            else:
                raise TypeError(f"{name} may change")
        else:
            known += (name, None if scalar.kind is None else scalar.kind(value))
    return tuple(known)


def _is_of_ints(value: Any) -> bool:
    return type(value) is tuple and all(type(each) is int for each in value)


def _first(
    family: Ladder[Any],
    inputs: Sequence[Any],
    out: Any,
    variant: str,
    stream: Any,
    options: Mapping[str, Any],
    reader: Reader,
    recent: Recent,
    signature: Any,
) -> Any:
    """Make a call that no resolved call accepts: check every rule, and cache the resolved call under `signature`."""
    expect_one_library(inputs if out is None else (*inputs, *several(out)))
    device = reader.place(inputs[0])
    on = reader.stream(device, stream)
    with device.context.relaxed():  # compiles, loads and allocates, which is not allowed within a capture
        sources = [reader.view(device, on, x) for x in inputs]
        fresh = out is None
        out, targets = _outputs(family, sources, out, options, reader, device, on)
        target: Any = one_or_all(targets)
        problem = family.problem_of(sources, target, **options)
        picked = tuned_variant(family, device, sources, target, options, problem) if variant == "auto" else None
        picked = picked or family.pick(variant, problem, device.arch)
        arrays = (*inputs, *several(out))
        if picked.run is not None or len(targets) > 1:
            _expect_no_capture(family, picked, on)
            family.launch(device, picked, sources, target, on, problem)
            reader.used(arrays, on, stream)
            return out
        call = ResolvedCall(device, family, picked, problem, (*sources, target), options)
    call(on, tuple(view.pointer for view in (*sources, target)))
    reader.used(arrays, on, stream)
    if signature is not None:
        calls = thread_calls(device)
        call.guard = make_guard(call, reader, device, (*sources, target), fresh, variant, options)
        if call.guard is not None:
            recent.keep(inputs[0].shape, call.guard)
        if len(calls) >= MOST_CALLS:
            del calls[next(iter(calls))]
        calls[signature] = call
    return out


def _outputs(
    family: Ladder[Any],
    sources: Sequence[Any],
    out: Any,
    options: Mapping[str, Any],
    reader: Reader,
    device: Any,
    on: Any,
) -> tuple[Any, tuple[Any, ...]]:
    """Return the output (a tuple of several) and a view of each of its arrays. A new output is filled with its initial
    value.

    Raises ValueError if a given output does not have the family's shape and dtype.
    """
    if out is None:
        likes = family.outputs_like(sources, **options)
        made = tuple(reader.empty(device, on, shape, dtype)[0] for shape, dtype in likes)
        views = tuple(reader.view(device, on, array) for array in made)
        if family.initial is not None:
            for view in views:
                view.fill(family.initial, on)
        return one_or_all(made), views
    views = tuple(reader.view(device, on, array) for array in several(out))
    if family.problem is None or len(views) != 1:
        _expect_outputs(family, family.outputs_like(sources, **options), views)
    return out, views


def _expect_outputs(family: Ladder[Any], likes: Sequence[Any], views: Sequence[Any]) -> None:
    if len(likes) != len(views):
        raise ValueError(f"{family.name} has {len(likes)} output{'s' * (len(likes) != 1)}, got {len(views)}")
    for (shape, dtype), view in zip(likes, views, strict=True):
        if tuple(view.shape) != tuple(shape) or view.dtype != dtype:
            raise ValueError(f"{family.name} needs an output {dtype}{list(shape)}, got {view.dtype}{list(view.shape)}")


def _expect_no_capture(family: Ladder[Any], variant: Variant[Any], on: Any) -> None:
    """Raise GraphError if a variant that waits for the device is called within a capture."""
    if variant.waits and on.capturing:
        raise GraphError(
            f"{family.name}/{variant.name} reads results back to the host between its launches, which a graph cannot "
            "contain: choose another variant, or call it outside of the capture"
        )


def dtype_name(array: Any) -> str:
    """Return the name of an array's dtype, for any library; "" if it has no dtype."""
    try:
        return _names[array.dtype]
    except (AttributeError, KeyError, TypeError):  # not an array, or a dtype that is not yet cached
        dtype = getattr(array, "dtype", "")
        name = str(dtype).rpartition(".")[2]
        with contextlib.suppress(TypeError):
            _names[dtype] = name
        return name
