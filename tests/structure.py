"""Reports the structure of the package: rooms, floors, imports between rooms, cycles, long modules, repeated names.

A room is a package below `cudakit`, or a module directly in it. Every import statement counts, including those in
functions and under TYPE_CHECKING. A room's floor is the length of its longest chain of imports; rooms of one cycle
share a floor.

    python tests/structure.py              # the figures
    python tests/structure.py --edges      # also every import between rooms
    python tests/structure.py --root DIR   # another checkout
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "cudakit"
LONG = 400  # a module with more lines needs a reason or a split

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One name that a module imports from another module of the package. name: None for the module itself."""

    source: str
    target: str
    name: str | None
    line: int


@dataclass
class Tree:
    """The parsed modules of one package, by dotted name."""

    root: Path
    modules: dict[str, ast.Module] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)

    def room(self, module: str) -> str:
        """Return the room of a module; a module directly in the top package is its own room."""
        if self.paths[module].name == "__init__.py":
            return module
        package = module.rpartition(".")[0]
        return module if package == PACKAGE else package


def read(root: Path) -> Tree:
    """Read the package below `root`. Raises SyntaxError for a file that does not parse."""
    tree = Tree(root)
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree.paths[name] = path
        tree.modules[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for name, module in tree.modules.items():
        tree.imports.extend(_imports(tree, name, module))
    return tree


def _imports(tree: Tree, source: str, module: ast.Module) -> Iterator[Import]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in tree.modules:
                    yield Import(source, alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in tree.modules:
                    yield Import(source, whole, None, node.lineno)
                elif node.module in tree.modules:
                    yield Import(source, node.module, alias.name, node.lineno)


def module_graph(tree: Tree) -> Graph:
    """Return the modules that each module imports."""
    graph: Graph = {name: set() for name in tree.modules}
    for one in tree.imports:
        if one.source != one.target:
            graph[one.source].add(one.target)
    return graph


def room_graph(tree: Tree) -> Graph:
    """Return the rooms that each room imports."""
    graph: Graph = {tree.room(name): set() for name in tree.modules}
    for one in tree.imports:
        source, target = tree.room(one.source), tree.room(one.target)
        if source != target:
            graph[source].add(target)
    return graph


def components(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return strongly connected components in topological order, imported ones first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return groups of nodes that import each other."""
    return [group for group in components(graph) if len(group) > 1]


def floors(graph: Graph) -> dict[str, int]:
    """Return the length of each node's longest chain of imports, itself included."""
    floor: dict[str, int] = {}
    for group in components(graph):
        below = {other for node in group for other in graph[node]} - set(group)
        height = 1 + max((floor[other] for other in below), default=0)
        floor.update(dict.fromkeys(group, height))
    return floor


def repeated_classes(tree: Tree) -> dict[str, list[str]]:
    """Return names of classes that several modules define, with the modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, module in tree.modules.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1}


def functions(tree: Tree) -> list[tuple[int, str]]:
    """Return every function as (lines, module.name), the longest first."""
    found = []
    for name, module in tree.modules.items():
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                found.append((node.end_lineno - node.lineno + 1, f"{name}.{node.name}"))
    return sorted(found, reverse=True)


def lines_of(tree: Tree) -> dict[str, int]:
    """Return the number of lines of each module."""
    return {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in tree.paths.items()}


def private_uses(tree: Tree) -> list[str]:
    """Return every use of a private name (`_x`) of another room, as "module:line uses _x of room".

    An attribute counts if the using room does not define its name and another room does.
    """
    defined: dict[str, set[str]] = defaultdict(set)
    for name, module in tree.modules.items():
        defined[tree.room(name)].update(_definitions(module))
    found = []
    for name, module in tree.modules.items():
        room = tree.room(name)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                own = node.module in tree.modules and tree.room(node.module) == room
                used = [] if own else [alias.name for alias in node.names if _is_private(alias.name)]
            elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in defined[room]:
                used = [node.attr]
            else:
                continue
            for each in used:
                owners = [other for other, names_there in defined.items() if each in names_there]
                if owners:
                    found.append(f"{name}:{node.lineno} uses {each} of {', '.join(owners)}")
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _NAMEDTUPLE


_NAMEDTUPLE = ("_asdict", "_fields", "_make", "_replace")


def _definitions(module: ast.Module) -> Iterator[str]:
    """Return names that a module defines: functions, classes, variables, attributes of self, __slots__."""
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_private(node.value):
            yield node.value  # in __slots__


def report(tree: Tree, edges: bool = False) -> str:
    """Return the figures as text."""
    rooms, modules = room_graph(tree), module_graph(tree)
    height, lines = floors(rooms), lines_of(tree)
    packages = [room for room in rooms if tree.paths[room].name == "__init__.py" and room != PACKAGE]
    out = [
        f"rooms       {len(rooms)}: {len(packages)} packages, {len(rooms) - len(packages)} modules in {PACKAGE} itself",
        f"floors      {max(height.values())}",
        f"imports     {sum(map(len, rooms.values()))} between rooms",
        f"circles     {len(circles(rooms))} of rooms, {len(circles(modules))} of modules"
        + "".join(f"\n              {len(group)}: {', '.join(group)}" for group in circles(modules)),
        f"modules     {len(lines)}, {sum(lines.values())} lines",
    ]
    long = sorted(((count, name) for name, count in lines.items() if count > LONG), reverse=True)
    out.append(f"over {LONG}    {len(long)} modules: " + ", ".join(f"{name} {count}" for count, name in long))
    out.append("longest     " + ", ".join(f"{name} {count}" for count, name in functions(tree)[:5]))
    repeated = repeated_classes(tree)
    out.append(f"names       {len(repeated)} classes defined twice or more: {', '.join(repeated)}")
    size: Counter[str] = Counter()
    for name, count in lines.items():
        size[tree.room(name)] += count
    for floor in sorted(set(height.values()), reverse=True):
        for room in sorted(room for room in rooms if height[room] == floor):
            out.append(f"floor {floor:2d}  {room:32s} {size[room]:6d} lines")
            if edges:
                out.extend(f"              imports {other}" for other in sorted(rooms[room]))
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the checkout")
    parser.add_argument("--edges", action="store_true", help="list every import between rooms")
    arguments = parser.parse_args()
    if not (arguments.root / PACKAGE).is_dir():
        print(f"{arguments.root} has no folder {PACKAGE}: give the root of a checkout", file=sys.stderr)
        return 2
    print(report(read(arguments.root), arguments.edges))
    return 0


if __name__ == "__main__":
    sys.exit(main())
