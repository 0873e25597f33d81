"""The architectures, and the oldest PTX version, that have an instruction, as ptxas enforces them.

Only what is newer than sm_75 and PTX 8.0 is listed, and what only targets with a letter (sm_90a) have.
"""

from __future__ import annotations

import functools
import re

from cudakit.sim.ptx.ir import Instruction, PtxError
from cudakit.sim.ptx.modifiers import EVICTION_L2
from cudakit.sim.ptx.types import bits_of

_BFLOAT = ("bf16", "bf16x2")
# opcodes ("" for all), modifiers of which the instruction has one (empty: none is needed), architecture
_ARCHITECTURES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("cp redux createpolicy discard applypriority", (), 80),
    ("ld st atom red cp", ("L2::cache_hint", "L2::256B"), 80),
    ("prefetch", ("L2::evict_last", "L2::evict_normal"), 80),
    ("abs neg fma min max cvt mma wmma", _BFLOAT, 80),
    ("cvt mma wmma", ("tf32",), 80),
    ("cvt", ("relu", "f16x2"), 80),
    ("wmma mma", ("f64",), 80),
    ("min max", ("f16", "f16x2", "NaN"), 80),
    ("fma", ("relu",), 80),
    ("mma", ("m16n8k16", "m16n8k32", "m16n8k64", "m16n8k4", "m16n8k128", "m16n8k256"), 80),
    ("min max", ("xorsign",), 86),
    ("cvt mma", ("e4m3x2", "e5m2x2", "e4m3", "e5m2"), 89),
    ("add sub mul set setp ex2 tanh atom red", _BFLOAT, 90),
    ("add min max", ("s16x2", "u16x2"), 90),
    ("min max", ("relu",), 90),
    ("atom red", ("v2", "v4", "v8"), 90),
    ("ld st atom red fence barrier", ("cluster", "shared::cluster"), 90),
    ("isspacep", ("shared::cluster", "param"), 90),
    ("stmatrix elect mapa getctarank griddepcontrol multimem tensormap", (), 90),
    ("mbarrier", (), 80),
    ("mbarrier", ("expect_tx", "complete_tx", "try_wait", "relaxed", "cluster", "shared::cluster"), 90),
    ("cp", ("bulk",), 90),
    ("st red", ("async",), 90),
    ("fence", ("async", "async::generic", "tensormap::generic", "mbarrier_init", "acquire", "release"), 90),
    ("prefetch", ("tensormap",), 90),
)
# instructions, by opcode and modifier ("" for any), that only targets with a letter have; wgmma: only sm_90a
_SPECIFIC = {"wgmma": "", "setmaxnreg": "", "tensormap": "replace"}
# f64 in mma with 16 rows; bf16 to and from anything but f32; roundings of tf32 except .rna
_SINCE_90 = re.compile(r"mma\..*m16n8k(4|8|16)\..*f64|cvt\.(?!.*f32).*bf16(\..*)?|cvt\.(rn|rz)\..*tf32.*")
# one-sided fences, relaxed operations on mbarriers, bulk loads into the own block
_SINCE_8_6 = re.compile(
    r"fence\.(acquire|release)\..*|fence\..*sync_restrict.*|mbarrier\.(arrive|test_wait|try_wait).*\.relaxed\..*"
    r"|cp\.async\.bulk\..*shared::cta\..*global.*"
)
_FLOAT_RELU = ("f16", "f16x2", *_BFLOAT)
# PTX versions: opcodes, modifiers, version
_VERSIONS: tuple[tuple[str, tuple[str, ...], tuple[int, int]], ...] = (
    ("atom red", ("v2", "v4", "v8"), (8, 1)),
    ("ld st", ("mmio",), (8, 2)),
    ("lop3", ("and", "or"), (8, 2)),
    ("st red", ("async",), (8, 1)),
    ("tensormap", (), (8, 3)),
    ("fence", ("tensormap::generic",), (8, 3)),
)
# the oldest PTX version of each architecture
_OLDEST = {75: (6, 3), 80: (7, 0), 86: (7, 1), 87: (7, 4), 88: (9, 0), 89: (7, 8), 90: (7, 8), 100: (8, 6)}
_OLDEST |= {103: (8, 8), 110: (9, 0), 120: (8, 7), 121: (8, 8)}
_SUFFIXED = (8, 0)


def check_gates(instruction: Instruction, target: str, version: tuple[int, int]) -> None:
    """Raise PtxError if a module's target ("sm_90a") or version lacks an instruction."""
    if instruction.opcode in _SPECIFIC:
        _check_specific(instruction, target)
    architecture = architecture_of(target)
    if architecture < 100 and instruction.opcode in ("ld", "st") and _wide_or_evicting(instruction):
        raise _old(instruction, 100, architecture)
    if architecture >= 90 and version >= (8, 6):
        return
    found = {*instruction.modifiers}
    for opcodes, modifiers, needed in _ARCHITECTURES:
        if architecture < needed and _applies(instruction, found, opcodes, modifiers):
            if needed == 90 and modifiers == ("relu",) and found & {*_FLOAT_RELU}:
                continue
            raise _old(instruction, needed, architecture)
    if architecture < 90 and _SINCE_90.match(instruction.name):
        raise _old(instruction, 90, architecture)
    if architecture < 90 and _counts_arrivals(instruction):
        raise _old(instruction, 90, architecture)
    for opcodes, modifiers, oldest in _VERSIONS:
        if version < oldest and _applies(instruction, found, opcodes, modifiers):
            raise _older(instruction, oldest, version)
    if version < (8, 6) and _SINCE_8_6.match(instruction.name):
        raise _older(instruction, (8, 6), version)


def _check_specific(instruction: Instruction, target: str) -> None:
    needed = _SPECIFIC[instruction.opcode]
    if target == "sm_90a" or (needed and needed not in instruction.modifiers):
        return
    if instruction.opcode == "wgmma":
        raise PtxError(f"{instruction.name} needs sm_90a, the module is for {target}")
    if architecture_of(target) < 100 or target[-1:].isdigit():
        raise PtxError(f"{instruction.name} needs a target with a letter, such as sm_90a; the module is for {target}")


def _old(instruction: Instruction, needed: int, architecture: int) -> PtxError:
    return PtxError(f"{instruction.name} needs sm_{needed}, the module is for sm_{architecture}")


def _older(instruction: Instruction, needed: tuple[int, int], version: tuple[int, int]) -> PtxError:
    found_, needed_ = (".".join(map(str, pair)) for pair in (version, needed))
    return PtxError(f"{instruction.name} needs PTX {needed_}, the module has {found_}")


def _counts_arrivals(instruction: Instruction) -> bool:
    """Whether it is an arrival at an mbarrier with a count, which may complete the phase."""
    arrives = instruction.opcode == "mbarrier" and instruction.modifiers[:1] in (("arrive",), ("arrive_drop",))
    return arrives and len(instruction.operands) > 2 and "noComplete" not in instruction.modifiers


def _wide_or_evicting(instruction: Instruction) -> bool:
    """Whether a load or store has 256 bits, or an eviction priority of L2, which only such a one may have."""
    modifiers = instruction.modifiers
    if "async" in modifiers:
        return False
    length = next((int(m[1:]) for m in modifiers if m in ("v2", "v4", "v8")), 1)
    return length * bits_of(modifiers[-1] if modifiers else "") > 128 or not {*EVICTION_L2}.isdisjoint(modifiers)


def _applies(instruction: Instruction, found: set[str], opcodes: str, modifiers: tuple[str, ...]) -> bool:
    return instruction.opcode in opcodes.split() and (not modifiers or not found.isdisjoint(modifiers))


def oldest_version(target: str) -> tuple[int, int]:
    """The oldest PTX version in which functions for a target such as sm_90a may be written; (1, 0) if any."""
    found = _OLDEST.get(architecture_of(target), (1, 0))
    return found if target[-1:].isdigit() else max(found, _SUFFIXED)


@functools.cache
def architecture_of(target: str) -> int:
    """90 for sm_90a."""
    return int(re.sub(r"\D", "", target) or 0)


def version_of(text: str) -> tuple[int, int]:
    """The PTX version 8.5 as (8, 5)."""
    major, _, minor = text.partition(".")
    return int(major), int(minor)
