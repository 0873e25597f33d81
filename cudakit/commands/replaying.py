"""`cudakit replay`: launches that `cudakit.record` saved, run again on the simulated device or a GPU. The replay itself
is in `replayed`, which is imported only for it."""

from __future__ import annotations

import argparse
import re

from cudakit.commands import cli

HELP = """Runs the launches of a recording again, and compares the memory after each with the recorded memory.

On the simulated device (the default) each launch runs under its checks, and the line that wrote the first different
element is shown. Exit status: 0 if all results are equal or differ by rounding, 1 if one differs or fails, 2 if a
launch was refused."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    sub.add_argument("file", help="the file that cudakit.record() wrote")
    sub.add_argument(
        "--device",
        default="sim",
        metavar="sim|sim:ARCH|gpu|gpu:N",
        help="the device; sim: the simulated device of the recorded architecture (default: sim)",
    )
    sub.add_argument(
        "--launch", type=_numbers, metavar="N|N-M", help="only these launches, counted from 1 (default: all)"
    )
    sub.add_argument(
        "--who",
        metavar="ELEMENT",
        help="show every write to this element, such as y[3] or y[2,0], and what it was computed from",
    )
    sub.add_argument(
        "--exact", action="store_true", help="exit with 1 for differences by rounding too (default: only report them)"
    )
    sub.add_argument(
        "--checks",
        type=cli.parse_list,
        metavar="C,...",
        help="these checks of the simulated device (default: all but benign and clipping)",
    )
    sub.add_argument(
        "--debug",
        action="store_true",
        help="run the launches in the debugger, compiled again with their variables (-G); see cudakit debug",
    )
    sub.add_argument(
        "--lines", action="store_true", help="debug the recorded code, which has lines and registers but no variables"
    )
    sub.add_argument(
        "-ex", dest="commands", action="append", default=[], metavar="COMMAND", help="a command of the debugger"
    )
    sub.add_argument("--json", metavar="FILE", help="write the outcome as JSON; -: print only the JSON to stdout")


def main(arguments: argparse.Namespace) -> int:
    """Replay a file. Returns the exit status."""
    from cudakit.commands import replayed

    return replayed.run(arguments)


def _numbers(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a launch: write a number or a range, such as 3 or 3-5")
    return int(match[1]), int(match[2] or match[1])
