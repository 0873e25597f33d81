"""f16 and bf16, scalar and packed in pairs."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, op, statements
from .floats import COMPARISONS, EXTREMES
from .integers import COMBINE


def forms() -> Iterator[Form]:
    yield from _half()
    yield from _bfloat()
    yield from _comparisons()


def _half() -> Iterator[Form]:
    group = "f16 arithmetic"
    for t in ("f16", "f16x2"):
        for ftz in ("", ".ftz"):
            for sat in ("", ".sat"):
                for name in ("add", "sub", "mul"):
                    for mode in ("", ".rn"):
                        yield op(group, f"{name}{mode}{ftz}{sat}.{t}", f"{t} {t}", t)
                yield op(group, f"fma.rn{ftz}{sat}.{t}", f"{t} {t} {t}", t)
            yield op(group, f"fma.rn{ftz}.relu.{t}", f"{t} {t} {t}", t)
            for name in ("abs", "neg"):
                yield op(group, f"{name}{ftz}.{t}", t, t)
            for name in ("min", "max"):
                for how in EXTREMES:
                    yield op(group, f"{name}{ftz}{how}.{t}", f"{t} {t}", t)


def _bfloat() -> Iterator[Form]:
    group = "bf16 arithmetic"
    for t in ("bf16", "bf16x2"):
        for name in ("add", "sub", "mul"):
            for mode in ("", ".rn"):
                yield op(group, f"{name}{mode}.{t}", f"{t} {t}", t)
        for how in ("", ".relu"):
            yield op(group, f"fma.rn{how}.{t}", f"{t} {t} {t}", t)
        for name in ("abs", "neg"):
            yield op(group, f"{name}.{t}", t, t)
        for name in ("min", "max"):
            for how in EXTREMES:
                yield op(group, f"{name}{how}.{t}", f"{t} {t}", t)


def _comparisons() -> Iterator[Form]:
    group = "half comparison"
    for base in ("f16", "bf16"):
        pair = f"{base}x2"
        for ftz in ("", ".ftz") if base == "f16" else ("",):
            for number, name in enumerate(COMPARISONS):
                combine = COMBINE[number % 3]
                yield op(group, f"setp.{name}{ftz}.{base}", f"{base} {base}", "pred")
                text = f"setp.{name}{ftz}.{pair} d0|d1, a, b;"
                yield statements(group, text, f"{pair} {pair}", "pred pred")
                text = f"setp.{name}.{combine}{ftz}.{pair} d0|d1, a, b, {'!' if number % 2 else ''}c;"
                yield statements(group, text, f"{pair} {pair} pred", "pred pred")
                text = f"setp.{name}.{combine}{ftz}.{base} d0, a, b, {'!' if number % 2 else ''}c;"
                yield statements(group, text, f"{base} {base} pred", "pred")
                result = (base, "u16", "s16", "u32", "s32")[number % 5]
                yield op(group, f"set.{name}{ftz}.{result}.{base}", f"{base} {base}", result)
                result = (pair, "u32", "s32")[number % 3]
                yield op(group, f"set.{name}{ftz}.{result}.{pair}", f"{pair} {pair}", "b32")
                yield op(group, f"set.{name}.{combine}{ftz}.{pair}.{pair}", f"{pair} {pair} pred", "b32")
    for kind in ("s32", "u32", "s64", "f32", "f64", "b16", "u16"):
        name = "ne" if kind == "b16" else "lt"
        for base in ("f16", "bf16"):
            yield op(group, f"set.{name}.{base}.{kind}", f"{kind} {kind}", base)
