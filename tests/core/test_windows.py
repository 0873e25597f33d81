"""cudakit on an emulated Windows (tests/windows.py): imports, compiles, launches, the cache, pipelines, refusals."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT, TESTS
from windows import ABSENT, MODULES

from cudakit import pipeline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Windows is emulated on Linux")

START = "import sys, windows\nwindows.become_windows({preload!r})\n"


def started(script: str, *arguments: object, preload: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """Start a script on the emulated Windows."""
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", START.format(preload=preload) + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "CUDAKIT_DEVICE": "sim", **variables},
    )


def finished(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines that a script prints. Its errors fail the test."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines()


# The code -------------------------------------------------------------------------------------------------------------


def unportable(tree: ast.Module) -> Iterator[str]:
    """Yield each use of a name that Windows lacks, and each text file of the system's encoding."""
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "hasattr(os, 'register_at_fork')"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            of = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in [*of, *(alias.name for alias in node.names)]:
                if name in MODULES or (of and name in ABSENT.get(of[0], "").split()):
                    yield f"{node.lineno}: import {name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in guarded:
            name = f"{node.value.id}.{node.attr}"
            absent = node.attr in ABSENT.get(node.value.id, "").split()
            if absent or name in ("os.open", "os.kill", "os.name", "sys.platform"):
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.Call):
            called, keywords = _last_name(node.func), {word.arg for word in node.keywords}
            if called in ("CDLL", "PyDLL") and ast.unparse(node.args[0]) == "None":
                yield f"{node.lineno}: {called}(None)"
            text = called == "write_text" or (called == "read_text" and not node.args) or "text" in keywords
            if isinstance(node.func, ast.Name) and called == "open":
                text = not any("b" in ast.unparse(mode) for mode in node.args[1:2])
            if text and called in _TEXT and "encoding" not in keywords:
                yield f"{node.lineno}: {called} without an encoding"


_TEXT = ("open", "read_text", "write_text", "run", "Popen", "check_output")


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_no_module_but_the_owner_uses_what_windows_lacks() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for path in sorted((ROOT / "cudakit").rglob("*.py"))
        if path.parent.name != "system"
        for use in unportable(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("import fcntl", "import fcntl"),
        ("from os import preadv", "import preadv"),
        ("def f():\n    from resource import getrusage", "import resource"),
        ("os.pwrite(1, b'', 0)", "os.pwrite"),
        ("flags = os.O_RDWR | os.O_DIRECT", "os.O_DIRECT"),
        ("file = os.open(path, os.O_RDONLY)", "os.open"),
        ("signal.SIGKILL", "signal.SIGKILL"),
        ("os.register_at_fork()", "os.register_at_fork"),
        ("ctypes.PyDLL(None)", "PyDLL(None)"),
        ("open(path)", "open without an encoding"),
        ("Path(path).read_text()", "read_text without an encoding"),
        ("subprocess.run(command, text=True)", "run without an encoding"),
        ("open(path, 'rb')", ""),
        ("if hasattr(os, 'register_at_fork'):\n    os.register_at_fork()", ""),
    ],
)
def test_the_search_finds_each_kind_of_use(code: str, use: str) -> None:
    assert [found.split(": ", 1)[1] for found in unportable(ast.parse(code))] == [use][: bool(use)]


def test_both_systems_have_the_same_functions() -> None:
    """`cudakit.system` takes its names from one of two modules; their signatures must agree."""

    def functions(name: str) -> dict[str, str]:
        tree = ast.parse((ROOT / "cudakit" / "system" / f"{name}.py").read_text(encoding="utf-8"))
        public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
        return {node.name: f"{ast.unparse(node.args)} -> {ast.unparse(node.returns or node)}" for node in public}

    assert functions("posix") == functions("windows")


# Emulated -------------------------------------------------------------------------------------------------------------

#: Optional packages that are imported before, because their own code would look for Windows' libraries.
PACKAGES = (
    "matplotlib.pyplot", "hypothesis", "pytest", "h5py", "zarr", "pyarrow.parquet", "tifffile", "fsspec", "distributed",
    "torch", "IPython", "jsonschema", "nvmath", "cupy", "triton",
)  # fmt: skip

IMPORTS = """
import importlib, pkgutil, cudakit
for info in pkgutil.walk_packages(cudakit.__path__, "cudakit."):
    if info.name not in ("cudakit.__main__", "cudakit.system.posix"):
        try:
            importlib.import_module(info.name)
        except ModuleNotFoundError as error:  # an optional package that is not installed
            own = {"cudakit", *sys.stdlib_module_names}
            if (error.name or "cudakit").partition(".")[0] in own:
                raise
        print(info.name)
"""


def test_every_module_can_be_imported() -> None:
    names = finished(started(IMPORTS, preload=PACKAGES))
    assert len(names) > 400
    assert {"cudakit.system.windows", "cudakit.memory.dlpack", "cudakit.pipeline.lock"} <= set(names)


KERNEL = """
__global__ void scaled(const float* x, float* y, int n, float factor) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""

LAUNCH = """
import numpy as np, cudakit
device = cudakit.Device("sim")
print("ready", flush=True)
sys.stdin.readline()
kernel = device.compile(sys.argv[1])["scaled"]
host = np.arange(1000, dtype=np.float32)
with device.stream() as stream:
    x, y = device.array(host, stream=stream), device.empty(1000, np.float32, stream=stream)
    kernel.launch(stream, grid=4, block=256, args=(x, y, 1000, 3.0))
    assert np.array_equal(y.numpy(stream=stream), 3 * host)
    assert np.array_equal(np.from_dlpack(x.numpy(stream=stream)), host)
from cudakit.compile import cache, compiler
print(cache.compiled(compiler.request_of(sys.argv[1], arch="sm_90a")).precompiled)
"""


def test_two_processes_compile_launch_and_share_the_cache(tmp_path: Path) -> None:
    (tmp_path / "scaled.cu").write_bytes(KERNEL.replace("\n", "\r\n").encode())
    folder = tmp_path / "cache"
    processes = [started(LAUNCH, tmp_path / "scaled.cu", CUDAKIT_CACHE_DIR=str(folder)) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        finished(process)
    assert [path.name.split(".")[0] for path in folder.iterdir() if "headers" not in path.name] == ["scaled"]
    never = started(LAUNCH, tmp_path / "scaled.cu", CUDAKIT_CACHE_DIR=str(folder), CUDAKIT_COMPILE="never")
    assert never.communicate("go\n", timeout=300)[1] == ""
    assert never.returncode == 0


PIPELINE = """
import numpy as np, cudakit
from cudakit import pipeline
device = cudakit.Device("sim")
folder, stops, done = sys.argv[1], int(sys.argv[2]), []

def doubled(chunk, x, out):
    if chunk.index == stops:
        print("in", flush=True)
        sys.stdin.readline()
        raise RuntimeError("stopped")
    done.append(chunk.start)
    host = x.numpy(stream=chunk.stream)
    out.copy_from(2 * host, chunk.stream)

outputs = {
    "file": f"{folder}/out.npy",
    "folder": f"{folder}/out",
    "map": np.memmap(f"{folder}/map", np.float32, "r+" if stops < 0 else "w+", shape=(8, 4)),
}
for name in sys.argv[3:]:
    source = f"{folder}/in.npy"
    try:
        report = pipeline.run(doubled, source, outputs[name], devices=device, chunk=2, streams=1, resume=True)
        print(name, report.items, len(done))
    except (pipeline.PipelineError, pipeline.OutputBusy) as error:
        print(name, type(error).__name__, getattr(error, "pid", ""))
    done.clear()
"""


@pytest.mark.parametrize("output", ["file", "folder", "map"])
def test_a_pipeline_is_locked_and_resumed(tmp_path: Path, output: str) -> None:
    """A run holds its output, is killed, and another process resumes it; no file is left but the results."""
    items = np.arange(32, dtype=np.float32).reshape(8, 4)
    items.view(np.uint8)[0, :2] = 0x1A, 0x0A  # ends a text file, and would become \r\n
    np.save(tmp_path / "in.npy", items)
    first = started(PIPELINE, tmp_path, 2, output)
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    assert finished(started(PIPELINE, tmp_path, -1, output)) == [f"{output} OutputBusy {first.pid}"]
    first.kill()
    first.communicate()
    [line] = finished(started(PIPELINE, tmp_path, -1, output))
    name, count, chunks = line.split()
    assert (name, int(count)) == (output, 2 * int(chunks))
    assert int(chunks) < 4, "the finished chunks were computed again"
    result = {
        "file": lambda: np.load(tmp_path / "out.npy"),
        "folder": lambda: np.array([np.load(tmp_path / "out" / f"{number}.npy") for number in range(8)]),
        "map": lambda: np.fromfile(tmp_path / "map", np.float32).reshape(8, 4),
    }[output]()
    np.testing.assert_array_equal(result, 2 * items)
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()} - {f"{number}.npy" for number in range(8)}
    assert kept == {"in.npy", "map", *(["out.npy"] if output == "file" else [])}


def test_a_run_that_finishes_no_chunk_leaves_no_file(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((8, 4), np.float32))
    process = started(PIPELINE, tmp_path, 0, "file")
    out, err = process.communicate("go\n", timeout=300)
    assert out.split() == ["in", "file", "PipelineError"], err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy", "map"]


OWNER = """
import ctypes, io, os, subprocess
from pathlib import Path
import numpy as np
from cudakit import system
folder = Path(sys.argv[1])

# Files: places beyond 4 GiB, the end, the length
file = system.open_file(folder / "large", os.O_RDWR | os.O_CREAT)
system.set_length(file, 6 << 30)
assert system.write_at(file, b"a\\n\\x1ab", (5 << 30) + 1) == 4
into = bytearray(6)
assert system.read_at(file, into, 5 << 30) == 6 and into == b"\\0a\\n\\x1ab\\0", into
assert system.read_at(file, into, 6 << 30) == 0
assert system.write_at(file, b"", 0) == system.read_at(file, bytearray(), 0) == 0
system.sync_data(file)
system.sync_path(folder / "large")
system.sync_path(folder)
assert os.fstat(file).st_size == 6 << 30

# Locks: of an open file, between descriptors of one process
other = system.open_file(folder / "large", os.O_RDWR)
system.lock_byte(file, 7)
assert system.byte_is_locked(other, 7) and not system.byte_is_locked(other, 8)
try:
    system.lock_byte(other, 7)
except OSError:
    print("held")
system.unlock_byte(file, 7)
assert not system.byte_is_locked(other, 7)
system.lock_byte(other, 7)
os.close(other)
assert not system.byte_is_locked(file, 7), "closing a file releases its locks"

# Processes
ended = subprocess.Popen([sys.executable, "-c", ""])
ended.wait()
assert system.is_running(os.getpid()) and not system.is_running(ended.pid) and system.is_running(1 << 40)
assert system.usable_cores() >= 1 and system.available_memory() == 8 << 30
assert system.peak_memory_from_now() > 1 << 20 and system.peak_memory() > 1 << 20
raised = system.Semaphore()
assert not raised.try_wait()
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(raised.post)(raised.address)
assert raised.try_wait() and not raised.try_wait()
stream = io.TextIOWrapper(io.BytesIO(), "cp1252")
system.printable(stream)
stream.write("\\u2192")
stream.flush()
print(stream.buffer.getvalue())

# Requests that are refused, with the reason and the remedy
from cudakit import pipeline
from cudakit.compile import library, precompiled
from cudakit.pipeline.direct import DiskFile, why_unsupported
np.save(folder / "in.npy", np.zeros((4, 4)))
for refused in (lambda: pipeline.FromFile(folder / "in.npy", direct=True),
                lambda: DiskFile(folder / "in.npy", os.O_RDWR, direct=False).drop()):
    try:
        refused()
    except pipeline.FileRefused as error:
        print(error)
print(why_unsupported(folder) != "")
print(precompiled.unavailable())

# Names of libraries
place = folder / "nvidia" / "cu13" / "bin" / "x86_64"
place.mkdir(parents=True)
(place / "nvrtc64_130_0.dll").write_bytes(b"")
(place / "nvrtc-builtins64_130.dll").write_bytes(b"")
sys.path.insert(0, str(folder))
print([path.name for stem in ("nvrtc", "nvrtc-builtins") for path in library.installed_libraries(stem)])
print(library.identity().split()[0])
"""


def test_the_owner_of_differences_and_refusals(tmp_path: Path) -> None:
    held, replaced, direct, cached, unsupported, precompiled, libraries, identity = finished(started(OWNER, tmp_path))
    assert (held, replaced) == ("held", "b'?'")
    assert "cannot be opened for direct I/O (cudakit does not support it on Windows): pass direct=False" in direct
    assert re.search(r"the page cache of .*in\.npy cannot be used \(Windows cannot .*\): ", cached)
    assert (unsupported, precompiled) == ("True", "this system cannot lock the folders of precompiled headers")
    assert libraries == "['nvrtc64_130_0.dll', 'nvrtc-builtins64_130.dll']"
    assert identity == "wheel"


OPEN = """
import numpy as np, cudakit
from cudakit import pipeline
folder = sys.argv[1]
np.save(f"{folder}/out.npy", np.zeros((2, 2), np.float32))
mapped = np.load(f"{folder}/out.npy", mmap_mode="r")

def doubled(chunk, x, out):
    out.copy_from(2 * x.numpy(stream=chunk.stream), chunk.stream)

def run(**options):
    return pipeline.run(doubled, np.ones((8, 4), np.float32), f"{folder}/out.npy", devices=cudakit.Device("sim"),
                        chunk=2, **options)
try:
    run(overwrite=True)
except cudakit.CudakitError as error:
    print(error)
del mapped
print(run(resume=True).items, np.load(f"{folder}/out.npy").sum())
"""


def test_an_output_that_is_open_elsewhere_keeps_the_results_for_resume(tmp_path: Path) -> None:
    refused, resumed = finished(started(OPEN, tmp_path))
    assert re.search(r"out\.npy.* cannot be used .*: close it in other programs, and pass resume=True", refused)
    assert resumed == "0 64.0"
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_names_that_differ_in_case_only_are_not_used_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (("one", "A.npy"), ("two", "a.npy")):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / name, np.zeros(3))
    paths = [tmp_path / "one" / "A.npy", tmp_path / "two" / "a.npy"]
    assert pipeline.FromFiles(paths).named
    monkeypatch.setattr(os.path, "normcase", str.lower)  # as ntpath has it
    assert not pipeline.FromFiles(paths).named
