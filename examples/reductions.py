"""Sum, max and argmax of a matrix in six variants: one thread per row, trees, shuffles, 16-byte loads, two launches,
columns.

The three operations use the same kernels. --modes columns reduces down the columns, --modes all reduces the whole
array. Each table has a row for numpy on the host; sums are compared with float64, within the error of numpy's pairwise
sum.

    python examples/reductions.py
    python examples/reductions.py --shapes 8192x8192,65536x256 --modes columns --json -
"""

import argparse
import sys

from cudakit.commands import cli, ladder

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_bench_arguments(parser)
    sys.exit(cli.guarded(lambda: ladder.run(parser.parse_args(), ["sum", "max", "argmax"])))
