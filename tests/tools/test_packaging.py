"""Distributions for pip: metadata, the README of a package index, contents, and the same bytes from two builds."""

from __future__ import annotations

import importlib.util
import json
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
    assert f"Python {oldest} or later" in (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    versions = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    assert f"Python {', '.join(listed[:-1])} and {listed[-1]} on Linux" in versions


def test_the_conda_recipe_requires_the_same():
    yaml = pytest.importorskip("yaml", reason="the `test` extra has pyyaml, which reads the recipe")
    text = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    renamed = {
        "nvidia-cuda-nvrtc": "cuda-nvrtc", "nvidia-cuda-runtime": "cuda-cudart-dev", "nvidia-cuda-crt": "cuda-crt",
        "nvidia-cuda-cccl": "cuda-cccl", "nvidia-nvfatbin": "libnvfatbin",
    }  # fmt: skip
    due = {f"python {PROJECT['requires-python']}"}
    for requirement in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        due.add(f"{renamed.get(name, name)} {bounds}")
    assert set(recipe["requirements"]["run"]) == due
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {one.replace(">=", " >=") for one in build} < set(recipe["requirements"]["host"])
    assert recipe["about"]["homepage"] == HOME
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert "Not built yet" in text


@needs_hatchling
@pytest.mark.long
def test_two_builds_have_the_same_bytes_and_a_package_index_takes_them(tmp_path):
    pytest.importorskip("build", reason="build is in the `dev` extra")
    pytest.importorskip("twine", reason="twine is in the `dev` extra")
    found = []
    for name in ("one", "other"):
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / name, ROOT], check=True,
            capture_output=True,
        )  # fmt: skip
        found.append(sorted((tmp_path / name).iterdir()))
    assert [path.name for path in found[0]] == [path.name for path in found[1]]
    for one, other in zip(*found, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *found[0]], capture_output=True)
    assert checked.returncode == 0, checked.stdout
    wheel, source = found[0]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.split("/")[0] for name in names}
    assert folders == {"cudakit", f"cudakit-{cudakit.__version__}.dist-info"}
    kernels = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels").rglob("*.cu*")}
    assert {f"cudakit/{name}" for name in kernels} <= set(names)
    assert "cudakit/py.typed" in names
    with tarfile.open(source) as archive:
        inside = {Path(*Path(member.name).parts[1:]).as_posix() for member in archive.getmembers()}
    assert kernels | {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"} <= inside
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode == 0 and tracked.stdout:
        assert inside - {"PKG-INFO"} <= set(tracked.stdout.split("\n"))
