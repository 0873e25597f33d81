"""atom and red: every operation, type, scope and state space. Each lane has its own element, so results do not depend
on order; for operations that commute, other forms have one element per block."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, register, statements
from .memory import SCOPES, SPACES

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_OPERATIONS: dict[str, tuple[str, ...]] = {
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "add": ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.f16x2", "noftz.bf16", "noftz.bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
}
_SPACES = ("global", "generic", "shared", "shared::cta", "generic to shared")
_COMMUTES = ("and", "or", "xor", "inc", "dec", "add", "min", "max")


def forms() -> Iterator[Form]:
    turn = 0
    for operation, types in _OPERATIONS.items():
        for kind in types:
            for space in _SPACES:
                for scope in ("", *SCOPES):
                    turn += 1
                    order = _ORDERS[turn % 4] if scope else ""
                    yield _alone("atom", operation, kind, space, order, scope)
                    if operation not in ("exch", "cas"):
                        order = ("relaxed", "release")[turn % 2] if scope else ""
                        yield _alone("red", operation, kind, space, order, scope)
                if operation in _COMMUTES and kind[0] != "n" and kind[0] != "f":
                    yield _together("atom", operation, kind, space)
                    yield _together("red", operation, kind, space)
    for order in _ORDERS:
        for scope in SCOPES:
            yield _alone("atom", "add", "u32", "global", order, scope)
            yield _alone("atom", "cas", "b32", "shared", order, scope)
    yield from _vectors()


def _bare(kind: str) -> str:
    return kind.removeprefix("noftz.")


def _name(opcode: str, operation: str, kind: str, space: str, order: str, scope: str) -> str:
    parts = [opcode, order, scope, SPACES[space][0].lstrip("."), operation, kind]
    return ".".join(part for part in parts if part)


def _alone(opcode: str, operation: str, kind: str, space: str, order: str, scope: str) -> Form:
    where, address, declare = SPACES[space]
    bare = _bare(kind)
    size = register(bare).replace("f", "b")
    values = "b, c" if operation == "cas" else "b"
    name = _name(opcode, operation, kind, space, order, scope)
    target = "d0, " if opcode == "atom" else ""
    text = f"{address}st{where}.{size} [p+8], a; {name} {target}[p+8], {values}; "
    text += f"ld{where}.{size} {'d1' if opcode == 'atom' else 'd0'}, [p+8];"
    operand = f"{bare}:below6" if operation in ("inc", "dec") else bare
    inputs = f"{operand} {operand} {operand}" if operation == "cas" else f"{operand} {operand}"
    if operation == "cas":  # compare with a value that is often there
        inputs = inputs.replace(operand, f"{operand}:few")
    return statements(
        f"{opcode} {space}", text, inputs, f"{bare} {bare}" if opcode == "atom" else bare, declare=declare
    )


def _together(opcode: str, operation: str, kind: str, space: str) -> Form:
    """All lanes of a block on one element; the result is its final value."""
    where, _, declare = SPACES[space]
    address = "mov.u32 q, %tile; cvt.u64.u32 p, q; "
    if space == "generic to shared":
        address += "cvta.shared.u64 p, p; "
    if space in ("global", "generic"):
        address = "mul.lo.u32 q, %tid_, 64; cvt.u64.u32 p, q; sub.u64 p, %cell, p; "
    size = register(kind)
    operand = "5" if operation in ("inc", "dec") else "a"
    target = "_, " if opcode == "atom" else ""
    text = f"{address}setp.eq.u32 y, %tid_, 0; @y st{where}.{size} [p], 3; bar.sync 0; "
    text += f"{_name(opcode, operation, kind, space, '', '')} {target}[p], {operand}; bar.sync 0; "
    text += f"ld{where}.{size} d0, [p];"
    return statements(f"{opcode} {space}", text, kind, kind, declare=f"{declare} .reg .pred y;")


def _vectors() -> Iterator[Form]:
    """The vector forms of add, min and max in global memory on sm_90."""
    for kind, count in (("f32", 2), ("f32", 4)):
        group, names = "atom global", "abcdefgh"
        first, second = ", ".join(names[:count]), ", ".join(names[count : 2 * count])
        kinds = " ".join([kind] * 2 * count)
        results = ", ".join(f"d{k}" for k in range(count))
        text = (
            f"st.global.v{count}.{kind} [%cell], {{{first}}}; atom.global.add.v{count}.{kind} {{{results}}}, [%cell], "
        )
        text += f"{{{second}}}; "
        yield statements(group, text, kinds, " ".join([kind] * count))
        text = f"st.global.v{count}.{kind} [%cell], {{{first}}}; red.global.add.v{count}.{kind} [%cell], {{{second}}}; "
        text += f"ld.global.v{count}.{kind} {{{results}}}, [%cell];"
        yield statements("red global", text, kinds, " ".join([kind] * count))
