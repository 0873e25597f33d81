"""Build the distributions, install the wheel for several Pythons, and run the README's first commands with each.

    python -m tests.releases python3.11 python3.13

Each Python gets a new virtual environment outside the checkout, and the wheel by pip. The commands are those of the
README's console blocks, in an empty folder with the files that it shows; their exit status and output must be the
README's. Needs the packages of the dev extra.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import pages  # noqa: E402

ROOT = HERE.parent
COMMANDS = 3
FILES = ("scale.cu", "try.py")


def build(into: Path) -> list[Path]:
    """Build the sdist and the wheel, and check them for a package index. Raises CalledProcessError if a step fails."""
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", into, ROOT], check=True)
    built = sorted(into.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    return built


def install(python: str, wheel: Path, folder: Path) -> Path:
    """Install a wheel in a new virtual environment. Returns the folder of its programs."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
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
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="a Python to install for, such as python3.12")
    pythons = parser.parse_args(arguments).pythons
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary) / "dist")
        wheel = next(path for path in built if path.suffix == ".whl")
        for number, python in enumerate(pythons):
            programs = install(python, wheel, Path(temporary) / f"venv{number}")
            version = subprocess.run([programs / "python", "--version"], check=True, capture_output=True, text=True)
            print(f"{version.stdout.strip()}: {wheel.name}", flush=True)
            folder = Path(temporary) / f"work{number}"
            folder.mkdir()
            failures = run_readme(programs, folder)
            print("\n".join(failures) if failures else f"  {COMMANDS} commands passed", flush=True)
            failed = failed or bool(failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
