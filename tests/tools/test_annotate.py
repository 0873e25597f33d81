"""`cudakit check --run` and `--annotate`: counters of a user's kernels, per source line."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from paths import ROOT

from cudakit import __main__ as command_line
from cudakit.commands import cli
from cudakit.show import advice
from cudakit.sim.chips.occupancy import Occupancy
from cudakit.sim.lockstep.counters import Counters, LineCounters

HEADER = """
__device__ inline float twice(float v) {
    return v + v;
}
"""
SOURCE = """\
// <not a tag> & more
#include "twice.cuh"
__global__ void column(const float* x, float* y) {
    y[threadIdx.x] = twice(x[threadIdx.x * 32]);
}
__global__ void crowded(float* y, int* hits) {
    __shared__ float tile[1024];
    tile[threadIdx.x * 32] = 1;
    __syncthreads();
    atomicAdd(hits, 1);
    if (threadIdx.x % 2)
        y[threadIdx.x] = sinf(tile[threadIdx.x * 32]);
}
"""
SCRIPT = """\
import numpy as np
import cudakit

device = cudakit.Device()
module = device.compile("mine.cu")
x, y, hits = device.zeros(1024), device.zeros(32), device.zeros(1, np.int32)
module["column"].launch(device.default_stream, grid=1, block=32, args=(x, y))
for _ in range(2):
    module["crowded"].launch(device.default_stream, grid=3, block=32, args=(y, hits))
print("the script's own words")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working directory with a kernel file without a family, and a script that launches its kernels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cuh").write_text(HEADER)
    (tmp_path / "mine.cu").write_text(SOURCE)
    (tmp_path / "try.py").write_text(SCRIPT)
    return tmp_path


def check(capsys, *arguments):
    status = command_line.main(["check", "mine.cu", "--arch", "sm_90a", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class Page(HTMLParser):
    """The page's rows by anchor, its links and ids. Raises an error if tags are not nested."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.links, self.ids, self.loads = [], {}, [], set(), []
        self.anchor, self.cells, self.bad, self.names = None, [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag != "meta":
            self.open.append(tag)
        self.ids.add(found.get("id"))
        self.loads += [found[name] for name in ("src", "data") if name in found]
        self.loads += [found["href"]] if tag == "link" else []
        self.links += [found["href"]] if tag == "a" else []
        if tag == "tr":
            self.anchor, self.cells, self.bad = found.get("id"), [], []
        elif tag in ("td", "th"):
            self.cells.append("")
            self.bad.append(found.get("class") == "bad")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "thead":
            self.names = self.cells
        elif tag == "tr" and self.anchor is not None:
            bad = {name for name, is_bad in zip(self.names, self.bad, strict=True) if is_bad}
            self.rows[self.anchor] = dict(zip(self.names, self.cells, strict=True)), bad

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["th"]):
            self.cells[-1] += data


def row(page, kernel, line, file=0):
    """Return the texts of a source line's row by column name, and the highlighted columns."""
    return page.rows[f"k{kernel}f{file}l{line}"]


def line_of(text, source=SOURCE):
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_the_page_shows_each_trouble_on_its_line(capsys, mine):
    status, out, _ = check(capsys, "--run", "try.py", "--annotate", "out.html")
    assert status == 0
    assert "the script's own words" in out
    assert f"column: uncoalesced load at mine.cu:{line_of('32]);')}" in out
    text = (mine / "out.html").read_text()
    page = Page(text)

    load, bad = row(page, 0, line_of("twice(x"))
    assert load["sectors/load"] == "32.0 / 4.0"
    assert load["sectors/store"] == "4.0 / 4.0"
    assert bad == {"sectors/load"}
    store, bad = row(page, 1, line_of("tile[threadIdx.x * 32] = 1"))
    assert store["bank conflict"] == "32-way"
    assert bad == {"bank conflict"}
    atomic, bad = row(page, 1, line_of("atomicAdd"))
    assert atomic["atomics on one address"] == "32"
    assert bad == {"atomics on one address"}
    branch, bad = row(page, 1, line_of("if (threadIdx.x % 2)"))
    assert branch["branch splits"] == "6 of 6"
    assert "branch splits" in bad
    guarded, bad = row(page, 1, line_of("sinf"))
    assert guarded["lanes"] == "16.0"
    assert "lanes" in bad
    assert row(page, 0, 1)[0]["source"] == "// <not a tag> & more"
    assert "bank conflict" not in load, "a column without values is left out"

    first = text.index("Look here first")
    assert first < text.index("registers per thread"), "the worst lines come first"
    line, note = (text.index(said, first) for said in ('class="told"', '<tr class="note">'))
    assert line < note < text.index("</tr>", note)
    assert text[note : note + 400].count("<b>uncoalesced load</b>: One load of a warp touches 32 sectors") == 1

    assert "3 x 32 (2 launches)" in text
    assert "50 %: 32 blocks per multiprocessor, 32 of 64 warps, limited by blocks per multiprocessor" in text


def test_an_inlined_header_has_its_lines_and_its_share_of_the_caller(capsys, mine):
    check(capsys, "--run", "try.py", "--annotate", "out.html")
    page = Page((mine / "out.html").read_text())
    own = row(page, 0, line_of("v + v", HEADER), file=1)[0]
    assert own["instructions"] == "1"
    caller = row(page, 0, line_of("twice(x"))[0]
    assert re.search(r"\d %.* \+\d+\.\d %", caller["share of the kernel"])
    assert row(page, 1, line_of("atomicAdd"))[0]["line"] == str(line_of("atomicAdd"))


def test_the_page_stands_alone_and_its_links_lead_somewhere(capsys, mine):
    check(capsys, "--run", "try.py", "--annotate", "out.html")
    text = (mine / "out.html").read_text()
    page = Page(text)
    assert not page.loads
    assert not re.search(r"https?:|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text
    assert len(page.links) >= 6
    assert {link[1:] for link in page.links} <= page.ids
    check(capsys, "--run", "try.py", "--annotate", "again.html")
    assert (mine / "again.html").read_text() == text


def test_json_has_the_lines_of_every_kernel_of_the_file(capsys, mine):
    status, out, err = check(capsys, "--run", "try.py", "--json", "-")
    assert status == 0
    assert "the script's own words" in err
    found = json.loads(out)
    column, crowded = found["kernels"]
    assert (column["kernel"], crowded["kernel"]) == ("column", "crowded")
    assert crowded["shapes"] == [{"grid": [3, 1, 1], "block": [32, 1, 1], "shared": 0, "launches": 2}]
    assert crowded["counters"]["worst_contention"] == 32
    for kernel in (column, crowded):
        total = sum(line.get("instructions", 0) for line in kernel["lines"])
        assert total == kernel["counters"]["instructions"]
    assert [item["kind"] for item in column["look_first"]] == ["uncoalesced load"]
    assert column["look_first"][0]["line"] == line_of("twice(x")


HOPPER = (
    f'#include "{ROOT}/kernels/common/hopper.cuh"'
    + """
__global__ void box(const __grid_constant__ CUtensorMap x, int row, float* y) {
    __shared__ alignas(128) float tile[8][32];
    __shared__ uint64 bar;
    if (threadIdx.x == 0) {
        barrier_init(&bar, 1);
        fence_barrier_init();
        barrier_arrive_expect(&bar, sizeof(tile));
        tensor_load(tile, &x, 0, row, &bar);
    }
    __syncthreads();
    barrier_wait(&bar, 0);
    float sums[4] = {};
    const unsigned a[4] = {};
    multiply_add<__nv_bfloat16>(sums, a, 0, 0);
    y[threadIdx.x] = tile[0][threadIdx.x] + sums[0];
}
"""
)
BOXES = """\
import numpy as np
import cudakit

device = cudakit.Device()
kernel = device.compile("mine.cu")["box"]
x, y = device.array(np.ones((10, 32), np.float32)), device.zeros(32)
for row in (0, 8):
    kernel.launch(device.default_stream, grid=1, block=32, args=(cudakit.TensorMap(x, box=(8, 32)), row, y))
"""


def test_the_page_has_the_copies_waits_and_products_of_hopper(capsys, mine):
    (mine / "mine.cu").write_text(HOPPER)
    (mine / "try.py").write_text(BOXES)
    status, _, _ = check(capsys, "--run", "try.py", "--annotate", "out.html", "--json", "out.json")
    assert status == 0
    text = (mine / "out.html").read_text()
    page = Page(text)
    files = [Path(file).name for file in re.findall('<p class="file">(.*?)</p>', text)]
    (found,) = json.loads((mine / "out.json").read_text())["kernels"]

    def with_counter(name):
        """The only line that has a counter, in JSON, and its row."""
        (line,) = (line for line in found["lines"] if name in line)
        return line, *row(page, 0, line["line"], files.index(Path(line["file"]).name))

    # two boxes of 1024 bytes, the second of which has two of eight rows in the tensor
    line, cells, bad = with_counter("bulk_requests")
    assert (line["bulk_requests"], line["bulk_load_bytes"], line["bulk_clipped_bytes"]) == (2, 2048, 768)
    assert (cells["bulk bytes"], bad & {"bulk bytes"}) == ("2,048, 38 % outside", set())
    line, cells, _ = with_counter("mbarrier_waits")
    assert cells["waits ready"] == "0 of 4"
    line, cells, _ = with_counter("multiply_adds_bf16")
    assert line["multiply_adds_bf16"] == found["counters"]["multiply_adds_bf16"] == 2 * 16 * 8 * 16
    assert cells["multiply-adds"] == "bf16 4,096"
    for name, value in (
        ("bulk copies (threads)", "2"),
        ("bulk bytes", "2,048 loaded"),
        ("bulk bytes outside of the tensor", "768, 38 %"),
        ("mbarrier waits (warps)", "4, 0 found the phase complete"),
        ("multiply-adds of bf16 products", "4,096"),
    ):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text


def test_boxes_mostly_outside_of_the_tensor_are_named(capsys, mine):
    (mine / "mine.cu").write_text(HOPPER)
    (mine / "try.py").write_text(BOXES.replace("(0, 8)", "(8,)"))
    status, out, _ = check(capsys, "--run", "try.py", "--annotate", "out.html")
    assert status == 0
    assert re.search(r"box: boxes outside of the tensor at hopper.cuh:\d+", out)
    text = (mine / "out.html").read_text()
    assert "75 % of the 1,024 bytes of this line&#x27;s boxes are outside of the tensor" in text
    assert "<div class=bad><dt>bulk bytes outside of the tensor</dt><dd>768, 75 %</dd></div>" in text
    assert '<td class="bad">1,024, 75 % outside</td>' in text


def test_annotate_of_a_declared_kernel_needs_no_script(capsys, tmp_path):
    out = tmp_path / "out.html"
    arguments = ["softmax/01_thread_per_row.cu", "--arch", "sm_90a", "--examples", "0", "--annotate", str(out)]
    assert command_line.main(["check", *arguments]) == 0
    assert (
        "softmax/thread_per_row 32x512 float32: 1 launch of kernels of this file, without a report"
        in capsys.readouterr().out
    )
    text = out.read_text()
    assert "<b>uncoalesced load</b>" in text
    assert "32.0 / 4.0" in text


# ---- checked kernels ----

SEVERAL = """\
namespace maths {
template <int N, class T> __global__ void __launch_bounds__(32) fill(T* y) { y[threadIdx.x] = N; }
}
template <class T> __global__ void unused(T* y) {}  // __global__ void comment(float* y)
__global__ void same(float* y) { y[0] = 1; }
__global__ void same(double* y) { y[0] = 1; }
extern "C" __global__ void plain(float* y) { y[0] = 1; }
"""
LAUNCHES = """\
import cudakit
device = cudakit.Device()
names = ("maths::fill<3, float>", "maths::fill<4, float>")
module = device.compile("mine.cu", names=names)
y = device.zeros(32)
for name in (*names, names[0]):
    module[name].launch(device.default_stream, grid=1, block=32, args=(y,))
module["plain"].launch(device.default_stream, grid=1, block=1, args=(y,))
"""


def test_each_kernel_of_the_file_has_its_launches(capsys, mine):
    (mine / "mine.cu").write_text(SEVERAL)
    (mine / "try.py").write_text(LAUNCHES)
    status, out, _ = check(capsys, "--run", "try.py", "--json", "out.json")
    assert status == 0
    assert out.splitlines()[-6:] == [
        "  same(float*): NEVER LAUNCHED",
        "  same(double*): NEVER LAUNCHED",
        "  plain: 1 launch",
        "  unused: NEVER LAUNCHED",
        "  maths::fill: 3 launches",
        "2 of 5 kernels checked",
    ]
    assert not re.search("passed|all right", out)
    found = json.loads((mine / "out.json").read_text())
    assert (found["ok"], found["nothing_checked"], found["kernels_checked"]) == (True, None, 2)
    assert {entry["kernel"]: entry["launches"] for entry in found["launches"]} == {
        "same(float*)": 0, "same(double*)": 0, "plain": 1, "unused": 0, "maths::fill": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        ("import cudakit\ncudakit.Device().zeros(3)", [], "no kernel of mine.cu was launched"),
        # a kernel of another file that includes code of this file
        (
            "import cudakit\ndevice = cudakit.Device()\nkernel = device.compile('other.cu')['other']\n"
            "kernel.launch(device.default_stream, grid=1, block=1, args=(device.zeros(1),))",
            [],
            "no kernel of mine.cu was launched",
        ),
        (LAUNCHES, ["--arch", ","], "--arch names no architecture"),
        (LAUNCHES, ["--arch", ""], "--arch names no architecture"),
        (LAUNCHES, ["--arch", "sm_103"], "no simulated device supports sm_103"),
    ],
)
def test_a_check_that_checked_nothing_fails(capsys, mine, script, arguments, why):
    (mine / "mine.cu").write_text("__device__ inline float one() { return 1; }\n" + SEVERAL)
    (mine / "other.cu").write_text('#include "mine.cu"\n__global__ void other(float* y) { y[0] = one(); }\n')
    (mine / "try.py").write_text(script)
    status, out, err = check(capsys, "--run", "try.py", "--json", "out.json", *arguments)
    assert status == cli.EXIT_REFUSED
    assert err.splitlines()[-1].startswith("error: NOTHING CHECKED: ")
    assert why in err
    assert not re.search("passed|all right", out)
    found = json.loads((mine / "out.json").read_text())
    assert not found["ok"]
    assert why in found["nothing_checked"]
    assert not found["kernels_checked"]


def test_a_file_without_kernels_is_not_checked(capsys, mine):
    (mine / "mine.cu").write_text("__device__ inline float one() { return 1; }\n")
    status, _, err = check(capsys)
    assert status == cli.EXIT_REFUSED
    assert "NOTHING CHECKED: " in err


# ---- scripts that fail ----


def test_a_fault_in_the_script_fails_the_check_with_its_line(capsys, mine):
    (mine / "try.py").write_text(SCRIPT.replace("device.zeros(1024)", "device.zeros(100)"))
    status, out, _ = check(capsys, "--run", "try.py", "--annotate", "out.html")
    assert status == cli.EXIT_FALSE
    assert "out-of-bounds access: global load of 4 bytes" in out
    assert f"mine.cu:{line_of('twice(x')}" in out
    assert not (mine / "out.html").exists()


def test_launches_of_one_shape_are_one_record_and_other_counts_do_not_see_it(sim):
    kernel = sim.compile(source=SOURCE.replace('#include "twice.cuh"', HEADER), name="mine.cu")["crowded"]
    driver, y, hits = sim.context.driver, sim.zeros(32), sim.zeros(1, "int32")
    apart, together = driver.simCount(), driver.simCount(together=True)
    for grid in (1, 3, 3, 3):
        kernel.launch(sim.default_stream, grid=grid, block=32, args=(y, hits))
    sim.synchronize()
    assert [record.counters.launches for record in driver.simEndCount(together)] == [1, 3]
    found = driver.simEndCount(apart)
    assert [(record.grid[0], record.counters.atomics) for record in found] == [(1, 1), (3, 3), (3, 3), (3, 3)]
    assert found[0].counters.occupancy.limit == "blocks"
    assert (found[0].shared, found[0].static_shared) == (0, 4096)


@pytest.mark.parametrize("after", ["pass", "device.close()"])
def test_a_fault_that_the_script_passes_over_fails_the_check(capsys, mine, after):
    body = SCRIPT.replace("device.zeros(1024)", "device.zeros(100)") + "device.synchronize()"
    hidden = "try:\n    " + body.replace("\n", "\n    ")
    (mine / "try.py").write_text(f"{hidden}\nexcept Exception:\n    {after}\n")
    status, out, _ = check(capsys, "--run", "try.py")
    assert status == cli.EXIT_FALSE
    assert "out-of-bounds access: global load of 4 bytes" in out


LEAKS = """\
import cudakit
with cudakit.Device() as device:
    kept = device.zeros(1024)
    kernel = device.compile("mine.cu")["column"]
    kernel.launch(device.default_stream, grid=1, block=32, args=(kept, device.zeros(32)))
"""


def test_leaks_are_told_and_fail_only_where_asked_for(capsys, mine):
    (mine / "leaks.py").write_text(LEAKS)
    status, out, _ = check(capsys, "--run", "leaks.py")
    assert status == 0
    assert re.search(r"leak: .*\n.*device memory.*4096 bytes", out)
    assert "leaks.py:3" in out
    status, out, _ = check(capsys, "--run", "leaks.py", "--checks", "leaks")
    assert status == cli.EXIT_FALSE
    assert "leaks.py:3" in out


def test_work_that_fails_unseen_fails_the_check(capsys, mine):
    late = SCRIPT.replace("device.zeros(1024)", "device.zeros(100)").split("for _")[0]
    (mine / "try.py").write_text(late)
    status, out, _ = check(capsys, "--run", "try.py")
    assert status == cli.EXIT_FALSE, "the script does not wait"
    assert "out-of-bounds access: global load of 4 bytes" in out
    (mine / "try.py").write_text(late + "device.close()\n")
    status, out, _ = check(capsys, "--run", "try.py")
    assert status == cli.EXIT_FALSE
    assert out.count("out-of-bounds access: global load of 4 bytes") == 1


FAULTY = """\
def faulty():
    module["column"].launch(device.default_stream, grid=1, block=32, args=(y, y))
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("assert hits.numpy()[0] == 5, 'wrong count'", "AssertionError: wrong count"),
        ("import sys\nsys.exit(3)", "ended with status 3"),
        ("import os\nos._exit(0)", "ended by os._exit(0)"),
        ("import os\nos.execl('/bin/true', 'true')", "ended by os.execv('/bin/true')"),
        ("import asyncio\nraise asyncio.CancelledError('later')", "CancelledError: later"),
        (
            "try:\n    faulty()\n    device.synchronize()\nexcept Exception: pass",
            "FAILED\nout-of-bounds access",
        ),
        ("import sys\nfaulty()\nsys.exit()", "out-of-bounds access"),
        ("import threading\nthreading.Timer(0.02, faulty).start()", "out-of-bounds access"),
        ("def wrong(:", "SyntaxError"),
    ],
)
def test_a_script_that_fails_fails_the_check(capsys, mine, end, said):
    (mine / "try.py").write_text(SCRIPT + FAULTY + end + "\n")
    status, out, _ = check(capsys, "--run", "try.py")
    assert status == cli.EXIT_FALSE
    assert said in out
    assert "--device sim" not in out, "it ran there already"


def test_a_script_that_closes_stdout_is_refused(mine, monkeypatch):
    import io
    import sys

    (mine / "try.py").write_text("import sys\nsys.stdout.close()\n")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    assert command_line.main(["check", "mine.cu", "--arch", "sm_80", "--run", "try.py"]) == cli.EXIT_REFUSED
    assert "error: --run try.py: the script closed stdout" in " ".join(said.getvalue().split())


def test_the_script_leaves_nothing_behind(capsys, mine, monkeypatch):
    import os
    import sys

    monkeypatch.setenv("CUDAKIT_DEVICE", "gpu:7")
    before = list(sys.argv), list(sys.path), os.getcwd()
    (mine / "try.py").write_text(SCRIPT + "import os\nos.chdir('/')\n")
    check(capsys, "--run", "try.py")
    assert (list(sys.argv), list(sys.path), os.getcwd(), os.environ["CUDAKIT_DEVICE"]) == (*before, "gpu:7")


def test_only_the_checks_asked_for_are_on(capsys, mine):
    (mine / "try.py").write_text(SCRIPT + "print(sorted(device.context.driver.checks))\n")
    assert "['barrier', 'warp']\n" in check(capsys, "--run", "try.py", "--checks", "warp,barrier")[1]
    assert "[]\n" in check(capsys, "--run", "try.py", "--checks", "")[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--annotate", "out.html"], "--annotate out.html: no family of cudakit.ops declares a kernel of mine.cu"),
        (
            ["--annotate", "absent/out.html", "--run", "try.py"],
            "--annotate absent/out.html: the folder absent does not exist",
        ),
        (["--run", "absent.py"], "--run absent.py: the file does not exist"),
        (["--run", "empty.py", "--annotate", "out.html"], "no kernel of mine.cu was launched"),
        (["--run", "gpu.py"], "the script requests a GPU"),
        (["--checks", "rice"], "--checks rice: there are barrier, "),
        (["--arch", "90"], "--arch 90 is not an architecture"),
        (["--examples", "-1"], "--examples must be at least 0"),
    ],
)
def test_what_cannot_be_done_is_refused(capsys, mine, arguments, why):
    (mine / "empty.py").write_text("")
    (mine / "gpu.py").write_text("import cudakit\ncudakit.Device('gpu:99')\n")
    status, _, err = check(capsys, *arguments)
    assert status == cli.EXIT_REFUSED
    assert why in err


@pytest.mark.long
@pytest.mark.parametrize("name", ["softmax/05_tree_reduce.cu", "add_broadcast/01_slow_axis.cu"])
def test_the_committed_pages_say_what_the_command_says_now(capsys, tmp_path, name):
    root = ROOT
    out = tmp_path / "page.html"
    assert command_line.main(["check", str(root / "kernels" / name), "--annotate", str(out)]) == 0
    capsys.readouterr()
    kept = root / "profiles" / "sim" / "annotate" / f"{Path(name).stem[3:]}.html"
    command = f"cudakit check kernels/{name} --annotate {kept.relative_to(root)}"
    told = [re.findall(r"<li><b>.*?</li>", page.read_text(), re.DOTALL) for page in (out, kept)]
    assert told[0] == told[1], f"run: {command}"
    assert told[0]
    for line in (root / "kernels" / name).read_text().splitlines():
        assert f'<td class="code">{escape(line)}</td>' in kept.read_text(), f"run: {command}"


# ---- the worst lines ----


def counters_of(**lines):
    total = Counters()
    for name, share in lines.items():
        total.per_line["a.cu", int(name[1:])] = share
        total.add(share)
    return total


def test_nothing_stands_out_in_a_plain_kernel():
    plain = LineCounters(1000, 32000, branches=9, global_load_requests=9, global_load_sectors=36)
    plain.global_load_ideal_sectors = 36
    assert advice.hints(counters_of(l1=plain)) == []


def test_the_worst_of_each_kind_is_named_once():
    def load(sectors):
        return LineCounters(
            100, 3200, global_load_requests=10, global_load_sectors=sectors, global_load_ideal_sectors=40
        )

    found = advice.hints(counters_of(l1=load(80), l2=load(320), l3=load(79)))
    assert [(item.kind, item.place) for item in found] == [("uncoalesced load", ("a.cu", 2))]
    assert "32 sectors" in found[0].why
    idle = LineCounters(900, 900)
    rare = LineCounters(10, 10)
    found = advice.hints(counters_of(l1=LineCounters(9000, 9000 * 32), l2=idle, l3=rare))
    assert [(item.kind, item.place) for item in found] == [("idle lanes", ("a.cu", 2))]


def test_many_barriers_are_named_at_the_line_with_most():
    counters = counters_of(l1=LineCounters(100, 3200, barriers=4), l2=LineCounters(100, 3200, barriers=20))
    counters.blocks, counters.threads = 1, 64
    (found,) = advice.hints(counters)
    assert (found.kind, found.place) == ("many barriers", ("a.cu", 2))
    assert "reaches 12 barriers, 10 of them here" in found.why
    counters.blocks, counters.threads = 4, 256
    assert advice.hints(counters) == []


def test_a_guard_at_a_ragged_edge_is_no_trouble():
    counters = counters_of(l1=LineCounters(100, 3200, branches=32, divergent_branches=4))
    counters.blocks = 4
    assert advice.hints(counters) == []
    counters.blocks = 3
    assert [found.kind for found in advice.hints(counters)] == ["divergent branch"]


def test_low_occupancy_is_named_without_a_line():
    counters = counters_of(l1=LineCounters(10, 320))
    counters.occupancy = Occupancy(1, "registers", 16, 64)
    (found,) = advice.hints(counters)
    assert (found.kind, found.place) == ("low occupancy", None)
    assert found.why.startswith("25 % occupancy: 1 block per multiprocessor, 16 of 64 warps, limited by registers.")


def test_lanes_that_are_switched_off_are_no_bank_conflict(tmp_path, monkeypatch):
    """8 lanes of 16 bytes need one pass by their number of bytes and two by their addresses, but no bank conflict
    occurs."""
    monkeypatch.chdir(tmp_path)
    lines = [
        "__global__ void some(float4* y) {",
        "    __shared__ float4 s[32];",
        "    s[threadIdx.x] = make_float4(1, 2, 3, 4);",
        "    __syncthreads();",
        "    if (threadIdx.x % 4 == 0) y[threadIdx.x] = s[threadIdx.x / 4];",
        "}",
    ]
    (tmp_path / "mine.cu").write_text("\n".join(lines))
    (tmp_path / "try.py").write_text(
        "import cudakit\ndevice = cudakit.Device()\ny = device.zeros((32, 4))\n"
        "device.compile('mine.cu')['some'].launch(device.default_stream, grid=1, block=32, args=(y,))\n"
        "device.synchronize()\n"
    )
    arguments = ["check", "mine.cu", "--run", "try.py", "--annotate", "x.html", "--json", "x.json", "--arch", "sm_90a"]
    assert command_line.main(arguments) == cli.EXIT_OK
    told = json.loads((tmp_path / "x.json").read_text())
    assert "bank conflict" not in json.dumps(told).replace("bank_conflict", "")
    page = (tmp_path / "x.html").read_text()
    assert "<dt>bank conflicts</dt><dd>none</dd>" in page
    assert "2-way" not in page
