"""Names and paths in the README exist. Its code and tables are checked in test_docs.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from differential.table import markdown as conformance_table
from paths import ROOT
from planted.table import table as planted_table

from cudakit import __main__ as command_line

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_in_profiles_are_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = ["README.md", *(str(page) for page in Path("profiles").rglob("*.md"))]
    assert command_line.main(["fill", "--check", *pages]) == 0, "run: python -m cudakit fill " + " ".join(pages)


def test_the_tables_of_the_simulated_device_are_up_to_date():
    profiles = ROOT / "profiles" / "h200"
    found = conformance_table(json.loads((profiles / "conformance.json").read_text()))
    assert (profiles / "conformance.md").read_text() == found + "\n"
    assert (profiles / "planted.md").read_text() == planted_table(json.loads((profiles / "planted.json").read_text()))


@pytest.mark.parametrize(
    "command", ["info", "compile", "check", "bench", "fuzz", "tune", "profile", "export", "new", "fill"]
)
def test_the_commands_it_names_are_there(command, capsys):
    assert f"    cudakit {command} " in README
    with pytest.raises(SystemExit) as ended:
        command_line.main([command, "--help"])
    assert ended.value.code == 0


def test_it_names_the_two_commands():
    venv = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert f"    {venv} . && .venv/bin/python examples/softmax_compare.py\n" in README
    assert f"    {venv} '.[test]' && .venv/bin/pytest\n" in README


def test_the_files_it_names_are_there():
    for name in re.findall(r"(?:cudakit|kernels|tests|examples|profiles|docs)/[\w/]+(?:\.\w+)+", README):
        assert (ROOT / name).exists() or name == "kernels/softmax/16_mine.cu", name
