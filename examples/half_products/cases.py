"""The products that are measured: their shapes, layouts and data."""

import math
from dataclasses import dataclass

import numpy as np

# The extents of drawn shapes; on the simulated device they are smaller.
LEAST, MOST, MOST_SIMULATED = 16, 16384, 48
LAYOUTS = ("nn", "nt", "tn", "tt")
ITEM = 2  # bytes per element of A and B


@dataclass(frozen=True)
class Case:
    """One product, (m, k) times (k, n). layout: of A and B; n: row-major, t: the transpose of a row-major matrix.
    out_dtype: "" for the operands'. leading: elements added to each row of A, B and the output in memory."""

    shape: tuple
    dtype: str = "bfloat16"
    layout: str = "nn"
    out_dtype: str = ""
    leading: tuple = (0, 0, 0)

    @property
    def result(self):
        """The dtype of the output."""
        return self.out_dtype or self.dtype

    @property
    def mode(self):
        """The properties that differ from a plain product, as text."""
        return " ".join(
            text
            for text in (
                "" if self.layout == "nn" else self.layout,
                "" if self.result == self.dtype else f"{self.result} out",
                f"rows + {','.join(map(str, self.leading))}" if any(self.leading) else "",
            )
            if text
        )

    @property
    def flops(self):
        return 2 * math.prod(self.shape)

    @property
    def traffic(self):
        """The least bytes of memory traffic: each operand and the output once."""
        m, n, k = self.shape
        return ITEM * (m * k + k * n) + (4 if self.result == "float32" else ITEM) * m * n


def drawn(count, seed, most=MOST):
    """Return `count` shapes (m, n, k). Each extent is exp(u), rounded to a whole number, for u uniform between the
    logarithms of LEAST and `most`: u is `np.random.default_rng(seed).uniform(log(LEAST), log(most), (count, 3))`."""
    exponents = np.random.default_rng(seed).uniform(math.log(LEAST), math.log(most), (count, 3))
    return [tuple(int(extent) for extent in row) for row in np.rint(np.exp(exponents))]


# Data -----------------------------------------------------------------------------------------------------------------
# Each function returns A and B in float32. `made` draws the numbers: arrays.OwnArrays or arrays.TorchArrays.


def normal(made, m, n, k):
    return made.normal(m, k), made.normal(k, n)


def uniform(made, m, n, k):
    return made.uniform(m, k), made.uniform(k, n)


def large_row(made, m, n, k):
    a, b = normal(made, m, n, k)
    a[m // 2] *= 1000
    return a, b


def cancelling(made, m, n, k):
    a, b = normal(made, m, n, k)
    pairs = k // 2
    a[:, 1 : 2 * pairs : 2] = -a[:, 0 : 2 * pairs : 2]
    b[1 : 2 * pairs : 2] = b[0 : 2 * pairs : 2] + 0.01 * b[1 : 2 * pairs : 2]
    return a, b


#: The kinds of data, and their descriptions.
DATA = {
    "normal": (normal, "normal numbers"),
    "uniform": (uniform, "uniform between 0 and 1"),
    "large_row": (large_row, "normal numbers, one row of A times 1000"),
    "cancelling": (cancelling, "columns of A and -A in turns, for pairs of rows of B that differ by 1 %"),
}
