"""The places from which wgmma reads its operands, for every layout of its descriptors, and its sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .case import Bytes, Case, untouched
from .runner import Runner
from .wgmma_kernel import ROWS, THREADS, Layout, Product, body

_DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
}


@dataclass(frozen=True)
class Shifted(Layout):
    """A layout that starts some bytes after a boundary of its swizzle. base: the descriptor's base offset."""

    shift: int = 0
    base: int = 0

    def start(self, step: int) -> int:
        return super().start(step) + self.shift

    @property
    def size(self) -> int:
        return super().size + 2048

    def descriptor(self) -> int:
        return super().descriptor() | (self.base & 7) << 49

    def __str__(self) -> str:
        return f"{super().__str__()} shifted {self.shift}, base offset {self.base}"


def multiply(runner: Runner, product: Product, given: Bytes) -> np.ndarray:
    """Return D for an image of shared memory and registers, as its bit patterns by row and column."""
    case = Case("facts", "", "", body(product), lambda: given, lambda: untouched(product.result))
    words = _result(runner, case).view(np.uint16 if product.d_type == "f16" else np.uint32).reshape(4, 8, 4, -1, 2, 2)
    # warp, group, place, eight columns, half of the rows, column: to row and column
    return words.transpose(0, 4, 1, 3, 2, 5).reshape(ROWS, product.n)


def _result(runner: Runner, case: Case) -> Bytes:
    found = runner.here(case).result
    if found is None:
        raise RuntimeError("a case without tensor maps has a result")
    return found


# Layouts --------------------------------------------------------------------------------------------------------------


def offsets(layout: Layout, step: int, xor: int = 0) -> np.ndarray:
    """Return the byte that the documentation of the layouts implies for each row (M or N) and k of 16, of 16-bit types.
    xor: added to the address before it is swizzled."""
    row, k = np.meshgrid(np.arange(layout.rows), np.arange(16), indexing="ij")
    leading, stride = layout.strides
    if layout.transposed:
        wide = (layout.swizzle or 16) // 2
        along, across = (leading, stride) if layout.swizzle else (stride, leading)
        at = row // wide * along + row % wide * 2 + k // 8 * across + k % 8 * wide * 2
    elif layout.swizzle:
        at = row // 8 * stride + row % 8 * layout.swizzle + 2 * k
    else:
        at = row // 8 * stride + row % 8 * 16 + k // 8 * leading + k % 8 * 2
    at = at + layout.start(step)
    if layout.swizzle:
        at ^= (at + xor) % (8 * layout.swizzle) >> 7 << 4
    return np.asarray(at)


def _identity(step: int, steps: int) -> np.ndarray:
    """Return the registers of A that select k as row, in one of the steps; zero in the others."""
    thread, v = np.meshgrid(np.arange(THREADS), np.arange(8), indexing="ij")
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (v // 2 % 2)
    k = 2 * (thread % 4) + v % 2 + 8 * (v // 4)
    made = np.zeros((THREADS, steps, 8), np.float16)
    made[:, step] = row == k
    return made


def _read(runner: Runner, layout: Layout, step: int) -> np.ndarray:
    """Return the byte that B's element (n, k) is read from."""
    product = Product(layout.rows, "f16", "f16", "f32", None, layout, accumulate=False)
    found = np.zeros((layout.rows, 16), np.int64)
    numbers = np.arange(layout.size // 2)
    registers = [_identity(step, layout.steps).view(np.uint8).ravel(), np.zeros(product.result, np.uint8)]
    for shift in (0, 10):  # f16 holds the integers up to 1023
        image = (numbers >> shift & 1023).astype(np.float16).view(np.uint8)
        made = multiply(runner, product, np.concatenate([image, *registers])).view(np.float32)
        found += made[:16].T.astype(np.int64) << shift
    return 2 * found


def _layouts(runner: Runner) -> Iterator[str]:
    probes: list[tuple[Layout, int]] = []
    for swizzle in (0, 32, 64, 128):
        for transposed in (False, True):
            for apart in (False, True):
                for rows in (8, 40, 128):
                    layout = Layout(rows, 3, swizzle, transposed, apart)
                    if layout.size <= 40 << 10:
                        probes += [(layout, 0), (layout, 2)]
        if swizzle:
            probes += [(Layout(64, 1, swizzle, ignored=ignored), 0) for ignored in (0, 77, 0x3FFF)]
    for layout, step in probes:
        found, rule = _read(runner, layout, step), offsets(layout, step)
        wrong = np.argwhere(found != rule)
        line = "as documented"
        if len(wrong):
            n, k = wrong[0]
            line = f"{len(wrong)} elements differ, first ({n}, {k}): byte {found[n, k]}, documented {rule[n, k]}"
        yield f"layout {layout.rows} rows, {layout}, step {step}: {line}"


def _shifts(runner: Runner) -> Iterator[str]:
    """Starts that are not at a boundary of the swizzle, with and without the base offset."""
    for swizzle in (32, 64, 128):
        for shift in (16, 32, 64, 128, 256, 384, 512):
            if shift >= 8 * swizzle:
                continue
            for base in sorted({0, shift >> 7 & 7, 1, 7}):
                layout = Shifted(16, 2, swizzle, shift=shift, base=base)
                found = _read(runner, layout, 0)
                rules = {f"xor of address + {xor}": offsets(layout, 0, xor) for xor in range(0, 1024, 128)}
                fits = [name for name, rule in rules.items() if (found == rule).all()]
                yield f"{layout}: {', '.join(fits) or f'row 1 from {found[1, :16:8]}, row 0 from {found[0, :16:8]}'}"


# Sums -----------------------------------------------------------------------------------------------------------------


def _image(values: np.ndarray, kind: str, layout: Layout) -> Bytes:
    """Return the bytes of a matrix (rows, k) in the plain layout, K-major."""
    elements = values.astype(_DTYPES[kind])
    size, made = elements.dtype.itemsize, np.zeros(layout.size, np.uint8)
    leading, stride = layout.strides
    for row in range(values.shape[0]):
        for chunk in range(2):
            at = row // 8 * stride + row % 8 * 16 + chunk * leading
            part = elements[row, chunk * 16 // size : (chunk + 1) * 16 // size]
            made[at : at + 16] = np.ascontiguousarray(part).view(np.uint8)
    return made


def sums(runner: Runner, kind: str, d_type: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the bit patterns of A B + C: A of 64 rows, B of 8 columns (as rows), C of 64 rows."""
    layouts = Layout(ROWS, 1, 0), Layout(8, 1, 0)
    product = Product(8, kind, kind, d_type, *layouts)
    thread, v = np.meshgrid(np.arange(THREADS), np.arange(4), indexing="ij")
    rows, columns = 16 * (thread // 32) + thread % 32 // 4 + 8 * (v // 2), 2 * (thread % 4) + v % 2
    registers = np.ascontiguousarray(c[rows, columns].astype(_DTYPES[d_type])).view(np.uint8).ravel()
    given = np.concatenate([_image(a, kind, layouts[0]), _image(b, kind, layouts[1]), registers])
    return multiply(runner, product, given)


def _additions(runner: Runner, kind: str, d_type: str) -> Iterator[str]:
    """How many bits below the largest term a sum keeps: a term of 2^-s beside terms of 1."""
    depth = {"f16": 16, "bf16": 16, "tf32": 8}.get(kind, 32)
    least = {"f16": 14, "e4m3": 6, "e5m2": 14}.get(kind, 40)  # exponents of normal numbers
    name = f"{kind}, {d_type} sums"
    halves = np.minimum(np.arange(ROWS) // 2, least), np.minimum(np.arange(ROWS) - np.arange(ROWS) // 2, least)
    exponents = halves[0] + halves[1]

    def run(first: float, small: float, rest: float, c: float, other: float = 1) -> np.ndarray:
        a, b = np.zeros((ROWS, depth)), np.zeros((8, depth))
        a[:, 0], b[:, 0] = first, other
        a[:, 1] = small * 2.0 ** -halves[0]
        a[:, 2], b[:, 2] = rest, 1
        made = []
        # the second factor differs by row, and B has eight columns: eight rows at a time
        for at in range(0, ROWS, 8):
            b[:, 1] = 2.0 ** -halves[1][at : at + 8].astype(float)
            result = sums(runner, kind, d_type, a, b, np.full((ROWS, 8), c))
            made += [int(result[at + k, k]) for k in range(8)]
        return np.array(made)

    for what, arguments in {
        "1 + 2^-s - 1, 1 as a product": (1, 1, -1, 0),
        "1 + 2^-s - 1, -1 as C": (1, 1, 0, -1),
        "2^-s + 1 as C, -1 as a product": (-1, 1, 0, 1),
        "1 - 2^-s": (1, -1, 0, 0),
        "-1 + 2^-s": (-1, 1, 0, 0),
        "1 + 2^-s": (1, 1, 0, 0),
        "1.5 x 1.5 + 2^-s - 2.25": (1.5, 1, 0, -2.25, 1.5),
        "1.5 x 1.5 - 2^-s": (1.5, -1, 0, 0, 1.5),
    }.items():
        found = run(*arguments)
        shown: dict[int, int] = {}
        for s, value in zip(exponents.tolist(), found.tolist(), strict=True):
            shown.setdefault(s, value)
        yield f"{name}: {what}: " + " ".join(f"{s}:{value:x}" for s, value in sorted(shown.items()))


def _specials(runner: Runner, kind: str, d_type: str) -> Iterator[str]:
    """Infinities, NaN, overflow and rounding of D."""
    depth = {"f16": 16, "bf16": 16, "tf32": 8}.get(kind, 32)
    infinite = kind != "e4m3"
    big = {"f16": 65504.0, "bf16": 3e38, "tf32": 3e38, "e4m3": 448.0, "e5m2": 57344.0}[kind]
    inf, nan = np.inf if infinite else np.nan, np.nan
    tests = {
        "inf": (inf, 1, 0, 0, 0), "-inf": (-inf, 1, 0, 0, 0), "inf - inf": (inf, 1, -inf, 1, 0),
        "nan": (nan, 1, 0, 0, 0), "inf x 0": (inf, 0, 0, 0, 0), "-nan": (-nan, 1, 0, 0, 0),
        "C inf": (0, 0, 0, 0, np.inf),
        "C nan": (0, 0, 0, 0, np.nan), "C -nan": (0, 0, 0, 0, -np.nan), "inf, C -inf": (inf, 1, 0, 0, -np.inf),
        "-0": (-0.0, 1, 0, 0, -0.0), "-0 x 1 + 0": (-0.0, 1, 0, 0, 0), "0 of all": (0, 0, 0, 0, -0.0),
        "1 - 1": (1, 1, -1, 1, 0), "big x big": (big, big, 0, 0, 0), "big x big twice": (big, big, big, big, 0),
        "-big x big": (-big, big, 0, 0, 0), "big - big + 1": (big, big, -big, big, 1), "C largest + 1 ulp": (
            2.0**104 if d_type == "f32" and kind in ("bf16", "tf32") else 32, 1, 0, 0,
            3.4028234663852886e38 if d_type == "f32" else 65504.0),
        "f16 tie": (2.0**-6, 2.0**-5, 1, 1, 0), "f16 tie, odd": (2.0**-6, 2.0**-5, 1, 1, 2.0**-10),
        "C subnormal": (0, 0, 0, 0, 1e-40 if d_type == "f32" else 2.0**-20),
        "65504 + 15": (15, 1, 0, 0, 65504.0), "65504 + 16": (16, 1, 0, 0, 65504.0),
    }  # fmt: skip
    a, b, c = np.zeros((ROWS, depth)), np.zeros((8, depth)), np.zeros((ROWS, 8))
    words = []
    with np.errstate(all="ignore"):
        for what, (a0, b0, a1, b1, c0) in tests.items():
            a[:, 0], b[:, 0], a[:, 1], b[:, 1], c[:] = a0, b0, a1, b1, c0
            words.append(f"{what}: {int(sums(runner, kind, d_type, a, b, c)[0, 0]):x}")
    yield f"{kind}, {d_type} sums: {'; '.join(words)}"


def _sums(kind: str, d_type: str) -> Callable[[Runner], Iterator[str]]:
    def made(runner: Runner) -> Iterator[str]:
        yield from _additions(runner, kind, d_type)
        yield from _specials(runner, kind, d_type)

    return made


PARTS = (
    _layouts,
    _shifts,
    *(_sums(kind, d_type) for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2") for d_type in ("f32", "f16")
      if d_type == "f32" or kind in ("f16", "e4m3", "e5m2")),
)  # fmt: skip
