"""Idioms of CUDA's Programming Guide and Best Practices Guide: no report under the default checks, exact results."""

from __future__ import annotations

import re

import numpy as np
import pytest
from idioms import HOST, IDIOMS, Idiom
from planted.catalogue import run_launch

import cudakit


@pytest.mark.parametrize("idiom", IDIOMS.values(), ids=IDIOMS)
def test_an_idiom_has_no_report_and_is_exact(sim: cudakit.Device, idiom: Idiom) -> None:
    launch = idiom.launch()
    args = run_launch(sim, idiom.file, idiom.name, launch)
    for number, want in launch.want.items():
        got = args[number].numpy()
        if number in launch.unordered:
            got, want = np.sort(got), np.sort(want)
        np.testing.assert_array_equal(got, want, f"argument {number}")


@pytest.mark.parametrize("name", HOST)
def test_an_idiom_of_host_code_has_no_report_and_is_exact(sim: cudakit.Device, name: str) -> None:
    HOST[name](sim)
    sim.synchronize()


def test_no_kernel_is_left_out() -> None:
    for file in sorted({idiom.file for idiom in IDIOMS.values()}):
        kernels = re.findall(r"__global__ void (\w+)", file.read_text())
        assert kernels == [name for name, idiom in IDIOMS.items() if idiom.file == file]
    assert len(IDIOMS) + len(HOST) >= 40
