"""16-bit matrix products of `ops.gemm` and of cuBLAS (torch.matmul), timed in turns in the same run.

A round times each call once for --budget-ms, after a rest of --rest-ms; every second round is in the reverse order. A
row is the median of --rounds rounds. Operands are normal random numbers. Small products take turns on so many copies
of their arrays that no call finds its operands in the L2. The SM clock and the power during each measurement, and the
bandwidth of a large copy, are read in the same run. Results are checked: 64 rows and columns against float64, all
elements against cuBLAS.

--drawn N draws (m, n, k) as exp(u), rounded, with u from numpy.random.default_rng(SEED).uniform(log(16), log(16384),
(N, 3)). All N rows are reported.

--grouped measures ops.gemm_grouped: drawn and equal rows per group, contiguous (offsets) and masked. It is compared
with one product of ops.gemm of as many rows, and with one call of cuBLAS per group. Drawn numbers of rows are uniform
between an eighth and twice the mean: numpy.random.default_rng(SEED).integers(mean // 8, 2 * mean, GROUPS,
endpoint=True), at least 1. The masked arrays have memory for twice the mean in each group.

On the simulated device, results of small products are checked and nothing is timed.

    python examples/gemm_against_cublas.py
    python examples/gemm_against_cublas.py --shapes 4096,64x4096x4096 --layouts nn,nt,tn,tt --json -
    python examples/gemm_against_cublas.py --drawn 40 --seed 20261128 --rest-ms 30
    python examples/gemm_against_cublas.py --grouped 8x16384x4096x7168 --dtypes bfloat16,float16
"""

import argparse
import sys

from half_products import cases, modes, rounds, tables, ways
from half_products.arrays import made_for
from half_products.options import expect_known, product_shapes
from half_products.product import Run

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.families.gemm_grouped import MOST_GROUPS
from cudakit.families.gemm_half import DTYPES, FAMILY
from cudakit.measure.ceilings import large_copy_ceiling
from cudakit.measure.rows import BenchReport
from cudakit.measure.timing import GpuTimer
from cudakit.shapes import shape_text
from cudakit.show import outputs, terminal

SEED = 20261128


def grouped_shapes(shapes):
    """Return the shapes of --grouped, after their checks."""
    for shape in shapes:
        said = f"--grouped {shape_text(shape)}"
        if len(shape) != 4 or 0 in shape:
            raise Refused(f"{said}: write GROUPSxROWSxNxK, with extents of at least 1; ROWS: of all groups together")
        if shape[0] > MOST_GROUPS:
            raise Refused(f"{said}: {shape[0]} groups; at most {MOST_GROUPS} are supported")
        if shape[1] % shape[0]:
            raise Refused(
                f"{said}: {shape[1]} rows cannot be divided into {shape[0]} equal groups; write a multiple of "
                f"{shape[0]} rows"
            )
    return shapes


def expect_grouped(arguments):
    """Refuse the options that --grouped does not have."""
    supported = {"layouts": ["nn"], "leading": (0, 0, 0), "variant": "auto", "peers": ["torch"]}
    for name, only in supported.items():
        found = getattr(arguments, name)
        if found and found != only:
            found, only = (value if isinstance(value, str) else ",".join(map(str, value)) for value in (found, only))
            raise Refused(f"--{name} {found}: --grouped supports only {only}; leave out --{name}, or --grouped")


def paddings(text):
    """Parse `1,3,5`, the elements added to the rows of A, B and the output."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != 3 or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write three numbers of at least 0, for A, B and the output")
    return found


def checked_arguments(arguments):
    """Refuse impossible requests before the device is opened. Return the tables to make, except that of drawn shapes,
    and their shapes; usual shapes if there are none."""
    outputs.check_destination("--json", arguments.json)
    outputs.check_destination("--markdown", arguments.markdown)
    expect_known("--dtypes", arguments.dtypes, DTYPES)
    expect_known("--layouts", arguments.layouts, cases.LAYOUTS)
    expect_known("--peers", arguments.peers, ways.PEERS)
    expect_known("--variant", [arguments.variant], ["auto", *(variant.name for variant in FAMILY)])
    given = product_shapes(arguments.shapes or [])
    asked = {name: given for name in ("errors", "epilogue", "calls") if getattr(arguments, name)}
    if arguments.grouped is not None:
        expect_grouped(arguments)
        asked["grouped"] = grouped_shapes(arguments.grouped)
    if not asked.keys() - {"grouped"} and (given or not (arguments.drawn or asked)):
        asked["shapes"] = given
    return asked


def measure(device, arguments, asked, report, facts, say):
    """Add the rows of all tables to `report`, and to `facts` the version of torch and the source of the clocks."""
    with device.stream() as stream, rounds.Clocks(device) as clocks:
        facts["clocks"] = clocks.source
        made = made_for(device, stream, arguments.seed)
        if made.torch is not None:
            facts["torch"] = made.torch.__version__
        if arguments.drawn:
            most = cases.MOST if device.kind == "gpu" else cases.MOST_SIMULATED
            asked["drawn"] = cases.drawn(arguments.drawn, arguments.seed, most)
        timer, copy_gbps = None, None
        if device.kind == "gpu" and not cli.under_profiler():
            timer = GpuTimer(device, stream, budget_ms=arguments.budget_ms)
            report.ceilings["copy_large"] = large_copy_ceiling(device, timer)
            copy_gbps = report.ceilings["copy_large"]["gbps"]
        shared = Run(
            device=device,
            made=made,
            timer=timer,
            clocks=clocks,
            say=say,
            variant=arguments.variant,
            peers=tuple(ways.PEERS[name] for name in arguments.peers),
            dtypes=arguments.dtypes,
            layouts=arguments.layouts,
            out_dtype=arguments.out_dtype,
            leading=arguments.leading,
            rounds=arguments.rounds,
            rest_s=arguments.rest_ms / 1000,
            copy_gbps=copy_gbps,
            seed=arguments.seed,
            asked=asked,
        )
        with made.on():
            for name, mode in modes.MODES.items():
                if name in asked:
                    for row in mode(shared):
                        report.rows.append(row)
        facts["clocks"] = clocks.source


def finish(report, facts, arguments, console):
    """Print the tables, and write them and the JSON."""
    settings = {name: getattr(arguments, name) for name in ("rounds", "budget_ms", "rest_ms", "seed")}
    result = {**report.as_dict(), **facts, "settings": settings}
    result["summaries"] = tables.summaries(result)
    if not arguments.quiet:
        tables.show(result, console)
    if arguments.markdown:
        outputs.write_file(arguments.markdown, tables.as_markdown(result) + "\n")
    if arguments.json:
        outputs.write_json(result, arguments.json)


def run(arguments):
    asked = checked_arguments(arguments)
    console, progress = cli.consoles(arguments)
    facts = {"torch": None, "clocks": None}
    with cli.open_device(arguments.device) as device:
        report = BenchReport(device.info())
        try:
            measure(device, arguments, asked, report, facts, lambda text: terminal.show_text(progress, text))
        finally:  # rows that were measured before an error are kept
            finish(report, facts, arguments, console)
    return cli.verdict(report)


def positive_ms(text):
    """Parse a number of milliseconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: write milliseconds above 0")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    tabled = parser.add_argument_group("tables (default: times of usual shapes)")
    tabled.add_argument(
        "--shapes",
        type=cli.parse_shapes,
        metavar="S,...",
        help="times of these products, N or MxNxK; or their --errors, --epilogue or --calls",
    )
    tabled.add_argument("--drawn", type=cli.positive, metavar="N", help="times of N products of drawn shapes")
    tabled.add_argument(
        "--errors",
        action="store_true",
        help="mean and largest error against float64: four kinds of data, 16-bit and float32 output",
    )
    tabled.add_argument(
        "--epilogue",
        action="store_true",
        help="times of x @ w + bias with GELU, and of x @ w + residual, in one kernel, and of torch.compile's code",
    )
    tabled.add_argument("--calls", action="store_true", help="the host's microseconds per call")
    tabled.add_argument(
        "--grouped", type=cli.parse_shapes, nargs="?", const=[], metavar="S,...",
        help="times of grouped products of these shapes, GROUPSxROWSxNxK; ROWS: of all groups, if they are equal "
        "(default: 8x16384x4096x7168)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=SEED, help=f"of drawn shapes, drawn rows per group and all data (default: {SEED})"
    )
    parser.add_argument("--dtypes", type=cli.parse_names, default=["bfloat16"], metavar="D,...", help="of A and B")
    parser.add_argument(
        "--layouts", type=cli.parse_names, default=["nn"], metavar="L,...", help="of A and B: nn, nt, tn, tt; t: A.T"
    )
    parser.add_argument("--out-dtype", choices=["", "float32"], default="", help="of the output (default: A's)")
    parser.add_argument(
        "--leading", type=paddings, default=(0, 0, 0), metavar="A,B,D",
        help="elements added to each row of A, B and the output in memory (default: 0,0,0)",
    )  # fmt: skip
    parser.add_argument("--variant", default="auto", help="of cudakit's product (default: auto)")
    parser.add_argument(
        "--peers",
        type=cli.parse_names,
        default=[],
        metavar="P,...",
        help="torch; compile: torch.compile with max-autotune; triton: the same, without cuBLAS. Compiling takes "
        "minutes (default: torch, and for --epilogue also compile)",
    )
    parser.add_argument("--rounds", type=cli.positive, default=5, help="rounds per product (default: 5)")
    parser.add_argument("--budget-ms", type=positive_ms, default=20.0, help="per measurement (default: 20)")
    parser.add_argument("--rest-ms", type=positive_ms, default=100.0, help="before each measurement (default: 100)")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables in Markdown")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
