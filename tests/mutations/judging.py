"""Judges one mutation: runs the tests that could detect it, without a GPU, in a copy of the tree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.mutations.draw import Mutation
from tests.mutations.groups import Group
from tests.mutations.trees import Tree

LIMIT_S = 400  # per run of pytest: far more than any of them needs
_NO_COMPILE = re.compile(r"NVRTC_ERROR_COMPILATION|CompileError")
_NO_TESTS = 5  # pytest's exit status if it collected no tests


@dataclass
class Outcome:
    """status: "killed", "hung", "survived", "equivalent", or "invalid" (it does not compile, or has no tests). by: the
    first test that failed."""

    status: str
    by: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass
class Result:
    """One run of pytest: its exit status (None if it timed out), the failed tests, the first one's message."""

    code: int | None
    failed: list[str] = field(default_factory=list)
    why: str = ""


def judge(tree: Tree, mutation: Mutation, groups: tuple[Group, ...]) -> Outcome:
    """Return the outcome of a mutation, which is applied to `tree` and reverted."""
    begin = time.monotonic()
    outcome = Outcome("survived" if groups else "invalid", why="" if groups else "this file has no tests in groups.py")
    with tree.mutated(mutation):
        for group in groups:
            result = run_tests(tree, group)
            if result.code == _NO_TESTS:
                continue
            if result.code is None:
                outcome = Outcome("hung", " ".join(group), f"over {LIMIT_S} s")
            elif result.code:
                compiles = mutation.file.endswith(".py") or not _NO_COMPILE.search(result.why)
                by = result.failed[0] if result.failed else " ".join(group)
                outcome = Outcome("killed" if compiles else "invalid", by, result.why)
            else:
                continue
            break
    outcome.seconds = time.monotonic() - begin
    return outcome


def run_tests(tree: Tree, group: Group, *, stop: bool = True) -> Result:
    """Run pytest on a group of tests in a tree; `stop` ends it at the first failure."""
    command = [
        sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.mutations.quick",
        "-m", "not gpu", "--tb=line", *(["-x"] if stop else []), *group,
    ]  # fmt: skip
    cache = os.environ.get("CUDAKIT_CACHE_DIR", str(tree.root / ".pytest_cache" / "kernels"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tree.place), os.environ.get("PYTHONPATH")))),
        "CUDAKIT_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "200",
    }  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tree.place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, errors="replace",
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Result(None)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", text, re.MULTILINE)
    reason = re.search(r"^(?:FAILED|ERROR) \S.*? - (.*)$", text, re.MULTILINE)
    return Result(
        process.returncode, failed, reason[1][:200] if reason else text.strip()[-200:] if process.returncode else ""
    )
