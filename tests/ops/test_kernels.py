"""Every variant of every family, on every device at hand, on problems that hypothesis draws."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit import ops
from cudakit.testing import Unsupported, cases, run_case

VARIANTS = [(family, variant.name) for family in ops.families().values() for variant in family]
ELEMENTS = {"sim": 6_000, "gpu": 300_000}


@pytest.mark.parametrize(("family", "name"), VARIANTS, ids=lambda value: getattr(value, "name", value))
@given(data=st.data())
def test_variant_equals_the_reference(device: cudakit.Device, family, name, data) -> None:
    case = data.draw(cases(family.name, ELEMENTS[device.kind]))
    verdict = run_case(device, family, family.variant(name), case)
    assert isinstance(verdict, Unsupported) or verdict.ok, verdict.why


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
@given(data=st.data())
def test_auto_takes_every_problem(device: cudakit.Device, family, data) -> None:
    case = data.draw(cases(family.name, ELEMENTS[device.kind]))
    verdict = run_case(device, family, None, case)
    assert not isinstance(verdict, Unsupported), verdict.reason
    assert verdict.ok, verdict.why


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
def test_rungs_are_numbered_and_named_once(family) -> None:
    assert [variant.rung for variant in family] == list(range(1, len(family.variants) + 1))
    assert len({variant.name for variant in family}) == len(family.variants)


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
def test_kernels_family_and_strategies_have_one_name(family) -> None:
    folder = family.variants[0].source.partition("/")[0]
    assert family in vars(importlib.import_module(f"cudakit.families.{folder}")).values()
    importlib.import_module(f"cudakit.testing.{folder}")
