"""Planted Hopper bugs: wgmma, bulk and tensor copies, mbarriers and tensor maps.

`catalogue` defines a case and runs it; `products` and `copies` contain those with a `.cu` file of their own,
`real_kernels` those that change one line of a kernel of kernels/hopper. `kinds` has the class expected for each.
`python -m planted.hopper.run` runs cases on a GPU, `python -m planted.hopper.sanitize` all of them under
compute-sanitizer.
"""

from __future__ import annotations

from cudakit.sim import DEFAULT_CHECKS

from . import copies, products, real_kernels
from .catalogue import CASES, Changed, Expired, Map, Words

# boxes that are wholly outside of the tensor are reported only on request
CHECKS = DEFAULT_CHECKS | {"clipping"}

__all__ = ["CASES", "CHECKS", "Changed", "Expired", "Map", "Words", "copies", "products", "real_kernels"]
