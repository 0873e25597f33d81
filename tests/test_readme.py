"""The README tells the truth: its own kernel runs, and what it shows as output is output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from differential.table import markdown as conformance_table
from planted.table import table as planted_table

from cudakit import __main__ as command_line

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", README, re.MULTILINE)]


def block(start):
    found = [text.strip("\n") for text in BLOCKS if text.strip("\n").startswith(start)]
    assert len(found) == 1, f"the README has {len(found)} blocks that start with {start!r}"
    return found[0]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the README's script, changed if asked, on the simulated device; gives the finished process."""

    def run(kernel=lambda text: text, script=lambda text: text):
        (tmp_path / "scale.cu").write_text(kernel(block("// x, y: (n,)")) + "\n")
        (tmp_path / "try.py").write_text(script(block("import numpy as np")) + "\n")
        monkeypatch.setenv("CUDAKIT_DEVICE", "sim")
        return subprocess.run([sys.executable, "try.py"], cwd=tmp_path, capture_output=True, text=True)

    return run


def test_the_first_kernel_runs(run):
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0. 2. 4. 6. 8.]\n"


def test_the_refusal_is_real(run):
    done = run(script=lambda text: text.replace("np.float32", "np.float64"))
    assert done.returncode != 0
    assert block("LaunchError") in done.stderr


def test_the_report_is_real(run, tmp_path):
    done = run(kernel=lambda text: text.replace("i < n", "i <= n"))
    assert done.returncode != 0
    said = re.sub(rf"{tmp_path}/", "", done.stderr)
    assert block("out of bounds") in said


def test_the_race_report_is_real(tmp_path):
    (tmp_path / "count.cu").write_text(
        "__global__ void count(int* total) {\n    if (threadIdx.x == 0) *total = *total + 1;\n}\n"
    )
    script = """
    import numpy as np
    import cudakit

    dev = cudakit.Device("sim")
    count = dev.compile("count.cu")["count"]
    total = dev.array(np.zeros(1, np.int32))
    count.launch(dev.default_stream, grid=2, block=32, args=(total,))
    dev.synchronize()
    """
    (tmp_path / "count.py").write_text(textwrap.dedent(script).lstrip())
    done = subprocess.run([sys.executable, "count.py"], cwd=tmp_path, capture_output=True, text=True)
    assert block("global memory race") in re.sub(rf"{tmp_path}/", "", done.stderr), done.stderr


def test_tables_are_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = [str(page) for page in (Path("README.md"), *Path("profiles").rglob("*.md"))]
    assert command_line.main(["fill", "--check", *pages]) == 0, "run: python -m cudakit fill " + " ".join(pages)


def test_the_tables_of_the_simulated_device_are_up_to_date():
    profiles = ROOT / "profiles" / "h200"
    found = conformance_table(json.loads((profiles / "conformance.json").read_text()))
    assert (profiles / "conformance.md").read_text() == found + "\n"
    assert (profiles / "planted.md").read_text() == planted_table(json.loads((profiles / "planted.json").read_text()))


@pytest.mark.parametrize("command", ["info", "compile", "check", "bench", "fuzz", "profile", "fill"])
def test_the_commands_it_names_are_there(command, capsys):
    assert f"python -m cudakit {command} " in README
    with pytest.raises(SystemExit) as ended:
        command_line.main([command, "--help"])
    assert ended.value.code == 0


def test_it_names_the_two_commands():
    venv = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert f"    {venv} . && .venv/bin/python examples/softmax_compare.py\n" in README
    assert f"    {venv} '.[test]' && .venv/bin/pytest\n" in README


def test_the_files_it_names_are_there():
    for name in re.findall(r"(?:cudakit|kernels|tests|examples|profiles)/[\w/]+\.\w+", README):
        assert (ROOT / name).exists() or name == "kernels/softmax/16_mine.cu", name
