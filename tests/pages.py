"""Runs the code blocks of a documentation page as a reader would: python tests/pages.py docs/start.md

Kinds of blocks, by the fence's info string and the first line:

- ```python runs in the page's order and in one namespace, in an empty folder, on the simulated device. Its lines are
  numbered from 1, as `<block N>`, N counting the page's Python blocks. ```python raises must end in an exception; its
  type and text are then the last lines of the output.
- ```text directly after it is the exact output on stdout. A line that is only `...` matches any lines, `...` within a
  line any text.
- A block whose first line is a comment with only a file's name (`# try.py`, `// scale.cu`) is written to that file,
  first line included, so that line numbers in reports are those of the page. If the language has no comments, the file
  does not get that line.
- A block that begins `// from kernels/x.cu` or `# from examples/x.py` is a quotation: its other lines must be in that
  file in this order, apart from indentation; a line `...` skips lines. A line wider than the page may be wrapped.
- ```console: the shell runs each `$ ` line in that folder; `[exit 1]` below it is the exit status unless it is 0, and
  the lines that follow are the output, both streams. ```console gpu needs a GPU or its tools: without them, its scripts
  and flags are checked for existence only.
- ```cuda without a file's name is compiled by NVRTC unchanged.
- ```{toctree} and other directives are ignored.
- Python in a comment `<!-- python` ... `-->` runs but is not shown: it prepares the files that a reader already has.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import programs
from paths import ROOT

LINKED = ("cudakit", "examples", "kernels", "tests")
TIMEOUT = 300

SHOWN = ("text", "json", "toml", "yaml")  # not checked unless they follow a block that runs
KNOWN = ("python", "cuda", "cpp", "console", *SHOWN)

_FILE = re.compile(r"(?:#|//)\s*([\w./-]+\.\w+)\s*")
_FROM = re.compile(r"(?:#|//) from (\S+)\s*")
_HIDDEN = re.compile(r"<!-- python\n(.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fence: its language, the other words of its info string, its text, and its first line's number on the page."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int
    expected: str | None = None

    def named(self, pattern: re.Pattern[str]) -> tuple[str, str] | None:
        """Return the file that the first line names, and the other lines; None if the first line is an ordinary one."""
        first, _, rest = self.text.partition("\n")
        found = pattern.fullmatch(first)
        return (found[1], rest) if found else None

    @property
    def shows_output(self) -> bool:
        """Return whether a ```text block after it is its output."""
        return self.language == "python" and not self.named(_FILE) and not self.named(_FROM)


class Wrong(Exception):
    """A block does not do what the page says; the message has the place and the difference."""


def read(page: Path) -> list[Block]:
    """Return the blocks of a page in order; a ```text directly after a Python block is that block's `expected`."""
    from markdown_it import MarkdownIt

    blocks: list[Block] = []
    last = None
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block" and (hidden := _HIDDEN.match(token.content)):
            blocks.append(Block("python", ("hidden",), hidden[1], token.map[0] + 2))
        elif token.type == "fence":
            language, *words = token.info.split() or [""]
            if language.startswith("{"):  # a Sphinx directive, such as {toctree}
                last = None
                continue
            block = Block(language, tuple(words), token.content, token.map[0] + 2)
            if language == "text" and not block.named(_FILE) and last is not None and last.shows_output:
                blocks[-1] = Block(last.language, last.words, last.text, last.line, token.content)
                last = None
                continue
            blocks.append(block)
            last = block
            continue
        if token.level == 0 and token.nesting <= 0:
            last = None
    return blocks


def alike(expected: str, found: str) -> bool:
    """Return whether `found` matches `expected`, without blanks at the ends of lines and of the text."""
    parts = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n")
    text = "".join(f"{line.rstrip()}\n" for line in found.rstrip().splitlines())
    return re.fullmatch("".join(parts), text) is not None


def difference(expected: str, found: str) -> str:
    lines = difflib.unified_diff(
        expected.rstrip().splitlines(), found.rstrip().splitlines(), "the page", "what came", lineterm="", n=2
    )
    return "\n".join(lines)


def unwrapped(text: str, lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    """Return the lines of a quotation with their numbers; lines that the page wraps are joined."""
    begun = ""
    for number, raw in enumerate(text.splitlines(), first):
        line = raw.strip()
        joined = [f"{begun}{space}{line}" for space in (" ", "")] if begun else [line]
        whole = next((one for one in joined if one in lines), None)
        part = next((one for one in joined for known in lines if one and known.startswith(one)), None)
        if whole is None and part is not None:
            begun = part
            continue
        yield number, whole if whole is not None else line
        begun = ""
    if begun:
        yield number, begun


def check_quotation(block: Block, name: str, rest: str) -> None:
    """Raise Wrong unless the lines are in the file, in that order."""
    path = ROOT / name
    if not path.is_file():
        raise Wrong(f"quotes {name}, which does not exist")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    start, free = 0, True
    for number, line in unwrapped(rest, lines, block.line + 1):
        if line in ("...", "// ...", "# ..."):
            free = True
            continue
        if not line and free:
            continue
        places = range(start, len(lines)) if free else range(start, min(start + 1, len(lines)))
        place = next((place for place in places if lines[place] == line), None)
        if place is None and not free and not line:
            continue
        if place is None:
            where = "after the quoted lines above it" if free else "directly after the line above it (use ...)"
            raise Wrong(f"line {number} is not in {name} {where}: {line}")
        start, free = place + 1, False


@dataclass
class Runner:
    """Runs blocks in `folder`. `gpu`: only the blocks that need a GPU, and the files that they use."""

    folder: Path
    gpu: bool = False
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    count: int = 0
    not_run: list[str] = field(default_factory=list)

    def prepare(self, blocks: list[Block]) -> None:
        """Link the checkout's folders, and copy files that commands may write to."""
        for name in LINKED:
            (self.folder / name).symlink_to(ROOT / name)
        if any(block.language == "console" and "profiles/" in block.text for block in blocks):
            shutil.copytree(ROOT / "profiles", self.folder / "profiles")
        # `python` and the other tools are scripts that run this interpreter, even if its folder has no such scripts.
        tools = self.folder / ".bin"
        tools.mkdir()
        # Name the plugin explicitly: the checkout may not be installed.
        pytest = "-m pytest -p no:cacheprovider -p cudakit.pytest_plugin"
        for name, command in (("python", ""), ("pytest", pytest), ("cudakit", "-m cudakit")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
            tool.chmod(0o755)
        os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
        # for scripts outside the checkout, if cudakit is not installed
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        os.environ["COLUMNS"] = "88"  # as wide as the pages' code blocks
        if not self.gpu:
            os.environ["CUDAKIT_DEVICE"] = "sim"
        sys.path[:0] = [str(self.folder), str(ROOT)]
        os.chdir(self.folder)

    def plain(self, text: str) -> str:
        """Return the text without the names of this run's temporary folders."""
        for folder in (self.folder, self.folder.resolve(), ROOT):
            text = text.replace(f"{folder}/", "")
        return text

    def run(self, block: Block) -> None:
        """Run the block. Raises Wrong if it does not do what the page says."""
        if block.language not in KNOWN:
            raise Wrong(f"unknown language {block.language!r}: use one of {', '.join(KNOWN)}")
        if quoted := block.named(_FROM):
            check_quotation(block, *quoted)
        elif named := block.named(_FILE):
            path = self.folder / named[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(named[1] if block.language in ("text", "json") else block.text, encoding="utf-8")
        elif block.language == "console":
            self.console(block)
        elif block.language == "cpp":
            raise Wrong('begin C++ with "// from FILE", or write ```cuda, which is compiled')
        elif not self.gpu and block.language == "python":
            self.python(block)
        elif not self.gpu and block.language == "cuda":
            self.compile(block)

    def python(self, block: Block) -> None:
        name = "<hidden>"
        if "hidden" not in block.words:
            self.count += 1
            name = f"<block {self.count}>"
        # Reports read their source lines from linecache.
        linecache.cache[name] = (len(block.text), None, block.text.splitlines(keepends=True), name)
        out, raised = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(block.text, name, "exec"), self.namespace)
        except Exception as error:
            raised = error
        found = out.getvalue()
        if raised is not None:
            if "raises" not in block.words:
                raise Wrong(f"{found}{''.join(traceback.format_exception(raised))}") from None
            found += "".join(traceback.format_exception_only(raised))
        elif "raises" in block.words:
            raise Wrong("no exception was raised")
        self.compare(block.expected, found)

    def compare(self, expected: str | None, found: str) -> None:
        if expected is not None and not alike(expected, self.plain(found)):
            raise Wrong(difference(expected, self.plain(found)))

    def compile(self, block: Block) -> None:
        from cudakit.compile import cache, compiler
        from cudakit.errors import CompileError

        try:
            cache.compiled(compiler.request(block.text, name="block.cu", arch="sm_90a"))
        except CompileError as error:
            raise Wrong(str(error)) from None

    def console(self, block: Block) -> None:
        needs_gpu = "gpu" in block.words
        for command, status, output in commands(block):
            if needs_gpu and not self.gpu:
                check_command(command)
            elif needs_gpu == self.gpu:
                self.shell(command, status, output)

    def shell(self, command: str, status: int, output: str) -> None:
        tool = next((word for word in shlex.split(command) if "=" not in word), "")
        if self.gpu and shutil.which(tool) is None:
            self.not_run.append(f"{command}: there is no {tool}")
            return
        ended, found = run_command(command)
        if ended != status:
            raise Wrong(f"$ {command}\nended with {ended}, not with {status}:\n{self.plain(found)}")
        if output.strip():
            self.compare(output, found)


def run_command(command: str) -> tuple[int, str]:
    """Run a command; return its exit status and output, both streams. A plain call of cudakit or of an example runs in
    this process, any other command in the shell."""
    words = shlex.split(command)
    if not set("|&;<>$*?'\"\\") & set(command):
        if words[0] == "python" and words[1].startswith("examples/"):
            words.pop(0)
        if words[0] == "cudakit" or words[0].startswith("examples/"):
            both = io.StringIO()
            return programs.run_into(both, both, words), both.getvalue()
    done = subprocess.run(
        command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT
    )
    return done.returncode, done.stdout


def commands(block: Block) -> Iterator[tuple[str, int, str]]:
    """Return the commands of a console block, each with its expected exit status and output."""
    text = block.text.replace("\\\n", "")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        status = 0
        if found := re.match(r"\[exit (\d+)\]\n?", output):
            status, output = int(found[1]), output[found.end() :]
        yield command.strip(), status, output
    if not text.startswith("$ "):
        raise Wrong("a console block must begin with a command: $ ...")


def check_command(command: str) -> None:
    """Raise Wrong if a command that cannot run here names a missing script or an unknown flag."""
    words = shlex.split(command.partition("|")[0].partition("&&")[0])
    while words and words[0].split("/")[-1] not in ("python", "cudakit"):
        words.pop(0)
    if not words:
        return
    if words[0] == "python" and words[1:3] == ["-m", "cudakit"]:
        words[:3] = ["cudakit"]
    if words[0] == "cudakit":
        flags, name = flags_of_command(words[1]), f"cudakit {words[1]}"
        # arguments after a profiled script belong to the script
        script = next((k for k, word in enumerate(words) if word.endswith(".py")), None)
        if words[1] == "profile" and script is not None:
            check_command(shlex.join(["python", *words[script:]]))
            words = words[:script]
    elif words[1] == "-m":
        name = words[2]
        path = ROOT / name.replace(".", "/")
        files = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        if not files or not all(file.is_file() for file in files):
            if name not in ("pytest", "pip"):
                raise Wrong(f"{command}: there is no module {name}")
            return
        flags = flags_in(files)
    else:
        name = next((word for word in words[1:] if not word.startswith("-")), "")
        if not (ROOT / name).is_file():
            if Path(name).is_file():  # the page writes it
                return
            raise Wrong(f"{command}: there is no script {name}")
        shared = ["cli", "streamed"] if "streamed" in (ROOT / name).read_text(encoding="utf-8") else ["cli"]
        flags = flags_in([ROOT / name, *(ROOT / "cudakit" / "commands" / f"{module}.py" for module in shared)])
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in flags:
            raise Wrong(f"{command}: {name} has no flag {flag}")


def flags_in(files: list[Path]) -> set[str]:
    found = {"--help"}
    for file in files:
        found |= set(re.findall(r"""["'](--[a-z][\w-]*)["']""", file.read_text(encoding="utf-8")))
    return found


def flags_of_command(name: str) -> set[str]:
    from cudakit import __main__ as command_line

    parser = command_line.build_parser()
    choices = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if name not in choices:
        raise Wrong(f"there is no command cudakit {name}: {', '.join(choices)}")
    return {flag for action in choices[name]._actions for flag in action.option_strings}


def run_page(page: Path, *, gpu: bool = False) -> tuple[list[str], list[str]]:
    """Run a page in a new folder. Returns one text per failed block, and the commands that could not run here. Changes
    the process's working directory and environment, so call it in a new process."""
    wrong = []
    blocks = read(page)
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        runner = Runner(Path(folder).resolve(), gpu=gpu)
        runner.prepare(blocks)
        for block in blocks:
            try:
                runner.run(block)
            except Wrong as error:
                wrong.append(f"{page.name}:{block.line}: {error}")
            except subprocess.TimeoutExpired as error:
                wrong.append(f"{page.name}:{block.line}: {error}")
        os.chdir(ROOT)
    return wrong, runner.not_run


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the code blocks of documentation pages.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--gpu", action="store_true", help="run only the blocks that need a GPU")
    arguments = parser.parse_args()
    wrong, not_run = run_page(arguments.page.resolve(), gpu=arguments.gpu)
    for text in wrong:
        print(text, end="\n\n")
    for text in not_run:
        print(f"not run: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
