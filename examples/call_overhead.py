"""Host cost of the functions of cudakit.ops: microseconds per call, and wall time per call in a plain loop.

Each call is measured as a user writes it, three times in the same run: on cudakit arrays, on torch tensors, and torch's
own call. The cost of a call is the host's time per call in bursts of 300 calls, with the same pause after each burst.
It is the median of all bursts of five rounds; each round measures every call in turn. `launch`, for comparison, is a
checked launch of one kernel with four arguments.

Loops use sizes at which the GPU's time matters too. A loop is 300 calls and a synchronisation; reported is the time per
call, the median of five rounds, in which the calls alternate.

On the simulated device results are checked and nothing is timed: a simulator's host time is not a GPU's call cost.

    python examples/call_overhead.py
    python examples/call_overhead.py --json -
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cudakit import ops
from cudakit.commands import against, cli
from cudakit.compare import within
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import Spread, host_costs
from cudakit.memory import array as memory
from cudakit.show import example_tables, outputs, tables, terminal

BURST, BURSTS, ROUNDS = 300, 10, 5
REST_S = 0.002

OURS, OURS_ON_TORCH, TORCH = "cudakit arrays", "torch tensors", "peer:torch"
IDEAS = {
    OURS: "cudakit.ops on cudakit arrays",
    OURS_ON_TORCH: "cudakit.ops on torch tensors",
    TORCH: "torch's own call",
}

# y[i] = factor * x[i]
SCALE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


@dataclass
class CallRow(Row):
    """A row with wall microseconds per call in a loop; above_torch_us: call_us minus torch's; of_torch: the loop's time
    divided by torch's."""

    loop_us: dict | None = None
    above_torch_us: float | None = None
    of_torch: float | None = None


@dataclass(frozen=True)
class Case:
    """One call. ours(inputs, out) and theirs(torch, inputs, out) return a function without arguments that makes the
    call and returns its result. mode: distinguishes the call from others of its family."""

    family: str
    shape: tuple[int, ...]
    ours: Callable
    theirs: Callable
    dtype: str = "float32"
    mode: str = ""
    options: dict = field(default_factory=dict)


def our_softmax(inputs, out):
    (x,) = inputs
    return lambda: ops.softmax(x, out)


def torch_softmax(torch, inputs, out):
    (x,) = inputs
    return lambda: torch.softmax(x, -1, out=out)


def our_new_softmax(inputs, out):
    (x,) = inputs
    return lambda: ops.softmax(x)


def torch_new_softmax(torch, inputs, out):
    (x,) = inputs
    return lambda: torch.softmax(x, -1)


def our_add(inputs, out):
    a, b = inputs
    return lambda: ops.add(a, b, out)


def torch_add(torch, inputs, out):
    a, b = inputs
    return lambda: torch.add(a, b, out=out)


def our_row_sum(inputs, out):
    (x,) = inputs
    return lambda: ops.sum(x, -1, out)


def torch_row_sum(torch, inputs, out):
    (x,) = inputs
    return lambda: torch.sum(x, -1, out=out)


def our_whole_sum(inputs, out):
    (x,) = inputs
    return lambda: ops.sum(x, None, out)


def torch_whole_sum(torch, inputs, out):
    (x,) = inputs
    return lambda: torch.sum(x, (0, 1), out=out)


def our_scale(inputs, out):
    (x,) = inputs
    return lambda: ops.scale(x, 0.7, out)


def torch_scale(torch, inputs, out):
    (x,) = inputs
    return lambda: torch.mul(x, 0.7, out=out)


def our_gemm(inputs, out):
    a, b = inputs
    return lambda: ops.gemm(a, b, out)


def torch_gemm(torch, inputs, out):
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    a, b = inputs
    return lambda: torch.matmul(a, b, out=out)


def our_attention(inputs, out):
    q, k, v = inputs
    return lambda: ops.attention(q, k, v, out)


def torch_attention(torch, inputs, out):
    q, k, v = inputs
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


CALLS = (
    Case("softmax", (256, 256), our_softmax, torch_softmax),
    Case("softmax", (256, 256), our_new_softmax, torch_new_softmax, mode="new output"),
    Case("add", (256, 256), our_add, torch_add),
    Case("sum", (256, 256), our_row_sum, torch_row_sum, mode="rows", options={"axis": -1}),
    Case("sum", (256, 256), our_whole_sum, torch_whole_sum, mode="all", options={"axis": None}),
    Case("scale", (256, 256), our_scale, torch_scale, options={"factor": 0.7}),
    Case("gemm", (128, 128, 128), our_gemm, torch_gemm),
    Case("gemm_half", (128, 128, 128), our_gemm, torch_gemm, "float16"),
    Case("gemm_half", (128, 128, 128), our_gemm, torch_gemm, "bfloat16"),
    Case("attention", (1, 4, 4, 128, 128, 64), our_attention, torch_attention, "float16"),
)
LOOPS = (
    *(
        Case("softmax", shape, our_softmax, torch_softmax, mode="loop")
        for shape in ((1024, 1024), (3000, 5000), (1023, 4097), (512, 512))
    ),
    *(Case("gemm", shape, our_gemm, torch_gemm, mode="loop") for shape in ((300, 700, 500), (128, 128, 65536))),
)
# Small loops for the simulated device, which checks and does not time.
SIM_LOOPS = (
    Case("softmax", (13, 40), our_softmax, torch_softmax, mode="loop"),
    Case("gemm", (20, 17, 12), our_gemm, torch_gemm, mode="loop"),
)
SIM_SHAPES = {2: (8, 64), 3: (16, 16, 16), 6: (1, 2, 2, 16, 16, 64)}


def torch_or_reason(device):
    """torch, or the reason why its rows are skipped."""
    if device.kind == "sim":
        return "it needs a GPU"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return torch if torch.cuda.is_available() else "this torch finds no GPU"


class Measured:
    """One case on the device: its rows, and its calls that were correct."""

    def __init__(self, device, case, shape, torch):
        self.device, self.case = device, case
        self.family = ops.families()[case.family]
        self.shape = self.family.read_shape(shape)
        self.host = self.family.inputs_for(
            self.shape, memory.as_dtype(case.dtype), np.random.default_rng(1), **case.options
        )
        self.rows = {
            name: CallRow(Subject(case.family, name, None, self.shape, case.dtype, case.mode, idea))
            for name, idea in IDEAS.items()
        }
        inputs, out = self.arrays()
        self.calls = {OURS: case.ours(inputs, out)}
        if isinstance(torch, str):
            for name in (OURS_ON_TORCH, TORCH):
                self.rows[name].skip(torch)
        else:
            # clone copies it to memory of torch's own allocator, as for a user's tensors
            tensors = [torch.from_dlpack(array).clone() for array in inputs]
            self.calls[OURS_ON_TORCH] = case.ours(tensors, torch.from_dlpack(out).clone())
            self.calls[TORCH] = case.theirs(torch, tensors, torch.from_dlpack(out).clone())

    def arrays(self):
        """New inputs and an output of NaN."""
        ((shape, dtype),) = self.family.outputs_like(self.host, **self.case.options)
        out = self.device.full(shape, float("nan"), dtype)
        return [self.device.array(x) for x in self.host], out

    def check(self):
        """Makes every call once. Calls with a wrong result are not measured."""
        reference = self.family.exact(self.host, **self.case.options)
        rounding = self.family.allowed(reference, self.host, **self.case.options)
        for name, call in list(self.calls.items()):
            result = call()
            self.device.synchronize()
            self.rows[name].judge(within(self.device.wrap(result).numpy(), reference, rounding))
            if not self.rows[name].ok:
                del self.calls[name]

    def take_calls(self, samples):
        """Keep the medians of the rounds as the host's cost per call."""
        for name, taken in samples.items():
            self.rows[name].called(Spread.of(taken), "cudakit" if name == OURS else "torch")
        theirs = self.rows[TORCH].times.call
        for row in self.rows.values():
            if row.times.call is not None and theirs is not None:
                row.above_torch_us = row.times.call.median - theirs.median

    def take_loops(self, samples):
        """Keep the rounds as wall time per call."""
        spreads = {name: Spread.of(taken) for name, taken in samples.items()}
        for name, spread in spreads.items():
            self.rows[name].loop_us = spread.as_dict()
            if TORCH in spreads:
                self.rows[name].of_torch = spread.median / spreads[TORCH].median


def checked_launch(device):
    """Return the row of a checked launch with four arguments, and the call."""
    x, y = device.full((256,), 1.0, "float32"), device.zeros((256,))
    kernel, stream = device.compile(source=SCALE, name="scale.cu")["scale"], device.default_stream
    row = CallRow(Subject("launch", OURS, None, (256,), "float32", "", "Kernel.launch, checked"))

    def call():
        kernel.launch(stream, grid=1, block=256, args=(x, y, 2.0, 256))

    call()
    row.verdict.ok = bool((y.numpy() == 2.0).all())
    if not row.ok:
        row.fail("the launch did not multiply by its factor")
    return row, call


def time_calls(device, cases, launch_row, launch, rounds, bursts):
    """Measure the host's cost of every call. A round runs all cases; within a case the calls alternate."""

    def settle():
        device.synchronize()
        time.sleep(REST_S)  # equal pauses: the CPU's clock rate depends on their length

    samples = [{name: [] for name in case.calls} for case in cases]
    launches = []
    for _ in range(rounds):
        costs = host_costs({"launch": launch}, settle, burst=BURST, bursts=bursts)
        launches.append(costs["launch"].median)
        for case, taken in zip(cases, samples, strict=True):
            for name, cost in host_costs(case.calls, settle, burst=BURST, bursts=bursts).items():
                taken[name].append(cost.median)
    launch_row.called(Spread.of(launches), "cudakit")
    for case, taken in zip(cases, samples, strict=True):
        case.take_calls(taken)


def time_loops(device, cases, rounds):
    """Measure wall microseconds per call in a plain loop that ends with a synchronisation."""
    for case in cases:
        samples = {name: [] for name in case.calls}
        for number in range(rounds + 1):
            for name, call in case.calls.items():
                device.synchronize()
                time.sleep(REST_S)
                begin = time.perf_counter_ns()
                for _ in range(BURST):
                    call()
                device.synchronize()
                took = (time.perf_counter_ns() - begin) / BURST / 1000
                if number:  # the first round warms up
                    samples[name].append(took)
        case.take_loops(samples)


def show(result, console):
    for title, headings, lines in example_tables.call_tables(result):
        notes = terminal.Notes()
        *cells, verdicts = zip(*lines, strict=True)
        columns = [
            terminal.Column(heading, column, words=heading == "call")
            for heading, column in zip(headings, cells, strict=False)
        ]
        columns.append(terminal.Column("correct", [notes.verdict(text) for text in verdicts], words=True))
        terminal.show_table(console, title, columns, notes=notes.lines())
    for reason in dict.fromkeys(row["skipped"] for row in result["rows"] if row["skipped"]):
        terminal.show_text(console, f"torch: skipped: {reason}")
    if result["device"]["kind"] == "sim":
        terminal.show_text(console, "results were checked; call times are measured only on a GPU")
    terminal.show_text(console, tables.device_line(result))


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    earlier = against.load(arguments.against) if arguments.against else None
    console, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        torch = torch_or_reason(device)
        launch_row, launch = checked_launch(device)
        calls = [Measured(device, case, case.shape if gpu else SIM_SHAPES[len(case.shape)], torch) for case in CALLS]
        loops = [Measured(device, case, case.shape, torch) for case in (LOOPS if gpu else SIM_LOOPS)]
        for case in (*calls, *loops):
            case.check()
        if gpu:
            time_calls(device, calls, launch_row, launch, arguments.rounds, arguments.bursts)
            time_loops(device, loops, arguments.rounds)
        report = BenchReport(device.info())
        report.rows = [launch_row, *(row for case in (*calls, *loops) for row in case.rows.values())]
    result = {**report.as_dict(), "burst": BURST, "torch": None if isinstance(torch, str) else torch.__version__}
    if not arguments.quiet:
        show(result, console)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    status = cli.verdict(report)
    return status if earlier is None else max(status, against.conclude(earlier, result, arguments.against, console))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    cli.add_against_argument(parser, "compare with an older --json of this script")
    parser.add_argument("--bursts", type=cli.positive, default=BURSTS, help=f"bursts per round (default: {BURSTS})")
    parser.add_argument("--rounds", type=cli.positive, default=ROUNDS, help=f"rounds (default: {ROUNDS})")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
