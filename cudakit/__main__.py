"""The command line: python -m cudakit, or cudakit."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudakit import __version__, names
from cudakit.commands import (
    check,
    clangd,
    cli,
    debugging,
    files,
    fuzzing,
    profile,
    project,
    replaying,
    shipping,
    tuning,
)
from cudakit.errors import Refused
from cudakit.show import outputs, terminal


def info(arguments: argparse.Namespace) -> int:
    """Shows the installation: cudakit, NVRTC, the driver, each GPU or why there is none, and the cache."""
    import cudakit
    from cudakit.compile import bundled, cache, compiler, headers, precompiled

    outputs.check_destination("--json", arguments.json)
    folder = cache.directory()
    bypassed = cache.why_bypassed(folder)
    not_bundled = bundled.unpack()
    facts: dict[str, object] = {
        "cudakit": cudakit.__version__,
        "python": sys.version.split()[0],
        "nvrtc": compiler.nvrtc_identity(),
        "headers": list(headers.cuda_directories()),
        "bundled": f"NVRTC's own headers are not used: {not_bundled}"
        if not_bundled
        else "NVRTC's own headers are first",
        "kernels": str(headers.kernel_root()),
        "pch": precompiled.summary(),
        "cache": f"not used: {bypassed}" if bypassed else str(folder),
    }
    specs = ["gpu:0"]
    devices: list[dict[str, object]] = []
    for spec in specs:
        try:
            with cudakit.Device(spec) as device:
                memory = device.memory_info()
                devices.append(
                    {
                        "spec": spec,
                        **device.info(),
                        "multiprocessors": device.multiprocessors,
                        "memory_gib": round(memory[1] / 2**30, 1),
                        "free_gib": round(memory[0] / 2**30, 1),
                    }
                )
                count = int(device.context.call("cuDeviceGetCount"))
                specs += [f"gpu:{number}" for number in range(len(specs), count)]
        except cudakit.DeviceUnavailable as error:  # show the cause: the user did not name gpu:0
            facts["gpu"] = f"none: {error.__cause__ or error}"
        except cudakit.CudakitError as error:
            facts["gpu"] = f"none: {error}"
    with cudakit.Device("sim") as device:
        devices.append({"spec": "sim", **device.info()})
    facts["devices"] = devices
    if arguments.json:
        outputs.write_json(facts, arguments.json)
    if arguments.json != "-":
        for key, value in facts.items():
            if key != "devices":
                terminal.say(f"{key:>8}  {', '.join(map(str, value)) if isinstance(value, list) else value}")
        for device_facts in devices:
            terminal.say(
                f"{'device':>8}  " + ", ".join(f"{key} {value}" for key, value in device_facts.items() if value)
            )
    return cli.EXIT_OK


def bench(arguments: argparse.Namespace) -> int:
    from cudakit.commands import ladder

    if not (arguments.family or arguments.against):
        raise Refused(
            "name a family to measure, such as softmax, or an older report to compare with: --against OLD.json"
        )
    return ladder.run(arguments, arguments.family, arguments.against)


def draw(arguments: argparse.Namespace) -> int:
    """Draws the JSON of a bench again, without measuring."""
    from cudakit.show import outputs, plots

    plots.check(arguments.plot)
    report = outputs.load(Path(arguments.file))
    with outputs.reading(f"{arguments.file} is not a report that can be drawn"):
        pictures = plots.plot(
            report, arguments.plot, kind=arguments.kind, shape=arguments.shape, variants=arguments.variants or ()
        )
    for written in pictures:
        print(written)
    return cli.EXIT_OK


def fill(arguments: argparse.Namespace) -> int:
    """Rewrites the tables and figures of Markdown files; with --check only reports files that are out of date.

    The paths in the marks are relative to the working directory.
    """
    from cudakit.show import marks, outputs

    @functools.cache
    def load(source: str) -> Mapping[str, Any]:
        return (outputs.load_toml if source.endswith(".toml") else outputs.load)(Path(source))

    wrong, found = False, 0
    for name in arguments.file:
        path = Path(name)
        old = outputs.read_text(path)
        found += marks.count(old)
        new, problems = marks.fill_marks(old, load)
        for problem in problems:
            print(f"{name}: {problem}", file=sys.stderr)
        if new != old:
            print(f"{name}: {'not up to date' if arguments.check else 'written'}")
            if not arguments.check:
                outputs.write_file(path, new)
        wrong = wrong or bool(problems) or (new != old and arguments.check)
    if not found:
        return cli.nothing_checked(f"{', '.join(arguments.file)}: there are no marks <!-- TABLE FILE.json -->")
    return cli.EXIT_FALSE if wrong else cli.EXIT_OK


COMMANDS = (
    "info",
    "compile",
    "check",
    "debug",
    "replay",
    "bench",
    "fuzz",
    "tune",
    "profile",
    "export",
    "new",
    "draw",
    "fill",
    "clangd",
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cudakit", description="Write, check, time and profile CUDA kernels.")
    parser.add_argument("--version", action="version", version=f"cudakit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, run: object) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text.splitlines()[0], description=text, formatter_class=cli.HelpFormatter)
        sub.set_defaults(run=run)
        return sub

    sub = command("info", "Shows the devices, the driver, NVRTC and the cache, and why there is no GPU.", info)
    sub.add_argument("--json", metavar="FILE", help="write the facts as JSON; -: to stdout, and nothing else")

    sub = command(
        "compile", "Compiles a .cu file and prints each kernel's parameters and resources.", files.compile_file
    )
    files.add_compile_arguments(sub)
    sub.add_argument("--arch", default="sm_90a", help="the architecture (default: sm_90a)")
    sub.add_argument("--ptx", metavar="FILE", help="write the PTX to FILE; -: to stdout")
    sub.add_argument("--cubin", metavar="FILE", help="write the cubin to FILE")

    sub = command("check", check.HELP, check.main)
    check.add_arguments(sub)

    sub = command("debug", debugging.HELP, debugging.main)
    debugging.add_arguments(sub)

    sub = command("replay", replaying.HELP, replaying.main)
    replaying.add_arguments(sub)

    sub = command("bench", "Checks and measures every variant of a family, next to its ceiling and its peers.", bench)
    sub.add_argument("family", nargs="*", help=f"{cli.FAMILIES}; with --against, by default all of OLD.json")
    cli.add_bench_arguments(sub)
    cli.add_against_argument(sub, "measure the rows of an older --json again, on the same kind of device")

    sub = command(
        "fuzz", "Runs a family's variants on problems drawn by hypothesis and checks the results.", fuzzing.fuzz
    )
    sub.add_argument("family", help=cli.FAMILIES)
    sub.add_argument(
        "--examples", type=cli.positive, default=200, help="number of different problems per variant (default: 200)"
    )
    sub.add_argument("--variants", type=cli.parse_names, metavar="NAME,...", help="only these (default: all)")
    sub.add_argument(
        "--elements",
        type=cli.positive,
        help="elements of the largest problem (default: 20000, on the simulated device 4000)",
    )
    sub.add_argument("--seed", type=int, help="seed of the problems; the same seed draws the same problems")
    sub.add_argument(
        "--checks",
        type=cli.parse_list,
        metavar="C,...",
        help="only these checks of the simulated device (default: all but benign)",
    )
    sub.add_argument("--device", default="auto", metavar="auto|sim|gpu|gpu:N")

    sub = command("tune", tuning.HELP, tuning.main)
    tuning.add_arguments(sub)

    sub = command("profile", profile.HELP, profile.main)
    profile.add_arguments(sub)

    sub = command("export", shipping.HELP, shipping.main)
    shipping.add_arguments(sub)
    sub.set_defaults(version=__version__)

    sub = command("new", project.HELP, project.main)
    project.add_arguments(sub)
    sub.set_defaults(version=__version__)

    sub = command(
        "draw", "Draws a bench's JSON: one bar per variant for one shape, or one line per variant over sizes.", draw
    )
    sub.add_argument("file", help="the report that --json wrote")
    sub.add_argument(
        "--plot",
        metavar="FILE.png",
        required=True,
        help="the picture; its ending names the format, and x.dark.png is drawn for dark pages",
    )
    sub.add_argument(
        "--kind", choices=("ladder", "sweep"), help="ladder: bars; sweep: lines (default: by the number of shapes)"
    )
    sub.add_argument("--shape", type=cli.parse_shape, metavar="SHAPE", help="the ladder's shape (default: the fullest)")
    sub.add_argument(
        "--variants",
        type=cli.parse_names,
        metavar="NAME,...",
        help="the ladder's bars, or the sweep's lines in colour (default: a selection)",
    )

    sub = command("fill", "Writes tables and figures into Markdown files, from the JSON that their marks name.", fill)
    sub.add_argument("file", nargs="+", help="Markdown files with marks")
    sub.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")

    sub = command("clangd", clangd.HELP, clangd.main)
    clangd.add_arguments(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0 only if nothing failed; 2 if no command is given, after the help."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return cli.guarded(lambda: _run(given), verbose="-v" in given or "--verbose" in given)


def _run(given: Sequence[str]) -> int:
    parser = build_parser()
    if not given:
        parser.print_help()
        return cli.EXIT_REFUSED
    first = next((word for word in given if not word.startswith("-")), None)
    if first is not None and first not in COMMANDS:
        raise Refused(f"there is no command {first!r}; there are {', '.join(COMMANDS)}{names.hint(first, COMMANDS)}")
    own, rest = list(given), []
    if first == "debug" and "--" in own:  # argparse would take the script's arguments for its own
        place = own.index("--")
        own, rest = own[:place], own[place + 1 :]
    parsed = parser.parse_args(own, argparse.Namespace(arguments=rest))
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(main())
