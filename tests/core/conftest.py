"""Fixtures of the tests of streams, memory, launches and graphs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from graph_work import N, numbers


@pytest.fixture
def work(device):
    """Two streams, and three arrays, the first with values."""
    with device.stream() as stream, device.stream() as other:
        host = numbers()
        x = device.array(host, stream=stream)
        y, z = device.zeros((N,), stream=stream), device.zeros((N,), stream=stream)
        stream.synchronize()
        yield SimpleNamespace(stream=stream, other=other, host=host, x=x, y=y, z=z)
        stream.synchronize()
        other.synchronize()
