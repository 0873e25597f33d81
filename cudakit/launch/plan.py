"""The launch plan: converts a launch's arguments to the bytes that the driver reads, at the least cost per call.

A plan is made once per thread, kernel and tuple of argument types. It is one generated function with its own struct,
buffer and array of pointers to the parameters. Each call tests everything that may differ between calls (types, dtypes,
devices, closed arrays, ranges), packs and launches. If a test fails it returns False, and `Kernel.launch` continues
with the converters of `arguments`, which hold the rules: they convert the value after all, or raise an error.

The text is generated because a Python call costs as much as a test of each argument. `launch_source` (`plan_source`)
shows an example.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.launch import following
from cudakit.launch.buffer import ArgumentBuffer
from cudakit.launch.function import exact
from cudakit.launch.plan_source import launch_source, library_of, prepared_source
from cudakit.launch.signature import Parameter
from cudakit.launch.strides import unwrapped
from cudakit.memory.array import DeviceArray

Arguments = tuple[Any, ...]

# Codes that the driver returns if the launch's context is not current: NOT_INITIALIZED (a forked child),
# INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED.
_NOT_CURRENT = frozenset((3, 201, 400, 709))


class Target(NamedTuple):
    """The part of a kernel that its launch plans need.

    sends: for each checked (grid, block, shared), cuLaunchKernel with all but its last three arguments bound. retired:
    not empty after the module was closed.
    """

    name: str
    context: Context
    parameters: tuple[Parameter, ...]
    sends: dict[Any, Callable[..., Any]]
    retired: list[bool]


class LaunchPlan(NamedTuple):
    """One thread's plan for one tuple of argument types.

    launch(stream, grid, block, shared, args): queues a launch and returns True; returns False and queues nothing if a
    test fails. convert(args): writes any arguments to the buffer, by the rules. pointers: the address for
    cuLaunchKernel's kernelParams. The functions own that memory.
    """

    launch: Callable[[Any, Any, Any, Any, Any], bool]
    convert: Callable[[Arguments], None]
    pointers: int


def _no_launch(stream: Any, grid: Any, block: Any, shared: Any, args: Any) -> bool:
    return False


class ThreadPlans(threading.local):
    """One thread's plans of one kernel. last_launch: the `launch` of the plan used last on this thread."""

    def __init__(self) -> None:
        self.by_types: dict[tuple[type, ...], LaunchPlan] = {}
        self.last_launch: Callable[[Any, Any, Any, Any, Any], bool] = _no_launch


@nvtx.range("plan launch")
def make_plan(target: Target, arguments: Arguments) -> LaunchPlan:
    """Return a plan of this thread for arguments of these types; it has already written `arguments` to its buffer.

    Raises LaunchError if their count or one of them is wrong.
    """
    kept = ArgumentBuffer(target.name, target.context, target.parameters, len(arguments))

    def convert(values: Arguments) -> None:
        names["last"] = nothing  # the buffer no longer holds the arguments of the last launch()
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
    """Return the names that generated code uses to send a launch. pointers: the kernelParams of `routine`."""
    context = target.context
    launching = nvtx.range(f"launch {target.name}")

    def attended(send: Callable[..., Any], arguments: Sequence[Any] | None = None) -> Callable[..., Any]:
        """Make the context current; return `send`, recorded if there is a recording, in an NVTX range if there is a
        listener. arguments: the launch's, if known."""
        context.make_current()  # before the range starts: a launch in the wrong context would be sent twice within it
        send = following.followed(context, send, arguments)
        if not nvtx.listeners:
            return send

        def in_range(*arguments: Any) -> Any:
            with launching:
                return send(*arguments)

        return in_range

    def send_again(send: Callable[..., Any], stream: Any, code: Any) -> None:
        """Retry a launch that the driver rejected with `code` in the right context, or raise the error."""
        if int(code) in _NOT_CURRENT:
            context.make_current()
            code = send(stream, pointers, 0)[0]
        if code:
            raise context.failed(routine, code)

    return {
        # Empty if there is one device and no NVTX listener.
        "attention": nvtx.listeners if context.alone else (True,),
        "attended": attended,
        "send_again": send_again,
        "retired": target.retired,
        "pointers": pointers,
    }


def _define(text: str, names: dict[str, Any]) -> Callable[..., Any]:
    # The name counts as a file of this package, so that searches for the caller's line skip it.
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
    """Return the launch of the arguments that `plan` holds, as a function of the stream. Several threads may call it.

    send: cuLaunchKernel with all but its last three arguments. accept: returns a stream other than the last one as a
    Stream; raises if the stream, the module or an array was closed.
    """
    arrays = map(unwrapped, arguments)
    allocations = tuple({value.allocation for value in arrays if isinstance(value, DeviceArray)})
    names = {
        **sending(target, plan.pointers),
        **{f"alloc{index}": allocation for index, allocation in enumerate(allocations)},
        "last_stream": target,  # no stream yet
        "accept": accept,
        "args": arguments,
        "prepared_send": send,
        "kept": (plan, arguments),  # keeps alive the memory that the packed bytes point to
    }
    return _define(prepared_source(len(allocations)), names)
