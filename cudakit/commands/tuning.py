"""`cudakit tune`: find the best configurations of a family's variants, and save them for `variant="auto"`."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from cudakit import tuned
from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.show import outputs, terminal, tuning_tables
from cudakit.tuning.search import SEARCHES

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.tuning.run import Earlier, TuneReport

HELP = """Finds the best configurations of a family's variants, and saves them for variant="auto".

Each configuration of the constants that a variant declares (tune={"tile": (16, 32)}) is compiled, checked against the
reference, and then timed in alternation with the best one so far. The simulated device has no clock; there
configurations are ranked by its counters.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("family", help=cli.FAMILIES)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="the shapes (default: the family's)")
    parser.add_argument("--variants", type=cli.parse_names, metavar="NAME,...", help="only these (default: all)")
    parser.add_argument(
        "--dtypes", type=cli.parse_names, metavar="DTYPE,...", help="these dtypes (default: the family's first)"
    )
    parser.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        metavar="MODE,...",
        help="these modes (default: the family's first)",
    )
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="time per shape, dtype and mode, including compilation and the reference (default: 60)",
    )
    parser.add_argument(
        "--search",
        choices=SEARCHES,
        default="auto",
        help="exhaustive: every configuration in order; random: random ones and neighbours of the best; auto: random, "
        "then all others if the budget suffices (default: auto)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="seed of the search and of the inputs (default: 0)"
    )
    parser.add_argument(
        "--threads", type=cli.positive, metavar="N", help="compile N at once (default: one per CPU, less one)"
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="search without the default configurations, and compare the best with them at the end",
    )
    parser.add_argument("--dry-run", action="store_true", help="save nothing: auto stays as it is")
    parser.add_argument("--forget", action="store_true", help="delete the family's saved configurations, and exit")


def _seconds(text: str) -> float:
    """Parse seconds above 0. Raises argparse's error for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _seed(text: str) -> int:
    """Parse a whole number of at least 0. Raises argparse's error for anything else."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: write a whole number of at least 0")
    return value


@contextmanager
def _saying(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield step(text), which shows the current step. Only on a terminal."""
    from rich.text import Text

    if console.quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("starting") as status:
        yield lambda text: status.update(Text(text))


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status: 1 if a configuration is wrong or faults, 2 if none was measured."""
    from cudakit.tuning.run import Earlier

    outputs.check_destination("--json", arguments.json)
    family = cli.family(arguments.family)
    if arguments.forget:
        terminal.say(f"{tuned.forget(family.name)} saved configurations of {family.name} were deleted")
        return cli.EXIT_OK
    table, progress = cli.consoles(arguments)
    with _saying(progress) as step:
        report = search(arguments, Earlier(), step)
        earlier = Earlier().after(report)
        while earlier is not None:
            step("continuing in another process: a fault has lost the GPU for this one")
            report = _elsewhere(arguments, earlier)
            earlier = earlier.after(report)
    if not arguments.quiet:
        tuning_tables.show(report.as_dict(), table)
    if arguments.json:
        outputs.write_json(report.as_dict(), arguments.json)
    if not report.ok:
        return cli.EXIT_FALSE
    if not report.measured:
        reasons = [why for one in report.tunings if one.outcome.best is None for why in one.refused]
        return cli.nothing_checked("; ".join(dict.fromkeys(reasons)) or "no configuration could be measured")
    return cli.EXIT_OK


def search(arguments: argparse.Namespace, earlier: Earlier, step: Callable[[str], None]) -> TuneReport:
    """Run all requested searches; stop after a search that loses the GPU."""
    from cudakit.commands import ladder
    from cudakit.tuning.run import Settings, tune

    settings = Settings(
        arguments.budget, arguments.search, arguments.seed, arguments.cold, not arguments.dry_run, arguments.threads
    )
    report: TuneReport | None = None
    with ExitStack() as stack:
        device = stack.enter_context(cli.open_device(arguments.device))
        for member, selection in ladder.selected(cli.family(arguments.family), arguments):
            if device.context.closed:  # a fault has lost a simulated device
                device = stack.enter_context(cli.open_device(device.context.spec, fresh=True))
            shapes = arguments.shapes or member.shapes_for(device.kind)
            done = tune(device, member, shapes, selection, settings, step=step, earlier=earlier)
            if report is None:
                report = done
            else:
                report.tunings += done.tunings
            if done.tunings and done.tunings[-1].outcome.lost is not None:
                break
    if report is None:
        raise Refused(f"{arguments.family} has nothing to tune")
    return report


# A process cannot use a context again that a kernel has lost, so another process continues --------------------------

_GO_ON = "from cudakit.commands.tuning import go_on; go_on()"


def _elsewhere(arguments: argparse.Namespace, earlier: Earlier) -> TuneReport:
    """Run `search` in another process. Raises Refused if that process ends without a report."""
    given = {name: value for name, value in vars(arguments).items() if name != "run"}
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "report")
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [sys.executable, "-c", _GO_ON],
            input=pickle.dumps((given, earlier, to)),
            env={**os.environ, "PYTHONPATH": paths},
            check=False,
        )
        if done.returncode:
            raise Refused(f"the process that continued after a fault ended with status {done.returncode}")
        with open(to, "rb") as file:
            report: TuneReport = pickle.load(file)
    return report


def go_on() -> None:
    """The main function of the other process: read the work from stdin, and write the report to the file that the work
    names."""
    given, earlier, to = pickle.load(sys.stdin.buffer)
    report = search(argparse.Namespace(**given), earlier, lambda text: None)
    with open(to, "wb") as file:
        pickle.dump(report, file)
