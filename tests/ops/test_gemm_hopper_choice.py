"""The choice among the tiles of 16-bit products by Hopper's own instructions, and the problems that they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wgmma_products import (
    FAMILY,
    WAYS,
    extents,
    own,
    problem_of,
)

import cudakit
from cudakit.families import gemm_grouped, gemm_half
from cudakit.families.gemm_half import problem
from cudakit.families.gemm_half_gemv import gemv, gemv_cluster
from cudakit.families.gemm_hopper import (
    CLUSTERS,
    SPLIT_TABLE,
    VARIANTS,
    best_split,
    best_tile,
    packed_tiles,
    split_k,
    splits_of,
    tiles,
)
from cudakit.family import Variant, several
from cudakit.memory import array as memory
from cudakit.testing import Case, Layout, cases_of

pytestmark = pytest.mark.usefixtures("needs_hopper")


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(case=cases_of(FAMILY, tiles, 200_000))
def test_the_chosen_variant_supports_the_problem(shared_sim: cudakit.Device, case: Case) -> None:
    """Also on other architectures, on which it is never one of Hopper's own."""
    out = case.inputs[case.over] if case.output is None else case.output
    assert isinstance(out, Layout)
    buffers = [shared_sim.empty((place.extent,), memory.as_dtype(place.dtype)) for place in (*case.inputs, out)]
    stream = shared_sim.default_stream
    arrays = [place.on(buffer, stream) for place, buffer in zip((*case.inputs, out), buffers, strict=True)]
    to = arrays[case.over] if case.output is None else arrays[-1]
    p = FAMILY.problem_of(arrays[:-1], to, **case.options)
    for arch in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_120a"):
        picked = FAMILY.pick("auto", p, arch)
        assert picked.refusal(p, arch) is None
        assert arch == "sm_90a" or picked not in VARIANTS


def test_large_products_have_large_tiles_and_small_ones_fill_the_device(shared_sim: cudakit.Device) -> None:
    large, small = problem_of(shared_sim, 4096, 4096, 4096), problem_of(shared_sim, 256, 256, 8192)
    assert gemm_half.choose(large, "sm_90a") == "tiles"
    (launch,) = tiles.launches(large)
    assert launch.grid >= 0.9 * large.sms
    assert gemm_half.choose(small, "sm_90a") == "split_k"
    first, *_ = split_k.launches(small)
    assert first.grid >= 0.5 * small.sms


@pytest.mark.parametrize("added", ["residual", "c"])
def test_arrays_of_whole_rows_are_read_by_tiles_of_whole_rows(shared_sim: cudakit.Device, added: str) -> None:
    """A lane loads two adjacent columns at once. The plain product is faster by tiles of its transpose."""
    a, b, out, array = (shared_sim.empty((4096, 4096), np.float16) for _ in range(4))
    beta = 1.0 if added == "c" else 0.0
    p, fused = problem((a, b), out), problem((a, b, array), out, beta=beta, added=added)
    (plain, with_array), of_columns = (best_tile(each) for each in (p, fused)), best_tile(fused.turned)
    assert plain
    assert with_array
    assert of_columns
    assert plain.turned
    assert not with_array.turned
    assert of_columns.turned, "the transposed problem has an array of whole columns"
    if added == "c":
        unread = best_tile(problem((a, b, array), out, beta=0.0, added=added))
        assert unread == plain, "C is not read"


@settings(max_examples=100)
@given(extents, extents, st.integers(1, 40))
def test_splits_are_of_one_way_and_fill_the_device(shared_sim: cudakit.Device, m: int, n: int, batch: int) -> None:
    """k is shared by the blocks of a cluster, or by blocks that write parts, all of which run at the same time. For
    each tile, one number of parts leaves too few multiprocessors for another part."""
    p = replace(problem_of(shared_sim, 8, 8, 64), m=m, n=n, batch=batch)
    for plain in SPLIT_TABLE:
        found = [each for each in splits_of(p) if replace(each, cluster=1, splits=1) == plain]
        assert len(found) == len(set(found))
        assert [each.cluster for each in found if each.splits == 1] == list(CLUSTERS)
        parts = [each for each in found if each.splits > 1]
        assert all(each.cluster == 1 and each.splits * each.count(p) <= p.sms for each in parts)
        if 2 * plain.count(p) <= p.sms:
            assert max(each.splits for each in parts) * plain.count(p) > p.sms - plain.count(p)


def programmatic(variant: Variant[Any], p: Any) -> list[bool]:
    return [launch.programmatic for launch in several(variant.launches(p))]


def test_kernels_for_hopper_start_before_their_predecessor_ends(shared_sim: cudakit.Device) -> None:
    """The other kernels do not wait for their predecessor, or have variants for devices on which they cannot."""
    p = problem_of(shared_sim, 256, 256, 8192)
    assert programmatic(tiles, p) == programmatic(own(WAYS[0]), p) == [True]
    assert programmatic(own(WAYS[2]), p) == [True, True]
    odd = replace(p, a=replace(p.a, row=8193))
    assert {True} == set(programmatic(packed_tiles, odd))
    assert len(programmatic(packed_tiles, odd)) >= 2
    a, b, out = (shared_sim.empty(shape, np.float16) for shape in ((256, 64), (2, 64, 256), (256, 256)))
    offsets = shared_sim.empty((3,), np.int32)
    assert programmatic(gemm_grouped.FAMILY["grouped"], gemm_grouped.problem((a, b, offsets), out)) == [True]
    few = problem_of(shared_sim, 2, 256, 8192)
    assert programmatic(gemv_cluster, few) == [True]
    assert not any(programmatic(gemv, few))
    for name in ("wmma", "ldmatrix", "pipelined", "packed", "wgmma", "stored"):
        assert not any(programmatic(FAMILY[name], p))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_unsupported_problems_are_refused_with_the_reason(shared_sim: cudakit.Device, variant: Variant[Any]) -> None:
    p = problem_of(shared_sim, 64, 64, 64)
    with pytest.raises(cudakit.UnsupportedVariant, match="k is 0"):
        variant.launches(problem_of(shared_sim, 64, 64, 0))
    with pytest.raises(cudakit.UnsupportedVariant, match="do not fit in the device's shared memory"):
        variant.launches(replace(p, shared=8_192))
    with pytest.raises(cudakit.UnsupportedVariant, match="extents up to"):
        variant.launches(replace(p, n=2**31 - 8))
    if variant is not packed_tiles:
        with pytest.raises(cudakit.UnsupportedVariant, match="neither axis of B is contiguous"):
            variant.launches(replace(p, b=replace(p.b, col=2)))
        with pytest.raises(cudakit.UnsupportedVariant, match=r"A begins at a multiple of 2 bytes .* needs a multiple"):
            variant.launches(replace(p, a=replace(p.a, alignment=2)))
        long = replace(p, k=2**28 + 1, a=replace(p.a, row=2**28 + 1))
        with pytest.raises(cudakit.UnsupportedVariant, match=r"adjoin \(of at most 268435424 elements\) or"):
            variant.launches(long)
    assert "needs sm_90a itself" in (variant.refusal(p, "sm_100a") or "")


def test_the_number_of_tiles_is_limited(shared_sim: cudakit.Device) -> None:
    """A block's next tile must have a number of 31 bits."""
    p = replace(problem_of(shared_sim, 1, 1, 64), batch=2**31 - 5)
    assert isinstance(best_tile(p), str)
    assert not isinstance(best_tile(replace(p, batch=2**30)), str)
    assert not isinstance(best_split(replace(p, batch=2**30)), str)
