"""`cudakit check --json`, `--sarif` and `--junit`: all findings as data for other programs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from xml.etree import ElementTree

import pytest
from planted import CASES
from schemas import expect_valid

import cudakit
from cudakit import __main__ as command_line
from cudakit import reports
from cudakit.commands import cli
from cudakit.driver import driver as drivers
from cudakit.show import junit, rules, sarif

KERNELS = """\
#include "twice.cuh"
extern "C" __global__ void turn(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[(threadIdx.x + 32) % 64];  // races
}
extern "C" __global__ void copy(const float* x, float* y) {
    y[threadIdx.x] = twice(x + threadIdx.x);
}
"""
HEADER = """\
__device__ inline float twice(const float* x) {
    return 2 * *x;  // in the header
}
"""
START = """\
import cudakit
device = cudakit.Device()
module = device.compile("sub/mine.cu")
def launch(name, *arrays):
    module[name].launch(device.default_stream, grid=1, block=64, args=arrays)  # the launch
    device.synchronize()
full, short = device.zeros(64), device.zeros(5)  # made
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A repository with kernels in `sub`."""
    repository = tmp_path_factory.mktemp("repository")
    for path in (repository / ".git", repository / "sub"):
        path.mkdir(parents=True)
    (repository / "sub" / "mine.cu").write_text(KERNELS)
    (repository / "sub" / "twice.cuh").write_text(HEADER)
    return repository


@pytest.fixture
def check(folder, monkeypatch, capsys):
    """Run `cudakit check` on the kernels with a script that ends in the given lines. Return the status and the written
    files, after checking each with its schema."""
    monkeypatch.chdir(folder)

    def run(end, *arguments, start=START):
        Path("try.py").write_text(start + end + "\n")
        names = ["out.json", "out.sarif", "out.xml"]
        flags = [text for pair in zip(("--json", "--sarif", "--junit"), names, strict=True) for text in pair]
        script = ["--run", "try.py"] if end else []
        status = command_line.main(["check", "sub/mine.cu", "--arch", "sm_90a", *script, *flags, *arguments])
        capsys.readouterr()
        found = json.loads(Path("out.json").read_text()), json.loads(Path("out.sarif").read_text())
        expect_valid(found[1], Path("out.xml"))
        return status, *found, ElementTree.parse("out.xml").getroot()[0]

    return run


def line_of(text, file="sub/mine.cu"):
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def place(location):
    where = location["physicalLocation"]
    return where["artifactLocation"]["uri"], where["region"]["startLine"]


def test_a_race_is_at_its_line_in_every_file(check, folder):
    status, found, log, suite = check("launch('turn', full, full)")
    assert status == cli.EXIT_FALSE
    [report] = found["reports"]
    assert (report["kind"], report["severity"], report["kernel"]) == ("shared memory race", "error", "turn")
    assert (report["file"], report["line"]) == (str(folder / "sub" / "mine.cu"), line_of("// races"))
    assert (report["block"], report["thread"]) == ([0, 0, 0], [0, 0, 0])
    assert report["launched"]["line"] == line_of("# the launch", "try.py")
    [other] = report["others"]
    assert (other["access"], other["line"]) == ("shared store", line_of("tile[threadIdx.x] ="))
    assert report["step"] in [run["step"] for run in found["runs"]]

    [run] = log["runs"]
    [result] = run["results"]
    assert result["ruleId"] == run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "shared-memory-race"
    assert "__syncthreads" in run["tool"]["driver"]["rules"][0]["help"]["text"]
    assert result["level"] == "error"
    [location] = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == folder.as_uri() + "/"
    assert place(location) == ("sub/mine.cu", line_of("// races"))
    assert [place(one) for one in result["relatedLocations"]] == [
        ("sub/mine.cu", line_of("tile[threadIdx.x] =")),
        ("try.py", line_of("# the launch", "try.py")),
    ]
    assert "[the launch](2)" in result["message"]["text"], "GitHub shows related locations as links in the message"
    assert run["automationDetails"]["id"] == "cudakit/sub/mine.cu/try.py/"

    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    [failure] = suite.iter("failure")
    assert failure.get("type") == "shared memory race"
    assert f"mine.cu:{line_of('// races')}" in failure.get("message")


def test_paths_are_relative_to_the_repository_from_a_folder_in_it(check, folder, monkeypatch):
    check("launch('turn', full, full)")
    monkeypatch.chdir(folder / "sub")
    start = START.replace("sub/mine.cu", "mine.cu")
    Path("try.py").write_text(start + "launch('turn', full, full)\n")
    command_line.main(["check", "mine.cu", "--arch", "sm_90a", "--run", "try.py", "--sarif", "out.sarif"])
    [result] = json.loads(Path("out.sarif").read_text())["runs"][0]["results"]
    assert place(result["locations"][0])[0] == "sub/mine.cu"


def test_an_access_out_of_bounds_has_its_allocation_and_inlined_lines(check):
    _, found, log, _ = check("launch('copy', short, full)")
    [report] = found["reports"]
    assert (report["kind"], report["thread"]) == ("out of bounds", [5, 0, 0])
    assert Path(report["file"]).name == "twice.cuh"
    assert report["line"] == line_of("in the header", "sub/twice.cuh")
    assert [one["line"] for one in report["inlined"]] == [line_of("twice(x")]
    assert report["allocation"]["size"] == 20
    assert report["allocation"]["made"]["line"] == line_of("# made", "try.py")
    related = [place(one) for one in log["runs"][0]["results"][0]["relatedLocations"]]
    assert related == [("sub/mine.cu", line_of("twice(x")), ("try.py", 5), ("try.py", 7)]


def test_a_fault_in_a_header_outside_of_the_repository_is_shown_at_the_kernels_line(tmp_path):
    header, kernel = tmp_path / "cub.cuh", tmp_path / "root" / "mine.cu"
    kernel.parent.mkdir()
    for path in (header, kernel):
        path.write_text("one\ntwo\n")
    inlined = reports.Place(str(kernel), 2)
    found = reports.Report("out of bounds", "a load", file=str(header), line=1, inlined=(inlined,))
    [result] = sarif.log([found], kernel.parent, "x/")["runs"][0]["results"]
    assert place(result["locations"][0]) == ("mine.cu", 2)
    [result] = sarif.log([reports.Report("trap", "it", file=str(header), line=1)], kernel.parent, "x/")["runs"][0][
        "results"
    ]
    assert place(result["locations"][0]) == (header.as_uri(), 1)


def test_faults_of_several_devices_and_a_failed_script_are_all_there(check):
    _, found, log, suite = check(
        "for name, size in (('turn', 64), ('copy', 5)):\n"
        "    try: launch(name, device.zeros(size), device.zeros(64))\n"
        "    except cudakit.CudakitError: pass\n"
        "    device = cudakit.Device()\n"
        "    module = device.compile('sub/mine.cu')\n"
        "import numpy as np\n"
        "np.testing.assert_array_equal(1, 2)  # fails\n"
    )
    kinds = [report["kind"] for report in found["reports"]]
    assert sorted(kinds) == ["failed script", "out of bounds", "shared memory race"]
    failed = found["reports"][kinds.index("failed script")]
    assert (failed["file"], failed["line"]) == ("try.py", line_of("# fails", "try.py")), "not the line in numpy"
    assert failed["message"].startswith("AssertionError")
    assert len(log["runs"][0]["results"]) == len({one["id"] for one in log["runs"][0]["tool"]["driver"]["rules"]}) == 3
    assert len(list(suite.iter("failure"))) == 1


@pytest.mark.parametrize(
    ("end", "kind", "line"),
    [
        ("launch('copy', device.empty(64), full)", "uninitialised read", "in the header"),
        ("launch('copy', full)", "refused launch", None),
        ("raise SystemExit(3)", "failed script", None),
        ("def wrong(:", "failed script", None),
    ],
)
def test_other_failures_have_their_kind_and_line(check, end, kind, line):
    status, found, log, _ = check(end)
    assert status == cli.EXIT_FALSE
    [report] = found["reports"]
    assert report["kind"] == kind
    if line is not None:
        assert report["line"] == line_of(line, "sub/twice.cuh")
    elif kind == "refused launch":
        assert (report["file"], report["line"]) == ("try.py", line_of("# the launch", "try.py"))
    else:
        assert report["file"] == "try.py"
    assert log["runs"][0]["results"][0]["ruleId"] == kind.replace(" ", "-")


def test_a_leak_is_a_warning_unless_it_fails_the_check(check):
    end = "launch('copy', full, full)\nkept = device.zeros(9)\ndevice.close()"
    for flags, status, level in (([], 0, "warning"), (["--checks", "leaks"], cli.EXIT_FALSE, "error")):
        found = check(end, *flags)
        [report] = [one for one in found[1]["reports"] if one["kind"] == "leak"]
        assert (found[0], report["severity"]) == (status, level)
        assert report["file"] == "try.py"
        assert [one["level"] for one in found[2]["runs"][0]["results"]] == [level]
        assert bool(list(found[3].iter("failure"))) == (status != 0)


def test_a_check_that_passes_has_no_results(check):
    status, found, log, suite = check("launch('copy', full, full)")
    assert status == 0
    assert found["reports"] == log["runs"][0]["results"] == []
    assert log["runs"][0]["invocations"] == [{"executionSuccessful": True}]
    names = [case.get("name") for case in suite.iter("testcase")]
    assert names == ["compile mine.cu sm_90a", "run try.py", "kernel turn", "kernel copy"]
    [skipped] = suite.iter("skipped")
    assert skipped.get("message") == "never launched", "turn"


def test_a_compile_error_and_a_warning_have_line_and_column(check, monkeypatch, tmp_path, capsys):
    check("launch('copy', full, full)")
    Path("sub/bad.cu").write_text("__global__ void bad(float* y) {\n\tint unused;\n    y[0] = nothing;\n}\n")
    names = ["--json", "bad.json", "--sarif", "bad.sarif", "--junit", "bad.xml"]
    assert command_line.main(["check", "sub/bad.cu", "--arch", "sm_80,sm_90a", *names]) == cli.EXIT_FALSE
    found = [one for one in json.loads(Path("bad.json").read_text())["reports"] if one["kind"] == "compile error"]
    assert [(one["line"], one["column"], one["arch"]) for one in found] == [(3, 12, "sm_80"), (3, 12, "sm_90a")]
    assert 'identifier "nothing" is undefined' in found[0]["message"]
    log = json.loads(Path("bad.sarif").read_text())
    [result] = log["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 3, "startColumn": 12}
    assert len(list(ElementTree.parse("bad.xml").iter("failure"))) == 2
    expect_valid(log, "bad.xml")
    Path("sub/bad.cu").write_text(Path("sub/bad.cu").read_text().replace("nothing", "1"))
    assert command_line.main(["check", "sub/bad.cu", "--arch", "sm_80", "--examples", "0", *names]) == 0
    [warning] = json.loads(Path("bad.json").read_text())["reports"]
    assert (warning["kind"], warning["severity"], warning["line"]) == ("compile warning", "warning", 2)


def test_a_check_that_checked_nothing_is_no_success_in_any_file(check):
    status, found, log, suite = check("")
    assert status == cli.EXIT_REFUSED
    assert not found["ok"]
    assert "Pass --run SCRIPT.py" in found["nothing_checked"]
    [invocation] = log["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    assert "Pass --run SCRIPT.py" in invocation["toolExecutionNotifications"][0]["message"]["text"]
    assert [error.get("type") for error in suite.iter("error")] == ["nothing checked"]
    status, found, log, suite = check("", "--examples", "0")
    assert (status, found["ok"], suite.get("errors")) == (0, True, "0")


def test_a_script_that_asks_for_a_gpu_is_refused_and_the_files_say_so(check):
    status, found, log, suite = check('cudakit.Device("gpu:99")')
    assert status == cli.EXIT_REFUSED
    assert "the script requests a GPU" in found["nothing_checked"]
    assert not found["ok"]
    assert not log["runs"][0]["invocations"][0]["executionSuccessful"]
    assert [error.get("type") for error in suite.iter("error")] == ["nothing checked"]


@pytest.mark.parametrize("flag", ["--sarif", "--junit"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(folder, monkeypatch, capsys, flag):
    monkeypatch.chdir(folder)
    for name, why in (("-", "is not supported: name a file"), ("absent/x", "does not exist. Create it")):
        assert command_line.main(["check", "sub/mine.cu", flag, name]) == cli.EXIT_REFUSED
        said = capsys.readouterr()
        assert why in said.err
        assert not said.out


def test_a_fault_survives_a_pickle_with_its_report(sim_fresh):
    kernel = sim_fresh.compile(source='extern "C" __global__ void far(float* x) { x[99] = 1; }', name="far.cu")["far"]
    kernel.launch(sim_fresh.default_stream, grid=1, block=1, args=(sim_fresh.zeros(3),))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim_fresh.synchronize()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.report == caught.value.report
    assert again.report.launched.line == caught.value.report.launched.line
    assert (again.report.name, again.report.line, again.report.block) == ("far", 1, (0, 0, 0))


@pytest.fixture
def sim_fresh():
    with cudakit.Device("sim", fresh=True) as device:
        yield device


LADDER = {
    "sums.cu": """\
__global__ void right(const float* x, float* out, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) out[i] = 2 * x[i];
}
__global__ void stored(const float* x, float* out, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) out[i] = 2 * x[i];
    if (i == 1 && i < n) out[i] = 7;  // wrong
}
__global__ void exchanged(const float* x, float* out, int n);
__global__ void exchanged(const float* x, float* out, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n && i != 1) out[i] = 2 * x[i];
    if (i == 0 && n > 1) atomicExch(out + 1, 7.0f);  // an atomic
}
""",
    "more.cu": """\
__global__ void left_out(const float* x, float* out, int n) {  // stores no second element
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    /* two
       lines */ if (i < n && i != 1) out[i] = 2 * x[i];
}
__global__ void overrun(const float* x, float* out, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i <= n) out[i] = 2 * x[i == n ? 0 : i];  // too far
}
""",
    "both.cu": """\
__global__ void both(const float* x, float* same, float* twice, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= n) return;
    same[i] = x[i];
    twice[i] = i == 3 ? 0.5f : 2 * x[i];  // wrong in the second output
}
""",
    "mine.py": """\
from cudakit.family import Family, Launch, ceil_div

FAMILY = Family("double", reference=lambda x: 2 * x, inputs={"x": "float32[n]"}, shapes=((64,),))

def launch(p):
    return Launch(ceil_div(p.n, 64), 64)

for name in ("right", "stored", "exchanged"):
    FAMILY.variant("sums.cu", name=name)(launch)
for name in ("left_out", "overrun"):
    FAMILY.variant("more.cu", name=name)(launch)

OUTPUTS = {"same": "float32[n]", "twice": "float32[n]"}
PAIR = Family("pair", reference=lambda x: (x, 2 * x), inputs={"x": "float32[n]"}, outputs=OUTPUTS, shapes=((64,),))
PAIR.variant("both.cu", name="both")(launch)

LARGE = Family("large", reference=lambda x: 2 * x, inputs={"x": "float32[n]"}, shapes=((64,),))
LARGE.variant("sums.cu", name="right")(lambda p: Launch(1, 2000))  # too many threads
""",
}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ladder")
    for name, text in LADDER.items():
        (made / name).write_text(text)
    return made


def test_each_wrong_rung_of_a_family_is_found_with_its_line(ladder, monkeypatch, capsys):
    monkeypatch.chdir(ladder)
    flags = ["--examples", "10", "--seed", "1", "--json", "out.json", "--sarif", "out.sarif", "--junit", "out.xml"]
    assert command_line.main(["check", "mine.py:FAMILY", "--arch", "sm_90a", *flags]) == cli.EXIT_FALSE
    said = capsys.readouterr().out
    found = {one["variant"]: one for one in json.loads(Path("out.json").read_text())["reports"]}
    lines = {name: (Path(one["file"]).name, one["kind"], one["line"]) for name, one in found.items()}
    assert lines == {
        "stored": ("sums.cu", "wrong result", line_of("// wrong", "sums.cu")),
        "exchanged": ("sums.cu", "wrong result", line_of("// an atomic", "sums.cu")),
        "left_out": ("more.cu", "wrong result", line_of("// stores no second", "more.cu")),
        "overrun": ("more.cu", "out of bounds", line_of("// too far", "more.cu")),
    }
    assert {name: one["thread"] and one["thread"][0] for name, one in list(found.items())[:3]} == {
        "stored": 1, "exchanged": 0, "left_out": None
    }  # fmt: skip
    for name, one in found.items():
        assert one["kernel"] == name
        assert (Path(one["launched"]["file"]).name, one["launched"]["line"]) == (
            "mine.py",
            line_of("def launch", "mine.py"),
        )
        assert one["replay"].startswith("cudakit fuzz mine.py:FAMILY ")
        assert f"{lines[name][0]}:{lines[name][2]}\n" in said
    log = json.loads(Path("out.sarif").read_text())
    expect_valid(log, "out.xml")
    results = {place(one["locations"][0]) for one in log["runs"][0]["results"]}
    assert results == {(name, line) for name, _, line in lines.values()}
    names = [case.get("name") for case in ElementTree.parse("out.xml").iter("testcase") if list(case) == []]
    assert names == ["compile sums.cu sm_90a", "compile more.cu sm_90a", "fuzz double/right"]


def test_a_wrong_element_of_the_second_output_has_its_line(ladder, monkeypatch):
    monkeypatch.chdir(ladder)
    flags = ["--arch", "sm_90a", "--examples", "10", "--seed", "1", "--json", "pair.json"]
    assert command_line.main(["check", "mine.py:PAIR", *flags]) == cli.EXIT_FALSE
    [report] = json.loads(Path("pair.json").read_text())["reports"]
    assert report["message"].startswith("output twice: element (3,) is 0.5")
    assert (report["line"], report["thread"]) == (line_of("// wrong in the second", "both.cu"), [3, 0, 0])


def test_a_launch_that_is_refused_is_at_the_function_that_asks_for_it(ladder, monkeypatch):
    monkeypatch.chdir(ladder)
    flags = ["--arch", "sm_90a", "--examples", "10", "--seed", "1", "--sarif", "large.sarif"]
    assert command_line.main(["check", "mine.py:LARGE", *flags]) == cli.EXIT_FALSE
    [result] = json.loads(Path("large.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "refused-launch"
    assert place(result["locations"][0]) == ("mine.py", line_of("# too many threads", "mine.py"))


def test_a_family_that_cannot_be_checked_is_refused(ladder, monkeypatch, capsys):
    monkeypatch.chdir(ladder)
    for arguments, why in (
        (["mine.py:FAMILIES"], "has no family 'FAMILIES'"),
        (["nothing"], "there is no family 'nothing'"),
        (["mine.py:FAMILY", "--annotate", "x.html"], "has several files: name one of them (sums.cu, more.cu)"),
    ):
        assert command_line.main(["check", *arguments]) == cli.EXIT_REFUSED
        assert why in " ".join(capsys.readouterr().err.split())


STORES = """\
extern "C" __global__ void vectors(float4* y, int from) {
    if (threadIdx.x >= from) y[threadIdx.x] = make_float4(1, 2, 3, 4);
}
extern "C" __global__ void same(float* y) { if (blockIdx.x == 2) y[9] = gridDim.x; }
"""


@pytest.mark.parametrize("checks", [["race", "init"], []], ids=["checked", "unchecked"])
def test_the_last_store_to_some_bytes_is_found(checks):
    device = cudakit.Device("sim", checks=checks)
    module = device.compile(source=STORES, name="stores.cu")
    y, stream = device.zeros(4 * 64), device.default_stream
    driver = device.context.driver

    def last(element, *launches):
        with drivers.last_store(driver, y.pointer + 4 * element, 4) as found:
            for name, grid, block, *arguments in launches:
                module[name].launch(stream, grid=grid, block=block, args=(y, *arguments))
            device.synchronize()
        return [(one.name, one.line, one.block[0], one.thread[0], one.launched.line) for one in found]

    line = last.__code__.co_firstlineno + 3
    assert last(26, ("vectors", 1, 64, 5)) == [("vectors", 2, 0, 6, line)], "part of a vector, in a divergent branch"
    assert last(9, ("vectors", 1, 64, 0), ("same", 3, 40)) == [("same", 4, 2, 39, line)], "the last lane wins"
    assert last(9, ("same", 3, 1), ("vectors", 1, 64, 0)) == [("vectors", 2, 0, 2, line)], "the last launch"
    assert last(26, ("same", 3, 32), ("vectors", 1, 32, 7)) == [], "this element was never written"
    device.close()


def test_every_kind_of_planted_bug_has_advice_of_its_own():
    kinds = {case.kind for case in CASES.values()}
    assert len(kinds) > 15
    assert [kind for kind in kinds if rules.rule(kind).advice == rules.rule("anything else").advice] == []


# The values that GitHub's upload action computes for these texts.
@pytest.mark.parametrize(
    ("text", "hashes"),
    [
        ("", ["c129715d7a2bc9a3:1"]),
        (" a\nb\n  \t\tc\n d", ["271789c17abda88f:1", "54703d4cd895b18:1", "180aee12dab6264:1", "a23a3dc5e078b07b:1"]),
        (
            " hello; \t\nworld!!!\r\n\n\r  \t\tGreetings\r End\r\n",
            ["e9496ae3ebfced30:1", "fb7c023a8b9ccb3f:1", "ce8ba1a563dcdaca:1", "e20e36e16fcb0cc8:1",
             "b3edc88f2938467e:1", "c8e28b0b4002a3a0:1", "c129715d7a2bc9a3:1"],
        ),
        ("Lorem ipsum dolor sit amet.\n" * 10, [*(f"a7f2ff13bc495cf2:{count}" for count in range(1, 7)),
         "a7f2ff1481e87703:1", "a9cf91f7bbf1862b:1", "55ec222b86bcae53:1", "cc97dc7b1d7d8f7b:1", "c129715d7a2bc9a3:1"]),
    ],
)  # fmt: skip
def test_the_fingerprint_of_a_line_is_the_one_that_github_computes(text, hashes):
    assert [sarif.line_hash(text, number + 1) for number in range(len(hashes))] == hashes
    assert sarif.line_hash(text, len(hashes) + 1) is None


def test_names_and_texts_of_any_bytes_are_written(tmp_path):
    odd = os.fsdecode(b"caf\xe9 #1.cu")
    found = reports.Report("out of bounds", f"a load in {odd}", file=str(tmp_path / odd), line=0, full_text=odd)
    log = json.loads(sarif.text([found], tmp_path, "x/").encode())
    where = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "caf%E9%20%231.cu"
    assert "region" not in where, "compilers write line 0 for code without a line"
    path = tmp_path / "out.xml"
    path.write_text(junit.text(odd, [junit.Case(odd, 1234.5)]), encoding="utf-8")
    expect_valid(log, path)


def test_junit_holds_characters_that_xml_cannot(tmp_path):
    case = junit.Case("a\x00b", 0.5, failure="bell \x07, lone \ud800, <tag> & ]]>", kind="k", message="\x1b[31m")
    path = tmp_path / "out.xml"
    path.write_text(junit.text("x.cu", [case]), encoding="utf-8")
    [failure] = ElementTree.parse(path).iter("failure")
    assert failure.text == r"bell \x07, lone \ud800, <tag> & ]]>"
    expect_valid(json.loads(sarif.text([], tmp_path, "x/")), path)
