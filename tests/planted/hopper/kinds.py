"""The class that the simulated device reports for each kind of planted Hopper bug, in the words of its report."""

from __future__ import annotations

KINDS = {
    # wgmma
    "accumulator": "wgmma register used before the wait",
    "fragment": "wgmma register used before the wait",
    "operand": "shared memory overwritten in flight",
    "wgmma fence": "missing wgmma.fence",
    "wgmma commit": "missing wgmma.commit_group",
    "half warp": "lanes missing from a warp operation",
    "divergent": "divergent wgmma",
    "descriptors differ": "divergent wgmma",
    "descriptor outside": "out of bounds",
    "swizzle": "invalid matrix descriptor",
    # setmaxnreg
    "setmaxnreg": "divergent setmaxnreg",
    "registers": "registers never available",
    # copies
    "early": "read before mbarrier wait",
    "store source": "shared memory overwritten in flight",
    "store commit": "shared memory overwritten in flight",
    "proxy fence": "missing proxy fence",
    # barriers
    "bytes": "mbarrier bytes differ",
    "overflow": "mbarrier transaction overflow",
    "parity": "mbarrier phase missed",
    "hang": "deadlock",
    "arrivals": "mbarrier count",
    "exited": "use after free",
    "initialised": "mbarrier not initialised",
    "initialised again": "mbarrier initialised again",
    "overwritten": "mbarrier overwritten",
    # tensor maps
    "map": "invalid tensor map",
    "map memory": "tensor map in the wrong memory",
    "map fence": "tensor map changed without a fence",
    "coordinates": "tensor coordinates",
}
