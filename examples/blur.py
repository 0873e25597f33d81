"""The blur ladder: 3x3 Gaussian blur of a batch of images in one launch. The variants: one thread per pixel, tiles with
their halo in shared memory, and warps that walk down strips with row sums in registers.

    python examples/blur.py
    python examples/blur.py --shapes 1000x1024x1024 --modes reflect --json -
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "blur"))
