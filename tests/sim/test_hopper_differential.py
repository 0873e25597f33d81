"""Hopper's instructions on the simulated device, compared with an H200's recorded results.

`python -m tests.hopper --compare CASE` finds the first differing element of a case, on a machine with a GPU.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hopper import program_ptx, wgmma_forms
from hopper.case import Case
from hopper.catalogue import FAMILIES, cases
from hopper.recording import Recording
from hopper.runner import Runner

import cudakit

PARTS = 8  # of the mbarrier programs, each a test
CASES = {family: cases(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return Recording()


def differences(chosen: list[Case], recorded: Recording, **options: object) -> list[str]:
    """Return one line per case whose result on the simulated device is not the recorded one."""
    wrong = []
    with Runner("sim", **options) as runner:
        for case, outcome in runner.run(chosen):
            what = outcome.error if outcome.result is None else recorded.difference(case, outcome.result)
            if what:
                wrong.append(f'{case.name}: {what}; python -m tests.hopper --compare "{case.name}"')
    return wrong


def test_the_catalogue_is_whole(recorded: Recording) -> None:
    every = [case for family in FAMILIES for case in CASES[family]]
    assert len({case.name for case in every}) == len({case.key for case in every}) == len(every)
    counts = {family: len(found) for family, found in CASES.items()}
    assert counts["wgmma"] >= 600, counts
    assert counts["copies"] >= 400, counts
    assert counts["mbarrier"] == program_ptx.COUNT
    missing = [case.name for case in every if case not in recorded]
    assert not missing, f"{len(missing)} cases are not recorded, such as {missing[:3]}"


def test_the_forms_of_wgmma_have_every_shape_and_type() -> None:
    products = [product for _, product in wgmma_forms.products()]
    for types in (("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("f16", "f16"), ("e4m3", "f32")):
        shapes = {product.n for product in products if (product.a_type, product.d_type) == types}
        assert shapes == set(wgmma_forms.FLOAT_COLUMNS), types
    for kind in ("s8", "b1"):
        assert {product.n for product in products if product.a_type == kind} >= set(wgmma_forms.INTEGER_COLUMNS), kind
    layouts = Counter((p.a and p.a.swizzle, p.b.swizzle, p.a and p.a.transposed, p.b.transposed) for p in products)
    assert len(layouts) == 4 * 4 * 2 * 2 + 4 * 2  # with A in shared memory, and in registers


@pytest.mark.parametrize("group", list(dict.fromkeys(case.group for case in CASES["wgmma"])))
def test_products_agree_with_an_h200(group: str, recorded: Recording) -> None:
    wrong = differences([case for case in CASES["wgmma"] if case.group == group], recorded, checks=())
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("group", list(dict.fromkeys(case.group for case in CASES["copies"])))
def test_copies_agree_with_an_h200(group: str, recorded: Recording) -> None:
    wrong = differences([case for case in CASES["copies"] if case.group == group], recorded, checks=())
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_agree_with_an_h200(part: int, recorded: Recording) -> None:
    wrong = differences(CASES["mbarrier"][part::PARTS], recorded, checks=())
    assert not wrong, "\n".join(wrong[:10])


def test_programs_are_not_accused(recorded: Recording) -> None:
    """They have neither races nor deadlocks by construction, so no check reports one."""
    wrong = differences(CASES["mbarrier"][7::20], recorded)
    assert not wrong, "\n".join(wrong[:10])


def test_the_rules_determine_what_an_h200_computes(recorded: Recording) -> None:
    programs = program_ptx.programs()
    wrong = [
        made.name
        for program, made in zip(programs, CASES["mbarrier"], strict=True)
        if recorded.difference(made, program_ptx.determined(program))
    ]
    assert not wrong, f"{len(wrong)} programs, such as {wrong[:5]}"


def test_a_difference_is_located() -> None:
    product = wgmma_forms.products()[0][1]
    thread, register = 37, 2
    # row 16 * warp + lane / 4, and 8 below in registers 2 and 3 of each four
    assert product.locate(4 * (thread * product.registers + register)).startswith("row 25, column 2 ")


@pytest.mark.gpu
def test_both_devices_agree(gpu: cudakit.Device) -> None:
    chosen = [case for family in FAMILIES for case in CASES[family][::40]]
    with Runner("gpu") as theirs, Runner("sim", checks=()) as ours:
        # in this process, which has a context already
        results = {case.key: theirs.here(case).result for case in chosen}
        for case, outcome in ours.run(chosen):
            assert outcome.result is not None, f"{case.name}: {outcome.error}"
            assert np.array_equal(outcome.result, results[case.key]), case.name
