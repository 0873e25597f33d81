"""The front door of every op: from arrays of any library to launches on a stream.

`apply` first tries the guards (`guards`) of the family's last call and of its last call with the same first shape. If
the call is of another kind, it makes its signature: family, variant, options, and of each array the dtype, shape,
strides, device and address modulo 16. If the thread has a ResolvedCall for it, addresses and numbers are put in place
and the kernels are launched. If not, `_first` checks the call by every rule and resolves it. All three launch by the
same ResolvedCall.

Work on arrays of torch and CuPy is queued on the stream that their library considers current, on which its allocator
keeps the order of use. If the caller names another stream, that one first waits for the current stream, and the arrays'
memory is not reused before the work is done.
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

MOST_CALLS = 1024  # resolved calls that a thread keeps for a device

_NONE: Mapping[str, Any] = {}
# Values of these types are equal only if they mean the same. 0.0 equals -0.0, so floats are known by their bytes.
# Anything else could change while it is the same object, as an array without axes does.
_PLAIN = (bool, int, str, type(None), type)
_BY_BYTES = (float, complex, np.number, np.bool_)
_names: dict[Any, str] = {}


def apply(
    family: Ladder[Any], inputs: Sequence[Any], out: Any, variant: str, stream: Any, options: Mapping[str, Any] = _NONE
) -> Any:
    """Runs `family`, or the one that it names for the dtype, on `inputs` into `out`, or into a new array of the inputs'
    library, and returns that."""
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
    except Exception:  # _first raises what is wrong; a value that may change is resolved at each call
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
    for name, number in call.numbers.items():  # after the stream and the new output, which _first refuses before them
        if options[name] is not number.value:
            number.become(options[name])
    call(on, pointers)
    reader.used(arrays, on, stream)
    return out


def _known_by(family: Ladder[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of the options the choice of kernels depends on. Raises TypeError for a value that may change."""
    known: list[Any] = []
    for name, value in options.items():
        scalar = family.scalars.get(name)
        if scalar is None:
            kind = type(value)
            if isinstance(value, _BY_BYTES):
                known += (name, kind, np.asarray(value).tobytes())
            elif kind is np.void:
                known += (name, value.dtype, value.tobytes())
            elif kind in _PLAIN or isinstance(value, np.dtype):
                known += (name, kind, value)
            else:
                raise TypeError(f"{name} may change")
        else:
            known += (name, None if scalar.kind is None else scalar.kind(value))
    return tuple(known)


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
    """A call that no resolved call takes: every rule is checked, and what it found out is kept under `signature`."""
    expect_one_library(inputs if out is None else (*inputs, *several(out)))
    device = reader.place(inputs[0])
    on = reader.stream(device, stream)
    with device.context.relaxed():  # compiling, loading and allocating, which a capture may not be part of
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
    """The output (a tuple of several), new and with its initial values unless it is given, and a view of each array.

    Raises ValueError for a given output that is not of the family's shape and dtype.
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
            raise ValueError(
                f"{family.name} writes {dtype}{list(shape)}, the output that was given is "
                f"{view.dtype}{list(view.shape)}"
            )


def _expect_no_capture(family: Ladder[Any], variant: Variant[Any], on: Any) -> None:
    """Raise GraphError if a variant that waits for the device is to be captured."""
    if variant.waits and on.capturing:
        raise GraphError(
            f"{family.name}/{variant.name} reads results back to the host between its launches, which a graph cannot "
            "hold: choose another variant, or call it outside of the capture"
        )


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, in any library; "" if it has none."""
    try:
        return _names[array.dtype]
    except (AttributeError, KeyError, TypeError):  # no array, or the first one of its dtype
        dtype = getattr(array, "dtype", "")
        name = str(dtype).rpartition(".")[2]
        with contextlib.suppress(TypeError):
            _names[dtype] = name
        return name
