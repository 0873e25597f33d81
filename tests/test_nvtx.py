"""Ranges: what a tool is told, and what it costs when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from cudakit import nvtx


class Tool:
    """A domain that keeps what it is told, as Nsight would."""

    def __init__(self):
        self.said = []
        self.made = []

    def get_event_attributes(self, message=None, color=None):
        self.made.append(message)
        return message, color

    def push_range(self, attributes):
        self.said.append(("push", *attributes))

    def pop_range(self):
        self.said.append(("pop",))

    def mark(self, attributes):
        self.said.append(("mark", *attributes))


@pytest.fixture
def tool(monkeypatch):
    made = Tool()
    nvtx._attributes.cache_clear()
    monkeypatch.setattr(nvtx, "_domain", lambda: made)
    yield made
    nvtx._attributes.cache_clear()


def test_ranges_nest_and_name_their_work(tool):
    with nvtx.range("outer"), nvtx.range("inner", color="green"):
        nvtx.mark("here")
    assert tool.said == [
        ("push", "outer", None),
        ("push", "inner", "green"),
        ("mark", "here", None),
        ("pop",),
        ("pop",),
    ]
    assert nvtx.listening()


def test_a_range_ends_when_its_work_raises(tool):
    with pytest.raises(ZeroDivisionError), nvtx.range("work"):
        _ = 1 / 0
    assert tool.said == [("push", "work", None), ("pop",)]


def test_as_a_decorator(tool):
    @nvtx.range("work")
    def work(left, right=2):
        """What it does."""
        return left + right

    assert work(1) == 3
    assert work(1, right=5) == 6
    assert work.__name__ == "work"
    assert work.__doc__ == "What it does."
    assert tool.said == [("push", "work", None), ("pop",)] * 2


def test_one_range_object_can_be_used_again_and_within_itself(tool):
    again = nvtx.range("again")
    with again, again:
        pass
    assert [entry[0] for entry in tool.said] == ["push", "push", "pop", "pop"]
    assert tool.made == ["again"], "a name is registered once"


def run(code, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NV")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


CODE = """
    import sys
    from cudakit import nvtx
    assert "nvtx" not in sys.modules
    with nvtx.range("x"):
        nvtx.mark("y")
    print(nvtx.listening(), "nvtx" in sys.modules)
"""


def test_the_package_is_asked_at_the_first_range():
    assert run(CODE).split()[1] == "True"


def test_switched_off():
    assert run(CODE, NVTX_DISABLE="1") == "False True"


def test_nearly_free_when_nobody_listens(monkeypatch):
    monkeypatch.setattr(nvtx, "_domain", lambda: None)
    work = nvtx.range("work")
    best = min(_cost(work) for _ in range(20))
    assert best < 5e-6, "a range that nobody sees must not show in a launch"


def _cost(work, count=1000):
    start = time.perf_counter()
    for _ in range(count):
        with work:
            pass
    return (time.perf_counter() - start) / count
