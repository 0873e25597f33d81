"""The launch plan: how a launch's arguments become the bytes the driver takes, at the least cost per call.

A plan is made once per thread, kernel and tuple of argument types. It is one generated function over one kept struct,
one buffer and one array of pointers to the parameters in it. Each call tests what may differ from call to call (types,
dtype, device, open, range), packs and launches. If a test fails it returns False, and `Kernel.launch` goes on with the
converters of `arguments`, which hold the rules: they say what is wrong, or convert the value after all.

The text is generated because a Python call costs as much as a test of each argument; `launch_source`
(`plan_source`) shows an example.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.launch.buffer import ArgumentBuffer
from cudakit.launch.function import exact
from cudakit.launch.plan_source import launch_source, library_of, prepared_source
from cudakit.launch.signature import Parameter
from cudakit.launch.strides import unwrapped
from cudakit.memory.array import DeviceArray

Arguments = tuple[Any, ...]

# What the driver returns if the launch's context is not current: NOT_INITIALIZED (a forked child), INVALID_CONTEXT,
# INVALID_HANDLE, CONTEXT_IS_DESTROYED.
_NOT_CURRENT = frozenset((3, 201, 400, 709))


class Target(NamedTuple):
    """The kernel that plans launch, as far as they need it.

    sends: by (grid, block, shared), cuLaunchKernel with all but its last three arguments. retired: not empty once the
    module was closed.
    """

    name: str
    context: Context
    parameters: tuple[Parameter, ...]
    sends: dict[Any, Callable[..., Any]]
    retired: list[bool]


class LaunchPlan(NamedTuple):
    """One thread's plan for one tuple of argument types.

    launch(stream, grid, block, shared, args): queues a launch and returns True; False, with nothing queued, if a test
    fails. convert(args): puts any arguments in place, by the rules. pointers: the address, for cuLaunchKernel's
    kernelParams, that leads to them. The functions own that memory.
    """

    launch: Callable[[Any, Any, Any, Any, Any], bool]
    convert: Callable[[Arguments], None]
    pointers: int


def _no_launch(stream: Any, grid: Any, block: Any, shared: Any, args: Any) -> bool:
    return False


class ThreadPlans(threading.local):
    """One thread's plans of one kernel. last_launch: the `launch` of the plan that this thread used last."""

    def __init__(self) -> None:
        self.by_types: dict[tuple[type, ...], LaunchPlan] = {}
        self.last_launch: Callable[[Any, Any, Any, Any, Any], bool] = _no_launch


@nvtx.range("plan launch")
def make_plan(target: Target, arguments: Arguments) -> LaunchPlan:
    """A plan of this thread for `arguments`, which it has put in place, and for others of their types.

    Raises LaunchError if their count or one of them is wrong.
    """
    kept = ArgumentBuffer(target.name, target.context, target.parameters, len(arguments))

    def convert(values: Arguments) -> None:
        names["last"] = nothing  # the buffer no longer holds what launch() put there
        kept.convert(values)

    nothing = (None,) * (len(target.parameters) + 5)
    names: dict[str, Any] = {
        **sending(target, kept.address),
        "Stream": Stream,
        "DeviceArray": DeviceArray,
        "context": target.context,
        "nothing": nothing,
        "exact": exact,
        "sends": target.sends,
        "pack_into": kept.pack_into,
        "buffer": kept.memory,
        "Unfit": (struct.error, OverflowError, TypeError, ValueError, AttributeError, KeyError, RuntimeError),
        "ordinal": target.context.ordinal,
        "kept": kept,
    }
    for converter, argument in zip(kept.converters, arguments, strict=True):
        index = converter.parameter.index
        names[f"convert{index}"] = converter
        names[f"type{index}"] = type(argument)
        array = unwrapped(argument)
        names[f"inner{index}"] = type(array)
        library = library_of(converter, array)
        if isinstance(array, DeviceArray):
            names[f"dtype{index}"] = array.dtype
        elif library is not None:
            names[f"dtype{index}"] = library.read(library.dtype)(array)
    convert(arguments)
    return LaunchPlan(_define(launch_source(kept.converters, arguments), names), convert, kept.address)


def sending(target: Target, pointers: int, routine: str = "cuLaunchKernel") -> dict[str, Any]:
    """The names that a text uses to send a launch. pointers: the kernelParams of `routine`."""
    context = target.context
    launching = nvtx.range(f"launch {target.name}")

    def attended(send: Callable[..., Any]) -> Callable[..., Any]:
        """`send` in an NVTX range if there is a listener, its context made current."""
        context.make_current()  # with listeners too: a launch that is refused and sent again is one launch
        if not nvtx.listeners:
            return send

        def in_range(*arguments: Any) -> Any:
            with launching:
                return send(*arguments)

        return in_range

    def send_again(send: Callable[..., Any], stream: Any, code: Any) -> None:
        """After the driver refused a launch with `code`: once more in the right context, or the error."""
        if int(code) in _NOT_CURRENT:
            context.make_current()
            code = send(stream, pointers, 0)[0]
        if code:
            raise context.failed(routine, code)

    return {
        # Empty if there is nothing to do but to send: one device, and no listener.
        "attention": nvtx.listeners if context.alone else (True,),
        "attended": attended,
        "send_again": send_again,
        "retired": target.retired,
        "pointers": pointers,
    }


def _define(text: str, names: dict[str, Any]) -> Callable[..., Any]:
    # a file of this package by its name, so that what looks for the caller's line passes over it
    exec(compile(text, f"{__file__}:launch", "exec"), names)
    launch: Callable[..., Any] = names["launch"]
    return launch


def make_prepared(
    target: Target,
    send: Callable[..., Any],
    arguments: Arguments,
    plan: LaunchPlan,
    accept: Callable[[Any], Stream],
) -> Callable[[Any], None]:
    """The launch of what `plan` has in place, as a function of the stream, which any number of threads may call.

    send: cuLaunchKernel with all but its last three arguments. accept: returns a stream that is not the last one as a
    Stream, or raises if it, the module or an array was closed.
    """
    arrays = map(unwrapped, arguments)
    allocations = tuple({value.allocation for value in arrays if isinstance(value, DeviceArray)})
    names = {
        **sending(target, plan.pointers),
        **{f"alloc{index}": allocation for index, allocation in enumerate(allocations)},
        "last_stream": target,  # no stream yet
        "accept": accept,
        "prepared_send": send,
        "kept": (plan, arguments),  # what the packed bytes point to
    }
    return _define(prepared_source(len(allocations)), names)
