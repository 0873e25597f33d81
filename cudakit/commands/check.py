"""`cudakit check`: compile a `.cu` file's kernels for each architecture, and run them on the simulated device.

Kernels that a family declares run on fuzzed problems under all checks; the kernels of any file can be run by a user's
script (`--run`). `--annotate` writes the source with counters next to each line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from cudakit import reports
from cudakit.commands import cli, files, needs, script
from cudakit.commands.outcome import Outcome
from cudakit.commands.targets import Target, target_of
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError, Refused
from cudakit.shipped import order
from cudakit.show import advice, annotate, outputs, terminal

HELP = """Compiles kernels for each architecture, prints their resources, and runs them on the simulated device.

Printed per kernel: registers, shared memory, spills, warnings, and theoretical occupancy with its limit, for the block
sizes that are known (launch bounds, a family's launches) or for common ones. The variants of a family, or those that
cudakit.ops declares for a file's kernels, run on fuzzed problems under all checks and are compared with the reference.
The same --seed draws the same problems. Any other file needs a script that launches its kernels on cudakit.Device():

    cudakit check mine.py:FAMILY
    cudakit check scale.cu --run try_scale.py --annotate scale.html

The script runs on a simulated device under all checks, and the work of the file's kernels is counted per line. Leaks
on a device that the script closes are reported, but fail the check only if --checks names leaks. A file with neither a
family nor a script is an error, because nothing would be checked; --examples 0 only compiles it.
--annotate writes the source with these counters next to each line, as one HTML file; without --run the family's
variants run on one of their shapes.

One line per kernel shows how often it was launched, or NEVER LAUNCHED; all instances of a template are one kernel.
--json, --sarif and --junit write all findings for other programs: each fault, race, leak, wrong result and compile
error with its file, line, kernel, block and thread. docs/continuous_integration.md shows how to use them.

Exit status: 0 if everything compiled, ran without a report and is correct; 1 if not; 2 if the request was wrong or
nothing was checked: no kernel of the file was launched."""

_EXAMPLES = 200  # fuzzed problems per variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    files.add_compile_arguments(
        parser,
        "a .cu file, looked for here, then among cudakit's own kernels; or a family: mine.py:FAMILY, "
        "package.module:FAMILY, or its name",
    )
    parser.add_argument(
        "--arch",
        type=cli.parse_list,
        default=["sm_80", "sm_90a"],
        metavar="A,...",
        help="the architectures (default: sm_80,sm_90a)",
    )
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="fuzzed problems per variant (default: 200); 0 without --run or --annotate compiles only",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="start no new problem after this time (default: 60)"
    )
    parser.add_argument("--seed", type=int, help="the seed of an earlier run, to draw the same problems again")
    parser.add_argument(
        "--checks",
        type=cli.parse_list,
        metavar="C,...",
        help="only these checks, such as race,init (default: all but benign)",
    )
    parser.add_argument("--run", metavar="SCRIPT.py", dest="script", help="a script that launches the file's kernels")
    parser.add_argument("--annotate", metavar="FILE.html", help="write the source with counters next to each line")
    parser.add_argument("--json", metavar="FILE", help="write the findings as JSON; -: print only the JSON to stdout")
    parser.add_argument("--sarif", metavar="FILE", help="write the findings as SARIF 2.1.0, for GitHub code scanning")
    parser.add_argument("--junit", metavar="FILE", help="write the checks as JUnit XML")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    target = target_of(arguments.file)
    _refuse(arguments, target)
    out = terminal.wrapping(sys.stderr if arguments.json == "-" else sys.stdout)
    checks = arguments.checks if arguments.checks is not None else list(drivers.default_checks())
    outcome = Outcome(target.name, str(target.sources[0].path) if target.sources else target.name, checks)
    try:
        _check(arguments, target, outcome, out)
    except BaseException as error:  # an interrupted check must not be written as a completed one
        outcome.nothing_checked = str(error) or type(error).__name__
        raise
    finally:
        outcome.write(json=arguments.json, sarif_file=arguments.sarif, junit_file=arguments.junit)
    if outcome.failed:
        return cli.EXIT_FALSE
    if outcome.nothing_checked is not None:
        return cli.nothing_checked(outcome.nothing_checked)
    return cli.EXIT_OK


def _check(arguments: argparse.Namespace, target: Target, outcome: Outcome, out: IO[str]) -> None:
    """Compile all files for all architectures that their variants support, and run them if they compile."""
    if not arguments.arch:
        outcome.nothing_checked = files.NO_ARCHITECTURE
        return
    for source in target.sources:
        launches = files.launches_of(source.pairs)
        for arch in arguments.arch:
            refusals = [variant.arch_refusal(arch) for _, variant in source.pairs]
            if refusals and all(refusals):
                print(f"{source.path} for {arch}: not compiled, {refusals[0]}", file=out)
                continue
            for macros in dict.fromkeys(tuple(dict(launch.defines).items()) for launch in launches) or [()]:
                own = [launch for launch in launches if tuple(dict(launch.defines).items()) == macros]
                compiled = needs.compile_for(arguments, source.path, arch, own, macros, outcome, out)
                source.compiled += [compiled] if compiled is not None else []
    if not outcome.failed:
        _run(arguments, target, outcome, out)


def _refuse(arguments: argparse.Namespace, target: Target) -> None:
    """Raise Refused for invalid arguments, before anything runs."""
    for arch in arguments.arch:
        if not re.fullmatch(r"sm_\d+[af]?", arch):
            raise Refused(f"--arch {arch} is not an architecture: write sm_80, sm_90a, ...")
    unknown = set(arguments.checks or ()) - set(drivers.all_checks())
    if unknown:
        raise Refused(f"--checks {', '.join(sorted(unknown))}: there are {', '.join(drivers.all_checks())}")
    if (arguments.examples or 0) < 0 or not arguments.seconds > 0:
        raise Refused("--examples must be at least 0 and --seconds more than 0")
    if arguments.script is not None and not Path(arguments.script).is_file():
        raise Refused(f"--run {arguments.script}: the file does not exist")
    for flag in ("--annotate", "--sarif", "--junit"):
        if getattr(arguments, flag[2:]) == "-":
            raise Refused(f"{flag} - is not supported: name a file")
    files.expect_options(arguments)
    for flag in ("--annotate", "--json", "--sarif", "--junit"):
        outputs.check_destination(flag, getattr(arguments, flag[2:]))
    if arguments.annotate and len(target.sources) > 1:
        names = ", ".join(source.path.name for source in target.sources)
        raise Refused(f"--annotate {arguments.annotate}: {target.name} has several files: name one of them ({names})")
    if arguments.annotate and arguments.script is None and not target.pairs:
        raise Refused(
            f"--annotate {arguments.annotate}: no family of cudakit.ops declares a kernel of "
            f"{Path(target.name).name}, so there is nothing to count. Pass --run SCRIPT.py, a script that launches its "
            "kernels on cudakit.Device(), or name a family: mine.py:FAMILY"
        )


# Running --------------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace, target: Target, outcome: Outcome, out: IO[str]) -> None:
    """Run the fuzzing and the script, and print how often each kernel was launched."""
    examples = _EXAMPLES if arguments.examples is None else arguments.examples
    wanted = bool(arguments.script or arguments.annotate or (target.pairs and examples))
    arch = _run_on(arguments.arch)
    name = Path(target.name).name
    if not any(source.kernels.launches for source in target.sources):
        paths = [source.path for source in target.sources]
        outcome.nothing_checked = "; ".join(map(files.no_kernels, paths)) or f"{name} has no variants"
        return
    if not wanted and not examples:
        print("--examples 0: compiled only, nothing was run", file=out)
        return
    if not wanted:
        outcome.nothing_checked = (
            f"no family of cudakit.ops declares a kernel of {name}, so nothing was run. Pass --run SCRIPT.py, a script "
            "that launches its kernels on cudakit.Device(), name a family (mine.py:FAMILY), or pass --examples 0 to "
            "compile only"
        )
        return
    if arch is None:
        outcome.nothing_checked = f"no simulated device supports {', '.join(arguments.arch)}, so nothing was run"
        return
    _run_all(arguments, target, arch, examples, outcome, out)
    if outcome.failed:
        return
    for source in target.sources:
        launches = source.kernels.launches.items()
        outcome.launches += [
            {"kernel": kernel, "launches": count, "file": str(source.path)} for kernel, count in launches
        ]
        for line in [*([f"{source.path.name}:"] if len(target.sources) > 1 else []), *source.kernels.lines()]:
            print(line, file=out)
    outcome.kernels_checked = target.checked
    if not target.checked:
        outcome.nothing_checked = (
            f"no kernel of {name} was launched on a simulated device. Compile it by its path with line info (the "
            "default), and launch on cudakit.Device()"
        )


def _run_all(
    arguments: argparse.Namespace, target: Target, arch: str, examples: int, outcome: Outcome, out: IO[str]
) -> None:
    """Fuzz the families' variants, run the user's script, and annotate the source."""
    if examples and target.pairs:
        with drivers.watching(outcome.checks) as watch:
            for family, variant in target.pairs:
                _fuzz(arguments, target, arch, family, variant, examples, outcome, out)
        target.count(watch.launches())
    # if all fuzzed problems were empty, run one of the families' shapes
    if outcome.failed or not (arguments.script or arguments.annotate or not target.checked):
        return
    began = time.monotonic()
    with drivers.watching(outcome.checks) as watch, _quietly(arguments.json == "-"):
        if arguments.script is not None:
            said = f"run by {arguments.script}"
            found = script.run(arguments.script, arch, watch, "leaks" in (arguments.checks or ()))
            run = {"script": arguments.script, **found}
        else:
            said, run = _run_variants(arch, target.pairs)
    outcome.add(run.pop("reports"))
    outcome.runs.append({**run, "seconds": time.monotonic() - began})
    for leak in run["leaks"] if run["ok"] else ():
        print(leak, file=out)
    if not run["ok"]:
        print(f"{said}: FAILED\n{run['failure']}", file=out)
        return
    mine = target.count(watch.launches())
    launches = sum(record.counters.launches for record in mine)
    whose = "this file" if target.family is None else target.name
    print(f"{said}: {launches} launch{'es' * (launches != 1)} of kernels of {whose}, without a report", file=out)
    compiled = [one for source in target.sources for one in source.compiled]
    spills = {kernel.mangled: kernel.spilled for one in compiled for kernel in files.kernel_facts(one)}
    annotated = annotate.kernels(mine, spills)
    outcome.kernels = [kernel.as_dict() for kernel in annotated]
    for kernel in annotated:
        for item in advice.hints(kernel.counters):
            where = f" at {os.path.basename(item.place[0])}:{item.place[1]}" if item.place else ""
            print(f"  {kernel.name}: {item.kind}{where}", file=out)
    if arguments.annotate and annotated:
        path = target.sources[0].path
        facts = [f"{annotate.shown_path(str(path))}: {said} on the simulated device, {arch}"]
        outputs.write_file(arguments.annotate, annotate.page(path, annotated, facts))
        outcome.annotated = arguments.annotate
        print(f"written: {arguments.annotate}", file=out)


def _fuzz(
    arguments: argparse.Namespace,
    target: Target,
    arch: str,
    family: Any,
    variant: Any,
    examples: int,
    outcome: Outcome,
    out: IO[str],
) -> None:
    from cudakit.commands import fuzzing

    began = time.monotonic()
    fuzzed = fuzzing.run(
        f"sim:{arch}",
        family,
        [variant.name],
        examples,
        arguments.seed,
        checks=outcome.checks,
        seconds=arguments.seconds,
    )
    print(fuzzed.text(), file=out)
    step = f"fuzz {family.name}/{variant.name}"
    outcome.add(replace(found, step=step, arch=arch) for found in fuzzed.reports)
    entry = {"ok": fuzzed.ok, "step": step, "seconds": time.monotonic() - began, "variant": variant.name}
    outcome.fuzzed.append({**entry, **{key: value for key, value in asdict(fuzzed).items() if key != "reports"}})


@contextlib.contextmanager
def _quietly(wanted: bool) -> Iterator[None]:
    """Redirect the output of scripts to stderr if `wanted`, so that stdout has only JSON."""
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield


def _run_variants(arch: str, pairs: Sequence[tuple[Any, Any]]) -> tuple[str, dict[str, Any]]:
    """Launch each variant once, on the first of its family's shapes that it supports. Returns a description of the
    runs, and their outcome."""
    from cudakit.device import Device

    said: list[str] = []
    step = {"step": "run the variants"}
    run: dict[str, Any] = {**step, "script": None, "ok": True, "failure": None, "leaks": [], "reports": []}
    with Device(f"sim:{arch}") as device:
        stream = device.default_stream
        for family, variant in pairs:
            for problem, inputs, output, options, words in files.problems(device, family):
                if variant.refusal(problem, device.arch) is None:
                    said.append(f"{family.name}/{variant.name} {words}")
                    try:
                        family.launch(device, variant, inputs, output, stream, **options)
                        device.synchronize()
                    except CudakitError as error:
                        about: dict[str, Any] = {**step, "arch": arch, "family": family.name, "variant": variant.name}
                        found = reports.of_error(error, launched=reports.defined(variant.launch), **about)
                        run |= {"ok": False, "failure": str(error), "reports": found}
                        return ", ".join(said), run
                    break
    return ", ".join(said) or "no variant supports its family's shapes", run


def _run_on(arches: Sequence[str]) -> str | None:
    """Return the newest architecture that the simulated device supports; None if it supports none."""
    return max(filter(drivers.is_simulated, arches), key=order, default=None)
