"""The class of each PTX instruction, as a profiler's instruction mix has them.

What a type decides (add, fma, setp ...) goes by the type computed with; memory goes by its state space as the
instruction names it, so a generic access is one whatever it turns out to mean.
"""

from __future__ import annotations

from cudakit.sim.ptx.ir import Instruction

# every class, in the order that reports show them
CLASSES = (
    "fp32",
    "fp64",
    "fp16",
    "tensor",
    "special",
    "integer",
    "conversion",
    "move",
    "control",
    "barrier",
    "warp",
    "fence",
    "global_load",
    "global_store",
    "shared_load",
    "shared_store",
    "local_load",
    "local_store",
    "constant_load",
    "generic_load",
    "generic_store",
    "async_copy",
    "atomic",
    "other",
)

_TYPED, _LOAD, _STORE = "by type", "load", "store"
_OPCODES = {
    _TYPED: "add sub mul mad fma div rem neg abs min max set setp selp slct copysign testp",
    "special": "sin cos ex2 lg2 rcp rsqrt sqrt tanh",
    "integer": "addc subc madc mul24 mad24 sad and or xor not cnot lop3 shl shr shf bfe bfi bfind brev popc clz fns "
    "prmt bmsk szext dp2a dp4a isspacep "
    "vadd2 vadd4 vsub2 vsub4 vabsdiff2 vabsdiff4 vmin2 vmin4 vmax2 vmax4 vset2 vset4",
    "conversion": "cvt",
    "move": "mov cvta mapa getctarank",
    "control": "bra brx call ret exit trap brkpt nanosleep pmevent griddepcontrol setmaxnreg",
    "barrier": "bar barrier",
    "warp": "shfl vote match redux activemask elect",
    "fence": "membar fence",
    "tensor": "mma wmma movmatrix",
    "atomic": "atom red",
    "async_copy": "cp",
    "other": "prefetch prefetchu discard applypriority createpolicy",
    _LOAD: "ld ldu ldmatrix",
    _STORE: "st stmatrix",
}
CLASS_OF_OPCODE = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
_OF_TYPE = {"f32": "fp32", "f32x2": "fp32", "f64": "fp64"}
_OF_TYPE |= dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "fp16")
_OF_TYPE |= {f"{kind}{bits}": "integer" for kind in "bsu" for bits in (8, 16, 32, 64, 128)}
_OF_TYPE |= dict.fromkeys(("pred", "u16x2", "s16x2"), "integer")
_SPACES = {"global": "global", "local": "local", "const": "constant", "param": "constant", "shared": "shared"}


def class_of(instruction: Instruction) -> str:
    """The class of an instruction, one of ``CLASSES``; "other" for an opcode that the table lacks."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    found = CLASS_OF_OPCODE.get(opcode, "other")
    if found == _TYPED:
        kinds = [_OF_TYPE[m] for m in modifiers if m in _OF_TYPE]
        return kinds[-1] if kinds else "other"
    if opcode in ("bar", "barrier") and "warp" in modifiers:
        return "warp"
    if opcode == "wmma" and modifiers[:1] in (("load",), ("store",)):
        found = _LOAD if modifiers[0] == "load" else _STORE
    if found not in (_LOAD, _STORE):
        return found
    # ld.param::entry, st.shared::cluster: what stands before the colons is the space
    stems = (modifier.partition("::")[0] for modifier in modifiers)
    space = next((_SPACES[stem] for stem in stems if stem in _SPACES), "generic")
    if opcode in ("ldmatrix", "stmatrix"):
        space = "shared"
    if space == "constant" and found == _STORE:
        return "move"  # an argument of a call, which is a register in machine code
    return f"{space}_{found}"
