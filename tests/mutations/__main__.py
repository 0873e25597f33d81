"""Runs the mutations; prints one line per mutation, then the survivors with their diffs, then a table.

    python -m tests.mutations --jobs 16 --json mutations.json --against former.json

Exit status: 0 if every mutation was detected or is recorded as equivalent, 1 if one survived or the record is out of
date, 2 if a test fails without a mutation.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.mutations import named, record
from tests.mutations.draw import Mutation, drawn
from tests.mutations.groups import FUZZ, Group, groups_of
from tests.mutations.judging import Outcome, judge, run_tests
from tests.mutations.trees import Tree

ROOT = Path(__file__).resolve().parents[2]
# The slowest run first: started last, they would delay the end.
_SLOW = ("gemm_half", "attention", "common", "gemm", "softmax_backward", "streamed", "ladder", "calls")


def main(arguments: argparse.Namespace) -> int:
    errors, missing = named.mutations(ROOT)
    mutations = errors + drawn(ROOT, arguments.seed)
    chosen = [m for m in mutations if not arguments.only or any(word in m.name for word in arguments.only)]
    if arguments.list:
        for m in chosen:
            print(f"{m.name}\n    - {m.before}\n    + {m.after}")
        return 0
    entries = record.read()
    stale = missing + record.stale(ROOT, entries)
    before = _former(arguments.against)
    outcomes: dict[Mutation, Outcome] = {}
    waiting = []
    for m in chosen:
        if m.key in entries and not arguments.recheck:
            outcomes[m] = Outcome("equivalent", why=entries[m.key])
        elif before.get(m.key) == "killed":
            outcomes[m] = Outcome("killed", why="in the earlier run")
        else:
            waiting.append(m)
    waiting.sort(key=lambda m: next((n for n, word in enumerate(_SLOW) if word in m.file), len(_SLOW)))
    broken = _run_all(waiting, outcomes, arguments)
    for m, outcome in outcomes.items():
        if outcome.status == "killed" and outcome.by in broken:
            outcomes[m] = Outcome("unproven", outcome.by, "this test fails without the mutation too", outcome.seconds)
        elif outcome.status == "survived" and m.key in entries:
            outcomes[m] = Outcome("equivalent", why=entries[m.key])
        elif outcome.status in ("killed", "hung") and m.key in entries:
            stale.append(f"{m.name} is recorded as equivalent, but {outcome.by} detects it")
    if arguments.json:
        _write(arguments, outcomes, stale, broken)
    return _report(outcomes, stale, broken)


def _run_all(waiting: list[Mutation], outcomes: dict[Mutation, Outcome], arguments: argparse.Namespace) -> list[str]:
    """Judge each mutation, and run the same tests without mutations. Returns the tests that fail without one."""
    groups: dict[Mutation, tuple[Group, ...]] = {m: groups_of(ROOT, m.file) for m in waiting}
    used = {group for found in groups.values() for group in found}
    plain = [] if arguments.no_baseline else sorted({(FUZZ,) if group[0] == FUZZ else group for group in used})
    place = Path(tempfile.mkdtemp(prefix="mutations-"))
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    broken: list[str] = []
    begin, total = time.monotonic(), len(waiting)

    def without(group: Group) -> None:
        tree = trees.get()
        try:
            result = run_tests(tree, group, stop=False)
        finally:
            trees.put(tree)
        if result.code:
            broken.extend(result.failed or [" ".join(group)])
            print(f"FAILS WITHOUT A MUTATION: {' '.join(group)}: {', '.join(result.failed)} {result.why}", flush=True)

    def one(m: Mutation) -> None:
        tree = trees.get()
        try:
            outcome = judge(tree, m, groups[m])
        finally:
            trees.put(tree)
        outcomes[m] = outcome
        done = sum(other in outcomes for other in waiting)
        by = outcome.by or outcome.why
        print(f"{done:3}/{total} {outcome.status:8} {outcome.seconds:5.1f} s  {m.name}  {by}", flush=True)

    try:
        for number in range(max(1, min(arguments.jobs, total + len(plain)))):
            trees.put(Tree(ROOT, place / f"tree{number}"))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            # The runs without mutations go first: they compile the kernels that all runs share.
            work = [pool.submit(without, group) for group in plain] + [pool.submit(one, m) for m in waiting]
            for job in work:
                job.result()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{total} mutations in {time.monotonic() - begin:.0f} s with {arguments.jobs} jobs")
    return broken


def _former(path: str | None) -> dict[tuple[str, str, str], str]:
    if not path:
        return {}
    found = json.loads(Path(path).read_text(encoding="utf-8"))["mutations"]
    return {(entry["file"], entry["before"], entry["after"]): entry["status"] for entry in found}


def _write(
    arguments: argparse.Namespace, outcomes: dict[Mutation, Outcome], stale: list[str], broken: list[str]
) -> None:
    entries: list[dict[str, Any]] = [
        {
            "file": m.file, "line": m.line, "kind": m.kind, "before": m.before, "after": m.after,
            "status": outcome.status, "by": outcome.by, "why": outcome.why, "seconds": round(outcome.seconds, 1),
        }
        for m, outcome in outcomes.items()
    ]  # fmt: skip
    result = {"seed": arguments.seed, "mutations": entries, "stale": stale, "broken": broken}
    text = json.dumps(result, indent=1) + "\n"
    if arguments.json == "-":
        print(text)
    else:
        Path(arguments.json).write_text(text, encoding="utf-8")


def _report(outcomes: dict[Mutation, Outcome], stale: list[str], broken: list[str]) -> int:
    survivors = [m for m, outcome in outcomes.items() if outcome.status == "survived"]
    for m in survivors:
        print(f"\nSURVIVED {m.file}:{m.line} ({m.kind})\n    - {m.before}\n    + {m.after}")
    for line in stale:
        print(f"\nRECORD: {line}")
    folders = sorted({"/".join(m.file.split("/")[:2]) for m in outcomes})
    statuses = ("killed", "hung", "equivalent", "invalid", "unproven", "survived")
    print(f"\n{'':28}" + "".join(f"{status:>12}" for status in statuses))
    for folder in [*folders, "all"]:
        of = Counter(
            outcome.status for m, outcome in outcomes.items() if folder == "all" or m.file.startswith(f"{folder}")
        )
        print(f"{folder:28}" + "".join(f"{of[status]:>12}" for status in statuses))
    if broken:
        print(f"\n{len(broken)} tests fail without a mutation, for example {broken[0]}: their kills do not count")
        return 2
    return 1 if survivors or stale else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the seed of drawn mutations (default: 1)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="how many run at once")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only mutations whose name contains this text")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes; - for standard output")
    parser.add_argument("--against", metavar="FILE", help="skip mutations that were killed in this earlier run")
    parser.add_argument("--recheck", action="store_true", help="also run mutations that are recorded as equivalent")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutation")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    sys.exit(main(parser.parse_args()))
