"""Distributions for pip: metadata, the README of a package index, contents, and the same bytes from two builds."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

import cudakit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME = PROJECT["urls"]["Repository"]
RAW = HOME.replace("github.com", "raw.githubusercontent.com")

needs_hatchling = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("hatch_fancy_pypi_readme") is None,
    reason="hatchling or hatch-fancy-pypi-readme, which the `test` extra has, is not installed",
)


@pytest.fixture(scope="module")
def metadata():
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@needs_hatchling
def test_links_and_pictures_of_a_package_index_are_absolute_and_there(metadata):
    readme = metadata["readme"]["text"]
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", readme) + re.findall(r'(?:src|srcset)="([^"]+)"', readme)
    own = [link for link in links if link.startswith((HOME, RAW))]
    assert len(own) > 20
    for link in links:
        assert link.startswith("https://"), link
    places = (f"{HOME}/blob/v{cudakit.__version__}/", f"{RAW}/v{cudakit.__version__}/")
    for link in own:
        [place] = [place for place in places if link.startswith(place)]
        assert (ROOT / link.removeprefix(place)).exists(), link
        assert (place == places[1]) == link.endswith(".png")


@needs_hatchling
def test_the_version_has_one_owner(metadata):
    version = cudakit.__version__
    assert metadata["version"] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'\n  version: "{version}"\n' in (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"`cudakit=={version}`" in (ROOT / "action.yml").read_text(encoding="utf-8")
    headings = re.findall(r"^## ([\d.]+\d)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version


def test_the_oldest_python_is_stated_once_and_the_same():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    listed = [text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert listed[0] == oldest
    for page in ("README.md", "docs/start.md", "docs/index.md"):
        assert f"Python {oldest} or later" in (ROOT / page).read_text(encoding="utf-8"), page
    versions = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    assert f"Python {', '.join(listed[:-1])} and {listed[-1]} on Linux" in versions


def test_the_conda_recipe_and_the_citation_agree_with_the_project():
    yaml = pytest.importorskip("yaml", reason="the `test` extra has pyyaml, which reads the recipe")
    text = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    renamed = {
        "nvidia-cuda-nvrtc": "cuda-nvrtc", "nvidia-cuda-runtime": "cuda-cudart-dev",
        "nvidia-cuda-crt": "cuda-crt-dev_linux-64", "nvidia-cuda-cccl": "cuda-cccl", "nvidia-nvfatbin": "libnvfatbin",
    }  # fmt: skip
    due = {f"python {PROJECT['requires-python']}"}
    for requirement in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        due.add(f"{renamed.get(name, name)} {bounds}")
    assert set(recipe["requirements"]["run"]) == due
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {one.replace(">=", " >=") for one in build} < set(recipe["requirements"]["host"])
    assert recipe["about"]["homepage"] == HOME
    assert recipe["source"]["url"].startswith(f"{HOME}/")
    assert f'repository-code: "{HOME}"' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert "Not built yet" in text


def built(source: Path, into: Path, *kinds: str) -> list[Path]:
    """Build in `source`. Returns the distributions by name: the wheel, then the sdist."""
    pytest.importorskip("build", reason="build is in the `dev` extra")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", into, source], check=True,
        capture_output=True,
    )  # fmt: skip
    return sorted(into.iterdir())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> list[Path]:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def tracked() -> set[str]:
    """The files that git has, or would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


@needs_hatchling
@pytest.mark.long
def test_two_builds_have_the_same_bytes(distributions, tmp_path):
    """The second one is built in another folder, by files with other times and permissions, from the sdist."""
    with tarfile.open(distributions[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    for path in source.rglob("*"):
        os.utime(path)
        path.chmod(0o700 if path.is_dir() else 0o600)
    again = built(source, tmp_path / "dist", "--sdist", "--wheel")
    assert [path.name for path in again] == [path.name for path in distributions]
    for one, other in zip(distributions, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


@needs_hatchling
@pytest.mark.long
def test_a_package_index_accepts_them(distributions):
    pytest.importorskip("twine", reason="twine is in the `dev` extra")
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *distributions], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_hatchling
@pytest.mark.long
def test_distributions_have_the_tracked_files_and_no_others(distributions):
    wheel, source = distributions
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = f"cudakit-{cudakit.__version__}.dist-info"
    assert {f"{about}/licenses/LICENSE", "cudakit/py.typed", "cudakit/kernels/softmax/09_registers.cu"} <= names
    with tarfile.open(source) as archive:
        inside = {Path(*Path(member.name).parts[1:]).as_posix() for member in archive.getmembers()}
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py"} <= inside
    if not tracked():
        pytest.skip("the files of the repository are not known: this is no git checkout")
    package = {name for name in tracked() if name.startswith("cudakit/")}
    kernels = {f"cudakit/{name}" for name in tracked() if name.startswith("kernels/")}
    assert {name for name in names if not name.startswith(about)} == package | kernels
    left_out = (".ci/", ".pre-commit-config.yaml", ".clang-format", "config.ncu-cfg", "profiles/")
    assert inside - {"PKG-INFO"} == {name for name in tracked() if not name.startswith(left_out)}
