"""`cudakit debug`: run a script under the debugger, on the simulated device. The run itself is in `debugged`, which is
imported only for it: it needs the simulated device."""

from __future__ import annotations

import argparse

from cudakit.commands import cli

HELP = """Runs a script under a debugger, on the simulated device: no GPU is needed.

Kernels are compiled with -G, so that variables have their C++ names and types; --lines keeps them optimised, with lines
and registers only. The commands have the names of cuda-gdb's, and `help` lists them:

    cudakit debug train.py --break softmax.cu:31 --if "i == 37"
    cudakit debug train.py --on-report -- --epochs 1
    cudakit debug train.py -ex "break softmax.cu:31" -ex run -ex "print sum @ warp" -ex quit

--who reports every write to an element of a kernel's array, by the name of the parameter, and the values that the
written value was computed from:

    cudakit debug train.py --who "out[12,7]"

Arguments after -- are the script's own. Without --break, --on-report and --who it asks for commands before the script
starts. Commands of -ex come first, then those of the terminal. The script ends at `quit` or at the end of the input.

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
    parser.add_argument(
        "--who",
        action="append",
        default=[],
        metavar="ELEMENT",
        help='report every write to an element of an array, such as "out[12,7]", and what it was computed from',
    )
    parser.add_argument(
        "--trap",
        type=cli.parse_names,
        metavar="KIND,...",
        help="stop at the first instruction that makes a wrong number from correct operands: nan, inf, overflow, "
        "denormal, division",
    )
    parser.add_argument(
        "--compare",
        choices=["float64"],
        help="run kernels next to a shadow of themselves in float64, and report the lines that lose accuracy",
    )
    parser.add_argument("--on-report", action="store_true", help="stop at the fault that the simulated device reports")
    parser.add_argument("--lines", action="store_true", help="keep kernels optimised: lines and registers only")
    parser.add_argument("-ex", dest="commands", action="append", default=[], metavar="COMMAND", help="a command to run")
    parser.add_argument("--arch", default="sm_90a", help="the architecture of the simulated device (default: sm_90a)")
    parser.add_argument(
        "--dap", action="store_true", help="serve an editor: the Debug Adapter Protocol over stdin and stdout"
    )
    parser.add_argument("--port", type=int, metavar="N", help="the same on a TCP port of this machine; 0: a free one")


def main(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    from cudakit.commands import debugged

    return debugged.run(arguments)
