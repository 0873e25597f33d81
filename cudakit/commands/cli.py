"""Code shared by the commands and the examples: common flags, opening the device, the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cudakit import names, system
from cudakit.errors import CompileError, CudakitError, Refused
from cudakit.shapes import Shape
from cudakit.show import outputs, terminal

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.device import Device
    from cudakit.family import Ladder
    from cudakit.measure.rows import BenchReport

#: The help of an argument that names a family.
FAMILIES = "mine.py:FAMILY, package.module:FAMILY, or a name such as softmax"

EXIT_OK = 0
EXIT_FALSE = 1  # a result is wrong, or a check failed
EXIT_REFUSED = 2  # the request was wrong, or nothing was checked; also argparse's status


def parse_shapes(text: str) -> list[Shape]:
    """Parse shapes: `8192x8192,100` is [(8192, 8192), (100,)]. Raises argparse's error for anything else."""
    shapes = []
    for part in text.split(","):
        try:
            shape = tuple(int(extent) for extent in part.strip().lower().split("x"))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 0:
            raise argparse.ArgumentTypeError(f"{part!r} is not a shape: write extents joined by x, such as 8192x8192")
        shapes.append(shape)
    return shapes


def parse_shape(text: str) -> Shape:
    """Parse one shape. Raises argparse's error unless there is exactly one."""
    shapes = parse_shapes(text)
    if len(shapes) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than one shape")
    return shapes[0]


class HelpFormatter(argparse.HelpFormatter):
    """Help formatter that keeps the description's lines and paragraphs, and wraps them at words on a narrow
    terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return terminal.wrapped(terminal.joined(text), width, hang="")


def add_against_argument(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the flag for comparing the result with an older one."""
    parser.add_argument(
        "--against",
        metavar="OLD.json",
        help=f"{text}; print the rows that changed beyond their noise, and exit with 1 if one is slower",
    )


def parse_list(text: str) -> list[str]:
    """Parse a comma-separated list: `a, b` is ["a", "b"]. Returns an empty list if there is no name."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_names(text: str) -> list[str]:
    """As parse_list, but raises argparse's error if there is no name."""
    found = parse_list(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no name: write one or more names, separated by commas")
    return found


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every example and every measuring command has."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|sim|gpu|gpu:N",
        help="the device; auto: $CUDAKIT_DEVICE, else the first GPU, else the simulated device (default: auto)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; -: print only the JSON to stdout")
    parser.add_argument("--quiet", action="store_true", help="print no table and no progress (implied under ncu)")
    parser.add_argument("--table", action="store_true", help="print the table even under ncu")


def add_bench_arguments(parser: argparse.ArgumentParser, *, shapes: str = "8192x8192,4096x12672") -> None:
    """Add the flags of `add_common_arguments` and the flags for benchmarking a family."""
    add_common_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shapes", type=parse_shapes, metavar="S,...", help=f"the shapes to run, such as {shapes}")
    what.add_argument("--sweep", action="store_true", help="run all of the family's shapes")
    parser.add_argument("--variants", type=parse_names, metavar="NAME,...", help="only these variants (default: all)")
    parser.add_argument(
        "--dtypes", type=parse_names, metavar="DTYPE,...", help="these dtypes (default: the family's first)"
    )
    parser.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        metavar="MODE,...",
        help="these modes of the family, such as causal; the first one has an empty name (default: the first)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        help="plot the result, for dark pages if FILE.dark.png: one bar per variant for one shape, one line per "
        "variant for several; needs the plot extra",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="launch each variant once per shape: checked, not timed, without peers (implied under ncu)",
    )
    parser.add_argument(
        "--back-to-back",
        action="store_true",
        help="also time 50 launches in a row on the same arrays, after 10 warm-ups, as most tutorials do (GPUs only)",
    )
    parser.add_argument(
        "--kernels-only",
        action="store_true",
        help="time only kernels and peers: no numpy on the host, no transfers, no host time per call",
    )


def family(name: str) -> Ladder[Any]:
    """Return the family with this name: `mine.py:FAMILY`, `package.module:FAMILY`, a family of cudakit.ops, or a family
    of an installed package (entry points of the group cudakit.families). Raises Refused if there is no such family."""
    from cudakit import ops
    from cudakit.family import find

    if find.is_target(name):
        return _climbable(find.load(name))
    families = ops.families()
    if name in families:
        return families[name]
    installed = find.installed()
    if name in installed:
        return _climbable(find.loaded(installed[name]))
    known = (*families, *installed)
    raise Refused(
        f"there is no family {name!r}; there are {', '.join(known)}, and your own as mine.py:FAMILY"
        f"{names.hint(name, known)}"
    )


def _climbable(found: Ladder[Any]) -> Ladder[Any]:
    """Return the family. Raises Refused if it has no variants."""
    if not found.variants:
        raise Refused(f"family {found.name} has no variants: add one with @FAMILY.variant(...)")
    return found


def open_device(spec: str, **options: Any) -> Device:
    """Open the device that `--device` names. options: options of a simulated device; a device with options is not
    shared."""
    from cudakit.device import Device

    try:
        return Device(None if spec == "auto" else spec, **options)
    except ValueError as error:  # an invalid name; a missing device raises DeviceUnavailable
        raise Refused(str(error)) from error


def open_devices(spec: str, count: int | None) -> list[Device]:
    """Open `count` devices of the kind that `--device` names. If `count` is None, open all GPUs, or two simulated
    devices."""
    from cudakit.device import Device

    try:
        return Device.several(None if spec == "auto" else spec, count)
    except ValueError as error:
        raise Refused(str(error)) from error


def positive(text: str) -> int:
    """Parse a count. Raises argparse's error for anything except a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: write a whole number of at least 1")
    return value


def nothing_checked(why: str) -> int:
    """Print to stderr the reason why a command checked nothing. Returns the exit status."""
    print(f"error: NOTHING CHECKED: {why}", file=sys.stderr)
    return EXIT_REFUSED


def verdict(report: BenchReport) -> int:
    """The exit status of a measuring script: 1 if a row is wrong, 2 if no row was checked."""
    if not report.ok:
        return EXIT_FALSE
    if not report.checked:
        reasons = dict.fromkeys(row.verdict.skipped for row in report.rows if row.verdict.skipped)
        return nothing_checked("; ".join(map(str, reasons)) or "there are no rows")
    return EXIT_OK


def under_profiler() -> bool:
    """Whether this process runs under Nsight Compute. It replays each launch tens of times, so launch only once."""
    return any(name.startswith(("NV_NSIGHT_INJECTION", "NV_COMPUTE_PROFILER")) for name in os.environ)


def consoles(arguments: argparse.Namespace) -> tuple[Console, Console]:
    """Return the consoles for the table and for progress. The table goes to stderr if JSON goes to stdout.

    Both are silent under Nsight Compute, which prints to the same terminal, unless --table is passed.
    """
    quiet = arguments.quiet or (under_profiler() and not getattr(arguments, "table", False))
    table = terminal.console(stderr=arguments.json == "-", quiet=quiet)
    return table, terminal.console(stderr=True, quiet=quiet)


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Yield step(text), which shows the current step and advances the bar by one. Shown only on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(overflow="fold"))  # wraps if it is long
    columns = (text, BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=console.quiet or not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)
        first = True

        def step(text: str) -> None:
            nonlocal first
            bar.update(task, description=text, advance=0 if first else 1)
            first = False

        yield step


def guarded(main: Callable[[], int], *, verbose: bool = False) -> int:
    """Run a main function and return its exit status. Errors in the request and system errors (files, pipes, memory)
    are printed to stderr and return 2. Any other exception is a bug and is raised. verbose: print the options of a
    source that did not compile."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        system.printable(getattr(sys, name))
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # a full disk or closed pipe raises here, not at the interpreter's exit
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (CudakitError, Refused) as error:
        said = str(error)
        if verbose and isinstance(error, CompileError) and error.options:
            said += f"\noptions: {' '.join(error.options)}"
    except UnicodeError as error:
        said = f"a text or a name is not valid Unicode: {error}"
    except OSError as error:
        files = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if not files and error.errno is not None:  # of a stream
            _drop_stdout()
            files = ["the output could not be written"]
        said = ": ".join([*files, outputs.reason(error)])
    except MemoryError as error:
        said = f"not enough host memory: {error}".removesuffix(": ")
    with suppress(OSError):
        terminal.say_error(f"error: {said}".encode(errors="backslashreplace").decode(), sys.stderr)
    return EXIT_REFUSED


def _drop_stdout() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit does not fail again."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(system.open_file(os.devnull, os.O_WRONLY), sys.stdout.fileno())
