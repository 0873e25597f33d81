"""The order of the rooms: every import goes down the list in docs/architecture.md, and there are no import cycles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structure
from paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def tree() -> structure.Tree:
    return structure.read(ROOT)


def listed_rooms() -> list[str]:
    """Return the rooms in the page's order, the top one first."""
    return re.findall(r"^\| `(cudakit[\w.]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_lists_every_room_once(tree: structure.Tree) -> None:
    rooms = listed_rooms()
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == {tree.room(module) for module in tree.modules}


def test_imports_go_down_the_list(tree: structure.Tree) -> None:
    place = {room: number for number, room in enumerate(listed_rooms())}
    climbing = [
        f"{one.source}:{one.line} imports {one.target}"
        for one in tree.imports
        if place[tree.room(one.source)] > place[tree.room(one.target)]
    ]
    assert not climbing


def test_no_circle_of_modules(tree: structure.Tree) -> None:
    """Imports under TYPE_CHECKING count like any other."""
    assert structure.circles(structure.module_graph(tree)) == []


def test_no_circle_of_rooms(tree: structure.Tree) -> None:
    assert structure.circles(structure.room_graph(tree)) == []


def test_no_private_name_leaves_its_room(tree: structure.Tree) -> None:
    assert structure.private_uses(tree) == []


def test_the_simulated_device_stands_alone(tree: structure.Tree) -> None:
    """It could be a separate package: it imports nothing else from cudakit."""
    assert [
        one for one in tree.imports if one.source.startswith("cudakit.sim") and not one.target.startswith("cudakit.sim")
    ] == []


def test_no_module_imports_from_the_top(tree: structure.Tree) -> None:
    """Only `python -m cudakit` imports from cudakit/__init__.py; other modules import from rooms."""
    assert {one.source for one in tree.imports if one.target == "cudakit"} <= {"cudakit.__main__"}


SAMPLE = {
    "__init__.py": "",
    "top.py": "from cudakit.low.a import A, _hidden\n",
    "low/__init__.py": "",
    "low/a.py": "def later():\n    from cudakit.low.b import B\nclass A:\n    _kept = 1\n_hidden = 2\n",
    "low/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cudakit.low import a\nclass B: ...\n",
    "other/__init__.py": "from cudakit.low.a import A\nprint(A()._kept)\nclass A: ...\n",
}


def test_the_counts_see_every_import(tmp_path: Path) -> None:
    """Imports in functions, under TYPE_CHECKING and of whole modules; circles; private names; repeated classes."""
    for name, text in SAMPLE.items():
        path = tmp_path / "cudakit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = structure.read(tmp_path)
    assert structure.circles(structure.module_graph(tree)) == [["cudakit.low.a", "cudakit.low.b"]]
    assert structure.room_graph(tree) == {
        "cudakit": set(),
        "cudakit.top": {"cudakit.low"},
        "cudakit.low": set(),
        "cudakit.other": {"cudakit.low"},
    }
    assert structure.floors(structure.room_graph(tree))["cudakit.top"] == 2
    assert [use.split(" uses ")[1] for use in structure.private_uses(tree)] == [
        "_kept of cudakit.low",
        "_hidden of cudakit.low",
    ]
    assert structure.repeated_classes(tree) == {"A": ["cudakit.low.a", "cudakit.other"]}
    assert "2 between rooms" in structure.report(tree)
