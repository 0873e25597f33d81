"""NVTX ranges: the calls that a tool receives, and the cost without a tool."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit import nvtx, ops
from cudakit.compile import cache
from cudakit.libs import blas, fft
from cudakit.profiling import find_ncu


class Tool:
    """A domain that records its calls, as Nsight would."""

    def __init__(self):
        self.said = []
        self.made = []

    def get_event_attributes(self, message=None, color=None):
        self.made.append(message)
        return message, color

    def push_range(self, attributes):
        self.said.append(("push", *attributes))

    def pop_range(self):
        self.said.append(("pop",))

    def mark(self, attributes):
        self.said.append(("mark", *attributes))


@pytest.fixture
def tool():
    made = Tool()
    before = list(nvtx.listeners)
    nvtx.listeners[:] = [nvtx._Tool(made)]
    yield made
    nvtx.listeners[:] = before


@pytest.fixture
def nobody():
    """No tool is attached, and the nvtx package has already been imported."""
    before = list(nvtx.listeners)
    nvtx.listeners.clear()
    yield
    nvtx.listeners[:] = before


def test_ranges_nest_and_name_their_work(tool):
    with nvtx.range("outer"), nvtx.range("inner", color="green"):
        nvtx.mark("here")
    assert tool.said == [
        ("push", "outer", None),
        ("push", "inner", "green"),
        ("mark", "here", None),
        ("pop",),
        ("pop",),
    ]
    assert nvtx.listening()


def test_a_range_ends_when_its_work_raises(tool):
    with pytest.raises(ZeroDivisionError), nvtx.range("work"):
        _ = 1 / 0
    assert tool.said == [("push", "work", None), ("pop",)]


def test_as_a_decorator(tool):
    @nvtx.range("work")
    def work(left, right=2):
        """Return the sum."""
        return left + right

    assert work(1) == 3
    assert work(1, right=5) == 6
    assert work.__name__ == "work"
    assert work.__doc__ == "Return the sum."
    assert tool.said == [("push", "work", None), ("pop",)] * 2


def test_one_range_object_can_be_used_again_and_within_itself(tool):
    again = nvtx.range("again")
    with again, again:
        pass
    assert [entry[0] for entry in tool.said] == ["push", "push", "pop", "pop"]
    assert tool.made == ["again"], "a name is registered once"


@pytest.mark.parametrize("kind", ["generator", "coroutine", "asynchronous generator"])
def test_what_does_not_run_as_it_is_called_is_not_decorated(kind):
    """Decorating such functions raises an error: the range would end before the work begins."""

    def generator():
        yield

    async def coroutine():
        pass

    async def asynchronous():
        yield

    function = {"generator": generator, "coroutine": coroutine}.get(kind, asynchronous)
    with pytest.raises(TypeError, match="would end before it runs"):
        nvtx.range("work")(function)


def test_a_range_is_named_by_text():
    with pytest.raises(TypeError, match="must be a str, got int: 5"):
        nvtx.range(5)


def run(code, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NV")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


CODE = """
    import sys
    from cudakit import nvtx
    assert "nvtx" not in sys.modules
    with nvtx.range("x"):
        nvtx.mark("y")
    print(nvtx.listening(), "nvtx" in sys.modules)
"""


def test_the_package_is_asked_at_the_first_range():
    assert run(CODE).split()[1] == "True"


def test_switched_off():
    assert run(CODE, NVTX_DISABLE="1") == "False True"


def test_a_range_without_a_listener_calls_nothing(nobody):
    """Only the range's own __enter__ and __exit__ are called, and no function of nvtx."""
    work, calls = nvtx.range("work"), []

    def note(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        with work:
            pass
    finally:
        sys.setprofile(None)
    assert calls == ["__enter__", "__exit__"]


SCALE = """
__global__ void scale(float* x, float by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
"""


def test_launches_look_at_nothing_more_than_before(sim, nobody, monkeypatch):
    """Launches enter no range without a listener."""
    kernel = sim.compile(source=SCALE, name="scale.cu")["scale"]
    x = sim.full((4,), 3, np.float32)
    stream = sim.default_stream
    prepared = kernel.prepare(grid=1, block=4, args=(x, 2.0, 4))
    for _ in range(2):
        kernel.launch(stream, grid=1, block=4, args=(x, 2.0, 4))
    monkeypatch.setattr(nvtx.range, "__enter__", lambda self: pytest.fail(f"{self.name} was entered"))
    kernel.launch(stream, grid=1, block=4, args=(x, 2.0, 4))
    prepared.launch(stream)
    monkeypatch.undo()
    assert list(x.numpy()) == [48] * 4


def test_every_way_to_launch_is_a_range_once_somebody_listens(sim, tool):
    """Launch callables that were created before the listener report ranges too: a trace may begin at any time."""
    nvtx.listeners.clear()
    module = sim.compile(source=SCALE, name="scale.cu")
    kernel = module["scale"]
    stream = sim.default_stream
    x = sim.full((4,), 1, np.float32)
    args = (x, 2.0, 4)
    prepared = kernel.prepare(grid=1, block=4, args=args)
    clustered = kernel.prepare(grid=1, block=4, args=args, cluster=1)
    kernel.launch(stream, grid=1, block=4, args=args)
    checked = kernel.launch
    with stream.capture() as graph:
        checked(stream, grid=1, block=4, args=args)
    ready = graph.instantiate()
    nvtx.listeners[:] = [nvtx._Tool(tool)]
    ways = {
        "launch scale": (
            lambda: checked(stream, grid=1, block=4, args=args),
            lambda: prepared.launch(stream),
            lambda: clustered.launch(stream),
            lambda: kernel.launch(stream, grid=1, block=4, args=args, cooperative=True),
            lambda: kernel.launch(stream, grid=1, block=4, args=(x, np.float32(2), np.int32(4))),
        ),
        "launch graph": (lambda: ready.launch(stream),),
    }
    for name, launches in ways.items():
        for launch in launches:
            tool.said.clear()
            launch()
            assert tool.said[-2:] == [("push", name, None), ("pop",)]
            # a plan for new types of arguments
            assert tool.said[:-2] in ([], [("push", "plan launch", None), ("pop",)])
    assert list(x.numpy()) == [2**7] * 4


def test_a_threads_first_launch_is_one_range(sim, tool):
    """No context is current in the new thread, so the driver rejects the first attempt."""
    kernel = sim.compile(source=SCALE, name="scale.cu")["scale"]
    x = sim.full((4,), 1, np.float32)
    sim.synchronize()
    prepared = kernel.prepare(grid=1, block=4, args=(x, 2.0, 4))
    tool.said.clear()
    worker = threading.Thread(target=prepared.launch, args=(sim.default_stream,))
    worker.start()
    worker.join()
    assert list(x.numpy()) == [2] * 4
    assert names(tool).count("launch scale") == 1


def test_a_launch_that_fails_ends_its_range(sim, tool):
    kernel = sim.compile(source=SCALE, name="scale.cu")["scale"]
    x = sim.full((4,), 1, np.float32)
    tool.said.clear()
    with pytest.raises(cudakit.LaunchError):
        kernel.launch(sim.default_stream, grid=1, block=4, args=(x, 2.0))
    assert tool.said.count(("pop",)) == len(tool.said) / 2


def names(tool):
    return [entry[1] for entry in tool.said if entry[0] != "pop"]


def test_what_cudakit_does_is_in_ranges(tool, tmp_path, monkeypatch):
    """Each step that takes time, from opening a device to the result, has a named range."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    gc.collect()  # garbage of other tests is freed in a range too
    with cudakit.Device("sim", fresh=True) as device, device.stream() as stream:
        assert names(tool) == ["open device", "start driver", "create context"]
        tool.said.clear()
        kernel = device.compile(source=SCALE, name="folder/scale.cu")["scale"]
        made = ["compile scale.cu", "read cache", "NVRTC", "write cache", "load scale.cu", "load kernel scale"]
        assert names(tool) == made
        x = device.array(np.ones(4, np.float32), stream=stream)
        pinned = device.pinned((4,))
        stream.synchronize()
        tool.said.clear()
        x.copy_from(np.ones(4, np.float32), stream)
        kernel.launch(stream, grid=1, block=4, args=(x, 2.0, 4))
        y = x.copy(stream)
        y.fill(7, stream)
        x.copy_to(pinned, stream)
        stream.synchronize()
        stream.record().synchronize()
        device.synchronize()
        x.close()
        y.close()
        del pinned
        assert names(tool) == [
            "copy H2D", "plan launch", "launch scale", "allocate", "copy D2D", "fill", "copy D2H", "synchronize stream",
            "synchronize event", "synchronize device", "free", "free", "free pinned",
        ]  # fmt: skip
        tool.said.clear()
        rows = device.array(np.ones((2, 5), np.float32))
        result = ops.softmax(rows, variant="tree_reduce")
        at = names(tool).index("softmax.tree_reduce")
        assert names(tool)[at:] == ["softmax.tree_reduce", "launch tree_reduce"]
        rows.close()
        result.close()
        tool.said.clear()
    assert names(tool)[:1] == ["close device"]
    assert tool.said.count(("pop",)) == sum(entry[0] == "push" for entry in tool.said)


def test_a_cache_hit_is_named(sim, tool, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    compiling = {"source": SCALE, "name": "scale.cu"}
    sim.compile(**compiling)
    tool.said.clear()
    sim.compile(**compiling)
    assert names(tool) == ["compile scale.cu", "cache hit (memory)"]
    cache.clear_memo()
    tool.said.clear()
    sim.compile(**compiling)
    assert names(tool)[:3] == ["compile scale.cu", "read cache", "cache hit (disk)"]
    assert "NVRTC" not in names(tool)


def test_the_libraries_calls_are_in_ranges(sim, tool):
    a = sim.array(np.ones((3, 3), np.complex64))
    out = sim.empty((), np.float32)
    blas.gemm(a, a)
    blas.nrm2(a.reshape(-1), out)
    fft.fft(a)
    assert {"cublas.gemm", "cublas.nrm2", "cufft.forward"} <= set(names(tool))


# A real tool, loaded and called by NVTX itself ------------------------------------------------------------------------

# NVTX loads the library named by NVTX_INJECTION64_PATH and calls its InitializeInjectionNvtx2 with a function that
# returns the callback table; the library enters its own functions there. This library writes one line per call. Types
# and numbers are those of nvtxDetail/nvtxTypes.h and nvToolsExt.h of NVTX 3.
TOOL = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char* message;
} Attributes;
typedef void (**Slot)(void);
typedef struct {
    size_t size;
    int (*functions)(int module, Slot** table, unsigned* size);
} Callbacks;

static FILE* out;

static void* domain_create(const char* name) { fprintf(out, "domain %s\n", name); return strdup(name); }
static void* register_string(void* domain, const char* text) { return strdup(text); }
static int push(void* domain, const Attributes* what) {
    fprintf(out, "push %s@%s\n", (char*)domain, what->message);  // registered or not, it is our pointer to the text
    return 0;
}
static int pop(void* domain) { fprintf(out, "pop %s\n", (char*)domain); return 0; }
static void mark(void* domain, const Attributes* what) { fprintf(out, "mark %s@%s\n", (char*)domain, what->message); }

int InitializeInjectionNvtx2(const void* (*exported)(uint32_t)) {
    out = fopen(getenv("TOOL_OUT"), "w");
    setvbuf(out, NULL, _IOLBF, 0);
    const Callbacks* callbacks = (const Callbacks*)exported(1);
    Slot* table;
    unsigned size;
    if (!callbacks || !callbacks->functions(5 /* CORE2 */, &table, &size) || size < 13) return 0;
    *table[1] = (void (*)(void))mark;
    *table[4] = (void (*)(void))push;
    *table[5] = (void (*)(void))pop;
    *table[10] = (void (*)(void))register_string;
    *table[12] = (void (*)(void))domain_create;
    return 1;
}
"""


@pytest.fixture(scope="module")
def injection(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler is installed to build an NVTX tool")
    folder = tmp_path_factory.mktemp("tool")
    (folder / "tool.c").write_text(TOOL)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", "tool.so", "tool.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "tool.so"


SEEN = """
    import numpy as np
    import cudakit
    from cudakit import nvtx, ops
    with nvtx.range("whole"):
        nvtx.mark("here")
        with cudakit.Device("sim") as device:
            x = device.array(np.ones((2, 5), np.float32))
            ops.softmax(x, variant="tree_reduce").numpy()
    with nvtx.trace() as t:
        with nvtx.range("traced"):
            pass
    print(nvtx.listening(), [span.name for span in t.spans])
"""


def test_a_real_tool_sees_domain_ranges_and_marks(injection, tmp_path):
    out = tmp_path / "said"
    said = run(SEEN, NVTX_INJECTION64_PATH=str(injection), TOOL_OUT=str(out))
    assert said == "True ['traced']"
    lines = out.read_text().splitlines()
    assert lines[:3] == ["domain cudakit", "push cudakit@whole", "mark cudakit@here"]
    assert {line.partition(" ")[2].partition("@")[0] for line in lines} == {"cudakit"}
    depth, inside = 0, []
    for line in lines:
        depth += line.startswith("push")
        if depth > 1 and line.startswith("push"):
            inside.append((depth, line.partition("@")[2]))
        depth -= line.startswith("pop")
    assert depth == 0, "every range must end"
    assert inside[:3] == [(2, "open device"), (3, "start driver"), (3, "create context")]
    at = inside.index((2, "softmax.tree_reduce"))
    assert inside[at + 1 : at + 3] == [(3, "launch tree_reduce"), (2, "copy D2H")]
    assert {"copy H2D", "copy D2H", "allocate", "free", "synchronize stream"} <= {name for _, name in inside}
    assert lines[-2:] == ["push cudakit@traced", "pop cudakit"]


ODD = r"""
    from cudakit import nvtx
    for name, color in ("bad colour", "no such"), ("file \udcff.cu", None), ("plain", "green"):
        with nvtx.range(name, color):
            pass
    print(nvtx.listening())
"""


def test_a_tool_fails_no_program_that_runs_without_one(injection, tmp_path):
    """A colour that the nvtx package does not know, and a file name that is not UTF-8."""
    assert run(ODD, NVTX_DISABLE="1") == "False"
    out = tmp_path / "said"
    assert run(ODD, NVTX_INJECTION64_PATH=str(injection), TOOL_OUT=str(out)) == "True"
    pushed = [line.partition("@")[2] for line in out.read_text().splitlines() if line.startswith("push")]
    assert pushed == ["bad colour", r"file \udcff.cu", "plain"]


def test_a_tool_that_is_switched_off_sees_nothing(injection, tmp_path):
    out = tmp_path / "said"
    environment = {"NVTX_INJECTION64_PATH": str(injection), "TOOL_OUT": str(out), "NVTX_DISABLE": "1"}
    assert run(SEEN, **environment) == "False ['traced']"
    assert not out.exists() or "push" not in out.read_text()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "wanted",
    ["cudakit@softmax.tree_reduce/", "cudakit@softmax.tree_reduce/launch tree_reduce", "cudakit@launch tree_reduce/"],
)
def test_ncu_profiles_the_kernels_of_one_range(gpu, wanted):
    """Two variants run; ncu profiles only the one whose range is selected, including nested ranges."""
    ncu = find_ncu()
    if ncu is None:
        pytest.skip("ncu is not installed")
    script = [sys.executable, str(ROOT / "examples" / "softmax_compare.py"), "--device", "gpu", "--once", "--quiet"]
    filters = ["--nvtx", "--nvtx-include", wanted, "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
    command = [ncu, *filters, *script, "--shapes", "64x256", "--variants", "thread_per_row,tree_reduce"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "ERR_NVGPUCTRPERM" in done.stdout:
        pytest.skip("no permission to read performance counters: ERR_NVGPUCTRPERM")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"Profiling \"(\w+)\"", done.stdout) == ["tree_reduce"]
