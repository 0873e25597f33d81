"""Users' projects: the files that `cudakit new` creates, and the three families of examples/your_own, each with one
wrong variant, run through every command and pytest, from the checkout and from a wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from paths import ROOT
from schemas import expect_valid

from cudakit import __main__ as command_line

pytest_plugins = ["pytester"]

YOUR_OWN = ROOT / "examples" / "your_own"
# The wrong variant of each family, and the kernel's line that the report names; the other variants are correct.
WRONG = {
    "histogram": ("per_block_items", "if (mine[bin]) atomicAdd(&counts[bin], mine[bin]);"),
    "stencil": ("strips", "out[r * cols + c] = (here + above + below + left + right) / 5;"),
    "transpose": ("swizzled", "out[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][threadIdx.x ^ i];"),
}
CORRECT = {"histogram": "global_atomics,per_block", "stencil": "direct", "transpose": "naive,tiled"}

Run = Callable[..., tuple[int, str]]


def place_of(name: str) -> str:
    """Return the last place of a family's wrong line: "transpose.cu:34"."""
    lines = (YOUR_OWN / f"{name}.cu").read_text().splitlines()
    return f"{name}.cu:{max(number for number, line in enumerate(lines, 1) if WRONG[name][1] in line)}"


def copied(name: str, folder: Path) -> None:
    """Copy a family's two files, and write its test."""
    for ending in ("cu", "py"):
        shutil.copy(YOUR_OWN / f"{name}.{ending}", folder)
    text = f"from cudakit.testing import kernel_test\nfrom {name} import FAMILY\n\ntest_{name} = kernel_test(FAMILY)\n"
    (folder / f"test_{name}.py").write_text(text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory. Modules imported from it are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(folder, capsys) -> Run:
    """Run a command in this process; return its status and output."""

    def run(*words: str) -> tuple[int, str]:
        status = command_line.main(list(words))
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def expect_each_command_finds(name: str, run: Run) -> None:
    """Check that every command finds the family's wrong variant, names its line, and passes the other variants, and
    that export writes nothing."""
    family, place, (wrong, line) = f"{name}.py:FAMILY", place_of(name), WRONG[name]

    status, _ = run("bench", family, "--device", "sim", "--quiet", "--json", "bench.json")
    rows = [row for row in json.loads(Path("bench.json").read_text())["rows"] if row["variant"] != "cpu"]
    assert status == 1
    assert {row["variant"] for row in rows if row["ok"] is False} == {wrong}
    assert all(row["ok"] for row in rows if row["variant"] != wrong)
    assert any(place in row["why"] for row in rows if row["ok"] is False)

    drawn = ("--examples", "20", "--elements", "1000")
    status, said = run("fuzz", family, "--device", "sim", *drawn)
    assert (status, f"{wrong} on " in said, place in said, line in said) == (1, True, True, True), said
    status, said = run("fuzz", family, "--device", "sim", *drawn, "--variants", CORRECT[name])
    assert status == 0, said

    files = ("--json", "check.json", "--sarif", "check.sarif", "--junit", "check.xml")
    status, _ = run("check", family, "--arch", "sm_90a", "--examples", "20", *files)
    assert status == 1
    [report] = json.loads(Path("check.json").read_text())["reports"]
    assert (report["variant"], report["text"]) == (wrong, line)
    assert place == f"{Path(report['file']).name}:{report['line']}"
    assert Path(report["launched"]["file"]).name == f"{name}.py"
    log = json.loads(Path("check.sarif").read_text())
    expect_valid(log, "check.xml")
    [result] = log["runs"][0]["results"]
    where = result["locations"][0]["physicalLocation"]
    assert place == f"{where['artifactLocation']['uri']}:{where['region']['startLine']}"
    [case] = [case for case in ElementTree.parse("check.xml").iter("testcase") if case.find("failure") is not None]
    assert wrong in case.get("name")
    assert place in case.find("failure").text

    status, said = run("tune", family, "--device", "sim", "--dry-run")
    assert status == 1, said
    [bug] = [part for part in said.split("\n") if part.startswith(("WRONG", "FAILED"))][-1:]
    assert wrong in bug
    assert place in said

    status, said = run("export", family, "--arch", "sm_90a", "-o", "out")
    assert (status, place in said, "NOTHING EXPORTED" in said, Path("out").exists()) == (1, True, True, False), said
    status, said = run("export", family, "--arch", "sm_90a", "-o", "out", "--variants", CORRECT[name])
    assert status == 0, said


def expect_pytest_found(name: str, output: str) -> None:
    """Check that only the wrong variant of a family fails, at its line."""
    for variant in CORRECT[name].split(","):
        assert f"test_{name}.py::test_{name}[{variant}] PASSED" in output, output
    assert f"test_{name}.py::test_{name}[{WRONG[name][0]}] FAILED" in output, output
    assert place_of(name) in output
    assert WRONG[name][1] in output


def test_the_declarations_are_short():
    for name in WRONG:
        lines = (YOUR_OWN / f"{name}.py").read_text().splitlines()
        assert len(lines) <= 45
        assert max(map(len, lines)) <= 88


def test_every_command_finds_a_wrong_variant_and_its_line(folder, run):
    """One family here; the longer test with an installed wheel runs the others too."""
    copied("stencil", folder)
    expect_each_command_finds("stencil", run)


def test_pytest_finds_the_wrong_variants_and_their_lines(folder, pytester):
    for name in WRONG:
        copied(name, pytester.path)
    result = pytester.runpytest_inprocess("-p", "cudakit.pytest_plugin", "--cudakit-device=sim", "-v")
    for name in WRONG:
        expect_pytest_found(name, result.stdout.str())


# A new project -------------------------------------------------------------------------------------------------------


def test_every_command_works_in_a_new_project(folder, run):
    status, said = run("new", "rows", "--folder", ".")
    assert status == 0
    assert said.splitlines()[-1] == "Try: cudakit bench rows.py:FAMILY"
    for words in (
        "bench rows.py:FAMILY --device sim",
        "fuzz rows.py:FAMILY --device sim --examples 20 --elements 1000",
        "check rows.py:FAMILY --arch sm_90a --examples 20",
        "tune rows.py:FAMILY --device sim --dry-run",
        "export rows.py:FAMILY --arch sm_90a -o out",
    ):
        status, said = run(*words.split())
        assert status == 0, said
    assert (folder / "out" / "rows.h").exists()


def test_the_folder_of_a_new_project_is_its_name(folder, run):
    status, said = run("new", "rows")
    assert status == 0
    assert "cd rows && " in said
    made = {path.relative_to(folder / "rows").as_posix() for path in (folder / "rows").rglob("*") if path.is_file()}
    assert made == {
        "rows.cu", "rows.py", "test_rows.py", "README.md", "requirements.txt", ".github/workflows/kernels.yml",
    }  # fmt: skip
    for path in made:
        text = (folder / "rows" / path).read_text()
        assert "@name@" not in text
        assert "@version@" not in text


@pytest.mark.parametrize("name", ["9rows", "my-rows", "class", "", "a.b", "../rows", "grün", "__main__", "r" * 300])
def test_a_name_that_is_not_an_identifier_is_refused(name, folder, run):
    status, said = run("new", name)
    assert status == 2
    assert "cannot name a module" in said
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["random", "numpy", "cudakit", "conftest"])
def test_the_name_of_another_module_is_refused(name, folder, run):
    status, said = run("new", name)
    assert status == 2
    assert "the name of another module" in said
    assert not list(folder.iterdir())


def test_files_that_exist_are_kept(folder, run):
    (folder / "test_rows.py").write_text("mine")
    status, said = run("new", "rows", "--folder", ".")
    assert status == 2
    assert "test_rows.py exists already, and nothing was written" in said
    assert [path.name for path in folder.iterdir()] == ["test_rows.py"]
    assert (folder / "test_rows.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused(folder, run):
    (folder / "rows").write_text("a file")
    status, said = run("new", "rows")
    assert status == 2
    assert "rows cannot be created: " in said
    assert [path.name for path in folder.iterdir()] == ["rows"]


# The wheel -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A folder that contains only the unpacked wheel of this checkout."""
    built = tmp_path_factory.mktemp("wheel")
    if importlib.util.find_spec("hatchling") is not None:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    else:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(built), str(ROOT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no wheel can be built: hatchling is in the `test` extra. {done.stderr[-300:]}")
    [file] = built.glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def installed(wheel, folder) -> Run:
    """Run Python with the wheel's cudakit in an empty folder; return the status and output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(wheel),
        "CUDAKIT_DEVICE": "sim",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:xdist",
    }

    def python(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=300)
        return done.returncode, done.stdout + done.stderr

    _, said = python("-c", "import cudakit; from cudakit.compile import headers; print(headers.kernel_root())")
    assert Path(said.strip()) == wheel / "cudakit" / "kernels"
    return lambda *words: python("-m", *words)


@pytest.mark.long
def test_an_installed_wheel_finds_the_wrong_variants_without_the_checkout(installed, folder):
    for name in WRONG:
        copied(name, folder)
    for name in WRONG:
        expect_each_command_finds(name, lambda *words: installed("cudakit", *words))
        shutil.rmtree("out")
    status, said = installed("pytest", "-v")
    assert status == 1
    for name in WRONG:
        expect_pytest_found(name, said)


def test_the_workflow_of_a_new_project_passes_with_an_installed_wheel(installed, folder):
    yaml = pytest.importorskip("yaml", reason="the `test` extra has pyyaml, which reads the workflow")
    status, said = installed("cudakit", "new", "rows", "--folder", ".")
    assert status == 0, said
    workflow = yaml.safe_load((folder / ".github" / "workflows" / "kernels.yml").read_text())
    steps = [shlex.split(step["run"]) for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    install, check, test = steps
    assert install == ["python", "-m", "pip", "install", "-r", "requirements.txt"]
    status, said = installed(*check, "--examples", "20")
    assert status == 0, said
    assert "2 of 2 kernels checked" in said
    expect_valid(json.loads(Path("kernels.sarif").read_text()), "kernels.xml")
    assert test[:2] == ["python", "-m"]
    status, said = installed(*test[2:], "-q")
    assert status == 0, said
    assert "3 passed" in said
