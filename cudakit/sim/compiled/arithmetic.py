"""Lane-wise instructions as machine code: the same functions as those of ``sim/values``, bit for bit.

Each family registers its writers; see lanewise.py.
"""

from __future__ import annotations

from cudakit.sim.compiled import approximations, bits, conversions, floats, integers, selection, video
from cudakit.sim.compiled.lanewise import WRITERS, Operands, Unsupported
from cudakit.sim.compiled.rounding import NAN32

__all__ = ["NAN32", "WRITERS", "Operands", "Unsupported"]

# importing a family registers it
_FAMILIES = (approximations, bits, conversions, floats, integers, selection, video)
