"""Fixtures of the tests of 16-bit products by Hopper's own instructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudakit
from cudakit.families.gemm_hopper import tiles


@pytest.fixture
def needs_hopper(request: pytest.FixtureRequest) -> None:
    """Skip a test on a device of another architecture."""
    if "device" in request.fixturenames:
        reason = tiles.arch_refusal(request.getfixturevalue("device").arch)
        if reason:
            pytest.skip(reason)


@pytest.fixture(scope="module")
def shared_sim() -> Iterator[cudakit.Device]:
    """A simulated device of its own, for all tests of a module."""
    with cudakit.Device("sim", fresh=True) as opened:
        yield opened
