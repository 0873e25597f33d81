"""Jacobi's iteration for Poisson's equation on a rectangle, with launches and with CUDA graphs.

    u'[i, j] = (u[i-1, j] + u[i+1, j] + u[i, j-1] + u[i, j+1] + f[i, j]) / 4, with u = 0 outside

A step reads one array and writes the other, so the two alternate. On a small grid the GPU executes a step faster than
the host launches it, so the GPU waits. A graph of many steps is captured once and replayed by one driver call: the host
takes almost no time per step, and the GPU starts each step itself. (On an H200 each step of 256x256 takes 3.7 us with
launches and 1.2 us with replays; a step of 1024x1024 takes 4.7 us and 3.7 us.)

On the simulated device this measures the host's cost of queueing into the simulator, which is unrelated to a GPU's.

    python examples/iterate.py
    python examples/iterate.py --shapes 256x256,1024x1024 --steps 1000 --length 100 --json -
"""

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from cudakit import graph
from cudakit.commands import cli
from cudakit.compare import compare
from cudakit.errors import Refused
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import BURST, host_costs, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs, tables, terminal
from cudakit.show.digits import number

BLOCK = (32, 8)

SOURCE = """
// One step of Jacobi's iteration: from (rows, cols) -> to (rows, cols); both and f are contiguous.
__global__ void jacobi(
    const float* __restrict__ from, const float* __restrict__ f, float* __restrict__ to, int rows, int cols
) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= rows || j >= cols) return;
    const long long at = static_cast<long long>(i) * cols + j;
    const float above = i > 0 ? from[at - cols] : 0.0f;
    const float below = i + 1 < rows ? from[at + cols] : 0.0f;
    const float left = j > 0 ? from[at - 1] : 0.0f;
    const float right = j + 1 < cols ? from[at + 1] : 0.0f;
    to[at] = 0.25f * (above + below + left + right + f[at]);
}
"""


def jacobi(f, steps, dtype):
    """Return numpy's result after `steps` steps from zero."""
    f, u = f.astype(dtype), np.zeros(f.shape, dtype)
    for _ in range(steps):
        padded = np.pad(u, 1)
        u = dtype(0.25) * (padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] + f)
    return u


class Solver:
    """The arrays of one problem and its steps. After an even number of them the result is in `u`."""

    def __init__(self, device, stream, f):
        self.device, self.stream, self.shape = device, stream, f.shape
        self.kernel = device.compile(source=SOURCE, name="jacobi.cu")["jacobi"]
        self.grid = (-(-f.shape[1] // BLOCK[0]), -(-f.shape[0] // BLOCK[1]))
        self.f = device.array(f, stream=stream)
        self.u, self.v = device.zeros(f.shape, stream=stream), device.zeros(f.shape, stream=stream)
        pairs = ((self.u, self.v), (self.v, self.u))
        self.ready = [
            self.kernel.prepare(grid=self.grid, block=BLOCK, args=(source, self.f, target, *f.shape))
            for source, target in pairs
        ]
        self.replay = graph.captured(self.launch)

    def launch(self, stream, u, v, steps):
        """Queue an even number of steps, one launch each."""
        for _ in range(steps // 2):
            self.kernel.launch(stream, self.grid, BLOCK, args=(u, self.f, v, *self.shape))
            self.kernel.launch(stream, self.grid, BLOCK, args=(v, self.f, u, *self.shape))

    def launches(self, steps, length):
        self.launch(self.stream, self.u, self.v, steps)

    def prepared(self, steps, length):
        there, back = self.ready
        for _ in range(steps // 2):
            there.launch(self.stream)
            back.launch(self.stream)

    def graphs(self, steps, length):
        """Queue graphs of `length` steps, and one of the remaining steps."""
        whole, rest = divmod(steps, length)
        for _ in range(whole):
            self.replay(self.stream, self.u, self.v, length)
        if rest:
            self.replay(self.stream, self.u, self.v, rest)


def ways(length):
    """The ways to run the steps, by the names of their rows."""
    return {
        "launches": ("one checked launch per step", Solver.launches),
        "prepared": ("one prepared launch per step", Solver.prepared),
        "graph": (f"replays of a graph of {length} steps", Solver.graphs),
    }


@dataclass
class StepsRow(Row):
    """A row with the number of steps, and microseconds per step: on the host, and in total."""

    steps: int = 0
    host_us: dict | None = None
    step_us: float | None = None


def measure(device, stream, shape, steps, length):
    """The rows of numpy and of each way, with microseconds per step on the host and in total."""
    f = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    exact, plain = jacobi(f, steps, np.float64), jacobi(f, steps, np.float32)
    cpu = StepsRow(Subject("jacobi", "cpu", None, shape, "float32", idea="numpy on the host"), steps=steps)
    cpu.judge(compare(plain, exact, plain))
    cpu.timed(wall_clock(lambda: jacobi(f, steps, np.float32), most=5))
    solver = Solver(device, stream, f)
    gpu = device.kind == "gpu"
    rows, calls = [cpu], {}
    for rung, (name, (idea, run)) in enumerate(ways(length).items(), 1):
        row = StepsRow(Subject("jacobi", name, rung, shape, "float32", idea=idea), steps=steps)
        solver.u.fill(0, stream)
        solver.v.fill(np.nan, stream)
        if gpu:
            run(solver, steps, length)
        else:
            with device.counters() as counters:
                run(solver, steps, length)
            row.counters = counters["jacobi"].as_dict()
        row.judge(compare(solver.u.numpy(stream), exact, plain))
        if gpu and row.ok:
            row.timed(wall_clock(lambda run=run: (run(solver, steps, length), stream.synchronize())))
        calls[name] = lambda run=run: run(solver, length, length)
        rows.append(row)
    # Bursts stay well below the depth of the launch queue, in which a graph takes one place.
    bursts = {"burst": max(1, BURST // length), "bursts": 30} if gpu else {"burst": 1, "bursts": 2}
    costs = host_costs(calls, stream.synchronize, **bursts)
    for row in rows:
        if row.subject.variant in costs:
            row.host_us = costs[row.subject.variant].scaled(1 / length).as_dict()
        if row.times.device is not None:
            row.step_us = 1000 * row.times.device.median / steps
    return rows


def show(result, console):
    rows, notes = result["rows"], terminal.Notes()
    hosts = [row["host_us"] for row in rows]
    columns = [
        terminal.Column("shape", [shape_text(row["shape"]) for row in rows], words=True),
        terminal.Column("steps", [str(row["steps"]) for row in rows]),
        terminal.Column("how", [row["variant"] for row in rows], words=True),
        terminal.Column("host us per step", ["-" if host is None else f"{host['median']:.2f}" for host in hosts]),
        terminal.Column(
            "p10 to p90",
            ["-" if host is None else f"{host['p10']:.2f} to {host['p90']:.2f}" for host in hosts],
            leave=2,
        ),
        terminal.Column(
            "us per step in all", ["-" if row["step_us"] is None else f"{row['step_us']:.2f}" for row in rows]
        ),
        terminal.Column("worst error", [number(row["max_abs_error"], 2) for row in rows], leave=1),
        terminal.Column(
            "correct", [notes.verdict("yes" if row["ok"] else f"NO: {row['why']}") for row in rows], words=True
        ),
    ]
    terminal.show_table(console, "Jacobi's iteration, microseconds per step", columns, notes=notes.lines())
    for name, idea in dict.fromkeys((row["variant"], row["idea"]) for row in rows):
        terminal.show_text(console, f"{name}: {idea}")
    if result["device"]["kind"] == "sim":
        terminal.show_text(
            console, "simulated: this machine's time for queueing into the simulator, unrelated to a GPU's driver"
        )
    terminal.show_text(console, tables.device_line(result))


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        gpu = device.kind == "gpu"
        steps = arguments.steps or (1000 if gpu else 20)
        length = arguments.length or min(steps, 100 if gpu else 8)
        for flag, count in (("--steps", steps), ("--length", length)):
            if count < 2 or count % 2:
                raise Refused(f"{flag} must be even and at least 2, got {count}: steps use two arrays in turn")
        rows = []
        for shape in arguments.shapes or ([(256, 256), (1024, 1024)] if gpu else [(24, 40)]):
            if len(shape) != 2 or 0 in shape:
                raise Refused(f"{shape_text(shape)} is not a grid: write ROWSxCOLS")
            rows += measure(device, stream, shape, steps, min(length, steps))
        report = BenchReport(device.info(), rows=rows)
    result = report.as_dict()
    if not arguments.quiet:
        show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    return cli.verdict(report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="grids, such as 256x256")
    parser.add_argument("--steps", type=cli.positive, help="steps in all (default: 1000, on the simulated device 20)")
    parser.add_argument("--length", type=cli.positive, help="steps per graph (default: 100, on the simulated device 8)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
