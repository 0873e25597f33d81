"""Litmus tests of memory ordering: the PTX memory model's known verdicts, and the simulated device's reports against
it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from litmus import explained
from litmus.catalogue import catalogue
from litmus.kernels import STRESS
from litmus.model import judge
from litmus.program import Variant
from litmus.runner import WAYS, observe
from litmus.verdicts import AGREES, FALSE, MISSED, NOT_REACHED, Seen, seen_by_sim, verdict
from paths import ROOT

import cudakit

MP = "st.{0} x 1; st.{1} y 1 | ld.{2} r0 y; ld.{0} r1 x"
SB = "st.relaxed.gpu x 1; {0}ld.relaxed.gpu r0 y | st.relaxed.gpu y 1; {0}ld.relaxed.gpu r1 x"
LB = "ld.{0}.gpu r0 x; st.{1}.gpu y {2} | ld.{0}.gpu r1 y; st.{1}.gpu x {3}"
IRIW = (
    "st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; {0}ld.relaxed.gpu r1 y | "
    "st.relaxed.gpu y 1 | ld.relaxed.gpu r2 y; {0}ld.relaxed.gpu r3 x"
)
WRC = "st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; st.{0}.gpu y 1 | ld.{1}.gpu r1 y; ld.relaxed.gpu r2 x"
ADD = "atom.relaxed.{0}.add r0 x 1 | atom.relaxed.gpu.add r1 x 1"


@pytest.mark.parametrize(
    ("text", "placement", "outcome", "allowed"),
    [
        (MP.format("relaxed.gpu", "release.gpu", "acquire.gpu"), "blocks", "r0=1 r1=0", False),
        (MP.format("relaxed.gpu", "relaxed.gpu", "acquire.gpu"), "blocks", "r0=1 r1=0", True),
        (MP.format("relaxed.gpu", "release.gpu", "relaxed.gpu"), "blocks", "r0=1 r1=0", True),
        (MP.format("relaxed.gpu", "release.cta", "acquire.cta"), "blocks", "r0=1 r1=0", True),
        (MP.format("relaxed.cta", "release.cta", "acquire.cta"), "warps", "r0=1 r1=0", False),
        (MP.format("relaxed.gpu", "release.cluster", "acquire.cluster"), "blocks", "r0=1 r1=0", True),
        (MP.format("relaxed.gpu", "release.cluster", "acquire.cluster"), "cluster", "r0=1 r1=0", False),
        (SB.format(""), "blocks", "r0=0 r1=0", True),
        (SB.format("fence.acq_rel.gpu; "), "blocks", "r0=0 r1=0", True),
        (SB.format("fence.sc.gpu; "), "blocks", "r0=0 r1=0", False),
        (SB.format("membar.gl; "), "blocks", "r0=0 r1=0", False),
        (SB.format("fence.sc.cta; "), "blocks", "r0=0 r1=0", True),
        (LB.format("relaxed", "relaxed", 1, 1), "blocks", "r0=1 r1=1", True),
        (LB.format("acquire", "release", 1, 1), "blocks", "r0=1 r1=1", False),
        (LB.format("relaxed", "relaxed", "r0", "r1"), "blocks", "r0=0 r1=0", True),
        (IRIW.format(""), "blocks", "r0=1 r1=0 r2=1 r3=0", True),
        (IRIW.format("fence.acq_rel.gpu; "), "blocks", "r0=1 r1=0 r2=1 r3=0", True),
        (IRIW.format("fence.sc.gpu; "), "blocks", "r0=1 r1=0 r2=1 r3=0", False),
        (WRC.format("release", "acquire"), "blocks", "r0=1 r1=1 r2=0", False),
        (WRC.format("relaxed", "relaxed"), "blocks", "r0=1 r1=1 r2=0", True),
        ("st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; ld.relaxed.gpu r1 x", "blocks", "r0=1 r1=0", False),
        ("st.weak x 1 | ld.weak r0 x; ld.weak r1 x", "blocks", "r0=1 r1=0", True),
        # the atomics of the manual's examples: two scopes that do not include each other lose an addition
        (ADD.format("gpu"), "blocks", "r0=0 r1=0 x=1", False),
        (ADD.format("cta"), "blocks", "r0=0 r1=0 x=1", True),
    ],
)  # fmt: skip
def test_the_model_gives_the_known_verdicts(text: str, placement: str, outcome: str, allowed: bool) -> None:
    variant = Variant("known", text, placement, "x" if "x=" in outcome else "")
    found = {variant.outcome(values) for values in judge(variant).allowed}
    assert (outcome in found) == allowed, sorted(found)


def test_values_do_not_come_out_of_thin_air() -> None:
    assert judge(Variant("LB", LB.format("relaxed", "relaxed", "r0", "r1"))).allowed == {(0, 0)}


@pytest.mark.parametrize(
    ("text", "placement", "race"),
    [
        ("st.weak x 1 | ld.weak r0 x", "blocks", True),
        ("st.relaxed.gpu x 1 | ld.weak r0 x", "blocks", True),
        ("st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x", "blocks", False),
        ("st.relaxed.cta x 1 | ld.relaxed.gpu r0 x", "blocks", True),
        ("st.volatile x 1 | ld.relaxed.gpu r0 x", "blocks", False),
        ("ld.weak r0 x | ld.weak r1 x", "blocks", False),
        ("st.weak x 1; bar.sync 1 | bar.sync 1; ld.weak r0 x", "warps", False),
        ("st.weak x 1; bar.arrive 1 | bar.sync 1; ld.weak r0 x", "warps", False),
        ("bar.arrive 1; st.weak x 1 | bar.sync 1; ld.weak r0 x", "warps", True),
        ("st.weak x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; if r0=1: ld.weak r1 x", "blocks", False),
        ("st.weak x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; ld.weak r1 x", "blocks", True),
        # the read of a reduction acquires nothing
        ("st.weak x 1; st.release.cta y 1 | red.acq_rel.cta.add y 1; ld.weak r0 x", "warps", True),
    ],
)
def test_the_model_finds_data_races(text: str, placement: str, race: bool) -> None:
    assert judge(Variant("known", text, placement)).race == race


def test_an_instruction_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'st\.strong x 1': 'strong' is not one of"):
        _ = Variant("typo", "st.strong x 1").threads


@pytest.fixture(scope="module")
def seen() -> dict[Variant, Seen]:
    return dict(seen_by_sim(catalogue()))


def test_there_are_tests_of_each_kind() -> None:
    shapes = Counter(variant.shape for variant in catalogue())
    assert sum(shapes.values()) >= 250
    races = [judge(variant).race for variant in catalogue()]
    assert 100 <= sum(races) <= len(races) - 100


def test_the_outcomes_of_the_simulated_device_are_allowed(seen: dict[Variant, Seen]) -> None:
    wrong = {variant.name: found.outcomes - judge(variant).allowed for variant, found in seen.items()}
    assert {name: outcomes for name, outcomes in wrong.items() if outcomes} == {}


def test_reports_are_the_data_races_of_the_model(seen: dict[Variant, Seen]) -> None:
    """The differences are exactly these, each for a known reason."""
    differences = Counter[tuple[str, str]]()
    for variant, found in seen.items():
        told = verdict(variant, found)
        if told != AGREES:
            why = explained.reason(variant, told)
            assert why, f"{told}: {variant.name}\n{found.text}"
            differences[told, why] += 1
    assert differences == {
        (MISSED, explained.FENCE): 1,
        (MISSED, explained.SEQUENCE): 1,
        (FALSE, explained.VOLATILE): 1,
        (NOT_REACHED, explained.SCHEDULE): 1,
    }


def test_only_races_are_reported(seen: dict[Variant, Seen]) -> None:
    assert {kind for found in seen.values() for kind in found.reports} == {
        "",
        "global memory race",
        "shared memory race",
    }


def test_the_harness_counts_every_instance() -> None:
    """The kernels that run on a GPU, with fewer instances."""
    shapes = ("MP", "2+2W", "barrier")
    variants = [one for shape in shapes for one in [v for v in catalogue() if v.shape == shape][::40]]
    ways = [way for way in WAYS if not way.mode & STRESS]
    with cudakit.Device("sim", checks=(), fresh=True) as device:
        for variant, counts in observe(device, variants, 100, ways):
            assert counts.total() >= 100 * len(ways)
            assert counts.keys() <= judge(variant).allowed


def test_the_h200_showed_only_allowed_outcomes() -> None:
    """The record has every test, with all of its instances."""
    record = json.loads((ROOT / "profiles" / "h200" / "litmus.json").read_text(encoding="utf-8"))
    least = record["about"]["instances"] * record["about"]["launches"]
    assert set(record["tests"]) == {variant.name for variant in catalogue()}
    for variant in catalogue():
        observed = record["tests"][variant.name]
        assert sum(observed.values()) >= least, variant.name
        assert set(observed) <= {variant.outcome(values) for values in judge(variant).allowed}, variant.name
