"""Integer arithmetic, logic, shifts, bits and bytes, comparison and selection of integers."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, op, statements

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
COMBINE = ("and", "or", "xor")
_SHIFT = "u32:shift"
_ARITHMETIC, _CARRY, _BITWISE = "integer arithmetic", "carry chains", "bits and shifts"
_BYTES, _COMPARE, _SELECT = "bytes and dot products", "integer comparison", "moves and selection"


def forms() -> Iterator[Form]:
    yield from _arithmetic()
    yield from _carries()
    yield from _bits()
    yield from _bytes()
    yield from _comparisons()
    yield from _selections()


def _arithmetic() -> Iterator[Form]:
    group = _ARITHMETIC
    for t in TYPES:
        for name in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
            yield op(group, f"{name}.{t}", f"{t} {t}", t)
        for name in ("mad.lo", "mad.hi", "sad"):
            yield op(group, f"{name}.{t}", f"{t} {t} {t}", t)
        if not t.endswith("64"):
            wide = f"{t[0]}{2 * int(t[1:])}"
            yield op(group, f"mul.wide.{t}", f"{t} {t}", wide)
            yield op(group, f"mad.wide.{t}", f"{t} {t} {wide}", wide)
        if t.startswith("s"):
            yield op(group, f"abs.{t}", t, t)
            yield op(group, f"neg.{t}", t, t)
    for name in ("add.sat", "sub.sat"):
        yield op(group, f"{name}.s32", "s32 s32", "s32")
    for name in ("mad.hi.sat", "mad24.hi.sat"):
        yield op(group, f"{name}.s32", "s32 s32 s32", "s32")
    for t in ("u32", "s32"):
        for half in ("lo", "hi"):
            yield op(group, f"mul24.{half}.{t}", f"{t} {t}", t)
            yield op(group, f"mad24.{half}.{t}", f"{t} {t} {t}", t)
    for t in ("u16x2", "s16x2"):
        for name in ("add", "min", "max"):
            yield op(group, f"{name}.{t}", "b32 b32", "b32")
    for name in ("min", "max"):
        yield op(group, f"{name}.relu.s32", "s32 s32", "s32")
        yield op(group, f"{name}.relu.s16x2", "b32 b32", "b32")


def _carries() -> Iterator[Form]:
    group = _CARRY
    for t in ("u32", "s32", "u64", "s64"):
        four, x = f"{t} {t} {t} {t}", f".reg .{t} x;"
        for name in ("add", "sub"):
            chain = f"{name}.cc.{t} x, a, b; {name}c.cc.{t} d0, c, d; {name}c.{t} d1, a, d;"
            yield statements(group, chain, four, f"{t} {t}", declare=x)
        for first, second, third in (("lo", "hi", "lo"), ("hi", "lo", "hi")):
            chain = f"mad.{first}.cc.{t} x, a, b, c; madc.{second}.cc.{t} d0, a, b, d; madc.{third}.{t} d1, a, c, d;"
            yield statements(group, chain, four, f"{t} {t}", declare=x)
            chain = f"mad.{first}.cc.{t} d0, a, b, c; addc.{t} d1, a, d;"
            yield statements(group, chain, four, f"{t} {t}")
        yield statements(
            group, f"sub.cc.{t} d0, a, b; addc.{t} d1, c, d;", four, f"{t} {t}"
        )  # the borrow is read as a carry


def _bits() -> Iterator[Form]:
    group = _BITWISE
    for t in ("u32", "s32", "u64", "s64"):
        yield op(group, f"bfe.{t}", f"{t} {_SHIFT} {_SHIFT}", t)
        yield op(group, f"bfind.{t}", t, "u32")
        yield op(group, f"bfind.shiftamt.{t}", t, "u32")
    for t in ("b32", "b64"):
        yield op(group, f"bfi.{t}", f"{t} {t} {_SHIFT} {_SHIFT}", t)
        yield op(group, f"popc.{t}", t, "u32")
        yield op(group, f"clz.{t}", t, "u32")
        yield op(group, f"brev.{t}", t, t)
    for t in BITS:
        for name in ("and", "or", "xor"):
            yield op(group, f"{name}.{t}", f"{t} {t}", t)
        for name in ("not", "cnot"):
            yield op(group, f"{name}.{t}", t, t)
        yield op(group, f"shl.{t}", f"{t} {_SHIFT}", t)
    for t in (*BITS, *TYPES):
        yield op(group, f"shr.{t}", f"{t} {_SHIFT}", t)
    for name in ("and", "or", "xor"):
        yield op(group, f"{name}.pred", "pred pred", "pred")
    yield op(group, "not.pred", "pred", "pred")
    for side in "lr":
        for mode in ("clamp", "wrap"):
            yield op(group, f"shf.{side}.{mode}.b32", f"b32 b32 {_SHIFT}", "b32")
    for first in range(0, 256, 8):  # eight truth tables per form
        text = " ".join(f"lop3.b32 d{k}, a, b, c, {first + k};" for k in range(8))
        yield statements(group, text, "b32 b32 b32", " ".join(["b32"] * 8))
    for name in ("or", "and"):
        yield statements(group, f"lop3.{name}.b32 d0|d1, a, b, c, 0x80, d;", "b32 b32 b32 pred", "b32 pred")
        yield statements(group, f"lop3.{name}.b32 d0|d1, a, b, c, 0x1e, !d;", "b32 b32 b32 pred", "b32 pred")
    for mode in ("clamp", "wrap"):
        yield op(group, f"bmsk.{mode}.b32", f"{_SHIFT} {_SHIFT}", "b32")
        for t in ("u32", "s32"):
            yield op(group, f"szext.{mode}.{t}", f"{t} {_SHIFT}", t)
    yield op(group, "fns.b32", "b32 b32:below32 s32:offset", "b32")


def _bytes() -> Iterator[Form]:
    group = _BYTES
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield op(group, f"prmt.b32{mode}", "b32 b32 b32", "b32")
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            result = "s32" if "s32" in (a, b) else "u32"
            yield op(group, f"dp4a.{a}.{b}", f"{a} {b} {result}", result)
            for half in ("lo", "hi"):
                yield op(group, f"dp2a.{half}.{a}.{b}", f"{a} {b} {result}", result)
    for t in ("u32", "s32"):
        yield op(group, f"vabsdiff4.{t}.{t}.{t}", f"{t} {t} {t}", t)
        yield op(group, f"vabsdiff4.{t}.{t}.{t}.add", f"{t} {t} {t}", t)


def _comparisons() -> Iterator[Form]:
    group = _COMPARE
    for t in (*BITS, *TYPES):
        names: tuple[str, ...] = ("eq", "ne")
        if not t.startswith("b"):
            names += ("lt", "le", "gt", "ge")
        if t.startswith("u"):
            names += ("lo", "ls", "hi", "hs")
        for number, name in enumerate(names):
            yield op(group, f"setp.{name}.{t}", f"{t} {t}", "pred")
            yield from combined(group, f"{name}", t, number)
            result = ("u32", "s32", "f32")[number % 3]
            yield op(group, f"set.{name}.{result}.{t}", f"{t} {t}", result)
            yield op(group, f"set.{name}.{COMBINE[number % 3]}.u32.{t}", f"{t} {t} pred", "u32")


def combined(group: str, comparison: str, t: str, number: int) -> Iterator[Form]:
    """A comparison combined with a predicate, plain and negated, and with the opposite as a second result."""
    combine = COMBINE[number % 3]
    yield statements(group, f"setp.{comparison}.{combine}.{t} d0|d1, a, b, c;", f"{t} {t} pred", "pred pred")
    other = COMBINE[(number + 1) % 3]
    yield statements(group, f"setp.{comparison}.{other}.{t} d0|d1, a, b, !c;", f"{t} {t} pred", "pred pred")


def _selections() -> Iterator[Form]:
    group = _SELECT
    for t in (*BITS, *TYPES, "f32", "f64"):
        yield op(group, f"selp.{t}", f"{t} {t} pred", t)
        yield op(group, f"slct.{t}.s32", f"{t} {t} s32", t)
        yield op(group, f"slct.{t}.f32", f"{t} {t} f32", t)
        yield op(group, f"slct.ftz.{t}.f32", f"{t} {t} f32", t)
        yield op(group, f"mov.{t}", t, t)
    yield op(group, "mov.pred", "pred", "pred")
    yield statements(group, "mov.b64 d0, {a, b};", "b32 b32", "b64")
    yield statements(group, "mov.b64 {d0, d1}, a;", "b64", "b32 b32")
    yield statements(group, "mov.b64 {_, d0}, a;", "b64", "b32")
    yield statements(group, "mov.b32 {d0, d1}, a;", "b32", "b16 b16")
    yield statements(group, "mov.b32 d0, {a, b};", "b16 b16", "b32")
    yield statements(group, "mov.b64 d0, {a, b, c, d};", "b16 b16 b16 b16", "b64")
    yield statements(group, "mov.b64 {d0, d1, d2, d3}, a;", "b64", "b16 b16 b16 b16")
