"""Every form of instruction on the simulated device, compared with an H200's recorded results.

`python -m tests.differential` compares both devices with more operands; `HYPOTHESIS_PROFILE=fuzz` increases the number
of operands of the GPU's test here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest
from differential import recording
from differential.catalogue import catalogue
from differential.explained import EXPLANATIONS, explain
from differential.forms import Form
from differential.operands import vectors
from differential.programs import Branch, Step, random_program
from differential.programs import form as program_form
from differential.runner import Outcome, Runner, compare, differ
from differential.shrink import shrink
from differential.table import Table

import cudakit
from cudakit.sim.values import floats

GROUPS = {name: list(forms) for name, forms in itertools.groupby(catalogue(), lambda form: form.group)}
DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


@pytest.fixture(scope="module")
def recorded() -> recording.Recording:
    return recording.Recording()


@pytest.fixture(scope="module")
def ours() -> Iterator[Runner]:
    with Runner("sim") as runner:
        yield runner


def test_the_catalogue_is_whole() -> None:
    names = [form.name for forms in GROUPS.values() for form in forms]
    assert len(names) == len(set(names))
    assert len(names) > 5000
    assert all(explanation.reason for explanation in EXPLANATIONS)


@pytest.mark.parametrize(
    "group", [pytest.param(g, marks=[pytest.mark.long] if k % 4 else []) for k, g in enumerate(GROUPS)]
)
def test_forms_agree_with_an_h200(group: str, recorded: recording.Recording, ours: Runner) -> None:
    forms = GROUPS[group]
    operands = [recording.operands(form) for form in forms]
    wrong = []
    for form, words, outcome in zip(forms, operands, ours.run(forms, operands), strict=True):
        assert form in recorded, f"not recorded: {form.name}"
        wrong += list(_differences(form, words, outcome, recorded))
    assert not wrong, "\n".join(wrong[:10])


def _differences(form: Form, words: np.ndarray, ours: Outcome, recorded: recording.Recording) -> Iterator[str]:
    if ours.results is None:
        yield f"{form.name}: {ours.error}"
        return
    theirs = recorded.results(form)
    if theirs is None:
        # a checksum cannot be compared if some lanes are known to differ
        known = any(explanation.matches(form) for explanation in EXPLANATIONS)
        if not known and recording.checksum(form, ours.results) != recorded.checksums[recording.key(form)]:
            yield f"{form.name}: another checksum"
        return
    found = compare(form, words, ours, Outcome(theirs))
    covered, _ = explain(form, words, ours.results, theirs, found.wrong)
    found.wrong &= ~covered
    yield from found.lines(1)


def test_random_programs_load_and_run(ours: Runner) -> None:
    forms = [program_form(random_program(seed)) for seed in range(100 if DEEP else 20)]
    for form, outcome in zip(forms, ours.run(forms, [vectors(form, 64) for form in forms]), strict=True):
        assert outcome.results is not None, f"{form.name}: {outcome.error}"


def test_a_difference_is_made_small(ours: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = tuple(random_program(3))[:4]
    program = (*noise, Step("sqrt.rn.f32 x1, x0;"), Branch("p1", (Step("add.s32 r1, r1, r2;"),)))
    words = vectors(program_form(program), 64)
    right = np.sqrt

    def outcome(candidate: tuple, operands: np.ndarray) -> np.ndarray:
        (found,) = ours.run([program_form(candidate)], [operands])
        assert found.results is not None, found.error
        return found.results

    def planted(candidate: tuple, operands: np.ndarray) -> np.ndarray:
        # a square root that is one step too large above 2
        monkeypatch.setattr(
            floats.np, "sqrt", lambda x: np.where(x > 2, np.nextafter(right(x), np.float32(9e9)), right(x))
        )
        try:
            return outcome(candidate, operands)
        finally:
            monkeypatch.setattr(floats.np, "sqrt", right)

    def differs(candidate: tuple, operands: np.ndarray) -> bool:
        return bool((outcome(candidate, operands) != planted(candidate, operands)).any())

    lanes = np.flatnonzero((outcome(program, words) != planted(program, words)).any(axis=0))
    assert len(lanes)
    least, operands = shrink(program, words, int(lanes[0]), differs)
    assert least == (Step("sqrt.rn.f32 x1, x0;"),)
    assert (operands == operands[:, :1]).all()
    assert np.count_nonzero(operands[:, 0]) == 1


@pytest.mark.gpu
def test_both_devices_agree(gpu: cudakit.Device, ours: Runner) -> None:
    forms = [form for forms in GROUPS.values() for form in forms]
    programs = [program_form(random_program(10_000 + seed)) for seed in range(200 if DEEP else 50)]
    table = Table()
    with Runner("gpu") as theirs:
        for found in differ([*forms, *programs], 2048 if DEEP else 64, 1, ours, theirs):
            table.add(found.form.group, found)
    assert not table.unexplained, "\n".join(table.unexplained[:10])
