"""Precompiled headers: used if they save time, with the same kernel, never out of date, and without leftover files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudakit.compile import cache, compiler, headers, precompiled
from cudakit.errors import CompileError

SOURCE = '#include "h.h"\n__global__ void k(int* p) { p[0] = V + twice(BODY); }\n'
HEADER = "#pragma once\n#define V {}\ntemplate <typename T> __device__ T twice(T x) {{ return x + x; }}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of h.h. Headers are precompiled at the first compile."""
    monkeypatch.setenv("CUDAKIT_PCH", "always")
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NVRTC_DISABLE_PCH", raising=False)
    (tmp_path / "h.h").write_text(HEADER.format(1000))
    return tmp_path


def build(folder: Path, body: int = 1, source: str = SOURCE, **options: Any) -> compiler.Compiled:
    options["options"] = (*options.get("options", ()), "--minimal")  # NVRTC is quicker without its own declarations
    text = source.replace("BODY", str(body))
    return compiler.compile(compiler.request(text, name=str(folder / "k.cu"), arch="sm_90", **options))


def test_made_once_and_used_with_the_same_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, used = build(folder, 1), build(folder, 2)
    assert (made.precompiled, used.precompiled) == ("made", "used")
    again = build(folder, 2, SOURCE + "template <int N> __global__ void t(int* p) { p[0] = N; }\n", names=("t<3>",))
    assert again.precompiled == "used"
    assert again.lowered == {"t<3>": "_Z1tILi3EEvPi"}
    monkeypatch.setenv("CUDAKIT_PCH", "never")
    plain = build(folder, 2)
    assert plain.precompiled == "not used: CUDAKIT_PCH=never"
    assert (plain.cubin, plain.ptx, plain.options) == (used.cubin, used.ptx, used.options)
    assert "precompiled" not in made.log + used.log


@pytest.mark.parametrize("change", ["the same time and size", "earlier on the path", "tested for", "another option"])
def test_an_old_header_never_comes_back(change: str, folder: Path) -> None:
    """NVRTC itself would use what it precompiled: it compares seconds, and only of the files it opened."""
    early, late, header = folder / "early", folder / "late", folder / "h.h"
    early.mkdir()
    late.mkdir()
    source = '#if __has_include("more.h")\n#define MORE 1\n#else\n#define MORE 0\n#endif\n#include <g.h>\n' + SOURCE
    (late / "g.h").write_text("#define G 0\n")
    source = source.replace("V +", "V + G + 100 * MORE +")
    before = header.stat()

    def value(**more: Any) -> str:
        return build(folder, 1, source, include=(early, late), **more).ptx

    assert "1002" in value()
    assert "1002" in value()
    more: dict[str, Any] = {}
    if change == "the same time and size":
        header.write_text(HEADER.format(3000))
        os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "earlier on the path":
        (early / "g.h").write_text("#define G 2000\n")
    elif change == "tested for":
        (folder / "more.h").write_text("")
    else:
        header.write_text("#ifdef W\n#define V W\n#else\n#define V 1000\n#endif\n#define twice(x) (2 * (x))\n")
        assert "1002" in value()
        more = {"defines": {"W": 3000}}
    assert ("1102" if change == "tested for" else "3002") in value(**more)
    assert "1002" not in value(**more)


def test_a_header_that_changes_while_nvrtc_runs_is_not_kept(folder: Path) -> None:
    real = compiler.check

    def saved_meanwhile(module: Any, routine: str, answer: Any) -> Any:
        if routine == "nvrtcCreateProgram":
            (folder / "h.h").write_text(HEADER.format(3000))
        return real(module, routine, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "check", saved_meanwhile)
        assert "3002" in build(folder).ptx
    before = (folder / "h.h").stat()
    (folder / "h.h").write_text(HEADER.format(1000))
    os.utime(folder / "h.h", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "1002" in build(folder).ptx


def test_they_are_used_if_they_pay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDAKIT_PCH")
    first = "not used: the first compile of these headers in this process"
    assert build(folder, 1).precompiled == first
    assert build(folder, 2).precompiled.startswith("not used: these headers compile in less than")
    monkeypatch.setattr(precompiled, "WORTH_S", 0.0)
    assert [build(folder, body).precompiled for body in (3, 4)] == ["made", "used"]
    (folder / "h.h").write_text(HEADER.format(2000))  # who edits the header gains nothing from precompiling it
    assert build(folder, 5).precompiled == first


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("__global__ void k() {}\n", {}, "no header before the first declaration"),
        ("namespace n {}\n" + SOURCE, {}, "no header before the first declaration"),
        ('#define H "h.h"\n#include H\n' + SOURCE, {}, "'#include H' is unknown before preprocessing"),
        (SOURCE, {"options": ("-no-pch",)}, "the options set precompiled headers themselves"),
    ],
)
def test_when_they_are_not_used(folder: Path, source: str, options: dict[str, Any], reason: str) -> None:
    if "options" in options:
        assert reason in _run(folder, source, options["options"])[1]
    else:
        assert reason in build(folder, 1, source).precompiled


def test_what_turns_them_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVRTC_DISABLE_PCH", "1")
    assert build(folder).precompiled == "not used: NVRTC_DISABLE_PCH is set"
    monkeypatch.setenv("CUDAKIT_PCH", "sometimes")
    with pytest.raises(CompileError, match=r"CUDAKIT_PCH must be .*got 'sometimes'"):
        build(folder)


def test_the_disk_cache_does_not_depend_on_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiler.request(SOURCE.replace("BODY", "1"), name=str(folder / "k.cu"), arch="sm_90")
    made = cache.compiled(request)
    assert made.precompiled == "made"
    cache.clear_memo()
    monkeypatch.setenv("CUDAKIT_PCH", "never")
    monkeypatch.setenv("CUDAKIT_COMPILE", "never")
    found = cache.compiled(request)
    assert (found.cubin, found.precompiled) == (made.cubin, "")


def test_an_error_of_the_source_is_reported_once(folder: Path) -> None:
    build(folder)
    with pytest.raises(CompileError, match='identifier "missing" is undefined') as caught:
        build(folder, 1, SOURCE.replace("BODY", "missing"))
    assert "pch" not in " ".join(caught.value.options)


# NVRTC's answers, without NVRTC ---------------------------------------------------------------------------------------


def _run(folder: Path, source: str = SOURCE, options: Sequence[str] = (), **nvrtc: Any) -> tuple[Any, str]:
    """`precompiled.run` with made-up answers of NVRTC, in a process that has not precompiled anything."""
    from cuda.bindings.nvrtc import nvrtcResult

    answers = iter(nvrtc["answers"]) if nvrtc else iter(())
    heap = nvrtc.get("heap", [])

    def resized(size: int) -> tuple[Any]:
        heap.append(size)
        return (nvrtcResult.NVRTC_SUCCESS,)

    def attempt(more: tuple[str, ...]) -> precompiled.Outcome[str]:
        if not more:
            return precompiled.Outcome("plain", None, 0)
        answer = next(answers)
        if isinstance(answer, str):
            raise CompileError("refused", log=answer)
        status, required = answer
        return precompiled.Outcome("precompiled", getattr(nvrtcResult, f"NVRTC_{status}"), required)

    scan = lambda: headers.scan(source, str(folder / "k.cu"), (str(folder),))  # noqa: E731
    bindings = SimpleNamespace(nvrtcResult=nvrtcResult, nvrtcSetPCHHeapSize=resized)
    return precompiled.run(bindings, source, ("fake", str(folder)), options, scan(), scan, attempt)


@pytest.fixture
def process() -> Iterator[None]:
    precompiled.clear()
    yield
    precompiled.clear()


@pytest.mark.usefixtures("process")
def test_a_heap_that_is_too_small_is_made_larger(folder: Path) -> None:
    heap: list[int] = []
    small = ("ERROR_PCH_CREATE_HEAP_EXHAUSTED", 3 << 30)
    assert _run(folder, answers=[small, ("SUCCESS", 3 << 30)], heap=heap) == ("precompiled", "made")
    assert heap[0] < 3 << 30 <= heap[1]
    assert _run(folder, SOURCE + "\n#if 1\n#endif\n", answers=[("SUCCESS", 3 << 30)], heap=heap)[1] == "made"
    assert len(heap) == 2


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("answers", "result", "reason"),
    [
        ([("ERROR_PCH_CREATE_HEAP_EXHAUSTED", 5 << 30)] * 2, "precompiled", "they need 5120 MB of NVRTC's heap"),
        ([("ERROR_NO_PCH_CREATE_ATTEMPTED", 0)], "precompiled", "NVRTC found nothing to precompile"),
        ([("ERROR_PCH_CREATE", 0)], "precompiled", "NVRTC could not write them (NVRTC_ERROR_PCH_CREATE)"),
        (["x.h(9): catastrophic error: unable to obtain mapped memory"], "plain", "unable to obtain mapped memory"),
        (["Command-line error: invalid PCH directory: /gone"], "plain", "invalid PCH directory: /gone"),
    ],
)
def test_nvrtc_fails_to_precompile(folder: Path, answers: Any, result: str, reason: str) -> None:
    made, how = _run(folder, answers=answers)
    assert made == result
    assert how.startswith("not used: ")
    assert reason in how


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_process_removes_its_files_and_those_of_killed_ones(folder: Path) -> None:
    temporary = folder / "tmp"
    abandoned, in_use = (temporary / f"cudakit-pch-{name}" for name in ("abandoned", "in-use"))
    for place in (abandoned, in_use):
        (place / "key").mkdir(parents=True)
        (place / "key" / "k_0.pch").write_text("")
    holder = os.open(in_use, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; import test_precompiled as t\n"
        "folder, temporary = Path(sys.argv[1]), Path(sys.argv[1], 'tmp')\n"
        "print(t.build(folder).precompiled, len(list(temporary.glob('*/*/*.pch'))))\n"
        "if os.fork() == 0:\n"
        "    print(t.build(folder, 2).precompiled, flush=True); sys.exit()\n"
        "os.wait(); print(t.build(folder, 3).precompiled in ('made', 'used'))\n"  # NVRTC of the child may remove it
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(folder), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    os.close(holder)
    assert sorted(done.stdout.split("\n")) == ["", "True", "made", "made 2"], done.stderr
    assert sorted(temporary.iterdir()) == [in_use]


@pytest.mark.usefixtures("process")
def test_few_files_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for number in range(5):
        assert _run(folder, f"#define N {number}\n{SOURCE}", answers=[("SUCCESS", 1)])[1] == "made"
    assert len(list(folder.glob("cudakit-pch-*/*"))) == 3
