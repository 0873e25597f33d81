"""`cudakit check`: what a `.cu` file's kernels need on each architecture, and what they do on the simulated device.

Kernels that ops declare run on fuzzed problems under all checks; any file's kernels run by a script of the user's
(`--run`). `--annotate` writes the source with what was counted beside each line.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from cudakit.commands import cli, files
from cudakit.compile import compiler, headers
from cudakit.driver import driver as drivers
from cudakit.errors import CompileError, CudakitError, DeviceUnavailable, LeakWarning, Refused, UnseenFault
from cudakit.show import advice, annotate, outputs

HELP = """Compiles a .cu file for each architecture, says what its kernels need, runs them on the simulated device.

For each kernel: registers, shared memory, spills, warnings, and theoretical occupancy with what limits it, for the
block sizes that are known (launch bounds, the ops' own) or for usual ones. Where a family of cudakit.ops declares a
kernel of the file, its variants run on fuzzed problems under all checks, against the float64 reference; --seed draws
the same problems again. For any other file give a script that launches its kernels on cudakit.Device():

    cudakit check scale.cu --run try_scale.py --annotate scale.html

The script runs on a simulated device under all checks, and what the kernels of the file do in it is counted by line.
What it leaves alive on a device that it closes is told, and fails the check only where --checks names leaks.
--annotate writes the source with these counters beside each line, one HTML file; without --run it is the ops' variants
on one of their shapes.

Exit status 0 only where all compiled, ran without a report and was right; 1 where not; 2 where it could not be done."""

# block sizes shown where nothing says which are used
_USUAL_BLOCKS = (128, 256, 512, 1024)


@dataclass
class Outcome:
    """All that a check found: what JSON gets. Each list's entries have "ok"."""

    file: str
    checks: list[str]
    architectures: list[dict[str, Any]] = field(default_factory=list)
    fuzzed: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    annotated: str | None = None

    @property
    def ok(self) -> bool:
        return all(entry["ok"] for entry in (*self.architectures, *self.fuzzed, *self.runs))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    files.add_compile_arguments(parser)
    parser.add_argument(
        "--arch", type=cli.parse_names, default=["sm_80", "sm_90a"], metavar="A,...", help="(default: sm_80,sm_90a)"
    )
    parser.add_argument(
        "--examples", type=int, default=200, metavar="N", help="fuzzed problems a variant; 0: none (default: 200)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no new problem after that (default: 60)")
    parser.add_argument("--seed", type=int, help="draw the same problems again")
    parser.add_argument("--checks", type=cli.parse_names, metavar="C,...", help="only these (default: all)")
    parser.add_argument("--run", metavar="SCRIPT.py", dest="script", help="a script that launches the file's kernels")
    parser.add_argument("--annotate", metavar="FILE.html", help="write the source with counters beside each line")
    parser.add_argument("--json", metavar="FILE", help="write what was found as JSON; - is stdout, alone")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    path = headers.find_source(arguments.file)
    _refuse(arguments, path)
    out = sys.stderr if arguments.json == "-" else sys.stdout
    checks = arguments.checks if arguments.checks is not None else list(drivers.all_checks())
    outcome = Outcome(str(path), checks)
    configs = files.declared_configs(path)
    compiled = [_compile(arguments, path, arch, configs, outcome, out) for arch in arguments.arch]
    arch = _run_on(arguments.arch)
    if outcome.ok and arch is not None:
        _run_all(arguments, path, arch, compiled, outcome, out)
    elif outcome.ok:
        print(f"no simulated device stands for {', '.join(arguments.arch)}, so nothing was run", file=out)
    if arguments.json:
        outputs.write_json({"ok": outcome.ok, **asdict(outcome)}, arguments.json)
    return cli.EXIT_OK if outcome.ok else cli.EXIT_FALSE


def _refuse(arguments: argparse.Namespace, path: Path) -> None:
    """Raises Refused for what cannot be done as asked, before anything is."""
    for arch in arguments.arch:
        if not re.fullmatch(r"sm_\d+[af]?", arch):
            raise Refused(f"--arch {arch}: no architecture has this name; write sm_80, sm_90a, ...")
    unknown = set(arguments.checks or ()) - set(drivers.all_checks())
    if unknown:
        raise Refused(f"--checks {', '.join(sorted(unknown))}: there are {', '.join(drivers.all_checks())}")
    if arguments.examples < 0 or arguments.seconds <= 0:
        raise Refused("--examples must be at least 0 and --seconds more than 0")
    if arguments.script is not None and not Path(arguments.script).is_file():
        raise Refused(f"--run {arguments.script}: there is no such script")
    if arguments.annotate == "-":
        raise Refused("--annotate -: the page is written to a file; name one")
    for flag in ("--annotate", "--json"):
        outputs.check_destination(flag, getattr(arguments, flag[2:]))
    if arguments.annotate and arguments.script is None and not files.declared(path):
        raise Refused(
            f"--annotate {arguments.annotate}: no family of cudakit.ops declares a kernel of {path.name}, so there is "
            "nothing to count. Give --run SCRIPT.py, a script that launches its kernels on cudakit.Device()"
        )


# Compiling ------------------------------------------------------------------------------------------------------------


def _compile(
    arguments: argparse.Namespace, path: Path, arch: str, configs: Sequence[Any], outcome: Outcome, out: IO[str]
) -> compiler.Compiled | None:
    """Compiles for one architecture and says what the kernels need there; None where it does not compile."""
    print(f"{path} for {arch}", file=out)
    entry: dict[str, Any] = {"arch": arch, "ok": True, "error": None, "warnings": [], "kernels": []}
    outcome.architectures.append(entry)
    try:
        compiled = files.compiled_for(arguments, path, arch, configs)
    except CompileError as error:
        entry |= {"ok": False, "error": str(error)}
        print(f"  FAILED: {error}", file=out)
        return None
    for kernel in files.kernel_facts(compiled):
        print(f"  {kernel.text}", file=out)
        occupancies = list(_occupancies(kernel, arch, configs, compiled))
        if occupancies:
            print(f"    occupancy: {'; '.join(map(_occupancy_text, occupancies))}", file=out)
        entry["kernels"].append(
            {
                "name": kernel.name,
                "registers": kernel.resources.registers,
                "static_shared": kernel.resources.static_shared,
                "stack": kernel.resources.stack,
                "spill_bytes": kernel.spilled,
                "max_threads": kernel.bound,
                "occupancy": occupancies,
            }
        )
    entry["warnings"] = files.warnings_of(compiled.log)
    for line in entry["warnings"]:
        print(f"  {line}", file=out)
    if not entry["kernels"]:
        print("  no kernels: a template gives one for each --names", file=out)
    return compiled


def _occupancies(
    kernel: files.KernelFacts, arch: str, configs: Sequence[Any], compiled: compiler.Compiled
) -> Iterator[dict[str, Any]]:
    """Theoretical occupancy for the block sizes that are known for a kernel, or for usual ones."""
    known: list[tuple[int, int]] = []
    for config in configs:
        if compiled.lowered.get(config.entry) == kernel.mangled or config.entry == kernel.name:
            threads = math.prod(config.block) if isinstance(config.block, tuple) else config.block
            known.append((threads, config.shared))
    if not known and kernel.bound is not None:
        known = [(kernel.bound, 0)]
    for threads, shared in dict.fromkeys(known or [(threads, 0) for threads in _USUAL_BLOCKS]):
        static = kernel.resources.static_shared
        resident = drivers.occupancy(arch, threads, kernel.resources.registers, static + shared)
        if resident is None:
            return
        yield {
            "threads": threads,
            "shared": shared,
            "blocks": resident.blocks,
            "occupancy": resident.fraction,
            "limit": resident.limit,
        }


def _occupancy_text(occupancy: dict[str, Any]) -> str:
    """ "50 % with 1024 threads (1 block, limited by registers)"."""
    dynamic = f" and {occupancy['shared']} bytes" if occupancy["shared"] else ""
    blocks = f"{occupancy['blocks']} block{'s' * (occupancy['blocks'] != 1)}"
    share = f"{100 * occupancy['occupancy']:.3g} %"
    return f"{share} with {occupancy['threads']} threads{dynamic} ({blocks}, by {occupancy['limit']})"


def _run_on(arches: Sequence[str]) -> str | None:
    """The newest of the architectures that a simulated device stands for, without its suffix."""
    able = [re.sub(r"[af]$", "", arch) for arch in arches if drivers.is_simulated(arch)]
    return max(able, key=lambda arch: int(arch[3:]), default=None)


# Running --------------------------------------------------------------------------------------------------------------


def _run_all(
    arguments: argparse.Namespace,
    path: Path,
    arch: str,
    compiled: Sequence[compiler.Compiled | None],
    outcome: Outcome,
    out: IO[str],
) -> None:
    """Fuzzes what ops declare, runs the user's script, and annotates what ran."""
    pairs = files.declared(path)
    if not pairs and arguments.script is None:
        print(
            "no family of cudakit.ops declares a kernel of this file, so nothing was run; --run SCRIPT.py takes a "
            "script that launches its kernels",
            file=out,
        )
    if arguments.examples:
        for family, variant in pairs:
            _fuzz(arguments, arch, family, variant, outcome, out)
    if not outcome.ok or not (arguments.script or arguments.annotate):
        return
    with drivers.watching(outcome.checks) as watch, _quietly(arguments.json == "-"):
        if arguments.script is not None:
            said = f"run by {arguments.script}"
            run = {
                "script": arguments.script,
                **_run_script(arguments.script, arch, watch, "leaks" in (arguments.checks or ())),
            }
        else:
            said, run = _run_variants(arch, pairs)
    outcome.runs.append(run)
    for leak in run["leaks"] if run["ok"] else ():
        print(leak, file=out)
    if not run["ok"]:
        print(f"{said}: FAILED\n{run['failure']}", file=out)
        return
    spills = {kernel.mangled: kernel.spilled for one in compiled if one for kernel in files.kernel_facts(one)}
    mine = [record for record in watch.launches() if _is_of(record, path)]
    launches = sum(record.counters.launches for record in mine)
    print(f"{said}: all right, {launches} launch{'es' * (launches != 1)} of kernels of this file", file=out)
    kernels = annotate.kernels(mine, spills)
    outcome.kernels = [kernel.as_dict() for kernel in kernels]
    for kernel in kernels:
        for item in advice.hints(kernel.counters):
            where = f" at {os.path.basename(item.place[0])}:{item.place[1]}" if item.place else ""
            print(f"  {kernel.name}: {item.kind}{where}", file=out)
    if arguments.annotate:
        if not kernels:
            raise Refused(
                f"--annotate {arguments.annotate}: {said}, no kernel of {path.name} was launched on a simulated "
                "device. Compile it by its path with line info (the default), and launch on cudakit.Device()"
            )
        facts = [f"{annotate.shown_path(str(path))}: {said} on the simulated device, {arch}"]
        Path(arguments.annotate).write_text(annotate.page(path, kernels, facts), encoding="utf-8")
        outcome.annotated = arguments.annotate
        print(f"written: {arguments.annotate}", file=out)


def _fuzz(arguments: argparse.Namespace, arch: str, family: Any, variant: Any, outcome: Outcome, out: IO[str]) -> None:
    from cudakit.commands import fuzzing

    fuzzed = fuzzing.run(
        f"sim:{arch}",
        family,
        [variant.name],
        arguments.examples,
        arguments.seed,
        checks=outcome.checks,
        seconds=arguments.seconds,
    )
    print(fuzzed.text(), file=out)
    outcome.fuzzed.append({"ok": fuzzed.ok, "variant": variant.name, **asdict(fuzzed)})


def _is_of(record: Any, path: Path) -> bool:
    return any(annotate.same_file(file, path) for file in {file for file, _ in record.counters.per_line})


@contextlib.contextmanager
def _quietly(wanted: bool) -> Iterator[None]:
    """What scripts print goes to stderr where stdout is JSON's."""
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield


def _run_variants(arch: str, pairs: Sequence[tuple[Any, Any]]) -> tuple[str, dict[str, Any]]:
    """Launches each variant once, on the first of its family's shapes that it takes. Gives what was run, and the
    outcome."""
    from cudakit.device import Device

    said: list[str] = []
    run: dict[str, Any] = {"script": None, "ok": True, "failure": None, "leaks": []}
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
                        run |= {"ok": False, "failure": str(error)}
                        return ", ".join(said), run
                    break
    return ", ".join(said) or "no variant takes its family's shapes", run


def _run_script(script: str, arch: str, watch: drivers.Watch, fail_on_leaks: bool) -> dict[str, Any]:
    """Runs a script as the main program, with the simulated device as the default one."""
    kept = os.environ.get("CUDAKIT_DEVICE"), sys.argv, sys.path[:]
    os.environ["CUDAKIT_DEVICE"] = f"sim:{arch}"
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).resolve().parent))
    failure = None
    told: list[Any] = []
    try:
        with _listening(told):
            runpy.run_path(script, run_name="__main__")
            watch.finish()
    except DeviceUnavailable as error:
        raise Refused(
            f"--run {script}: it asks for a GPU ({error}). Let it take cudakit.Device(), which is the "
            "simulated device here"
        ) from error
    except CudakitError as error:
        failure = str(error)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            failure = f"the script ended with status {ended.code}"
    except Exception:
        failure = traceback.format_exc()
    finally:
        device, sys.argv, sys.path[:] = kept
        os.environ.pop("CUDAKIT_DEVICE")
        if device is not None:
            os.environ["CUDAKIT_DEVICE"] = device
    # what the script met and passed over, too
    reports = {str(report): report.kind for report in (*told, *watch.reports())}
    leaks = [text for text, kind in reports.items() if kind == "leak"]
    if failure is None:
        failure = "\n".join(text for text in reports if text not in leaks or fail_on_leaks) or None
    return {"ok": failure is None, "failure": failure, "leaks": leaks}


@contextlib.contextmanager
def _listening(told: list[Any]) -> Iterator[None]:
    """Collects the reports that come as warnings, which Python may hide."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, *where: Any, **more: Any) -> None:
            if isinstance(message, (LeakWarning, UnseenFault)):
                told.append(message.report)
            else:
                show(message, *where, **more)

        warnings.simplefilter("always", LeakWarning)
        warnings.simplefilter("always", UnseenFault)
        warnings.showwarning = note
        yield
