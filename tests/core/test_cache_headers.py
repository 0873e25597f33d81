"""The cache's key covers every header that NVRTC opens: compile, change a header, compile again, get the new kernel.

Each probe is one way to name a header. The cache may store its kernel or not, but never return the old one. Ordinary
includes must hit the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from cudakit.compile import cache, compiler, headers

KERNEL = "\n__global__ void k(int* p) { p[0] = V; }\n"
OLD, NEW = "#define V 1111\n", "#define V 7777\n"
IF_THERE = "\n#define V 7777\n#else\n#define V 1111\n#endif\n"  # after an #if that tests for a header


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for headers, whose `work` is the working directory, and a new cache."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDAKIT_HEADERS", "installed")  # otherwise NVRTC's own headers would be unpacked for each test
    monkeypatch.delenv("CUDAKIT_COMPILE", raising=False)
    for folder in ("work", "early", "sub"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def ask(source: str, **options: Any) -> compiler.Compiled:
    """Make one request as a new process would."""
    cache.clear_memo()
    options.setdefault("name", "k.cu")
    options["options"] = (*options.get("options", ()), "--minimal")  # NVRTC is faster without its built-in declarations
    return cache.compiled(compiler.request(source + KERNEL, arch="sm_90", line_info=False, **options))


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


@dataclass(frozen=True)
class Probe:
    """One way to name a header. DIR in a text is replaced by the test's folder, which is on the include path."""

    source: str
    header: str = "h.h"  # the one that changes, in DIR
    old: str | None = OLD  # None: the file does not exist
    new: str | None = NEW
    others: tuple[tuple[str, str], ...] = ()  # headers that do not change
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ("DIR",)
    name: str = "k.cu"
    std: str = "c++17"


INCLUDE = '#include "h.h"'
EXISTS = Probe("#if __has_include(<h.h>)" + IF_THERE, old=None, new="")
APART = Probe(INCLUDE, include=())  # found by an option only
BEFORE = Probe("", include=())

PROBES = {
    # the folder
    "text without a name": Probe(INCLUDE, "work/h.h", include=()),
    "text with a name in a folder": Probe(INCLUDE, "work/there/h.h", name="there/k.cu", include=()),
    "folder above the text's": Probe('#include "../h.h"', include=()),
    "file's own folder": Probe(INCLUDE, name="DIR/k.cu", include=()),
    "includer's folder": Probe('#include "sub/a.h"', "sub/h.h", others=(("sub/a.h", INCLUDE),)),
    "absolute path": Probe('#include "DIR/h.h"', include=()),
    "relative include folder": Probe("#include <h.h>", "work/in/h.h", include=("in",)),
    "earlier on the path": Probe(
        "#include <h.h>", "early/h.h", old=None, others=(("h.h", OLD),), include=("DIR/early", "DIR")
    ),
    "folder behind a link": Probe('#include "link/../h.h"', "work/h.h", others=(("h.h", OLD),)),
    "ending of NVRTC's own": Probe("#include <h>", "h.stdh"),
    "CUDA's header includes it": Probe("#include <cuda/std/version>", "version", old="#define V 1111\n"),
    # options
    "-I=DIR": replace(APART, options=("-I=DIR",)),
    "-IDIR": replace(APART, options=("-IDIR",)),
    "-I DIR": replace(APART, options=("-I", "DIR")),
    "--include-path=DIR": replace(APART, options=("--include-path=DIR",)),
    "--include-path DIR": replace(APART, options=("--include-path", "DIR")),
    "--pre-include=F": replace(BEFORE, options=("--pre-include=DIR/h.h",)),
    "--pre-include F": replace(BEFORE, options=("--pre-include", "DIR/h.h")),
    "-include=F": replace(BEFORE, options=("-include=DIR/h.h",)),
    "-include=F in the working directory": replace(
        BEFORE, header="work/h.h", options=("-include=h.h",), name="DIR/k.cu"
    ),
    "-include=F, which includes": replace(BEFORE, options=("-include=DIR/a.h",), others=(("a.h", INCLUDE),)),
    "-Xcudafe": replace(BEFORE, options=("-Xcudafe=--preinclude=DIR/h.h",)),
    "--no-source-include": Probe(INCLUDE, others=(("work/h.h", OLD),), options=("--no-source-include",)),
    # the directive
    "comment before": Probe('/* c */ #include "h.h"'),
    "comment after #": Probe('# /* c */ include "h.h"'),
    "comment after the word": Probe('#include /* c */ "h.h"'),
    "comment over two lines before": Probe('/* c\n */ #include "h.h"'),
    "comment over two lines after #": Probe('# /* c\n */ include "h.h"'),
    "digraph": Probe('%:include "h.h"'),
    "trigraph": Probe('??=include "h.h"', std="c++14"),
    "trigraph splice": Probe('#inc??/\nlude "h.h"', std="c++14"),
    "spliced word": Probe('#inc\\\nlude "h.h"'),
    "spliced after #": Probe('#\\\ninclude "h.h"'),
    "spliced name": Probe('#include "\\\nh.h"'),
    "spliced at CRLF": Probe('#inc\\\r\nlude "h.h"'),
    "lines end with CRLF": Probe('struct S;\r\n#include "h.h"\r\n'),
    "vertical tab": Probe('\v#\vinclude\v"h.h"'),
    "form feed": Probe('\f#\finclude\f"h.h"'),
    "bare CR": Probe('\r#\rinclude\r"h.h"'),
    "no space": Probe('#include"h.h"//'),
    "a > in a quoted name": Probe('#include "a>b.h"', "a>b.h"),
    "a quote in an angled name": Probe('#include <a"b.h>', 'a"b.h'),
    "after a macro's continued line": Probe('#define A \\\n  1\n#include "h.h"'),
    "a name's macro": Probe('#define H "h.h"\n#include H'),
    "a name's macro in an option": Probe("#include H", options=("-DH=<h.h>",)),
    "include_next": Probe("#include_next <h.h>"),
    # tests for a header
    "__has_include": EXISTS,
    "__has_include of a macro": replace(EXISTS, source="#define H <h.h>\n#if __has_include(H)" + IF_THERE),
    "__has_include over two lines": replace(EXISTS, source="#if __has_inc\\\nlude(<h.h>)" + IF_THERE),
    "__has_include with comments": replace(EXISTS, source="#if __has_include /* ( */ ( /* M */ <h.h>)" + IF_THERE),
    "__has_include in a macro": replace(EXISTS, source="#define HAS(x) __has_include(x)\n#if HAS(<h.h>)" + IF_THERE),
    "__has_include in an option": replace(EXISTS, source="#if HAS(<h.h>)" + IF_THERE, options=("-DHAS=__has_include",)),
    "__has_include in pieces": replace(
        EXISTS, source="#define JOIN(a, b) a##b\n#if JOIN(__has_, include)(<h.h>)" + IF_THERE
    ),
}  # fmt: skip


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_a_changed_header_makes_a_new_kernel(probe: Probe, project: Path) -> None:
    def here(text: str) -> str:
        return text.replace("DIR", str(project))

    def state(content: str | None) -> None:
        if content is None:
            (project / probe.header).unlink(missing_ok=True)
        else:
            written(project / probe.header, content)

    (project / "work" / "deep").mkdir()
    (project / "link").symlink_to(project / "work" / "deep")
    for name, text in probe.others:
        written(project / name, here(text))
    options: dict[str, Any] = {
        "name": here(probe.name),
        "std": probe.std,
        "options": [here(option) for option in probe.options],
        "include": [here(folder) for folder in probe.include],
    }
    state(probe.old)
    first = ask(here(probe.source), **options)
    assert "1111" in first.ptx
    state(probe.new)
    second = ask(here(probe.source), **options)
    assert "7777" in second.ptx
    assert "1111" not in second.ptx


def test_a_header_that_is_removed(project: Path) -> None:
    written(project / "h.h", "")
    assert "7777" in ask(EXISTS.source, include=(project,)).ptx
    (project / "h.h").unlink()
    assert "1111" in ask(EXISTS.source, include=(project,)).ptx


def test_two_projects_with_a_header_of_one_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(project / "work" / "config.h", OLD)
    written(project / "sub" / "config.h", NEW)
    assert "1111" in ask('#include "config.h"').ptx
    monkeypatch.chdir(project / "sub")
    assert "7777" in ask('#include "config.h"').ptx


def test_the_order_of_include_folders_counts(project: Path) -> None:
    written(project / "early" / "h.h", "#ifndef V\n" + OLD + "#endif\n")
    written(project / "sub" / "h.h", "#ifndef V\n" + NEW + "#endif\n")
    early, late = project / "early", project / "sub"
    source = f'#include <h.h>\n#include "{early}/h.h"\n#include "{late}/h.h"\n'
    assert "1111" in ask(source, include=(early, late)).ptx
    assert "7777" in ask(source, include=(late, early)).ptx


def test_options_that_ptxas_reads_from_a_file(project: Path) -> None:
    written(project / "ptxas", "-O1")
    options = (f"--ptxas-options=--options-file={project}/ptxas",)
    first = ask(OLD, options=options)
    written(project / "ptxas", "-O0")
    assert ask(OLD, options=options).cubin != first.cubin


@pytest.mark.parametrize(
    ("place", "put_back"),
    [("h.h", False), ("h.h", True), ("early/h.h", False)],
    ids=["saved", "saved and put back", "made earlier on the path"],
)
def test_a_header_saved_before_nvrtc_reads_it(
    place: str, put_back: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our scan and NVRTC's own read."""
    written(project / "h.h", OLD)
    real = compiler.compile
    include = (project / "early", project)

    def saved_meanwhile(request: compiler.Request) -> compiler.Compiled:
        written(project / place, NEW)
        done = real(request)
        if put_back:
            written(project / "h.h", OLD)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile", saved_meanwhile)
        assert "7777" in ask(INCLUDE, include=include).ptx
    (project / place).unlink()
    written(project / "h.h", OLD)
    assert "1111" in ask(INCLUDE, include=include).ptx


ORDINARY = {
    "quoted": (INCLUDE, {}),
    "angled": ("#include <h.h>", {}),
    "nested": ('#include "sub/a.h"', {}),
    "CUDA's": ("#include <cuda_fp16.h>\n#include <cuda/std/cstdint>", {}),
    "missing and not needed": ('#if 0\n#include "nowhere.h"\n#endif', {}),
    "an include folder as an option": (INCLUDE, {"options": ("-I=DIR",), "include": ()}),
    "a header before the source": ("", {"options": ("--pre-include=h.h",)}),
    "text beside its header": ('#include "here.h"', {"include": ()}),
    "comments around": ('/* c */ # /* c */ include /* c */ "h.h" // c', {}),
    "spliced": ('#inc\\\nlude "h.h"', {}),
    "lines of CRLF": ('int x;\r\n#define A 1 \\\r\n + 2\r\n#include "h.h"\r\n', {}),
    "comments that mention it": ("// see #include HEADER\n/*\n * #include HEADER\n */ int x; // __has_include\n", {}),
    "a string that mentions it": ('__device__ const char* s = "#include HEADER";', {}),
    "__has_include": ("#if defined(__has_include) && __has_include(<h.h>)\n#endif", {}),
    "__has_include defined if there is none": (
        "#ifndef __has_include\n#define __has_include(x) 0\n#endif\n#if __has_include(<h.h>)\n#endif", {}),
    "macros that paste": ("#define JOIN(a, b) a##b\nint JOIN(x, y);", {}),
    "options": ("", {"options": ("-DA=1", "-D", "B", "--use_fast_math", "-Xptxas", "-O1", "--ptxas-options=-O1")}),
    "debug": ("", {"options": ("-G", "--dopt=on", "-w", "--restrict", "--diag-suppress=177")}),
    "name expressions": ("template <int N> __global__ void t() {}", {"names": ("t<4>",)}),
}  # fmt: skip


@pytest.mark.parametrize(("source", "options"), ORDINARY.values(), ids=ORDINARY)
def test_ordinary_includes_hit_the_cache(
    source: str, options: dict[str, Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(project / "h.h", OLD)
    written(project / "sub" / "a.h", '#pragma once\n#include "b.h"\n#include <h.h>\n')
    written(project / "sub" / "b.h", "#ifndef B\n#define B\n#endif\n")
    written(project / "work" / "here.h", OLD)
    done: list[compiler.Request] = []

    def counted(request: compiler.Request) -> compiler.Compiled:
        done.append(request)
        return compiler.Compiled(b"", "", {}, "", (), {}, request.arch, (0, 0), request.name, request.source)

    monkeypatch.setattr(compiler, "compile", counted)
    options = {"include": (str(project),), **options}
    options["options"] = [option.replace("DIR", str(project)) for option in options.get("options", ())]
    ask(source, **options)
    ask(source, **options)
    assert len(done) == 1


def test_every_kernel_of_ours_is_kept() -> None:
    for path in sorted((ROOT / "kernels").rglob("*.cu")):
        request = compiler.request(path.read_text(), name=str(path), arch="sm_90")
        assert not headers.scan(request.source, request.name, request.directories).unknown, path
