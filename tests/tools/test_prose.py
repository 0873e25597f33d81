"""The check of our English (tests/prose): it reads all text, finds each phrase, and finds none in the tree."""

from __future__ import annotations

import pytest
from paths import ROOT
from prose.__main__ import draw, read
from prose.phrases import PHRASES, findings
from prose.texts import Paragraph, paragraphs

LINES = ("page", "table", "docstring", "comment", "message")

PAGE = """# The bytes behind it

Every row
lies in memory. `nobody` is code.

| a table | 8 bytes an element |
|---|---|

```python
x = 1  # nobody reads code
```
"""
SOURCE = '''"""What it does."""

def refuse(n):
    """Raises.

        nobody.reads(this)
    """
    # a comment that
    # tells of it
    raise ValueError(f"{n} is no number of anything")
'''
KERNEL = "// one thread an element\n__global__ void k(int* nobody) {\n    *nobody = 1;  // all right\n}\n"


def places(path: str, source: str) -> list[tuple[int, str]]:
    return sorted((one.line, one.phrase.name) for part in paragraphs(path, source) for one in findings(part))


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("docs/a.md", PAGE, [(1, "behind"), (4, "lies"), (6, "a for per")]),
        ("cudakit/a.py", SOURCE, [(1, "opens with what"), (9, "tells"), (10, "is no")]),
        ("kernels/a.cu", KERNEL, [(1, "a for per"), (3, "all right")]),
    ],
)
def test_it_reads_text_and_no_code(path, source, found):
    assert places(path, source) == found


def test_strings_of_tests_are_data():
    assert places("tests/core/test_a.py", 'PATTERN = "nobody is behind it"\n') == []


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.name)
def test_each_phrase_is_found(phrase):
    sample = Paragraph("docs/a.md", phrase.kinds[0], phrase.sample, ((0, 1),))
    assert phrase.name in {one.phrase.name for one in findings(sample)}


@pytest.fixture(scope="module")
def everything():
    return read([])


def test_the_tree_has_none_of_them(everything):
    found = [one for text in everything for one in findings(text)]
    assert not found, "\n".join(f"{one.path}:{one.line}: {one.phrase.name}: {one.excerpt}" for one in found)


def test_it_reads_every_kind_of_text(everything):
    for kind in LINES:
        assert sum(text.kind == kind for text in everything) > 100, kind
    folders = {text.path.partition("/")[0] for text in everything}
    assert {"README.md", "cudakit", "docs", "kernels", "tests", "examples", "profiles"} <= folders
    assert (ROOT / "README.md").exists()


def test_a_seed_draws_the_same_sentences(everything):
    assert draw(everything, 40, seed=1) == draw(everything, 40, seed=1) != draw(everything, 40, seed=2)
    assert len(set(draw(everything, 40, seed=1))) == 40
