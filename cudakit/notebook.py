"""`%load_ext cudakit`: the cell magic `%%cu`, which compiles a cell, and names for cells in errors and reports."""

from __future__ import annotations

import argparse
import keyword
import linecache
import re
import shlex
import sys
from collections import Counter
from types import FrameType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.launch import definitions
from cudakit.launch.counted import LaunchCounters
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module

_DESCRIPTION = """Compile the cell's CUDA C++ and bind each kernel to a variable of its name, or the module to NAME.

Lines count from the line of %%cu, which is line 1; errors and reports call the cell <cell N>, by its number."""


def load(shell: Any) -> None:
    """Add `%%cu` to an IPython shell; errors and reports then name its cells by number."""

    def cu(line: str, cell: str) -> None:
        compile_cell(shell, line, cell)

    cu.__doc__ = _parser().format_help()
    shell.register_magic_function(cu, "cell", "cu")

    def name_of(file: str) -> str:
        name = _cell(shell, file)
        if name is None:
            return file
        if file in linecache.cache:
            linecache.cache[name] = linecache.cache[file]
        return name

    drivers.name_files(name_of)
    LaunchCounters.render = _counters


def unload(shell: Any) -> None:
    """Undo `load`, and close the devices that were opened for cells."""
    shell.magics_manager.magics["cell"].pop("cu", None)
    drivers.name_files(str)
    LaunchCounters.render = None
    while _devices:
        _devices.popitem()[1].close()


def _counters(counted: LaunchCounters) -> str:
    from cudakit.show import inline

    return inline.counters(counted, counted.sources)


def _cell(shell: Any, file: str) -> str | None:
    """Return the name that errors and reports use for the cell that IPython compiled as `file`; None if not a cell."""
    known = shell.compile.format_code_name(file)
    number = re.search(r"\d+", known[1]) if known is not None else None
    return None if number is None else f"<cell {number[0]}>"


def _this_cell(shell: Any) -> str:
    """The name of the cell that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _cell(shell, frame.f_code.co_filename)
        if name is not None:
            return name
        frame = frame.f_back
    return f"<cell {shell.execution_count}>"


def compile_cell(shell: Any, line: str, cell: str) -> None:
    """Do what `%%cu` with the options in `line` does.

    Raises UsageError for unknown options and for cells without kernels, and the errors of `Device.compile`.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%cu {line}: {error}") from None
    options = _parser().parse_args(words)
    if options.name is not None and not _is_variable(options.name):
        raise UsageError(f"%%cu {options.name}: the name of the module's variable must be a name of Python")
    module = _device(shell, options.device).compile(
        source=f"//%%cu {line}".rstrip("\\ ") + f"\n{cell}",
        name=_this_cell(shell),
        names=options.names,
        defines=dict(map(_define, options.defines)),
        options=options.options,
        include=options.include,
        std=options.std,
        fmad=options.fmad,
        max_registers=options.max_registers,
        line_info=options.line_info,
    )
    if options.name is not None:
        shell.push({options.name: module})
        return
    kernels = _variables(module)
    if not kernels:
        raise UsageError(
            "the cell has no kernel that a variable can be named after: write a __global__ function, or %%cu NAME, "
            "which binds the module"
        )
    shell.push(kernels)
    left = len(module) - len(kernels)
    if left:
        print(f"{left} more kernels share a name or are instances of a template: %%cu NAME binds the module")


def _parser() -> MagicArgumentParser:
    parser = MagicArgumentParser(
        "%%cu", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="bind the module to this variable")
    parser.add_argument(
        "--device",
        help="a variable that holds a Device, or a spec such as sim:sm_80; by default the one open Device among the "
        "variables, or Device() if there is none",
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--names", metavar="EXPRESSION", help='a template to compile, such as "k<4>"', **several)
    parser.add_argument("--defines", metavar="NAME=VALUE", help="a macro", **several)
    parser.add_argument("--options", metavar="OPTION", help="an option of NVRTC: --options=-G", **several)
    parser.add_argument("--include", metavar="FOLDER", help="a folder of headers", **several)
    parser.add_argument("--std", default="c++17", help="the C++ standard")
    parser.add_argument("--fmad", action=argparse.BooleanOptionalAction, default=True, help="contract a*b+c")
    parser.add_argument("--max_registers", type=int, metavar="N", help="most registers per thread")
    parser.add_argument(
        "--line_info", action=argparse.BooleanOptionalAction, default=True, help="keep the lines of the source"
    )
    return parser


def _define(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    return name, value if given else None


def _device(shell: Any, wanted: str | None) -> Device:
    named = None if wanted is None else shell.user_ns.get(wanted)
    if isinstance(named, Device):
        return named
    if wanted is not None:
        try:
            return _opened(wanted)
        except ValueError as error:
            raise UsageError(f"%%cu --device {wanted}: not a variable that holds a Device, and {error}") from None
    # by identity, because Out and _ hold the same devices as the user's variables
    there = {id(value): value for value in list(shell.user_ns.values()) if isinstance(value, Device) and _usable(value)}
    if len(there) > 1:
        names = [name for name, value in shell.user_ns.items() if id(value) in there and not name.startswith("_")]
        raise UsageError(f"several devices are open: choose one with --device, such as %%cu --device {names[0]}")
    return next(iter(there.values())) if there else _opened(None)


_devices: dict[str | None, Device] = {}


def _opened(spec: str | None) -> Device:
    """The device that cells share if no variable holds one; replaced by a new device if it was lost or closed."""
    device = _devices.get(spec)
    if device is None or not _usable(device):
        device = _devices[spec] = Device(spec)
    return device


def _usable(device: Device) -> bool:
    return not device.context.closed and device.context.lost is None


def _variables(module: Module) -> dict[str, Kernel]:
    """The kernels of a module by the last part of their name, if it is unique and can be the name of a variable."""
    last = {name: definitions.last_name(name.partition("<")[0]) for name in module}
    often = Counter(last.values())
    return {short: module[name] for name, short in last.items() if often[short] == 1 and _is_variable(short)}


def _is_variable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
