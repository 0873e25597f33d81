"""Contexts for tests of the core, opened without Device, so that a failure of Device does not hide theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.errors import CudakitError

DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]


@contextmanager
def opened(spec: str, **options: Any) -> Iterator[Context]:
    """Open a context; a simulated one is new and must have no allocations at its end."""
    if spec.startswith("gpu"):
        try:
            found = drivers.open(spec)
        except CudakitError as error:
            pytest.skip(f"no GPU: {error}")
    else:
        found = drivers.open(spec, fresh=True, **options)
    context = Context(found)
    try:
        yield context
    finally:
        context.close()
    if context.kind == "sim" and context.lost is None:
        assert found.driver.simLeaks() == []
