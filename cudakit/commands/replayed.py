"""The run of `cudakit replay`: replays a recording, and prints what differs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudakit.commands import cli
from cudakit.debugger import attached
from cudakit.debugger.console import Console, Quit
from cudakit.errors import Refused
from cudakit.recording import recordings, replaying
from cudakit.shapes import shape_text
from cudakit.show import outputs, terminal

if TYPE_CHECKING:
    from cudakit.recording.loading import Loaded
    from cudakit.recording.recordings import Recording
    from cudakit.recording.replaying import LaunchReport, Report


def run(arguments: argparse.Namespace) -> int:
    """Replay a file. Returns the exit status."""
    outputs.check_destination("--json", arguments.json)
    if (arguments.commands or arguments.lines) and not arguments.debug:
        option = "-ex is a command" if arguments.commands else "--lines is an option"
        raise Refused(f"{option} of the debugger, which needs --debug")
    debugger = _Debugger(arguments) if arguments.debug else None
    file = sys.stderr if arguments.json == "-" else sys.stdout
    with recordings.load(arguments.file) as recording, contextlib.ExitStack() as stack:
        chosen = None if arguments.launch is None else _chosen(recording, arguments.launch)
        terminal.say(_headline(recording), file)
        if debugger is not None:
            stack.enter_context(attached.attached(debugger.console, variables=debugger.variables))
        try:
            report = replaying.replay(
                recording,
                arguments.device,
                chosen,
                who=arguments.who,
                checks=arguments.checks,
                debugger=debugger,
            )
        except ValueError as error:  # an unknown device or check
            raise Refused(str(error)) from error
        except Quit:
            return cli.EXIT_OK
        _show(report, arguments.json == "-")
        for note in recording.notes:
            terminal.say(f"not recorded: {note}", file)
    if arguments.json:
        outputs.write_json({"file": arguments.file, **report.as_dict()}, arguments.json)
    return _status(report, arguments.exact)


class _Debugger:
    """Runs launches in the debugger, which asks for commands before the first one."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.device.startswith("gpu"):
            raise Refused("--debug needs the simulated device: leave --device out, or use cuda-gdb on a GPU")
        self.console = Console(arguments.commands)
        self.variables = not arguments.lines

    def run(self, loaded: Loaded) -> None:
        if not self.console.running:
            self.console.start()
        loaded.run()

    def say(self, text: str) -> None:
        terminal.say(text, sys.stderr)


def _status(report: Report, exact: bool) -> int:
    outcomes = {one.outcome for one in report.launches}
    if outcomes & {replaying.DIFFERS, replaying.FAULT} or (exact and replaying.ROUNDING in outcomes):
        return cli.EXIT_FALSE
    if replaying.REFUSED in outcomes:
        return cli.EXIT_REFUSED
    return cli.EXIT_OK if outcomes else cli.nothing_checked("the recording has no launches")


def _chosen(recording: Recording, wanted: tuple[int, int]) -> list[int]:
    """Return the numbers of the launches in a range. Raises RecordingError if there are none."""
    found = [launch.number for launch in recording.launches if wanted[0] <= launch.number <= wanted[1]]
    return found or [recording.launch(wanted[0]).number]


def _headline(recording: Recording) -> str:
    name, arch = recording.device.get("name", "no device"), recording.device.get("arch", "")
    count = len(recording.launches)
    lines = [
        f"{recording.path}: {count} {'launch' if count == 1 else 'launches'}, recorded on {name}"
        f"{'' if arch in name else f' ({arch})'}"
    ]
    if not recording.complete:
        lines.append("the recording was not closed: these are the launches before the process ended")
    if recording.exception:
        lines.append(f"the recorded block ended with {recording.exception.splitlines()[0].rstrip(':')}")
    return "\n".join(lines)


def _show(report: Report, to_stderr: bool) -> None:
    found = report.launches
    out = terminal.console(stderr=to_stderr)
    columns = [
        terminal.Column("launch", [str(one.launch.number) for one in found]),
        terminal.Column("kernel", [one.launch.kernel for one in found], words=True),
        terminal.Column("grid", [_extent(one.launch.grid) for one in found], leave=2),
        terminal.Column("block", [_extent(one.launch.block) for one in found], leave=1),
        terminal.Column("written", [", ".join(one.written) for one in found], words=True),
        terminal.Column("result", [one.outcome for one in found], words=True),
    ]
    styles = [None if one.ok else "red" for one in found]
    terminal.show_table(out, f"replayed on {report.device}", columns, styles=styles)
    for one in found:
        for line in _details(one):
            terminal.show_text(out, line)


def _extent(sizes: Sequence[int]) -> str:
    """Return a grid or block without trailing ones: "8x4"."""
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return shape_text(tuple(kept))


def _details(one: LaunchReport) -> list[str]:
    """Return the text under the table of a launch."""
    lines = [str(difference) for difference in one.differences]
    if one.text:
        lines.append(one.text)
    if one.writer is not None:
        lines.append(str(one.writer))
    return [f"\nlaunch {one.launch.number}, {one.launch.kernel}: {lines[0]}", *lines[1:]] if lines else []
