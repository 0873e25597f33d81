"""The class of each PTX instruction, as in a profiler's instruction mix.

Instructions for several types (add, fma, setp ...) are classed by the type they compute with, memory accesses by the
state space that the instruction names. So a generic access is "generic", whatever memory it reaches.
"""

from __future__ import annotations

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
