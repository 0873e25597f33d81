"""Runs every planted case under compute-sanitizer on a GPU, and on the simulated device.

    cd tests && python -m planted.sanitize --json ../profiles/h200/planted.json

Each wrong half runs in its own process per tool; the right halves run one after another, in one process per tool until
one loses the device, the rest in another process.
Runs that hang are stopped after a time limit. `python -m planted.table FILE.json` prints a table of the results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cudakit
from cudakit.measure.command import command_line
from cudakit.sim import DEFAULT_CHECKS

from . import CASES, Case, seen_by_sim
from .verdicts import Verdict, by_case, read

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CHECKOUT = Path(__file__).resolve().parents[2]
# option to value; options that `compute-sanitizer --help` does not list are omitted
OPTIONS = {"print-limit": "20", "show-backtrace": "no", "launch-timeout": "60", "max-connections": "64"}
OF_TOOL = {"memcheck": {"track-stream-ordered-races": "all"}}
# These may run until the time limit and keep the GPU busy, so they start last and have a lower limit.
STUCK = {
    "hang", "endless loop", "deadlock", "divergent barrier", "lanes missing from a warp operation", "wrong member mask"
}  # fmt: skip
NOT_RUN: dict[str, Any] = {"finding": None, "places": [], "others": [], "errors": 0, "raw": []}
EXPIRED = "the kernel would hang"  # printed by a case that ended a wait itself


def main(
    registry: Mapping[str, Case] = CASES,
    runner: str = "planted.run",
    stuck: Set[str] = STUCK,
    checks: Set[str] = DEFAULT_CHECKS,
) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", nargs="*", default=list(registry), metavar="CASE")
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="FILE",
        help="an earlier run: its verdicts on wrong halves are reused, and all of its verdicts on cases not in --only",
    )
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for one wrong half")
    parser.add_argument("--stuck", type=float, default=10, help="seconds for a wrong half that may hang")
    parser.add_argument("--budget", type=float, default=330, help="seconds after which no further process starts")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--unsimulated", action="store_true", help="do not run the simulated device")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "compute-sanitizer")
    options = parser.parse_args()
    begun = time.monotonic()
    cases = [registry[name] for name in options.only]
    # Runs first: it compiles every kernel into the cache that the other processes share.
    ours = {
        case.name: {
            half: NOT_RUN if options.unsimulated else _ours(case, half == "wrong", checks)
            for half in ("wrong", "right")
        }
        for case in cases
    }
    known = subprocess.run([options.sanitizer, "--help"], capture_output=True, text=True, check=True).stdout
    print(f"simulated in {time.monotonic() - begun:.0f} s", flush=True)

    def under(tool: str, names: list[str], half: str, timeout: float, more: dict[str, str]) -> tuple[str, bool, float]:
        if time.monotonic() - begun > options.budget:
            return "", False, 0.0
        flags = {**OPTIONS, **OF_TOOL.get(tool, {}), **more}
        said = [text for option, value in flags.items() if f"--{option}" in known for text in (f"--{option}", value)]
        program = [sys.executable, "-m", runner, half, *names, "--device", options.device]
        return _watched([options.sanitizer, "--tool", tool, *said, *program], timeout)

    before = json.loads(options.merge.read_text()) if options.merge else None
    earlier = {row["name"]: row for row in before["cases"]} if before else {}
    verdicts = {name: row["wrong"] for name, row in earlier.items()}

    def wrong(job: tuple[str, Case]) -> dict[str, Any]:
        tool, case = job
        known_already: dict[str, Any] = verdicts.get(case.name, {}).get(tool, {})
        if known_already.get("finding") is not None:
            return known_already
        more = {"leak-check": "full"} if tool == "memcheck" and case.kind == "leak" else {}
        limit = options.stuck if case.kind in stuck else options.timeout
        output, stopped, seconds = under(tool, [case.name], "wrong", limit, more)
        return _verdict(output, stopped, seconds)

    def right(tool: str) -> dict[str, str]:
        said: dict[str, str] = {}
        while left := [case.name for case in cases if case.name not in said]:
            limit = max(options.budget - (time.monotonic() - begun), 60.0)
            output, stopped, _ = under(tool, left, "right", limit, {})
            more = by_case(output)
            if stopped and more:
                more.popitem()  # the last case has not ended
            if not more:
                break
            said |= more
        return said

    order = sorted(cases, key=lambda case: (case.kind in stuck, case.host is not None))
    jobs = [(tool, case) for case in order for tool in options.tools]
    with ThreadPoolExecutor(options.jobs) as pool:
        rights = [pool.submit(right, tool) for tool in options.tools]
        wrongs = dict(zip(((t, c.name) for t, c in jobs), pool.map(wrong, jobs), strict=True))
        right_of = {tool: future.result() for tool, future in zip(options.tools, rights, strict=True)}
    rows = [
        {
            "name": case.name,
            "class": case.kind,
            "idea": case.idea,
            "file": case.file.name,
            "marked": sorted(case.marked("BUG")),
            "wrong": {"sim": ours[case.name]["wrong"], **{t: wrongs[t, case.name] for t in options.tools}},
            "right": {
                "sim": ours[case.name]["right"],
                **{t: _verdict(right_of[t].get(case.name, ""), False, None) for t in options.tools},
            },
        }
        for case in cases
    ]
    with cudakit.Device(options.device) as device:
        info = device.info()
    version = subprocess.run([options.sanitizer, "--version"], capture_output=True, text=True).stdout.strip()
    kept = {name: row for name, row in earlier.items() if name not in options.only}
    if before and kept:
        # the record is that of the earlier device; rows of another one name it
        for row in rows:
            if info["name"] != before["device"]["name"]:
                row["device"] = info["name"]
        made = {row["name"]: row for row in rows}
        rows = [made.get(name) or kept[name] for name in registry if name in made or name in kept]
        info = before["device"]
    told = {
        "device": info,
        "date": datetime.date.today().isoformat(),
        "command": command_line(),
        "sanitizer": version.splitlines()[-1:],
        "seconds": round(time.monotonic() - begun),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**told, "cases": rows}, indent=1) + "\n")
    print(f"{len(rows)} cases in {told['seconds']} s: {options.json}")
    return 0


def _ours(case: Case, wrong: bool, checks: Set[str]) -> dict[str, Any]:
    seen = seen_by_sim(case, wrong, checks=checks)
    at = [f"{Path(file).name}:{line}" for file, line in seen.lines]
    return {"finding": seen.kind, "places": at, "others": [f"{Path(f).name}:{n}" for f, n in seen.others]}


def _watched(command: list[str], timeout: float) -> tuple[str, bool, float]:
    """Return a command's output, whether it was stopped at the time limit, and its seconds."""
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, stopped = process.communicate(timeout=timeout)[0], False
        except subprocess.TimeoutExpired:
            # also kill its children: the tool is the parent of the program that hangs
            os.killpg(process.pid, signal.SIGKILL)
            output, stopped = process.communicate()[0], True
    return output, stopped, time.monotonic() - begun


def _verdict(output: str, stopped: bool, seconds: float | None) -> dict[str, Any]:
    if not output and not stopped:
        return NOT_RUN
    verdict: Verdict = read(output)
    finding = verdict.finding or ("hang" if stopped or EXPIRED in output else "")
    said = [line for line in output.splitlines() if line and not line.startswith("=========")]
    said = [line.replace(f"{CHECKOUT}/", "") for line in said]
    return {
        "finding": finding,
        "places": list(verdict.places),
        "errors": verdict.errors,
        "stopped": stopped,
        "seconds": None if seconds is None else round(seconds, 1),
        "raw": list(verdict.raw),
        "program": said[-3:],
    }


if __name__ == "__main__":
    sys.exit(main())
