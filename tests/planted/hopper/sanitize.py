"""Runs every planted Hopper case under compute-sanitizer on a GPU, and on the simulated device; see planted.sanitize.

cd tests && python -m planted.hopper.sanitize --tools memcheck racecheck synccheck --json planted_hopper.json
"""

from __future__ import annotations

import sys

from .. import sanitize
from . import CASES, CHECKS
from .kinds import KINDS

# These may keep the GPU busy until the time limit: only waits for mbarriers end by themselves.
STUCK = {KINDS[kind] for kind in ("half warp", "divergent", "setmaxnreg", "registers")}

if __name__ == "__main__":
    sys.exit(sanitize.main(CASES, "planted.hopper.run", sanitize.STUCK | STUCK, CHECKS))
