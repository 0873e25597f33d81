"""The class of each PTX instruction, as in a profiler's instruction mix.

Instructions for several types (add, fma, setp ...) are classed by the type they compute with, memory accesses by the
state space that the instruction names. So a generic access is "generic", whatever memory it reaches.
"""

from __future__ import annotations

import re

from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import BY_TYPE, LOAD, STORE, row_of, spaces_of

# every class, in the order of reports
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

_ELEMENTS = frozenset(("f16", "bf16", "tf32", "f64", "e4m3", "e5m2", "s8", "u8", "s4", "u4", "b1"))
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_OF_TYPE = {"f32": "fp32", "f32x2": "fp32", "f64": "fp64"}
_OF_TYPE |= dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "fp16")
_OF_TYPE |= {f"{kind}{bits}": "integer" for kind in "bsu" for bits in (8, 16, 32, 64, 128)}
_OF_TYPE |= dict.fromkeys(("pred", "u16x2", "s16x2"), "integer")
_SPACES = {"global": "global", "local": "local", "const": "constant", "param": "constant", "shared": "shared"}


def class_of(instruction: Instruction) -> str:
    """The class of an instruction, one of ``CLASSES``; "other" if the table of opcodes lacks it."""
    found = row_of(instruction).mix
    if found == BY_TYPE:
        kinds = [_OF_TYPE[m] for m in instruction.modifiers if m in _OF_TYPE]
        return kinds[-1] if kinds else "other"
    if found not in (LOAD, STORE):
        return found
    # ld.param::entry, st.shared::cluster: the space is before the colons
    space = next((_SPACES[space.partition("::")[0]] for space in spaces_of(instruction)), "generic")
    if space == "constant" and found == STORE:
        return "move"  # an argument of a call is a register in machine code
    return f"{space}_{found}"


def multiply_adds(instruction: Instruction) -> tuple[str, int]:
    """The type of the left factors of a matrix product, and the multiply-adds per warp. Each warp computes one quarter
    of its warpgroup's product."""
    shape = next(found for m in instruction.modifiers if (found := _SHAPE.fullmatch(m)))
    # the type of D is first, and that of C last; wmma omits A and B of float16
    kinds = [m for m in instruction.modifiers if m in _ELEMENTS or m in ("f32", "s32")]
    omitted = instruction.opcode == "wmma" and len(kinds) == 2
    count = int(shape[1]) * int(shape[2]) * int(shape[3])
    return "f16" if omitted else kinds[1], count // 4 if instruction.opcode == "wgmma" else count
