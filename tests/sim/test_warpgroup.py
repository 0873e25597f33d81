"""wgmma on the simulated device: every form against a plain reference, products that complete as late as allowed, the
arithmetic of its sums, and the report of each misuse with a correct twin."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.instructions import warpgroup_products
from cudakit.sim.lockstep.memory import SHARED_START, AddressSpace
from cudakit.sim.lockstep.register_pool import registers_at_launch
from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import PtxError

# k and bits of an element, by type
K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


class Form:
    """One form: types of D, A and B, the columns of D, whether A is in registers, the majors ("K" or "M") and swizzles
    (bytes, 0: none) of A and B, and whether their signs are inverted."""

    def __init__(self, d, a, b, n, *, registers=False, majors="KK", swizzles=(128, 128), signs=(1, 1), saturate=False):
        self.d, self.a, self.b, self.n = d, a, b, n
        self.registers, self.majors, self.swizzles, self.signs = registers, majors, swizzles, signs
        self.saturate = saturate
        self.k, self.bits = K[a], BITS[a]

    @property
    def sums(self):
        """Registers of D."""
        return self.n // (4 if self.d == "f16" else 2)

    @property
    def modifiers(self):
        extra = ".satfinite" * self.saturate + ".and.popc" * (self.a == "b1")
        return f"sync.aligned.m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}{extra}"

    def instruction(self, d="d", a="%rd1", scale="%p1"):
        operand = "{" + ", ".join(f"%a{i}" for i in range(4)) + "}" if self.registers else a
        text = f"wgmma.mma_async.{self.modifiers} {{{', '.join(f'%{d}{i}' for i in range(self.sums))}}}, {operand}, "
        text += f"%rd2, {scale}"
        if self.d != "s32":
            text += f", {self.signs[0]}, {self.signs[1]}"
        if self.bits == 16:
            text += "".join(f", {int(m == 'M')}" for m in self.majors[self.registers :])
        return text + ";"

    def __repr__(self):
        source = "registers" if self.registers else f"shared-{self.majors[0]}{self.swizzles[0]}"
        return f"{self.modifiers.partition('aligned.')[2]}-{source}-{self.majors[1]}{self.swizzles[1]}"


PRODUCT = """.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 shared[];
.visible .entry product(
    .param .u64 image, .param .u64 a, .param .u64 d, .param .u64 da, .param .u64 db, .param .u32 add)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>, %a<4>;
    .reg .TYPE %d<SUMS>;
    .reg .b64 %rd<16>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, shared;
    ld.param.u64 %rd5, [image];
    mov.u32 %r3, %r1;
copy:
    mad.wide.u32 %rd6, %r3, 4, %rd5;
    ld.global.u32 %r4, [%rd6];
    shl.b32 %r5, %r3, 2;
    add.u32 %r5, %r5, %r2;
    st.shared.u32 [%r5], %r4;
    add.u32 %r3, %r3, 128;
    setp.lt.u32 %p2, %r3, WORDS;
    @%p2 bra copy;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    ld.param.u64 %rd7, [a];
    mad.wide.u32 %rd7, %r1, 16, %rd7;
    ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%rd7];
    ld.param.u64 %rd8, [d];
    mad.wide.u32 %rd8, %r1, ROW, %rd8;
    LOADS
    ld.param.u64 %rd1, [da];
    ld.param.u64 %rd2, [db];
    ld.param.u32 %r6, [add];
    setp.ne.u32 %p1, %r6, 0;
    wgmma.fence.sync.aligned;
    PRODUCTS
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    STORES
    ret;
}
"""


def module(form, products=None):
    places = [f"[%rd8+{4 * i}]" for i in range(form.sums)]
    kind = "f32" if form.d == "f32" else "b32"
    text = PRODUCT.replace("TYPE", kind).replace("SUMS", str(form.sums)).replace("ROW", str(4 * form.sums))
    text = text.replace("LOADS", "\n    ".join(f"ld.global.{kind} %d{i}, {p};" for i, p in enumerate(places)))
    text = text.replace("STORES", "\n    ".join(f"st.global.{kind} {p}, %d{i};" for i, p in enumerate(places)))
    return text.replace("PRODUCTS", products or form.instruction())


class Operand:
    """A matrix of patterns, (rows, k), and its place in shared memory."""

    def __init__(self, rows, k, bits, major, swizzle, start):
        self.rows, self.k, self.bits, self.major, self.swizzle, self.start = rows, k, bits, major, swizzle, start
        self.leading, self.stride = self.offsets()

    def offsets(self):
        """The leading and the stride offset: parts follow each other, with a gap if the mode allows one."""
        span = self.swizzle
        if self.major == "K":
            return (8 * 16 * (self.rows // 8) + 32, 8 * 16) if not span else (16, 8 * span)
        if not span:
            return 8 * 16 * (self.rows // 8), 8 * 16
        return 2 * 8 * span, 8 * span

    @property
    def descriptor(self):
        address = self.start + SHARED_START
        return address >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | MODES[self.swizzle] << 62

    def byte(self, row, k):
        """The byte of element (row, k) in the block's shared memory; bits are in bytes of eight."""
        size = max(self.bits // 8, 1)
        if self.bits < 8:
            k //= 8
        span = self.swizzle
        if self.major == "K":
            inner = k * size
            if span:
                offset = row % 8 * span + row // 8 * self.stride + inner
            else:
                offset = row % 8 * 16 + row // 8 * self.stride + inner // 16 * self.leading + inner % 16
        else:
            inner = row * size
            if span:
                offset = inner % span + inner // span * self.leading + k % 8 * span + k // 8 * self.stride
            else:
                offset = inner % 16 + inner // 16 * self.stride + k % 8 * 16 + k // 8 * self.leading
        address = SHARED_START + self.start + offset
        if span:
            chunk = address // 16 % (span // 16) ^ address // 128 % (span // 16)
            address = address // span * span + chunk * 16 + address % 16
        return address - SHARED_START

    def write(self, image, matrix):
        size = max(self.bits // 8, 1)
        step = 8 if self.bits < 8 else 1
        for row in range(self.rows):
            for k in range(0, self.k, step):
                place = self.byte(row, k)
                value = np.packbits(matrix[row, k : k + 8], bitorder="little")[0] if step == 8 else matrix[row, k]
                image[place : place + size] = np.frombuffer(int(value).to_bytes(size, "little"), np.uint8)


def fragments(matrix, bits):
    """A (64, k) in the registers of each thread, (128, 4) words, by the figures of the PTX ISA."""
    out = np.zeros((128, 4), np.uint32)
    per = 32 // bits
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        group, t = divmod(lane, 4)
        for register in range(4):
            row = 16 * warp + group + 8 * (register % 2)
            first = t * per + register // 2 * 4 * per
            for element in range(per):
                out[thread, register] |= np.uint32(int(matrix[row, first + element]) << element * bits)
    return out


def to_threads(d, half):
    """D (64, n) in the registers of each thread, (128, registers)."""
    n = d.shape[1]
    out = np.zeros((128, n // 2), d.dtype)
    for thread in range(128):
        for v in range(n // 2):
            out[thread, v] = d[place_of(thread, v)]
    return out.view(np.uint32) if half else out


def place_of(thread, v):
    """Row and column of D that element v of a thread holds."""
    return thread // 32 * 16 + thread % 32 // 4 + v // 2 % 2 * 8, v // 4 * 8 + thread % 4 * 2 + v % 2


@functools.cache
def device(text):
    return SimDevice(text, ptx=True)


def run(form, a, b, d, *, add=True, checks=ALL_CHECKS, products=None):
    """Return D (64, n) of a kernel with one product; all matrices are patterns."""
    left = Operand(64, form.k, form.bits, form.majors[0], form.swizzles[0], 0)
    right = Operand(form.n, form.k, form.bits, form.majors[1], form.swizzles[1], 32768)
    image = np.zeros(98304, np.uint8)
    if not form.registers:
        left.write(image, a)
    right.write(image, b)
    words = 4 * -(-len(image) // 16)
    half = form.d == "f16"
    registers = np.ascontiguousarray(to_threads(d, half))
    given = fragments(a, form.bits) if form.registers else np.zeros((128, 4), np.uint32)
    text = module(form, products).replace("WORDS", str(words))
    device(text).launch(
        "product",
        1,
        128,
        image.view(np.uint32),
        given,
        registers,
        left.descriptor,
        right.descriptor,
        int(add),
        shared=len(image),
        checks=checks,
    )
    elements = registers.view(d.dtype)
    out = np.empty_like(d)
    for thread in range(128):
        for v in range(elements.shape[1]):
            out[place_of(thread, v)] = elements[thread, v]
    return out


# ---- patterns of small integers ----

SMALL = {"e4m3": {}, "e5m2": {}}
for value, e4m3, e5m2 in ((0, 0, 0), (1, 0x38, 0x3C), (2, 0x40, 0x40), (3, 0x44, 0x42)):
    for sign in (0, 1):
        SMALL["e4m3"][-value if sign else value] = e4m3 | sign << 7
        SMALL["e5m2"][-value if sign else value] = e5m2 | sign << 7


def patterns(kind, values):
    """Small integers as patterns of a type."""
    if kind in ("f32", "tf32"):
        return values.astype(np.float32).view(np.uint32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind in SMALL:
        return np.vectorize(SMALL[kind].__getitem__)(values).astype(np.uint8)
    if kind == "s32":
        return values.astype(np.int32).view(np.uint32)
    return values.astype(np.uint8)


def small(rng, kind, shape):
    if kind == "b1":
        return rng.integers(0, 2, shape)
    return rng.integers(0 if kind == "u8" else -3, 4, shape)


TYPES = [("f16", "f16", "f16"), ("f32", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")]
TYPES += [(d, a, b) for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
TYPES += [("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")] + [("s32", "b1", "b1")]
WIDTHS = (8, 24, 64, 96, 256)
FORMS = [Form(*types, n, registers=r) for types in TYPES for n in WIDTHS for r in (False, True)]
# every swizzle of A and B; every major of 16-bit types
FORMS += [
    Form(*t, 32, swizzles=(x, y)) for t in (TYPES[2], TYPES[3], TYPES[4], TYPES[-1]) for x in MODES for y in MODES
]
FORMS += [
    Form("f32", "bf16", "bf16", n, majors=m, swizzles=(x, y))
    for n in (64, 192)
    for m in ("KM", "MK", "MM")
    for x in MODES
    for y in MODES
]
FORMS += [Form("f16", "f16", "f16", 128, registers=True, majors="KM", swizzles=(0, y)) for y in MODES]
FORMS += [
    Form("f32", "f16", "f16", 16, registers=r, signs=s) for r in (False, True) for s in ((-1, 1), (1, -1), (-1, -1))
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_a_product_of_small_integers(form):
    """Exact in every type, so that numpy's integers are the reference for layouts, signs and scale-d."""
    rng = np.random.default_rng(len(repr(form)) + form.n)
    a, b = small(rng, form.a, (64, form.k)), small(rng, form.b, (form.n, form.k))
    c = rng.integers(-9, 10, (64, form.n))
    due = form.signs[0] * form.signs[1] * (a @ b.T)
    given = [patterns(kind, v) for kind, v in ((form.a, a), (form.b, b), (form.d, c))]
    if form.d == "f16":
        due = np.clip(due, -2000, 2000)
    for add in (True, False) if form.n in (8, 32) else (True,):
        assert (run(form, *given, add=add) == patterns(form.d, due + add * c)).all()


# ---- arithmetic ----

# exponent bits, fraction bits, and whether all patterns of the largest exponent are infinities and NaN
FLOATS = {"f16": (5, 10, True), "bf16": (8, 7, True), "tf32": (8, 23, True), "f32": (8, 23, True)}
FLOATS |= {"e5m2": (5, 2, True), "e4m3": (4, 3, False)}


def number(kind, pattern):
    """The value of a pattern as a Fraction (or a float, if it is not finite) and its exponent (None for zero)."""
    wide, fraction, ieee = FLOATS[kind]
    pattern = int(pattern)
    if kind == "tf32":
        pattern &= ~0x1FFF
    sign = -1 if pattern >> (wide + fraction) else 1
    field, low = pattern >> fraction & ((1 << wide) - 1), pattern & ((1 << fraction) - 1)
    if field == (1 << wide) - 1 and (ieee or low == (1 << fraction) - 1):
        return (float("nan") if low or not ieee else sign * float("inf")), None
    exponent = max(field, 1) - ((1 << (wide - 1)) - 1)
    value = sign * Fraction(low + ((1 << fraction) if field else 0)) * Fraction(2) ** (exponent - fraction)
    return value, exponent if value else None


def rounded(value, kind, kept):
    """The pattern of a sum: towards zero to ``kept`` bits for f32, to nearest even for f16. Zero is positive."""
    wide, fraction, _ = FLOATS[kind]
    bias = (1 << (wide - 1)) - 1
    size = abs(value)
    exponent = 1 - bias
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    keep = kept if kind == "f32" else fraction
    units = size / Fraction(2) ** (exponent - keep)
    whole = int(units)
    if kind == "f16" and (units - whole > Fraction(1, 2) or (units - whole == Fraction(1, 2) and whole & 1)):
        whole += 1
    bits = (whole << (fraction - keep)) + ((exponent - 1 + bias) << fraction)
    bits = min(bits, ((1 << wide) - 1) << fraction)
    return bits | (value < 0) << (wide + fraction) if bits else 0


def fused(kinds, a, b, c):
    """One element of D, by the rules of the hardware, in exact arithmetic."""
    fraction, kept = (13, 13) if kinds[0] in ("e4m3", "e5m2") else (25, 23)
    terms = []
    for x, y in zip(a, b, strict=True):
        (u, e), (v, f) = number(kinds[0], x), number(kinds[1], y)
        if isinstance(u, float) or isinstance(v, float):
            terms.append((float(u) * float(v), 0))
        elif u and v:
            terms.append((u * v, e + f))
    added, exponent = number(kinds[2], c)
    if isinstance(added, float) or added:
        terms.append((added, exponent))
    special = [float(value) for value, _ in terms if isinstance(value, float)]
    if special:
        total = np.array(sum(special), f"f{2 if kinds[2] == 'f16' else 4}")
        nan = 0x7FFF if kinds[2] == "f16" else 0x7FFFFFFF
        return nan if np.isnan(total) else int(total.view(f"u{total.itemsize}"))
    if not terms:
        return 0
    unit = Fraction(2) ** (max(exponent for _, exponent in terms) - fraction)
    return rounded(sum((int(value / unit) for value, _ in terms), Fraction(0)) * unit, kinds[2], kept)


def drawn(rng, kind, what, shape):
    """Random patterns of a type."""
    wide, fraction, _ = FLOATS[kind]
    bias, top = (1 << (wide - 1)) - 1, (1 << wide) - 2
    fields = {
        "normal": lambda: rng.integers(bias - 3, bias + 3, shape),
        "wide": lambda: rng.integers(max(1, bias - 40), min(top, bias + 40), shape),
        "any": lambda: rng.integers(0, top + 1, shape),
        "tiny": lambda: rng.integers(0, 3, shape),
        "special": lambda: np.where(rng.random(shape) < 0.02, top + 1, rng.integers(bias - 2, bias + 2, shape)),
        "sparse": lambda: np.where(rng.random(shape) < 0.7, 0, rng.integers(bias - 3, bias + 3, shape)),
    }[what]()
    low = rng.integers(0, 1 << fraction, shape) * (rng.random(shape) < 0.9)
    if what == "sparse":
        low = low * (fields > 0)
    bits = rng.integers(0, 2, shape) << (wide + fraction) | fields << fraction | low
    return bits.astype(f"u{(wide + fraction + 1) // 8}")


@pytest.mark.parametrize("what", ["normal", "wide", "any", "tiny", "special", "sparse", "cancel"])
@pytest.mark.parametrize("types", [t for t in TYPES if t[0] != "s32"], ids=".".join)
def test_sums_are_fused_and_truncated(types, what):
    """Against exact arithmetic, element by element: alignment to the largest exponent, truncation, rounding of D,
    subnormal numbers, infinities and NaN. "normal" takes the path of narrow exponents, "wide" that of all others."""
    d, a, b = types
    rng = np.random.default_rng([len(what), *map(ord, "".join(types))])
    k = K[a]
    left, right = (drawn(rng, kind, "normal" if what == "cancel" else what, (1, 16, k)) for kind in (a, b))
    added = drawn(rng, d, {"tiny": "tiny", "special": "special"}.get(what, "normal"), (1, 16, 16))
    if what == "cancel":
        # pairs of products that cancel exactly, and a small rest
        wide, fraction, _ = FLOATS[a]
        left[..., 1 : k - 2 : 2] = left[..., : k - 2 : 2] ^ left.dtype.type(1 << (wide + fraction))
        right[..., 1 : k - 2 : 2] = right[..., : k - 2 : 2]
        added[..., ::2] = 0
    with np.errstate(all="ignore"):
        made = warpgroup_products.multiply((a, b, d), left, right, added)[0]
    for row in range(16):
        for column in range(row % 4, 16, 4):
            due = fused((a, b, d), left[0, row], right[0, column], added[0, row, column])
            assert int(made[row, column]) == due, (row, column, hex(int(made[row, column])), hex(due))


def test_narrow_and_wide_exponents_take_different_paths(monkeypatch):
    """Both compute the same sums if both apply."""
    rng = np.random.default_rng(5)
    a, b = (drawn(rng, "bf16", "normal", (3, 64, 16)) for _ in range(2))
    c = drawn(rng, "f32", "wide", (3, 64, 64))
    taken = []
    for name in ("_narrow", "_wide"):
        path = getattr(warpgroup_products, name)
        monkeypatch.setattr(warpgroup_products, name, lambda *args, n=name, p=path: taken.append(n) or p(*args))
    kinds = ("bf16", "bf16", "f32")
    fast = warpgroup_products.multiply(kinds, a, b, c)
    monkeypatch.setattr(warpgroup_products, "NARROW", -1)
    exact = warpgroup_products.multiply(kinds, a, b, c)
    assert taken == ["_narrow"] * taken.count("_narrow") + ["_wide"] * taken.count("_wide")
    assert set(taken) == {"_narrow", "_wide"}
    assert (fast == exact).all()


def test_units_are_summed_apart():
    """More warpgroups than one table holds, one of them with infinities: results are those of single ones."""
    rng = np.random.default_rng(6)
    a, b = drawn(rng, "f16", "normal", (40, 64, 16)), drawn(rng, "f16", "normal", (40, 32, 16))
    a[7, 3, 2] = 0x7C00
    c = drawn(rng, "f32", "normal", (40, 64, 32))
    with np.errstate(all="ignore"):
        whole = warpgroup_products.multiply(("f16", "f16", "f32"), a, b, c)
        for unit in (0, 7, 39):
            part = slice(unit, unit + 1)
            assert (warpgroup_products.multiply(("f16", "f16", "f32"), a[part], b[part], c[part]) == whole[part]).all()


def test_hopper_keeps_13_bits_of_8_bit_products():
    """By hand: 1 + 2**-14 is 1; the sum of 32 products has 14 significant bits."""
    one, small_ = 0x38, 0x08  # 1 and 2**-6
    a, b = np.zeros((1, 16, 32), np.uint8), np.zeros((1, 8, 32), np.uint8)
    a[..., 0], b[..., 0] = one, one
    a[..., 1], b[..., 1] = small_, 0x02  # 2**-6 * 2**-8
    made = warpgroup_products.multiply(("e4m3", "e4m3", "f32"), a, b, None).view(np.float32)
    assert (made == 1.0).all()
    b[..., 1] = 0x04  # 2**-6 * 2**-7: the last bit
    assert (warpgroup_products.multiply(("e4m3", "e4m3", "f32"), a, b, None).view(np.float32) == 1 + 2.0**-13).all()
    c = np.full((1, 16, 8), np.float32(4.0)).view(np.uint32)
    assert (warpgroup_products.multiply(("e4m3", "e4m3", "f32"), a, b, c).view(np.float32) == 5.0).all()


def test_integers_wrap_or_saturate():
    a, b = np.full((64, 32), 127), np.full((8, 32), 127)
    c = np.full((64, 8), 2**31 - 5)
    given = [patterns("s8", a), patterns("s8", b), patterns("s32", c)]
    total = 32 * 127 * 127 + 2**31 - 5
    assert (run(Form("s32", "s8", "s8", 8), *given) == total).all()
    assert (run(Form("s32", "s8", "s8", 8, saturate=True), *given) == 2**31 - 1).all()


# ---- products in flight, and reports ----

HEAD = r"""
#include <cuda_bf16.h>
using u64 = unsigned long long;
__device__ u64 operand(const void* tile, int rows) {  // K-major, no swizzle: 8 rows of 16 bytes, groups, then k
  return (__cvta_generic_to_shared(tile) & 0x3ffff) >> 4 | u64(rows) << 16 | u64(8) << 32;
}
#define ASM(text) asm volatile(text ::: "memory")
#define FENCE ASM("wgmma.fence.sync.aligned;")
#define COMMIT ASM("wgmma.commit_group.sync.aligned;")
#define WAIT(n) ASM("wgmma.wait_group.sync.aligned " #n ";")
#define PROXY ASM("fence.proxy.async.shared::cta;")
__device__ __forceinline__ void mma(float (&d)[4], u64 a, u64 b, int add = 1) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;\n}"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(add) : "memory");
}
__device__ __forceinline__ void mma_k8(float (&d)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0,%1,%2,%3}, %4, %5, 1, 1, 1;\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ void mma_registers(float (&d)[4], const unsigned (&a)[4], u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
}
__device__ __forceinline__ unsigned packed(float x, float y) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ void keep(float (&d)[4]) {
  asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
}
struct Tiles {
  alignas(128) __nv_bfloat16 a[2][1024];
  alignas(128) __nv_bfloat16 b[2][128];
};
__device__ void fill(Tiles& t, float a, float b) {
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) t.a[i / 1024][i % 1024] = a;
  for (int i = threadIdx.x; i < 256; i += blockDim.x) t.b[i / 128][i % 128] = b;
  PROXY;
  __syncthreads();
}
"""
# every element of D is 16 a b per product
KERNEL = (
    HEAD
    + r"""
extern "C" __global__ void kernel(float* out, int n, float s) {
  __shared__ Tiles t;
  fill(t, 1.0f, 1.0f);
  const u64 a = operand(t.a[0], 64), b = operand(t.b[0], 8), a1 = operand(t.a[1], 64), b1 = operand(t.b[1], 8);
  const int warp = threadIdx.x / 32;
  float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
BODY
  for (int i = 0; i < 4; ++i) out[(blockIdx.x * blockDim.x + threadIdx.x) * 4 + i] = d[i] + e[i];
}
"""
)


def launch(body, *, n=3, s=2.0, threads=128, checks=ALL_CHECKS, blocks=1):
    """The results of a kernel with this body, (threads, 4)."""
    out = np.zeros((blocks, threads, 4), np.float32)
    source = KERNEL.replace("BODY\n", body.strip("\n") + "\n")
    compiled(source).launch("kernel", blocks, threads, out, n, s, checks=checks)
    return out


@functools.cache
def compiled(source):
    return SimDevice(source)


def test_a_chain_of_products_on_one_accumulator():
    body = """
  FENCE;
  for (int j = 0; j < n; ++j) { mma(d, a, b); mma(d, a1, b1); COMMIT; WAIT(1); }
  WAIT(0);
"""
    assert (launch(body) == 96).all()
    assert (launch(body, threads=256, blocks=3) == 96).all()


def test_warpgroups_may_differ_in_scale_d():
    body = "  d[2] = 5.0f; keep(d); FENCE; mma(d, a, b, warp < 4); COMMIT; WAIT(0); keep(d);\n"
    made = launch(body, threads=256)
    assert (made[0, :128] == [16, 16, 21, 16]).all()
    assert (made[0, 128:] == 16).all()


def test_uninitialised_accumulators_that_are_not_added():
    body = """
  float f[4];
  FENCE; mma(f, a, b, 0); mma(f, a, b, n); COMMIT; WAIT(0); keep(f);
  for (int i = 0; i < 4; ++i) d[i] = f[i];
"""
    assert (launch(body) == 32).all()
    with pytest.raises(KernelFault, match="uninitialised read"):
        launch(body.replace("a, b, 0", "a, b, n"))


def test_operands_that_were_stored_from_uninitialised_memory():
    body = """
  __shared__ u64 raw[64];
  BUG
  if (threadIdx.x < 8) reinterpret_cast<u64*>(t.a[0])[threadIdx.x] = raw[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  FENCE; mma(d, a, b); COMMIT; WAIT(0); keep(d);
"""
    launch(body.replace("BUG", "raw[threadIdx.x % 64] = 0; __syncthreads();"))
    with pytest.raises(KernelFault, match="uninitialised read"):
        launch(body.replace("BUG", ""))


def test_a_result_is_written_to_copies_of_the_accumulators():
    """The compiler moves accumulators in flight from register to register around the loop."""
    body = """
  float f[4] = {1, 1, 1, 1};
  FENCE;
  for (int j = 0; j < n; ++j) {
    mma(d, a, b); COMMIT;
    for (int i = 0; i < 4; ++i) { float swap = d[i]; d[i] = f[i]; f[i] = swap; }
  }
  WAIT(0); keep(d); keep(f);
  for (int i = 0; i < 4; ++i) e[i] = 100 * f[i];
"""
    # three products: f has the first and the third in the end, d the second
    assert (launch(body) == 1 + 16 + 3200).all()


def test_products_of_two_groups_in_flight():
    body = """
  FENCE; mma(d, a, b); COMMIT; mma(e, a1, b1); mma(e, a, b); COMMIT;
  WAIT(1); keep(d);
  for (int i = 0; i < 4; ++i) d[i] *= s;
  WAIT(0); keep(e);
"""
    assert (launch(body) == 64).all()


def test_shared_memory_is_read_at_the_wait():
    """Overwriting an operand too early shows in the result; after the wait it does not."""
    body = """
  FENCE; mma(d, a, b); COMMIT;
  WAIT(0); __syncthreads();
  for (int i = threadIdx.x; i < 128; i += 128) t.b[0][i] = 5.0f;
"""
    assert (launch(body) == 16).all()
    issue, wait, store = lines_of(body)
    early = "\n".join([issue, store, wait])
    assert (launch(early, checks=frozenset()) == 80).all()
    with pytest.raises(KernelFault, match="in flight"):
        launch(early)


def test_a_register_that_is_read_too_early_has_its_old_value():
    body = """
  d[1] = 7.0f; keep(d);
  FENCE; mma(d, a, b); COMMIT;
  e[1] = d[1] * s; keep(e);
  WAIT(0); keep(d);
"""
    made = launch(body, checks=frozenset())
    assert (made[..., 1] == 7 + 16 + 14).all()
    assert (made[..., 0] == 16).all()


def test_a_part_of_the_warpgroups_waits_first():
    """Two warpgroups issue together and wait apart, on different paths."""
    body = """
  FENCE; mma(d, a, b); COMMIT;
  if (warp < 4) { WAIT(0); keep(d); for (int i = 0; i < 4; ++i) d[i] += 1; }
  else { mma(d, a1, b1); COMMIT; WAIT(0); keep(d); }
"""
    made = launch(body, threads=256)
    assert (made[0, :128] == 17).all()
    assert (made[0, 128:] == 32).all()


def test_a_function_that_is_not_inlined_may_wait():
    source = KERNEL.replace('extern "C"', '__noinline__ __device__ void wait() { WAIT(0); }\nextern "C"')
    out = np.zeros((128, 4), np.float32)
    body = "  FENCE; mma(d, a, b); COMMIT; wait(); keep(d);\n"
    compiled(source.replace("BODY\n", body)).launch("kernel", 1, 128, out, 3, 2.0, checks=ALL_CHECKS)
    assert (out == 16).all()


def test_a_guarded_product():
    form = Form("f32", "bf16", "bf16", 8)
    rng = np.random.default_rng(3)
    a, b, c = small(rng, "bf16", (64, 16)), small(rng, "bf16", (8, 16)), small(rng, "f32", (64, 8))
    given = [patterns(kind, v) for kind, v in (("bf16", a), ("bf16", b), ("f32", c))]
    for add in (True, False):
        products = "@%p1 " + form.instruction(scale="1")
        assert (run(form, *given, add=add, products=products) == patterns("f32", c + add * (a @ b.T))).all()


def test_a_group_may_be_completed_before_its_wait(monkeypatch):
    """As the drawn mode does: the oldest group of one warpgroup at a time, with memory as it is then."""
    from cudakit.sim.lockstep.warpgroups import Warpgroups

    commit, made = Warpgroups.commit, []

    def commit_and_finish(self, lanes):
        commit(self, lanes)
        made.append(self.finish_some(lambda count: count - 1))

    monkeypatch.setattr(Warpgroups, "commit", commit_and_finish)
    body = """
  FENCE; mma(d, a, b); COMMIT; mma(d, a1, b1); COMMIT;
  for (int i = threadIdx.x; i < 128; i += blockDim.x) { t.b[0][i] = 5.0f; t.b[1][i] = 5.0f; }
  __syncthreads();
  WAIT(0);
"""
    out = launch(body, threads=256, checks=frozenset())
    assert made == [True, True]
    # the second warpgroup's products were both complete before the stores, the first one's were not
    assert (out[0, 128:] == 32).all()
    assert (out[0, :128] == 160).all()


# name, kind, body with the bug, and the lines of the correct twin that replace "BUG" lines
MISUSES = {
    "read before the wait": (
        "wgmma register used before the wait",
        """
  FENCE; mma(d, a, b); COMMIT;
  d[1] += s; keep(d);  // BUG
  WAIT(0); keep(d);
""",
        "WAIT(0); keep(d);",
    ),
    "read after a wait for an older group": (
        "wgmma register used before the wait",
        """
  FENCE; mma(d, a, b); COMMIT; mma(e, a, b); COMMIT;
  WAIT(1);
  for (int i = 0; i < 4; ++i) d[i] += s * e[i];  // BUG
  keep(d); WAIT(0); keep(e);
""",
        "for (int i = 0; i < 4; ++i) d[i] += s;",
    ),
    "written while in flight": (
        "wgmma register used before the wait",
        """
  FENCE; mma(d, a, b); COMMIT;
  asm volatile("mov.b32 %0, %1;" : "+f"(d[2]) : "f"(s));  // BUG
  WAIT(0); keep(d);
""",
        "",
    ),
    "read in another basic block": (
        "wgmma register used before the wait",
        """
  FENCE; mma(d, a, b); COMMIT;
  if (n > 2) {
    __syncthreads();
    e[0] = d[0] * s;  // BUG
    keep(e);
  }
  WAIT(0); keep(d);
""",
        "e[0] = s;",
    ),
    "registers of A written": (
        "wgmma register used before the wait",
        """
  unsigned x[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(x[i]));
  FENCE; mma_registers(d, x, b); COMMIT;
  asm volatile("add.u32 %0, %0, %1;" : "+r"(x[1]) : "r"(n));  // BUG
  WAIT(0); keep(d);
  e[0] = __uint_as_float(x[1] + n);
""",
        "",
    ),
    "no fence at all": (
        "missing wgmma.fence",
        """
  // TWIN
  mma(d, a, b);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "FENCE; mma(d, a, b);",
    ),
    "accumulators changed after the fence": (
        "missing wgmma.fence",
        """
  FENCE; mma(d, a, b); COMMIT; WAIT(0); keep(d);
  for (int i = 0; i < 4; ++i) d[i] *= s;
  keep(d);
  mma(d, a, b);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "FENCE; mma(d, a, b);",
    ),
    "A computed after the fence": (
        "missing wgmma.fence",
        """
  unsigned x[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  FENCE; mma_registers(d, x, b); COMMIT; WAIT(0);
  for (int i = 0; i < 4; ++i) asm volatile("add.u32 %0, %0, %1;" : "+r"(x[i]) : "r"(n));
  mma_registers(d, x, b);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "FENCE; mma_registers(d, x, b);",
    ),
    "another shape": (
        "missing wgmma.fence",
        """
  FENCE; mma(d, a, b);
  mma_k8(d, a1, b1);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "FENCE; mma_k8(d, a1, b1);",
    ),
    "no commit before the wait": (
        "missing wgmma.commit_group",
        """
  FENCE; mma(d, a, b);
  WAIT(0);  // BUG
  keep(d);
""",
        "COMMIT; WAIT(0);",
    ),
    "a second product without commit": (
        "missing wgmma.commit_group",
        """
  FENCE; mma(e, a, b); COMMIT;
  mma(d, a, b);
  // TWIN
  WAIT(0);
  out[threadIdx.x] = d[1] * s;  // BUG
  COMMIT; WAIT(0); keep(d); keep(e);
""",
        None,
    ),
    "three of four warps": (
        "divergent wgmma",
        """
  if (warp != 2) { FENCE; mma(d, a, b); COMMIT; WAIT(0); }  // BUG
""",
        "FENCE; mma(d, a, b); COMMIT; WAIT(0);",
    ),
    "different products": (
        "divergent wgmma",
        """
  FENCE;
  if (warp < 2) mma(d, a, b); else mma_k8(d, a, b);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "mma(d, a, b);",
    ),
    "a part of a warp": (
        "lanes missing from a warp operation",
        """
  if (threadIdx.x % 32 < 16) { FENCE; mma(d, a, b); COMMIT; WAIT(0); }  // BUG
""",
        "FENCE; mma(d, a, b); COMMIT; WAIT(0);",
    ),
    "descriptors that differ": (
        "divergent wgmma",
        """
  FENCE;
  mma(d, warp == 3 ? a1 : a, b);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "mma(d, n == 3 ? a1 : a, b);",
    ),
    "an address that is not shifted": (
        "invalid matrix descriptor",
        """
  FENCE;
  mma(d, a, b | u64(0x8000));  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "mma(d, a, b);",
    ),
    "a swizzle at a wrong address": (
        "invalid matrix descriptor",
        """
  FENCE;
  mma(d, a, operand(t.a[0] + 64, 8) | u64(1) << 62);  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "mma(d, a, b);",
    ),
    "outside of shared memory": (
        "out of bounds",
        """
  FENCE;
  mma(d, a, operand(t.b[1] + 128, 8));  // BUG
  COMMIT; WAIT(0); keep(d);
""",
        "mma(d, a, b);",
    ),
}


def lines_of(body):
    return body.strip("\n").split("\n")


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_reported_at_its_line(name):
    kind, body, _ = MISUSES[name]
    first = KERNEL[: KERNEL.index("BODY")].count("\n") + 1
    line = first + next(i for i, text in enumerate(lines_of(body)) if "// BUG" in text)
    with pytest.raises(KernelFault) as caught:
        launch(body)
    report = caught.value.report
    assert report.kind == kind, str(report)
    outermost = report.places[-1]
    assert (outermost.file.endswith("test.cu"), outermost.line) == (True, line), str(report)


@pytest.mark.parametrize("name", MISUSES)
def test_the_correct_twin_is_not_reported(name):
    _, body, right = MISUSES[name]
    if right is None:
        body = body.replace("// TWIN", "COMMIT;").replace("COMMIT; WAIT(0); keep(d); keep(e);", "keep(d); keep(e);")
    else:
        body = "\n".join(right if "// BUG" in text else text for text in lines_of(body))
    launch(body)


# what correct kernels contain: the compiler moves some of these operations across wgmma.fence, and renames registers
CORRECT = {
    "sums scaled before the fence": """
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < 4; ++i) d[i] *= s;
    for (int i = 0; i < 4; ++i) e[i] = 0;
    FENCE;
    mma(d, a, b); COMMIT; mma(e, a1, b1); COMMIT; WAIT(1);
    for (int i = 0; i < 4; ++i) d[i] *= s;
    WAIT(0);
    for (int i = 0; i < 4; ++i) d[i] += e[i];
  }
""",
    "attention": """
  float m = -1e30f, l = 0, o[4] = {0, 0, 0, 0};
  for (int j = 0; j < n; ++j) {
    float x[4];
    FENCE; mma(x, a, b, 0); COMMIT; WAIT(0);
    float top = m;
    for (int i = 0; i < 4; ++i) top = fmaxf(top, x[i]);
    const float scale = exp2f(m - top);
    m = top; l *= scale;
    for (int i = 0; i < 4; ++i) { x[i] = exp2f(x[i] - top); l += x[i]; o[i] *= scale; }
    unsigned p[4];
    for (int i = 0; i < 4; ++i) p[i] = packed(x[i], x[(i + 1) % 4]);
    FENCE; mma_registers(o, p, b1); COMMIT; WAIT(0);
  }
  for (int i = 0; i < 4; ++i) d[i] = o[i] / l;
""",
    "two products in flight": """
  float l = 0, o[4] = {0, 0, 0, 0}, x[4];
  unsigned p[4];
  FENCE; mma(x, a, b, 0); COMMIT; WAIT(0);
  for (int i = 0; i < 4; ++i) { p[i] = packed(x[i], x[(i + 1) % 4]); l += x[i]; }
  for (int j = 1; j < n; ++j) {
    float y[4];
    FENCE; mma(y, a, b, 0); COMMIT; mma_registers(o, p, b1); COMMIT; WAIT(1);
    for (int i = 0; i < 4; ++i) { y[i] = y[i] * s; l += y[i]; }
    WAIT(0);
    for (int i = 0; i < 4; ++i) { p[i] = packed(y[i], y[(i + 1) % 4]); o[i] *= s; }
  }
  FENCE; mma_registers(o, p, b1); COMMIT; WAIT(0);
  for (int i = 0; i < 4; ++i) d[i] = o[i] / l;
""",
    "sums added to others in an unrolled loop": """
  float f[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 4
  for (int j = 0; j < 2 * n; ++j) {
    FENCE; mma(f[0], a, b); mma(f[1], a1, b); COMMIT; WAIT(0);
    for (int i = 0; i < 4; ++i) { f[0][i] += s * j; f[1][i] *= s; }
  }
  for (int i = 0; i < 4; ++i) d[i] = f[0][i] + f[1][i];
""",
    "tiles, each from zero": """
  for (int j = 0; j < n; ++j) {
    float f[4] = {0, 0, 0, 0};
    for (int k = 0; k < 3; ++k) { FENCE; mma(f, a, b); COMMIT; WAIT(1); }
    WAIT(0);
    for (int i = 0; i < 4; ++i) { d[i] += f[i]; e[i] = fmaxf(f[i] * s, j); }
  }
""",
    "a branch around the first product": """
  for (int j = 0; j < n; ++j) {
    FENCE;
    if (j == 0) mma(d, a, b, 0); else mma(d, a, b);
    COMMIT; WAIT(1);
  }
  WAIT(0);
""",
}


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_are_not_reported(name, n):
    """And compute the same on several warpgroups and blocks as on one."""
    one = launch(CORRECT[name], n=n)
    assert np.isfinite(one).all()
    assert (one == one[0, 0, 0]).all() or name == "attention"
    assert (launch(CORRECT[name], n=n, threads=256, blocks=2) == np.tile(one, (2, 2, 1))).all()


def test_the_checks_are_notified_of_the_memory_that_products_read(monkeypatch):
    """Chunks of 16 bytes, over all blocks; the reads of a warpgroup end at its own wait."""
    from cudakit.sim.checks.guard import Guard

    begun, ended = [], []

    def begin(self, f, site, places, lanes):
        begun.append((places, lanes))
        return len(begun)

    monkeypatch.setattr(Guard, "begin_async_read", begin)
    monkeypatch.setattr(Guard, "end_async_read", lambda self, token, lanes=None: ended.append((token, lanes)))
    body = """
  FENCE; mma(d, a, b); COMMIT;
  if (warp >= 4) { WAIT(0); keep(d); __nanosleep(1); }
  __syncthreads();
  if (warp < 4) { WAIT(0); keep(d); }
"""
    launch(body, threads=256, blocks=2)
    (b, b_lanes), (a, a_lanes) = begun
    stride = 4608
    for places, lanes, start, size in ((b, b_lanes, 4096, 256), (a, a_lanes, 0, 2048)):
        for number, (block, first) in enumerate([(0, 0), (0, 128), (1, 256), (1, 384)]):
            part = places.reshape(4, -1)[number]
            assert sorted(part.tolist()) == [block * stride + start + at for at in range(0, size, 16)]
            assert (lanes.reshape(4, -1)[number] == first).all()
    assert [token for token, _ in ended] == [1, 2, 1, 2]
    assert all(sorted(set(lanes.tolist())) == [128, 384] for _, lanes in ended[:2])
    assert all(lanes is None for _, lanes in ended[2:])


def test_multiply_adds_are_counted_by_type():
    out = np.zeros((128, 4), np.float32)
    body = "  FENCE; mma(d, a, b); mma_k8(e, a, b); COMMIT; WAIT(0); keep(d); keep(e);\n"
    counters = compiled(KERNEL.replace("BODY\n", body)).launch("kernel", 1, 128, out, 3, 2.0)
    assert counters.multiply_adds == {"bf16": 64 * 8 * 16, "tf32": 64 * 8 * 8}
    assert counters.mix["tensor"] == 8
    assert counters.as_dict()["multiply_adds_bf16"] == 64 * 8 * 16


# ---- invalid forms, as ptxas decides ----

W = "wgmma.mma_async.sync.aligned."
F4, R4, R2 = "{%f0, %f1, %f2, %f3}", "{%r0, %r1, %r2, %r3}", "{%r0, %r1}"
INVALID = [
    (W + f"m64n12k16.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "the shapes for .f16"),
    (W + f"m64n8k8.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "the shapes for .f16"),
    (W + f"m64n40k32.s32.s8.s8 {R4}, %rd1, %rd2, %p1;", "the shapes for .s8"),
    (W + f"m64n8k16.f16.bf16.bf16 {R2}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "combination of types"),
    (W + f"m64n8k16.f32.bf16.f16 {F4}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "combination of types"),
    (W + f"m64n8k32.s32.s8.e4m3 {R4}, %rd1, %rd2, %p1;", "combination of types"),
    (W + f"m64n8k256.s32.b1.b1.xor.popc {R4}, %rd1, %rd2, %p1;", "xor"),
    (W + f"m64n8k256.s32.b1.b1.popc.and {R4}, %rd1, %rd2, %p1;", "popc"),
    (W + f"m64n8k256.s32.b1.b1 {R4}, %rd1, %rd2, %p1;", ".and.popc"),
    (W + f"m64n8k256.s32.b1.b1.and.popc.satfinite {R4}, %rd1, %rd2, %p1;", "satfinite"),
    (W + f"m64n8k16.f32.f16.f16.satfinite {F4}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "satfinite"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, {R4}, %rd2, %p1, 1, 1, 0, 0;", "operand 2"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 1, 1, 0;", "operand 2"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 1, 1;", "operands"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 0, 1, 0, 0;", "must be -1 or 1"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %rd1, %rd2, %p1, 1, 1, 2, 0;", "must be 0 or 1"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %rd1, %rd2, %r1, 1, 1, 0, 0;", "must be a predicate"),
    (W + "m64n8k16.f32.f16.f16 {%f0, %f1, %f2}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "expected 4 registers of D, got 3"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, {R2}, %rd2, %p1, 1, 1, 0;", "4 registers of D and 4 of A, got 4 and 2"),
    (W + "m64n8k16.f16.f16.f16 {%f0, %f1}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "operand 1"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, {F4}, %rd2, %p1, 1, 1, 0;", "operand 2"),
    (W + f"m64n8k16.f32.f16.f16 {F4}, %r1, %rd2, %p1, 1, 1, 0, 0;", "operand 2"),
    (W + f"m64n8k8.f32.tf32.tf32 {F4}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "operands"),
    (W + f"m64n8k32.s32.s8.s8 {R4}, %rd1, %rd2, %p1, 1, 1;", "operands"),
    (W + f"m64n8k32.s32.s8.s8 {F4}, %rd1, %rd2, %p1;", "operand 1"),
    ("wgmma.fence.aligned;", "unknown form"),
    ("wgmma.wait_group.sync.aligned -1;", "must be 0"),
    ("wgmma.wait_group.sync.aligned %r1;", "literal"),
    ("wgmma.nonsense.sync.aligned;", "wgmma.nonsense"),
]
VALID = [
    W + f"m64n8k32.satfinite.s32.s8.u8 {R4}, {R4}, %rd2, %p1;",
    W + f"f32.m64n8k16.f16.f16 {F4}, %rd1, %rd2, !%p1, -1, -1, 1, 1;",
    W + f"m64n8k16.f32.f16.f16 {R4}, 5, %rd2, 0, 1, 1, 0, 0;",
    W + f"m64n8k256.s32.b1.b1.and.popc {R4}, {R4}, %rd2, 1;",
    "@%p1 wgmma.wait_group.sync.aligned 64;",
]
ONE = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<8>;
    LINE
    ret;
}
"""


@pytest.mark.parametrize(("line", "reason"), INVALID)
def test_invalid_forms_are_refused_by_name(line, reason):
    with pytest.raises(PtxError) as caught:
        LoadedModule(ONE.replace("LINE", line), AddressSpace())
    assert "wgmma" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("line", VALID)
def test_unusual_forms_are_valid(line):
    (kernel,) = LoadedModule(ONE.replace("LINE", line), AddressSpace()).functions.values()
    assert kernel.refusal is None


# ---- setmaxnreg ----

REGISTERS = r"""
#define INC(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 " #n ";")
#define DEC(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 " #n ";")
extern "C" __global__ void BOUNDS kernel(int* out, int n) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32;
BODY
  out[threadIdx.x] = group;
}
"""
SPLIT = """
  if (group == 0) { DEC(24); }
  else { INC(240); }
"""


def set_registers(body, *, threads=384, bounds="__launch_bounds__(384, 1)"):
    out = np.zeros(threads, np.int32)
    source = REGISTERS.replace("BODY\n", body.strip("\n") + "\n").replace("BOUNDS", bounds)
    compiled(source).launch("kernel", 1, threads, out, 3, checks=ALL_CHECKS)
    assert (out == np.arange(threads) // 128).all()


def test_registers_move_between_warpgroups():
    set_registers(SPLIT)
    # whoever comes first waits for the others
    set_registers("  if (group < 2) { INC(240); }\n  else { for (int i = 0; i < n; ++i) __nanosleep(9); DEC(24); }\n")
    # 128 registers for each of 512 threads
    set_registers(SPLIT.replace("240", "160").replace("24", "32"), threads=512, bounds="__launch_bounds__(512, 1)")


def test_registers_that_are_never_available():
    """40 + 240 + 240 is more than three times 168."""
    with pytest.raises(KernelFault) as caught:
        set_registers(SPLIT.replace("DEC(24)", "DEC(40)"))
    report = caught.value.report
    assert (report.kind, report.line) == ("registers never available", 7)
    assert "launched with 168 for each thread of its 12 warps, 64512 in total" in report.detail
    assert "4 warps with 40" in report.notes[0]


def test_without_launch_bounds_setmaxnreg_has_no_effect():
    """ptxas ignores it, as it does not know the number of registers at launch."""
    set_registers("  INC(240);\n", bounds="")
    set_registers("  INC(240);\n", bounds="__launch_bounds__(384)")


@pytest.mark.parametrize(
    "body",
    [
        "  if (warp == 1) { DEC(40); }\n",
        "  if (warp % 2) { DEC(40); } else { DEC(48); }\n",
        "  if (warp == 1) return;\n  DEC(40);\n",
    ],
)
def test_divergent_setmaxnreg_is_reported(body):
    with pytest.raises(KernelFault) as caught:
        set_registers(body)
    assert caught.value.report.kind == "divergent setmaxnreg"
    assert caught.value.report.text.strip() in body


@pytest.mark.parametrize(
    ("directives", "registers"),
    [
        ({"maxntid": (384, 1, 1), "minnctapersm": (1,)}, 168),
        ({"reqntid": (16, 24), "minnctapersm": (1,)}, 168),
        ({"maxntid": (288,), "minnctapersm": (1,)}, 168),
        ({"maxntid": (512,), "minnctapersm": (1,)}, 128),
        ({"maxntid": (544,), "minnctapersm": (1,)}, 96),
        ({"maxntid": (384,), "minnctapersm": (2,)}, 80),
        ({"maxntid": (896,), "minnctapersm": (1,)}, 72),
        ({"maxntid": (128,), "minnctapersm": (1,)}, 255),
        ({"maxnreg": (100,), "maxntid": (384,)}, 100),
        ({"maxntid": (384,)}, 0),
        ({}, 0),
    ],
)
def test_registers_at_launch_are_those_of_ptxas(directives, registers):
    assert registers_at_launch(directives) == registers
