"""All variants of the softmax ladder, from one thread per row to rows kept in registers, checked and compared.

On a GPU: times and bandwidth, compared with a copy of the same bytes, numpy, and torch and Triton if installed. On the
simulated device: counted memory traffic of each variant.

    python examples/softmax_compare.py
    python examples/softmax_compare.py --shapes 8192x8192,4096x12672 --json -
    python examples/softmax_compare.py --sweep --plot softmax.png
    ncu --set full --nvtx python examples/softmax_compare.py --shapes 8192x8192
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "softmax"))
