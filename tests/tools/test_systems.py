"""docs/systems.md names examples, result files with their rows, and tests; each must exist."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from outcomes import Outcomes
from paths import ROOT
from systems import PAGE, System, problems, systems

pytest_plugins = ["pytester"]

SYSTEMS = systems()


def test_there_is_a_line_for_every_system():
    counts = {"N": range(1, 11), "P": range(1, 7), "K": range(1, 6), "T": range(13), "C": range(1, 4)}
    assert [system.name for system in SYSTEMS] == [f"{letter}{n}" for letter, all_ in counts.items() for n in all_]
    assert "37 systems" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("system", SYSTEMS, ids=[system.name for system in SYSTEMS])
def test_what_a_line_names_is_there(system):
    assert list(problems(system)) == []


FILE, EXAMPLE = "profiles/h200/streams.json", "examples/streams.py"
TEST = "tests/ops/test_traps.py::test_a_check_that_saw_nothing_is_no_pass"
GOOD = System("T5", (EXAMPLE,), ((FILE, ("4 streams",)),), (TEST,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shown": ("examples/gone.py", EXAMPLE)}, "examples/gone.py does not exist"),
        ({"shown": ()}, "a line needs an example or a command, a file and a test"),
        ({"shown": ("examples/batch.py",)}, f"{FILE} is the result of `python {EXAMPLE}`, not of examples/batch.py"),
        ({"shown": ("bench streams",)}, f"{FILE} is the result of `python {EXAMPLE}`, not of bench streams"),
        ({"results": (("profiles/h200/gone.json", ("4 streams",)),)}, "profiles/h200/gone.json does not exist"),
        ({"results": ((FILE, ("5 streams",)),)}, f"{FILE} has no correct row 5 streams"),
        ({"results": ((FILE, ()),)}, f"no row of {FILE} is named"),
        ({"tests": ("tests/ops/test_gone.py::test_x",)}, "there is no test test_x in tests/ops/test_gone.py"),
        ({"tests": (f"{TEST}_more",)}, f"there is no test {TEST.split('::')[1]}_more in tests/ops/test_traps.py"),
        (
            {"tests": ("tests/ops/test_blur.py::test_more_images_than_a_grid_has_blocks_along_z",)},
            "tests/ops/test_blur.py::test_more_images_than_a_grid_has_blocks_along_z has the mark gpu",
        ),
    ],
)  # fmt: skip
def test_a_line_that_names_what_is_not_there_is_found(change, message):
    assert list(problems(GOOD)) == []
    assert list(problems(dataclasses.replace(GOOD, **change))) == [message]


def test_a_row_that_is_wrong_is_no_result(tmp_path):
    for path in (EXAMPLE, TEST.partition("::")[0], FILE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"))
    assert list(problems(GOOD, tmp_path)) == []
    report = json.loads((tmp_path / FILE).read_text())
    for row in report["rows"]:
        row["ok"] = False
    (tmp_path / FILE).write_text(json.dumps(report))
    assert list(problems(GOOD, tmp_path)) == [f"{FILE} has no correct row 4 streams"]


def test_a_line_is_read_whole():
    text = PAGE.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("| P1 |")]
    (system,) = systems(line)
    assert system == System(
        "P1",
        ("examples/softmax_compare.py",),
        (("profiles/h200/softmax.json", ("serial_block",)),),
        ("tests/ops/test_kernels.py::test_variant_equals_the_reference[sim-softmax-serial_block]",),
    )
    links = re.findall(r"\]\(\.\./(\S+?)(?:#[\w-]*)?\)", "\n".join(text.split("\n## ")[1:]))
    read = [path for system in SYSTEMS for path in (*system.shown, *(file for file, _ in system.results))]
    read += [test.partition("::")[0] for system in SYSTEMS for test in system.tests]
    assert sorted(links) == sorted(path for path in read if "/" in path)


def test_a_named_test_that_is_skipped_or_does_not_run_fails_the_run(pytester):
    file = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("device", ["sim", "gpu"])
        def test_passes(device):
            if device == "gpu":
                pytest.skip("no GPU")

        def test_is_skipped():
            pytest.skip("no node")

        @pytest.mark.skip
        def test_is_marked():
            pass
        """
    ).name
    tests = [
        f"{file}::test_{name}" for name in ("passes", "passes[sim]", "passes[gpu]", "is_skipped", "is_marked", "gone")
    ]
    for named, failed in ((tests[:2], []), (tests, tests[2:])):
        run = pytester.inline_run("-n0", "-pno:cacheprovider", plugins=[Outcomes(named)])
        assert [report.nodeid for report in run.getfailures()] == [f"docs/systems.md::{test}" for test in failed]
        assert run.ret == (pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK)
    said = [report.longrepr for report in run.getfailures()]
    assert said[1] == f"{file}::test_is_skipped was skipped, but docs/systems.md names it"
    assert said[3] == f"{file}::test_gone did not run, but docs/systems.md names it"
