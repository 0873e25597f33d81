"""C = A + B for one matrix: a single block of 16x16 threads, compared with one block per 16x16 tile.

16x16 fits the single block, one element per thread. 256x256 has 256 tiles. 100x100 has 6.25 tiles per side: a grid
rounded down to 6x6 leaves the last four rows and columns unwritten, so it is rounded up to 7x7 and the kernel guards
the edge. The single block of 256 threads loops over the matrix, so it is correct for any size, but it uses only one
multiprocessor.

    python examples/add_2d.py
    python examples/add_2d.py --shapes 4096x4096,1000x999 --json -
"""

import sys

from cudakit.commands import ladder

DEFAULTS = {"--shapes": "16x16,256x256,100x100", "--variants": "one_block,many_blocks"}

if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = [f"{flag}={value}" for flag, value in DEFAULTS.items() if flag != "--shapes" or "--sweep" not in given]
    sys.exit(ladder.main(__doc__, "matrix_add", [*chosen, *given]))
