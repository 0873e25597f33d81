"""The speed of the simulated device, with checks off and on, compared with other simulators.

"sim" is its interpreter, "compiled" its machine code, which needs llvmlite; the first launch compiles the kernel.

The same work on the same shapes: a row softmax by a tree in shared memory (256 threads per row), a product of square
matrices in 16x16 tiles, a vector sum. If installed, Numba's CUDA simulator (one Python thread per lane) and Triton's
interpreter (tiles as numpy arrays) are measured too. Kernels of one warp, with named barriers and with grid.sync() show
the cost per instruction of few lanes, and of checks that follow who waits for whom. `load` loads PTX with that many
copies of the product's kernel.

Every result is checked. Seconds are this machine's time for a launch and the wait for it, unrelated to a GPU's;
lane-instructions are PTX instructions times lanes.

    python examples/simulator_speed.py
    python examples/simulator_speed.py --large --json speed.json
    python examples/simulator_speed.py --peer-python ~/peers/bin/python
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import cudakit
from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import Spread
from cudakit.shapes import shape_text
from cudakit.show import outputs, tables, terminal

HERE = Path(__file__).resolve().parent / "simulator_speed"
CASES = ["softmax:8x512", "softmax:256x512", "softmax:1024x1024", "matmul:64", "matmul:256", "vector_add:1000000"]
CASES += ["one_warp:8192", "named_barriers:50", "grid_sync:50", "load:50"]
FEW_LANES = ("one_warp", "named_barriers", "grid_sync")
FAMILIES = ("softmax", "matmul", "vector_add", *FEW_LANES, "load")
LARGE = "matmul:1024"
THREADS = 256
TILE = 16
SLOW = 5.0  # a launch that takes longer, in seconds, is not repeated

# engine and options of our own rows
OURS = {
    "sim": ("interpreter", "checks off", {"checks": ()}),
    "sim:checked": ("interpreter", "all checks", {}),
    "compiled": ("compiled", "machine code, checks off", {"checks": ()}),
    "compiled:checked": ("compiled", "machine code, all checks", {}),
}

# package, environment variables that enable its simulator, script, and the shapes that finish within a minute
PEERS = {
    "peer:numba": (
        "numba",
        {"NUMBA_ENABLE_CUDASIM": "1"},
        "with_numba.py",
        {"softmax": 8 * 512, "matmul": 64, "vector_add": 4096},
    ),
    "peer:triton": (
        "triton",
        {"TRITON_INTERPRET": "1"},
        "with_triton.py",
        {"softmax": 1 << 20, "matmul": 256, "vector_add": 1 << 24},
    ),
}


@dataclass
class Speed(Row):
    """A row with this machine's seconds per launch, and their ratios to other rows."""

    seconds: dict[str, float] | None = None
    lane_instructions: int | None = None
    lane_instructions_per_second: float | None = None
    over_unchecked: float | None = None  # seconds with all checks, divided by those without
    over_compiled: float | None = None  # the interpreter's seconds, divided by those of machine code, same checks
    first_seconds: float | None = None  # of the first launch, which compiles the kernel
    microseconds_per_instruction: float | None = None  # of a warp
    ms_per_line: float | None = None  # of PTX, to load it
    over_ours: float | None = None  # a peer's seconds, divided by ours without checks


@dataclass
class Work:
    """One case on one device: its launch and the expected result."""

    launch: Any
    result: Any
    expected: Any
    bound: Any


def parse_case(text):
    family, _, shape = text.partition(":")
    if family not in FAMILIES:
        raise argparse.ArgumentTypeError(f"{text!r}: the families are {', '.join(FAMILIES)}, as in softmax:8x512")
    extents = cli.parse_shapes(shape)[0]
    if len(extents) != (2 if family == "softmax" else 1) or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write softmax:ROWSxCOLUMNS, or one number, as in matmul:64")
    if family == "one_warp" and extents[0] % 32:
        raise argparse.ArgumentTypeError(f"{text!r}: the number of elements must be a multiple of 32")
    return family, extents


def prepare(device, family, shape):
    """Create the arrays of a case on a device; the output is filled with NaN."""
    stream, random = device.default_stream, np.random.default_rng(0)
    if family == "softmax":
        rows, columns = shape
        x = random.standard_normal(shape, dtype=np.float32)
        powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
        source, target = device.array(x), device.full(shape, np.nan, np.float32)
        kernel = device.compile("softmax/05_tree_reduce.cu")["tree_reduce"]
        args = (source, target, columns, 1, columns, 1, rows, columns)
        launch = lambda: kernel.launch(stream, grid=rows, block=THREADS, shared=4 * THREADS, args=args)  # noqa: E731
        return Work(launch, target, expected, 1e-5 * expected + 1e-30)
    if family == "matmul":
        n = shape[0]
        a, b = (random.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        target = device.full((n, n), np.nan, np.float32)
        kernel = device.compile(HERE / "tiled_matmul.cu")["tiled_matmul"]
        blocks, args = -(-n // TILE), (device.array(a), device.array(b), target, n)
        launch = lambda: kernel.launch(stream, grid=(blocks, blocks), block=(TILE, TILE), args=args)  # noqa: E731
        wide = a.astype(np.float64), b.astype(np.float64)
        return Work(launch, target, wide[0] @ wide[1], (n + 1) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1])))
    if family in FEW_LANES:
        return prepare_few_lanes(device, family, shape[0], random)
    n = shape[0]
    a, b = (random.standard_normal(n, dtype=np.float32) for _ in range(2))
    target = device.full((n,), np.nan, np.float32)
    kernel = device.compile("vector_add/01_vector_add.cu")["vector_add"]
    args = (device.array(a), device.array(b), target, n)
    launch = lambda: kernel.launch(stream, grid=-(-n // THREADS), block=THREADS, args=args)  # noqa: E731
    return Work(launch, target, a + b, np.zeros(n))


def prepare_few_lanes(device, family, n, random):
    """`prepare` a kernel of few_lanes.cu: n elements, rounds or steps."""
    stream, kernel = device.default_stream, device.compile(HERE / "few_lanes.cu")[family]
    if family == "one_warp":
        x = random.standard_normal((n // 32, 32), dtype=np.float32)
        source, target, total = device.array(x), device.full(x.shape, np.nan, np.float32), np.zeros(32, np.float32)
        expected = np.empty_like(x)
        for row, values in enumerate(x):
            total = np.float32(0.5) * total + values + values[np.arange(32) ^ 1]
            expected[row] = total
        launch = lambda: kernel.launch(stream, grid=1, block=32, args=(source, target, n))  # noqa: E731
    elif family == "named_barriers":
        x = random.standard_normal((4, 256), dtype=np.float32)
        source, target, expected = device.array(x), device.full(x.shape, np.nan, np.float32), x
        for _ in range(n):
            expected = np.float32(0.5) * (expected + expected[:, np.arange(256) ^ 32]) + np.float32(1)
        launch = lambda: kernel.launch(stream, grid=4, block=256, args=(source, target, n))  # noqa: E731
    else:
        x = expected = random.standard_normal(16 * 128, dtype=np.float32)
        for _ in range(n):
            padded = np.pad(expected, 1)
            expected = np.float32(0.5) * (padded[:-2] + padded[2:])
        source, *both = device.array(x), *(device.full(x.shape, np.nan, np.float32) for _ in range(2))
        target, args = both[(n - 1) % 2], (source, *both, n)
        launch = lambda: kernel.launch(stream, grid=16, block=128, args=args, cooperative=True)  # noqa: E731
    return Work(launch, target, expected, 0.0)


def time_loading(row, copies, repeats):
    """Measure seconds to load PTX with copies of the product's kernel, without NVRTC."""
    head, mark, kernel = (HERE / "tiled_matmul.cu").read_text().partition("// a, b, c:")
    named = [mark + kernel.replace("void tiled_matmul", f"void product_{n}") for n in range(copies)]
    with cudakit.Device("sim", fresh=True) as device:
        ptx = device.compile(source=head + "".join(named), name="copies.cu").ptx
        seconds = []
        while len(seconds) < 3 or sum(seconds) < repeats:
            begin = time.perf_counter()
            module = device.load(ptx)
            seconds.append(time.perf_counter() - begin)
            row.verdict.ok = len(list(module)) == copies
            module.close()
    row.seconds = Spread.of(seconds).as_dict()
    row.ms_per_line = 1e3 * row.seconds["median"] / ptx.count("\n")


def time_ours(row, family, shape, repeats, engine, **options):
    """Measure seconds per launch on a new simulated device, repeated for `repeats` seconds; check the result."""
    if engine == "compiled" and importlib.util.find_spec("llvmlite") is None:
        row.skip("llvmlite is not installed")
        return
    with (
        mock.patch.dict(os.environ, CUDAKIT_SIM_ENGINE=engine),
        cudakit.Device("sim", fresh=True, **options) as device,
    ):
        work = prepare(device, family, shape)
        device.synchronize()
        seconds = []
        while not seconds or (seconds[0] < SLOW and (len(seconds) < 4 or sum(seconds[1:]) < repeats)):
            begin = time.perf_counter()
            work.launch()
            device.synchronize()
            seconds.append(time.perf_counter() - begin)
        got = work.result.numpy().astype(np.float64)
        error = np.abs(got - work.expected)
        row.verdict.ok = bool((error <= work.bound).all())
        row.verdict.max_abs_error = float(error.max())
        if not row.ok:
            row.verdict.why = f"the worst error is {row.verdict.max_abs_error:.3g}"
        # the first launch also compiles the kernel, to Python or to machine code
        row.first_seconds = seconds[0]
        row.seconds = Spread.of(seconds[1:] or seconds).as_dict()


def count(family, shape):
    """Count PTX instructions times lanes of one launch, and those of warps."""
    with cudakit.Device("sim", fresh=True, checks=()) as device:
        work = prepare(device, family, shape)
        with device.counters() as counters:
            work.launch()
        found = counters.values()
        return sum(one.lane_instructions for one in found), sum(one.instructions for one in found)


def time_peer(row, python, family, shape, limit):
    """Measure seconds per launch of another simulator, in its own process with a time limit."""
    package, switches, script, sizes = PEERS[row.subject.variant]
    size = int(np.prod(shape)) if family != "matmul" else shape[0]
    if size > sizes[family]:
        row.skip(f"too slow with {package}")
        return
    there = subprocess.run([python, "-c", f"import {package}"], capture_output=True, text=True)
    if there.returncode:
        row.skip(f"{package} is not installed for {python}")
        return
    command = [python, str(HERE / script), family, shape_text(shape)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env={**os.environ, **switches})
    except subprocess.TimeoutExpired:
        row.skip(f"no result within {limit:.0f} s")
        return
    if done.returncode:
        said = done.stderr.strip().splitlines()
        row.skip(f"{package} failed: {said[-1] if said else done.returncode}")
        return
    told = json.loads(done.stdout.splitlines()[-1])
    row.verdict.ok, row.seconds = told["ok"], Spread.of(told["seconds"]).as_dict()


def measure(cases, arguments, step):
    """The rows of every case: ours without and with checks, then the peers'."""
    rows = []
    for family, shape in cases:
        text = f"{family} {shape_text(shape)}"
        if family == "load":
            step(text)
            rows.append(Speed(Subject(family, "sim", None, shape, "", "PTX to a module")))
            time_loading(rows[-1], shape[0], arguments.seconds)
            continue
        step(f"{text}, counting")
        if np.prod(shape) > 1 << 20 or (family == "matmul" and shape[0] > 256):
            lanes, warps = scaled_count(family, shape), None
        else:
            lanes, warps = count(family, shape)
        made = {}
        for variant, (engine, idea, options) in OURS.items():
            step(f"{text}, {idea}")
            row = made[variant] = Speed(Subject(family, variant, None, shape, "float32", idea))
            time_ours(row, family, shape, arguments.seconds, engine, **options)
            if row.seconds is not None:
                row.lane_instructions = lanes
                row.lane_instructions_per_second = lanes / row.seconds["median"]
                if family in FEW_LANES:
                    row.microseconds_per_instruction = 1e6 * row.seconds["median"] / warps
        base = made["sim"].seconds["median"]
        for engine in ("sim", "compiled"):
            made[f"{engine}:checked"].over_unchecked = ratio(made[f"{engine}:checked"], made[engine])
        for checks in ("", ":checked"):
            made[f"compiled{checks}"].over_compiled = ratio(made[f"sim{checks}"], made[f"compiled{checks}"])
        for variant in PEERS if arguments.peers and family not in FEW_LANES else ():
            step(f"{text}, {variant.removeprefix('peer:')}")
            row = made[variant] = Speed(Subject(family, variant, None, shape, "float32", "another simulator"))
            time_peer(row, arguments.peer_python, family, shape, arguments.limit)
            if row.seconds is not None:
                row.over_ours = row.seconds["median"] / base
        rows += made.values()
    return rows


def ratio(one, other):
    """The seconds of one row divided by another's; None if one was skipped."""
    return one.seconds["median"] / other.seconds["median"] if one.seconds and other.seconds else None


def scaled_count(family, shape):
    """Estimate `count` of a large case from a smaller one; exact if all blocks do the same work."""
    if family == "vector_add":
        whole, rest = divmod(shape[0], THREADS)
        return whole * count(family, (THREADS,))[0] + (count(family, (rest,))[0] if rest else 0)
    if family == "softmax":
        return shape[0] * count(family, (1, shape[1]))[0]
    n = shape[0]
    # cubic in the number of tiles: a block's loop has one iteration per block in a row
    tiles, one, two = -(-n // TILE), count(family, (TILE,))[0], count(family, (2 * TILE,))[0] // 4
    return tiles * tiles * (one + (tiles - 1) * (two - one))


def show(result, console):
    rows, notes = result["rows"], terminal.Notes()

    def figures(text):
        return [text(row) if row["seconds"] is not None else "" for row in rows]

    def seconds(row):
        if row["seconds"] is None:
            return f"- {notes.mark('skipped: ' + row['skipped'])}"
        return f"{row['seconds']['median']:.4g}" + ("" if row["ok"] else " WRONG")

    rate, checks, ours = "lane_instructions_per_second", "over_unchecked", "over_ours"
    engine, each, line = "over_compiled", "microseconds_per_instruction", "ms_per_line"
    columns = [
        terminal.Column("work", [row["family"] for row in rows], words=True),
        terminal.Column("shape", [shape_text(row["shape"]) for row in rows], words=True),
        terminal.Column("simulator", [row["variant"] for row in rows], words=True),
        terminal.Column("seconds", [seconds(row) for row in rows]),
        terminal.Column(
            "lane-instructions/s", figures(lambda row: f"{row[rate] / 1e6:.1f} M" if row[rate] else ""), leave=1
        ),
        terminal.Column(
            "us per warp's instruction", figures(lambda row: f"{row[each]:.2f}" if row[each] else ""), leave=5
        ),
        terminal.Column("ms per PTX line", figures(lambda row: f"{row[line]:.4f}" if row[line] else ""), leave=6),
        terminal.Column("checks cost", figures(lambda row: f"{row[checks]:.2f}x" if row[checks] else ""), leave=2),
        terminal.Column(
            "machine code is faster by", figures(lambda row: f"{row[engine]:.1f}x" if row[engine] else ""), leave=4
        ),
        terminal.Column("ours is faster by", figures(lambda row: f"{row[ours]:,.0f}x" if row[ours] else ""), leave=3),
    ]
    styles = ["dim" if row["seconds"] is None else None for row in rows]
    terminal.show_table(
        console, "seconds per launch, by this machine's clock", columns, notes=notes.lines(), styles=styles
    )
    terminal.show_text(console, tables.device_line(result))


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    if arguments.device not in ("auto", "sim"):
        raise Refused(f"--device {arguments.device}: this example measures only the simulated device")
    table, progress = cli.consoles(arguments)
    cases = arguments.cases or [parse_case(text) for text in (*CASES, *([LARGE] if arguments.large else []))]
    with cudakit.Device("sim", fresh=True) as device:
        report = BenchReport(device.info())
    with cli.progress(progress, len(cases) * (1 + len(OURS) + len(PEERS) * arguments.peers)) as step:
        rows = measure(cases, arguments, step)
    result = {**report.as_dict(), "cores": os.cpu_count(), "rows": [row.as_dict() for row in rows]}
    if not arguments.quiet:
        show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    return cli.EXIT_OK if all(row.ok is not False for row in rows) else cli.EXIT_FALSE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--cases",
        type=lambda text: [parse_case(part) for part in cli.parse_names(text)],
        metavar="CASE,...",
        help=f"cases to run (default: {','.join(CASES)})",
    )
    parser.add_argument("--large", action="store_true", help=f"also run {LARGE}, which takes minutes")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="ours alone")
    parser.add_argument(
        "--peer-python", default=sys.executable, metavar="EXE", help="the Python that has numba, triton and torch"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="seconds of repeats per case, after the first launch (default: 1)"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds a peer may take for a case (default: 60)")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
