"""Mutations drawn by a seed: a changed comparison, offset or operand, or a dropped line."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Groups of files, with the number of mutations drawn from each file. The strategies of cudakit/testing are excluded: a
# change there draws other problems, which are equally valid.
KERNELS = ("kernels/*/*.cu", "kernels/*/*.cuh")
JUDGES = (
    "cudakit/compare.py", "cudakit/testing/case.py", "cudakit/family/checks.py", "cudakit/family/bound.py",
    "cudakit/commands/numbered.py", "cudakit/commands/streamed.py",
)  # fmt: skip
# In the families' other files, only the functions that declarations pass by these keywords, and functions they call.
REFERENCES = ("cudakit/families/*.py",)
HOST_CODE = frozenset(("baseline", "reference", "rounding"))
BENCHES = ("cudakit/measure/*.py", "cudakit/commands/ladder.py", "cudakit/commands/fuzzing.py")
COUNTS = ((KERNELS, 1), (JUDGES, 3), (REFERENCES, 2), (BENCHES, 2))

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "//": "*"}


@dataclass(frozen=True)
class Mutation:
    """The text `old` at `start` of `file` becomes `new`. kind: the kind of change, or the name of the error."""

    file: str
    start: int
    old: str
    new: str
    kind: str
    line: int
    before: str  # the whole lines, without the indentation
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}"

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a mutation, independent of line numbers."""
        return self.file, self.before, self.after

    def applied(self, text: str) -> str:
        """Return the file's `text` with the mutation."""
        assert text.startswith(self.old, self.start), f"{self.file} has changed since {self.name} was drawn"
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def mutation(file: str, text: str, start: int, old: str, new: str, kind: str) -> Mutation:
    """Return the mutation of `text` at `start`, with its line number and lines."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start + len(old))
    last = len(text) if last < 0 else last
    before = text[first:last]
    after = text[first:start] + new + text[start + len(old) : last]
    return Mutation(file, start, old, new, kind, text.count("\n", 0, start) + 1, before.strip(), after.strip())


def drawn(root: Path, seed: int) -> list[Mutation]:
    """Return the mutations of a seed. Each file has its own draws, so editing one does not change those of others."""
    found = []
    for patterns, count in COUNTS:
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            file = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            sites = list(sites_of(file, text))
            rng = random.Random(f"{seed}:{file}")
            kinds = sorted({site.kind for site in sites})
            rng.shuffle(kinds)
            # choose the kind first: operands far outnumber comparisons
            for kind in (kinds * count)[:count]:
                left = [site for site in sites if site.kind == kind]
                if left:
                    found.append(rng.choice(left))
                    sites.remove(found[-1])
    return found


def sites_of(file: str, text: str) -> Iterator[Mutation]:
    """Yield every mutation that could be drawn from a file."""
    return _python(file, text) if file.endswith(".py") else _cuda(file, text)


def _of_hosts(tree: ast.Module) -> set[int]:
    """Return the ids of nodes in a family's file that compute on the host: see HOST_CODE."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    rest: list[ast.AST] = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in HOST_CODE
    ]
    found: set[int] = set()
    while rest:
        for node in ast.walk(rest.pop()):
            if id(node) not in found and isinstance(node, ast.Name) and node.id in functions:
                rest.append(functions[node.id])
            found.add(id(node))
    return found


# CUDA C++ -------------------------------------------------------------------------------------------------------------

_HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.DOTALL | re.MULTILINE)
# Code whose mutation does not compile or changes no result: assertions, launch bounds, operands of inline assembly.
_FOR_THE_COMPILER = re.compile(r"^.*\bstatic_assert\b.*$|^.*__launch_bounds__.*$|^\s*:[^:].*$", re.MULTILINE)
_STATEMENT = re.compile(
    r"(?:(?:if|for) \(|\*?[A-Za-z_]\w*(?:\[[^;]*?\]|\.\w+|->\w+)*(?: [-+*/|&^]?= |\+\+;|\())[^;]*(?:;[^;]*;[^;]*)?;"
)
_NO_STATEMENT = re.compile(r"return\b|static_assert|constexpr|asm\b|assert\b")


def _cuda(file: str, text: str) -> Iterator[Mutation]:
    code = _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    code = _FOR_THE_COMPILER.sub(lambda match: " " * len(match[0]), code)
    for match in re.finditer(r" (<=|>=|==|!=|<|>) ", code):
        yield mutation(file, text, match.start(1), match[1], _COMPARISONS[match[1]], "comparison")
    for match in re.finditer(r"[\w)\]] ([-+*/%])=? ", code):
        declared = match[1] == "*" and re.search(
            r"(?:float\d?|int|half|T|void|char|const|long)$", code[: match.start(1)]
        )
        if not declared:
            yield mutation(file, text, match.start(1), match[1], _OPERATORS[match[1]], "operand")
    for match in re.finditer(r" (&&|\|\|) ", code):
        yield mutation(file, text, match.start(1), match[1], "||" if match[1] == "&&" else "&&", "operand")
    for match in re.finditer(r"\b(threadIdx|blockIdx)\.([xyz])\b", code):
        yield mutation(file, text, match.start(2), match[2], "y" if match[2] == "x" else "x", "operand")
    for match in re.finditer(r"(?<![\w.])\d+(?![\w.])", code):
        yield mutation(file, text, match.start(), match[0], str(int(match[0]) + 1), "offset")
    end = "{"
    at = 0
    for line in code.splitlines(keepends=True):
        bare = line.strip()
        if end in "{};)" and _STATEMENT.fullmatch(bare) and not _NO_STATEMENT.match(bare):
            start = at + line.index(bare)
            yield mutation(file, text, start, text[start : start + len(bare)], ";", "dropped line")
        end = bare[-1] if bare else end
        at += len(line)


# Python ---------------------------------------------------------------------------------------------------------------

_TOKENS: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+", ast.Sub: "-",
    ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.FloorDiv: "//",
}  # fmt: skip


class _Places:
    """Offsets of a syntax tree's nodes in the source text."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line (from 1) and a column (in UTF-8 bytes)."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def first(self, node: ast.expr | ast.stmt) -> int:
        return self.at(node.lineno, node.col_offset)

    def last(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.end_lineno, node.end_col_offset)


def _python(file: str, text: str) -> Iterator[Mutation]:
    places, tree = _Places(text), ast.parse(text)
    skipped = _not_code(tree)
    narrowed = "/families/" in file and not file.endswith("_host.py")
    chosen = _of_hosts(tree) if narrowed else set()
    for node in ast.walk(tree):
        if id(node) in skipped or (narrowed and id(node) not in chosen):
            continue
        if isinstance(node, ast.Compare):
            token = _TOKENS.get(type(node.ops[0]))
            if token:
                yield from _between(file, text, places, node.left, node.comparators[0], token, "comparison")
        elif isinstance(node, ast.BinOp):
            token = _TOKENS.get(type(node.op))
            if token and not any(_is_text(side) for side in (node.left, node.right)):
                yield from _between(file, text, places, node.left, node.right, token, "operand")
        elif isinstance(node, ast.AugAssign):
            token = _TOKENS.get(type(node.op))
            if token:
                yield from _between(file, text, places, node.target, node.value, token, "operand")
        elif isinstance(node, ast.BoolOp):
            token = "and" if isinstance(node.op, ast.And) else "or"
            yield from _between(file, text, places, node.values[0], node.values[1], token, "operand")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            start, end = places.first(node), places.last(node)
            yield mutation(file, text, start, text[start:end], str(node.value + 1), "offset")
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            start = places.first(node)
            yield mutation(file, text, start, str(node.value), str(not node.value), "operand")
        if _can_go(node):
            start, end = places.first(node), places.last(node)
            yield mutation(file, text, start, text[start:end], "pass", "dropped line")


def _between(
    file: str, text: str, places: _Places, left: ast.expr, right: ast.expr, token: str, kind: str
) -> Iterator[Mutation]:
    """Yield the mutation of the operator `token` between two operands."""
    swapped = {"and": "or", "or": "and"} | (_COMPARISONS if kind == "comparison" else _OPERATORS)
    low, high = places.last(left), places.first(right)
    at = text.find(token, low, high)
    if at >= 0:
        yield mutation(file, text, at, token, swapped[token], kind)


def _can_go(node: ast.AST) -> bool:
    """Return whether the code still runs without a statement: it binds no name."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _not_code(tree: ast.Module) -> set[int]:
    """Return the ids of nodes that do not affect results: annotations, messages, help, code for type checkers."""
    left: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) or (isinstance(node, ast.arg) and node.annotation):
            left.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            left += [node.returns] if node.returns else []
            left += node.decorator_list
        elif isinstance(node, ast.ClassDef):
            left += node.decorator_list
        elif (
            isinstance(node, ast.JoinedStr)
            or (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
            )
            or (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
            or (isinstance(node, ast.keyword) and node.arg == "strict")
        ):  # before Python 3.12, nodes in an f-string have wrong positions
            left.append(node)
    return {id(inner) for node in left for inner in ast.walk(node)}
