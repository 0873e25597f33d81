"""The variants of the Fourier transforms, in the order of their ladder."""

from __future__ import annotations

import struct
from dataclasses import replace

from cudakit.families.fft_host import rounding_direct
from cudakit.families.fft_plan import LONGEST_PRODUCT, Plan, halves_of, plan_for, planes_for
from cudakit.families.fft_problem import FftProblem, Pass
from cudakit.family import MAX_GRID_X, SCRATCH, Launch, Slot, ceil_div, cpp_bool, variant

_KERNELS = {"fft": "complex_rows", "rfft": "real_rows", "irfft": "rows_to_real"}


def _strides(strides: tuple[int, int, int]) -> bytes:
    """Return the struct Strides of kernels/fft/06_rows.cu."""
    return struct.pack("=3q", *strides)


def _real(problem: FftProblem, one: Pass) -> tuple[Slot, Slot]:
    """Return the arrays of a pass as real numbers."""
    dtype = "float16" if problem.half else "float32"
    return one.source.at(dtype=dtype), one.target.at(dtype=dtype)


def _rows(problem: FftProblem, one: Pass, most: int, rows: int, registers: int) -> Launch | str:
    """Return the launch of one pass with all radices in one kernel, or the reason why no plan supports it."""
    even = one.n % 2 == 0
    n = one.n // 2 if one.form != "fft" and even else one.n
    plan = plan_for(n, one.inner, one.columns, problem.shared, form=one.form, most=most, rows=rows, registers=registers)
    if not isinstance(plan, Plan):
        return plan
    blocks = ceil_div(one.inner, plan.rows) * one.outer
    if blocks > MAX_GRID_X:
        return _TOO_MANY.format(MAX_GRID_X, blocks)
    flag = one.inverse if one.form == "fft" else even
    constants = plan.text, "__half" if problem.half else "float", one.access, cpp_bool(flag), plan.blocks
    return Launch(
        blocks,
        plan.block,
        (*_real(problem, one), one.inner, _strides(one.x), _strides(one.y), one.scale),
        shared=plan.shared,
        entry=f"{_KERNELS[one.form]}<{', '.join(map(str, constants))}>",
        scratch=problem.temporary_bytes if None in (one.source.role, one.target.role) else 0,
    )


_FORMS = {"fft": "COMPLEX", "rfft": "FROM_REAL", "irfft": "TO_REAL"}
_BLOCK = 256
_TOO_MANY = "at most {} blocks supported, got {}"


@variant("fft/01_direct.cu", rounding=rounding_direct)
def direct(problem: FftProblem) -> tuple[Launch, ...] | str:
    """one thread per output, which sums n products"""
    p, between = problem, [problem.temporary(number) for number in (0, 1)]
    places = [p.x, *(between[number % 2] for number in range(len(p.axes) - 1)), p.y]
    copied = p.in_place and len(p.axes) == 1
    passes = p.along([p.x, between[0]] if copied else places)
    scratch = p.temporary_bytes * (2 if len(p.axes) > 2 else int(copied or len(p.axes) > 1))
    dtype = "__half" if p.half else "float"
    launches = []
    for one in passes:
        outputs = one.n // 2 + 1 if one.form == "rfft" else one.n
        args = (*_real(p, one), one.n, outputs, one.inner, one.rows, _strides(one.x), _strides(one.y), one.scale)
        entry = f"direct<{dtype}, {_FORMS[one.form]}, {cpp_bool(one.inverse)}>"
        launches.append(Launch(ceil_div(outputs * one.rows, _BLOCK), _BLOCK, args, entry=entry, scratch=scratch))
    if copied:
        (one,) = p.along([between[0], p.y])
        back = (*_real(p, one), one.n, one.inner, one.rows, _strides(one.x), _strides(one.y))
        launches.append(Launch(launches[0].grid, _BLOCK, back, entry=f"copy_rows<{dtype}>", scratch=scratch))
    blocks = max(ceil_div(p.y.size, _BLOCK), ceil_div(p.x.size, _BLOCK))
    return tuple(launches) if blocks <= MAX_GRID_X else _TOO_MANY.format(MAX_GRID_X, blocks)


def _power(problem: FftProblem, least: int, most: int) -> str:
    """Return the reason why a kernel of rows of 2^least to 2^most complex elements does not support a problem, or
    ""."""
    if problem.form != "fft" or problem.half:
        return "complex64 supported"
    wrong = [n for n in problem.lengths if n & (n - 1) or not 1 << least <= n <= 1 << most]
    if wrong:
        return f"powers of two from {1 << least} to {1 << most} supported, got {wrong[0]}"
    if max(one.rows for one in problem.passes) > MAX_GRID_X:
        return f"at most {MAX_GRID_X} rows supported"
    return ""


def _block_per_row(problem: FftProblem, kernel: str, radix: int) -> tuple[Launch, ...] | str:
    """Return the launches of a kernel that does all steps of a row in two arrays of shared memory."""
    most = (problem.shared // 16).bit_length() - 1
    return _power(problem, 1, most) or tuple(
        Launch(
            one.rows,
            min(max(one.n // radix, 32), 1024),
            (one.source, one.target, one.n, one.inner, _strides(one.x), _strides(one.y), one.scale),
            shared=16 * one.n,
            entry=f"{kernel}<{cpp_bool(one.inverse)}>",
        )
        for one in problem.passes
    )


@variant("fft/02_steps.cu", problems="powers")
def steps(problem: FftProblem) -> tuple[Launch, ...] | str:
    """one launch per step with radix 2"""
    reason = _power(problem, 1, 30)
    if reason:
        return reason
    scratch, launches = 2 * problem.temporary_bytes, []
    if ceil_div(problem.x.size, 2 * _BLOCK) > MAX_GRID_X:
        return _TOO_MANY.format(MAX_GRID_X, ceil_div(problem.x.size, 2 * _BLOCK))
    between = [problem.temporary(number) for number in (0, 1)]
    for number, whole in enumerate(problem.passes):
        first = problem.x if number == 0 else problem.y
        count = whole.n.bit_length() - 1
        places = [first, *(between[step % 2] for step in range(count - 1)), problem.y]
        for step in range(count):
            one = problem.alone(number, places[step], places[step + 1], scaled=step == count - 1)
            source, target = _real(problem, one)
            args = (source, target, one.n, 1 << step, one.inner, one.rows, _strides(one.x), _strides(one.y), one.scale)
            entry = f"steps<{cpp_bool(one.inverse)}>"
            launches.append(Launch(ceil_div(problem.x.size, 2 * _BLOCK), _BLOCK, args, entry=entry, scratch=scratch))
    return tuple(launches)


@variant("fft/03_shared.cu", problems="powers")
def shared(problem: FftProblem) -> tuple[Launch, ...] | str:
    """one block per row: all steps in shared memory"""
    return _block_per_row(problem, "shared_steps", 2)


@variant("fft/04_radix4.cu", problems="powers")
def radix4(problem: FftProblem) -> tuple[Launch, ...] | str:
    """radix 4: half as many steps and barriers"""
    return _block_per_row(problem, "radix4", 4)


@variant("fft/05_registers.cu", problems="powers")
def registers(problem: FftProblem) -> tuple[Launch, ...] | str:
    """radix 8 in registers, exchanges by shuffles within a warp"""
    most = min((problem.shared // 8).bit_length() - 1, 13)
    return _power(problem, 3, most) or tuple(
        Launch(
            one.rows,
            one.n // 8,
            (one.source, one.target, one.inner, _strides(one.x), _strides(one.y), one.scale),
            shared=8 * one.n if one.n > 256 else 0,
            entry=f"registers<{one.n.bit_length() - 1}, {cpp_bool(one.inverse)}>",
        )
        for one in problem.passes
    )


@variant(
    "fft/06_rows.cu",
    problems="composite",
    tune={"most": (0, 8, 16, 32), "rows": (0, 1, 2, 4, 8, 16), "registers": (0, 40, 48, 64, 80, 128)},
)
def rows(problem: FftProblem, most: int = 0, rows: int = 0, registers: int = 0) -> tuple[Launch, ...] | str:
    """several rows per block, all radices in one launch"""
    launches = []
    for one in problem.passes:
        made = _rows(problem, one, most, rows, registers)
        if isinstance(made, str):
            return made
        launches.append(made)
    return tuple(launches)


# (form, whether pairs are transformed): the kernels of kernels/fft/real_rows.cu before and after the transform.
_COPIES = {
    ("rfft", False): ("from_real", "to_half"),
    ("rfft", True): ("", "to_terms"),
    ("irfft", False): ("from_half", "to_real"),
    ("irfft", True): ("from_terms", ""),
}


def _long(problem: FftProblem, one: Pass) -> tuple[Launch, ...] | str:
    """Return the launches of rows of any length, or the reason why they are not supported. The pairs of a real row are
    complex values. A real row is copied to a complex one and back if its length is odd, its half is prime, an array is
    strided or pairs are not aligned."""
    pairs = one.form != "fft" and one.n % 2 == 0 and one.access == "ALIGNED_PAIRS"
    packed = pairs and halves_of(one.n // 2) is not None
    n = one.n // 2 if packed else one.n
    halves = halves_of(n)
    if halves is None or one.n > LONGEST_PRODUCT:
        return f"lengths that are a product and at most {LONGEST_PRODUCT} supported, got {one.n}"
    a, b = halves
    columns = plan_for(a, b, True, problem.shared)
    while isinstance(columns, Plan) and _turned(columns) > problem.shared and columns.rows > 1:
        columns = plan_for(a, b, True, problem.shared, rows=columns.rows // 2)
    rows = plan_for(b, a, True, problem.shared)
    if not isinstance(columns, Plan):
        return columns
    if not isinstance(rows, Plan):
        return rows
    count = one.n // 4 + 1 if packed else one.n  # threads per row of a copy
    blocks = one.rows * ceil_div(b, columns.rows), one.rows * ceil_div(a, rows.rows), ceil_div(one.rows * count, _BLOCK)
    if max(blocks) > MAX_GRID_X:
        return _TOO_MANY.format(MAX_GRID_X, max(blocks))
    before = ceil_div(problem.temporary_bytes, 16) * 16 if None in (one.source.role, one.target.role) else 0
    between, whole = (SCRATCH.at(before + part * 8 * one.rows * n, "float32") for part in (0, 1))
    scratch = before + (1 if one.form == "fft" else 2) * 8 * one.rows * n
    dtype = "__half" if problem.half else "float"
    source, target = _real(problem, one)
    # The transform reads x and writes y, or copies of them if their values are not complex or pairs.
    into, back = _COPIES.get((one.form, packed), ("", ""))
    dense = whole, (one.inner * n, n, 1), "float"
    x, x_strides, x_type = dense if into else (source, _paired(one.x, packed), dtype)
    y, y_strides, y_type = dense if back else (target, _paired(one.y, packed), dtype)
    launches = [
        Launch(
            blocks[0],
            columns.block,
            (x, between, one.inner, _strides(x_strides)),
            shared=_turned(columns),
            entry=f"long_columns<{columns.text}, {b}, {x_type}, {cpp_bool(one.inverse)}, {columns.blocks}>",
            scratch=scratch,
        ),
        Launch(
            blocks[1],
            rows.block,
            (between, y, one.inner, _strides(y_strides), one.scale),
            shared=rows.shared,
            entry=f"long_rows<{rows.text}, {a}, {y_type}, {cpp_bool(one.inverse)}, {rows.blocks}>",
            scratch=scratch,
        ),
    ]

    def copy(name: str, arrays: tuple[Slot, Slot], strides: tuple[int, int, int]) -> Launch:
        return Launch(
            blocks[2],
            _BLOCK,
            (*arrays, one.n, one.inner, one.rows, _strides(strides)),
            entry=f"{name}<{dtype}>",
            source="fft/real_rows.cu",
            scratch=scratch,
        )

    if into:
        launches.insert(0, copy(into, (source, whole), one.x))
    if back:
        launches.append(copy(back, (whole, target), one.y))
    return tuple(launches)


def _paired(strides: tuple[int, int, int], packed: bool) -> tuple[int, int, int]:
    """Return the strides of a real array's pairs if `packed`, else the array's own."""
    return (strides[0] // 2, strides[1] // 2, 1) if packed else strides


def _turned(plan: Plan) -> int:
    """Return the bytes of shared memory of long_columns, which transposes its result there."""
    return max(plan.shared, 8 * plan.n * (plan.rows + 1))


@variant("fft/07_long_rows.cu", problems="products")
def long_rows(problem: FftProblem) -> tuple[Launch, ...] | str:
    """rows longer than a block can hold, in two launches"""
    short = [_rows(problem, one, 0, 0, 0) for one in problem.passes]
    all_short = all(isinstance(launch, Launch) for launch in short)
    launches: list[Launch] = []
    for one, launch in zip(problem.passes, short, strict=True):
        made = _long(problem, one) if all_short or isinstance(launch, str) else (replace(launch, source=rows.source),)
        if isinstance(made, str):
            return made
        launches += made
    return tuple(launches)


@variant("fft/08_planes.cu", problems="planes", tune={"lag": (0, 1, 2, 3, 4, 6, 8)})
def planes(problem: FftProblem, lag: int = 0) -> tuple[Launch, ...] | str:
    """rows and columns of a plane in one launch, while L2 has it"""
    one = problem.planes
    if one is None:
        return "planes of complex numbers with contiguous rows, at one distance, supported"
    made = planes_for(one.rows, one.cols, problem.shared)
    if isinstance(made, str):
        return made
    row, column, resident = made
    tiles = ceil_div(one.rows, row.rows) + ceil_div(one.cols, column.rows)
    lag = lag or planes_under_way(problem)
    total = (one.count + lag) * tiles
    if total > MAX_GRID_X:
        return _TOO_MANY.format(MAX_GRID_X, total)
    dtype = "__half" if problem.half else "float"
    x, y = (slot.at(dtype="float16" if problem.half else "float32") for slot in (problem.x.slot, problem.y.slot))
    counters, scratch = SCRATCH.at(dtype="uint32"), 4 * (1 + one.count)
    return (
        Launch(
            ceil_div(1 + one.count, _BLOCK),
            _BLOCK,
            (counters, 0, 0, 0, 1, 1, 1, 1, 1 + one.count, 0),
            entry="fill_strided<unsigned int, unsigned int>",
            source="unary/03_fill_strided.cu",
            scratch=scratch,
        ),
        Launch(
            min(problem.sms * resident, total),
            column.block,
            (x, y, counters, one.count, lag, _distances(one.x), _distances(one.y), problem.scale),
            shared=max(row.shared, column.shared),
            entry=f"planes_in_cache<{row.text}, {column.text}, {dtype}, {cpp_bool(problem.inverse)}, {column.blocks}>",
            scratch=scratch,
        ),
    )


def planes_under_way(problem: FftProblem) -> int:
    """Return the planes whose tiles fill the device: so many planes after a plane's rows, its columns follow. 0 if the
    problem has no planes."""
    one = problem.planes
    made = "" if one is None else planes_for(one.rows, one.cols, problem.shared)
    if one is None or isinstance(made, str):
        return 0
    row, column, resident = made
    return ceil_div(problem.sms * resident, ceil_div(one.rows, row.rows) + ceil_div(one.cols, column.rows))


def _distances(distances: tuple[int, int]) -> bytes:
    """Return the struct Plane of kernels/fft/08_planes.cu."""
    return struct.pack("=2q", *distances)


LADDER = (direct, rows, long_rows)
COMPLEX_LADDER = (direct, steps, shared, radix4, registers, rows, long_rows, planes)
