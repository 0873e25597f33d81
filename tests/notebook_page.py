"""The notebook of the documentation: run its cells, and compare their outputs with the committed ones.

    python tests/notebook_page.py           # compare
    python tests/notebook_page.py --write   # run, and write the outputs into the page

`...` in a committed output matches any text. --write puts it in place of text that differs between machines (MACHINE).
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import nbformat
from nbclient import NotebookClient
from pages import alike, difference
from paths import ROOT

PAGE = ROOT / "docs" / "notebook.ipynb"
TIMEOUT = 120  # seconds per cell

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: Versions and dates, with their replacements.
MACHINE = (
    (re.compile(r"simulated \(CUDA [\d.]+\)"), "simulated (CUDA ...)"),
    (re.compile(r"nvrtc [\d.]+"), "nvrtc ..."),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "..."),
)


def run() -> Any:
    """Return the page with the outputs of a new run."""
    page = nbformat.read(PAGE, as_version=4)
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    before = {name: os.environ.get(name) for name in ("CUDAKIT_DEVICE", "PYTHONPATH")}
    os.environ |= {"CUDAKIT_DEVICE": "sim", "PYTHONPATH": str(ROOT)}
    try:
        folder = {"metadata": {"path": str(ROOT / "docs")}}
        NotebookClient(page, timeout=TIMEOUT, kernel_name="python3", resources=folder).execute()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    for cell in page.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_plain(output) for output in cell.outputs]
    return page


def _plain(output: Any) -> Any:
    """Return an output without colours and without text that differs between machines."""
    if output.output_type == "error":
        output.traceback = [_masked(line) for line in output.traceback]
        output.evalue = _masked(output.evalue)
    elif output.output_type == "stream":
        output.text = _masked(output.text)
    else:
        output.data = {kind: _masked(text) for kind, text in output.data.items()}
    return output


def _masked(text: str) -> str:
    text = _ANSI.sub("", text)
    for pattern, shown in MACHINE:
        text = pattern.sub(shown, text)
    return text


def texts(cell: Any) -> dict[str, str]:
    """Return the outputs of a cell, by kind."""
    found: dict[str, str] = {}
    for output in cell.get("outputs", ()):
        if output.output_type == "error":
            found["error"] = "\n".join(output.traceback)
        elif output.output_type == "stream":
            found[output.name] = found.get(output.name, "") + output.text
        else:
            found |= output.data
    return found


def differences(committed: Any, fresh: Any) -> list[str]:
    """Return one text per cell whose new outputs differ from the committed ones."""
    found = []
    for number, (old, new) in enumerate(zip(committed.cells, fresh.cells, strict=True), 1):
        expected, came = texts(old), texts(new)
        for kind in sorted(expected.keys() | came.keys()):
            if not alike(expected.get(kind, ""), came.get(kind, "")):
                found.append(f"cell {number}, {kind}:\n{difference(expected.get(kind, ''), came.get(kind, ''))}")
    return found


def main(arguments: list[str]) -> int:
    fresh = run()
    if "--write" in arguments:
        nbformat.write(fresh, PAGE)
        return 0
    found = differences(nbformat.read(PAGE, as_version=4), fresh)
    print("\n\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
