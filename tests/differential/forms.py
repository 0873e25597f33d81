"""Forms: PTX statements from operands to results, and the kernels and modules made of them.

A form's statements read the registers a, b, c... and write d0, d1.... A kernel loads the operands before them (rows of
64-bit words, one column per lane) and stores the results after them in the same layout. Statements may also use

    %slot   the lane's number in the grid (b32)            %tid_  its number in the block (b32)
    %cell   the address of the lane's own 64 bytes of global memory, initially zero (b64)
    %tile   the address of the block's 8 KB of shared memory, in the shared window (b32)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

OPERANDS = "abcdefgh"
BLOCK = 64  # threads per block
CELL = 64  # bytes of global memory per lane
PTX_VERSION = "9.0"
TARGET = "sm_90a"
_SIXTEEN = ("bf16", "e4m3x2", "e5m2x2")


@dataclass(frozen=True)
class Form:
    """Statements and the PTX types of their operands and results.

    group: its row in the table. inputs: types, or kinds of values of `operands`. declare: declarations in the kernel
    that the statements need. outside: text before the kernel; "$" becomes the kernel's number, in the statements too.
    bound: for approximate instructions, the key of `bounds`.
    """

    group: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    declare: str = ""
    outside: str = field(default="", repr=False)
    bound: str = ""

    @property
    def name(self) -> str:
        """The form's identity in the catalogue and in reports."""
        types = " ".join(self.inputs) + " -> " + " ".join(self.outputs)
        return f"{' '.join(self.text.split())} ({types})"

    @property
    def short(self) -> str:
        """The name, or the last 200 characters of a longer one."""
        return self.name if len(self.name) <= 200 else f"...{self.name[-200:]}"


def op(group: str, name: str, inputs: str, outputs: str, **more: str) -> Form:
    """Return the form of one instruction whose arguments are its results, then its operands."""
    kinds, results = inputs.split(), outputs.split()
    registers = [f"d{k}" for k in range(len(results))] + list(OPERANDS[: len(kinds)])
    return Form(group, f"{name} {', '.join(registers)};", tuple(kinds), tuple(results), **more)


def statements(group: str, text: str, inputs: str, outputs: str, **more: str) -> Form:
    return Form(group, text, tuple(inputs.split()), tuple(outputs.split()), **more)


def bits(kind: str) -> int:
    """Return the width of a type or kind of operand; text after a colon selects how values are drawn."""
    kind = kind.partition(":")[0]
    if kind == "pred":
        return 1
    if kind.endswith("x2"):
        return 16 if kind in _SIXTEEN else 32
    if kind in _SIXTEEN:
        return 16
    match = re.fullmatch(r"[busf](8|16|32|64)", kind)
    if match is None:
        raise ValueError(f"{kind!r} is not an operand type")
    return max(int(match[1]), 16)


def register(kind: str) -> str:
    """Return the type of the register that holds a kind of value."""
    kind = kind.partition(":")[0]
    return kind if kind in ("pred", "f32", "f64") else f"b{bits(kind)}"


def _load(kind: str, name: str) -> str:
    if kind.startswith("pred"):
        return f"setp.ne.u64 {name}, %w, 0;"
    if bits(kind) == 64:
        return f"mov.b64 {name}, %w;"
    if bits(kind) == 32:
        return f"cvt.u32.u64 %s, %w; mov.b32 {name}, %s;"
    return f"cvt.u16.u64 {name}, %w;"


def _store(kind: str, name: str) -> str:
    if kind == "pred":
        return f"selp.u64 %w, 1, 0, {name};"
    if bits(kind) == 64:
        return f"mov.b64 %w, {name};"
    if bits(kind) == 32:
        return f"mov.b32 %s, {name}; cvt.u64.u32 %w, %s;"
    return f"cvt.u64.u16 %w, {name};"


def entry(form: Form, name: str) -> str:
    """Return a kernel (operands, results, cells, count of lanes) that runs a form."""
    number = name.lstrip("k")
    text, declare, outside = (part.replace("$", number) for part in (form.text, form.declare, form.outside))
    used = text + declare
    lines = [
        *([outside] if outside else []),
        f".visible .entry {name}(.param .u64 pin, .param .u64 pout, .param .u64 pcells, .param .u64 pcount) {{",
        ".reg .b64 %i, %o, %n, %t, %w; .reg .b32 %s, %m, %slot, %tid_;",
        *(f".reg .{register(kind)} {OPERANDS[k]};" for k, kind in enumerate(form.inputs)),
        *(f".reg .{register(kind)} d{k};" for k, kind in enumerate(form.outputs)),
    ]
    if "%tile" in used:
        lines.append(".shared .align 128 .b8 tile[8192]; .reg .b32 %tile;")
    if "%cell" in used:
        lines.append(".reg .b64 %cell;")
    lines += [
        *([declare] if declare else []),
        "ld.param.u64 %i, [pin]; ld.param.u64 %o, [pout]; ld.param.u64 %n, [pcount];",
        "cvta.to.global.u64 %i, %i; cvta.to.global.u64 %o, %o; shl.b64 %n, %n, 3;",
        f"mov.u32 %tid_, %tid.x; mov.u32 %m, %ctaid.x; mad.lo.u32 %slot, %m, {BLOCK}, %tid_;",
        "cvt.u64.u32 %t, %slot; shl.b64 %t, %t, 3; add.u64 %i, %i, %t; add.u64 %o, %o, %t;",
    ]
    if "%tile" in used:
        lines.append("mov.u32 %tile, tile;")
    if "%cell" in used:
        lines.append(f"ld.param.u64 %cell, [pcells]; mad.wide.u32 %cell, %slot, {CELL}, %cell;")
    for k, kind in enumerate(form.inputs):
        lines.append(f"ld.global.u64 %w, [%i]; add.u64 %i, %i, %n; {_load(kind, OPERANDS[k])}")
    lines += ["// the form", text.strip().replace("; ", ";\n"), "// its results"]
    for k, kind in enumerate(form.outputs):
        lines.append(f"{_store(kind, f'd{k}')} st.global.u64 [%o], %w; add.u64 %o, %o, %n;")
    return "\n".join([*lines, "ret;", "}"])


def module(forms: Sequence[Form]) -> str:
    """Return a module whose kernels k0, k1... run forms."""
    return "\n".join([header(), *(entry(form, f"k{number}") for number, form in enumerate(forms))])


def header() -> str:
    return f".version {PTX_VERSION}\n.target {TARGET}\n.address_size 64"


def unique(forms: Iterable[Form]) -> list[Form]:
    """Return the forms without duplicates."""
    return list({(form.name, form.declare): form for form in forms}.values())
