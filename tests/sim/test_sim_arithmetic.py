"""Lane-wise instructions, compared with an H200's recorded results and with exact arithmetic in Python."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random

import lanewise
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanewise import Form, evaluate, simulate

from cudakit.sim.ptx import parser as ptx
from cudakit.sim.values import arithmetic

# ---- compared with an H200 ----


@cache
def _recorded():
    groups = {}
    for case in lanewise.recorded():
        groups.setdefault(case[0].text.split(".")[0], []).append(case)
    return groups


def _is_approximate(form):
    return ".approx" in form.text or ".full" in form.text


def _lines(form, operands, made, meant, lanes):
    for lane in lanes[:3]:
        given_, got, want = (" ".join(f"{int(row[lane]):x}" for row in rows) for rows in (operands, made, meant))
        yield f"{form.text} of {given_} gives {got}, an H200 {want}"


@pytest.mark.parametrize("opcode", sorted(_recorded()))
def test_exact_instructions_give_the_bits_of_an_h200(opcode):
    wrong = []
    for form, operands, results in _recorded()[opcode]:
        if _is_approximate(form):
            continue
        made = [np.broadcast_to(row, operands.shape[1]) for row in simulate(form, operands)]
        lanes = np.flatnonzero((np.array(made) != results).any(axis=0))
        wrong += _lines(form, operands, made, results, lanes)
    assert not wrong, "\n".join(wrong)


def _floats(patterns, kind):
    if kind.startswith("bf16"):
        return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    size = lanewise.bits(kind)
    return patterns.astype(f"u{size // 8}").view(f"f{size // 8}").astype(np.float64)


# the widest of PTX's bounds: relative, and absolute if PTX has an absolute one
_RELATIVE = {"tanh": 2**-10.9, "f16": 2**-9.9, "bf16": 2**-7, "f64": 2**-19.9, "div": 2**-22, "": 2**-21.9}
_ABSOLUTE = {"lg2": 2**-16}


@pytest.mark.parametrize(
    "opcode",
    sorted(
        {o for o, cases in _recorded().items() if any(map(_is_approximate, [c[0] for c in cases]))} - {"sin", "cos"}
    ),
)
def test_approximate_instructions_stay_within_ptx_bounds_of_an_h200(opcode):
    for form, operands, results in _recorded()[opcode]:
        if not _is_approximate(form):
            continue
        kind = form.outputs[0]
        made = simulate(form, operands)[0]
        halves = [(made & 0xFFFF, results[0] & 0xFFFF), (made >> 16, results[0] >> 16)]
        for ours, theirs in halves if kind.endswith("x2") else [(made, results[0])]:
            a, b = (_floats(np.asarray(x, dtype=np.uint64), kind.removesuffix("x2")) for x in (ours, theirs))
            assert (np.isnan(a) == np.isnan(b)).all(), form.text
            finite = np.isfinite(a) & np.isfinite(b)
            assert (a[~finite & ~np.isnan(a)] == b[~finite & ~np.isnan(a)]).all(), form.text
            a, b = a[finite], b[finite]
            relative = max(_RELATIVE.get(opcode, 0), _RELATIVE.get(kind.removesuffix("x2"), _RELATIVE[""]))
            smallest = {"f16": 2.0**-23, "bf16": 2.0**-125, "f64": 2.0**-1020}.get(kind.removesuffix("x2"), 2.0**-125)
            error = np.abs(a - b)
            bound = np.maximum(np.abs(b) * relative, smallest) + _ABSOLUTE.get(opcode, 0)
            assert (error <= bound).all(), f"{form.text}: {a[error > bound][:3]} instead of {b[error > bound][:3]}"


def test_sine_and_cosine_are_those_of_the_operand():
    x = np.linspace(-math.pi, math.pi, 4001).astype(np.float32)
    for name, function in (("sin", np.sin), ("cos", np.cos)):
        made = np.array(evaluate(f"{name}.approx.f32 d0, a;", "f32", "f32", x.view(np.uint32)), dtype=np.uint32)
        assert np.abs(made.view(np.float32) - function(x.astype(np.float64))).max() < 2**-20.5


@pytest.mark.parametrize("opcode", sorted(_recorded()))
def test_uniform_values_and_arrays_mix(opcode):
    """A numpy scalar is one value for all lanes; the results have the same bits as with arrays, mixed or not."""
    for form, operands, _ in _recorded()[opcode]:
        rows = simulate(form, operands)
        uniform = simulate(form, [operand[5] for operand in operands])
        assert all(np.shape(value) == () for value in uniform), form.text
        assert [int(value) for value in uniform] == [int(np.broadcast_to(row, 32)[5]) for row in rows], form.text
        if len(operands) > 1:
            mixed = simulate(form, [operands[0][5], *operands[1:]])
            whole = simulate(form, [np.full(32, operands[0][5]), *operands[1:]])
            for one, other in zip(mixed, whole, strict=True):
                assert (np.broadcast_to(one, 32) == other).all(), form.text


@pytest.mark.gpu
def test_the_gpu_at_hand_gives_the_recorded_bits(gpu):
    cases = [case for case in lanewise.recorded() if not _is_approximate(case[0])]
    for (form, operands, results), made in zip(cases, lanewise.on_gpu(cases), strict=True):
        lanes = np.flatnonzero((made != results).any(axis=0))
        assert not lanes.size, "\n".join(_lines(form, operands, results, made, lanes))


# ---- compared with exact arithmetic ----


def _round(value, precision, smallest, largest, mode):
    """Round a Fraction to a binary format (precision in bits, least normal exponent, greatest exponent). Returns a
    Fraction, or None for infinity."""
    if value == 0:
        return Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    quotient, rest = divmod(size, unit)
    if mode == "rn":
        up = rest * 2 > unit or (rest * 2 == unit and quotient % 2 == 1)
    else:
        up = rest != 0 and mode == ("rm" if value < 0 else "rp")
    result = (quotient + up) * unit
    if result >= Fraction(2) ** (largest + 1):
        if mode == "rn" or mode == ("rm" if value < 0 else "rp"):
            return None
        result = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** largest
    return result if value > 0 else -result


_FORMATS = {"f16": (11, -14, 15, "<e", "<H"), "f32": (24, -126, 127, "<f", "<I"), "f64": (53, -1022, 1023, "<d", "<Q")}


def _value(pattern, kind):
    code, raw = _FORMATS[kind][3:]
    return struct.unpack(code, struct.pack(raw, pattern))[0]


def _pattern(value, kind):
    code, raw = _FORMATS[kind][3:]
    return struct.unpack(raw, struct.pack(code, value))[0]


def _expected(exact, kind, mode):
    """Return the bit pattern of a non-zero exact result."""
    rounded = _round(exact, *_FORMATS[kind][:3], mode)
    return _pattern(math.copysign(math.inf if rounded is None else float(rounded), -1 if exact < 0 else 1), kind)


# Operands come from a seed: hypothesis cannot shrink them, and every failure names its operands.
_SEEDS = st.integers(0, 2**32 - 1)


def _finite(kind, chance):
    """Return the bit pattern of a finite number, often near another number or a limit of the format."""
    precision, smallest, largest = _FORMATS[kind][:3]
    fraction = precision - 1
    top = (largest - smallest + 1 << fraction) + (1 << fraction) - 1
    middle = largest << fraction
    near = [
        (0, top),
        (0, top),
        (0, 4),
        ((1 << fraction) - 3, (1 << fraction) + 3),
        (top - 3, top),
        (middle - 5, middle + 5),
        (middle - (3 << fraction), middle + (3 << fraction)),
        (middle - (3 << fraction), middle + (3 << fraction)),
    ]
    return chance.randint(*chance.choice(near)) | chance.getrandbits(1) << (lanewise.bits(kind) - 1)


def _vectors(kind, count, chance):
    return [tuple(_finite(kind, chance) for _ in range(count)) for _ in range(50)]


_MODES = ("rn", "rz", "rm", "rp")


@pytest.mark.parametrize(("kind", "mode"), [("f16", "rn"), *product(("f32", "f64"), _MODES)])
@given(seed=_SEEDS)
def test_fma_rounds_the_exact_result_once(kind, mode, seed):
    rows = _vectors(kind, 3, Random(seed))
    # sums that nearly cancel
    rows += [(a, b, _pattern(-_value(a, kind) * _value(b, kind), kind) ^ low) for a, b, low in _near(rows, kind)]
    made = evaluate(f"fma.{mode}.{kind} d0, a, b, c;", f"{kind} {kind} {kind}", kind, *zip(*rows, strict=True))
    for row, got in zip(rows, made, strict=True):
        a, b, c = (Fraction(_value(pattern, kind)) for pattern in row)
        if exact := a * b + c:
            assert got == _expected(exact, kind, mode), [hex(p) for p in row]
        else:
            signs = {
                _value(row[0], kind) * _value(row[1], kind) < 0 or (row[0] ^ row[1]) >> (lanewise.bits(kind) - 1) == 1
            }
            signs.add(row[2] >> (lanewise.bits(kind) - 1) == 1)
            negative = signs == {True} or (len(signs) == 2 and mode == "rm")
            assert got == _pattern(-0.0 if negative else 0.0, kind), [hex(p) for p in row]


def _near(rows, kind):
    for a, b, c in rows:
        product = Fraction(_value(a, kind)) * Fraction(_value(b, kind))
        if abs(product) < Fraction(2) ** _FORMATS[kind][2] and float(product):
            yield a, b, c & 1


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", _MODES)
@given(seed=_SEEDS)
def test_basic_operations_round_the_exact_result(kind, mode, seed):
    rows = _vectors(kind, 2, Random(seed))
    columns = list(zip(*rows, strict=True))
    two = f"{kind} {kind}"
    made = {
        name: evaluate(f"{name}.{mode}.{kind} d0, a, b;", two, kind, *columns) for name in ("add", "sub", "mul", "div")
    }
    made["rcp"] = evaluate(f"rcp.{mode}.{kind} d0, a;", kind, kind, columns[1])
    for place, row in enumerate(rows):
        a, b = (Fraction(_value(pattern, kind)) for pattern in row)
        exact = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b if b else 0, "rcp": 1 / b if b else 0}
        for name, value in exact.items():
            if value:
                assert made[name][place] == _expected(value, kind, mode), (name, [hex(p) for p in row])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", _MODES)
@given(seed=_SEEDS)
def test_square_roots_round_the_exact_result(kind, mode, seed):
    sign = 1 << (lanewise.bits(kind) - 1)
    patterns = [row[0] & ~sign for row in _vectors(kind, 1, Random(seed))]
    made = evaluate(f"sqrt.{mode}.{kind} d0, a;", kind, kind, patterns)
    for pattern, got in zip(patterns, made, strict=True):
        square = Fraction(_value(pattern, kind))
        low = Fraction(_value(got, kind))
        below, above = (Fraction(_value(max(got - 1, 0), kind)), Fraction(_value(got + 1, kind)))
        if mode == "rn":
            assert ((low + below) / 2) ** 2 <= square <= ((low + above) / 2) ** 2, hex(pattern)
        elif mode == "rp":
            assert low**2 >= square, hex(pattern)
            assert square == 0 or below**2 < square, hex(pattern)
        else:
            assert low**2 <= square < above**2, hex(pattern)


@pytest.mark.parametrize(
    ("kind", "a", "b", "c"),
    [
        # the sum is a tie of float32, except for a part too small for float64
        ("f32", 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80),
        ("f32", 1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-80)),
        ("f32", 1 + 2.0**-12, -1 - 2.0**-12, 2.0**-80),
        # and a tie below its normal range
        ("f32", 2.0**-75 * (1 + 2.0**-20), 2.0**-75 * (1 - 2.0**-20), 2.0**-127 + 2.0**-149),
        ("f32", 2.0**-75 * (1 + 2.0**-20), 2.0**-75 * (-1 + 2.0**-20), 2.0**-127 + 2.0**-149),
        # the same for float64, whose sum has three parts
        ("f64", 2.0**-53 * (1 + 2.0**-52), 1 - 2.0**-52, 1 + 2.0**-52),
        ("f64", 2.0**-53 * (1 + 2.0**-52), -1 + 2.0**-52, 1 + 2.0**-52),
        ("f64", 2.0**-537 * (1 + 2.0**-52), 2.0**-538, 2.0**-1022),
        ("f64", 2.0**600, 2.0**600, -(2.0**1023)),
        ("f64", 2.0**1000, 2.0**-1000, -1.0),
        ("f64", 2.0**1023, 1.5, -(2.0**1023)),
    ],
)
@pytest.mark.parametrize("mode", _MODES)
def test_fma_does_not_round_twice(kind, a, b, c, mode):
    patterns = [_pattern(value, kind) for value in (a, b, c)]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    meant = _expected(exact, kind, mode) if exact else _pattern(-0.0 if mode == "rm" else 0.0, kind)
    assert evaluate(f"fma.{mode}.{kind} d0, a, b, c;", f"{kind} {kind} {kind}", kind, *patterns) == meant
    # among ordinary lanes, and in more lanes than a block has
    many = [np.array([_pattern(1.0, kind), pattern] * 5000, dtype=np.uint64) for pattern in patterns]
    made = evaluate(f"fma.{mode}.{kind} d0, a, b, c;", f"{kind} {kind} {kind}", kind, *many)
    assert made == [_pattern(2.0, kind), meant] * 5000


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("signs", list(product((0, 1), repeat=3)))
def test_fma_of_zeros_has_the_sign_of_the_sum(kind, signs):
    zeros = [sign << (lanewise.bits(kind) - 1) for sign in signs]
    made = evaluate(f"fma.rn.{kind} d0, a, b, c;", f"{kind} {kind} {kind}", kind, *zeros)
    product_sign = signs[0] ^ signs[1]
    assert made == (product_sign & signs[2]) << (lanewise.bits(kind) - 1)


def test_results_just_under_the_normal_range_are_flushed():
    # (1 - 2^-24) * 2^-126 is a tie below the smallest normal number: rounded as a subnormal it becomes that number
    assert evaluate("mul.f32 d0, a, b;", "f32 f32", "f32", 0x3F7FFFFF, 0x00800000) == 0x00800000
    assert evaluate("mul.ftz.f32 d0, a, b;", "f32 f32", "f32", 0x3F7FFFFF, 0x80800000) == 0x80000000
    assert evaluate("mul.ftz.f32 d0, a, b;", "f32 f32", "f32", 0x3F800000, 0x00800000) == 0x00800000
    assert evaluate("div.rp.ftz.f32 d0, a, b;", "f32 f32", "f32", 0x3F7FFFFF, 0x7E800000) == 0
    assert evaluate("mul.ftz.f16 d0, a, b;", "f16 f16", "f16", 0x3BFF, 0x0400) == 0


def _signed(value, width):
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def _integers(width, count, chance):
    edge = [0, 1, 2, -1, -2, 1 << (width - 1), (1 << (width - 1)) - 1, (1 << (width - 1)) + 1, 7, 255, 256]
    mask = (1 << width) - 1
    return [tuple(_integer(edge, width, chance) & mask for _ in range(count)) for _ in range(50)]


def _integer(edge, width, chance):
    if chance.random() < 0.4:
        return chance.choice(edge)
    return chance.getrandbits(width) >> chance.choice((0, 0, 0, chance.randrange(width)))


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@given(seed=_SEEDS)
def test_integer_arithmetic_is_that_of_python(kind, seed):
    width = int(kind[1:])
    mask = (1 << width) - 1
    rows = _integers(width, 3, Random(seed))
    number = (lambda v: _signed(v, width)) if kind[0] == "s" else (lambda v: v)

    def quotient(a, b):
        return ~b if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    def remainder(a, b):
        return ~b if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)

    meanings = {
        "add": lambda a, b, c: a + b,
        "sub": lambda a, b, c: a - b,
        "mul.lo": lambda a, b, c: a * b,
        "mul.hi": lambda a, b, c: a * b >> width,
        "div": lambda a, b, c: quotient(a, b),
        "rem": lambda a, b, c: remainder(a, b),
        "min": lambda a, b, c: min(a, b),
        "max": lambda a, b, c: max(a, b),
        "mad.lo": lambda a, b, c: a * b + c,
        "mad.hi": lambda a, b, c: (a * b >> width) + c,
        "sad": lambda a, b, c: c + abs(a - b),
    }
    columns = list(zip(*rows, strict=True))
    for name, meaning in meanings.items():
        count = 3 if name[:3] in ("mad", "sad") else 2
        operands = ", ".join("abc"[:count])
        made = evaluate(f"{name}.{kind} d0, {operands};", " ".join([kind] * count), kind, *columns[:count])
        assert made == [meaning(*map(number, row)) & mask for row in rows], name
    if width < 64:
        made = evaluate(f"mul.wide.{kind} d0, a, b;", f"{kind} {kind}", f"{kind[0]}{2 * width}", *columns[:2])
        assert made == [number(a) * number(b) & ((1 << 2 * width) - 1) for a, b, _ in rows]
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        made = evaluate(f"setp.{name}.{kind} d0, a, b;", f"{kind} {kind}", "pred", *columns[:2])
        assert made == [int(getattr(number(a), f"__{name}__")(number(b))) for a, b, _ in rows], name


@given(seed=_SEEDS)
def test_carries_chain_to_wider_sums(seed):
    """128-bit sums, differences and products of 64-bit words, as compilers build them."""
    rows = [((a, b), (c, d)) for a, b, c, d in _integers(64, 4, Random(seed))]
    columns = [[row[i][j] for row in rows] for i in range(2) for j in range(2)]
    kinds = "u64 u64 u64 u64"
    for name, meaning in (("add", int.__add__), ("sub", int.__sub__)):
        low, high = evaluate(f"{name}.cc.u64 d0, a, c; {name}c.u64 d1, b, d;", kinds, "u64 u64", *columns)
        for row, got_low, got_high in zip(rows, low, high, strict=True):
            x, y = (word[0] | word[1] << 64 for word in row)
            assert got_low | got_high << 64 == meaning(x, y) & ((1 << 128) - 1)
    # borrows and carries propagate through words that are equal, or all ones
    text = "sub.cc.u64 d0, a, b; subc.cc.u64 d1, c, d; subc.u64 d2, c, d;"
    assert evaluate(text, kinds, "u64 u64 u64", 0, 1, 5, 5) == [(1 << 64) - 1] * 3
    text = "add.cc.u64 d0, a, b; addc.cc.u64 d1, c, d; addc.u64 d2, a, a;"
    assert evaluate(text, kinds, "u64 u64 u64", (1 << 64) - 1, 1, (1 << 64) - 1, 0) == [0, 0, (1 << 64) - 1]
    text = "mad.lo.cc.u64 d0, a, b, c; madc.hi.u64 d1, a, b, d;"
    low, high = evaluate(text, kinds, "u64 u64", *columns)
    for row, got_low, got_high in zip(rows, low, high, strict=True):
        (a, b), (c, d) = row
        assert got_low | got_high << 64 == (a * b + (c | d << 64)) & ((1 << 128) - 1)


@pytest.mark.parametrize("width", [32, 64])
@given(seed=_SEEDS)
def test_bit_instructions_are_those_of_python(width, seed):
    mask = (1 << width) - 1
    chance = Random(seed)
    rows = [
        (
            *row,
            chance.choice((chance.randrange(70), chance.randrange(256))),
            chance.choice((0, 1, 8, chance.randrange(70))),
        )
        for row in _integers(width, 2, chance)
    ]
    a, b, c, d = zip(*rows, strict=True)
    one, kind = f"b{width}", f"u{width}"
    assert evaluate(f"popc.{one} d0, a;", one, "u32", a) == [x.bit_count() for x in a]
    assert evaluate(f"clz.{one} d0, a;", one, "u32", a) == [width - x.bit_length() for x in a]
    assert evaluate(f"brev.{one} d0, a;", one, one, a) == [int(f"{x:0{width}b}"[::-1], 2) for x in a]
    assert evaluate(f"shl.{one} d0, a, b;", f"{one} u32", one, a, c) == [
        x << n & mask for x, n in zip(a, c, strict=True)
    ]
    assert evaluate(f"shr.{kind} d0, a, b;", f"{kind} u32", kind, a, c) == [x >> n for x, n in zip(a, c, strict=True)]
    assert evaluate(f"shr.s{width} d0, a, b;", f"{kind} u32", kind, a, c) == [
        _signed(x, width) >> n & mask for x, n in zip(a, c, strict=True)
    ]
    for sign in "us":
        made = evaluate(f"bfe.{sign}{width} d0, a, b, c;", f"{kind} u32 u32", kind, a, c, d)
        for x, position, length, got in zip(a, c, d, made, strict=True):
            # the loop in the PTX ISA
            last = min(position + length - 1, width - 1)
            fill = x >> last & 1 if sign == "s" and length else 0
            meant = sum(
                (x >> position + i & 1 if i < length and position + i < width else fill) << i for i in range(width)
            )
            assert got == meant, (sign, hex(x), position, length)
    made = evaluate(f"bfi.{one} d0, a, b, c, d;", f"{one} {one} u32 u32", one, a, b, c, d)
    for x, y, position, length, got in zip(a, b, c, d, made, strict=True):
        meant = sum(
            (x >> i - position & 1 if position <= i < position + length else y >> i & 1) << i for i in range(width)
        )
        assert got == meant, (hex(x), hex(y), position, length)


@given(seed=_SEEDS, table=st.integers(0, 255))
def test_lop3_is_its_table(seed, table):
    rows = _integers(32, 3, Random(seed))
    made = evaluate(f"lop3.b32 d0, a, b, c, {table};", "b32 b32 b32", "b32", *zip(*rows, strict=True))
    for (a, b, c), got in zip(rows, made, strict=True):
        meant = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
        assert got == meant


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@given(seed=_SEEDS)
def test_floats_become_integers_by_rounding_and_clamping(kind, seed):
    width = int(kind[1:])
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)
    chance = Random(seed)
    values = [math.nan, math.inf, -math.inf, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 2.0**63, 2.0**64]
    values += [chance.uniform(-300, 300) for _ in range(30)]
    values += [float(chance.randint(low - 2, high + 2)) for _ in range(30)]
    values += [_value(_finite("f64", chance), "f64") for _ in range(30)]
    register = f"{kind[0]}{max(width, 16)}"
    mask = (1 << max(width, 16)) - 1
    for name, function in (("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", math.ceil)):
        made = evaluate(f"cvt.{name}.{kind}.f64 d0, a;", "f64", register, [_pattern(v, "f64") for v in values])
        for value, got in zip(values, made, strict=True):
            if math.isnan(value):
                assert got & ((1 << width) - 1) == 1 << (width - 1)
                continue
            if math.isinf(value):
                meant = high if value > 0 else low
            else:
                meant = min(max(function(value), low), high)
            assert got == meant & mask, (name, value)


@pytest.mark.parametrize("mode", _MODES)
@given(seed=_SEEDS)
def test_integers_become_floats_with_one_rounding(mode, seed):
    for kind in ("u32", "s32", "u64", "s64"):
        width = int(kind[1:])
        patterns = [row[0] for row in _integers(width, 1, Random(seed))]
        for target in ("f16", "f32", "f64"):
            made = evaluate(f"cvt.{mode}.{target}.{kind} d0, a;", kind, target, patterns)
            for pattern, got in zip(patterns, made, strict=True):
                number = _signed(pattern, width) if kind[0] == "s" else pattern
                meant = _expected(Fraction(number), target, mode) if number else 0
                assert got == meant, (kind, target, hex(pattern))


@pytest.mark.parametrize("mode", _MODES)
@given(seed=_SEEDS)
def test_narrowing_rounds_once(mode, seed):
    patterns = [row[0] for row in _vectors("f64", 1, Random(seed))]
    patterns += [_pattern(_value(p, "f16"), "f64") + d for p in (1, 2, 0x3FF, 0x7BFF, 0x3C01) for d in (-1, 0, 1)]
    # halfway between neighbours of the shorter formats, and slightly off
    patterns += [
        _pattern(Fraction(2 * k + 1, 2 ** (n + 1)).__float__(), "f64") + d
        for n in (10, 24)
        for k in (1024, 1025, 0)
        for d in (-1, 0, 1)
    ]
    for target in ("f16", "f32"):
        made = evaluate(f"cvt.{mode}.{target}.f64 d0, a;", "f64", target, patterns)
        for pattern, got in zip(patterns, made, strict=True):
            value = _value(pattern, "f64")
            meant = _expected(Fraction(value), target, mode) if value else _pattern(value, target)
            assert got == meant, (target, value)


def test_packs_and_unpacks_low_part_first():
    assert evaluate("mov.b64 d0, {a, b};", "b32 b32", "b64", 0x11223344, 0x55667788) == 0x5566778811223344
    assert evaluate("mov.b64 {d0, d1}, a;", "b64", "b32 b32", 0x5566778811223344) == [0x11223344, 0x55667788]
    assert evaluate("mov.b32 {_, d0}, a;", "b32", "b16", 0x11223344) == 0x1122


def test_narrow_types_in_wide_registers_use_the_low_part_and_extend():
    text = "cvt.s16.s8 d0, a; cvt.u32.u8 d1, a; cvt.s64.s8 d2, a; cvt.s8.s32 d3, a;"
    made = evaluate(text, "b32", "b16 b32 b64 b32", 0xABCD12F0)
    assert made == [0xFFF0, 0xF0, 0xFFFFFFFFFFFFFFF0, 0xFFFFFFF0]


# ---- unsupported ----


def _instruction(text, registers=".reg .b16 h<9>; .reg .b32 r<9>; .reg .b64 q<9>; .reg .f32 f<9>; .reg .pred p<9>;"):
    module = ptx.parse(
        f".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n{registers}\n{text}\nret;\n}}"
    )
    return module.functions["k"].instructions[0]


@pytest.mark.parametrize(
    "text",
    [
        "add.rn.ftz.bf16 h1, h2, h3;",
        "fma.rn.oob.f16 h1, h2, h3, h4;",
        "add.rna.f32 f1, f2, f3;",
        "add.f32x2 q1, q2, q3;",
        "cvt.rs.f16x2.f32 r1, f1, f2, r3;",
        "cvt.rn.satfinite.e2m1x2.f32 h1, f1, f2;",
        "cvt.rna.f32.f64 f1, q1;",
        "mul.wide.u64 q1, q2, q3;",
        "shf.l.b32 r1, r2, r3, r4;",
        "lop3.b32 r1, r2, r3, r4, r5;",
        "setp.lt.b32 p1, r1, r2;",
        "setp.f32 p1, f1, f2;",
        "min.f32.f32 f1, f2, f3;",
        "sin.f32 f1, f2;",
        "mov.b128 q1, q2;",
        "add.sat.u32 r1, r2, r3;",
        "add.cc.u16 h1, h2, h3;",
        "vabsdiff4.u32.s16.u32 r1, r2, r3, r4;",
        "rcp.approx.f64 q1, q2;",
    ],
)
def test_what_is_not_executed_is_refused_by_name_and_line(text):
    with pytest.raises(ptx.UnsupportedPtx) as caught:
        arithmetic.compile_lanewise(_instruction(text))
    name = text.split()[0]
    for part in (name, "line 6", text):
        assert part in str(caught.value)
    assert caught.value.line == 6


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("add.s32 r1, r2, q3;", "register q3"),
        ("add.s32 h1, r2, r3;", "register h1"),
        ("add.s32 r1, r2;", "2 sources"),
        ("fma.rn.f32 f1, f2, f3;", "3 sources"),
        ("add.f32 f1, f2, 1;", "integer literal"),
    ],
)
def test_operands_that_do_not_fit_are_errors(text, part):
    with pytest.raises(ptx.PtxError, match=part):
        arithmetic.compile_lanewise(_instruction(text))


@pytest.mark.parametrize(
    "text", ["ld.global.u32 r1, [q1];", "bra L; L:", "bar.sync 0;", "shfl.sync.idx.b32 r1, r2, 0, 31, -1;"]
)
def test_other_instructions_are_not_lane_wise(text):
    assert arithmetic.compile_lanewise(_instruction(text)) is None


def test_literals_take_the_type_of_their_place():
    def constant(literal, kind):
        return int(arithmetic.constant(literal, kind))

    assert constant(ptx.Immediate(-1, "s64"), "u16") == 0xFFFF
    assert constant(ptx.Immediate(-1, "s64"), "s64") == 0xFFFFFFFFFFFFFFFF
    assert constant(ptx.Immediate(0x3F800000, "f32"), "b32") == 0x3F800000
    assert constant(ptx.Immediate(_pattern(1.5, "f64"), "f64"), "f32") == 0x3FC00000
    assert constant(ptx.Immediate(0x3FC00000, "f32"), "f64") == _pattern(1.5, "f64")
    assert constant(ptx.Immediate(1, "s64"), "pred") == 1


def test_forms_are_checked_against_the_form_they_came_from():
    """Two instructions that differ only in a lop3 table need two functions."""
    form = Form("lop3.b32 d0, a, b, c, 0x80; lop3.b32 d1, a, b, c, 0xFE;", ("b32",) * 3, ("b32", "b32"))
    low, high = simulate(form, [np.uint64(0b1100), np.uint64(0b1010), np.uint64(0b1001)])
    assert (int(low), int(high)) == (0b1000, 0b1111)


@pytest.mark.parametrize("name", ["min.f32", "max.f32", "max.ftz.f32"])
@pytest.mark.parametrize("count", [1, 3, 7, 64])
def test_a_signalling_nan_gives_way_to_the_number_beside_it_in_every_lane(name, count):
    number, signalling = 0x3F2468AC, 0xFF800001
    for a, b in ((number, signalling), (signalling, number)):
        for shape in ([a] * count, [b] * count), ([a], [b] * count):
            found = evaluate(
                f"{name} d0, a, b;", "f32 f32", "f32", *(np.array(s)[0] if len(s) == 1 else s for s in shape)
            )
            assert np.all(np.atleast_1d(found) == number)
