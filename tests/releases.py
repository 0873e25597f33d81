"""Build the distributions, install the wheel for several Pythons, and run the README's first commands with each.

    python -m tests.releases
    python -m tests.releases python3.11 python3.13

Without arguments, the Pythons are those of the classifiers in pyproject.toml that are on the PATH or that pyenv has.
Each Python gets a new virtual environment outside the checkout, and the wheel by pip: the first one with the oldest
dependencies that the wheel allows, the others with the newest. The commands are those of the README's console blocks,
in an empty folder with the files that it shows; their exit status and output must be the README's. Needs the packages
of the dev extra.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import pages  # noqa: E402

ROOT = HERE.parent
COMMANDS = 3
FILES = ("scale.cu", "try.py")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(into: Path) -> list[Path]:
    """Build the sdist and the wheel, and check them for a package index. Raises CalledProcessError if a step fails."""
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", into, ROOT], check=True)
    built = sorted(into.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    return built


def works(python: str) -> bool:
    """Return whether a Python starts. pyenv has a program for each version, which fails for a version not selected."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def listed() -> list[str]:
    """Return the Pythons of the classifiers, as commands, if this machine has them."""
    found = []
    for classifier in PROJECT["classifiers"]:
        if not (match := re.search(r":: Python :: (3\.\d+)$", classifier)):
            continue
        candidates = [f"python{match[1]}"]
        if shutil.which("pyenv"):
            asked = subprocess.run(["pyenv", "prefix", match[1]], capture_output=True, text=True)
            candidates += [f"{asked.stdout.strip()}/bin/python"] if asked.returncode == 0 else []
        if one := next(filter(works, candidates), None):
            found.append(one)
        else:
            print(f"Python {match[1]} is not on this machine", flush=True)
    return found


def oldest() -> list[str]:
    """Return the lowest release of each dependency that the project allows, as requirements: numpy==2.1.*"""
    due = []
    for requirement in PROJECT["dependencies"]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        due.append(f"{name}=={bound}.*" if "." in bound else f"{name}=={bound}.0.*")
    return due


def install(python: str, wheel: Path, folder: Path, others: Sequence[str] = ()) -> Path:
    """Install a wheel and other requirements in a new virtual environment. Returns the folder of its programs."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", wheel, *others], check=True)
    return programs


def run_readme(programs: Path, folder: Path) -> list[str]:
    """Run the README's first commands in `folder`. Returns the failures, as text; prints each command."""
    blocks = pages.read(ROOT / "README.md")
    for block in blocks:
        comment, _, name = block.text.partition("\n")[0].partition(" ")
        if comment in ("//", "#") and name in FILES:
            (folder / name).write_text(block.text, encoding="utf-8")
    shown = (command for block in blocks if block.language == "console" for command in pages.commands(block))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    failures, count = [], 0
    for command, status, output in islice(shown, COMMANDS):
        print(f"  $ {command}", flush=True)
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, text=True, timeout=600, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        found = done.stdout.replace(f"{folder}/", "")
        # the first line names the device, if it is simulated
        found = "".join(line for line in found.splitlines(keepends=True) if not line.startswith("cudakit: no GPU"))
        if done.returncode != status or not pages.alike(output, found):
            failures.append(f"$ {command}\nexit status {done.returncode}\n{pages.difference(output, found)}")
        count += 1
    if count < COMMANDS:
        failures.append(f"the README shows {count} commands, not {COMMANDS}")
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns 0 if every command did what the README says, with every Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="a Python to install for, such as python3.12")
    pythons = parser.parse_args(arguments).pythons or listed()
    failed = not pythons
    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary) / "dist")
        wheel = next(path for path in built if path.suffix == ".whl")
        for number, python in enumerate(pythons):
            bounds = oldest() if number == 0 else []
            programs = install(python, wheel, Path(temporary) / f"venv{number}", bounds)
            version = subprocess.run([programs / "python", "--version"], check=True, capture_output=True, text=True)
            print(" ".join([f"{version.stdout.strip()}: {wheel.name}", *bounds]), flush=True)
            folder = Path(temporary) / f"work{number}"
            folder.mkdir()
            failures = run_readme(programs, folder)
            print("\n".join(failures) if failures else f"  {COMMANDS} commands passed", flush=True)
            failed = failed or bool(failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
