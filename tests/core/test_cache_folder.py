"""The cache's folder: its owner, files of killed processes, modified entries."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cudakit.compile import cache, compiler
from cudakit.compile.cache import CacheWarning
from cudakit.errors import CompileError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own; the test's files also belong to the user."""
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDAKIT_COMPILE", raising=False)
    cache.clear_memo()
    before = os.umask(0o022)
    yield tmp_path / "cache"
    os.umask(before)


@pytest.fixture(autouse=True)
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of sources that were compiled. A stand-in replaces NVRTC, because the tests are only about files."""
    done: list[str] = []

    def quick(request: compiler.Request) -> compiler.Compiled:
        done.append(request.name)
        resources = {"k": compiler.Resources(registers=8)}
        return compiler.Compiled(
            b"cubin", "ptx", {"k": "k"}, "log", ("-a",), resources, request.arch, (13, 0), request.name, request.source
        )

    monkeypatch.setattr(compiler, "compile", quick)
    return done


def ask(name: str = "k.cu", *, again: bool = True) -> compiler.Compiled:
    """Make one request; `again`: as a new process would."""
    if again:
        cache.clear_memo()
    return cache.compiled(compiler.request("source", name=name, arch="sm_90"))


def ask_for_two() -> None:
    """Make two requests in one process."""
    ask()
    ask("other.cu", again=False)


def only_entry(folder: Path) -> Path:
    (entry,) = folder.iterdir()
    return entry


def is_a_hit(compiles: list[str]) -> bool:
    before = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask()
    return len(compiles) == before


OPEN_TO_OTHERS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda folder: folder,
    "entry": only_entry,
    "meta.json": lambda folder: only_entry(folder) / "meta.json",
    "kernel.ptx": lambda folder: only_entry(folder) / "kernel.ptx",
}


@pytest.mark.parametrize("bits", [0o020, 0o002], ids=["group", "all"])
@pytest.mark.parametrize("which", OPEN_TO_OTHERS.values(), ids=OPEN_TO_OTHERS)
def test_what_others_may_write_is_not_used(
    which: Callable[[Path], Path], bits: int, folder: Path, compiles: list[str]
) -> None:
    ask()
    place = which(folder)
    mode = place.stat().st_mode
    place.chmod(mode | bits)
    with pytest.warns(CacheWarning, match=rf"other users may write to {place} .*chmod") as seen:
        ask()
    assert len(seen) == 1
    assert len(compiles) == 2
    place.chmod(mode)
    assert is_a_hit(compiles)  # it was not changed


def test_what_another_user_owns_is_not_used(folder: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ask()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.warns(CacheWarning, match=rf"{folder} belongs to user {folder.stat().st_uid}") as seen:
        ask_for_two()
    assert len(seen) == 1
    assert compiles == ["k.cu", "k.cu", "other.cu"]
    monkeypatch.setenv("CUDAKIT_COMPILE", "never")
    with pytest.warns(CacheWarning), pytest.raises(CompileError, match=r"the cache is not used: .* belongs to user"):
        ask()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", OPEN_TO_OTHERS.values(), ids=OPEN_TO_OTHERS)
def test_an_entry_that_another_user_owns_is_not_used(
    which: Callable[[Path], Path], folder: Path, compiles: list[str]
) -> None:
    ask()
    try:
        os.chown(which(folder), 54321, -1)
    except OSError as error:
        pytest.skip(f"this root cannot give a file away: {error}")
    with pytest.warns(CacheWarning, match="belongs to user 54321"):
        ask()
    assert len(compiles) == 2


def test_entries_are_private_whatever_the_umask(folder: Path, compiles: list[str]) -> None:
    before = os.umask(0)
    try:
        ask()
    finally:
        os.umask(before)
    assert not [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]
    assert is_a_hit(compiles)


def test_a_user_without_a_home(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    for variable in ("CUDAKIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.warns(CacheWarning, match=r"home folder is unknown.*CUDAKIT_CACHE_DIR") as seen:
        ask_for_two()
    assert len(seen) == 1
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", "~/cache")
    with pytest.warns(CacheWarning, match="home folder is unknown"):
        ask()


def test_a_folder_that_cannot_be_made_costs_one_warning(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.warns(CacheWarning, match="could not be written") as seen:
        ask_for_two()
    assert len(seen) == 1


def test_what_killed_processes_left_is_removed(folder: Path) -> None:
    ask()
    old = time.time() - 3600
    for name in (".building-old", ".torn-old", ".building-now"):
        (folder / name).mkdir()
        (folder / name / "kernel.cubin").write_bytes(b"half")
    for name in (".building-old", ".torn-old"):
        os.utime(folder / name, (old, old))
    ask("other.cu")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".building-now"]


def test_a_dangling_link_is_replaced(folder: Path, compiles: list[str]) -> None:
    ask()
    entry = only_entry(folder)
    shutil.rmtree(entry)
    entry.symlink_to(folder / "gone")
    with pytest.warns(CacheWarning, match=entry.name):
        ask()
    assert entry.is_dir()
    assert not entry.is_symlink()
    assert is_a_hit(compiles)


def test_a_cache_that_is_a_dangling_link_is_made(folder: Path, compiles: list[str]) -> None:
    folder.symlink_to(folder.parent / "elsewhere" / "cudakit")
    ask()
    assert is_a_hit(compiles)


FIELDS = ["schema", "key", "name", "nvrtc_version", "options", "lowered", "resources", "sha256", "log", "launch"]


def malformed_texts() -> dict[str, Callable[[Path], object]]:
    def with_field(name: str, value: object) -> Callable[[Path], object]:
        return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    def a_pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path, 0o600)

    return {
        **{name: with_field(name, {"k": [5]}) for name in FIELDS},
        "resources of words": with_field("resources", {"k": {"registers": "many"}}),
        "lowered to a number": with_field("lowered", {"k": 5}),
        "a list": lambda path: path.write_text("[1]"),
        "deep": lambda path: path.write_text("[" * 100_000),
        "empty": lambda path: path.write_text(""),
        "not text": lambda path: path.write_bytes(b"\xff\xfe"),
        "a folder": lambda path: (path.unlink(), path.mkdir()),
        "a pipe": a_pipe,
    }


@pytest.mark.parametrize("change", malformed_texts().values(), ids=malformed_texts())
def test_a_malformed_entry_is_a_miss(change: Callable[[Path], object], folder: Path, compiles: list[str]) -> None:
    good = ask()
    entry = only_entry(folder)
    change(entry / "meta.json")
    with pytest.warns(CacheWarning, match=entry.name):
        assert ask() == good
    assert is_a_hit(compiles)
