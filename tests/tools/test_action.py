"""`action.yml`: its shell steps, read from the file and run in a user's repository."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml", reason="the `test` extra has pyyaml, which reads action.yml")

RACE = """\
extern "C" __global__ void turn(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
"""
RIGHT = RACE.replace("    y[", "    __syncthreads();\n    y[")
SCRIPT = """\
import cudakit
device = cudakit.Device()
x, y = device.zeros(64), device.zeros(64)
device.compile("kernels/my turn.cu")["turn"].launch(device.default_stream, grid=1, block=64, args=(x, y))
device.synchronize()
"""
TARGET = '"kernels/my turn.cu" --run try.py'


@pytest.fixture(scope="module")
def action():
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def repository(tmp_path):
    made = tmp_path / "repository"
    for name in (".git", "kernels"):
        (made / name).mkdir(parents=True)
    (made / "kernels" / "my turn.cu").write_text(RACE)
    (made / "try.py").write_text(SCRIPT)
    return made


def filled(text, values):
    """Return a text of the file with its expressions evaluated; `a || b` becomes the first that is not empty."""

    def value(match):
        return next((values[name] for name in match[1].split(" || ") if values[name]), "")

    return re.sub(r"\$\{\{ (.*?) \}\}", value, text)


def run_steps(action, folder, **inputs):
    """Run the shell steps until one fails. Return the last one's status, its output, and the outputs of all."""
    given = {f"inputs.{name}": one.get("default", "") for name, one in action["inputs"].items()}
    given |= {f"inputs.{name.replace('_', '-')}": text for name, text in inputs.items()}
    values = {**given, "github.action_path": str(ROOT)}
    outputs = folder.parent / "outputs"
    outputs.write_text("")
    base = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "GITHUB_OUTPUT": str(outputs),
        # the tests' environment is complete and must not change
        "PIP_DRY_RUN": "1",
        "PIP_NO_INDEX": "1",
    }
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input pasted into the script would be executed"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder / filled(step.get("working-directory", ""), values),
            env={**base, **{name: filled(text, values) for name, text in step.get("env", {}).items()}},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            break
    written = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    return done.returncode, done.stdout + done.stderr, written


@pytest.fixture
def installed():
    try:
        importlib.metadata.version("cudakit")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("cudakit is not installed")


def test_a_race_fails_the_action_and_is_in_the_sarif_at_its_line(action, repository, installed):
    (repository / "kernels" / "right.cu").write_text(RIGHT)
    (repository / "right.py").write_text(SCRIPT.replace("my turn", "right"))
    (repository / "try.py").write_text(f"import sys; sys.stdin.read(); {SCRIPT}")  # must not consume the next target
    targets = f"\n{TARGET}\n  \nkernels/right.cu --run right.py\n"
    status, said, written = run_steps(action, repository, cudakit="cudakit", targets=targets, arguments="--arch sm_90a")
    assert status == 1, said
    results = Path(written["results"])
    assert results == repository / "cudakit-results"
    assert written["sarif"] == str(results / "sarif")
    logs = [json.loads((results / "sarif" / f"{number}.sarif").read_text()) for number in (1, 2)]
    [result], none = (log["runs"][0]["results"] for log in logs)
    assert (result["ruleId"], none) == ("shared-memory-race", [])
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "kernels/my%20turn.cu"
    text = RACE.splitlines()[where["region"]["startLine"] - 1]
    assert "tile[63 - threadIdx.x]" in text
    assert 'failures="1"' in (results / "junit" / "1.xml").read_text()
    assert json.loads((results / "json" / "1.json").read_text())["reports"]
    assert "::error::cudakit check kernels/my turn.cu --run try.py --arch sm_90a: exit status 1" in said
    assert said.count("::error::") == 1


def test_an_action_whose_checks_pass_passes(action, repository, installed):
    (repository / "kernels" / "my turn.cu").write_text(RIGHT)
    inputs = {"working_directory": "kernels", "results": "../out", "targets": '"my turn.cu" --run ../try.py'}
    (repository / "try.py").write_text(SCRIPT.replace("kernels/", ""))
    status, said, written = run_steps(action, repository, cudakit="cudakit", **inputs)
    assert status == 0, said
    assert sorted(path.name for path in Path(written["results"]).rglob("*.*")) == ["1.json", "1.sarif", "1.xml"]


@pytest.mark.parametrize(
    ("targets", "why"), [(" \n", "nothing was checked"), ("absent.cu", "kernel file 'absent.cu' not found")]
)
def test_an_action_that_has_nothing_to_check_fails(action, repository, installed, targets, why):
    status, said, written = run_steps(action, repository, cudakit="cudakit", targets=targets)
    assert status == 2
    assert why in said
    assert "sarif" not in written, "there is nothing to upload"


def test_what_is_written_is_uploaded_after_a_failure_too(action):
    steps = {step["uses"].split("@")[0]: step for step in action["runs"]["steps"] if "uses" in step}
    for name, output in (("github/codeql-action/upload-sarif", "sarif"), ("actions/upload-artifact", "results")):
        assert steps[name]["if"].startswith("always() && ")
        assert f"steps.check.outputs.{output} != ''" in steps[name]["if"]
        assert f"${{{{ steps.check.outputs.{output} }}}}" in steps[name]["with"].values()
    assert (
        filled("${{ inputs.cudakit || github.action_path }}", {"inputs.cudakit": "", "github.action_path": "x"}) == "x"
    )
    install = next(step for step in action["runs"]["steps"] if "REQUIREMENT" in step.get("env", {}))
    assert install["env"]["REQUIREMENT"] == "${{ inputs.cudakit || github.action_path }}"


def test_the_workflow_in_the_documentation_fits_the_action(action):
    page = (ROOT / "docs" / "continuous_integration.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    [step] = [step for step in yaml.safe_load(text)["jobs"]["check"]["steps"] if "/cudakit@" in step["uses"]]
    assert set(step["with"]) <= set(action["inputs"])
    assert {name for name, one in action["inputs"].items() if one.get("required")} <= set(step["with"])
    table = {
        name
        for row in re.findall(r"^\| (`[^|]*`) \|", page.partition("## Elsewhere")[0], re.M)
        for name in row.split(", ")
    }
    assert table == {f"`{name}`" for name in action["inputs"]}
