"""The launch plan: how a launch's arguments become the bytes the driver takes, at the least cost a call.

A plan is made once for each thread, kernel and tuple of argument types. It is one generated function over one kept
struct, one buffer and one array of pointers to the parameters in it. Each call tests what may differ from call to call
(types, dtype, device, open, range), packs and launches. Whatever fails a test is left to `unfit`, and ends with the
converters of `arguments`, which hold the rules: they say what is wrong, or convert the value after all.

The text is generated because a call of Python costs as much as a test of each argument; see `launch_source`. Its
parameters are not keyword-only: Python looks the defaults of such up one by one at each call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import LaunchError
from cudakit.launch.arguments import Converter
from cudakit.launch.signature import Parameter
from cudakit.memory.array import DeviceArray

Arguments = tuple[Any, ...]

# What the driver says where the launch's context is not current: NOT_INITIALIZED (a forked child), INVALID_CONTEXT,
# INVALID_HANDLE, CONTEXT_IS_DESTROYED.
_ELSEWHERE = frozenset((3, 201, 400, 709))


class Config(NamedTuple):
    """A checked launch configuration, in the order cuLaunchKernel takes it."""

    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    block_y: int
    block_z: int
    shared: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along x, y and z."""
        return self[0], self[1], self[2]

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads along x, y and z."""
        return self[3], self[4], self[5]


def exact(*sizes: Any) -> bool:
    """Whether each is an int, or a tuple of ints, and nothing that only equals one: 1.0 and True are found under 1."""
    return all(type(size) is int or (type(size) is tuple and all(type(part) is int for part in size)) for size in sizes)


class Target(NamedTuple):
    """What a kernel's plans launch, and with what."""

    name: str  # for errors
    handle: Any  # the CUfunction
    context: Context
    parameters: tuple[Parameter, ...]
    sends: dict[
        Any, Callable[..., Any]
    ]  # by (grid, block, shared): cuLaunchKernel with all but its last three arguments
    retired: list[bool]  # holds something once the module was closed
    unfit: Callable[..., None]  # Kernel.launch's work for what a plan does not take, its arguments in a row


class Plan(NamedTuple):
    """launch: Kernel.launch for the types the plan was made for. convert(arguments): put any in place, by the rules.

    pointers: the address, for cuLaunchKernel's kernelParams, that leads to them. The functions own that memory.
    """

    launch: Callable[..., None]
    convert: Callable[[Arguments], None]
    pointers: int


class Plans(threading.local):
    """One thread's plans of one kernel, by argument types."""

    def __init__(self) -> None:
        self.plans: dict[tuple[type, ...], Plan] = {}


def struct_format(parameters: Sequence[Parameter], codes: Sequence[str]) -> str:
    """The struct that lays values out as the driver's parameter layout does."""
    parts = ["<"]
    position = 0
    for parameter, code in zip(parameters, codes, strict=True):
        if parameter.offset > position:
            parts.append(f"{parameter.offset - position}x")
        parts.append(code)
        position = parameter.offset + parameter.size
    return "".join(parts)


@nvtx.range("plan launch")
def make_plan(target: Target, arguments: Arguments) -> Plan:
    """A plan of this thread for `arguments`, which it has put in place, and for others of their types.

    Raises LaunchError where their count or one of them is wrong.
    """
    kernel, context, parameters = target.name, target.context, target.parameters
    if len(arguments) != len(parameters):
        listed = ", ".join(parameter.text for parameter in parameters)
        raise LaunchError(f"{kernel}: takes {len(parameters)} arguments ({listed}), and {len(arguments)} were given")
    converters = [Converter(kernel, parameter, context) for parameter in parameters]
    layout = struct.Struct(struct_format(parameters, [converter.code for converter in converters]))
    buffer = ctypes.create_string_buffer(max(layout.size, 1))
    base = ctypes.addressof(buffer)
    pointers = (ctypes.c_void_p * max(len(parameters), 1))(*(base + parameter.offset for parameter in parameters))

    def convert(values: Arguments) -> None:
        names["last"] = nothing  # what is in place is no longer what launch() put there
        layout.pack_into(buffer, 0, *(converter(value) for converter, value in zip(converters, values, strict=True)))

    nothing = (None,) * (len(parameters) + 5)
    names: dict[str, Any] = {
        **_common(target),
        "Stream": Stream,
        "DeviceArray": DeviceArray,
        "get_ident": threading.get_ident,
        "owner": threading.get_ident(),
        "nothing": nothing,
        "exact": exact,
        "unfit": target.unfit,
        "sends": target.sends,
        "pack_into": layout.pack_into,
        "buffer": buffer,
        "Unfit": (struct.error, OverflowError, TypeError, ValueError, AttributeError, KeyError),
        "pointers": ctypes.addressof(pointers),
        "kept": pointers,
    }
    for converter, argument in zip(converters, arguments, strict=True):
        index = converter.parameter.index
        names[f"c{index}"] = converter
        names[f"t{index}"] = type(argument)
        if isinstance(argument, DeviceArray):
            names[f"d{index}"] = argument.dtype
    convert(arguments)
    return Plan(_define(launch_source(converters, arguments), names), convert, ctypes.addressof(pointers))


def _common(target: Target) -> dict[str, Any]:
    """What the generated functions all use."""
    context = target.context
    launching = nvtx.range(f"launch {target.name}")

    def attended(send: Callable[..., Any]) -> Callable[..., Any]:
        """`send` with what has to be done first, or around it."""
        context.make_current()  # where somebody listens too: a launch that is refused and sent again is one launch
        if not nvtx.listeners:
            return send

        def told(*arguments: Any) -> Any:
            with launching:
                return send(*arguments)

        return told

    return {
        "context": context,
        "make_current": context.make_current,
        "failed": context.failed,
        "elsewhere": _ELSEWHERE,
        # Empty where there is nothing to do but to send: one device, and nobody who listens.
        "attention": nvtx.listeners if context.alone else (True,),
        "attended": attended,
        "retired": target.retired,
    }


def _define(text: str, names: dict[str, Any]) -> Callable[..., None]:
    # a file of this package by its name, so that what looks for the caller's line passes over it
    exec(compile(text, f"{__file__}:launch", "exec"), names)
    launch: Callable[..., None] = names["launch"]
    return launch


def launch_source(converters: Sequence[Converter], arguments: Arguments) -> str:
    """The text of a plan's `launch` (_TEXT, with what these arguments want filled in).

    Ints and tuples written in a program are the same objects at each call, so the last configuration is known again by
    identity; others are looked up. So are the last arguments: where each is the very object (an array or stream by its
    tag) that passed all tests, its bytes are in place still, and only what can have changed since is tested.
    A use on a stream that is not an array's own is noted, so that the array's free waits for it.
    """
    tests = ["type(stream) is Stream and stream.context is context and not stream.closed"]
    loads: list[str] = []
    notes: list[str] = []
    values: list[str] = []
    same = ["stream.tag is s"]
    keeps = []
    for converter, argument in zip(converters, arguments, strict=True):
        i = converter.parameter.index
        target = converter.parameter.type.target
        if converter.parameter.kind == "pointer" and type(argument) is DeviceArray:
            loads.append(f"m{i} = a{i}.allocation")
            tests.append(f"type(a{i}) is DeviceArray and m{i}.context is context and m{i}.open")
            if converter.dtypes is not None:
                tests.append(f"a{i}.dtype is d{i}")
            if target is not None and not target.const:
                tests.append(f"not a{i}.readonly")
            if converter.alignment > 1:
                tests.append(f"not a{i}.pointer & {converter.alignment - 1}")
            notes.append(f"if m{i}.uses.home is not stream: m{i}.uses.add(stream)")
            values.append(f"a{i}.pointer")
            same.append(f"a{i}.tag is s{i} and a{i}.allocation.open")
            keeps.append(f"a{i}.tag")
        elif argument is None and converter.parameter.kind == "pointer":
            tests.append(f"a{i} is None")
            values.append("0")
            same.append(f"a{i} is None")
            keeps.append("None")
        else:
            tests.append(f"type(a{i}) is t{i}")
            values.append(f"a{i}" if _packs_itself(converter, argument) else f"c{i}(a{i})")
            if isinstance(argument, (int, float, np.number, np.bool_)):
                same.append(f"a{i} is s{i}")
                keeps.append(f"a{i}")
            else:
                same.append("False")  # what can change, or ought not to be kept, is looked at each time
                keeps.append("None")
    unpack = f"{''.join(f'a{i}, ' for i in range(len(values)))}= args" if values else "() = args"
    return _TEXT.format(
        unpack=unpack,
        same="\n                and ".join(same),
        known="".join(f"s{i}, " for i in range(len(values))),
        keeps="".join(f"{value}, " for value in keeps),
        loads="".join(f"                {line}\n" for line in loads),
        tests="\n                    and ".join(tests),
        notes="".join(f"                    {line}\n" for line in notes),
        values=", ".join(["buffer", "0", *values]),
    )


# On one device, which context is current is not looked at: where none is, the driver refuses and launches nothing, and
# a second call in the right one tells whether that was all. A closed device has retired its modules. Who listens to
# ranges is asked by the same test that tells several devices, so that a launch which nobody watches costs no more.
_SEND = """\
{indent}if attention: send = attended(send)
{indent}result = send(stream.handle, pointers, 0)
{indent}if result[0]:
{indent}    if int(result[0]) in elsewhere:
{indent}        make_current()
{indent}        result = send(stream.handle, pointers, 0)
{indent}    if result[0]:
{indent}        raise failed("cuLaunchKernel", result[0])
"""

_TEXT = (
    """\
def launch(stream, grid, block, shared=0, args=(), cluster=None, cooperative=False, unfit=unfit):
    global last
    if get_ident() == owner and type(args) is tuple and cluster is None and not cooperative and not retired:
        fits = False
        try:
            {unpack}
            {known}s, g, b, d, send = last
            if (
                {same}
                and grid is g and block is b and shared is d
            ):
                fits = True
            else:
                if grid is not g or block is not b or shared is not d:
                    if not exact(grid, block, shared):
                        raise KeyError
                    send = sends[grid, block, shared]
                last = nothing
{loads}\
                if (
                    {tests}
                ):
{notes}\
                    pack_into({values})
                    last = {keeps}stream.tag, grid, block, shared, send
                    fits = True
        except Unfit:
            pass
        if fits:
"""
    + _SEND.replace("{indent}", " " * 12)
    + """\
            return
    unfit(stream, grid, block, shared, args, cluster, cooperative)
"""
)


def make_prepared(
    target: Target, send: Callable[..., Any], arguments: Arguments, plan: Plan, accept: Callable[[Any], Stream]
) -> Callable[[Any], None]:
    """The launch of what `plan` has in place, on a stream. accept: the stream as a Stream, where all is well.

    `send` is cuLaunchKernel with all but its last three arguments. Any number of threads may call the result.
    """
    allocations = tuple({value.allocation for value in arguments if isinstance(value, DeviceArray)})
    names = {
        **_common(target),
        **{f"m{index}": allocation for index, allocation in enumerate(allocations)},
        "known": target,  # no stream yet
        "accept": accept,
        "ready": send,
        "pointers": plan.pointers,
        "kept": (plan, arguments),  # what the packed bytes point to
    }
    opens = "".join(f" and m{index}.open" for index in range(len(allocations)))
    return _define(_PREPARED_TEXT.format(opens=opens), names)


_PREPARED_TEXT = """\
def launch(stream):
    global known
    if not (stream is known and not stream.closed and not retired{opens}):
        known = stream = accept(stream)
    send = ready
""" + _SEND.replace("{indent}", " " * 4)


def _packs_itself(converter: Converter, argument: Any) -> bool:
    """Whether struct packs values of this type as the converter would, or fails where the converter decides."""
    kind = converter.parameter.type
    if kind.kind in ("int", "enum"):
        return len(converter.code) == 1 and isinstance(argument, (int, np.integer))
    if kind.kind == "float":
        return kind.dtype != "bfloat16" and isinstance(argument, (int, float, np.floating))
    return kind.kind == "bool" and isinstance(argument, (bool, np.bool_))
