"""The text of a launch plan: Python code that tests a launch's arguments, packs them and launches.

`plan` compiles it together with the names that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.launch.arguments import Converter
from cudakit.launch.strides import StridedArgument, unwrapped
from cudakit.launch.values import is_integer
from cudakit.memory import libraries
from cudakit.memory.array import DeviceArray
from cudakit.memory.libraries import Library
from cudakit.memory.tensor_map import TensorMap

# With one device, the current context is not checked: if it is not current, the driver rejects the launch, and
# `send_again` repeats it in the right one. A closed device has retired its modules. The test for several devices also
# covers NVTX listeners, so that a launch without listeners costs no more.
_SEND = """\
    if attention: send = attended(send, args)
    result = send(stream.handle, pointers, 0)
    if result[0]: send_again(send, stream.handle, result[0])
"""

_LAUNCH = (
    """\
def launch(stream, grid, block, shared, args):
    global last
    if retired or type(args) is not tuple:
        return False
    try:
        {arguments} = args
        {lasts}last_stream, last_grid, last_block, last_shared, send = last
{foreign}\
        if not (
            {same}
        ):
            if grid is not last_grid or block is not last_block or shared is not last_shared:
                if not exact(grid, block, shared):
                    return False
                send = sends[grid, block, shared]
{allocations}\
            if not (
                {tests}
            ):
                return False
{uses}\
            last = nothing
            pack_into({packed})
            last = {kept}stream.tag, grid, block, shared, send
    except Unfit:
        return False
"""
    + _SEND
    + """\
    return True
"""
)

_PREPARED = (
    """\
def launch(stream):
    global last_stream
    if not ({usable}):
        last_stream = stream = accept(stream)
    send = prepared_send
"""
    + _SEND
)


def launch_source(converters: Sequence[Converter], arguments: tuple[Any, ...]) -> str:
    """Return the text of a plan's `launch`, for arguments of these types.

    Ints and tuples written in a program are the same objects at each call, so the last configuration is recognised by
    identity; others are looked up in `sends`. The last arguments are recognised likewise: if each is the same object
    that passed all tests (an array or stream by its tag, a number or `bytes` itself), its bytes are still in place, and
    only what can have changed since is tested.
    A use on a stream other than the array's own is recorded, so that the array's free waits for it.

    An array of a known library is not recognised by identity: it may have other memory at the next call, and keeping it
    would keep its memory alive. Its tests come first, and its address is compared with the last one. With several GPUs,
    for a torch tensor:

        if not (
            type(arg0) is type0 and (arg0.get_device() if arg0.is_cuda else -1) == ordinal
            and arg0.dtype is dtype0
            and arg0.is_contiguous()
            and not arg0.is_neg()
        ):
            return False
        address0 = arg0.data_ptr()

    A declared array (`cudakit.strided`) is the `array` of its argument, and need not be contiguous.

    For `scale(const float* x, float* y, float factor, int n)`, launched with two arrays, a float and an int, it is:

        def launch(stream, grid, block, shared, args):
            global last
            if retired or type(args) is not tuple:
                return False
            try:
                arg0, arg1, arg2, arg3 = args
                last0, last1, last2, last3, last_stream, last_grid, last_block, last_shared, send = last
                if not (
                    stream.tag is last_stream
                    and arg0.tag is last0 and arg0.allocation.open
                    and arg1.tag is last1 and arg1.allocation.open
                    and arg2 is last2
                    and arg3 is last3
                    and grid is last_grid and block is last_block and shared is last_shared
                ):
                    if grid is not last_grid or block is not last_block or shared is not last_shared:
                        if not exact(grid, block, shared):
                            return False
                        send = sends[grid, block, shared]
                    alloc0 = arg0.allocation
                    alloc1 = arg1.allocation
                    if not (
                        type(stream) is Stream and stream.context is context and not stream.closed
                        and type(arg0) is DeviceArray and alloc0.context is context and alloc0.open
                        and arg0.is_contiguous
                        and arg0.dtype is dtype0
                        and type(arg1) is DeviceArray and alloc1.context is context and alloc1.open
                        and arg1.is_contiguous
                        and arg1.dtype is dtype1
                        and not arg1.readonly
                        and type(arg2) is type2
                        and type(arg3) is type3
                    ):
                        return False
                    if alloc0.uses.home is not stream: alloc0.uses.add(stream)
                    if alloc1.uses.home is not stream: alloc1.uses.add(stream)
                    last = nothing
                    pack_into(buffer, 0, arg0.pointer, arg1.pointer, arg2, arg3)
                    last = arg0.tag, arg1.tag, arg2, arg3, stream.tag, grid, block, shared, send
            except Unfit:
                return False
            if attention: send = attended(send, args)
            result = send(stream.handle, pointers, 0)
            if result[0]: send_again(send, stream.handle, result[0])
            return True
    """
    foreign: list[str] = []
    same = ["stream.tag is last_stream"]
    allocations: list[str] = []
    tests = ["type(stream) is Stream and stream.context is context and not stream.closed"]
    uses: list[str] = []
    packed = ["buffer", "0"]
    kept: list[str] = []
    for converter, argument in zip(converters, arguments, strict=True):
        i = converter.parameter.index
        target = converter.parameter.type.target
        given, a, declared = unwrapped(argument), f"arg{i}", type(argument) is StridedArgument
        pointer = converter.parameter.kind in ("pointer", "bits")
        library = library_of(converter, given)
        if library is not None:
            dtype = library.dtype_name(library.read(library.dtype)(given))
            foreign += _foreign_lines(library, converter, dtype, declared)
            same.append(f"address{i} == last{i}")
            if converter.alignment > 1:
                tests.append(f"not address{i} & {converter.alignment - 1}")
            packed.append(f"address{i}")
            kept.append(f"address{i}")
        elif pointer and type(given) is DeviceArray:
            if declared:
                same.append(f"type(arg{i}) is type{i}")
                tests.append(f"type(arg{i}) is type{i}")
                a = f"arg{i}.array"
            same.append(f"{a}.tag is last{i} and {a}.allocation.open")
            allocations.append(f"alloc{i} = {a}.allocation")
            tests.append(f"type({a}) is DeviceArray and alloc{i}.context is context and alloc{i}.open")
            if not declared:
                tests.append(f"{a}.is_contiguous")
            if converter.dtypes is not None:
                tests.append(f"{a}.dtype is dtype{i}")
            if target is not None and not target.const:
                tests.append(f"not {a}.readonly")
            if converter.alignment > 1:
                tests.append(f"not {a}.pointer & {converter.alignment - 1}")
            uses.append(f"if alloc{i}.uses.home is not stream: alloc{i}.uses.add(stream)")
            packed.append(f"{a}.pointer")
            kept.append(f"{a}.tag")
        elif type(argument) is TensorMap:
            same.append(f"type(arg{i}) is type{i} and arg{i}.tag is last{i} and arg{i}.array.allocation.open")
            tests.append(f"type(arg{i}) is type{i}")
            allocations.append(f"alloc{i} = arg{i}.array.allocation")
            tests.append(f"alloc{i}.context is context and alloc{i}.open")
            uses.append(f"if alloc{i}.uses.home is not stream: alloc{i}.uses.add(stream)")
            packed.append(f"arg{i}.data")
            kept.append(f"arg{i}.tag")
        elif argument is None and pointer:
            same.append(f"arg{i} is None")
            tests.append(f"arg{i} is None")
            packed.append("0")
            kept.append("None")
        else:
            tests.append(f"type(arg{i}) is type{i}")
            packed.append(f"arg{i}" if _packs_itself(converter, argument) else f"convert{i}(arg{i})")
            if isinstance(argument, (int, float, bytes, np.number, np.bool_)):
                same.append(f"arg{i} is last{i}")
                kept.append(f"arg{i}")
            else:
                same.append("False")  # objects that can change, or must not be kept alive, are tested at each call
                kept.append("None")
    same.append("grid is last_grid and block is last_block and shared is last_shared")
    return _LAUNCH.format(
        arguments=", ".join(f"arg{i}" for i in range(len(kept))) + "," * (len(kept) == 1) or "()",
        lasts="".join(f"last{i}, " for i in range(len(kept))),
        foreign="".join(f"        {line}\n" for line in foreign),
        same="\n            and ".join(same),
        allocations="".join(f"            {line}\n" for line in allocations),
        tests="\n                and ".join(tests),
        uses="".join(f"            {line}\n" for line in uses),
        packed=", ".join(packed),
        kept="".join(f"{value}, " for value in kept),
    )


def prepared_source(allocations: int) -> str:
    """Return the text of a prepared launch's `launch`, which tests that `alloc0`, `alloc1` and so on are open."""
    usable = ["stream is last_stream and not stream.closed and not retired"]
    usable += [f"alloc{index}.open" for index in range(allocations)]
    return _PREPARED.format(usable=" and ".join(usable))


def library_of(converter: Converter, argument: Any) -> Library | None:
    """Return the library by which a plan reads `argument`, or None."""
    if converter.parameter.kind not in ("pointer", "bits") or type(argument) is DeviceArray:
        return None
    library = libraries.of(type(argument))
    return library if library is not None and library.kind == converter.context.kind else None


def _foreign_lines(library: Library, converter: Converter, dtype: str, declared: bool) -> list[str]:
    """Return the tests of one array of a library, and the line that reads its address.

    dtype: the name of the dtype of the plan's own argument. declared: whether the array may have any strides.
    """
    i = converter.parameter.index
    array = f"arg{i}"
    # with one GPU, "is on a GPU" is enough
    one = library.kind == "gpu" and library.placed and converter.context.alone
    place = library.placed if one else f"{library.device} == ordinal"
    tests = [f"type({array}) is type{i} and {place.format(array)}"]
    if declared:
        array = f"arg{i}.array"
        tests = [f"type(arg{i}) is type{i}", f"type({array}) is inner{i} and {place.format(array)}"]
    if converter.dtypes is not None:
        tests.append(f"{library.dtype.format(array)} is dtype{i}")
    if not declared:
        tests.append(library.contiguous.format(array))
    if library.negated:
        tests.append(f"not {library.negated.format(array)}")
    if library.conjugated and (converter.dtypes is None or dtype.startswith("complex")):
        tests.append(f"not {library.conjugated.format(array)}")
    return [
        "if not (", f"    {tests[0]}", *(f"    and {test}" for test in tests[1:]), "):", "    return False",
        f"address{i} = {library.pointer.format(array)}",
    ]  # fmt: skip


def _packs_itself(converter: Converter, argument: Any) -> bool:
    """Return whether struct packs values of this type as the converter would, or fails if the converter must decide."""
    kind = converter.parameter.type
    if kind.kind in ("int", "enum"):
        return len(converter.code) == 1 and is_integer(argument)
    if kind.kind == "float":
        # a long double beyond double's range would be packed as infinity
        wide = isinstance(argument, np.longdouble)
        return kind.dtype != "bfloat16" and isinstance(argument, (int, float, np.floating)) and not wide
    return kind.kind == "bool" and isinstance(argument, (bool, np.bool_))
