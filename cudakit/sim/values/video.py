"""SIMD video instructions: two or four small integers in 32 bits (PTX ISA, SIMD Video Instructions).

Supported are the forms without byte selectors and masks: CUDA's headers emit only these (__vabsdiffu4, __vsadu4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudakit.sim.values.lanewise import S64, U32, Array, Form, Spec, builds

_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _parts(packed: Array, bits: int, signed: bool) -> list[Array]:
    """The packed integers of each lane, lowest first, as int64."""
    whole = packed.astype(S64)
    parts = [(whole >> (bits * n)) & ((1 << bits) - 1) for n in range(32 // bits)]
    return [np.where(part >> (bits - 1), part - (1 << bits), part) for part in parts] if signed else parts


def _build(spec: Spec) -> Form:
    opcode = spec.instruction.opcode
    stem, bits = opcode[:-1], 32 // int(opcode[-1])
    adds, saturates = spec.flag("add"), spec.flag("sat")
    comparison = spec.one_of(*_COMPARISONS) if stem == "vset" else ""
    types = [spec.kind("u32", "s32") for _ in range(2 if comparison else 3)][::-1]
    spec.finish()
    if (stem == "vset" and not comparison) or (saturates and (adds or comparison)):
        spec.refuse("unknown form")
    result, first, second = ("u32", *types) if comparison else types
    compute = _COMPARISONS[comparison] if comparison else _ARITHMETIC[stem]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if result == "s32" else (0, (1 << bits) - 1)

    def run(a: Array, b: Array, c: Array) -> Array:
        pairs = zip(_parts(a, bits, first == "s32"), _parts(b, bits, second == "s32"), strict=True)
        results = [compute(x, y).astype(S64) for x, y in pairs]
        if adds:
            total = c.astype(S64)
            for part in results:
                total = total + part
            return total.astype(U32)
        if saturates:
            results = [np.clip(part, low, high) for part in results]
        joined = results[0] & ((1 << bits) - 1)
        for n, part in enumerate(results[1:], 1):
            joined = joined | ((part & ((1 << bits) - 1)) << (bits * n))
        return joined.astype(U32)

    return Form(run, ("u32",), ("u32", "u32", "u32"))


builds(*(f"{stem}{count}" for stem in (*_ARITHMETIC, "vset") for count in (2, 4)))(_build)
