"""The pages are correct: their code runs and prints the outputs shown, their figures are those of profiles/, and the
built pages have no broken links.

`python tests/pages.py docs/start.md` runs the blocks of one page; tests/pages.py defines a block.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pages
import pytest
import torch_installed
from paths import ROOT

import cudakit
from cudakit import __main__ as command_line
from cudakit.show import marks, outputs

PAGES = [ROOT / "README.md", *sorted(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def run_page(page, *flags, check=True):
    command = [sys.executable, str(ROOT / "tests" / "pages.py"), str(page), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if check:
        assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def pages_with_blocks():
    for page in filter(pages.read, PAGES):
        whole_ladders = page.parent.name == "ladders" or page.name in ("benching.md", "torch.md")
        yield pytest.param(page, id=name_of(page), marks=[pytest.mark.long] if whole_ladders else [])


@pytest.mark.parametrize("page", pages_with_blocks())
def test_the_blocks_of_every_page_do_what_it_says(page):
    if any(block.language == "python" and re.search(r"^import torch$", block.text, re.M) for block in pages.read(page)):
        torch_installed.require()
    run_page(page)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any("gpu" in block.words for block in pages.read(page))], ids=name_of
)
def test_the_blocks_for_a_gpu_do_what_the_page_says(page, gpu):
    said = run_page(page, "--gpu")
    if "not run:" in said:
        pytest.skip(said.strip())


def test_every_figure_and_table_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = [name_of(page) for page in PAGES]
    assert command_line.main(["fill", "--check", *names]) == 0, "run: python -m cudakit fill " + " ".join(names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_figure_begins_a_line(page):
    """At the beginning of a line a comment begins a block of HTML, which ends the paragraph."""
    assert not re.search(r"^ *<!--\s+\w+\.", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_page_of_the_figures_file_is_a_page():
    """Filling a page reports its unused definitions; this finds definitions of pages that no longer exist."""
    defined = outputs.load_toml(ROOT / "profiles" / "h200" / "figures.toml")
    named = [re.findall(r"<!-- figures profiles/h200/figures.toml (\w+) -->", page.read_text()) for page in PAGES]
    assert sorted(defined) == sorted(name for names in named for name in names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_fits_a_page_without_scrolling(page):
    wide = []
    for block in pages.read(page):
        for number, line in enumerate(block.text.splitlines(), block.line):
            is_code = block.language not in ("text", "json") and (block.language != "console" or line.startswith("$ "))
            if is_code and len(line) > 88:
                wide.append(f"{name_of(page)}:{number}: {len(line)} characters, of at most 88")
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_an_output_that_is_shown_has_lines_to_compare(page):
    for block in pages.read(page):
        shown = [block.expected or ""]
        if block.language == "console":
            shown += [output for _, _, output in pages.commands(block)]
        for output in shown:
            assert not output or output.strip() != "...", f"{name_of(page)}:{block.line}: the output is only `...`"


@pytest.fixture
def wrong(tmp_path):
    """Return a function that runs a page of the given text and returns the problems found."""

    def wrong(text):
        page = tmp_path / "page.md"
        page.write_text(text)
        return run_page(page, check=False)

    return wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md:2: --- the page"),
        ("```python\nprint(1)\n```\n\n```text\n1\n...\n2\n```\n", "what came"),
        ("```python\nx = 1\n```\n\nWords.\n\n```python\nassert x == 2\n```\n", "page.md:8:"),
        ("```python raises\nx = 1\n```\n", "no exception was raised"),
        ("```python raises\nint('x')\n```\n\n```text\nTypeError: ...\n```\n", "+ValueError: invalid literal"),
        ("```cuda\n__global__ void f(int* x) { y[0] = 1; }\n```\n", 'identifier "y" is undefined'),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "ended with 3, not with 0"),
        ("```console\n$ echo one\ntwo\n```\n", "-two\n+one"),
        ("```console gpu\n$ python examples/gemm.py --shape 1024\n```\n", "has no flag --shape"),
        ("```console gpu\n$ ncu --set full python examples/none.py\n```\n", "there is no script examples/none.py"),
        ("```console gpu\n$ cudakit bench softmax --jsn x\n```\n", "cudakit bench has no flag --jsn"),
        ("```fortran\nend\n```\n", "unknown language 'fortran'"),
        ("```cpp\n// from kernels/softmax/05_tree_reduce.cu\nfloat sum = 1.0f;\n```\n", "line 3 is not in"),
        (
            "```cpp\n// from kernels/softmax/05_tree_reduce.cu\nfloat maximum = -kInfinity;\nfloat sum = 0.0f;\n```\n",
            "line 4 is not in kernels/softmax/05_tree_reduce.cu directly after",
        ),
    ],
)
def test_a_page_that_is_wrong_is_found(wrong, text, said):
    assert said in wrong(text)


def test_a_page_that_is_right_passes(wrong):
    text = (
        "```cuda\n// one.cu\n__global__ void one(int* x) { *x = 1; }\n```\n"
        "<!-- python\nhidden = 5\n-->\n"
        "```python\nprint('a')\nprint(hidden, 'b', 7)\nprint('z')\n```\n\n```text\na\n... b ...\n...\n```\n"
        "```python raises\nint('x')\n```\n\n```text\nValueError: invalid literal ...\n```\n"
        "```python\n# try.py\nprint(open('one.cu').read())\n```\n\n```text\nshown, not checked\n```\n"
        "```console\n$ python try.py\n// one.cu\n__global__ void one(int* x) { *x = 1; }\n"
        "$ cudakit compile none.cu\n[exit 2]\n...\n```\n"
        "```console gpu\n$ ncu --set full python examples/gemm.py --shapes 1024\n$ python try.py --any\n```\n"
        "```cpp\n// from kernels/softmax/05_tree_reduce.cu\nfloat maximum = -kInfinity;\n...\n"
        "    float sum = 0.0f;\n```\n"
        "```cpp\n// from kernels/softmax/05_tree_reduce.cu\nfloat maximum =\n    -kInfinity;\n```\n"
    )
    assert wrong(text) == ""


def test_sections_of_docstrings_become_lists(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import docstrings

    text = "Sum.\n\nArgs:\n    x: A `float`,\n        by row.\n    *rest: More.\n\nRaises:\n    ValueError: If not.\n"
    shown = [line for line in docstrings.converted(text) if line]
    assert shown == [
        "Sum.",
        ":param x: A \\ :py:obj:`float`\\ , by row.",
        ":param \\*rest: More.",
        ":raises ValueError: If not.",
    ]
    for path in (ROOT / "cudakit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
                try:
                    docstrings.converted(found)
                except ValueError as error:
                    pytest.fail(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}: {error}")


REPORT = {
    "device": {"name": "A GPU", "kind": "gpu"},
    "rows": [
        {"variant": "one", "shape": [8, 16], "gbps": 1812.4, "of_ceiling": 0.4321, "time_ms": {"median": 3.0}},
        {"variant": "two", "shape": [8, 16], "gbps": 4000, "of_ceiling": 0.9, "time_ms": {"median": 1.5}},
        {
            "variant": "two",
            "shape": [9],
            "mode": "causal",
            "idea": "a, b",
            "gbps": None,
            "metrics": {"dram__bytes.sum": 12345678},
        },
    ],
}


DEFINITIONS = {
    "page": {
        "one": {"gbps": "x.json rows[variant=one].gbps ,.0f", "share": "x.json rows[variant=one].of_ceiling .1%"},
        "tables": {
            "ladder": {
                "row": "variant",
                "names": {"the second": "two"},
                "columns": {"GB/s": "x.json rows[variant={row},shape=8x16].gbps ,.0f"},
                "rows": {"one": {"from": "x.json device.name, x.json device.kind"}},
            },
            "turned": {"rows": {"GB/s": "x.json rows[variant={column},shape=8x16].gbps .1f"}},
        },
    },
}
HEADER = "<!-- figures in/figures.toml page -->\n\n"
SENTENCE = "At 1,812<!-- one.gbps --> GB/s,\nwhich is 43.2 %<!-- one.share --> of a copy.\n\n"
LADDER = """<!-- columns ladder -->
| rung | variant | by hand | GB/s | from |
|---|---|---|---|---|
| 1 | [`one`](one.cu) | 5 | 1,812 | A GPU, gpu |
| 2 | the second | 6 | 4,000 | 7 |
| 3 | three | 7 | - | |

"""
TURNED = "<!-- columns turned -->\n| | one | two |\n|---|---|---|\n| GB/s | 1812.4 | 4000.0 |\n"
PAGE = HEADER + SENTENCE + LADDER + TURNED


def filled(page, definitions=DEFINITIONS):
    """Return the page and the problems; definitions are in in/figures.toml, figures in in/x.json."""
    files = {"in/figures.toml": definitions, "in/x.json": REPORT, "x.json": REPORT}
    return marks.fill_marks(page, files.__getitem__)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        ("rows[variant=one].gbps .0f", "1812"),
        ("rows[variant=one].gbps ,.1f", "1,812.4"),
        ("rows[variant=one].gbps", "1,812"),
        ("rows[variant=one].of_ceiling .1%", "43.2 %"),
        ("rows[variant=two,shape=8x16,mode=].gbps", "4,000"),
        ("rows[0].time_ms.median / rows[1].time_ms.median .1f", "2.0"),
        ('rows[mode=causal].metrics["dram__bytes.sum"] * 1e-6 .2f', "12.35"),
        ("rows[0].of_ceiling - 1 +.0%", "-57 %"),
        ("rows[0].of_ceiling .1e", "4.3e-01"),
        ("rows[variant=two,idea=a, b].shape[0]", "9"),
    ],
)
@pytest.mark.parametrize("old", ["0", "12,345.6", "-3 %", "+1.5e-03", "98\n%"])
def test_a_figure_is_written_from_its_json(figure, text, old):
    definitions = {"page": {"a": {"key": f"x.json {figure}"}}}
    page = f"{HEADER}Of 3 at 32 (x {old}<!-- a.key -->) GB/s, ``a`` `98 %<!-- not.this -->`."
    new, problems = filled(page, definitions)
    assert not problems
    assert new == page.replace(old, text)
    assert filled(new, definitions) == (new, [])


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("rows[variant=three].gbps", "no entry has variant=three"),
        ("rows[variant=two].gbps", "2 entries have variant=two"),
        ("rows[variant=one].gpbs", "has no 'gpbs': variant, shape, gbps"),
        ("rows[7].gbps", "has 3 entries"),
        ("rows[variant=two,shape=9].gbps .0f", "is null"),
        ("device.name .1f", "cannot be written as .1f"),
        ("rows[0].gbps / device.name", "is not a number"),
        ("rows[0", "is not a path"),
        ("", "names no place"),
        ("device[0]", "device has 0 entries, none with index 0"),
        ("rows[0].shape[variant=one]", "no entry has variant=one"),
        ("rows[0].gbps / 0", "0 is 0, and cannot be a divisor"),
        ("rows[0].gbps * 1e999 d", "inf cannot be written as d"),
        ("device.name", "A GPU is not a number: only tables can have figures that are words"),
    ],
)
def test_a_figure_that_is_not_there_is_a_problem(figure, said):
    page = f"{HEADER}At 5<!-- a.key --> GB/s."
    new, problems = filled(page, {"page": {"a": {"key": f"x.json {figure}"}}})
    assert new == page
    (problem,) = problems
    assert problem.startswith("line 3: a.key: ")
    assert said in problem


def test_cells_of_tables_are_written_and_those_by_hand_left():
    assert filled(PAGE) == (PAGE, [])
    old = PAGE.replace("1,812", "1").replace("A GPU, gpu", "?").replace("4,000", "2").replace("4000.0", "x")
    assert filled(old) == (PAGE, [])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("one.share", "one.sher", "line 4: one.sher: in/figures.toml does not define it in [page]"),
        ("43.2 %<", "much<", "line 4: one.share: there is no number right before the mark"),
        ("43.2 %<", "43.2 % <", "line 4: one.share: there is no number right before the mark"),
        ("43.2 %<", "x43<", "line 4: one.share: there is no number right before the mark"),
        ("which is 43.2 %<!-- one.share -->", "much", "no mark uses one.share of [page] in in/figures.toml"),
        (TURNED, "", "no mark uses tables.turned of [page] in in/figures.toml"),
        (
            "columns ladder",
            "columns rungs",
            "line 6: columns rungs: in/figures.toml does not define it in",
        ),
        ("<!-- columns ladder -->\n", "<!-- columns ladder -->\n\n", "line 6: columns ladder: there is no table"),
        (
            "| GB/s | from |",
            "| GB/sec | from |",
            "line 6: columns ladder: no column is headed 'GB/s': there are",
        ),
        ("| GB/s | from |", "| GB/s | of |", "line 6: columns ladder: no column is headed 'from'"),
        ("| variant |", "| kernel |", "line 6: columns ladder: no column is headed 'variant'"),
        ("| by hand |", "| GB/s |", "column 'GB/s': 2 columns have this heading: define a list"),
        ("the second", "two", "line 6: columns ladder: no row has 'the second' under 'variant'"),
        ("`one`", "`uno`", "line 6: columns ladder: no row has 'one' under 'variant'"),
        ("| 7 | - |", "| 7 | 0 |", "line 11: columns ladder: row 'three', column 'GB/s': in/x.json: no entry has"),
        ("figures.toml page", "figures.toml nothing", "line 1: in/figures.toml has no table [nothing]"),
        (HEADER, "", "line 1: the page has no mark <!-- figures FILE.toml PAGE --> and needs one"),
        (HEADER, HEADER + HEADER, "line 3: the page has several marks <!-- figures FILE.toml PAGE --> and needs one"),
    ],
)
def test_a_mark_without_its_figure_or_a_definition_without_its_mark_is_a_problem(old, new, said):
    page = PAGE.replace(old, new, 1)
    assert page != PAGE
    assert said in "\n".join(filled(page)[1])
    assert filled(page)[0] == page


def test_columns_of_one_heading_have_a_list_and_a_cell_can_have_a_key_of_its_own():
    table = "<!-- columns t -->\n| v | GB/s | GB/s |\n|-|-|-|\n| one | 1<!-- a.key --> | 2 |\n| two | 3 | 4 |\n"
    place = "x.json rows[variant={row},shape=8x16]."
    definitions = {
        "a": {"key": "x.json rows[0].gbps d"},
        "tables": {"t": {"columns": {"GB/s": [place + "gbps d", place + "of_ceiling .0%"]}}},
    }
    new, problems = filled(HEADER + table, {"page": definitions})
    assert not problems
    assert new.endswith("| one | 1812<!-- a.key --> | 43 % |\n| two | 4000 | 90 % |\n")


@pytest.mark.parametrize("prose", ["", "Prose with 1,812<!-- one.gbps --> GB/s.\n"])
def test_a_table_without_an_end_is_a_problem_and_takes_no_prose(prose):
    page = f"<!-- ranges x.json -->\nold\n\n{prose}"
    new, problems = filled(page)
    assert new == page
    assert "1 of the marks of tables have no line <!-- end -->" in problems[0]


@pytest.mark.parametrize("mark", ["tabels x.json", "figure x.json rows[0].gbps"])
def test_a_mark_of_a_file_that_names_no_table_is_a_problem(mark):
    page = f"`<!-- WRITER x.json -->`: 5 <!-- {mark} --> GB/s."
    (problem,) = filled(page)[1]
    assert problem.startswith(f"<!-- {mark} --> names no table: use one of tables,")


def test_a_table_of_a_file_without_rows_is_a_problem():
    page = "<!-- tables x.json -->\nold\n<!-- end -->\n"
    assert marks.fill_marks(page, lambda source: {"a": 1}) == (page, ["x.json is not a report: it has no rows"])


def test_a_table_of_something_else_is_a_problem():
    page = "<!-- profile x.json -->\nold\n<!-- end -->\n"
    said = "x.json is not a report that profile can write: it has no 'ceilings'"
    assert marks.fill_marks(page, lambda source: {"rows": [{}]}) == (page, [said])


def test_fill_reads_json_from_the_working_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text(json.dumps(REPORT))
    Path("x.toml").write_text('[page]\na.key = "x.json rows[0].gbps .0f"\n')
    Path("page.md").write_text("<!-- figures x.toml page -->\n\n0<!-- a.key -->\n")
    assert command_line.main(["fill", "--check", "page.md"]) == 1
    assert command_line.main(["fill", "page.md"]) == 0
    assert "\n1812<" in Path("page.md").read_text()
    assert command_line.main(["fill", "--check", "page.md"]) == 0


def test_every_environment_variable_of_the_package_is_in_the_reference():
    use = re.compile(r"environ(?:\.get\(|\[)\"((?:CUDA|COLUMNS|CONDA|NO_COLOR)\w*)\"")
    read = {name for path in (ROOT / "cudakit").rglob("*.py") for name in use.findall(path.read_text(encoding="utf-8"))}
    table = (ROOT / "docs" / "api" / "command_line.md").read_text(encoding="utf-8")
    assert "CUDAKIT_DEVICE" in read
    assert not [name for name in sorted(read) if f"`{name}`" not in table]


# ---- the built pages ----


class Links(HTMLParser):
    """Collects a page's links, the resources it loads, and its anchors."""

    def __init__(self, page):
        super().__init__()
        self.links, self.loads, self.places = set(), set(), set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get("id"):
            self.places.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.add(given["href"])
        elif given.get("src"):
            self.loads.add(given["src"])


@pytest.mark.long
def test_the_built_pages(tmp_path):
    """All checks of the built pages share one build, which is slow."""
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    pytest.importorskip("furo", reason="the extra `docs` is not installed")
    pytest.importorskip("sphinx_copybutton", reason="the extra `docs` is not installed")
    html = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(html)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    built = {page: Links(page) for page in html.rglob("*.html")}
    check_links(html, built)
    check_no_network(html, built)
    check_everything_is_there(html)
    check_the_reference_has_nothing_internal(html)


def check_links(html, built):
    dead = []
    for page, found in built.items():
        for link in found.links | found.loads:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = (page.parent / target.partition("?")[0]).resolve() if target else page
            if not there.is_file():
                dead.append(f"{page.relative_to(html)}: {link}")
            elif anchor and there in built and anchor not in built[there].places:
                dead.append(f"{page.relative_to(html)}: no {anchor} in {target or 'itself'}")
    assert not dead, "\n".join(sorted(dead)[:40])


def check_no_network(html, built):
    for page, found in built.items():
        remote = [name for name in found.loads if re.match(r"(https?:)?//", name)]
        assert not remote, f"{page.relative_to(html)} loads {remote}"
    for sheet in html.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def check_everything_is_there(html):
    for page in PAGES[1:]:
        assert (html / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), name_of(page)
    reference = "".join(page.read_text(encoding="utf-8") for page in (html / "api").glob("*.html"))
    for name in cudakit.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(cudakit, name)), f"cudakit.{name} has no docstring"
            assert re.search(rf'id="cudakit\.(\w+\.)*{name}"', reference), f"the reference lacks cudakit.{name}"


def check_the_reference_has_nothing_internal(html):
    for page in sorted((html / "api").glob("*.html")):
        text = re.sub(r"<[^>]+>", "", re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.S))
        for found in ("object at 0x", "&lt;factory&gt;", "&lt;function", "&lt;class", "cudakit._", "Args:"):
            assert found not in text, f"{page.name} has {found}"
    device = (html / "api" / "device.html").read_text(encoding="utf-8")
    assert re.search(r"Parameters.*<strong>include</strong> . Folders", device, re.S), "sections are parameter lists"


@pytest.mark.parametrize("odd", ["a | b", "two\nlines", "a\r\n\n| b |", "<!-- end -->", "1<!-- a.key -->"])
@pytest.mark.parametrize("writer", ["tables", "summary", "launches", "calls", "mistakes"])
def test_what_is_written_ends_no_cell_and_no_mark(odd, writer):
    spread = {"median": 1.0, "p10": 1.0, "p90": 1.0, "n": 1}
    row = {
        "family": odd, "variant": odd, "rung": 1, "shape": [8], "dtype": odd, "mode": odd, "idea": odd, "ok": False,
        "why": odd, "skipped": None, "time_ms": None, "gbps": 1.0, "tflops": None, "of_ceiling": None, "counters": None,
        "max_abs_error": None, "max_rel_error": None, "end_to_end_ms": None, "host_us": spread, "call_us": spread,
        "above_torch_us": None, "loop_us": None, "of_torch": None, "mistake": odd, "outcome": odd,
    }  # fmt: skip
    device = {"name": odd, "kind": "gpu", "arch": odd, "driver": odd, "nvrtc": odd}
    report = {"device": device, "date": odd, "ceilings": {}, "burst": 1, "torch": odd, "rows": [row]}
    table = "<!-- columns names -->\n| | name |\n|---|---|\n| device | 0 |\n"
    page = f"<!-- figures x.toml page -->\n<!-- {writer} x.json -->\n<!-- end -->\n\n{table}after\n"
    figures = {"page": {"tables": {"names": {"rows": {"device": "x.json device.name"}}}}}
    files = {"x.json": report, "x.toml": figures}
    new, problems = marks.fill_marks(page, files.__getitem__)
    assert not problems
    assert marks.fill_marks(new, files.__getitem__) == (new, []), "filling again changes nothing"
    assert new.count("<") == page.count("<")
    assert new.count("-->") == page.count("-->")
    tables = [[line for line in part.splitlines() if line.startswith("|")] for part in new.split("\n\n")]
    assert any(tables)
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) <= 1
