"""Profiles: running ncu and its failures; reports reduced, explained and drawn. Rows are tested on metrics that ncu
recorded on an H200 (tests/data/ncu)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit import __main__ as command_line
from cudakit import profiling
from cudakit.commands import cli
from cudakit.commands import profile as command
from cudakit.errors import Refused
from cudakit.profiling import binding, ceilings, metrics, runner
from cudakit.profiling.reading import ProfiledLaunch, find_reader
from cudakit.profiling.reduction import range_of
from cudakit.show import outputs, profile_tables
from cudakit.show.plots import roofline

RECORDED = json.loads((ROOT / "tests" / "data" / "ncu" / "h200.json").read_text())


def launches(family):
    """Return the launches that `read_report` returned on an H200: softmax 8192x8192, gemm 2048 and attention
    8x16x16x2048x2048x128."""
    keys = ("kernel", "ranges", "grid", "block", "metrics", "facts")
    return [
        ProfiledLaunch(**{key: tuple(one[key]) if isinstance(one[key], list) else one[key] for key in keys})
        for one in RECORDED[family]
    ]


@pytest.fixture(scope="module")
def rows():
    """The rows of each family by variant and kernel."""
    found = {}
    for family in RECORDED:
        for row in profiling.reduce(launches(family)):
            found[row["family"], row["variant"], row["kernel"]] = row
    return found


# Rows -----------------------------------------------------------------------------------------------------------------


def test_flops_are_those_of_the_algorithm(rows):
    """A product has 2 MNK, counted from executed instructions; attention has 4 BHNND, all on tensor cores."""
    for variant, kernel in (("naive", "naive"), ("tiled16", "tiled"), ("pipelined", "pipelined")):
        assert rows["gemm", variant, kernel]["flops"] == pytest.approx(2 * 2048**3, rel=0.01)
        assert not rows["gemm", variant, kernel]["tensor_flops"]
    flash = rows["attention", "flash", "flash"]
    assert flash["tensor_flops"] == pytest.approx(4 * 8 * 16 * 2048 * 2048 * 128, rel=1e-6)
    assert flash["flops"] > flash["tensor_flops"], "the softmax runs on the FMA pipe"
    assert rows["gemm", "pipelined", "pipelined"]["tflops"] == pytest.approx(49.9, abs=0.1)


def test_bytes_are_those_that_must_move(rows):
    """A softmax that reads each element once. The last of its output may still be in the L2 at the end."""
    row = rows["softmax", "registers", "registers"]
    assert row["dram_bytes_read"] == pytest.approx(8192 * 8192 * 4, rel=0.01)
    assert 0.85 < row["dram_bytes_written"] / (8192 * 8192 * 4) <= 1.0
    assert row["gbps"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3, rel=1e-5)
    assert row["intensity"] == pytest.approx(row["flops"] / row["bytes"], rel=1e-5)
    # The tree reads each row three times; one of these reads hits the L2.
    assert rows["softmax", "tree_reduce", "tree_reduce"]["dram_bytes_read"] > 1.5 * row["dram_bytes_read"]


def test_naive_and_tiled_tell_their_story(rows):
    """A tile in shared memory: the L1 no longer serves repeated reads, and stalls move to shared memory."""
    naive, tiled = rows["gemm", "naive", "naive"], rows["gemm", "tiled16", "tiled"]
    assert naive["l1_hit"] > 0.85 > 0.1 > tiled["l1_hit"]
    assert next(iter(naive["stalls"])) == "long_scoreboard"
    assert next(iter(tiled["stalls"])) == "short_scoreboard"
    assert naive["dram_share"] < 0.01, "48 MB of operands hardly use DRAM"
    assert (naive["binds"], tiled["binds"]) == ("L1 data path", "shared memory")


def test_a_coalesced_load_touches_four_sectors(rows):
    assert rows["softmax", "tree_reduce", "tree_reduce"]["sectors_per_load"] == pytest.approx(4, abs=0.1)
    assert rows["softmax", "thread_per_row", "thread_per_row"]["sectors_per_load"] == pytest.approx(32, abs=0.1)
    assert rows["softmax", "registers", "registers"]["sectors_per_load"] == pytest.approx(16, abs=0.1)
    # A is read with a stride of one row (16 sectors), B by all lanes together (1).
    assert rows["gemm", "naive_uncoalesced", "naive_uncoalesced"]["sectors_per_load"] == pytest.approx(8.5, abs=0.1)


@pytest.mark.parametrize(
    ("family", "variant", "kernel", "limit"),
    [
        ("softmax", "tree_reduce", "tree_reduce", ""),
        ("softmax", "registers", "registers", "registers"),
        ("softmax", "thread_per_row", "thread_per_row", "grid"),
        ("softmax", "serial_block", "serial_block", "blocks"),
        ("gemm", "pipelined", "pipelined", "registers and shared memory"),
        ("attention", "fused_rows", "fused_rows", "shared memory"),
    ],
)
def test_what_limits_occupancy(rows, family, variant, kernel, limit):
    row = rows[family, variant, kernel]
    assert row["limited_by"] == limit
    assert row["occupancy"] <= row["occupancy_theoretical"] + 0.01


BINDS = {
    "softmax": {
        "thread_per_row": "small grid",
        "serial_block": "idle lanes",
        "block_serial_reduce": "memory latency",
        "tree_reduce": "memory latency",
        "registers": "DRAM bandwidth",
        "chunk_sums": "instruction issue",
        "chunk_scale": "DRAM bandwidth",
    },
    "gemm": {
        "naive_uncoalesced": "L1 data path",
        "naive": "L1 data path",
        "tiled": "shared memory",
        "register_1d": "shared memory latency",
        "vec4": "shared memory latency",
        "pipelined": "FMA pipe",
        "sliced": "FMA pipe",
        "stream_k": "FMA pipe",
    },
    "attention": {"scores": "L1 data path", "softmax_rows": "memory latency", "flash": "tensor pipe"},
}


@pytest.mark.parametrize(("family", "kernel"), [(family, kernel) for family in BINDS for kernel in BINDS[family]])
def test_what_binds_each_rung(rows, family, kernel):
    found = [row for key, row in rows.items() if key[0] == family and key[2] == kernel]
    assert {row["binds"] for row in found} == {BINDS[family][kernel]}
    for row in found:
        assert row["sentence"].endswith(".")
        assert row["sentence"][0].isupper()


def test_the_sentence_says_why(rows):
    assert "3.4 times the sectors" in rows["gemm", "naive_uncoalesced", "naive_uncoalesced"]["sentence"]
    assert "times the sectors" not in rows["gemm", "naive", "naive"]["sentence"]
    assert "bank conflicts multiply the wavefronts of shared memory by 1.7" in rows["gemm", "vec4", "vec4"]["sentence"]
    assert "there are no bank conflicts" in rows["gemm", "tiled32", "tiled"]["sentence"]
    assert "32 blocks keeps 24 %" in rows["softmax", "thread_per_row", "thread_per_row"]["sentence"]
    assert "limited by registers" in rows["gemm", "register_2d", "register_2d"]["sentence"]


def test_the_fullest_unit_binds_and_not_the_first(rows):
    """Each share is relative to the unit's own limit: 84 % of DRAM's peak is closer to it than 85 % of the issue
    slots."""
    row = dict(rows["softmax", "registers", "registers"])
    assert binding.explain(row | {"issue_share": 0.85})["binds"] == "DRAM bandwidth"
    assert binding.explain(row | {"issue_share": 0.99})["binds"] == "instruction issue"
    assert binding.explain(row | {"dram_share": 0.69})["binds"] == "memory latency"
    assert binding.explain(row | {"tensor_share": 0.70})["binds"] == "tensor pipe"
    assert binding.explain(row | {"multiprocessors_busy": 0.5})["binds"] == "small grid"
    fences = binding.explain(row | {"dram_share": 0.1, "stalls": {"membar": 0.5, "barrier": 0.2}})
    assert fences["binds"] == "memory fences"
    products = binding.explain(row | {"dram_share": 0.1, "stalls": {"gmma": 0.5, "barrier": 0.2}})
    assert products["binds"] == "wgmma latency"


def test_shares_of_waiting_add_up(rows):
    for row in rows.values():
        assert sum(row["stalls"].values()) + row["ready"] == pytest.approx(1, abs=0.05)
        assert list(row["stalls"].values()) == sorted(row["stalls"].values(), reverse=True)


def test_a_metric_that_was_not_collected_is_a_gap_and_not_a_zero():
    (whole,) = [launch for launch in launches("gemm") if launch.kernel == "pipelined"]
    kept = {name: whole.metrics[name] for name in (metrics.DURATION, metrics.SHARES["dram_share"])}
    (row,) = profiling.reduce([dataclasses.replace(whole, metrics=kept, facts={})])
    assert row["time_us"] == pytest.approx(344.352)
    assert row["dram_share"] is not None
    assert [row[key] for key in ("flops", "gbps", "occupancy", "sectors_per_load", "intensity")] == [None] * 5
    assert row["stalls"] == {}
    assert row["sentence"] == ""
    report = report_of([row])
    headings = {cell.strip() for cell in profile_tables.markdown(report).split("|")}
    assert headings & {"DRAM", "TFLOP/s", "occupancy"} == {"DRAM"}, "columns without figures are left out"
    assert json.loads(outputs.json_text(report))["rows"][0]["flops"] is None


def test_launches_of_a_range_are_added_up():
    rows = profiling.reduce(launches("gemm"))
    packed = [row for row in rows if row["variant"] == "packed"]
    assert [row["kernel"] for row in packed] == ["pack", "stream_k", "stream_k_join"]
    found = profiling.summed(rows)
    assert [row["variant"] for row in found] == list(dict.fromkeys(row["variant"] for row in rows))
    (whole,) = [row for row in found if row["variant"] == "packed"]
    assert whole["kernel"] == "pack + stream_k + stream_k_join"
    assert whole["time_us"] == pytest.approx(sum(row["time_us"] for row in packed))
    assert whole["flops"] == pytest.approx(sum(row["flops"] for row in packed))
    assert whole["gbps"] == pytest.approx(whole["bytes"] / whole["time_us"] / 1e3, rel=1e-5)
    assert min(row["fma_share"] for row in packed) < whole["fma_share"] < max(row["fma_share"] for row in packed)
    assert whole["sentence"].startswith("3 launches; stream_k, 89 % of the time: ")
    assert whole["binds"] == "FMA pipe"
    (loop,) = profiling.summed([packed[0]] * 500)
    assert loop["kernel"] == "500 x pack"


def test_a_launch_goes_by_the_range_that_names_its_rung():
    assert range_of(("step", "softmax.registers", "launch registers")) == "softmax.registers"
    assert range_of(("epoch", "launch scale")) == "epoch", "cudakit's own ranges do not name the purpose of a launch"
    assert range_of(("epoch", "step")) == "step"
    assert range_of(("launch scale",)) == ""
    assert range_of(("launch phase", "launch scale")) == "launch phase", "a user's range may have this name"
    assert range_of(("bench", "gemm.cublas", "cublas.gemm")) == "gemm.cublas", "a variant may be a library call"
    assert range_of(("epoch", "cublas.gemm")) == "cublas.gemm"
    assert range_of(()) == ""


# Reports --------------------------------------------------------------------------------------------------------------


def report_of(rows, **named):
    report = {
        "device": {"name": "NVIDIA H200", "kind": "gpu", "arch": "sm_90", "driver": None, "nvrtc": None},
        "command": "examples/gemm.py",
        "ncu": "2025.3.1.0",
        "date": "2026-11-21",
        "ceilings": {},
        "rows": rows,
    }
    return report | named


def test_the_markdown_names_each_launch_and_its_sentence(rows):
    found = [row for key, row in rows.items() if key[0] == "gemm"]
    text = profile_tables.markdown(
        report_of(found, ceilings={"copy": ceilings.Ceiling("copy", "gbps", "dram", 4195.3, True, "x").as_dict()})
    )
    lines = text.splitlines()
    tables_of = [text.splitlines() for text in text.split("\n\n") if text.startswith("| launch")]
    assert [len(one) for one in tables_of] == [len(found) + 2] * 2, "one line per launch in both"
    for one in tables_of:
        assert len({line.count("|") for line in one}) == 1, "each row has as many cells as the heading"
    assert any(line.startswith("| tiled16 | 2,107 | 8.16 | ") for line in lines)
    assert any(line.startswith("| packed: stream_k | ") for line in lines)
    assert "- `pipelined`: The FMA pipe is 78 % busy, and instructions are issued in 86 % of the cycles." in lines
    assert lines[-1] == "copy 4,195 GB/s; NVIDIA H200, sm_90, ncu 2025.3.1.0, 2026-11-21"


@pytest.mark.parametrize("family", ["softmax", "gemm", "attention"])
def test_the_committed_profiles_are_whole(family):
    """Each variant of the family that supports the shape has a row with its figures; the ceilings are measured."""
    report = outputs.load(ROOT / "profiles" / "h200" / f"profile_{family}.json")
    there = {row["variant"] for row in report["rows"]}
    assert {row["variant"] for row in profiling.reduce(launches(family))} <= there
    for row in report["rows"]:
        assert row["sentence"]
        assert row["time_us"] > 0
        assert row["family"] == family
    assert [one for one in report["ceilings"].values() if one["pipe"] == "dram" and one["measured"]]
    for ceiling in report["ceilings"].values():
        if ceiling["kind"] == "tflops" and ceiling["measured"]:
            pipe = "tensor_flops" if ceiling["pipe"] == "tensor" else "flops"
            assert ceiling["value"] > 1, f"{ceiling} is not a ceiling of {pipe}"


def test_the_page_explains_every_metric_that_a_row_is_made_of():
    page = (ROOT / "docs" / "profiling.md").read_text()
    for name in (*metrics.SHARES.values(), *metrics.COUNTS.values(), *metrics.LIMITS.values(), metrics.LOCAL[0]):
        assert name in page, f"docs/profiling.md does not explain {name}"
    for reason in metrics.STALLS:
        assert reason in page
    for unit in binding.FULL:
        assert f"{100 * unit.full:.0f} %" in page
        assert unit.name in page


# Reading --------------------------------------------------------------------------------------------------------------


class Metric:
    def __init__(self, value):
        self._value = value

    def value(self):
        return self._value


class Domain:
    def __init__(self, name, ranges):
        self._name, self._ranges = name, ranges

    def name(self):
        return self._name

    def push_pop_ranges(self):
        return self._ranges


class State:
    def __init__(self, *domains):
        self._domains = domains

    def domains(self):
        return range(len(self._domains))

    def domain_by_id(self, number):
        return self._domains[number]


class Action:
    """A launch as ncu's reader represents it, with the methods used here."""

    def __init__(self, name, values, state):
        self._name, self._values, self._state = name, values, state

    def name(self, base=0):
        return self._name if base == 0 else f"void {self._name}<16>(const float *)"

    def metric_names(self):
        return tuple(self._values)

    def metric_by_name(self, name):
        return Metric(self._values[name])

    def nvtx_state(self):
        return self._state


class Actions:
    def __init__(self, *actions):
        self._actions = actions

    def num_ranges(self):
        return 1

    def range_by_idx(self, number):
        return self

    def num_actions(self):
        return len(self._actions)

    def action_by_idx(self, index):
        return self._actions[index]


@pytest.fixture
def reader(monkeypatch):
    """Replace ncu_report, which is part of ncu: after `reader(*actions)` every report has these actions."""

    def make(*actions):
        module = types.ModuleType("ncu_report")
        module.IAction = types.SimpleNamespace(NameBase_DEMANGLED=1)
        module.load_report = lambda path: Actions(*actions)
        monkeypatch.setitem(sys.modules, "ncu_report", module)

    return make


VALUES = {
    "launch__grid_dim_x": 8, "launch__grid_dim_y": 2, "launch__grid_dim_z": 1, "launch__block_dim_x": 256,
    "gpu__time_duration.sum": 1500.0, "broken": float("nan"), "device__attribute_display_name": "NVIDIA H200",
}  # fmt: skip


def test_a_report_is_read_launch_by_launch(reader, tmp_path):
    state = State(Domain("<default domain>", ("torch",)), Domain("cudakit", ("outer", "gemm.tiled16")))
    reader(Action("tiled", VALUES, state), Action("bare", {"gpu__time_duration.sum": 1}, None))
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"")
    tiled, bare = profiling.read_report(path)
    assert (tiled.kernel, tiled.demangled) == ("tiled", "void tiled<16>(const float *)")
    assert tiled.ranges == ("outer", "gemm.tiled16"), "outermost first, and only cudakit's domain"
    assert (tiled.grid, tiled.block) == ((8, 2, 1), (256, 1, 1))
    assert tiled.metrics["gpu__time_duration.sum"] == 1500
    assert "broken" not in tiled.metrics, "values that are not numbers are left out"
    assert tiled.facts == {"device__attribute_display_name": "NVIDIA H200"}
    assert bare.ranges == ()
    (torch, _) = profiling.read_report(path, domain="<default domain>")
    assert torch.ranges == ("torch",)


def test_a_report_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(profiling.ProfilerError, match=r"there is no report .*x\.ncu-rep"):
        profiling.read_report(tmp_path / "x.ncu-rep")


def test_without_ncus_reader_it_says_where_that_comes_from(monkeypatch, tmp_path):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setattr("cudakit.profiling.reading.find_reader", lambda ncu: None)
    with pytest.raises(profiling.ProfilerError, match="comes with Nsight Compute in extras/python"):
        profiling.read_report(path)


@pytest.mark.parametrize("layout", ["alone", "toolkit", "target"])
def test_the_reader_is_found_beside_ncu(tmp_path, layout):
    home = tmp_path / "nsight-compute-2025.3.1"
    folder = home / "extras" / "python"
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").write_text("")
    places = {
        "alone": home / "ncu",
        "toolkit": tmp_path / "bin" / "ncu",  # a script that starts ncu in its own folder
        "target": home / "target" / "linux-desktop-glibc_2_11_3-x64" / "ncu",
    }
    ncu = places[layout]
    ncu.parent.mkdir(parents=True, exist_ok=True)
    ncu.write_text("")
    link = tmp_path / "link" / "ncu"
    link.parent.mkdir()
    link.symlink_to(ncu)
    assert find_reader(str(ncu)) == folder
    assert find_reader(str(link)) == folder


# Running --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function: `stand_in(text)` creates a fake ncu, a shell script that prints its arguments and then runs
    `text`."""
    home = tmp_path / "ncu home"
    home.mkdir()

    def make(text):
        ncu = home / "ncu"
        ncu.write_text(f'#!/bin/sh\nfor one in "$@"; do echo "argument $one"; done\n{text}\n')
        ncu.chmod(0o755)
        monkeypatch.setenv("PATH", str(home), prepend=os.pathsep)
        return ncu

    return make


# Writes the report named by the flags.
WRITES = 'while [ "$1" != --export ]; do shift; done; echo report > "$2"'


def test_ncu_gets_the_flags(stand_in, tmp_path):
    stand_in(WRITES)
    lines = []
    report = tmp_path / "x.ncu-rep"
    profiling.run_ncu(
        ["python", "-c", "pass; x"], report, kernels="^soft", ranges=["cudakit@softmax.registers/"], line=lines.append
    )
    given = [line.removeprefix("argument ") for line in lines]
    assert "--set full" in " ".join(given)
    assert " ".join(given).startswith("--nvtx --clock-control none --force-overwrite --export")
    assert given[given.index("--kernel-name") + 1] == "regex:^soft"
    assert given[given.index("--nvtx-include") + 1] == "cudakit@softmax.registers/"
    assert given[-3:] == ["python", "-c", "pass; x"], "the command comes last, unchanged"
    assert report.read_text() == "report\n"
    lines.clear()
    profiling.run_ncu(["x"], report, metrics=["a.sum", "b.sum"], line=lines.append)
    assert "argument a.sum,b.sum" in lines
    assert "argument --set" not in lines, "only these metrics are collected"


FAILURES = {
    "permission": (
        'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"; exit 1',
        ["ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0", "root"],
    ),
    "no kernel": (
        'echo "cudakit: using sim:sm_90a"; echo "==WARNING== No kernels were profiled."',
        ["No kernels were profiled", "launched no kernel on a GPU", "using sim:sm_90a"],
    ),
    "the script": (
        'echo "ZeroDivisionError: x"; echo "==ERROR== The application returned an error code (1)."; exit 1',
        ["returned an error code (1)", "without the profiler", "ZeroDivisionError: x"],
    ),
    "a wrong metric": (
        'echo "==ERROR== Failed to find metric no__such.sum"; exit 1',
        ["no__such.sum", "--query-metrics"],
    ),
    "nothing said": ("exit 9", ["exit status 9"]),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_said_in_ncus_words_and_what_to_do(stand_in, tmp_path, case):
    text, expected = FAILURES[case]
    stand_in(text)
    report = tmp_path / "x.ncu-rep"
    report.write_text("an old one")
    with pytest.raises(profiling.ProfilerError) as caught:
        profiling.run_ncu(["work"], report)
    for words in expected:
        assert words in str(caught.value)
    assert not report.exists(), "an old report must not pass for a new one"


def test_what_was_profiled_before_a_failure_is_kept(stand_in, tmp_path):
    stand_in(f'({WRITES})\necho "==ERROR== The application returned an error code (1)."\nexit 1')
    with pytest.raises(profiling.ProfilerError, match=r"until then are in .*x\.ncu-rep: read it with --import"):
        profiling.run_ncu(["work"], tmp_path / "x.ncu-rep")


def test_without_ncu_it_says_where_it_was_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "find_ncu", lambda: None)
    with pytest.raises(profiling.ProfilerError, match=r"not found in PATH.*install Nsight Compute"):
        profiling.run_ncu(["work"], tmp_path / "x.ncu-rep")


def test_ncu_is_found_where_the_toolkit_puts_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ncu").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert profiling.find_ncu() == str(tmp_path / "bin" / "ncu")


def test_its_version(stand_in):
    ncu = stand_in('echo "Version 2025.3.1.0 (build 36398880) (public-release)"')
    assert profiling.ncu_version(str(ncu)) == "2025.3.1.0"
    assert profiling.ncu_version(str(ncu.parent / "absent")) == ""


def test_a_script_a_module_or_a_program(tmp_path):
    script = tmp_path / "work.py"
    script.write_text("")
    assert runner.script_command(str(script), ["--n", "3"]) == [sys.executable, str(script), "--n", "3"]
    assert runner.script_command("json.tool", [], module=True) == [sys.executable, "-m", "json.tool"]
    assert runner.script_command("sh", ["-c", "true"]) == [shutil.which("sh"), "-c", "true"]
    with pytest.raises(profiling.ProfilerError, match=r"no script .*absent\.py"):
        runner.script_command(str(tmp_path / "absent.py"), [])


def test_a_family_is_profiled_by_its_bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("""
from cudakit import Family, Launch

TWICE = Family("twice", reference=lambda x: 2 * x, inputs={"x": "float32[n]"})


@TWICE.variant("twice.cu")
def twice(p):
    return Launch(1, 1)
""")
    bench = [sys.executable, "-m", "cudakit", "bench"]

    def read(*words):
        arguments = command_line.build_parser().parse_args(["profile", *words])
        return command.command_of(arguments), command.stem_of(arguments)

    own = read("mine.py:TWICE", "--shapes", "100", "--variants", "twice")
    assert own == ([*bench, "mine.py:TWICE", "--shapes", "100", "--variants", "twice"], Path("twice"))
    assert read("softmax") == ([*bench, "softmax"], Path("softmax"))
    assert read("mine.py") == ([sys.executable, "mine.py"], Path("mine"))
    with pytest.raises(Refused, match="has no family 'TWISE'; it has TWICE"):
        read("mine.py:TWISE")
    (tmp_path / "softmax").mkdir()
    with pytest.raises(profiling.ProfilerError, match="no script softmax"):
        read("softmax")


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = command_line.main(["profile", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_the_command_says_all_that_is_missing(run, monkeypatch):
    monkeypatch.setattr(runner, "find_ncu", lambda: None)
    monkeypatch.setattr(
        command.driver, "open", lambda spec: (_ for _ in ()).throw(cudakit.DeviceUnavailable("no GPU."))
    )
    Path("work.py").write_text("")
    status, _, err = run("work.py")
    assert status == cli.EXIT_REFUSED
    assert "Nsight Compute" in err
    assert "a profile needs a GPU: no GPU." in err
    assert "cudakit check FILE.cu --annotate" in err, "advice for a machine without a GPU"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name either a script to profile or"),
        (["--import", "x.ncu-rep", "work.py"], "name either a script"),
        (["--import", "absent.ncu-rep"], "--import absent.ncu-rep: the file does not exist"),
        (["absent.py"], "there is no script absent.py"),
        (["--output", "nowhere/x", "work.py"], "the folder nowhere does not exist"),
        (["--ceilings", "absent.json", "work.py"], "absent.json cannot be read"),
        (["--ceilings", "rows.json", "work.py"], "--ceilings rows.json: not a report of a bench or a profile"),
        (["--ceilings", "half.json", "work.py"], "--ceilings half.json: not a report of a bench or a profile"),
        (["--import", "rows.json", "--output", "x"], "--import rows.json: not a report of `cudakit profile`"),
        (["--import", "half.json", "--output", "x"], "--import half.json: not a report of `cudakit profile`"),
        (["notes.py"], "notes.md: not written by a profile, so not replaced. Pass another name: --output STEM"),
        (["rows.py"], "rows.json: not written by a profile"),
        (["figure.py"], "figure.png: not written by a profile"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(run, stand_in, arguments, why):
    stand_in("touch ran")
    for script in ("work.py", "notes.py", "rows.py", "figure.py", "notes.md", "figure.png"):
        Path(script).write_text("")
    Path("rows.json").write_text('{"rows": [{"kernel": "x"}]}')
    Path("half.json").write_text('{"ncu": "2025.3", "rows": [{"kernel": "x"}]}')  # as profiles/h200/counters.json
    Path("x.ncu-rep").write_text("")
    status, _, err = run(*arguments)
    assert status == cli.EXIT_REFUSED
    assert why in err
    assert not Path("ran").exists()


def test_the_whole_command(run, stand_in, reader, monkeypatch):
    """From ncu to the four files, with recorded data from a replaced reader."""
    pytest.importorskip("matplotlib")
    stand_in(f'echo "hello of the script"\necho "==PROF== Profiling \\"tiled\\" - 0: 0%....100% - 38 passes"\n{WRITES}')
    monkeypatch.setattr(command, "missing", list)
    state = lambda launch: State(Domain("cudakit", launch.ranges))  # noqa: E731
    reader(*(Action(one.kernel, {**one.metrics, **one.facts}, state(one)) for one in launches("gemm")))
    Path("work.py").write_text("")
    bench = str(ROOT / "profiles" / "h200" / "gemm.json")
    arguments = ["--ceilings", bench, "--no-measure", "--ranges", "gemm.tiled16", "work.py", "--shapes", "2048"]
    status, out, err = run(*arguments)
    assert status == cli.EXIT_OK, err
    assert "hello of the script" in err, "the script's output is shown"
    assert "argument cudakit@gemm.tiled16/" in err
    report = json.loads(Path("work.json").read_text())
    assert report["command"] == "work.py --shapes 2048"
    assert report["device"]["name"] == "NVIDIA H200"
    assert report["device"]["arch"] == "sm_90"
    assert report["rows"] == profiling.reduce(launches("gemm"))
    assert report["ceilings"]["copy"]["source"] == bench
    assert "gemm.pipelined" in out
    assert "FMA pipe" in out
    assert "| pipelined |" in Path("work.md").read_text()
    assert Path("work.png").read_bytes().startswith(b"\x89PNG")
    assert Path("work.ncu-rep").is_file()

    # The results can be read again without ncu, summed, and written elsewhere.
    Path("there").mkdir()
    status, out, err = run("--import", "work.json", "--output", "there", "--sum", "--json", "-")
    assert status == cli.EXIT_OK, err
    again = json.loads(out)
    assert again["ceilings"] == report["ceilings"]
    assert len(again["rows"]) == len({row["variant"] for row in report["rows"]})
    assert Path("there/work.png").is_file()
    assert not Path("there/work.json").exists(), "its JSON went to stdout"
    status, out, err = run("--import", "work.json", "--ceilings", bench, "--json", "-", "--quiet")
    assert json.loads(out)["ceilings"] == report["ceilings"], "ceilings of the data sheet are kept"
    status, _, err = run("--import", bench)
    assert status == cli.EXIT_REFUSED
    assert "not a report of `cudakit profile`" in err
    status, _, err = run("--import", "work.json", "--sum")
    assert status == cli.EXIT_REFUSED
    assert "the sums would replace the rows in work.json" in err
    assert json.loads(Path("work.json").read_text()) == report
    # A second profile replaces all files of the first.
    assert run(*arguments)[0] == cli.EXIT_OK


# Ceilings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "steps"), [("fma", 10), ("mma", 3)])
def test_the_peaks_kernels_do_what_they_are_counted_for(sim, which, steps):
    """Each FLOP counted for a peak changes the result."""
    with sim.stream() as stream:
        launch, out, flops = ceilings.run_peak(sim, which, 1, steps, stream=stream, noise=0)
        with sim.counters() as counted:
            launch()
            stream.synchronize()
        found = out.numpy(stream)
    (counters,) = counted.values()
    warps = ceilings.BLOCK // 32
    if which == "fma":
        # x = x / 2 + 1 halves the distance to 2.
        start = np.arange(16, dtype=np.float64)
        assert found == pytest.approx(np.full(256, np.sum(2 - (2 - start) / 2**steps)))
        assert flops == 2 * 16 * steps * 256
        assert counters.as_dict()["instructions_fp32"] >= 16 * steps * warps
    else:
        assert found == pytest.approx(np.full(256, 16 * 4 * 16 * steps)), "products of ones, k = 16"
        assert counters.as_dict()["instructions_tensor"] == 16 * steps * warps
        assert flops == counters.as_dict()["instructions_tensor"] * 2 * 16 * 8 * 16


def test_the_ceilings_of_a_bench():
    path = ROOT / "profiles" / "h200" / "gemm.json"
    found = {one.name: one for one in ceilings.from_report(outputs.load(path), "gemm.json")}
    assert found["copy"].pipe == "dram"
    assert found["copy"].value == outputs.load(path)["ceilings"]["copy_large"]["gbps"]
    library = [name for name in found if name != "copy"]
    assert len(library) == 1, "the best of equivalent measurements"
    best = max(row["tflops"] for row in outputs.load(path)["rows"] if row["rung"] == 0 or "peer" in row["variant"])
    assert found[library[0]].value == best
    assert found[library[0]].pipe == "fma"
    profile = report_of([], ceilings={name: one.as_dict() for name, one in found.items()})
    assert ceilings.from_report(profile, "x.json") == list(found.values()), "ceilings of another profile can be used"


def test_the_data_sheets_peaks_stand_in_for_measured_ones():
    found = {one.pipe: one for one in ceilings.from_launch(launches("gemm")[0])}
    assert found["dram"].value == pytest.approx(4812, abs=2), "1504 bytes per cycle at 3.2 GHz"
    assert found["fma"].value == pytest.approx(66.9, rel=0.02), "132 multiprocessors x 128 lanes x 2 x 1.98 GHz"
    assert not any(one.measured for one in found.values())


# The roofline ---------------------------------------------------------------------------------------------------------


def overlap(one, other):
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1


@pytest.mark.parametrize("family", ["softmax", "gemm", "attention"])
def test_the_names_in_a_roofline_can_be_read(family):
    """No label overlaps another label, or extends beyond the axes, and each variant has one."""
    pytest.importorskip("matplotlib")
    report = outputs.load(ROOT / "profiles" / "h200" / f"profile_{family}.json")
    figure = roofline.picture(report)
    figure.canvas.draw()
    (axes,) = figure.axes
    under_the_title = report["date"]
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts if under_the_title not in text.get_text()}
    assert {row["variant"] for row in report["rows"]} <= set(boxes)
    level = {text: box for text, box in boxes.items() if "GB/s" not in text}  # a slanted label's box is mostly empty
    for name, box in level.items():
        assert not [other for other in level if other != name and overlap(box, level[other])], name
        assert axes.get_window_extent().x0 <= box.x0
        assert box.x1 <= axes.get_window_extent().x1 + 1
        assert not overlap(box, figure.legends[0].get_window_extent()), name


def test_a_roofline_has_the_lines_of_the_pipes_that_were_used():
    pytest.importorskip("matplotlib")
    found = [
        ceilings.Ceiling("copy", "gbps", "dram", 4200.0, True, "x"),
        ceilings.Ceiling("DRAM, data sheet", "gbps", "dram", 4812.0, False, "x"),
        ceilings.Ceiling("FFMA", "tflops", "fma", 60.0, True, "x"),
        ceilings.Ceiling("mma.sync bfloat16", "tflops", "tensor", 650.0, True, "x"),
    ]
    lines = {one.name: one.as_dict() for one in found}

    def names(family):
        figure = roofline.picture(report_of(profiling.reduce(launches(family)), ceilings=lines))
        return {text.get_text().rpartition(" ")[0] for text in figure.axes[0].texts if "/s" in text.get_text()}

    assert names("gemm") == {"copy 4,200", "FFMA 60"}, "the data sheet's ceiling is drawn only if none was measured"
    assert names("attention") == {"copy 4,200", "FFMA 60", "mma.sync bfloat16 650"}


def test_a_ceiling_far_from_every_launch_is_left_out_of_its_roofline():
    """A launch at a thousandth of the bandwidth; peaks of arithmetic are unknown."""
    pytest.importorskip("matplotlib")
    (slow, *_) = [row for row in profiling.reduce(launches("gemm")) if row["variant"] == "tiled16"]
    slow |= {"intensity": 1.0, "tflops": 0.004}
    copy = ceilings.Ceiling("copy", "gbps", "dram", 4200.0, True, "x").as_dict()
    figure = roofline.picture(report_of([slow], ceilings={"copy": copy}))
    assert not [text for text in figure.axes[0].texts if "GB/s" in text.get_text()]


def test_pipes_of_which_one_was_not_collected(rows):
    (row,) = [row for key, row in rows.items() if key[1] == "tiled16"]
    assert "| 0 % (tensor) |" in profile_tables.markdown(report_of([{**row, "fma_share": None, "tensor_share": 0.0}]))


def test_a_copy_is_no_point_of_a_roofline():
    (packed,) = [row for row in profiling.reduce(launches("gemm")) if row["kernel"] == "pack"]
    with pytest.raises(Refused, match="nothing to draw"):
        roofline.picture(report_of([packed | {"intensity": 0.0, "tflops": 0.0, "flops": 0}]))


# On a GPU -------------------------------------------------------------------------------------------------------------

needs_ncu = pytest.mark.skipif(profiling.find_ncu() is None, reason="needs ncu (Nsight Compute)")

SCRIPT = """
import numpy as np
import cudakit
from cudakit import nvtx

with cudakit.Device("gpu") as dev:
    kernel = dev.compile(source="__global__ void add_one(float* x) { x[blockIdx.x * 256 + threadIdx.x] += 1.0f; }")
    x = dev.array(np.zeros(1 << 22, np.float32))
    with nvtx.range("step.one"):
        kernel["add_one"].launch(dev.default_stream, grid=1 << 14, block=256, args=(x,))
    kernel["add_one"].launch(dev.default_stream, grid=1, block=256, args=(x,))
    dev.synchronize()
"""


@pytest.mark.gpu
@needs_ncu
def test_a_real_profile(gpu, tmp_path):
    script = tmp_path / "work.py"
    script.write_text(SCRIPT)
    options = ["--set", "row", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "cudakit", "profile", *options, str(script)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "work.json").read_text())
    inside, outside = report["rows"]
    assert (inside["range"], outside["range"]) == ("step.one", "")
    assert (inside["kernel"], inside["grid"], inside["block"]) == ("add_one", [1 << 14, 1, 1], [256, 1, 1])
    assert inside["sectors_per_load"] == pytest.approx(4)
    assert inside["flops"] == pytest.approx(1 << 22, rel=0.01)
    assert inside["dram_bytes_read"] == pytest.approx(1 << 24, rel=0.1)
    assert inside["global_sectors"] == inside["global_sectors_ideal"] == 2 * (1 << 24) / 32
    assert outside["binds"] == "small grid"
    assert not [key for key in (*metrics.SHARES, *metrics.COUNTS) if inside[key] is None], "the metrics of --set row"
    assert inside["gbps"] == pytest.approx(inside["bytes"] / inside["time_us"] / 1e3, rel=1e-5)
    for name in ("copy", "FFMA"):
        assert report["ceilings"][name]["measured"]
        assert report["ceilings"][name]["value"] > 0


@pytest.mark.gpu
@needs_ncu
def test_the_committed_reports_can_be_opened():
    """Their values are those of the JSON rows of the same kernels, which were collected with fewer metrics."""
    folder = ROOT / "profiles" / "h200"
    for name, family in (("softmax_tree_reduce_registers", "softmax"), ("gemm_naive_tiled16_pipelined", "gemm")):
        rows = outputs.load(folder / f"profile_{family}.json")["rows"]
        for row in profiling.reduce(profiling.read_report(folder / f"{name}.ncu-rep")):
            (other,) = [one for one in rows if one["range"] == row["range"]]
            assert row["binds"] == other["binds"]
            assert [row[key] for key in ("kernel", "grid", "block")] == [
                other[key] for key in ("kernel", "grid", "block")
            ]
            assert row["flops"] == pytest.approx(other["flops"], rel=0.01)
            assert row["sectors_per_load"] == pytest.approx(other["sectors_per_load"], rel=0.01)


@pytest.mark.gpu
def test_measured_peaks_are_under_the_data_sheets(gpu):
    """A peak above the data sheet's would mean that work was optimised away. Other work on the GPU can only lower
    it."""
    from cudakit.measure.ceilings import fp32_peak

    found = {one.name: one.value for one in ceilings.measure(gpu)}
    assert 0 < found["FFMA"] <= 1.02 * fp32_peak(gpu)
    assert found["mma.sync bfloat16"] > 0
