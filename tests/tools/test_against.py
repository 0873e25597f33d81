"""`cudakit bench --against OLD.json`: regressions, and rejected reports."""

from __future__ import annotations

import copy
import json

import programs
import pytest
from paths import ROOT

from cudakit import __main__ as command_line
from cudakit.commands import against, cli
from cudakit.errors import Refused
from cudakit.measure import regression


def report(kind="gpu", **medians):
    """Return a report with one row per variant; the spread is 1 % around the median."""
    rows = [
        {
            "family": "softmax", "variant": name.replace("peer_", "peer:"), "rung": 1, "shape": [8, 16],
            "dtype": "float32", "mode": "", "ok": True, "call_us": None, "counters": None,
            "time_ms": {"median": median, "p10": 0.99 * median, "p90": 1.01 * median, "n": 50},
        }
        for name, median in medians.items()
    ]  # fmt: skip
    return {
        "device": {"name": "a GPU", "kind": kind, "arch": "sm_90a", "driver": "1", "nvrtc": "2"},
        "date": "2026-01-02", "ceilings": {}, "rows": rows,
    }  # fmt: skip


def changes(old, new):
    found = regression.compare(old, new)
    return {(change.row.split()[1], "slower" if change.slower else "faster") for change in found.changes}


def test_rows_beyond_noise_are_named_slower_and_faster():
    old = report(vec4=1.0, registers=2.0, span=3.0)
    new = report(vec4=1.2, registers=1.6, span=3.01)
    assert changes(old, new) == {("vec4", "slower"), ("registers", "faster")}
    assert regression.compare(old, new).regressed
    assert not regression.compare(new, new).changes
    assert not regression.compare(report(vec4=2.0), report(vec4=1.0)).regressed, "faster is not a regression"


@pytest.mark.parametrize(
    ("p90", "new", "named"),
    [(1.01, 1.04, set()), (1.01, 1.08, {("vec4", "slower")}), (1.30, 1.25, set()), (1.30, 1.33, {("vec4", "slower")})],
)
def test_noise_is_the_rows_own_spread_and_at_least_that_between_runs(p90, new, named):
    old = report(vec4=1.0)
    old["rows"][0]["time_ms"]["p90"] = p90
    assert changes(old, report(vec4=new)) == named


def test_the_hosts_cost_of_a_call_is_compared_too():
    old, new = report(vec4=1.0), report(vec4=1.0)
    for one, cost in ((old, 5.0), (new, 9.0)):
        one["rows"][0]["call_us"] = {"median": cost, "p10": cost, "p90": cost, "n": 50, "arrays": "torch"}
    (change,) = regression.compare(old, new).changes
    assert (change.figure, change.old, change.new) == ("call_us", 5.0, 9.0)


def test_a_call_may_get_slower_by_as_much_as_a_peers_did():
    """The peer's code has not changed, so the host was busier."""
    old, new = report(vec4=1.0, span=1.0, peer_torch=1.0), report(vec4=1.0, span=1.0, peer_torch=1.0)
    for one, costs in ((old, (5.0, 5.0, 6.0)), (new, (6.8, 9.0, 8.4))):
        for row, cost in zip(one["rows"], costs, strict=True):
            row["call_us"] = {"median": cost, "p10": cost, "p90": cost, "n": 50, "arrays": "torch"}
    assert changes(old, new) == {("span", "slower")}


def test_rows_are_matched_by_shape_dtype_and_mode_and_the_rest_is_named():
    old, new = report(vec4=1.0, span=1.0), report(vec4=1.0, registers=1.0)
    for key, value in (("shape", [8, 17]), ("dtype", "float16"), ("mode", "log")):
        old["rows"].append({**old["rows"][0], key: value, "time_ms": {"median": 0.1, "p10": 0.1, "p90": 0.1, "n": 9}})
    found = regression.compare(old, new)
    assert (found.rows, found.changes) == (1, [])
    assert found.only_new == ["softmax registers 8x16 float32"]
    assert len(found.only_old) == 4


def test_rows_of_others_are_named_but_do_not_count():
    old, new = report(vec4=1.0, peer_torch=1.0, cpu=1.0), report(vec4=1.0, peer_torch=2.0, cpu=3.0)
    assert changes(old, new) == {("peer:torch", "slower"), ("cpu", "slower")}
    assert not regression.compare(old, new).regressed


def test_a_row_that_is_no_longer_measured_is_named():
    new = report(vec4=1.0, span=1.0)
    new["rows"][1]["time_ms"] = None
    assert regression.compare(report(vec4=1.0, span=1.0), new).unmeasured == ["softmax span 8x16 float32"]


@pytest.mark.parametrize(("key", "value"), [("arch", "sm_80"), ("name", "another GPU"), ("kind", "sim")])
def test_other_devices_are_not_compared(key, value):
    old = report(vec4=1.0)
    old["device"][key] = value
    assert "the old report is of" in regression.compare(old, report(vec4=1.0)).refusal


def test_nothing_in_common_is_not_a_pass():
    assert "common row" in regression.compare(report(vec4=1.0), report(span=1.0)).refusal
    assert "common row" in regression.compare(report(cpu=1.0, peer_torch=1.0), report(cpu=1.0, peer_torch=1.0)).refusal
    unmeasured = report(vec4=1.0)
    unmeasured["rows"][0]["time_ms"] = None
    assert "common row" in regression.compare(unmeasured, report(vec4=1.0)).refusal


# ---- the command, on the simulated device ----

BENCH = ["bench", "vector_add", "--device", "sim", "--shapes", "64", "--variants", "vector_add,vector_add_vec4"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The report of a bench on the simulated device."""
    path = tmp_path_factory.mktemp("against") / "new.json"
    assert command_line.main([*BENCH, "--quiet", "--json", str(path)]) == cli.EXIT_OK
    return json.loads(path.read_text())


@pytest.fixture
def again(measured, tmp_path, capsys):
    """Change the report, measure its rows again, and return the exit status and the output."""

    def run(alter=lambda report: None, *flags):
        old, path = copy.deepcopy(measured), tmp_path / "old.json"
        alter(old)
        path.write_text(json.dumps(old))
        status = command_line.main(["bench", *flags, "--against", str(path), "--device", "sim"])
        return status, " ".join("".join(capsys.readouterr()).split())

    return run


def test_the_same_code_does_the_same_work(again):
    status, said = again()
    assert status == cli.EXIT_OK
    assert "2 rows compared with" in said
    assert "0 rows with more work, 0 rows with less" in said
    assert "no clock, so its counters are compared" in said


def test_more_work_on_the_simulated_device_is_a_regression(again):
    def alter(report):
        report["rows"][2]["counters"]["instructions"] -= 1

    status, said = again(alter)
    assert status == cli.EXIT_FALSE
    assert "1 row with more work" in said
    assert "vector_add vector_add_vec4 64 float32 instructions" in said


def test_its_times_are_not_compared(again):
    def alter(report):
        report["rows"][0]["time_ms"] = {"median": 1e-9, "p10": 1e-9, "p90": 1e-9, "n": 50}

    assert again(alter)[0] == cli.EXIT_OK


def test_rows_that_are_gone_and_new_ones_are_named(again):
    def alter(report):
        report["rows"] += [{**report["rows"][1], "variant": "gone"}, {**report["rows"][1], "family": "lost"}]
        del report["rows"][2]

    status, said = again(alter, "vector_add", "--shapes", "64", "--variants", "vector_add,vector_add_vec4")
    assert status == cli.EXIT_OK
    assert "vector_add gone 64 float32" in said
    assert said.endswith("NOT COMPARED")
    assert "only in this run: vector_add vector_add_vec4 64 float32" in said


def test_rows_of_a_users_family_are_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cu").write_text("""
__global__ void twice(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
""")
    (tmp_path / "mine.py").write_text("""
from cudakit import Family, Launch, ceil_div

FAMILY = Family("twice", reference=lambda x: 2 * x, inputs={"x": "float32[n]"}, shapes=((100,),))

@FAMILY.variant("twice.cu")
def twice(p):
    return Launch(ceil_div(p.n, 64), 64)
""")

    def bench(*words):
        status = command_line.main(["bench", *words, "--device", "sim"])
        return status, " ".join("".join(capsys.readouterr()).split())

    assert bench("mine.py:FAMILY", "--json", "old.json")[0] == cli.EXIT_OK
    status, said = bench("mine.py:FAMILY", "--against", "old.json")
    assert status == cli.EXIT_OK
    assert "1 row compared with old.json" in said
    status, said = bench("--against", "old.json")
    assert status == cli.EXIT_REFUSED
    assert "its rows are of twice: name the family to measure, such as mine.py:FAMILY" in said


def other_device(report):
    report["device"]["arch"] = "sm_80"


def other_family(report):
    for row in report["rows"]:
        row["family"] = "lost"


def other_shape(report):
    for row in report["rows"]:
        row["shape"] = [65]


@pytest.mark.parametrize(
    ("alter", "flags"),
    [
        (other_device, []),
        (other_family, []),
        (lambda report: report["rows"].clear(), []),
        (lambda report: None, ["matrix_add"]),
        (other_shape, ["vector_add", "--shapes", "64", "--variants", "vector_add"]),
    ],
)
def test_if_nothing_can_be_compared_it_says_so(again, alter, flags):
    status, said = again(alter, *flags)
    assert status == cli.EXIT_REFUSED
    assert "NOTHING COMPARED" in said


@pytest.mark.parametrize("text", ["[]", "{}", '{"device": {}, "rows": [{}]}', '{"device": 1, "rows": []}', "nonsense"])
def test_what_is_no_report_is_refused(tmp_path, capsys, text):
    path = tmp_path / "old.json"
    path.write_text(text)
    assert command_line.main(["bench", "--against", str(path), "--device", "sim"]) == cli.EXIT_REFUSED
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    "figures",
    [{"counters": {"instructions": value}} for value in (float("nan"), "460", True, 10**400)]
    + [{"counters": "none"}, {"counters": [1]}, {"time_ms": 1.0}, {"time_ms": {"median": float("nan")}}],
)
def test_figures_that_are_no_numbers_are_refused(tmp_path, figures):
    """NaN and similar values would compare as unchanged."""
    old = report("sim", vec4=1.0)
    old["rows"][0] |= figures
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(Refused, match="not a report"):
        against.load(str(tmp_path / "old.json"))


def test_a_counter_that_only_one_report_has_is_named():
    old, new = report("sim", vec4=1.0), report("sim", vec4=1.0)
    for one, counters in ((old, {"instructions": 4}), (new, {"instructions": 4, "bank_conflicts": 2})):
        one["rows"][0]["counters"] = counters
    for found in (regression.compare(old, new), regression.compare(new, old)):
        assert (found.rows, found.unmeasured) == (1, ["softmax vec4 8x16 float32"])
    assert regression.compare(new, new).unmeasured == []


def test_bench_needs_a_family_or_a_report(capsys):
    assert command_line.main(["bench", "--device", "sim"]) == cli.EXIT_REFUSED
    assert "--against OLD.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "figure"), [("launch_overhead", "host_us"), ("calls", "call_us"), ("calls", "loop_us")]
)
def test_the_costs_of_launches_and_calls_are_compared(name, figure):
    """The committed reports of examples/launch_overhead.py and call_overhead.py; one cost of the old report is
    halved."""
    new = json.loads((ROOT / "profiles" / "h200" / f"{name}.json").read_text(encoding="utf-8"))
    old = copy.deepcopy(new)
    row = next(row for row in old["rows"] if row.get(figure) and not row["variant"].startswith("peer:"))
    row[figure] = {key: row[figure][key] / 2 for key in ("median", "p10", "p90")}
    (change,) = regression.compare(old, new).changes
    assert (change.figure, change.slower, change.judged) == (figure, True, True)


@pytest.mark.parametrize("example", ["launch_overhead", "call_overhead"])
def test_these_examples_read_the_older_report_before_they_measure(tmp_path, example):
    done = programs.run(ROOT / "examples" / f"{example}.py", "--against", str(tmp_path / "absent.json"))
    assert done.returncode == cli.EXIT_REFUSED
    assert "absent.json cannot be read" in done.stderr
