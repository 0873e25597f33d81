"""ex2.approx and rcp.approx of f32 as machine code, with the tables and rules of ``sim/values/measured.py``.

A table's address is that of this process, so kernels ask for it by a function of a module of its own, which is not kept
(kept_code.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cudakit.sim.compiled.ir import Module, Value, lanes, like
from cudakit.sim.compiled.rounding import double, fused, is_nan, pattern, short, single, wide
from cudakit.sim.values import measured

# of the names of the functions that return the tables' addresses
PREFIX = "table_"
_TABLES: dict[str, Callable[[], npt.NDArray[np.uint32]]] = {
    "ex2": measured.corrections,
    "rcp": lambda: measured.table("rcp"),
}
_TERMS = 14


def locator(name: str) -> Module:
    """The function with a name, which returns the address of its table."""
    module = Module()
    with module.function(name, "i64") as code:
        code.return_(code.const("i64", _TABLES[name.removeprefix(PREFIX)]().ctypes.data))
    return module


def _element(name: str, index: Value) -> Value:
    """The elements (i32) at indices of a table."""
    code = index.code
    base, offset = code.call(PREFIX + name, "i64"), index.to("i64") << 2
    if not lanes(index.kind):
        return code.pointer(base + offset).load("i32")
    return code.gather(like(index.kind, "i32"), (base.splat(lanes(index.kind)) + offset).convert("inttoptr", "ptr"))


def exp2(a: Value) -> Value:
    """ex2.approx of f32 values."""
    low, number = a.is_("olt", float(measured.LOW)), is_nan(a)
    value = low.select(a * 0.5, number.select(0.0, a))
    for condition, limit in (("olt", float(measured.LOW)), ("ogt", float(measured.HIGH))):
        value = value.is_(condition, limit).select(limit, value)
    steps = (value * float(1 << measured.BITS)).convert("fptosi", "i32")
    # the conversion truncates; the complement is one less, except for integers
    steps = steps - (value.is_("olt", 0.0) & (steps & measured.MASK).ne(0)).to("i32")
    rest = steps & measured.MASK
    correction = (_element("ex2", rest >> 4) >> ((rest & 15) << 1) & 3) - 1
    result = single(pattern(short(_power(rest))) + correction + (steps & ~measured.MASK))
    return number.select(a, low.select(result * result, result))


def _power(steps: Value) -> Value:
    """2 to the power of a number of steps of 2^-23 (i32, below 1) by a series: rounded to f32, it has numpy's bits."""
    value = steps.convert("sitofp", "double") * 2.0**-measured.BITS
    # adding 1.5 * 2^52 rounds to an integer, which is then in the lowest bits
    magic = 1.5 * 2.0**52
    shifted = value + magic
    rest = value - (shifted - magic)
    power = rest._with(math.log(2) ** (_TERMS - 1) / math.factorial(_TERMS - 1))
    for number in range(_TERMS - 2, -1, -1):
        power = fused(power, rest, rest._with(math.log(2) ** number / math.factorial(number)))
    return double(pattern(power) + (pattern(shifted) << 52))


def reciprocal(given: Value) -> Value:
    """rcp.approx of f32 values, given and returned as f64."""
    bits = pattern(given)
    exponent = (bits >> 52) & 0x7FF
    fraction = wide(single(_element("rcp", (bits >> (52 - measured.BITS)) & measured.MASK)))
    result = pattern(fraction) + ((-exponent + 1023) << 52)
    special = exponent.eq(0) | exponent.eq(0x7FF)
    return special.select(given._with(1.0) / given, double(result | (bits & (1 << 63))))
