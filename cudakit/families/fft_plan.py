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
# The largest radix of the rule: a thread holds that many values in registers. The larger one only if it saves a pass
# and more than MOST_PASSES would be needed.
LARGEST_RADIX, LARGER_RADIX, MOST_PASSES = 16, 32, 3
MOST_THREADS, MOST_BLOCKS = 1024, 16
# Threads per block of the rule, and adjacent columns per block.
THREADS, COLUMNS = 128, 16
# Complex float32 values per sector of 32 bytes.
_SECTOR = 4
# Registers per multiprocessor, and per thread by the values that it holds.
_REGISTERS = 65536
_REGISTERS_OF = {8: 56, 16: 72, 32: 128, 64: 255}

# The best plans on an H200. (form, complex values per row, columns): threads per row, rows per block, registers per
# thread, radices.
MEASURED: dict[tuple[str, int, bool], tuple[int, int, int, tuple[int, ...]]] = {
    ("fft", 32, False): (8, 16, 64, (4, 4, 2)),
    ("fft", 48, False): (6, 21, 88, (6, 8)),
    ("fft", 60, False): (6, 21, 88, (6, 10)),
    ("fft", 64, False): (8, 8, 80, (8, 8)),
    ("fft", 81, False): (9, 14, 88, (3, 3, 9)),
    ("fft", 96, False): (12, 10, 72, (8, 12)),
    ("fft", 100, False): (10, 6, 72, (2, 5, 10)),
    ("fft", 120, False): (12, 10, 88, (12, 10)),
    ("fft", 128, False): (16, 4, 64, (8, 16)),
    ("fft", 256, False): (32, 4, 40, (8, 8, 4)),
    ("fft", 300, False): (20, 3, 72, (4, 5, 15)),
    ("fft", 512, False): (64, 1, 80, (8, 8, 8)),
    ("fft", 625, False): (125, 1, 64, (5, 5, 5, 5)),
    ("fft", 900, False): (60, 4, 72, (4, 15, 15)),
    ("fft", 1000, False): (100, 2, 56, (10, 10, 10)),
    ("fft", 1024, False): (64, 2, 64, (16, 8, 8)),
    ("fft", 1536, False): (64, 1, 72, (24, 8, 8)),
    ("fft", 1920, False): (120, 1, 160, (6, 16, 20)),
    ("fft", 2048, False): (128, 2, 128, (8, 16, 16)),
    ("fft", 2187, False): (81, 1, 80, (27, 27, 3)),
    ("fft", 2500, False): (125, 1, 160, (5, 20, 25)),
    ("fft", 3125, False): (125, 1, 128, (5, 25, 25)),
    ("fft", 4096, False): (256, 1, 80, (16, 16, 16)),
    ("fft", 6000, False): (400, 1, 64, (15, 20, 20)),
    ("fft", 8192, False): (256, 1, 128, (32, 16, 16)),
    ("fft", 16384, False): (512, 1, 80, (32, 32, 16)),
    ("fft", 256, True): (16, 32, 64, (16, 16)),
    ("fft", 512, True): (32, 16, 64, (16, 8, 4)),
    ("fft", 1024, True): (32, 8, 96, (32, 32)),
    ("fft", 2048, True): (128, 8, 64, (16, 16, 8)),
    ("fft", 4096, True): (256, 4, 64, (16, 16, 16)),
    ("rfft", 128, False): (16, 4, 80, (8, 16)),
    ("rfft", 512, False): (32, 2, 80, (16, 8, 4)),
    ("rfft", 2048, False): (128, 1, 80, (16, 16, 8)),
    ("irfft", 128, False): (8, 8, 80, (16, 8)),
    ("irfft", 512, False): (32, 1, 96, (16, 8, 4)),
    ("irfft", 2048, False): (128, 1, 112, (16, 16, 8)),
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


def _factorisations(n: int, most: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the descending factors of n, `count` of them, each from 2 to `most`."""
    if count == 1:
        if 1 < n <= most:
            yield (n,)
        return
    for factor in range(min(most, n), 1, -1):
        if n % factor == 0:
            for rest in _factorisations(n // factor, factor, count - 1):
                yield (factor, *rest)


def _passes(n: int, most: int) -> int:
    """Return the fewest passes with radices up to `most`."""
    return next(count for count in range(1, 64) if any(True for _ in _factorisations(n, most, count)))


def _cost(n: int, threads: int, radices: tuple[int, ...], most: int) -> float:
    """Return the values that threads compute in all passes, as a multiple of n, idle threads included; more if a thread
    holds more than `most` values."""
    passes = [(ceil_div(n // radix, threads), radix) for radix in radices]
    held = max(each * radix for each, radix in passes)
    return sum(each * radix * threads / n for each, radix in passes) + max(0.0, held / most - 1)


@functools.cache
def radices_of(n: int, columns: bool = False, most: int = 0) -> tuple[int, tuple[int, ...]]:
    """Return threads per row and radices of a length whose prime factors are in PRIMES: few passes, few idle threads,
    small radices.

    A row has at least two passes, if n is not prime: its threads access neighbouring elements only if there are several
    of them. most: the largest radix, 0 for the default.
    """
    if n == 1:
        return 1, (1,)
    largest = most or LARGEST_RADIX
    passes = _passes(n, largest)
    if not most and passes > MOST_PASSES and _passes(n, LARGER_RADIX) < passes:
        largest = LARGER_RADIX
        passes = _passes(n, largest)
    if passes == 1 and not columns and largest_prime(n) < n:
        passes = 2
    choices = [
        (_cost(n, threads, radices, largest), radices, threads)
        for radices in _factorisations(n, largest, passes)
        for threads in {min(n // radix, MOST_THREADS) for radix in radices}
    ]
    # The threads of a row access neighbours: fewer than a sector's values waste a part of it. On an H200, rows of 16 to
    # 48 values took half to two thirds of the time with four threads instead of two.
    if not columns:
        choices = [(cost * max(1, _SECTOR / threads), radices, threads) for cost, radices, threads in choices]
    _, radices, threads = min(choices)
    return threads, radices


def _whole_sectors(n: int, threads: int, last: int) -> bool:
    """Return whether the runs that the threads of a row store are whole sectors, if the last pass has radix `last`."""
    run = n // last
    return run % _SECTOR == 0 and (threads % _SECTOR == 0 or threads >= run)


@functools.cache
def plan_for(
    n: int,
    inner: int,
    columns: bool,
    shared: int,
    *,
    form: str = "fft",
    most: int = 0,
    rows: int = 0,
    registers: int = 0,
) -> Plan | str:
    """Return the plan for rows of n complex values, or a sentence if no plan supports them.

    Args:
        n: Values per row.
        inner: Rows that a block may share.
        columns: Whether these rows are adjacent columns of a matrix.
        shared: Bytes of shared memory that the device has per block.
        form: "fft", "rfft" or "irfft"; a real row of even length has n = half of it.
        most: The largest radix; 0 for the default. If it is not 0, a measured plan is not used.
        rows: Rows per block; 0 for the default.
        registers: Registers per thread that the compiler should stay within; 0 for the default.
    """
    prime = largest_prime(n)
    if prime > PRIMES[-1]:
        return f"prime factors up to {PRIMES[-1]} supported, the length {n} has {prime}"
    if n > LONGEST:
        return f"rows of at most {LONGEST} complex values supported, got {n}"
    measured = None if most else MEASURED.get((form, n, columns))
    if measured is not None:
        threads, best_rows, best_registers, radices = measured
    else:
        threads, radices = radices_of(n, columns, most and max(most, prime))
        # Terms of a real row are stored in order anyway. For others, this order was up to 2.2 times as fast as the
        # other in 27 pairs of plans timed on an H200, and never over 1 % slower.
        if len(radices) == 2 and not columns and form != "rfft":
            radices = max(radices, radices[::-1], key=lambda order: (_whole_sectors(n, threads, order[-1]), order[-1]))
        best_rows = max(THREADS // threads, COLUMNS if columns else 1)
        held = max(ceil_div(n // radix, threads) * radix for radix in radices)
        best_registers = next((count for values, count in _REGISTERS_OF.items() if held <= values), 255)
    wanted = min(rows or best_rows, 1 << max(inner - 1, 0).bit_length())
    while wanted:
        plan = _sized(Plan(n, threads, wanted, columns, radices, 1), registers or best_registers)
        if plan.block <= MOST_THREADS and plan.shared <= shared:
            return plan
        wanted //= 2
    return f"a row of {n} complex values needs over {8 * n} bytes of shared memory, a block has {shared}"


def _sized(plan: Plan, registers: int) -> Plan:
    """Return the plan with the blocks per multiprocessor that `registers` per thread allow."""
    blocks = max(1, min(MOST_BLOCKS, 2048 // plan.block, _REGISTERS // (registers * plan.block)))
    return replace(plan, blocks=blocks)


@functools.cache
def halves_of(n: int) -> tuple[int, int] | None:
    """Return two factors of n above 1 that are as equal as possible, the smaller first; None for a prime number."""
    return next(((low, n // low) for low in range(math.isqrt(n), 1, -1) if n % low == 0), None)


@functools.cache
def planes_for(rows: int, cols: int, shared: int) -> tuple[Plan, Plan, int] | str:
    """Return the plans of a plane's rows and of its columns, with one number of threads per block, and the blocks that
    a multiprocessor has at once; or a sentence.

    A block takes COLUMNS columns if a multiprocessor has room for two blocks, else half as many.
    """
    for wanted in (COLUMNS, 8, 4, 32, 2, 64, 1):
        column = plan_for(rows, wanted, True, shared, rows=wanted)
        row = plan_for(cols, wanted, True, shared, rows=wanted)
        if isinstance(column, str):
            return column
        if isinstance(row, str):
            return row
        count = column.block // row.threads
        if column.rows < wanted or count * row.threads != column.block:
            continue
        row = replace(row, rows=count, columns=False, blocks=min(row.blocks, column.blocks))
        needed = max(row.shared, column.shared)
        if needed > (shared // 2 if wanted == COLUMNS else shared):
            continue
        return row, replace(column, blocks=row.blocks), max(1, min(row.blocks, shared // needed))
    return f"rows of {cols} and columns of {rows} elements need different numbers of threads per block"
