"""profiles/README.md lists each file of profiles/ with its command, and each result holds that command, its device and
its date, and only names that exist today."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from cudakit import ops
from cudakit.measure.command import command_line

PROFILES = ROOT / "profiles"
PEERS = ROOT / "cudakit" / "measure" / "peers"
PROFILE = "python -m cudakit profile "
BENCH = re.compile(r"python (-m cudakit bench|examples/(gemm|softmax_compare|attention|vector_add|add_2d)\.py) ")
# Files that must be measured again, with the reason. A file that is fine must not be listed.
STALE: dict[str, str] = {}


def _table() -> dict[str, str | None]:
    """Return the command of each file, None for a file without a command. A picture's dark copy is included."""
    lines = (PROFILES / "README.md").read_text(encoding="utf-8").split("| file | command |\n")[1].splitlines()
    commands: dict[str, str | None] = {}
    for line in lines[1:]:
        if not line.startswith("|"):
            break
        files, said = (cell.strip() for cell in line.strip("|").split("|", 1))
        first, *others = re.findall(r"`([^`]+)`", files)
        folder = first.rpartition("/")[0]
        command = re.match(r"`([^`]+)`", said)
        for name in (first, *(f"{folder}/{other}" for other in others)):
            assert name not in commands, f"{name} has two rows"
            commands[name] = command and command[1].replace("NAME", Path(name).stem)
            if name.endswith(".png") and (PROFILES / name).with_suffix(".dark.png").exists():
                commands[name.removesuffix(".png") + ".dark.png"] = commands[name]
    return commands


TABLE = _table()
RESULTS = sorted(name for name, command in TABLE.items() if command and name.endswith(".json"))


def test_each_file_is_in_the_table() -> None:
    files = {str(path.relative_to(PROFILES)) for path in PROFILES.rglob("*") if path.is_file()} - {"README.md"}
    assert sorted(files - set(TABLE)) == [], "add their commands to the table of profiles/README.md"
    assert sorted(set(TABLE) - files) == [], "the table of profiles/README.md names files that do not exist"


def test_a_file_without_a_command_says_why() -> None:
    text = (PROFILES / "README.md").read_text(encoding="utf-8")
    for name in (name for name, command in TABLE.items() if command is None):
        row = next(line for line in text.splitlines() if line.startswith("|") and Path(name).name in line)
        assert re.search(r"\| (not repeated: |written by hand: )", row), f"{name} has no command"


def _problem(name: str) -> str:
    """Return the first thing that is wrong with a result, or ""."""
    report: dict[str, Any] = json.loads((PROFILES / name).read_text(encoding="utf-8"))
    about = report.get("about", report)
    command, said = TABLE[name], about.get("command")
    if not (about.get("device") or about.get("name") or about.get("nvrtc")) or not about.get("date"):
        return "without a device or a date"
    assert command is not None
    if not said:
        return "without a command"
    if command.startswith(PROFILE):
        if not f"{command} ".endswith(f" {said.replace(' --quiet', '')} "):
            return f"a profile of {said!r}, the table has {command!r}"
    elif said != command:
        return f"made by {said!r}, the table has {command!r}"
    return _outdated(report) if BENCH.match(f"{command} ") else ""


def _outdated(report: dict[str, Any]) -> str:
    families, rows = ops.families(), report["rows"]
    cupy = _with_cupy() if report["device"]["kind"] == "gpu" else set()
    for family in dict.fromkeys(row["family"] for row in rows):
        if family not in families:
            return f"{family} is not a family"
        variants = {row["variant"] for row in rows if row["family"] == family}
        known = {variant.name for variant in families[family].variants}
        gone = sorted(
            v for v in variants - known if not v.startswith(("cpu", "peer:")) and v != families[family].ceiling
        )
        if gone:
            return f"{family} has no variant {gone[0]}"
        if family in cupy and "peer:cupy" not in variants:
            return "without peer:cupy"
    return ""


def _with_cupy() -> set[str]:
    """Return the families that CuPy is a peer of. Their products are cuBLAS's, which has a row of its own."""
    named = set(re.findall(r'"(\w+)"', (PEERS / "with_cupy.py").read_text(encoding="utf-8")))
    return (named & set(ops.families())) - {"gemm", "gemm_half"}


@pytest.mark.parametrize("name", RESULTS)
def test_each_result_has_its_command_its_device_and_its_date(name: str) -> None:
    problem = _problem(name)
    if name in STALE:
        assert problem == STALE[name], f"remove {name} from STALE, or correct its reason: {problem or 'it is fine'}"
    else:
        assert problem == "", f"profiles/{name}: {problem}"


def test_every_stale_file_is_a_result() -> None:
    assert set(STALE) <= set(RESULTS)


def test_no_command_names_a_path_of_a_machine() -> None:
    for name, command in TABLE.items():
        for word in (command or "").split():
            assert not re.match(r"/|~|.*=/", word), f"{name}: {word}"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["cudakit/__main__.py", "bench", "sum", "--json", "x", "--once"], "-m cudakit bench sum --once"),
        (["/opt/bin/cudakit", "bench", "sum", "--plot=/tmp/x.png", "--quiet"], "-m cudakit bench sum"),
        (["examples/gemm.py", "--peer-python", "/opt/py/bin/python3"], "examples/gemm.py --peer-python python3"),
        (["/elsewhere/mine.py", "--modes", ",causal", "--note", "a b"], "mine.py --modes ,causal --note 'a b'"),
    ],
)  # fmt: skip
def test_the_command_of_a_process(monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert command_line() == f"python {command}"


def test_an_interpreter_has_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [""])
    assert command_line() == ""
