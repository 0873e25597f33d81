"""`cudakit debug`: run a script under the debugger, on the simulated device."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from cudakit.commands import cli
from cudakit.debugger import attached
from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.console import Console, Quit
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.texts import parse_index
from cudakit.errors import CudakitError, Refused
from cudakit.show import terminal

HELP = """Runs a script under a debugger, on the simulated device: no GPU is needed.

Kernels are compiled with -G, so that variables have their C++ names and types; --lines keeps them optimised, with lines
and registers only. The commands have the names of cuda-gdb's, and `help` lists them:

    cudakit debug train.py --break softmax.cu:31 --if "i == 37"
    cudakit debug train.py --on-report -- --epochs 1
    cudakit debug train.py -ex "break softmax.cu:31" -ex run -ex "print sum @ warp" -ex quit

Arguments after -- are the script's own. Without --break and --on-report it asks for commands before the script starts. Commands of -ex come first, then those
of the terminal. The script ends at `quit` or at the end of the input.

Exit status: 0 if the script ran to its end or was quit at a stop; 1 if it failed, or if a breakpoint of --break stopped
nothing; 2 if the request was wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the Python script that launches the kernels")
    parser.add_argument(
        "--break",
        dest="breaks",
        action="append",
        default=[],
        metavar="FILE.cu:LINE",
        help="stop at a line or at a function; may be repeated",
    )
    parser.add_argument("--if", dest="condition", default="", metavar="CONDITION", help="a C++ expression for --break")
    parser.add_argument("--block", metavar="X,Y,Z", help="stop only threads of this block at --break")
    parser.add_argument("--thread", metavar="X,Y,Z", help="stop only this thread of a block at --break")
    parser.add_argument("--on-report", action="store_true", help="stop at the fault that the simulated device reports")
    parser.add_argument("--lines", action="store_true", help="keep kernels optimised: lines and registers only")
    parser.add_argument("-ex", dest="commands", action="append", default=[], metavar="COMMAND", help="a command to run")
    parser.add_argument("--arch", default="sm_90a", help="the architecture of the simulated device (default: sm_90a)")


def main(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    script = _script(arguments.script)
    console = Console(arguments.commands)
    console.session.on_report = arguments.on_report
    try:
        with attached.attached(console, variables=not arguments.lines), _as_main(script, arguments):
            for location in arguments.breaks:
                console.add(_breakpoint(console, location, arguments))
            if not (arguments.breaks or arguments.on_report):
                console.start()
            ok = _run(script)
    except Quit:
        return cli.EXIT_OK if console.stops or not arguments.breaks else _unreached(console, arguments.breaks)
    except CudakitError as error:  # of work that the script has left in a queue
        _complain(str(error))
        ok = False
    missed = _unreached(console, arguments.breaks)
    return missed if ok else cli.EXIT_FALSE


def _script(name: str | None) -> str:
    if name is None:
        raise Refused("name the script to run: cudakit debug SCRIPT.py")
    if not Path(name).is_file():
        raise Refused(f"there is no script {name!r}")
    return name


def _breakpoint(console: Console, location: str, arguments: argparse.Namespace) -> Breakpoint:
    try:
        if arguments.condition:
            parse(arguments.condition)
        block, thread = (
            None if text is None else parse_index(text, name)
            for text, name in ((arguments.block, "block"), (arguments.thread, "thread"))
        )
    except ExpressionError as error:
        raise Refused(str(error)) from None
    return Breakpoint(console.session.number(), location, arguments.condition, block, thread)


@contextlib.contextmanager
def _as_main(script: str, arguments: argparse.Namespace) -> Iterator[None]:
    """The script's arguments and folder, and the simulated device as the default device."""
    kept = os.environ.get("CUDAKIT_DEVICE"), sys.argv, sys.path[:]
    os.environ["CUDAKIT_DEVICE"] = f"sim:{arguments.arch}"
    sys.argv = [script, *arguments.arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        device, sys.argv, sys.path[:] = kept
        os.environ.pop("CUDAKIT_DEVICE")
        if device is not None:
            os.environ["CUDAKIT_DEVICE"] = device


def _run(script: str) -> bool:
    """Run the script; returns whether it succeeded."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code in (None, 0):
            return True
        _complain(f"the script ended with status {ended.code}")
        return False
    except CudakitError as error:
        _complain(str(error))
        return False
    except Exception:
        traceback.print_exc()
        return False
    return True


def _complain(text: str) -> None:
    terminal.say_error(text, sys.stderr)


def _unreached(console: Console, locations: Sequence[str]) -> int:
    """Report the breakpoints that have stopped nothing; returns the exit status."""
    missed = [one for one in console.session.breakpoints if one.location in locations and not one.hits]
    for one in missed:
        seen = sorted({os.path.basename(f) for code in console.session.codes for f in code.sources.files.values()})
        if not console.session.launches:
            why = "no kernel was launched on the simulated device"
        elif one.resolved:
            why = "no thread came to this line" + (" with a true condition" if one.condition else "")
        else:
            why = f"no launched kernel has code there; the kernels' files: {', '.join(seen) or 'none'}"
        _complain(f"{one} stopped nothing: {why}")
    return cli.EXIT_FALSE if missed else cli.EXIT_OK
