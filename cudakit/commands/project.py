"""`cudakit new`: a project with a kernel, its declaration, its test and a GitHub workflow."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
from importlib import resources
from pathlib import Path

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.show import outputs, terminal

HELP = """Creates a project: a kernel, its declaration, its test and a GitHub workflow.

    cudakit new scale                the folder scale
    cudakit new scale --folder .     this folder

NAME.cu has two kernels that work, NAME.py declares them as FAMILY, test_NAME.py fuzzes them. README.md lists the
commands. Replace the kernels and the reference with your own.
"""

#: The files of a project and their templates.
FILES = {
    "@name@.cu": "kernel.cu",
    "@name@.py": "family.py",
    "test_@name@.py": "test_family.py",
    "README.md": "README.md",
    "requirements.txt": "requirements.txt",
    ".github/workflows/kernels.yml": "kernels.yml",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("name", help="name of the family, its files and its folder: a Python identifier")
    parser.add_argument("--folder", help="folder for the files; may exist (default: NAME)")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    _expect_identifier(arguments.name)
    folder = Path(arguments.name if arguments.folder is None else arguments.folder).expanduser()
    made = {folder / _filled(path, arguments): _template(text, arguments) for path, text in FILES.items()}
    there = [str(path) for path in made if path.exists() or path.is_symlink()]
    if there:
        exist = "exists" if len(there) == 1 else "exist"
        raise Refused(f"{', '.join(there)} {exist} already, and nothing was written: choose another name or --folder")
    _expect_unused(arguments.name)
    for path, text in made.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"{path.parent} cannot be created: {outputs.reason(error)}") from error
        outputs.write_file(path, text)
        terminal.say(str(path))
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    terminal.say(f"Try: {where}cudakit bench {arguments.name}.py:FAMILY")
    return cli.EXIT_OK


def _expect_identifier(name: str) -> None:
    """Raise Refused for a name that is invalid for a module and its test."""
    if not re.fullmatch(r"(?!__)[A-Za-z_]\w{0,99}", name, re.ASCII) or keyword.iskeyword(name):
        raise Refused(f"{name!r} cannot name a module: write up to 100 letters, digits and _, such as row_norm")


def _expect_unused(name: str) -> None:
    """Raise Refused if the project would hide another module of the same name, unless that module is in this folder."""
    spec = importlib.util.find_spec(name)
    origin = None if spec is None else spec.origin  # None for a folder without __init__.py
    if name == "conftest" or (origin is not None and Path(origin).parent != Path.cwd()):
        raise Refused(f"{name!r} is the name of another module, which {name}.py would hide: choose another")


def _template(template: str, arguments: argparse.Namespace) -> str:
    file = resources.files("cudakit.commands") / "templates" / f"{template}.txt"
    return _filled(file.read_text(encoding="utf-8"), arguments)


def _filled(text: str, arguments: argparse.Namespace) -> str:
    return text.replace("@name@", arguments.name).replace("@version@", arguments.version)
