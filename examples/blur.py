"""The blur ladder: 3x3 Gaussian blur of a batch of images in one launch, pixel by pixel, by tiles with their whole
halo, and walking down with sums in registers.

    python examples/blur.py
    python examples/blur.py --shapes 1000x1024x1024 --modes reflect --json -
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "blur"))
