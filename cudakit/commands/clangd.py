"""`cudakit clangd`: configure an editor's clangd to read a folder's kernels as NVRTC does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cudakit.commands import cli, files
from cudakit.compile import clangd, compiler
from cudakit.errors import Refused
from cudakit.show import outputs, terminal

HELP = """\
Writes FOLDER/.clangd, so that an editor's clangd reads NVRTC kernels.

It applies to .cu and .cuh files in the folder and its subfolders; other files are not affected."""

STANDARDS = ("c++11", "c++14", "c++17", "c++20", "c++23")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", help="the folder of the kernels (default: the current one)")
    parser.add_argument("--arch", default="sm_90a", help="the architecture (default: sm_90a)")
    parser.add_argument("--std", choices=STANDARDS, default="c++17", help="the C++ standard (default: c++17)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("--include", action="append", default=[], metavar="DIR", help="a folder of headers")
    parser.add_argument(
        "--add", action="store_true", help="add a section to a .clangd that cudakit did not write; its text is kept"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the arguments, one per line as in compile_flags.txt; write no file"
    )


def main(arguments: argparse.Namespace) -> int:
    """`cudakit clangd`."""
    folder = Path(arguments.folder).expanduser().absolute()
    given = clangd.arguments(_request(arguments, folder))
    if arguments.print:
        sys.stdout.write("".join(f"{argument}\n" for argument in given))
        return cli.EXIT_OK
    path = folder / ".clangd"
    text = clangd.merged(outputs.read_text(path) if path.exists() else "", given, add=arguments.add)
    if text is None:
        raise Refused(f"{path} exists, and cudakit did not write it: --add adds a section and keeps the rest")
    outputs.write_file(path, text)
    terminal.say(f"{path}: clangd reads .cu and .cuh files as NVRTC does for {arguments.arch}")
    return cli.EXIT_OK


def _request(arguments: argparse.Namespace, folder: Path) -> compiler.Request:
    """Return the compile request for a file in the folder."""
    for directory in (folder, *map(Path, arguments.include)):
        if not directory.expanduser().is_dir():
            raise Refused(
                f"{directory} is not a folder: name the folder of your kernels, or --include a folder of headers"
            )
    files.expect_defines(arguments)
    defines = dict(pair.partition("=")[::2] for pair in arguments.define)
    try:
        return compiler.request(
            "",
            name=str(folder / "kernel.cu"),
            arch=arguments.arch,
            defines={name: value or None for name, value in defines.items()},
            include=[Path(directory).expanduser() for directory in arguments.include],
            std=arguments.std,
        )
    except ValueError as error:
        raise Refused(str(error)) from error
