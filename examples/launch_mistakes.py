"""Ten launches of one kernel, nine of them with a mistake, by cudakit and by other packages: the outcome of each.

Outcomes: a launch is rejected before anything runs ("refused" in the JSON), or it runs and its result is correct
("right" in the JSON) or wrong, or it ends in a fault, after which the process cannot use the GPU. The first launch has
no mistake: plain Python numbers, converted to the kernel's types. Each launch has its own process. CuPy, cuda.core and
Triton are measured too, if installed and on a GPU. A Triton kernel takes any types, and its caller does not choose
block and shared memory.

    python examples/launch_mistakes.py
    python examples/launch_mistakes.py --json -
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cudakit.commands import cli
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.show import example_tables, outputs, tables, terminal

SCRIPT = Path(__file__).resolve().parent / "launch_mistakes" / "attempt.py"
PEERS = {"peer:cupy": ("cupy",), "peer:cuda.core": ("cuda.core", "cupy"), "peer:triton": ("triton", "torch")}
NOT_ASKED = {"peer:triton": ("integer for a pointer", "2048 threads per block", "1 MB of shared memory")}
AT_ONCE = 6


def mistakes():
    """The mistakes in attempt.py, in its order."""
    spec = importlib.util.spec_from_file_location("attempt", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.MISTAKES), module.N


@dataclass
class Attempt(Row):
    """A row with the launch's outcome and the package's message. cudakit passes if it rejected a mistake, or if there
    was no mistake and the result is correct; peers are not judged."""

    mistake: str = ""
    outcome: str | None = None
    said: str = ""


def run(row, package, options):
    command = [sys.executable, str(SCRIPT), package, row.mistake, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    told = done.stdout.strip().splitlines()
    if told and told[-1].startswith("{"):  # the package may print before it, and the process may end in any way
        found = json.loads(told[-1])
        row.outcome, row.said = found["outcome"], found["said"]
        return
    row.said = (done.stderr.strip().splitlines() or ["no word"])[-1]
    if done.returncode < 0:  # a signal: the process did not survive the launch
        row.outcome = "fault"
    else:  # it failed before the launch
        row.skip(f"it failed before the launch: {row.said}")


def attempts(names, elements, gpu):
    """The rows of all packages and mistakes."""
    rows = []
    for variant in ("cudakit", *PEERS):
        missing = [name for name in PEERS.get(variant, ()) if importlib.util.find_spec(name.split(".")[0]) is None]
        for name in names:
            row = Attempt(
                Subject("launch", variant, 1 if variant == "cudakit" else None, (elements,), "float32", name),
                mistake=name,
            )
            if variant != "cudakit" and not gpu:
                row.skip("it needs a GPU")
            elif missing:
                row.skip(f"{missing[0]} is not installed")
            elif name in NOT_ASKED.get(variant, ()):
                row.skip("the caller does not choose it")
            rows.append(row)
    return rows


def judge(row, right):
    """Judge cudakit's row; a peer's outcome is only reported."""
    if row.subject.variant == "cudakit":
        row.verdict.ok = row.outcome == ("right" if row.mistake == right else "refused")
        row.verdict.why = None if row.ok else row.verdict.skipped or f"{row.outcome}: {row.said}"
    elif row.verdict.skipped is None:
        row.skip("reported, not judged")


def show(report, console):
    """One line per mistake, one column per package."""
    headings, lines = example_tables.mistake_cells(report)
    columns = [
        terminal.Column(heading, cells, words=True)
        for heading, cells in zip(headings, zip(*lines, strict=True), strict=True)
    ]
    terminal.show_table(console, "outcomes of launches with a mistake", columns)
    terminal.show_text(console, tables.device_line(report))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    arguments = parser.parse_args()
    outputs.check_destination("--json", arguments.json)
    names, elements = mistakes()
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        report = BenchReport(device.info())
        gpu = device.kind == "gpu"
    report.rows = attempts(names, elements, gpu)
    todo = [row for row in report.rows if row.verdict.skipped is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        packages = [row.subject.variant.removeprefix("peer:") for row in todo]
        options = [[arguments.device] if package == "cudakit" else [] for package in packages]
        list(pool.map(run, todo, packages, options))
    for row in report.rows:
        judge(row, right=names[0])
    if not arguments.quiet:
        show(report.as_dict(), table)
    if arguments.json:
        outputs.write_json(report.as_dict(), arguments.json)
    return cli.verdict(report)


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
