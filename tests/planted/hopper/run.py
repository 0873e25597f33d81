"""Runs planted Hopper cases on a GPU, as planted.run does: `python -m planted.hopper.run wrong NAME...`."""

from __future__ import annotations

import sys

from .. import run
from . import CASES

if __name__ == "__main__":
    sys.exit(run.main(CASES))
