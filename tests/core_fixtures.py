"""How the core's own tests open a context: below Device, so that a failure there does not hide one here."""

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
    """A context; on the simulated device one of its own, which must hold nothing when it is closed."""
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
