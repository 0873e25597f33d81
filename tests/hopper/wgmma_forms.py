"""The forms of wgmma: shapes, types, sources of A, layouts, swizzles, scale-d, negation, and kinds of values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from .case import Case, untouched
from .values import KINDS
from .wgmma_kernel import ROWS, Layout, Product, body

_HALVES = (("f16", "f16", "f32"), ("bf16", "bf16", "f32"), ("f16", "f16", "f16"))
_TF32 = ("tf32", "tf32", "f32")
_BYTES = tuple((a, b, d) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2"))
_INTEGERS = tuple((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8"))
_BITS = ("b1", "b1", "s32")
_SWIZZLES = (0, 32, 64, 128)
FLOAT_COLUMNS = tuple(range(8, 257, 8))
INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))
_SPREAD = (8, 16, 24, 40, 64, 72, 96, 128)  # for forms whose number of columns is not the point
_LARGEST = 48 << 10  # bytes of shared memory

Types = tuple[str, str, str]


class _Turn:
    """Values in turn, so that each is used equally often."""

    def __init__(self, *values: object) -> None:
        self._values = itertools.cycle(values)

    def __call__(self) -> object:
        return next(self._values)


def _columns(types: Types) -> tuple[int, ...]:
    return FLOAT_COLUMNS if types[2] != "s32" else INTEGER_COLUMNS


def _product(
    types: Types,
    n: int,
    registers: bool,
    a: tuple[int, bool, bool],
    b: tuple[int, bool, bool],
    steps: int,
    ignored: int = 1,
    **more: object,
) -> Product:
    """Return a product; a, b: swizzle, transposed and apart of each layout. If it needs too much shared memory, it has
    fewer steps."""

    def layout(rows: int, given: tuple[int, bool, bool], steps: int) -> Layout:
        swizzle, transposed, apart = given
        return Layout(rows, steps, swizzle, transposed, apart, ignored if swizzle and not transposed else 1)

    while True:
        first = None if registers else layout(ROWS, a, steps)
        made = Product(n, *types, first, layout(n, b, steps), **more)  # type: ignore[arg-type]
        if made.image <= _LARGEST:
            return made
        if steps == 1:
            b = (b[0], b[1], False)
        steps = max(steps - 1, 1)


def _layouts() -> Iterator[tuple[str, Product]]:
    """All combinations of majors, swizzles and the source of A, of one type for each width of element."""
    n, steps, apart, ignored = _Turn(*_SPREAD), _Turn(3, 2, 4), _Turn(False, False, True), _Turn(1, 0, 1, 77)
    for types in (_HALVES[0], _HALVES[1]):
        for ta, tb, sa, sb in itertools.product((False, True), (False, True), _SWIZZLES, _SWIZZLES):
            yield "layouts", _product(types, n(), False, (sa, ta, apart()), (sb, tb, apart()), steps(), ignored())
        for tb, sb in itertools.product((False, True), _SWIZZLES):
            yield "layouts", _product(types, n(), True, (0, False, False), (sb, tb, apart()), steps(), ignored())
    for types in (_TF32, _BYTES[0], _INTEGERS[0], _BITS):
        kind = "any" if types[2] == "s32" else "normal"
        widths = _Turn(*(one for one in _SPREAD if one in _columns(types)))
        for sa, sb in itertools.product(_SWIZZLES, _SWIZZLES):
            a, b = (sa, False, apart()), (sb, False, apart())
            yield "layouts", _product(types, widths(), False, a, b, steps(), ignored(), kind=kind)
        for sb in _SWIZZLES:
            b = (sb, False, apart())
            yield "layouts", _product(types, widths(), True, (0, False, False), b, steps(), ignored(), kind=kind)


def _shapes() -> Iterator[tuple[str, Product]]:
    """Every number of columns, A in registers and in shared memory in turn."""
    swizzle, steps = _Turn(128, 0, 64, 32), _Turn(2, 3)
    kinds = _Turn("normal", "wide", "exact", "cancelling", "sparse")
    for number, types in enumerate((*_HALVES, _TF32, _BYTES[0], _INTEGERS[1], _BITS)):
        for place, n in enumerate(_columns(types)):
            registers = bool((number + place) % 2)
            transposed = types[0] in ("f16", "bf16") and place % 3 == 0
            kind = "any" if types[2] == "s32" else kinds()
            span = swizzle()
            a, b = (span, transposed, False), (span, transposed, False)
            yield "shapes", _product(types, n, registers, a, b, steps(), kind=kind)


def _types() -> Iterator[tuple[str, Product]]:
    """Every combination of types, both sources of A, and .satfinite."""
    n, swizzle = _Turn(16, 64, 192, 32, 96), _Turn(128, 64, 32)
    for types in (*_BYTES, *_INTEGERS):
        for registers, saturate in itertools.product((False, True), (False, True) if types[2] == "s32" else (False,)):
            for kind in ("limits", "any", "small") if types[2] == "s32" else ("normal", "cancelling", "wide"):
                span = (swizzle(), False, False)
                yield "types", _product(types, n(), registers, span, span, 2, saturate=saturate, kind=kind)


def _scales() -> Iterator[tuple[str, Product]]:
    """scale-d and negation."""
    n, swizzle = _Turn(8, 40, 80, 128), _Turn(128, 0, 64)
    kinds = _Turn("normal", "special", "cancelling")
    for types in (*_HALVES, _TF32, _BYTES[0], _BYTES[7]):
        for registers, accumulate, *negate in itertools.product((False, True), repeat=4):
            span = (swizzle(), False, False)
            yield (
                "scale-d and negation",
                _product(
                    types, n(), registers, span, span, 2, accumulate=accumulate, negate=tuple(negate), kind=kinds()
                ),
            )
    for types in (*_INTEGERS, _BITS):
        for registers in (False, True):
            span = (swizzle(), False, False)
            yield "scale-d and negation", _product(types, 16, registers, span, span, 2, accumulate=False, kind="any")


def _values() -> Iterator[tuple[str, Product]]:
    """Every kind of values of every type."""
    registers, steps = _Turn(False, True), _Turn(2, 3, 4, 1)
    for types in (*_HALVES, _TF32, *_BYTES):
        n = _Turn(32, 16, 48)
        for kind in KINDS:
            span = (128, False, False)
            yield "values", _product(types, n(), bool(registers()), span, span, steps(), kind=kind)


def products() -> list[tuple[str, Product]]:
    """Return (aspect, product) of all forms, each once."""
    found: dict[str, tuple[str, Product]] = {}
    for made in (_layouts, _shapes, _types, _scales, _values):
        for aspect, product in made():
            found.setdefault(str(product), (aspect, product))
    return list(found.values())


def cases(only: Sequence[tuple[str, Product]] | None = None) -> list[Case]:
    """Return the cases of all forms, or of some."""
    return [
        Case(
            "wgmma",
            f"wgmma: {_row(product)}",
            f"wgmma {aspect}: {product}",
            body(product),
            product.inputs,
            lambda product=product: untouched(product.result),  # type: ignore[misc]
            locate=product.locate,
        )
        for aspect, product in (products() if only is None else only)
    ]


def _row(product: Product) -> str:
    if product.a_type == "b1":
        return "b1"
    if product.integer:
        return "s8 and u8"
    types = "fp8" if product.a_type in ("e4m3", "e5m2") else product.a_type
    return f"{types}, {product.d_type} sums"
