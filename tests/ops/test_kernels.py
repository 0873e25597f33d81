"""Every variant of every family, on every available device, on problems drawn by hypothesis that it supports."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import cudakit
from cudakit import ops
from cudakit.testing import Case, Values, cases, cases_of, check_variant, contiguous

VARIANTS = [(family, variant.name) for family in ops.families().values() for variant in family]
ELEMENTS = {"sim": 1_000, "gpu": 300_000}


@pytest.mark.parametrize(("family", "name"), VARIANTS, ids=lambda value: getattr(value, "name", value))
def test_variant_equals_the_reference(device: cudakit.Device, family, name) -> None:
    variant = family[name]
    check_variant(device, family, variant, cases_of(family, variant, ELEMENTS[device.kind]))


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
def test_auto_takes_every_problem(device: cudakit.Device, family) -> None:
    coverage = check_variant(device, family, None, cases(family.name, ELEMENTS[device.kind]))
    assert coverage.refused == 0


def test_a_variant_that_refuses_most_problems_has_not_passed(device: cudakit.Device) -> None:
    family = ops.families()["vector_add"]
    picky = dataclasses.replace(family["vector_add_vec4"], problems="")
    with pytest.raises(AssertionError, match=r"vector_add_vec4: \d+ of 60 problems were unsupported"):
        check_variant(device, family, picky, cases_of(family, picky, 100))


def test_a_variant_that_ran_on_few_different_problems_has_not_passed(device: cudakit.Device) -> None:
    family = ops.families()["vector_add"]
    flat = [contiguous((extent,)) for extent in range(1, 10)]
    few = st.sampled_from([Case((one, one), Values(1, 1.0), one) for one in flat])
    with pytest.raises(AssertionError, match=r" [1-9] different ones ran; at least half must run, and 20 different"):
        check_variant(device, family, family.variants[0], few)


@settings(max_examples=200)
@given(case=cases("matrix_add", 200))
def test_no_element_is_twice_in_what_is_written(case) -> None:
    """A problem with overlapping output elements would be rejected, so in-place operation would not be tested."""
    written = case.output if case.output is not None else case.inputs[case.over]
    offsets = np.zeros(written.shape, np.int64)
    for axis, stride in zip(np.indices(written.shape), written.strides, strict=True):
        offsets += axis * stride
    assert len(np.unique(offsets)) == offsets.size


def test_a_family_has_no_kind_of_problems_that_it_does_not_draw() -> None:
    with pytest.raises(ValueError, match="unknown kind of problems 'smooth'; known are aligned"):
        find(cases("vector_add", 100, "smooth"), lambda case: True)


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
def test_rungs_are_numbered_and_named_once(family) -> None:
    assert [family.rung(variant) for variant in family] == list(range(1, len(family.variants) + 1))
    assert len({variant.name for variant in family}) == len(family.variants)


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
def test_kernels_family_and_strategies_have_one_name(family) -> None:
    folder = family.variants[0].source.partition("/")[0]
    assert family in vars(importlib.import_module(f"cudakit.families.{folder}")).values()
    importlib.import_module(f"cudakit.testing.{folder}")
