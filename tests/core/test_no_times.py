"""No test asserts a time: a shared or slow machine would fail it, and a fast one would hide what it is for.

Costs are measured by benches, and compared with `cudakit bench --against`. This searches the tests for comparisons
(<, <=, >, >=) of measured times, also in scripts that a test runs as text. A comparison with 0 is allowed, as it only
says that something was measured; so is the condition of a loop that waits, and figures of a committed profile.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

CLOCKS = {
    f"{clock}{unit}"
    for clock in ("perf_counter", "monotonic", "process_time", "thread_time", "time")
    for unit in ("", "_ns")
}
# Methods that measure, and the names of times in reports and tests.
MEASURES = {"elapsed_since", "elapsed_time", "wall_clock", "host_costs"}
TIMING = re.compile(r"(?:.*_)?(?:ms|us|ns|seconds|elapsed|took|duration)|gbps|gbps_in|gbps_out|tflops|of_ceiling")
# A source without one of these has no time to compare.
WORTH_A_LOOK = re.compile(
    r"perf_counter|monotonic|(?:process|thread)_time|\btime\(|elapsed|wall_clock|host_costs|_(?:ms|us|ns)\b|seconds"
    r"|\btook|duration|gbps|tflops|of_ceiling"
)
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_clock(call: ast.Call) -> bool:
    """Whether a call reads a clock (`time.monotonic()`, `perf_counter()`) or returns a measured time."""
    function = call.func
    if isinstance(function, ast.Attribute):
        of_time = isinstance(function.value, ast.Name) and function.value.id == "time"
        return function.attr in MEASURES or (of_time and function.attr in CLOCKS)
    return isinstance(function, ast.Name) and function.id in (CLOCKS | MEASURES) - {"time"}


def name_of(node: ast.AST) -> str | None:
    """The name under which a value is read: a variable, an attribute, or the key of a mapping."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return None


# Nodes by which a name is given a value.
GIVES = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.FunctionDef, ast.Call)


class Times:
    """The names in a piece of code that hold a measured time, directly or indirectly."""

    def __init__(self, tree: ast.AST) -> None:
        self.nodes = [node for node in ast.walk(tree) if isinstance(node, GIVES)]
        self.names: set[str] = set()
        while self._spread():
            pass

    def measured(self, node: ast.AST) -> bool:
        """Whether an expression holds a measured time. Its subexpressions count, those of nested functions do not."""
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in self.names
            if known or is_clock(node):
                return True
            if isinstance(node.func, ast.Name) and node.func.id in ("len", "set", "isinstance", "type", "str"):
                return False
        name = name_of(node)
        if name is not None and ((name in self.names and isinstance(node, ast.Name)) or TIMING.fullmatch(name)):
            return True
        if isinstance(node, (ast.Lambda, ast.Compare, ast.JoinedStr)):
            return False
        return any(self.measured(child) for child in ast.iter_child_nodes(node))

    def _spread(self) -> bool:
        """Take in the names that are given a time; whether there were new ones."""
        before = len(self.names)
        for node in self.nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and self.measured(node.value):
                    self.names.update(target.id for target in targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.FunctionDef):
                returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value]
                if any(self.measured(value) for value in returned):
                    self.names.add(node.name)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "append"
                and isinstance(node.func.value, ast.Name)
                and any(map(self.measured, node.args))
            ):
                self.names.add(node.func.value.id)
        return len(self.names) > before


def compared_times(source: str) -> Iterator[int]:
    """The lines of a source on which a measured time is compared."""
    if not WORTH_A_LOOK.search(source):
        return
    tree = ast.parse(source)
    times = Times(tree)
    committed = {id(part) for node in ast.walk(tree) if _reads_profiles(node) for part in ast.walk(node)}
    left_out = committed | {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.While) for part in ast.walk(node.test)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and id(node) not in left_out:
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                with_zero = any(isinstance(side, ast.Constant) and side.value == 0 for side in (left, right))
                ordered = isinstance(operator, ORDERED) and not with_zero
                if ordered and (times.measured(left) or times.measured(right)):
                    yield node.lineno
                    break
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            try:
                yield from (node.lineno + line - 1 for line in compared_times(node.value))
            except SyntaxError:
                continue  # not Python


def _reads_profiles(node: ast.AST) -> bool:
    """Whether it is a test of committed figures, which do not depend on the machine that runs the test."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(part, ast.Constant) and part.value == "profiles" for part in ast.walk(node)
    )


FILES = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.name.startswith(("test_", "conftest")))


def test_no_test_asserts_a_time() -> None:
    assert FILES
    found = [
        f"{path.relative_to(ROOT)}:{line}: {path.read_text(encoding='utf-8').splitlines()[line - 1].strip()}"
        for path in FILES
        if path != Path(__file__)
        for line in compared_times(path.read_text(encoding="utf-8"))
    ]
    assert not found, "assert what was done, not how long it took:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "begin = time.perf_counter()\nwork()\nassert time.perf_counter() - begin < 5",
        "from time import monotonic\nbegin = monotonic()\ntook = monotonic() - begin\nassert took < 1",
        "begin = time.process_time_ns()\nused = time.process_time_ns() - begin\nif used > 10:\n    pytest.fail('slow')",
        "samples = []\nsamples.append(time.time() - start)\nassert max(samples) < 2",
        "def timed():\n    return time.monotonic() - 3\nassert timed() < 2 * timed()",
        "assert 0.2 < end.elapsed_since(start) < 3000",
        "assert row['time_ms']['median'] < 5",
        "assert fast['call_us'] < slow['call_us']",
        "assert report.seconds <= other.seconds",
        "assert report.gbps_in > 10",
        "run('import time\\nstart = time.time()\\nassert time.time() - start < 1\\n')",
    ],
)
def test_a_comparison_of_times_is_found(source: str) -> None:
    assert list(compared_times(source))


@pytest.mark.parametrize(
    "source",
    [
        "end = time.monotonic() + 5\nwhile time.monotonic() < end:\n    poll()",
        "assert row['time_ms']['median'] > 0",
        "assert row['time_ms'] is None",
        "assert len(samples_ms) < 5",
        "assert report.chunks < 10",
    ],
)
def test_other_comparisons_are_not(source: str) -> None:
    assert not list(compared_times(source))
