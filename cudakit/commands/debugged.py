"""The run of `cudakit debug`: a script with breakpoints, traps and histories, or the service for an editor."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from cudakit.commands import cli
from cudakit.commands.script import as_main, failure_text
from cudakit.debugger import attached, dap, dap_server
from cudakit.debugger.breakpoints import Breakpoint, check_condition
from cudakit.debugger.console import Console, Quit
from cudakit.debugger.numerics import float64_shadow, trap
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.who import watch_parameter
from cudakit.debugger.words import parse_index
from cudakit.errors import CudakitError, Refused
from cudakit.show import terminal


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    if arguments.dap or arguments.port is not None:
        return _serve(arguments)
    script = _script(arguments.script)
    console = Console(arguments.commands)
    console.session.on_report = arguments.on_report
    try:
        with (
            attached.attached(console, variables=_with_variables(arguments)),
            as_main(script, arguments.arch, arguments.arguments),
        ):
            for location in arguments.breaks:
                console.add(_breakpoint(console, location, arguments))
            if not (arguments.breaks or arguments.on_report or _follows(arguments)):
                console.start()
            ok = _followed(script, arguments) == 0
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
            check_condition(arguments.condition)
        block, thread = (
            None if text is None else parse_index(text, name)
            for text, name in ((arguments.block, "block"), (arguments.thread, "thread"))
        )
    except ExpressionError as error:
        raise Refused(str(error)) from None
    return Breakpoint(console.session.number(), location, arguments.condition, block, thread)


def _serve(arguments: argparse.Namespace) -> int:
    """Serve an editor, whose launch request names the script; returns the exit status."""
    if arguments.script is not None or arguments.breaks or arguments.commands:
        raise Refused("--dap takes no script and no commands: the editor sends them")
    if arguments.port is not None:
        try:
            dap_server.serve_port(arguments.port)
        except (OSError, OverflowError) as error:
            raise Refused(f"cannot listen on port {arguments.port}: {error}") from None
        return cli.EXIT_OK

    def run(launch: dap.Launch) -> int:
        with as_main(launch.program, launch.arch, launch.arguments):
            return _run(launch.program)

    return dap.serve(run, arguments.arch)


def _follows(arguments: argparse.Namespace) -> bool:
    """Whether the values of kernels are followed."""
    return bool(arguments.who or arguments.trap or arguments.compare)


def _with_variables(arguments: argparse.Namespace) -> bool:
    """Whether kernels are compiled with -G: not if only their values are followed, which depends on the code."""
    stops = arguments.breaks or arguments.on_report or arguments.commands or not _follows(arguments)
    return bool(stops) and not arguments.lines


def _followed(script: str, arguments: argparse.Namespace) -> int:
    """Run the script, with the traps, the shadow and the write histories that were requested; returns its status."""
    reports: list[object] = []
    kept: list[object] = []
    try:
        with contextlib.ExitStack() as stack:
            try:
                reports += [stack.enter_context(watch_parameter(text)) for text in arguments.who]
                reports += [stack.enter_context(float64_shadow())] if arguments.compare else []
                if arguments.trap:
                    stack.enter_context(trap(*arguments.trap))
            except ValueError as error:
                raise Refused(str(error)) from None
            return _run(script, kept)
    finally:
        for report in reports:
            print(report, flush=True)


def _run(script: str, kept: list[object] | None = None) -> int:
    """Run the script; returns its exit status. kept: receives its variables, which free their memory otherwise."""
    try:
        variables = runpy.run_path(script, run_name="__main__")
        if kept is not None:
            kept.append(variables)
    except Quit:
        raise
    except SystemExit as ended:
        if ended.code in (None, 0):
            return 0
        _complain(f"the script ended with status {ended.code}")
        return ended.code if isinstance(ended.code, int) else 1
    except CudakitError as error:
        _complain(str(error))
        return 1
    except Exception as error:
        print(failure_text(error, script), file=sys.stderr)
        return 1
    return 0


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
