"""`cudakit profile`: run a script under ncu, reduce its report to one row per launch, write and plot the result."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit import nvtx
from cudakit.commands import cli
from cudakit.driver import driver
from cudakit.errors import CudakitError, DeviceUnavailable, Refused
from cudakit.profiling import ceilings, metrics, reduction, runner
from cudakit.profiling.reading import ProfiledLaunch, read_report
from cudakit.show import outputs, plots, profile_tables
from cudakit.show.plots import roofline

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.family import Ladder

HELP = """Profiles the kernels of a script or a family under Nsight Compute and names the bottleneck of each.

Writes four files: STEM.ncu-rep (for ncu-ui), STEM.json (one row per launch), STEM.md (tables, and one sentence per
launch) and STEM.png (a roofline). docs/profiling.md explains the columns. Put the flags of this command before the
script and the script's own after it; after a family, put flags of `cudakit bench`. Under ncu, a family and the examples
launch each variant once.

    cudakit profile mine.py:FAMILY --shapes 4096x4096
    cudakit profile examples/gemm.py --shapes 2048
    cudakit profile --ranges softmax.tree_reduce,softmax.registers examples/softmax_compare.py --shapes 8192x8192
    cudakit profile --import gemm.ncu-rep --ceilings profiles/h200/gemm.json"""

# a page with this text was written by this command
_PAGE = "| launch | us | TFLOP/s |"

SETS = ("row", "basic", "detailed", "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", metavar="REGEX", help="only kernels whose name has a match")
    parser.add_argument(
        "--ranges",
        type=cli.parse_names,
        metavar="NAME,...",
        help="only launches within these NVTX ranges of cudakit, such as softmax.tree_reduce; other ranges in ncu's "
        "notation (--nvtx-include)",
    )
    parser.add_argument(
        "--set",
        choices=SETS,
        default="full",
        help="metrics to collect: a section set of ncu, or row: only those of the table (default: full)",
    )
    parser.add_argument(
        "--output",
        metavar="STEM",
        help="path of the files without an extension, or a folder (default: the script's name)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the rows here instead of to STEM.json; -: print only the JSON to stdout"
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw the roofline here, not to STEM.png; dark if FILE.dark.png"
    )
    parser.add_argument("--sum", action="store_true", help="one row per range: add up the launches of a variant")
    parser.add_argument(
        "--ceilings",
        type=cli.parse_names,
        metavar="FILE,...",
        help="add lines to the roofline from these JSON files: a bench's copy and library, or another profile's",
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="do not measure copy bandwidth and arithmetic peaks for the roofline",
    )
    parser.add_argument(
        "--import", dest="imported", metavar="FILE", help="read this report, .ncu-rep or .json, instead of profiling"
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("--quiet", action="store_true", help="print no table and no progress")
    parser.add_argument("script", nargs="?", help="a .py file, any program, or a family such as mine.py:FAMILY")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script or family")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status. Raises ProfilerError if ncu fails, and Refused for invalid arguments."""
    _check(arguments)
    if not arguments.imported:
        return _run(arguments)
    with outputs.reading(f"--import {arguments.imported}: not a profile"):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    stem = stem_of(arguments)
    shown, progress = cli.consoles(arguments)
    report = _imported(arguments) if arguments.imported else _profiled(arguments, stem, progress)
    if arguments.sum:
        report["rows"] = reduction.summed(report["rows"])
    rows, page, picture = arguments.json or f"{stem}.json", f"{stem}.md", arguments.plot or f"{stem}.png"
    outputs.write_json(report, rows)
    outputs.write_file(page, profile_tables.markdown(report) + "\n")
    written = [rows, page, picture]
    try:
        roofline.draw(report, picture)
    except Refused as error:
        if arguments.plot:
            raise
        written.remove(picture)  # no matplotlib, or nothing to plot: the other files are written
        progress.print(f"no roofline: {error}", highlight=False, markup=False)
    if not arguments.quiet:
        profile_tables.show(report, shown)
    progress.print(f"written: {', '.join(name for name in written if name != '-')}", highlight=False, markup=False)
    return cli.EXIT_OK


def _check(arguments: argparse.Namespace) -> None:
    """Raise Refused or ProfilerError for invalid arguments, before anything runs."""
    if bool(arguments.script) == bool(arguments.imported):
        raise Refused("name either a script to profile or, with --import FILE, a report to read")
    if arguments.imported and not Path(arguments.imported).is_file():
        raise Refused(f"--import {arguments.imported}: the file does not exist")
    outputs.check_destination("--json", arguments.json)
    outputs.check_destination("--output", f"{stem_of(arguments)}.md")
    if arguments.plot is not None:
        plots.check(arguments.plot)
    _keep_others(arguments)
    _given_ceilings(arguments.ceilings)
    if arguments.script:
        command_of(arguments)
        problems = missing()
        if problems:
            raise runner.ProfilerError("\n".join(problems))


def command_of(arguments: argparse.Namespace) -> list[str]:
    """The command to profile: the script, or the bench of a family. Raises ProfilerError or Refused if neither
    exists."""
    script, rest = arguments.script, arguments.arguments
    if _family(arguments) is not None:
        return [sys.executable, "-m", "cudakit", "bench", script, *rest]
    return runner.script_command(script, rest, module=arguments.module)


def _family(arguments: argparse.Namespace) -> Ladder[Any] | None:
    """The family to profile; None if the script is a file, a module or a program."""
    script = arguments.script
    if not script or arguments.module or Path(script).exists():
        return None
    if ":" in script:
        return cli.family(script)
    if shutil.which(script) is not None:
        return None
    from cudakit import ops

    return ops.families().get(script)


def _keep_others(arguments: argparse.Namespace) -> None:
    """Raise Refused instead of overwriting files that the user did not name, except those of an earlier profile."""
    stem = stem_of(arguments)
    rows, page, picture = (Path(f"{stem}{ending}") for ending in (".json", ".md", ".png"))
    ours = {rows: _holds(rows, '"ncu": '), page: _holds(page, _PAGE)}
    ours[picture] = any(ours.values())
    given = {rows: arguments.json, page: None, picture: arguments.plot}
    others = [str(path) for path, own in ours.items() if path.exists() and not own and not given[path]]
    if others:
        raise Refused(
            f"{', '.join(others)}: not written by a profile, so not replaced. Pass another name: --output STEM"
        )
    source = arguments.imported
    if arguments.sum and source and Path(arguments.json or rows).resolve() == Path(source).resolve():
        raise Refused(f"--sum: the sums would replace the rows in {source}. Pass another --output or --json")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and text in path.read_text(encoding="utf-8", errors="replace")


def missing() -> list[str]:
    """The reasons why profiling is not possible on this machine; an empty list if it is."""
    problems = []
    if runner.find_ncu() is None:
        problems.append(runner.NO_NCU)
    try:
        driver.open("gpu")
    except DeviceUnavailable as error:
        problems.append(
            f"a profile needs a GPU: {error} The simulated device counts sectors, bank conflicts and divergence per "
            "source line: `cudakit check FILE.cu --annotate FILE.html`."
        )
    return problems


def stem_of(arguments: argparse.Namespace) -> Path:
    """Return the common stem of the output files: --output without a known extension, or the script's name in the
    working directory."""
    name = Path(arguments.imported or arguments.script)
    own = name.name if arguments.script and arguments.module else name.stem
    if (family := _family(arguments)) is not None:
        own = family.name
    if not arguments.output:
        return Path(own)
    given = Path(arguments.output)
    if given.is_dir():
        return given / own
    return given.with_suffix("") if given.suffix in (".ncu-rep", ".json", ".md", ".png") else given


def _profiled(arguments: argparse.Namespace, stem: Path, progress: Console) -> dict[str, Any]:
    command = command_of(arguments)
    target = Path(f"{stem}.ncu-rep")

    def line(text: str) -> None:
        if not text.startswith(runner.NCU_LINE) or " Profiling " in text:
            progress.print(text, highlight=False, markup=False)

    runner.run_ncu(
        command,
        target,
        **(
            {"metrics": metrics.by_name(), "sections": metrics.SECTIONS}
            if arguments.set == "row"
            else {"set": arguments.set}
        ),
        kernels=arguments.kernels,
        ranges=[_in_ncus_words(name) for name in arguments.ranges or ()],
        line=line,
    )
    progress.print(f"written: {target}", highlight=False, markup=False)
    said = shlex.join([*(["-m"] if arguments.module else []), arguments.script, *arguments.arguments])
    launches = read_report(target)
    lines = _given_ceilings(arguments.ceilings) + ([] if arguments.no_measure else _measured(progress))
    return _report(said, launches, lines, runner.ncu_version(runner.find_ncu() or "ncu"))


def _in_ncus_words(name: str) -> str:
    """Return a range such as `softmax.tree_reduce` in ncu's notation; a name that contains ncu's special characters is
    unchanged."""
    return name if "@" in name or "/" in name else f"{nvtx.DOMAIN}@{name}/"


def _imported(arguments: argparse.Namespace) -> dict[str, Any]:
    path = Path(arguments.imported)
    lines = _given_ceilings(arguments.ceilings)
    if path.suffix == ".json":
        report = json.loads(json.dumps(outputs.load(path)))
        rows = report.get("rows")
        whole = all(key in report for key in ("ncu", "device", "command", "date", "ceilings"))
        if not whole or not rows or not all("kernel" in row and "sentence" in row for row in rows):
            raise Refused(f"--import {path}: not a report of `cudakit profile`")
        if lines:
            sheet = {name: one for name, one in report["ceilings"].items() if not one["measured"]}
            report["ceilings"] = _by_name(lines) | sheet
        return dict(report)
    return _report(f"--import {path.name}", read_report(path), lines, "")


def _report(
    command: str, launches: Sequence[ProfiledLaunch], lines: list[ceilings.Ceiling], ncu: str
) -> dict[str, Any]:
    if not launches:
        raise runner.ProfilerError("the report has no launch: nothing was profiled")
    lines = [*lines, *ceilings.from_launch(launches[0])]
    first = launches[0]
    major, minor = (int(first.metrics.get(name, 0)) for name in metrics.ARCH)
    return {
        "device": {
            "name": first.facts.get(metrics.FACTS[0], "an unnamed GPU"),
            "kind": "gpu",
            "arch": f"sm_{major}{minor}" if major else "",
            "driver": None,
            "nvrtc": None,
        },
        "command": command,
        "ncu": ncu,
        "date": datetime.date.today().isoformat(),
        "ceilings": _by_name(lines),
        "rows": reduction.reduce(launches),
    }


def _by_name(lines: Sequence[ceilings.Ceiling]) -> dict[str, Any]:
    return {ceiling.name: ceiling.as_dict() for ceiling in ceilings.best(lines)}


def _given_ceilings(names: Sequence[str] | None) -> list[ceilings.Ceiling]:
    given = []
    for name in names or ():
        report = outputs.load(Path(name))
        try:
            lines = ceilings.from_report(report, name)
        except (AttributeError, KeyError, TypeError):  # JSON, but not a profile
            lines = []
        if not lines:
            raise Refused(f"--ceilings {name}: not a report of a bench or a profile with ceilings")
        given += lines
    return given


def _measured(progress: Console) -> list[ceilings.Ceiling]:
    """Measure the ceilings of this GPU. If that fails, print the error; the data sheet's peaks are used instead."""
    from cudakit.device import Device

    try:
        with Device("gpu") as device:
            return ceilings.measure(device)
    except CudakitError as error:
        progress.print(f"the ceilings could not be measured: {error}", highlight=False, markup=False)
        return []
