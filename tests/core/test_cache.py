"""The disk cache: hits, misses, damaged entries, concurrent processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cudakit.compile import cache, compiler, headers
from cudakit.compile.cache import CacheWarning
from cudakit.errors import CompileError

SOURCE = "__global__ void k(float* p) { p[0] = VALUE; }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDAKIT_COMPILE", raising=False)
    cache.clear_memo()
    return tmp_path / "cache"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of sources that were compiled, not read from the cache."""
    done: list[str] = []
    real = compiler.compile

    def counted(request: compiler.Request) -> compiler.Compiled:
        done.append(request.name)
        return real(request)

    monkeypatch.setattr(compiler, "compile", counted)
    return done


def ask(source: str = SOURCE, name: str = "k.cu", arch: str = "sm_90a", **options: object) -> compiler.Compiled:
    """Make one request as a new process would: without the cache in memory."""
    cache.clear_memo()
    options.setdefault("defines", {"VALUE": 1})
    return cache.compiled(compiler.request(source, name=name, arch=arch, **options))


def entries(folder: Path) -> list[Path]:
    """Return the entries of kernels, without NVRTC's headers, which are in the same folder."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith("cuda-headers-"))


def test_second_request_reads_the_disk(folder: Path, compiles: list[str]) -> None:
    first = ask(names=("k",))
    second = ask(names=("k",))
    assert first == second
    assert first is not second
    assert compiles == ["k.cu"]
    (entry,) = entries(folder)
    assert entry.name.startswith("k.sm_90a.")
    assert sorted(file.name for file in entry.iterdir()) == ["kernel.cubin", "kernel.ptx", "meta.json", "source.cu"]
    assert (entry / "source.cu").read_text() == SOURCE
    assert json.loads((entry / "meta.json").read_text())["lowered"] == {"k": "_Z1kPf"}


def test_the_same_process_reads_nothing_twice(folder: Path) -> None:
    request = compiler.request(SOURCE, name="k.cu", arch="sm_90a", defines={"VALUE": 1})
    first = cache.compiled(request)
    shutil.rmtree(folder)
    assert cache.compiled(request) is first


@pytest.mark.parametrize(
    "change",
    [
        {"source": SOURCE + " "},
        {"name": "other.cu"},
        {"arch": "sm_80"},
        {"defines": {"VALUE": 2}},
        {"options": ("--use_fast_math",)},
        {"fmad": False},
        {"line_info": False},
        {"std": "c++20"},
        {"max_registers": 32},
        {"names": ("k",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_request_counts(change: dict[str, object], compiles: list[str]) -> None:
    ask()
    ask(**change)
    ask()
    ask(**change)
    assert len(compiles) == 2


def test_options_keep_their_order(compiles: list[str]) -> None:
    ask(options=("-DA=1", "-DB=2"))
    ask(options=("-DB=2", "-DA=1"))
    assert len(compiles) == 2


def test_a_changed_header_is_compiled_again(tmp_path: Path, compiles: list[str]) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "outer.cuh").write_text('#include "inner.cuh"\n')
    (include / "inner.cuh").write_text("#define INNER 1\n")
    source = '#include "outer.cuh"\n__global__ void k(int* p) { p[0] = INNER; }\n'
    first = ask(source, include=(include,))
    (include / "inner.cuh").write_text("#define INNER 77\n")
    second = ask(source, include=(include,))
    assert ask(source, include=(include,)) == second
    assert len(compiles) == 2
    assert first.ptx != second.ptx
    assert "77" in second.ptx


def test_a_header_that_appears_earlier_on_the_path_counts(tmp_path: Path, compiles: list[str]) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    late.mkdir()
    (late / "h.cuh").write_text("#define H 1\n")
    source = '#include "h.cuh"\n__global__ void k(int* p) { p[0] = H; }\n'
    ask(source, include=(early, late))
    (early / "h.cuh").write_text("#define H 2\n")
    ask(source, include=(early, late))
    assert len(compiles) == 2


def test_a_header_only_tested_for_counts(tmp_path: Path, compiles: list[str]) -> None:
    source = '#if __has_include("maybe.cuh")\n#define V 2\n#else\n#define V 1\n#endif\n'
    source += "__global__ void k(int* p) { p[0] = V; }\n"
    first = ask(source, include=(tmp_path,))
    (tmp_path / "maybe.cuh").write_text("")
    second = ask(source, include=(tmp_path,))
    assert len(compiles) == 2
    assert first.ptx != second.ptx


def test_cuda_headers_go_by_their_version(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = "#include <cuda_fp16.h>\n__global__ void k(__half* p) { p[0] = __float2half(1); }\n"
    ask(source)
    monkeypatch.setattr(headers, "cuda_version", lambda: "99000,1")
    ask(source)
    ask()  # does not include CUDA headers
    monkeypatch.undo()
    assert len(compiles) == 3


def test_nvrtc_identity_counts(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ask()
    monkeypatch.setattr(compiler, "nvrtc_identity", lambda: "wheel 99.0")
    ask()
    assert len(compiles) == 2


def test_an_include_by_macro_is_never_stored(folder: Path, tmp_path: Path, compiles: list[str]) -> None:
    (tmp_path / "h.cuh").write_text("#define H 1\n")
    source = '#define HEADER "h.cuh"\n#include HEADER\n__global__ void k(int* p) { p[0] = H; }\n'
    ask(source, include=(tmp_path,))
    ask(source, include=(tmp_path,))
    assert len(compiles) == 2
    assert not entries(folder)


@pytest.mark.parametrize("file", ["meta.json", "kernel.cubin", "kernel.ptx", "source.cu"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "garble"])
def test_a_torn_entry_is_named_and_rebuilt(folder: Path, file: str, damage: str, compiles: list[str]) -> None:
    good = ask()
    (entry,) = entries(folder)
    target = entry / file
    data = target.read_bytes()
    if damage == "truncate":
        target.write_bytes(data[: len(data) // 2])
    elif damage == "remove":
        target.unlink()
    else:
        target.write_bytes(data[:5] + bytes([data[5] ^ 0xFF]) + data[6:])
    with pytest.warns(CacheWarning, match=entry.name):
        assert ask() == good
    assert len(compiles) == 2
    assert entries(folder) == [entry]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask() == good
    assert len(compiles) == 2


def test_a_foreign_entry_is_named_and_replaced(folder: Path, compiles: list[str]) -> None:
    ask()
    (entry,) = entries(folder)
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps({**meta, "key": "0" * 64}))
    with pytest.warns(CacheWarning, match="foreign"):
        ask()
    shutil.rmtree(entry)
    entry.write_text("a file in the entry's place")
    entry.chmod(0o600)  # independent of the umask
    with pytest.warns(CacheWarning, match=entry.name):
        ask()
    assert entry.is_dir()
    assert len(compiles) == 3


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(blocked / "cache"))
    with pytest.warns(CacheWarning, match="could not be written"):
        assert ask().cubin


def test_never_compile(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = ask()
    monkeypatch.setenv("CUDAKIT_COMPILE", "never")
    assert ask() == stored
    with pytest.raises(CompileError, match=r"never forbids compiling missing\.cu for sm_90a.*not in the cache"):
        ask(name="missing.cu")
    with pytest.raises(CompileError, match="#include HEADER"):
        ask('#define HEADER "h.cuh"\n#include HEADER\n')
    monkeypatch.setenv("CUDAKIT_COMPILE", "sometimes")
    with pytest.raises(CompileError, match="sometimes"):
        ask(name="missing.cu")


def test_a_failed_compile_leaves_nothing(folder: Path) -> None:
    with pytest.raises(CompileError):
        ask("__global__ void k( {}")
    assert not entries(folder)


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDAKIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "cudakit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.directory() == tmp_path / "home" / ".cache" / "cudakit"


_WORKER = """
import sys, hashlib
from cudakit.compile import cache, compiler
parts = []
for value in range(3):
    request = compiler.request(sys.argv[1], name="k.cu", arch="sm_90a", defines={"VALUE": value})
    parts.append(cache.compiled(request))
print(hashlib.sha256(b"".join(part.cubin + part.ptx.encode() for part in parts)).hexdigest())
"""


@pytest.mark.parametrize("torn", [False, True])
def test_eight_processes_at_once(folder: Path, torn: bool) -> None:
    if torn:
        ask(defines={"VALUE": 1})
        (entry,) = entries(folder)
        (entry / "kernel.cubin").write_bytes(b"torn")
    environment = {**os.environ, "CUDAKIT_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", _WORKER, SOURCE]
    workers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    answers = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8, answers
    assert len({digest for digest, _ in answers}) == 1
    assert len(entries(folder)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in range(3):
            ask(defines={"VALUE": value})


def test_a_warm_process_does_not_load_nvrtc(folder: Path) -> None:
    ask()
    code = (
        "import sys; from cudakit.compile import cache, compiler;"
        f"r = compiler.request({SOURCE!r}, name='k.cu', arch='sm_90a', defines={{'VALUE': 1}});"
        "assert cache.compiled(r).cubin;"
        "sys.exit('cuda.bindings.nvrtc' in sys.modules or 'libnvrtc' in open('/proc/self/maps').read())"
    )
    environment = {**os.environ, "CUDAKIT_CACHE_DIR": str(folder), "CUDAKIT_COMPILE": "never"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
