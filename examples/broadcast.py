"""out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x] in one kernel, from uncoalesced to full memory bandwidth.

A block of 4x4x4 with threadIdx.x along x looks natural but is slow: x is the slowest axis in memory, so the 32 lanes of
a warp touch 16 rows, two floats in each. On the simulated device the column sectors/request shows this: a request of 32
floats needs 4 sectors of 32 bytes (16 if lanes move 16 bytes each). torch needs two operations for the sum and moves
the volume twice.

    python examples/broadcast.py
    python examples/broadcast.py --device sim --shapes 32x32x32
    python examples/broadcast.py --shapes 512x512x512,64x64x65536 --json -
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "add_broadcast"))
