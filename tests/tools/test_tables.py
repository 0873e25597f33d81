"""Tables in a terminal: at every width each line fits, no number is cut, and omitted columns are named."""

from __future__ import annotations

import io
import json
import re
import shutil
from types import SimpleNamespace

import programs
import pytest
from paths import ROOT

from cudakit import __main__ as command_line
from cudakit import ops
from cudakit.commands import cli, fuzzing
from cudakit.measure import regression
from cudakit.shapes import shape_text
from cudakit.show import profile_tables, regression_tables, tables, terminal

WIDTHS = (80, 100, 120, 200)
PROFILES = ROOT / "profiles"


class Screen:
    """Return a console of the given width, and its output."""

    def __init__(self, width):
        from rich.console import Console

        self.text = io.StringIO()
        self.console = Console(file=self.text, width=width, highlight=False)

    @property
    def lines(self):
        return self.text.getvalue().splitlines()


def load(name):
    return json.loads((PROFILES / name).read_text())


def row(family, variant, shape, **more):
    """Return a bench row with figures of the greatest length."""
    return {
        "family": family, "variant": variant, "rung": None, "shape": shape, "dtype": "bfloat16", "mode": "",
        "idea": "an idea of several words that takes more than half of a line of a terminal", "ok": True,
        "skipped": None, "max_abs_error": 1.234e-05, "max_rel_error": 1e-7, "worst_at": None, "why": None,
        "time_ms": None, "end_to_end_ms": None, "call_us": None, "gbps": None, "tflops": None, "of_ceiling": None,
        "ceiling": "copy", "counters": None, "launch": {"occupancy": 1.0}, "pipeline": None, **more,
    }  # fmt: skip


COUNTERS = {
    "bytes_per_element": 33123.4, "sectors_per_request": 31.96, "bank_conflicts": 1234567890,
    "instructions": 123456789012, "branch_efficiency": 0.9567,
}  # fmt: skip
TIME = {"median": 1234.5678, "p10": 1232.1, "p90": 12345.6, "n": 100}
REASON = "a block has warps for 32 rows and the problem has 64, so the rest of the rows would have no warp at all"


def of_every_family(kind):
    """Return a report with every variant of every family; one variant is wrong, one skipped."""
    figures = {"counters": COUNTERS}
    if kind == "gpu":
        figures = {
            "time_ms": TIME, "call_us": TIME, "end_to_end_ms": 12345.6, "gbps": 4123.4, "of_ceiling": 1.2345,
            "tflops": 1234.5,
        }  # fmt: skip
    rows = []
    for family in ops.families().values():
        shape = list(max(family.shapes[kind], key=lambda shape: len(shape_text(shape))))
        common = {"ceiling": family.ceiling}
        rows.append(row(family.name, "cpu", shape, time_ms=TIME, **common))
        for variant in family.variants:
            rows.append(row(family.name, variant.name, shape, rung=family.rung(variant), **common, **figures))
        rows[-1] |= {"ok": False, "why": f"element (0, 1, 2) is 12345.0\nand {REASON}"}
        rows.append(row(family.name, "peer:torch-flash", shape, ok=None, skipped=REASON, **common))
    return {
        "device": {"name": f"a {kind}", "kind": kind, "arch": "sm_90a", "driver": "1", "nvrtc": "2"},
        "date": "2026-01-02", "ceilings": {"copy": [], "fp32_tflops": 60.0}, "rows": rows,
    }  # fmt: skip


def calls_of_the_simulated_device():
    report = json.loads(json.dumps(load("h200/calls.json")))
    report["device"]["kind"] = "sim"
    for one in report["rows"]:
        one |= {"call_us": None, "loop_us": None}
    report["rows"][3] |= {"ok": False, "why": REASON}
    report["rows"][-1] |= {"skipped": REASON}
    return report


def changed(kind):
    """Return two reports in which every second row differs."""
    old, new = of_every_family(kind), of_every_family(kind)
    for number, one in enumerate(new["rows"]):
        if number % 2 and one["time_ms"]:
            one["time_ms"] = {key: value * (20 if number % 4 == 1 else 0.05) for key, value in TIME.items()}
        if number % 2 and one["counters"]:
            one["counters"] = {key: value * 1.5 for key, value in COUNTERS.items()}
    del old["rows"][3], new["rows"][5]
    return old, new


def against(kind):
    old, new = changed(kind)
    return lambda console: regression_tables.show(
        regression.compare(old, new), old, new, "profiles/h200/old.json", console
    )


def bench(report):
    return lambda console: tables.show(report, console)


def of_example(name, report):
    return lambda console: programs.example(name).show(report, console)


def profile(name):
    return lambda console: profile_tables.show(load(name), console)


def reports(folder, key):
    """Return the committed reports that a writer supports, by name."""
    return sorted(f"{folder}/{path.name}" for path in (PROFILES / folder).glob("*.json") if key(path))


KINDS = {
    "bench of every family on a GPU": lambda: bench(of_every_family("gpu")),
    "bench of every family on the simulated device": lambda: bench(of_every_family("sim")),
    **{
        f"bench {name}": lambda name=name: bench(load(f"h200/{name}.json"))
        for name in ("gemm", "attention", "softmax", "streams", "batched_gemm", "libraries", "several_devices_busy")
    },
    "bench softmax, counted": lambda: bench(load("sim/softmax.json")),
    "against, on a GPU": lambda: against("gpu"),
    "against, on the simulated device": lambda: against("sim"),
    "profile gemm": lambda: profile("h200/profile_gemm.json"),
    "profile softmax": lambda: profile("h200/profile_softmax.json"),
    "profile of the bench's blocks": lambda: profile("h200/profile_softmax_blocks.json"),
    "call_overhead": lambda: of_example("call_overhead", load("h200/calls.json")),
    "call_overhead, simulated": lambda: of_example("call_overhead", calls_of_the_simulated_device()),
    "launch_overhead": lambda: of_example("launch_overhead", load("h200/launch_overhead.json")),
    "launch_mistakes": lambda: of_example("launch_mistakes", load("h200/launch_mistakes.json")),
    "iterate": lambda: of_example("iterate", load("h200/iterate.json")),
    "simulator_speed": lambda: of_example("simulator_speed", load("sim/speed.json")),
}


NUMBER = re.compile(r"(?<![\w.,])[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?![\w])")


def is_rule(line):
    return line.startswith("----") and set(line) == {"-"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_fits_and_cuts_nothing(kind):
    show = KINDS[kind]()
    whole = Screen(10_000)
    show(whole.console)
    numbers, words = set(NUMBER.findall(whole.text.getvalue())), set(whole.text.getvalue().split())
    rows = sum(map(is_rule, whole.lines))
    assert rows, "no table was shown"
    for width in WIDTHS:
        screen = Screen(width)
        show(screen.console)
        text = screen.text.getvalue()
        assert "…" not in text
        assert max(map(len, screen.lines)) <= width
        notes = " ".join(text.split())
        for unseen in re.findall(r"left out at \d+ columns: (.*?) \(use a wider terminal or --json\)", notes):
            assert all(heading in " ".join(whole.text.getvalue().split()) for heading in unseen.split("; "))
            text = re.sub(rf"left out at {width} columns:", "", text)
        shown = re.sub(r"\(use\s+a\s+wider\s+terminal\s+or\s+--json\)|;", "", text)
        assert set(NUMBER.findall(shown)) <= numbers, "a number was cut"
        odd = {word for word in shown.split() if word not in words and not set(word) <= {"-"}}
        assert {word for word in odd if f"{word};" not in words} == set(), "a word was cut"
        assert sum(map(is_rule, screen.lines)) == rows


def test_softmax_takes_about_one_line_per_row_at_80_columns():
    report = load("sim/softmax.json")
    screen = Screen(80)
    tables.show(report, screen.console)
    rows, shapes, variants = len(report["rows"]), len(tables.by_shape(report["rows"])), 20
    assert len(screen.lines) <= rows + 12 * shapes + 2 * variants


def test_the_text_of_a_progress_bar_is_not_cut():
    from rich.console import Console

    text = io.StringIO()
    with cli.progress(Console(file=text, width=40, force_terminal=True), 2) as step:
        step("softmax_backward 1024x131072 bfloat16 scaled split_row, timed")
    assert "…" not in text.getvalue()
    assert "split_row" in text.getvalue()


def columns(**leave):
    return [terminal.Column(name, ["1234567890"] * 2, order) for name, order in leave.items()]


@pytest.mark.parametrize(
    ("width", "shown"), [(34, ["a", "b", "c"]), (33, ["a", "c"]), (22, ["a", "c"]), (21, ["a"]), (5, ["a"])]
)
def test_columns_are_left_out_in_the_order_they_state(width, shown):
    assert [column.heading for column in terminal.fit(columns(a=0, b=2, c=1), width)[0]] == shown


def test_what_was_left_out_is_named_with_the_way_to_see_it():
    screen = Screen(25)
    terminal.show_table(screen.console, "title", columns(a=0, b=2, c=1))
    notes = " ".join(" ".join(screen.lines[-3:]).split())
    assert notes == "left out at 25 columns: b (use a wider terminal or --json)"


def test_reasons_are_notes_with_a_mark_one_per_text():
    notes = terminal.Notes()
    cells = [notes.verdict(text) for text in ("yes", "NO: wrong", "skipped: too long", "NO: wrong")]
    assert cells == ["yes", "NO [1]", "- [2]", "NO [1]"]
    assert notes.lines() == ["[1] NO: wrong", "[2] skipped: too long"]


def test_text_wraps_at_words_and_never_cuts_one():
    path = "/a/path/that/is/longer/than/the/line.cu"
    text = f"  one two three four {path}\nshort\n    y[i] = x[i];"
    wrapped = terminal.wrapped(text, 20).split("\n")
    assert wrapped == ["  one two three four", f"    {path}", "short", "    y[i] = x[i];"]
    assert terminal.wrapped(text, None) == text


COMMANDS = {
    "info": ["info"],
    "compile": ["compile", "vector_add/01_vector_add.cu"],
    "check": ["check", "vector_add/01_vector_add.cu", "--arch", "sm_90a", "--examples", "1", "--seed", "1"],
    "a family that is not there": ["bench", "softmx"],
    "a variant that is not there": ["bench", "softmax", "--variants", "best"],
    "no command": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_commands_say_wraps_at_words(command, capsys, monkeypatch):
    """Only a path or a C++ signature may be longer than the line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    command_line.main(COMMANDS[command])
    whole = "".join(capsys.readouterr())
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        command_line.main(COMMANDS[command])
        text = "".join(capsys.readouterr())
        assert text.split() == whole.split()
        assert all(len(line) <= width or len(line.split()) == 1 for line in text.splitlines())


def test_help_wraps_at_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in command_line.COMMANDS:
        with pytest.raises(SystemExit):
            command_line.main([command, "--help"])
        lines = capsys.readouterr().out.splitlines()
        long = [line for line in lines if len(line) > 80]
        assert not long


def test_the_outcome_of_fuzzing_wraps_at_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = fuzzing.FuzzOutcome(
        "softmax", ["registers"], "Simulated H200 (sm_90a)", 1234567890, 200, 150, 50, different={"registers": 140}
    )
    monkeypatch.setattr(fuzzing, "run", lambda *arguments: found)
    arguments = SimpleNamespace(
        family="softmax", device="sim", variants=None, examples=1, seed=None, elements=None, checks=None
    )
    assert fuzzing.fuzz(arguments) == cli.EXIT_OK
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.split() == found.text().split()


def test_a_table_for_a_file_has_every_column(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.consoles(SimpleNamespace(json=None, quiet=False))[0].width == terminal.UNBOUNDED
    monkeypatch.setenv("COLUMNS", "93")
    assert cli.consoles(SimpleNamespace(json=None, quiet=False))[0].width == 93
    assert shutil.get_terminal_size().columns == 93
    screen = Screen(terminal.UNBOUNDED)
    for kind in ("gpu", "sim"):
        tables.show(of_every_family(kind), screen.console)
    assert "left out" not in screen.text.getvalue()


def order(columns):
    """Return the headings in the order of omission, as the page shows them."""
    kept = [column for column in columns if column.only != "page"]
    dropped = sorted((column for column in kept if column.leave), key=lambda column: -column.leave)
    return [column.heading for column in dropped], [column.heading for column in kept if not column.leave]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("bandwidth", tables.TIMED),
        ("arithmetic", tables.TIMED_FLOPS),
        ("counters", tables.COUNTED),
        ("pipelines", tables.STREAMED),
    ],
)
def test_the_page_states_the_order(name, columns):
    page = (ROOT / "docs" / "benching.md").read_text(encoding="utf-8")
    stated = re.search(rf"^\| {name} \| (.*) \| (.*) \|$", page, re.MULTILINE)
    dropped, kept = order(columns)
    plain = [heading.removesuffix(", us").removesuffix(", ms") for heading in dropped]
    assert stated.groups() == (", ".join(plain), ", ".join(kept))
