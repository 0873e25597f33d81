"""NVRTC's own headers: unpacked once, searched before installed ones, ignored if modified or disabled."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudakit.compile import bundled, cache, compiler, headers, library
from cudakit.errors import CompileError

HALF = "#include <cuda_fp16.h>\n__global__ void k(__half* p) { p[0] = __float2half(1); }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDAKIT_HEADERS", raising=False)
    monkeypatch.delenv("CUDAKIT_COMPILE", raising=False)
    cache.clear_memo()
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with NVRTC's headers, shared by the tests that do not modify them."""
    return tmp_path_factory.mktemp("shared") / "cache"


@pytest.fixture
def bundle(shared: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The folders of unpacked headers in the shared cache."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(shared))
    if reason := bundled.unpack():
        pytest.skip(f"NVRTC's headers are not used here: {reason}")
    return bundled.directories()


@pytest.fixture
def own(folder: Path) -> tuple[str, ...]:
    """The folders of unpacked headers in the test's own cache."""
    if reason := bundled.unpack():
        pytest.skip(f"NVRTC's headers are not used here: {reason}")
    return bundled.directories()


def request(source: str = HALF, **options: Any) -> compiler.Request:
    return compiler.request(source, name="k.cu", arch="sm_90a", **options)


def test_they_come_before_installed_ones_and_suffice(
    bundle: tuple[str, ...], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert headers.cuda_directories()[:2] == bundle
    assert all(Path(directory).is_relative_to(shared) for directory in bundle)
    monkeypatch.setattr(headers, "installed_directories", lambda: ())
    assert headers.cuda_directories() == bundle
    source = "#include <cuda/std/cstdint>\n#include <mma.h>\n#include <cuda_bf16.h>\n" + HALF
    options = compiler.compile(request(source)).options
    assert [option[2:] for option in options if option.startswith("-I")][-2:] == list(bundle)


def test_installed_headers_have_what_they_lack(bundle: tuple[str, ...]) -> None:
    if not any(Path(place, "cuda_runtime.h").is_file() for place in headers.installed_directories()):
        pytest.skip("no installed headers here have cuda_runtime.h")
    assert compiler.compile(request("#include <cuda_runtime.h>\n__global__ void k(dim3 d) {}\n")).ptx
    later = headers.cuda_directories()[2:]
    assert later
    assert not any(Path(place, "cub").is_dir() for place in later if not Path(place, "cuda_runtime.h").is_file())


def test_they_are_unpacked_for_a_source_that_needs_them(folder: Path) -> None:
    compiler.compile(request("__global__ void k() {}\n"))
    assert not bundled.directories()
    compiler.compile(request())
    assert bool(bundled.directories()) == (not bundled.unpack())


def test_the_key_of_the_cache_covers_which_are_used(bundle: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        made = request()
        return cache.key(made, headers.scan(made.source, made.name, made.directories))

    ours = key()
    assert key() == ours
    monkeypatch.setenv("CUDAKIT_HEADERS", "installed")
    assert key() != ours
    assert headers.cuda_directories() == headers.installed_directories()
    assert bundled.unpack() == "CUDAKIT_HEADERS=installed"


def test_a_header_that_theirs_would_include_counts(bundle: tuple[str, ...], tmp_path: Path) -> None:
    made = request("#include <cuda/std/version>\n__global__ void k() {}\n", include=(tmp_path,))
    (tmp_path / "version").write_text("#define V 1\n")
    assert str(tmp_path / "version") in headers.scan(made.source, made.name, made.directories).files


def test_a_kernel_is_compiled_again_without_the_headers_of_another_cache(
    bundle: tuple[str, ...], shared: Path, tmp_path: Path
) -> None:
    made = compiler.compile(request(include=(tmp_path,)))
    assert [option for option in made.options if str(shared) in option]
    moved = tuple(option.replace(str(shared), "/elsewhere") for option in made.options)
    again = compiler.request_again(replace(made, options=moved), "sm_80", ())
    assert [place for place in again.directories if not place.endswith("common")] == [str(tmp_path)]


def test_files_that_are_gone_are_unpacked_again(own: tuple[str, ...], folder: Path) -> None:
    (Path(own[0]) / ".nvrtc_headers_version").unlink()
    (Path(own[0]) / "cuda_fp16.h").unlink()
    assert compiler.compile(request()).ptx
    assert bundled.directories() == own
    assert (Path(own[0]) / "cuda_fp16.h").is_file()


def test_a_folder_that_others_may_write_to_is_not_used(own: tuple[str, ...]) -> None:
    Path(own[0]).parent.chmod(0o770)
    assert not bundled.directories()
    assert "other users may write to" in bundled.unpack()
    assert headers.cuda_directories() == headers.installed_directories()


def test_several_threads_unpack_them_once(folder: Path) -> None:
    reasons: list[str] = []
    threads = [threading.Thread(target=lambda: reasons.append(bundled.unpack())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(reasons)) == 1
    assert len(list(folder.glob("*"))) == (0 if reasons[0] else 1)


@pytest.mark.parametrize(
    ("label", "answer", "reason"),
    [
        ("13.2.78", None, "NVRTC 13.2.78 bundles no headers"),
        ("13.9.1", RuntimeError("Function nvrtcGetBundledHeadersInfo not found"), "this NVRTC bundles no headers"),
        ("13.9.1", (0, SimpleNamespace(available=0), None), "this NVRTC bundles no headers"),
    ],
)
def test_an_nvrtc_without_them(
    label: str, answer: Any, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(library, "label", lambda: label)
    monkeypatch.setattr(library, "load", lambda: SimpleNamespace(nvrtcGetBundledHeadersInfo=info))
    assert bundled.unpack().startswith(reason)
    assert headers.cuda_directories() == headers.installed_directories()
    assert headers.cuda_version()[:1].isdigit() or not headers.installed_directories()


def test_a_setting_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAKIT_HEADERS", "wheels")
    with pytest.raises(CompileError, match='CUDAKIT_HEADERS must be "bundled" or "installed", got'):
        compiler.compile(request())


def test_a_warm_cache_does_not_load_nvrtc(bundle: tuple[str, ...]) -> None:
    cache.compiled(request())
    code = (
        "import sys; from cudakit.compile import cache, compiler; "
        f"cache.compiled(compiler.request({HALF!r}, name='k.cu', arch='sm_90a')); "
        "sys.exit('libnvrtc' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
