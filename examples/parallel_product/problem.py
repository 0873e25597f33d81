"""The product of examples/tensor_parallel.py: its operands, its parts, and the rows and columns that are checked."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from cudakit.libs import nccl
from cudakit.memory.array import as_dtype


@dataclass
class Problem:
    """A product on `count` devices. blocks: the extents of the blocks of rows."""

    shape: tuple[int, int, int]
    dtype: str
    count: int
    blocks: list[int]
    variant: str
    ctas: int | None
    copy_engines: bool

    @property
    def cuts(self):
        return [slice(*ends) for ends in itertools.pairwise(itertools.accumulate(self.blocks, initial=0))]

    @property
    def widths(self):
        """The number of columns of each device."""
        ends = [self.shape[1] * i // self.count for i in range(self.count + 1)]
        return [stop - start for start, stop in itertools.pairwise(ends)]

    def columns(self, number):
        first = sum(self.widths[:number])
        return slice(first, first + self.widths[number])

    def operands(self):
        """A and B on the host; the same numbers in each process."""
        m, n, k = self.shape
        kind = as_dtype(self.dtype)
        return normal((m, k), 0).astype(kind, copy=False), normal((k, n), 1).astype(kind, copy=False)

    @property
    def sample(self):
        """Rows to check: all of a large product would take minutes on the host."""
        return np.unique(np.linspace(0, self.shape[0] - 1, 48).astype(int))

    @property
    def sampled_columns(self):
        """Columns to check."""
        return np.unique(np.linspace(0, self.shape[1] - 1, 8192).astype(int))


def normal(shape, seed):
    """Normal numbers, made by several threads."""
    made, step = np.empty(shape, np.float32), 256

    def fill(first):
        rng = np.random.Generator(np.random.SFC64([seed, first]))
        rng.standard_normal(out=made[first : first + step], dtype=np.float32)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, shape[0], step)))
    return made


def sampled(array, rows, stream):
    """Some rows of a device array, on the host."""
    return np.stack([array[int(row)].numpy(stream) for row in rows])


def gather_memory(problem, ranks):
    """Registered memory for the gathered blocks, which the copy engines need; otherwise None."""
    elements = problem.shape[0] * problem.count * max(problem.widths)
    return nccl.registered(ranks, (elements,), problem.dtype) if problem.copy_engines else None
