"""Plans of kernels/fft/06_rows.cu: the radices of a length, threads per row, rows per block, blocks per multiprocessor.

The best plans of an H200 are in `MEASURED`; all other lengths use the rule of `plan_for`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cudakit.family import ceil_div, cpp_bool

PRIMES = (2, 3, 5, 7, 11, 13)
# The longest row of one block, in complex values: 128 KB of shared memory and the gaps between banks.
LONGEST = 1 << 14
# The longest row of kernels/fft/07_long_rows.cu.
LONGEST_PRODUCT = 1 << 28
# The largest radix of the rule. A thread holds that many values in registers.
LARGEST_RADIX = 16
MOST_THREADS, MOST_BLOCKS = 1024, 16
# Threads per block of the rule, and adjacent columns per block.
THREADS, COLUMNS = 128, 16
# Registers per multiprocessor, and per thread by the values that it holds.
_REGISTERS = 65536
_REGISTERS_OF = {8: 48, 16: 64, 24: 96, 32: 128, 64: 255}

# Threads per row, rows per block, registers per thread, radices.
Measured = tuple[int, int, int, tuple[int, ...]]
# By complex values per row, and use: "fft", "rfft" and "irfft" of contiguous rows, or adjacent "columns".
MEASURED: dict[tuple[int, str], Measured] = {
    (64, "fft"): (8, 8, 64, (8, 8)),
    (100, "fft"): (10, 6, 80, (10, 10)),
    (128, "fft"): (16, 4, 64, (8, 16)),
    (256, "fft"): (16, 8, 64, (16, 16)),
    (512, "fft"): (64, 2, 64, (8, 8, 8)),
    (1000, "fft"): (100, 2, 56, (10, 10, 10)),
    (1024, "fft"): (64, 2, 64, (16, 8, 8)),
    (1536, "fft"): (64, 1, 72, (24, 8, 8)),
    (2048, "fft"): (128, 2, 80, (8, 16, 16)),
    (2187, "fft"): (81, 1, 80, (27, 27, 3)),
    (3125, "fft"): (125, 1, 128, (5, 25, 25)),
    (4096, "fft"): (256, 1, 80, (16, 16, 16)),
    (6000, "fft"): (400, 1, 64, (15, 20, 20)),
    (8192, "fft"): (256, 1, 128, (32, 16, 16)),
    (16384, "fft"): (512, 1, 128, (32, 32, 16)),
    (128, "rfft"): (16, 4, 80, (8, 16)),
    (512, "rfft"): (32, 2, 80, (16, 8, 4)),
    (2048, "rfft"): (128, 1, 80, (16, 16, 8)),
    (128, "irfft"): (8, 8, 80, (16, 8)),
    (512, "irfft"): (32, 2, 80, (16, 8, 4)),
    (2048, "irfft"): (128, 1, 112, (16, 16, 8)),
    (256, "columns"): (16, 32, 64, (16, 16)),
    (1024, "columns"): (32, 8, 96, (32, 32)),
    (4096, "columns"): (256, 4, 64, (16, 16, 16)),
}
# By rows and columns of a plane: the plan of both.
PLANES: dict[tuple[int, int], Measured] = {
    (256, 256): (16, 16, 80, (16, 16)),
    (512, 512): (32, 16, 64, (16, 8, 4)),
    (1024, 1024): (32, 8, 128, (32, 32)),
}


@dataclass(frozen=True)
class Plan:
    """The template arguments of Plan in kernels/fft/passes.cuh, and the least blocks per multiprocessor."""

    n: int
    threads: int
    rows: int
    columns: bool
    radices: tuple[int, ...]
    blocks: int

    @property
    def text(self) -> str:
        """The C++ type."""
        numbers = self.n, self.threads, self.rows, cpp_bool(self.columns), *self.radices
        return f"Plan<{', '.join(map(str, numbers))}>"

    @property
    def block(self) -> int:
        """Threads per block."""
        return self.threads * self.rows

    @property
    def shared(self) -> int:
        """Bytes of shared memory per block."""
        return 8 * self.rows * _pitch(self)


def _pitch(plan: Plan) -> int:
    """Return the distance of rows in shared memory, in values, with the gaps that passes.cuh leaves between banks."""
    banks = max(1, 16 // plan.rows) if plan.columns else 16
    most, span = plan.n, 1
    for number, radix in enumerate(plan.radices[:-1]):
        run = span * radix
        while number == 0 and run % banks:
            run += radix
        gap = 0 if span >= banks else (span + banks - run % banks) % banks
        most = max(most, plan.n + (plan.n - 1) // run * gap)
        span *= radix
    while not plan.columns and plan.threads < banks and most % banks != plan.threads % banks:
        most += 1
    return most


def largest_prime(n: int) -> int:
    """Return the largest prime factor of a length; 1 for 1."""
    largest, factor = 1, 2
    while factor * factor <= n:
        if n % factor:
            factor += 1
        else:
            largest, n = factor, n // factor
    return max(largest, n)


def _factorisations(n: int, most: int, fewest: int) -> Iterator[tuple[int, ...]]:
    """Yield the descending factors of n, `fewest` of them, each from 2 to `most`."""
    if fewest == 1:
        if 1 < n <= most:
            yield (n,)
        return
    for factor in range(min(most, n), 1, -1):
        if n % factor == 0:
            for rest in _factorisations(n // factor, factor, fewest - 1):
                yield (factor, *rest)


def _cost(n: int, threads: int, radices: tuple[int, ...], most: int) -> float:
    """Return the values that threads compute in all passes, as a multiple of n, idle threads included; more if a thread
    holds more than `most` values."""
    passes = [(ceil_div(n // radix, threads), radix) for radix in radices]
    held = max(each * radix for each, radix in passes)
    return sum(each * radix * threads / n for each, radix in passes) + max(0.0, held / most - 1)


@functools.cache
def radices_of(n: int, most: int = LARGEST_RADIX) -> tuple[int, tuple[int, ...]]:
    """Return threads per row and radices of a length whose prime factors are in PRIMES: as few passes as radices of at
    most `most` allow, and few idle threads."""
    if n == 1:
        return 1, (1,)
    # One thread per row would access memory at the distance of rows: rows of more than 8 values have several threads.
    passes = next(
        count
        for count in range(1, 64)
        if any(True for _ in _factorisations(n, most, count)) and (count > 1 or n <= 8 or largest_prime(n) == n)
    )
    choices = (
        (_cost(n, n // radix, radices, most), n // radix, radices)
        for radices in _factorisations(n, most, passes)
        for radix in set(radices)
        if n // radix <= MOST_THREADS
    )
    _, threads, radices = min(choices, default=(0.0, MOST_THREADS, next(_factorisations(n, most, passes))))
    return threads, radices


def _blocks(threads: int, registers: int) -> int:
    """Return the blocks of `threads` threads per multiprocessor that registers allow."""
    warps = ceil_div(threads, 32) * 32
    return max(1, min(MOST_BLOCKS, 2048 // warps, _REGISTERS // (registers * warps)))


@functools.cache
def plan_for(
    n: int, inner: int, columns: bool, shared: int, *, form: str = "fft", most: int = 0, rows: int = 0,
    registers: int = 0,
) -> Plan | str:  # fmt: skip
    """Return the plan for rows of n complex values, or a sentence if no plan supports them.

    Args:
        n: Values per row.
        inner: Rows that a block may share.
        columns: Whether these rows are adjacent columns of a matrix.
        shared: Bytes of shared memory that the device has per block.
        form: "fft", "rfft" or "irfft".
        most: The largest radix; 0 for the default. Not 0: a measured plan is not used.
        rows: Rows per block; 0 for the default.
        registers: Registers per thread that the compiler should stay within; 0 for the default.
    """
    prime = largest_prime(n)
    if prime > PRIMES[-1]:
        return f"prime factors up to {PRIMES[-1]} supported, the length {n} has {prime}"
    if n > LONGEST:
        return f"rows of at most {LONGEST} complex values supported, got {n}"
    use = form if not columns else "columns" if form == "fft" else f"{form} columns"
    measured = None if most else MEASURED.get((n, use))
    if measured is not None:
        threads, best_rows, best_registers, radices = measured
    else:
        threads, radices = radices_of(n, max(most or LARGEST_RADIX, prime))
        best_rows = max(THREADS // threads, COLUMNS if columns else 1)
        held = max(ceil_div(n // radix, threads) * radix for radix in radices)
        best_registers = next((count for values, count in _REGISTERS_OF.items() if held <= values), 255)
    wanted = min(rows or best_rows, 1 << max(inner - 1, 0).bit_length())
    limit = registers or best_registers
    while wanted:
        block = threads * wanted
        plan = Plan(n, threads, wanted, columns, radices, _blocks(block, limit))
        if block <= MOST_THREADS and plan.shared <= shared:
            return plan
        wanted //= 2
    return f"a row of {n} complex values needs {8 * math.prod(radices)} bytes of shared memory, a block has {shared}"


@functools.cache
def halves_of(n: int) -> tuple[int, int] | None:
    """Return two factors of n above 1 that are as equal as possible, the smaller first; None for a prime number."""
    return next(((low, n // low) for low in range(math.isqrt(n), 1, -1) if n % low == 0), None)


@functools.cache
def planes_for(rows: int, cols: int, shared: int) -> tuple[Plan, Plan] | str:
    """Return the plans of a plane's rows and of its columns, with one number of threads per block; or a sentence."""
    if (rows, cols) in PLANES:
        threads, count, registers, radices = PLANES[rows, cols]
        planned = Plan(cols, threads, count, False, radices, _blocks(threads * count, registers))
        turned = replace(planned, columns=True)
        if max(planned.shared, turned.shared) <= shared:
            return planned, turned
    for wanted in (COLUMNS, 8, 4, 32, 2, 64, 1):
        column, row = (
            plan_for(n, wanted, is_column, shared, rows=wanted) for n, is_column in ((rows, True), (cols, False))
        )
        if isinstance(column, str):
            return column
        if isinstance(row, str):
            return row
        count = column.block // row.threads
        if column.rows == wanted and count * row.threads == column.block:
            row = replace(row, rows=count, blocks=column.blocks)
            if row.shared <= shared:
                return row, column
    return f"rows of {cols} and columns of {rows} elements need different numbers of threads per block"
