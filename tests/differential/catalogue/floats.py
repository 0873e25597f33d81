"""f32 and f64: arithmetic in four rounding modes, approximate functions, min and max, tests and comparisons."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, op
from .integers import COMBINE, combined

MODES = (".rn", ".rz", ".rm", ".rp")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
EXTREMES = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")
_TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def forms() -> Iterator[Form]:
    yield from _single()
    yield from _double()
    yield from _approximate()
    yield from _tests()
    yield from _comparisons()


def _single() -> Iterator[Form]:
    group = "f32 arithmetic"
    for ftz in ("", ".ftz"):
        for sat in ("", ".sat"):
            for mode in ("", *MODES):
                for name in ("add", "sub", "mul"):
                    yield op(group, f"{name}{mode}{ftz}{sat}.f32", "f32 f32", "f32")
                if mode:
                    yield op(group, f"fma{mode}{ftz}{sat}.f32", "f32 f32 f32", "f32")
                    yield op(group, f"mad{mode}{ftz}{sat}.f32", "f32 f32 f32", "f32")
        for mode in MODES:
            yield op(group, f"div{mode}{ftz}.f32", "f32 f32", "f32")
            yield op(group, f"rcp{mode}{ftz}.f32", "f32", "f32")
            yield op(group, f"sqrt{mode}{ftz}.f32", "f32", "f32")
        for name in ("abs", "neg"):
            yield op(group, f"{name}{ftz}.f32", "f32", "f32")
        for name in ("min", "max"):
            for how in EXTREMES:
                yield op(group, f"{name}{ftz}{how}.f32", "f32 f32", "f32")


def _double() -> Iterator[Form]:
    group = "f64 arithmetic"
    for name in ("add", "sub", "mul"):
        yield op(group, f"{name}.f64", "f64 f64", "f64")
    for mode in MODES:
        for name in ("add", "sub", "mul", "div"):
            yield op(group, f"{name}{mode}.f64", "f64 f64", "f64")
        for name in ("fma", "mad"):
            yield op(group, f"{name}{mode}.f64", "f64 f64 f64", "f64")
        yield op(group, f"rcp{mode}.f64", "f64", "f64")
        yield op(group, f"sqrt{mode}.f64", "f64", "f64")
    for name in ("abs", "neg"):
        yield op(group, f"{name}.f64", "f64", "f64")
    for name in ("min", "max"):
        yield op(group, f"{name}.f64", "f64 f64", "f64")


def _approximate() -> Iterator[Form]:
    group = "approximate functions"
    for ftz in ("", ".ftz"):
        for name in ("ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt"):
            yield op(group, f"{name}.approx{ftz}.f32", "f32", "f32", bound=f"{name}.approx.f32")
        for name in ("div.approx", "div.full"):
            yield op(group, f"{name}{ftz}.f32", "f32 f32", "f32", bound=f"{name}.f32")
    yield op(group, "tanh.approx.f32", "f32", "f32", bound="tanh.approx.f32")
    for name in ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", "rsqrt.approx.f64"):
        yield op(group, name, "f64", "f64", bound=name)
    for name, ftz, kinds in (
        ("ex2", "", ("f16", "f16x2")),
        ("ex2", ".ftz", ("bf16", "bf16x2")),
        ("tanh", "", ("f16", "f16x2", "bf16", "bf16x2")),
    ):
        for t in kinds:
            yield op(group, f"{name}.approx{ftz}.{t}", t, t, bound=f"{name}.approx.{t.removesuffix('x2')}")


def _tests() -> Iterator[Form]:
    group = "tests and signs of floats"
    for t in ("f32", "f64"):
        yield op(group, f"copysign.{t}", f"{t} {t}", t)
        for name in _TESTS:
            yield op(group, f"testp.{name}.{t}", t, "pred")


def _comparisons() -> Iterator[Form]:
    group = "float comparison"
    for t, ftzs in (("f32", ("", ".ftz")), ("f64", ("",))):
        for ftz in ftzs:
            for number, name in enumerate(COMPARISONS):
                result = ("u32", "s32", "f32")[number % 3]
                yield op(group, f"setp.{name}{ftz}.{t}", f"{t} {t}", "pred")
                yield op(group, f"set.{name}{ftz}.{result}.{t}", f"{t} {t}", result)
                yield op(group, f"set.{name}.{COMBINE[number % 3]}{ftz}.f32.{t}", f"{t} {t} pred", "f32")
                if not ftz:
                    yield from combined(group, name, t, number)
