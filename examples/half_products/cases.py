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
        return ITEM * (m * k + k * n) + self.output_bytes

    @property
    def output_bytes(self):
        m, n, _ = self.shape
        return (4 if self.result == "float32" else ITEM) * m * n


@dataclass(frozen=True)
class GroupedCase(Case):
    """Products of groups of rows. shape: groups, rows in all, n, k. kind: "drawn" or "equal" rows per group. capacity:
    the rows that each group has memory for in the masked form; 0 for the contiguous form."""

    kind: str = ""
    rows: tuple = ()
    capacity: int = 0

    @property
    def mode(self):
        return " ".join(text for text in (self.kind, "masked" if self.capacity else "", super().mode) if text)

    @property
    def one(self):
        """One product of as many rows."""
        return Case(self.shape[1:], self.dtype, self.layout, self.out_dtype, self.leading)

    @property
    def flops(self):
        return self.one.flops

    @property
    def traffic(self):
        groups, _, n, k = self.shape
        return self.one.traffic + ITEM * (groups - 1) * n * k

    @property
    def sizes(self):
        """The rows per group of the masked form, or the offsets of the contiguous form."""
        return np.array(self.rows if self.capacity else [0, *np.cumsum(self.rows)])

    @property
    def starts(self):
        """The first row of each group in memory."""
        return np.arange(len(self.rows)) * self.capacity if self.capacity else self.sizes[:-1]

    @property
    def held(self):
        """The rows of A and of the output in memory."""
        return len(self.rows) * self.capacity or self.shape[1]


def grouped(shape, seed, **others):
    """Return the four cases of a shape: drawn and equal rows per group, contiguous and masked. Equal groups have
    `shape`; drawn ones have an eighth of their rows up to twice as many:
    `np.random.default_rng(seed).integers(rows // 8, 2 * rows, groups, endpoint=True)`, at least 1."""
    groups, total, *columns = shape
    mean = total // groups
    drawn_rows = np.random.default_rng(seed).integers(max(mean // 8, 1), 2 * mean, groups, endpoint=True)
    kinds = {"drawn": tuple(drawn_rows.tolist()), "equal": (mean,) * groups}
    return [
        GroupedCase((groups, sum(rows), *columns), kind=kind, rows=rows, capacity=capacity, **others)
        for kind, rows in kinds.items()
        for capacity in (0, 2 * mean)
    ]


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
