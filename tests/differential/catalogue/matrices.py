"""Matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync and wmma.

Operands are small integers, so that sums of products are exact in any order, and random numbers, which show the
order and the precision of accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, statements

# shape, types (d, a, b, c), 32-bit (64 for f64) registers of a, b and c
_MMA: list[tuple[str, str, int, int, int]] = [
    ("m16n8k8", "f16.f16.f16.f16", 2, 1, 2),
    ("m16n8k8", "f32.f16.f16.f32", 2, 1, 4),
    ("m16n8k16", "f16.f16.f16.f16", 4, 2, 2),
    ("m16n8k16", "f32.f16.f16.f32", 4, 2, 4),
    ("m16n8k8", "f32.bf16.bf16.f32", 2, 1, 4),
    ("m16n8k16", "f32.bf16.bf16.f32", 4, 2, 4),
    ("m16n8k4", "f32.tf32.tf32.f32", 2, 1, 4),
    ("m16n8k8", "f32.tf32.tf32.f32", 4, 2, 4),
    ("m8n8k4", "f64.f64.f64.f64", 1, 1, 2),
    ("m16n8k4", "f64.f64.f64.f64", 2, 1, 4),
    ("m16n8k8", "f64.f64.f64.f64", 4, 2, 4),
    ("m16n8k16", "f64.f64.f64.f64", 8, 4, 4),
]
_MMA += [
    (shape, f"s32.{a}.{b}.s32", *counts)
    for shape, counts in (("m8n8k16", (1, 1, 2)), ("m16n8k16", (2, 1, 4)), ("m16n8k32", (4, 2, 4)))
    for a in ("s8", "u8")
    for b in ("s8", "u8")
]
_WMMA_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")


def forms() -> Iterator[Form]:
    yield from _moves()
    yield from _products()
    yield from _wmma()


def _moves() -> Iterator[Form]:
    group = "ldmatrix, stmatrix, movmatrix"
    declare = ".reg .b32 q;"
    address = "mad.lo.u32 q, %tid_, 16, %tile; "
    for count in (1, 2, 4):
        registers = ", ".join(f"d{k}" for k in range(count))
        sources = ", ".join("abcd"[:count])
        for trans in ("", ".trans"):
            for space in ("shared", "shared::cta"):
                text = f"{address}st.shared.v2.b64 [q], {{a, b}}; bar.sync 0; "
                text += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 {{{registers}}}, [q];"
                yield statements(group, text, "u64 u64", " ".join(["b32"] * count), declare=declare)
                text = f"{address}st.shared.v2.b64 [q], {{0, 0}}; bar.sync 0; "
                text += f"stmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 [q], {{{sources}}}; bar.sync 0; "
                text += "ld.shared.v2.b64 {d0, d1}, [q];"
                yield statements(group, text, " ".join(["b32"] * count), "u64 u64", declare=declare)
    yield statements(group, "movmatrix.sync.aligned.m8n8.trans.b16 d0, a;", "b32", "b32")


def _element(kind: str) -> tuple[str, str]:
    """Return the register of an operand's element type, and the kind of its values."""
    if kind in ("f16", "bf16"):
        return "b32", f"{kind}x2"
    if kind == "tf32":
        return "b32", "f32"
    if kind in ("s8", "u8", "s32"):
        return "b32", "b32"
    return kind, kind


def _products() -> Iterator[Form]:
    for shape, types, of_a, of_b, of_c in _MMA:
        d, a, b, c = types.split(".")
        satfinite = ("", ".satfinite") if d == "s32" else ("",)
        for finite in satfinite:
            for how in (":small", "") if d != "s32" else ("",):
                yield _mma(shape, (d, a, b, c), (of_a, of_b, of_c), finite, how)


def _mma(shape: str, types: tuple[str, ...], counts: tuple[int, int, int], finite: str, how: str) -> Form:
    """Return a form that loads one register for each of A, B and C; their other registers are shuffles of the first."""
    d, a, b, c = types
    declare, text, inputs = "", "", []
    names: dict[str, list[str]] = {}
    for letter, kind, count, name in zip("abc", (a, b, c), counts, "ABC", strict=True):
        register, values = _element(kind)
        inputs.append(values + (how if kind not in ("s8", "u8", "s32") else ""))
        names[name] = [f"{name}{k}" for k in range(count)]
        declare += f".reg .{register} {', '.join(names[name])}; "
        text += f"mov.b{64 if register == 'f64' else 32} {name}0, {letter}; "
        for k in range(1, count):
            if register == "f64":
                text += f"mov.b64 {{lo, hi}}, {letter}; shfl.sync.bfly.b32 lo, lo, {k}, 31, -1; "
                text += f"shfl.sync.bfly.b32 hi, hi, {k}, 31, -1; mov.b64 {name}{k}, {{lo, hi}}; "
            else:
                text += f"shfl.sync.bfly.b32 {name}{k}, {letter}, {k}, 31, -1; "
    results = [f"d{k}" for k in range(counts[2])]
    lists = ["{" + ", ".join(part) + "}" for part in (results, names["A"], names["B"], names["C"])]
    text += f"mma.sync.aligned.{shape}.row.col{finite}.{'.'.join(types)} {', '.join(lists)};"
    output = _element(d)[0] if d != "f32" else "f32"
    group = "mma.sync" if how == ":small" or d == "s32" else "mma.sync of random numbers"
    if d == "f64":
        declare += ".reg .b32 lo, hi; "
    return statements(
        group, text, " ".join(inputs), " ".join([output] * counts[2]), declare=declare.strip(),
        bound="" if group == "mma.sync" else f"mma.{a}",
    )  # fmt: skip


def _wmma() -> Iterator[Form]:
    """Load fragments from shared memory, multiply, store: the result does not depend on the registers' layout."""
    group = "wmma"
    for shape in _WMMA_SHAPES:
        for a_layout in ("row", "col"):
            for b_layout in ("row", "col"):
                for c in ("f16", "f32"):
                    yield _wmma_form(group, shape, a_layout, b_layout, "f16", c)
                yield _wmma_form(group, shape, a_layout, b_layout, "bf16", "f32")
                for integer in ("s8", "u8"):
                    yield _wmma_form(group, shape, a_layout, b_layout, integer, "s32")
    for layout in ("row", "col"):
        yield _wmma_form(group, "m16n16k8", layout, "col", "tf32", "f32")
        yield _wmma_form(group, "m8n8k4", layout, "col", "f64", "f64")


_FRAGMENTS = {  # registers of a and b by shape
    "f16": dict.fromkeys(_WMMA_SHAPES, (8, 8)),
    "bf16": {"m16n16k16": (4, 4), "m32n8k16": (8, 2), "m8n32k16": (2, 8)},
    "s8": {"m16n16k16": (2, 2), "m32n8k16": (4, 1), "m8n32k16": (1, 4)},
    "tf32": {"m16n16k8": (4, 4)},
    "f64": {"m8n8k4": (1, 1)},
}
_SIZES = {"f16": 2, "bf16": 2, "s8": 1, "u8": 1, "tf32": 4, "f64": 8, "f32": 4, "s32": 4}


def _wmma_form(group: str, shape: str, a_layout: str, b_layout: str, kind: str, c: str) -> Form:
    m, n, k = (int(part) for part in shape.replace("m", " ").replace("n", " ").replace("k", " ").split())
    of_a, of_b = _FRAGMENTS["s8" if kind == "u8" else kind][shape]
    of_c = 2 if c == "f64" else 4 if c == "f16" else 8
    size, c_size = _SIZES[kind], _SIZES[c]
    # a warp's parts of the tile: A at 0, B at 1024, C at 2048, each filled by its lanes' 8 (or 16) bytes
    values = {"f16": "f16x2:small", "bf16": "bf16x2:small", "tf32": "f32:small", "f64": "f64:small"}.get(kind, "b32")
    wide = kind == "f64"
    c_values = {"f16": "f16x2:small", "f32": "f32:small", "f64": "f64:small"}.get(c, "b32")
    # rows (or columns) start at multiples of 16 bytes
    lda, ldb = (max(x, 16 // size) for x in (k if a_layout == "row" else m, n if b_layout == "row" else k))
    words = lda * (m if a_layout == "row" else k) * size // 32 // (8 if wide else 4)
    words_b = ldb * (k if b_layout == "row" else n) * size // 32 // (8 if wide else 4)
    words_c = m * n * c_size // 32 // (8 if c == "f64" else 4)
    unit, unit_c = ("b64", 8) if wide else ("b32", 4), ("b64", 8) if c == "f64" else ("b32", 4)
    text = "shr.u32 q, %tid_, 5; mad.lo.u32 q, q, 4096, %tile; and.b32 z, %tid_, 31; "
    for letter, base, count, (register, step) in (
        ("a", 0, words, unit),
        ("b", 1024, words_b, unit),
        ("c", 2048, words_c, unit_c),
    ):
        text += f"mad.lo.u32 w, z, {count * step}, q; "
        for part in range(count):
            text += f"st.shared.{register} [w+{base + part * step}], {letter}; "
    text += "bar.warp.sync -1; add.u32 w, q, 1024; add.u32 z, q, 2048; "
    fragments = {
        name: "{" + ", ".join(f"{name}{part}" for part in range(count)) + "}"
        for name, count in (("A", of_a), ("B", of_b), ("C", of_c))
    }
    text += f"wmma.load.a.sync.aligned.{a_layout}.{shape}.shared.{kind} {fragments['A']}, [q], {lda}; "
    text += f"wmma.load.b.sync.aligned.{b_layout}.{shape}.shared.{kind} {fragments['B']}, [w], {ldb}; "
    text += f"wmma.load.c.sync.aligned.row.{shape}.shared.{c} {fragments['C']}, [z], {n}; "
    mode = ".rn" if kind == "f64" else ""
    if kind == "f16":
        types = f"{c}.{c}"
    elif kind in ("s8", "u8"):
        types = f"s32.{kind}.{kind}.s32"
    elif kind == "f64":
        types = "f64.f64.f64.f64"
    else:
        types = f"f32.{kind}.{kind}.f32"
    text += f"wmma.mma.sync.aligned.{a_layout}.{b_layout}.{shape}{mode}.{types} {fragments['C']}, {fragments['A']}, "
    text += f"{fragments['B']}, {fragments['C']}; bar.warp.sync -1; "
    text += f"wmma.store.d.sync.aligned.col.{shape}.shared.{c} [z], {fragments['C']}, {m}; bar.warp.sync -1; "
    outputs = words_c if words_c <= 8 else 8
    text += f"and.b32 w, %tid_, 31; mad.lo.u32 w, w, {words_c * unit_c[1]}, z; "
    text += " ".join(f"ld.shared.{unit_c[0]} d{part}, [w+{part * unit_c[1]}];" for part in range(outputs))
    a_register = "f64" if wide else "b32"
    c_register = "f64" if c == "f64" else "f32" if c == "f32" else "b32"
    declare = f".reg .b32 q, z, w; .reg .{a_register} A<{of_a}>, B<{of_b}>; .reg .{c_register} C<{of_c}>;"
    return statements(group, text, f"{values} {values} {c_values}", " ".join([unit_c[0]] * outputs), declare=declare)
