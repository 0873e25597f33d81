"""The modules of examples/gemm_against_cublas.py, and runs of it on the simulated device."""

from __future__ import annotations

import importlib
import json
import sys

import programs
from paths import ROOT

EXAMPLE = ROOT / "examples" / "gemm_against_cublas.py"
SIZES = "33x20x17,64"


def part(name):
    """Import one module of the example."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return importlib.import_module(f"half_products.{name}")
    finally:
        sys.path.remove(str(ROOT / "examples"))


arrays, cases, grouped_of, modes, product_of, rounds, tables, ways = map(
    part, ("arrays", "cases", "grouped", "modes", "product", "rounds", "tables", "ways")
)


def run(*arguments):
    return programs.run(EXAMPLE, "--device", "sim", "--json", "-", *arguments)


def result_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
