"""c = a + b four ways: flat, as a volume in 3-D blocks, with a fixed grid that strides, and 16 bytes a lane.

Two figures that are often taken for one stand side by side: the kernel's time, and the time with the transfers to the
device and back. numpy on the host is a row of the same table. A shape such as 200x250x200 is a volume, slowest axis
first.

    python examples/vector_add.py
    python examples/vector_add.py --shapes 10000000,200x250x200 --json -
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "vector_add"))
