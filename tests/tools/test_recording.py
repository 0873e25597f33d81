"""Recordings: every launch is saved with its memory, and replayed with the same result; files and their damage."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import re
import subprocess
import sys
import textwrap
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_installed

import cudakit
from cudakit import nvtx, ops, recording
from cudakit.commands import replaying
from cudakit.debugger.arrays import simulated_contexts
from cudakit.errors import Refused
from cudakit.launch import following
from cudakit.memory.array import as_dtype
from cudakit.recording import RecordingError, file, record, triton_launches
from cudakit.recording.difference import compare
from cudakit.recording.launches import ArrayArgument
from cudakit.recording.memory import merged
from cudakit.recording.snapshot import Snapshot

SOURCE = r"""#include "factor.cuh"
__constant__ float weights[4];
__device__ int calls;
struct Rows { const float* x; long long pitch; };

__global__ void weigh(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) calls += 1;
    if (i < n) y[i] = factor(x[i]) * weights[i % 4];
}
__global__ void sums(Rows rows, float* out, int cols) {
    float sum = 0.0f;
    for (int i = 0; i < cols; i++) sum += rows.x[threadIdx.x * rows.pitch + i];
    out[threadIdx.x] = sum;
}
__global__ void gather(float* const* rows, float* out) { out[threadIdx.x] = rows[threadIdx.x][0]; }
__global__ void swap_rows(float** rows) { float* first = rows[0]; rows[0] = rows[1]; rows[1] = first; }
__global__ void wide(const void* x, float* y) { float2 v = *(const float2*)x; y[0] = v.x + v.y; }
__global__ void rank(int* out) {
    unsigned int block;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    if (threadIdx.x == 0) out[blockIdx.x] = block;
}
"""


@pytest.fixture
def module(sim: cudakit.Device, tmp_path: Path) -> cudakit.Module:
    (tmp_path / "factor.cuh").write_text("__device__ float factor(float x) {\n    return 2.0f * x;\n}\n")
    (tmp_path / "kernels.cu").write_text(SOURCE)
    made = sim.compile(tmp_path / "kernels.cu")
    made.constant("weights").copy_from(np.array([1, 2, 3, 4], np.float32))
    return made


def weighed(module: cudakit.Module, x: Any, y: Any, n: int | None = None) -> None:
    device = cudakit.Device.of(module.context)
    module["weigh"].launch(device.default_stream, grid=1, block=64, args=(x, y, y.size if n is None else n))


def outcomes(path: Path, **options: Any) -> list[str]:
    with recording.load(path) as found:
        return [one.outcome for one in found.replay(**options).launches]


def replayed(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its status and its JSON."""
    parser = argparse.ArgumentParser()
    replaying.add_arguments(parser)
    made = path.with_suffix(".json")
    status = replaying.main(parser.parse_args([str(path), "--json", str(made), *arguments]))
    return status, json.loads(made.read_text())


@pytest.fixture
def bug(tmp_path: Path) -> Path:
    return tmp_path / "bug.cudakit"


# Recorded launches ----------------------------------------------------------------------------------------------------


def test_each_way_of_launching(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    x, y, ranks = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50), sim.empty(4, "int32")
    weighed(module, x, y)  # makes the launch plan, which the recording must not miss
    stream = sim.default_stream
    with record(bug):
        for _ in range(2):
            weighed(module, x, y)
        prepared = module["weigh"].prepare(grid=1, block=64, args=(x, y, 50))
        prepared.launch(stream)
        module["rank"].launch(stream, grid=4, block=32, args=(ranks,), cluster=2)
        module["rank"].prepare(grid=4, block=32, args=(ranks,), cooperative=True).launch(stream)
        matrix = sim.array(np.ones((4, 64), np.float32))
        for _ in range(3):  # the third call takes the guard
            result = ops.softmax(matrix)
    weighed(module, x, y)  # not recorded
    assert float(result.numpy()[0, 0]) == 1 / 64
    with recording.load(bug) as found:
        assert [launch.kernel for launch in found.launches][:5] == ["weigh", "weigh", "weigh", "rank", "rank"]
        assert len(found.launches) == 8
        assert found.complete
        assert not found.exception
        assert found.launches[3].cluster == (2, 1, 1)
        assert found.launches[4].cooperative
        assert found.launches[0].launched.startswith(f"{__file__}:")
        calls = [
            found.values(launch, launch.named("calls"), after=True).view(np.int32)[0] for launch in found.launches[:3]
        ]
        assert calls == [2, 3, 4], "the variable is saved before and after each launch"
        first = found.launches[0]
        np.testing.assert_array_equal(found.values(first, first.named("x")), np.arange(50))
        np.testing.assert_array_equal(found.values(first, first.named("y"), after=True)[:4], [0, 4, 12, 24])
        assert [array.shape for array in found.launches[-1].arrays] == [(4, 64), (4, 64)]
        assert found.replay().ok
    assert outcomes(bug) == ["equal"] * 8


def test_launches_without_a_recording_do_not_call_it(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    listeners = list(nvtx.listeners)
    with pytest.raises(ZeroDivisionError), record(bug):
        1 / 0  # noqa: B018
    assert following.followers == []
    assert nvtx.listeners == listeners
    with recording.load(bug) as found:
        assert found.launches == ()
        assert found.exception == "ZeroDivisionError: division by zero"


def test_pointers_in_structures_and_in_memory_are_followed(
    sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    x = sim.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    table = sim.array(np.array([x.pointer + 16 * row for row in range(3)], np.uint64))
    out, stream = sim.zeros(3), sim.default_stream
    rows = np.array((x.pointer, 4), [("x", "u8"), ("pitch", "i8")])[()]
    with record(bug):
        module["sums"].launch(stream, grid=1, block=3, args=(rows, out, 4))
        module["gather"].launch(stream, grid=1, block=3, args=(table, out))
        module["swap_rows"].launch(stream, grid=1, block=1, args=(table,))  # stores pointers
    assert outcomes(bug) == ["equal"] * 3
    stored = replayed(bug, "--launch", "2-3", "--who", "rows[1]")[1]["launches"][1]["writer"]["store"]
    assert (Path(stored["file"]).name, stored["line"], stored["thread"]) == ("kernels.cu", 17, [0, 0, 0])
    with recording.load(bug) as found:
        assert {region.size for region in found.launches[1].regions} >= {48, 24, 12}
        gather = found.launches[1]
        np.testing.assert_array_equal(found.values(gather, gather.named("out"), after=True), [0, 4, 8])


def test_views_of_one_array_share_its_memory(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    whole = sim.array(np.arange(40, dtype=np.float32))
    with record(bug):
        weighed(module, whole[:20], whole[20:])
    with recording.load(bug) as found:
        launch = found.launches[0]
        assert [region.size for region in launch.regions if not region.variable] == [160]
        assert [array.offset for array in launch.arrays] == [0, 80]
    assert outcomes(bug) == ["equal"]


def test_overlapping_memory_of_several_owners_is_one_region() -> None:
    assert merged([(40, 60), (0, 10), (50, 70), (10, 20), (45, 50)]) == [(0, 10), (10, 20), (40, 70)]


@pytest.mark.parametrize("host", [False, True], ids=["view", "memory of numpy"])
def test_a_misaligned_address_stays_misaligned(
    sim: cudakit.Device, module: cudakit.Module, bug: Path, host: bool
) -> None:
    values = np.arange(8, dtype=np.float32)
    x = sim.wrap(values[1:]) if host else sim.array(values)[1:]
    with pytest.raises(cudakit.DeviceFault), record(bug):
        module["wide"].launch(sim.default_stream, grid=1, block=1, args=(x, sim.zeros(1)))
    status, result = replayed(bug)
    assert status == 1
    assert result["launches"][0]["fault"]["kind"] == "misaligned"


def test_a_fault_is_found_again_without_the_sources(
    sim: cudakit.Device, module: cudakit.Module, bug: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50)

    def both() -> None:
        with record(bug):
            weighed(module, x, y)
            weighed(module, x, y, 51)

    with pytest.raises(cudakit.DeviceFault, match="out-of-bounds"):
        both()
    for name in ("kernels.cu", "factor.cuh"):
        (tmp_path / name).unlink()
    status, result = replayed(bug)
    assert status == 1
    assert [one["outcome"] for one in result["launches"]] == ["equal", "fault"]
    text = capsys.readouterr().out
    assert "the recorded block ended with DeviceFault" in text
    for line in ("passed as parameter 0 (`x`)", "y[i] = factor(x[i]) * weights[i % 4];", f"launched by {__file__}:"):
        assert line in text


def test_uninitialised_memory_stays_uninitialised(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    x, y = sim.empty(50), sim.empty(50)
    x[:49].fill(1.0)
    with pytest.raises(cudakit.DeviceFault, match="uninitialised read"), record(bug):
        weighed(module, x, y)
    status, result = replayed(bug, "--checks", "init")
    assert status == 1
    assert result["launches"][0]["fault"]["kind"] == "uninitialised read"
    with recording.load(bug) as found:  # on a GPU, all bytes would count as written
        launch = found.launches[0]
        region = launch.arrays[0].region
        undefined = found.undefined(launch.regions[region], launch.before[region])
        assert undefined is not None
        np.testing.assert_array_equal(np.flatnonzero(undefined), range(196, 200))


# Differences ----------------------------------------------------------------------------------------------------------


def _recorded_with(
    monkeypatch: pytest.MonkeyPatch, sim: cudakit.Device, module: cudakit.Module, path: Path, change: Any
) -> None:
    """Record `weigh` as a device with another result would: `change(y)` is applied to the memory after the launch."""
    x, y = sim.array(np.arange(1, 51, dtype=np.float32).reshape(5, 10)), sim.empty((5, 10))
    save = Snapshot.save
    saved: list[Any] = []

    def changed(self: Snapshot, context: Any, writer: Any) -> Any:
        if saved:
            host = y.numpy()
            change(host)
            y.copy_from(host)
            sim.synchronize()
        saved.append(self)
        return save(self, context, writer)

    with monkeypatch.context() as patched, record(path):
        patched.setattr(Snapshot, "save", changed)
        weighed(module, x, y)


def test_the_first_difference_and_the_line_that_wrote_it(
    monkeypatch: pytest.MonkeyPatch, sim: cudakit.Device, module: cudakit.Module, bug: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def change(y: Any) -> None:
        y[2, 3] = -1
        y[4, 9] = np.nan

    _recorded_with(monkeypatch, sim, module, bug, change)
    status, result = replayed(bug)
    found = result["launches"][0]["differences"][0]
    assert status == 1
    assert (found["element"], found["count"], found["size"], found["rounding"]) == ("y[2, 3]", 2, 50, False)
    assert (found["recorded"], found["replayed"]) == ("-1.0", "192.0")
    text = capsys.readouterr().out
    assert "block (0, 0, 0), thread (23, 0, 0)" in text
    assert "kernels.cu:9" in text


def test_rounding_is_told_from_wrong_results(
    monkeypatch: pytest.MonkeyPatch, sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    def change(y: Any) -> None:
        y[1] = np.nextafter(y[1], np.float32(np.inf))

    _recorded_with(monkeypatch, sim, module, bug, change)
    status, result = replayed(bug)
    found = result["launches"][0]["differences"][0]
    assert (status, found["count"], found["ulp"], found["rounding"]) == (0, 10, 1, True)
    assert replayed(bug, "--exact")[0] == 1


@pytest.mark.parametrize(
    ("dtype", "value", "other", "rounding"),
    [
        ("float32", 4.0, 4.000005, True),
        ("float32", 4.0, 4.001, False),
        ("float32", 0.0, -0.0, True),
        ("float32", 4.0, np.nan, False),
        ("float64", 4.0, 4.00001, False),
        ("complex64", 4.0, 4.0 + 0.000005j, True),
        ("bfloat16", 5.0, 5.03125, True),
        ("bfloat16", 5.0, 5.125, False),
        ("float8_e4m3fn", 5.0, 1.0, False),
        ("int64", 2**60, 2**60 + 1, False),
        ("bool", False, True, False),
        ("", 1, 2, False),
    ],
)
def test_rounding_of_each_dtype(dtype: str, value: Any, other: Any, rounding: bool) -> None:
    kind = as_dtype(dtype or "uint8")
    old = np.full((3, 4), value, kind)
    new = old.copy()
    new[1, 2] = other
    states = [one.reshape(-1).view(np.uint8) for one in (old, new)]
    found = compare(states[0], states[1], ArrayArgument(0, "y", 0, 0, dtype, old.shape, old.strides))
    assert (found.element, found.count, found.rounding) == ("y[1, 2]", 1, rounding)
    turned = ArrayArgument(0, "y", 0, 0, dtype, old.shape[::-1], old.strides[::-1])
    assert compare(states[0], states[1], turned).element == "y[2, 1]"


def test_who_wrote_an_element_that_is_equal(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    x, y = sim.array(np.arange(50, dtype=np.float32)), sim.zeros(50)
    with record(bug):
        for n in (10, 49):
            weighed(module, x, y, n)
    with recording.load(bug) as found:
        writer = found.replay(launches=[2], who="y[-2]").launches[0].writer
        assert writer is not None
        assert writer.report is not None
        assert (writer.element, writer.replayed, writer.report.thread) == ("y[48]", "96.0", (48, 0, 0))
        assert f"launch 2, at {__file__}:" in str(writer), "the number in the recording"
        assert "not written by this launch" in str(found.replay(who="y[49]").launches[0].writer)
        cases = {"z[0]": "it has x, y", "y[50]": "outside", "y[1, 2]": "2 indices"}
        malformed = dict.fromkeys(("!", "y[1 2]", "y[-]", "y[2:3]", "y[::0]", "y[]"), "not an element")
        for wrong, why in {**cases, **malformed}.items():
            with pytest.raises(RecordingError, match=why):
                found.replay(who=wrong)


# Limits ---------------------------------------------------------------------------------------------------------------


def test_equal_memory_is_saved_once(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = sim.array(rng.standard_normal(20_000, np.float32)), sim.empty(64)
    with record(bug):
        for _ in range(5):
            weighed(module, x, y)
    assert bug.stat().st_size < 1.5 * x.nbytes


def test_limits(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    x, y = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50)
    with pytest.raises(RecordingError, match=r"weigh can access 4\d\d bytes.*limit=100"), record(bug, limit=100):
        weighed(module, x, y)
    with record(bug, limit=30_000):
        weighed(module, x, y)
        with pytest.raises(RecordingError, match=r"needs more than limit=30000 bytes at launch 2 \(weigh\)"):
            weighed(module, sim.zeros(7400), y)
    assert outcomes(bug) == ["equal"]
    with record(bug, only="soft*"):
        weighed(module, x, y)
    with recording.load(bug) as found:
        assert found.launches == ()
        assert found.notes == ("1 launch of weigh left out by only=",)
    for last in (0, 1.5):
        with pytest.raises(ValueError, match="at least 1"), record(bug, last=last):  # type: ignore[arg-type]
            pass
    for path in (bug.parent, bug / "missing" / "b"):
        with pytest.raises(RecordingError, match=r"cannot be written: (Is|Not) a directory"), record(path):
            pass
    assert following.followers == []
    with record(bug), pytest.raises(RecordingError, match="is active"), record(bug.with_name("b")):
        pass


def test_only_the_last_launches_are_kept(
    monkeypatch: pytest.MonkeyPatch, sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    monkeypatch.setattr(file, "_GARBAGE", 1 << 16)
    rng, y = np.random.default_rng(0), sim.empty(64)
    sizes = []
    with record(bug, last=2):
        for _ in range(12):
            weighed(module, sim.array(rng.standard_normal(20_000, np.float32)), y)
            sizes.append(bug.stat().st_size)
    assert max(sizes) < 8 * 80_000, "the file is rewritten when most of it is dropped launches"
    with recording.load(bug) as found:
        assert [launch.number for launch in found.launches] == [11, 12]
        assert "10 earlier launches dropped by last=2" in found.notes
        assert len([name for name in found.reader.names() if name.startswith("memory/")]) < 10
    assert outcomes(bug) == ["equal", "equal"]


def test_graphs_are_refused(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    x, y, stream = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50), sim.stream()
    with stream.capture() as graph:
        module["weigh"].launch(stream, grid=1, block=64, args=(x, y, 50))
    ready = graph.instantiate()
    with record(bug):
        with pytest.raises(RecordingError, match="graph"):
            ready.launch(stream)
        with pytest.raises(cudakit.CudakitError, match="captured"), stream.capture():
            module["weigh"].launch(stream, grid=1, block=64, args=(x, y, 50))


def test_a_launch_with_an_unknown_address_is_not_replayed(
    sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    with pytest.raises(cudakit.DeviceFault), record(bug):
        module["wide"].launch(sim.default_stream, grid=1, block=1, args=(ctypes.c_void_p(0xDEAD0000), sim.zeros(1)))
    status, result = replayed(bug)
    assert status == 2
    assert result["launches"][0]["outcome"] == "refused"
    assert "parameter 0 (`x`) is the address 0xdead0000" in result["launches"][0]["text"]
    assert outcomes(bug, device="sim:sm_80") == ["refused"]


# Other libraries ------------------------------------------------------------------------------------------------------


def test_tensors_of_torch(bug: Path) -> None:
    torch = torch_installed.require()
    import cudakit.torch  # noqa: F401 (registers the ops)

    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    with record(bug):
        result = torch.ops.cudakit.softmax(tensor)
    with recording.load(bug) as found:
        (launch,) = found.launches
        assert launch.launched.startswith(f"{__file__}:")
        np.testing.assert_array_equal(found.values(launch, launch.named("x")), tensor.numpy())
        np.testing.assert_array_equal(found.values(launch, launch.named("y"), after=True), result.numpy())
    assert outcomes(bug) == ["equal"]


def test_launches_by_triton(
    monkeypatch: pytest.MonkeyPatch, sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    """A compiled kernel with the interface of Triton's, whose `run` launches without cudakit's plans."""
    x, y = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50)
    kernel, code = module["weigh"], module

    class Tensor:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__cuda_array_interface__ = {
                "data": (array.pointer, False), "shape": array.shape, "typestr": "<f4", "version": 3,
            }  # fmt: skip

        def data_ptr(self) -> int:
            return int(self.array.pointer)

    class CompiledKernel:
        metadata = types.SimpleNamespace(name=kernel.mangled, num_warps=2, num_ctas=1, shared=0)
        asm = {"ptx": code.ptx, "cubin": code.cubin}  # noqa: RUF012
        src = types.SimpleNamespace(
            signature={"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            fn=types.SimpleNamespace(arg_names=["x", "y", "n", "BLOCK"], src="", fn=test_launches_by_triton),
        )
        module = None

        @property
        def run(self) -> Any:
            def launch(*given: Any) -> None:
                x, y, n, _ = given[9:]
                places = [ctypes.c_uint64(x.data_ptr()), ctypes.c_uint64(y.data_ptr()), ctypes.c_int(n)]
                pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, places))
                sizes = (*given[:3], 64, 1, 1, 0)
                sim.context.call(
                    "cuLaunchKernel", kernel.handle, *sizes, given[3], ctypes.addressof(pointers), 0
                )  # fmt: skip

            return launch

    CompiledKernel.module = module.handle
    triton = types.ModuleType("triton.compiler.compiler")
    triton.CompiledKernel = CompiledKernel  # type: ignore[attr-defined]
    for name in ("triton", "triton.compiler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.compiler.compiler", triton)
    monkeypatch.setattr(triton_launches, "_current", lambda: sim.context)
    run = CompiledKernel.__dict__["run"]
    with record(bug):
        CompiledKernel().run(1, 1, 1, sim.default_stream.handle, 0, (), None, None, None, Tensor(x), Tensor(y), 50, 64)
    assert CompiledKernel.__dict__["run"] is run
    assert float(y.numpy()[3]) == 24
    with recording.load(bug) as found:
        launch = found.launches[0]
        assert launch.block == (64, 1, 1)
        assert launch.launched.startswith(f"{__file__}:")
        np.testing.assert_array_equal(found.values(launch, launch.named("y"), after=True)[:3], [0, 4, 12])
    assert outcomes(bug) == ["equal"]


# Files ----------------------------------------------------------------------------------------------------------------

CRASH = """
import os, sys
import numpy as np
import cudakit

device = cudakit.Device("sim")
module = device.compile(source="__global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }", name="twice.cu")
x = device.array(np.arange(32, dtype=np.float32))
with cudakit.recording.record(sys.argv[1]):
    module["twice"].launch(device.default_stream, grid=1, block=32, args=(x,))
    cudakit.recording.recorder.Recorder._end = lambda *_: os._exit(3)  # the process dies during the launch
    module["twice"].launch(device.default_stream, grid=1, block=32, args=(x,))
"""


def test_a_crash_of_the_process_leaves_a_readable_file(bug: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = bug.with_name("crash.py")
    script.write_text("import cudakit.recording\n" + textwrap.dedent(CRASH))
    assert subprocess.run([sys.executable, script, bug], check=False).returncode == 3
    status, result = replayed(bug)
    assert [one["outcome"] for one in result["launches"]] == ["equal", "differs"]
    assert status == 1
    text = capsys.readouterr().out
    assert "the recording was not closed" in text
    assert "did not end (the process crashed), and the replay did not fail" in text


def test_a_file_that_was_cut_has_the_launches_before_the_cut(
    sim: cudakit.Device, module: cudakit.Module, bug: Path
) -> None:
    x, y = sim.array(np.arange(50, dtype=np.float32)), sim.empty(50)
    with record(bug):
        for n in (10, 20, 30):
            weighed(module, x, y, n)
    assert zipfile.ZipFile(bug).testzip() is None, "other programs can read it"
    data = bug.read_bytes()
    seen = set()
    for end in range(0, len(data), 97):
        bug.write_bytes(data[:end])
        with contextlib.suppress(RecordingError), recording.load(bug) as found:
            seen.add(len(found.launches))
            assert not found.complete or len(found.launches) == 3
            for launch in found.launches:
                for region, state in zip(launch.regions, launch.before, strict=True):
                    assert len(found.memory(region, state)) == region.size
    assert seen == {0, 1, 2, 3}


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def rewrite(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)


def test_foreign_and_damaged_files_are_refused(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> None:
    def refused(why: str) -> None:
        with pytest.raises(RecordingError, match=why), recording.load(bug) as found:
            found.replay()

    refused("cannot be read: No such file")
    bug.write_bytes(b"PK\3\4" + bytes(26) + b"x" * 100)
    refused("is not a recording of cudakit")
    with record(bug):
        weighed(module, sim.array(np.arange(50, dtype=np.float32)), sim.empty(50))
    members = members_of(bug)
    launch = "launches/000001/before.json"

    def write(name: str, data: bytes) -> None:
        rewrite(bug, {**members, name: data})

    write("recording.json", b'{"format": 99, "device": {}}')
    refused("has format 99, this version of cudakit reads format 1")
    for old, new in ((b'"size": 200', b'"size": 1000000000000'), (b'"size": 200', b'"size": -1'), (b'"grid"', b'"g"')):
        assert old in members[launch]
        write(launch, members[launch].replace(old, new))
        refused("is damaged")
    write(launch, b"{")
    refused("is damaged")
    memory = next(name for name in members if name.startswith("memory/"))
    rewrite(bug, members)
    data = bytearray(bug.read_bytes())
    place = data.find(members[memory], data.find(memory.encode()))
    data[place] ^= 1
    bug.write_bytes(bytes(data))
    status, result = replayed(bug)
    assert status == 2
    assert "its checksum differs" in result["launches"][0]["text"]


@pytest.fixture
def launched(sim: cudakit.Device, module: cudakit.Module, bug: Path) -> dict[str, bytes]:
    """The members of a recording of one launch."""
    with record(bug):
        weighed(module, sim.array(np.arange(50, dtype=np.float32)), sim.empty(50))
    return members_of(bug)


BEFORE = "launches/000001/before.json"


WRONG_FIELDS: list[tuple[list[Any], Any, str]] = [
    (["stack"], -1, "stack is -1, not an integer from 0"),
    (["carveout"], 1.5, "carveout is 1.5, not int"),
    (["cooperative"], 1, "cooperative is 1, not bool"),
    (["mangled"], None, "mangled is None, not str"),
    (["grid"], [1, 1], "grid has 2 elements instead of 3"),
    (["values"], "xy", "non-hexadecimal"),
    (["values"], "", "values has a pointer outside of its memory"),
    (["number"], 2, "has the number 2"),
    (["regions", 0, "address"], None, r"regions\[0\]: address is None, not int"),
    (["arrays", 0, "offset"], 1 << 40, "outside of its memory"),
    (["arrays", 0, "strides"], [1 << 40], "an array is not inside its memory"),
    (["links", 0, 0], 1 << 40, "outside of its memory"),
    (["links", 0, 2], -(1 << 70), "not an integer from 0"),
    (["extra"], 0, "unknown field 'extra'"),
]


def test_wrong_fields_are_named(launched: dict[str, bytes], bug: Path) -> None:
    for path, new, why in WRONG_FIELDS:
        data = json.loads(launched[BEFORE])
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = new
        rewrite(bug, {**launched, BEFORE: json.dumps(data).encode()})
        with pytest.raises(RecordingError, match=f"is damaged.*{why}"):
            recording.load(bug)
    for name, text, why in (
        ("recording.json", "[" * 100_000, "recording.json is damaged"),
        ("end.json", "null", "end.json is None, not an object"),
        ("end.json", '{"exception": "", "notes": [], "launches": [1, 2]}', "launch 2 is missing in it"),
    ):
        rewrite(bug, {**launched, name: text.encode()})
        with pytest.raises(RecordingError, match=why):
            recording.load(bug)


def test_an_array_of_an_unknown_dtype_is_read_as_bytes(launched: dict[str, bytes], bug: Path) -> None:
    for dtype in ("float4_e2m1fn_x2", "object", "V0"):
        data = json.loads(launched[BEFORE])
        data["arrays"][0]["dtype"] = dtype
        rewrite(bug, {**launched, BEFORE: json.dumps(data).encode()})
        with recording.load(bug) as found:
            array = found.launches[0].named("x")
            assert (array.dtype, array.shape) == ("", (200,))
            assert found.values(found.launches[0], array)[7] == 0x3F, "the second element, 1.0"
        assert outcomes(bug) == ["equal"]


def test_arguments_that_do_not_fit_the_kernel_are_refused(launched: dict[str, bytes], bug: Path) -> None:
    """The driver would read them from any address of this process."""
    before = json.loads(launched[BEFORE])
    for offsets in ([1 << 46] * 3, [], [0, 8, 17]):
        rewrite(bug, {**launched, BEFORE: json.dumps({**before, "offsets": offsets}).encode()})
        status, result = replayed(bug)
        assert status == 2
        assert "its arguments do not fit the 3 parameters" in result["launches"][0]["text"]


def test_control_characters_of_a_file_are_not_printed(
    launched: dict[str, bytes], bug: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {**json.loads(launched[BEFORE]), "kernel": "\x1b]0;title\x07weigh", "launched": "a\rb\x9b:1"}
    end = {**json.loads(launched["end.json"]), "exception": "Error: \x1b[31m", "notes": ["\ud800\x1b[2J"]}
    texts = {BEFORE: json.dumps(before).encode(), "end.json": json.dumps(end).encode()}
    rewrite(bug, {**launched, **texts})
    assert replayed(bug)[0] == 0
    text = capsys.readouterr().out
    assert "\ufffd]0;title\ufffdweigh" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    with recording.load(bug) as found:
        assert found.launches[0].launched == "a\ufffdb\ufffd:1"


def test_a_file_without_its_end_is_not_complete(launched: dict[str, bytes], bug: Path) -> None:
    del launched["end.json"]
    rewrite(bug, launched)  # the directory may be there, if the file was rewritten before the process ended
    with recording.load(bug) as found:
        assert not found.complete
    header = zipfile.ZipInfo("memory/unfinished")
    header.file_size, header.CRC = 100, 0
    data = bug.read_bytes()
    place = data.index(b"PK\1\2")
    bug.write_bytes(data[:place] + header.FileHeader(zip64=False) + data[place:])
    with recording.load(bug) as found:
        assert "memory/unfinished" not in found.reader.names()
        assert len(found.launches) == 1


def test_a_replay_closes_what_it_opened(sim: cudakit.Device, launched: dict[str, bytes], bug: Path) -> None:
    def devices() -> int:
        gc.collect()
        return len(simulated_contexts())

    with recording.load(bug) as found:
        known, made = devices(), len(list(sim.context.made()))
        writer = found.replay(who="y[3]").launches[0].writer
        assert devices() == known
        assert "y[3] = 24.0" in str(writer), "the report outlives the device"
        assert found.replay(sim).ok
        assert not sim.context.closed
        assert len(list(sim.context.made())) == made


# The debugger ---------------------------------------------------------------------------------------------------------


def debugged(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    """The output of `cudakit replay --debug`, stopped in the header at thread 3."""
    commands = ["break factor.cuh:2 if threadIdx.x == 3", "run", "print x", "up", "info locals", "delete", "continue"]
    options = [part for one in commands for part in ("-ex", one)]
    assert replayed(path, "--debug", *options, *arguments)[0] == 0
    output = capsys.readouterr()
    return output.out + output.err


def test_a_replay_in_the_debugger_has_variables_without_the_sources(
    sim: cudakit.Device, launched: dict[str, bytes], bug: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernels.cu").unlink()
    (tmp_path / "factor.cuh").write_text("\n__device__ float factor(float x) { return 3.0f * x; }\n")  # changed since
    text = debugged(capsys, bug)
    assert f"at {tmp_path / 'factor.cuh'}:2" in text
    assert "2\t    return 2.0f * x;" in text
    assert "$1 = 3" in text
    assert "i = 3" in text.split("info locals")[1]
    text = debugged(capsys, bug, "--lines")
    assert "2\t    return 2.0f * x;" in text
    assert "$1 =" not in text


def test_headers_of_all_folders_are_those_of_the_recording(
    sim: cudakit.Device, bug: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header by its path, one in an include folder, and one beside the header that includes it."""
    names = ("absolute/one.cuh", "include/two.cuh", "include/deep/three.cuh")
    one, two, three = (tmp_path / name for name in names)
    three.parent.mkdir(parents=True)
    one.parent.mkdir()
    one.write_text("#define ONE 1\n")
    two.write_text('#include "deep/three.cuh"\n#define TWO (THREE - 1)\n')
    (three.parent / "four.cuh").write_text("#define FOUR 4\n")
    three.write_text('#include "four.cuh"\n#define THREE (FOUR - 1)\n')
    text = f'#include "{one}"\n#include <two.cuh>\n__global__ void sum(int* y) {{\n    int s = ONE + TWO + THREE;\n'
    (tmp_path / "sum.cu").write_text(text + "    y[threadIdx.x] = s;\n}\n")
    kernel = sim.compile(tmp_path / "sum.cu", include=[tmp_path / "include"])["sum"]
    with record(bug):
        kernel.launch(sim.default_stream, grid=1, block=1, args=(sim.empty(1, "int32"),))
    for path in (one, three, three.parent / "four.cuh"):
        path.write_text("#error changed since\n")
    commands = ("break sum.cu:5", "run", "print s", "continue")
    assert replayed(bug, "--debug", *(part for text in commands for part in ("-ex", text)))[0] == 0
    assert "$1 = 6" in capsys.readouterr().out


def test_a_module_that_cannot_be_compiled_again_has_lines(
    launched: dict[str, bytes], bug: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(one for one in launched if one.endswith("module.json"))
    facts = json.loads(launched[name])
    target = tmp_path / "made"
    header = next(iter(facts["build"]["headers"].values()))
    outside = tmp_path / "outside.cuh"
    outside.write_text("")
    for changes, why in (
        ({"build": None}, "has no source that NVRTC compiled"),
        ({"build": {**facts["build"], "options": [f"--time={target}"]}}, "was compiled with --time"),
        ({"build": {**facts["build"], "options": [f"--pre-include={target}"]}}, "was compiled with"),
        (
            {"build": {**facts["build"], "headers": {}}},
            r'does not compile here: .* \(cannot open source file "factor.cuh"\)',
        ),
        ({"build": {**facts["build"], "headers": {"/../" * 9 + str(target): header}}}, "does not compile here"),
        ({"build": {**facts["build"], "headers": {f"{tmp_path}/fac\0tor.cuh": header}}}, "does not compile here"),
        *(
            ({"source": f"{include}\n__global__ void weigh() {{}}"}, "includes what is not in the recording: ")
            for include in (
                f'#include "{outside}"',
                '#include "../' + "../" * 30 + f'{outside}"',
                "#include PATH",
                f'#if __has_include("{outside}")\n#endif',
            )
        ),
    ):
        rewrite(bug, {**launched, name: json.dumps({**facts, **changes}).encode()})
        text = debugged(capsys, bug)
        said = re.escape(f"no variables in weigh, only lines and registers: {tmp_path / 'kernels.cu'} ")
        assert re.search(said + why, " ".join(text.split()))
        assert "2\t    return 2.0f * x;" in text
        assert not target.exists()


def test_options_of_the_debugger_need_it(bug: Path) -> None:
    with pytest.raises(Refused, match="-ex is a command of the debugger, which needs --debug"):
        replayed(bug, "-ex", "run")
    with pytest.raises(Refused, match="--lines is an option of the debugger, which needs --debug"):
        replayed(bug, "--lines")
