"""Every variant of the 16-bit matrix product and cuBLAS (torch.matmul), timed in turns in the same run, with the SM
clock and the power during each measurement.

A chip that reaches its power limit lowers its clock, so the order and the rests matter: a round times each variant once
for --budget-ms, after a rest of --rest-ms, and every second round is in the reverse order. A row is the median of
--rounds rounds. Operands are normal random numbers, and the calls take turns on so many copies of them that no call
finds its operands in the L2. Results are checked: 64 rows and columns against float64.

On the simulated device, results are checked and nothing is timed. Under Nsight Compute, or with --once, each variant is
launched once per shape, in its own NVTX range gemm_half.VARIANT, and nothing else runs on the GPU:

    python examples/gemm_half_ladder.py
    python examples/gemm_half_ladder.py --shapes 4096,64x4096x4096 --variants tiles,split_k --json -
    cudakit profile --set row examples/gemm_half_ladder.py --shapes 4096
"""

import argparse
import sys
from dataclasses import replace

from half_products import product, rounds, ways
from half_products.arrays import OwnArrays, made_for
from half_products.cases import Case
from half_products.options import expect_known, product_shapes

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.families.gemm_half import DTYPES, FAMILY
from cudakit.measure.ceilings import large_copy_ceiling
from cudakit.measure.rows import BenchReport
from cudakit.measure.timing import GpuTimer
from cudakit.names import hint
from cudakit.shapes import shape_text
from cudakit.show import outputs, terminal
from cudakit.show.digits import NOTHING, number
from cudakit.show.tables import by_shape, device_line, group_text

# The shapes on a GPU, and on the simulated device.
SHAPES = {"gpu": [(4096,), (8192,)], "sim": [(64,)]}
SEED = 0


def chosen(names):
    """Return the variants with these names, in the ladder's order; all if `names` is None."""
    known = [variant.name for variant in FAMILY]
    for name in names or ():
        if name not in known:
            raise Refused(f"--variants {name}: unknown; choose from {', '.join(known)}{hint(name, known)}")
    return [variant for variant in FAMILY if names is None or variant.name in names]


def rows_of(run, shape, dtype, variants):
    """Return the rows of one product: each variant, then torch."""
    made = product.Product(run, "ladder", Case(shape, dtype))
    a, b, _, out = made.sets[0]
    a, b, out = map(run.device.wrap, (a, b, out))
    problem = FAMILY.problem_of([a, b], out)
    rows, right = [], []

    def check(way, row, reason=None):
        rows.append(row)
        if reason:
            row.skip(reason)
        elif made.checked(way, row) is not None:
            right.append((made, way, row))

    for variant in variants:
        made.run = replace(run, variant=variant.name)  # the name of the row
        way = replace(ways.ours(variant.name, run.made.call_stream), idea=variant.idea)
        row = made.row(way)
        row.subject.rung = FAMILY.rung(variant)
        check(way, row, variant.refusal(problem, run.device.arch))
    if run.made.torch is not None:
        way = ways.by_torch(run.made.torch)
        check(way, made.row(way))
    product.measure(run, right)
    return rows


def measure(device, arguments, shapes, variants, report, facts, say):
    """Add the rows of all products to `report`, and to `facts` the version of torch and the source of the clocks."""
    once = arguments.once or cli.under_profiler()
    with device.stream() as stream, rounds.Clocks(device) as clocks:
        # torch would launch kernels of its own, which a profile would contain
        made = OwnArrays(device, stream, SEED) if once else made_for(device, stream, SEED)
        facts["torch"] = None if made.torch is None else made.torch.__version__
        timer, copy_gbps = None, None
        if device.kind == "gpu" and not once:
            timer = GpuTimer(device, stream, budget_ms=arguments.budget_ms)
            report.ceilings["copy_large"] = large_copy_ceiling(device, timer)
            copy_gbps = report.ceilings["copy_large"]["gbps"]
        run = product.Run(
            device=device, made=made, timer=timer, clocks=clocks, say=say, rounds=arguments.rounds,
            rest_s=arguments.rest_ms / 1000, copy_gbps=copy_gbps,
        )  # fmt: skip
        with made.on():
            for dtype in arguments.dtypes:
                for shape in shapes:
                    say(f"{shape_text(shape)} {dtype}")
                    report.rows += rows_of(run, shape, dtype, variants)
        facts["clocks"] = clocks.source


def show(result, console):
    """Print one table per product."""
    for group, rows in by_shape(result["rows"]).items():
        notes = terminal.Notes()
        ran = [row for row in rows if not row["skipped"]]
        verdicts = ["yes" if row["ok"] else f"NO: {row['why']}" for row in ran]
        cells = {
            "variant": [row["variant"] for row in ran],
            "TFLOP/s": [number(row["tflops"]) for row in ran],
            "of cuBLAS": [NOTHING if row["of_ceiling"] is None else f"{row['of_ceiling']:.3f}" for row in ran],
            "MHz": [number(row["sm_mhz"], 4) for row in ran],
            "W": [number(row["watts"]) for row in ran],
            "correct": [notes.verdict(text) for text in verdicts],
        }
        columns = [terminal.Column(name, texts, 0, name in ("variant", "correct")) for name, texts in cells.items()]
        skipped = [f"{row['variant']}: skipped: {row['skipped']}" for row in rows if row["skipped"]]
        terminal.show_table(console, group_text(group), columns, notes=[*notes.lines(), *skipped])
        terminal.show_text(console, "")
    if result["device"]["kind"] == "sim":
        terminal.show_text(console, "results were checked; times are measured only on a GPU")
    else:
        terminal.show_text(console, f"SM clock and power: {result['clocks']}")
    terminal.show_text(console, device_line(result))


def run(arguments):
    expect_known("--dtypes", arguments.dtypes, DTYPES)
    outputs.check_destination("--json", arguments.json)
    variants = chosen(arguments.variants)
    console, progress = cli.consoles(arguments)
    facts = {"torch": None, "clocks": None}
    with cli.open_device(arguments.device) as device:
        shapes = product_shapes(arguments.shapes or SHAPES[device.kind])
        report = BenchReport(device.info())
        try:
            measure(device, arguments, shapes, variants, report, facts, lambda text: terminal.show_text(progress, text))
        finally:  # rows that were measured before an error are kept
            settings = {name: getattr(arguments, name) for name in ("rounds", "budget_ms", "rest_ms")}
            result = {**report.as_dict(), **facts, "settings": settings}
            if not arguments.quiet:
                show(result, console)
            if arguments.json:
                outputs.write_json(result, arguments.json)
    return cli.verdict(report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--shapes", type=cli.parse_shapes, metavar="S,...", help="N or MxNxK (default: 4096,8192 on a GPU)"
    )
    parser.add_argument("--variants", type=cli.parse_names, metavar="NAME,...", help="only these (default: all)")
    parser.add_argument(
        "--dtypes", type=cli.parse_names, default=["bfloat16"], metavar="D,...", help="of A, B and the output"
    )
    parser.add_argument("--once", action="store_true", help="launch each variant once, untimed (implied under ncu)")
    parser.add_argument("--rounds", type=cli.positive, default=3, help="rounds per product (default: 3)")
    parser.add_argument(
        "--budget-ms", type=cli.positive, default=100, help="per measurement; power is read every 20 to 100 ms "
        "(default: 100)",
    )  # fmt: skip
    parser.add_argument("--rest-ms", type=cli.positive, default=100, help="before each measurement (default: 100)")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
