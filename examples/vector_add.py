"""c = a + b in four variants: flat, as a volume in 3-D blocks, with a grid-stride loop, and with 16 bytes per lane.

The table shows two times that are often confused: the kernel's time, and the time including transfers to the device and
back. It has a row for numpy on the host. A shape such as 200x250x200 is a volume, slowest axis first.

    python examples/vector_add.py
    python examples/vector_add.py --shapes 10000000,200x250x200 --json -
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "vector_add"))
