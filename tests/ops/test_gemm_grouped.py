"""Grouped products: groups of any sizes in both forms, rows of no group, sizes out of bounds, and refused arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.gemm_grouped import (
    FAMILY,
    GROUPED,
    MOST_GROUPS,
    TILES,
    GroupedProblem,
    GroupedTile,
    best_tile,
    layout_of,
    pieces,
    problem,
    tile_launch,
)
from cudakit.families.gemm_hopper_layout import Layout
from cudakit.family import Launch, Variant, apply
from cudakit.memory import array as memory
from cudakit.testing import Case, Unsupported, Values, contiguous, run_case

NAMES = [variant.name for variant in FAMILY]
FEW_BLOCKS = 3
KEPT = 7.0  # the value of an output's elements before a launch

variants = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def supported(device: cudakit.Device, name: str) -> cudakit.Device:
    reason = FAMILY[name].arch_refusal(device.arch)
    if reason:
        pytest.skip(reason)
    return device


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The family for a device with few multiprocessors: a block computes several tiles."""

    def small(*arguments: Any, **options: Any) -> Any:
        made = problem(*arguments, **options)
        return replace(made, product=replace(made.product, sms=FEW_BLOCKS))

    return replace(FAMILY, problem=small)


def whole(*shape: int, seed: int = 1, dtype: str = "float16", most: int = 3) -> np.ndarray:
    """Small whole numbers: their products and sums are exact in float32, and in 16 bits if they are few."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(memory.as_dtype(dtype))


def wanted(before: np.ndarray, a: np.ndarray, b: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return what a launch makes of the output `before`."""
    after = before.copy()
    for group, place in pieces(a, np.array(sizes, np.int64)):
        after[place] = a[place].astype(np.float64) @ b[group].astype(np.float64)
    return after


def grouped(
    device: cudakit.Device, name: str, a: np.ndarray, b: np.ndarray, sizes: Sequence[int], dtype: Any = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output of a launch over KEPT, and the wanted one."""
    before = np.full((*a.shape[:-1], b.shape[-1]), KEPT, dtype)
    out = device.array(before)
    form = {"offsets" if a.ndim == 2 else "rows": device.array(np.array(sizes, np.int32))}
    assert ops.gemm_grouped(device.array(a), device.array(b), out, variant=name, **form) is out
    return out.numpy(), wanted(before, a, b, sizes)


# Groups ---------------------------------------------------------------------------------------------------------------


@variants
@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([0, 300], id="one group"),
        pytest.param([0, 1, 2, 3, 4], id="groups of one row"),
        pytest.param([0, 0, 130, 130, 130, 300, 300], id="empty groups"),
        pytest.param([0, 0, 0], id="only empty groups"),
        pytest.param([0, 127, 255, 257, 300], id="around a tile"),
        pytest.param([0, 64, 192, 300], id="halves of a tile"),
        pytest.param([3, 131, 259, 290], id="rows before and after"),
        pytest.param([299, 300], id="the last row"),
    ],
)
def test_groups_of_consecutive_rows(supported: cudakit.Device, name: str, offsets: list[int]) -> None:
    a, b = whole(300, 72), whole(len(offsets) - 1, 72, 40, seed=2)
    np.testing.assert_array_equal(*grouped(supported, name, a, b, offsets))


@variants
@pytest.mark.parametrize("rows", [[200, 200], [0, 0], [1, 0], [128, 129], [64, 65]])
def test_groups_of_the_first_rows(supported: cudakit.Device, name: str, rows: list[int]) -> None:
    a, b = whole(2, 200, 72), whole(2, 72, 40, seed=2)
    np.testing.assert_array_equal(*grouped(supported, name, a, b, rows))


@variants
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("result", ["operands'", "float32"])
def test_both_layouts_of_b(supported: cudakit.Device, name: str, dtype: str, along_k: bool, result: str) -> None:
    """Several tiles in each dimension, a k longer than the ring, and few blocks' worth of tiles."""
    a, b = whole(150, 400, dtype=dtype, most=1), whole(3, 400, 272, seed=2, dtype=dtype, most=1)
    offsets = np.array([0, 20, 149, 150], np.int32)
    of_b = supported.array(np.ascontiguousarray(b.transpose(0, 2, 1))).transpose(0, 2, 1) if along_k else b
    of_b = of_b if along_k else supported.array(b)
    out_dtype = dtype if result == "operands'" else result
    made = ops.gemm_grouped(
        supported.array(a), of_b, offsets=supported.array(offsets), dtype=out_dtype, variant=name
    ).numpy()
    exact = wanted(np.zeros((150, 272)), a, b, offsets)
    np.testing.assert_array_equal(made.astype(np.float64), exact.astype(memory.as_dtype(out_dtype)).astype(np.float64))


@variants
@pytest.mark.parametrize("k", [8, 200, 520])
def test_a_block_makes_several_tiles(supported: cudakit.Device, few_blocks: Any, name: str, k: int) -> None:
    """The ring and the turns of a block go on from tile to tile, also between groups."""
    sizes = [1, 130, 0, 40, 0, 257, 64, 3, 128]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    a, b = whole(offsets[-1], k, most=1), whole(len(sizes), k, 200, seed=2, most=1)
    arrays = tuple(map(supported.array, (a, b, offsets)))
    made = apply(few_blocks, arrays, None, name, None, {"alpha": 1.0, "dtype": "float32"}).numpy()
    np.testing.assert_array_equal(made, wanted(np.zeros(made.shape), a, b, offsets))


@variants
@pytest.mark.parametrize("groups", [33, 70, MOST_GROUPS])
def test_many_groups(supported: cudakit.Device, name: str, groups: int) -> None:
    """More groups than a warp lists at a time. Most are empty, so that the last tile is in the last group."""
    sizes = np.where(np.random.default_rng(groups).random(groups) < 30 / groups, 2, 0)
    sizes[-1] = 1
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    a, b = whole(offsets[-1], 16), whole(groups, 16, 8, seed=2)
    np.testing.assert_array_equal(*grouped(supported, name, a, b, offsets.tolist()))


@variants
def test_unaligned_operands(supported: cudakit.Device, name: str) -> None:
    """A and B from an odd element on, with odd extents."""
    a, b = whole(140, 77), whole(2, 77, 45, seed=2)
    of_a, of_b = supported.array(a)[:, 1:], supported.array(b)[:, 1:, 2:]
    offsets = supported.array(np.array([0, 3, 140], np.int32))
    made = ops.gemm_grouped(of_a, of_b, offsets=offsets, dtype="float32", variant=name).numpy()
    np.testing.assert_array_equal(made, wanted(np.zeros((140, 43)), a[:, 1:], b[:, 1:, 2:], [0, 3, 140]))


@variants
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_a_bias_per_group(supported: cudakit.Device, name: str, activation: str | None) -> None:
    layouts = (contiguous((150, 64), 0, "bfloat16"), contiguous((3, 64, 40), 0, "bfloat16"))
    more = (contiguous((4,), 0, "int32"), contiguous((3, 40), 0, "float32"))
    fill = (Values(1, 1.0), Values(2, 1.0), Given((0, 70, 70, 150)), Values(3, 4.0))
    options = {"alpha": 0.25, "activation": activation or ""}
    case = Case((*layouts, *more), fill, contiguous((150, 40), 0, "bfloat16"), options)
    verdict = run_case(supported, FAMILY, FAMILY[name], case)
    assert not isinstance(verdict, Unsupported)
    assert verdict.ok, verdict.why


@variants
def test_values_that_are_not_finite_stay_in_their_rows(supported: cudakit.Device, name: str) -> None:
    """A tile may load rows of the next group, and multiply them by another matrix."""
    a, b = whole(9, 64), whole(2, 64, 16, seed=2)
    a[4:] = np.inf
    made, exact = grouped(supported, name, a[:, :8], b[:, :8], [0, 4, 4])
    assert np.isfinite(made).all()
    np.testing.assert_array_equal(made, exact)


# Tiles ----------------------------------------------------------------------------------------------------------------


def turns(bn: int, stages: int, tail: int = 0, tall: int = 1) -> GroupedTile:
    return GroupedTile(128, bn, 2, True, stages, 1, 1, 1, 12, tail, tall)


def shared(bn: int, stages: int, tail: int = 0, tall: int = 1) -> GroupedTile:
    return GroupedTile(128, bn, 2, False, stages, 1, 2, 1, 16, tail, tall)


# Tiles in turns and shared ones, each without tail tiles, with ones of as many rows, and with tall ones.
KINDS = [
    turns(192, 5),
    turns(128, 5, 96),
    turns(192, 5, 64, 2),
    shared(256, 4),
    shared(128, 6, 96),
    shared(128, 4, 64, 2),
]
SMS = 3


def named(tile: GroupedTile) -> str:
    return f"{tile.bn} {tile.kind}, tail {tile.tall * tile.bm}x{tile.tail}" if tile.tail else f"{tile.bn} {tile.kind}"


def own(tile: GroupedTile) -> Any:
    """The family with one variant, which always uses this tile, on a device of SMS multiprocessors."""

    def launch(made: GroupedProblem) -> Launch | str:
        small = replace(made, product=replace(made.product, sms=SMS))
        layout = layout_of(small.product)
        return layout if isinstance(layout, str) else tile_launch(small, small.product, layout, tile)

    return replace(FAMILY, variants=(Variant("own", launch, GROUPED, since="sm_90a"),))


every_kind = pytest.mark.parametrize("tile", KINDS, ids=named)
some_kinds = pytest.mark.parametrize(  # the others in long runs
    "tile", [*KINDS[1::4], *(pytest.param(tile, marks=pytest.mark.long) for tile in (KINDS[0], *KINDS[2:5]))], ids=named
)
DRAWN = [0, 1, 63, 64, 65, 0, 127, 128, 129, 300, 0]  # rows per group, around halves of a tile and whole ones


def product_of_tile(
    device: cudakit.Device,
    tile: GroupedTile,
    *,
    dtype: str = "bfloat16",
    result: str = "",
    masked: bool = False,
    along_k: bool = False,
    by_lanes: bool = False,
    rows: Sequence[int] = DRAWN,
    k: int = 136,
) -> None:
    """Check a product with a bias and relu, in which the last column of tiles has fewer columns than a tile, or a tail
    tile. by_lanes: no tensor copy can store the output."""
    n, groups = tile.bn + (tile.tail or tile.bn) - 24, len(rows)
    sizes = np.array(rows if masked else [0, *np.cumsum(rows)], np.int32)
    shape = (groups, max(rows), k) if masked else (sum(rows), k)
    a, b = whole(*shape, dtype=dtype, most=1), whole(groups, k, n, seed=2, dtype=dtype, most=1)
    bias = whole(groups, n, seed=3, dtype=dtype, most=20)
    of_b = device.array(np.ascontiguousarray(b.transpose(0, 2, 1))).transpose(0, 2, 1) if along_k else device.array(b)
    made = device.full((*shape[:-1], n + by_lanes), KEPT, dtype=memory.as_dtype(result or dtype))[..., :n]
    inputs = (device.array(a), of_b, device.array(sizes), device.array(bias))
    options = {"alpha": 1.0, "activation": "relu", "dtype": result or None, "masked": masked}
    apply(own(tile), inputs, made, "own", None, options)
    exact = wanted(np.full(made.shape, KEPT), a, b, sizes.tolist())
    for group, place in pieces(a, sizes):
        exact[place] = np.maximum(exact[place] + bias[group].astype(np.float64), 0)
    np.testing.assert_array_equal(made.numpy().astype(np.float64), exact)


@pytest.fixture
def hopper(device: cudakit.Device) -> cudakit.Device:
    if device.arch != "sm_90a":
        pytest.skip("the kernel needs sm_90a")
    return device


def long(*values: Any, id: str) -> Any:
    return pytest.param(*values, id=id, marks=pytest.mark.long)


@every_kind
@pytest.mark.parametrize(
    ("masked", "by_lanes"),
    [
        pytest.param(False, False, id="offsets, tensor stores"),
        pytest.param(True, True, id="masked, stores by lanes"),
        long(True, False, id="masked, tensor stores"),
        long(False, True, id="offsets, stores by lanes"),
    ],
)
def test_every_kind_of_tile(hopper: cudakit.Device, tile: GroupedTile, masked: bool, by_lanes: bool) -> None:
    product_of_tile(hopper, tile, masked=masked, by_lanes=by_lanes)


@some_kinds
@pytest.mark.parametrize("along_k", [pytest.param(True, id="B along k"), long(False, id="B along n")])
def test_every_kind_of_tile_with_other_types(hopper: cudakit.Device, tile: GroupedTile, along_k: bool) -> None:
    product_of_tile(hopper, tile, dtype="float16", result="float32", along_k=along_k, k=72)


@some_kinds
@pytest.mark.parametrize("rows", [[0, 0], [1], [0, 130, 0], [5 * 128, 3]], ids=str)
def test_more_and_fewer_tiles_than_blocks(hopper: cudakit.Device, tile: GroupedTile, rows: list[int]) -> None:
    product_of_tile(hopper, tile, rows=rows, k=392)


def test_many_rows_per_group(hopper: cudakit.Device) -> None:
    """A group with several bands of rows of tiles, the last one of which is lower."""
    tile = replace(turns(64, 5), band=3)
    product_of_tile(hopper, tile, rows=[40, 9 * 128 + 1, 7], k=8)


def test_a_wide_tile_whose_chunks_are_narrow(hopper: cudakit.Device) -> None:
    """208 columns are stored in chunks of 16."""
    product_of_tile(hopper, turns(208, 5), along_k=True, rows=[130, 64])


@some_kinds
@pytest.mark.parametrize("seed", [0, long(1, id="1")])
def test_the_moments_at_which_copies_complete_do_not_matter(tile: GroupedTile, seed: int) -> None:
    """In an order of warps and of completed copies that the seed draws."""
    with cudakit.Device("sim", fresh=True, order="random", seed=seed) as device:
        product_of_tile(device, tile, rows=[65, 0, 200, 128], k=520)


# Sizes out of bounds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A filler of stated numbers."""

    numbers: tuple[int, ...]

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.array(self.numbers).reshape(shape)


LEAST, MOST = -(2**31), 2**31 - 1


@variants
@pytest.mark.parametrize(
    "offsets",
    [(-5, 3, 9, 400), (0, 100, 50, 150), (100, 0, 0, 0), (LEAST, MOST, LEAST, MOST), (MOST, 0, 1, 2), (-1, -1, -1, -1)],
)
def test_offsets_out_of_bounds_touch_nothing_else(
    supported: cudakit.Device, name: str, offsets: tuple[int, ...]
) -> None:
    """run_case also checks the memory around all arrays, and that no row is written twice."""
    layouts = (contiguous((150, 64), 0, "float16"), contiguous((3, 64, 40), 0, "float16"))
    case = Case(
        (*layouts, contiguous((4,), 0, "int32")),
        (Values(1, 1.0), Values(2, 1.0), Given(offsets)),
        contiguous((150, 40), 0, "float16"),
    )
    verdict = run_case(supported, FAMILY, FAMILY[name], case)
    assert not isinstance(verdict, Unsupported)
    assert verdict.ok, verdict.why


@variants
@pytest.mark.parametrize("rows", [(-3, 151), (LEAST, MOST)])
def test_numbers_of_rows_out_of_bounds_touch_nothing_else(
    supported: cudakit.Device, name: str, rows: tuple[int, ...]
) -> None:
    a, b = whole(2, 150, 64), whole(2, 64, 40, seed=2)
    np.testing.assert_array_equal(*grouped(supported, name, a, b, rows))


# Empty problems -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "k", "n"), [(0, 16, 8), (5, 16, 0), (0, 0, 0)])
def test_an_empty_output(device: cudakit.Device, rows: int, k: int, n: int) -> None:
    a, b = device.empty((rows, k), np.float16), device.empty((2, k, n), np.float16)
    offsets = device.array(np.array([0, rows, rows], np.int32))
    assert ops.gemm_grouped(a, b, offsets=offsets).shape == (rows, n)


def test_no_columns_of_a_leave_the_bias(device: cudakit.Device) -> None:
    a, b = device.empty((5, 0), np.float16), device.empty((2, 0, 8), np.float16)
    bias = np.arange(-8, 8).reshape(2, 8)
    made = ops.gemm_grouped(
        a,
        b,
        offsets=device.array(np.array([0, 2, 5], np.int32)),
        bias=device.array(bias.astype(np.float32)),
        activation="relu",
    )
    np.testing.assert_array_equal(made.numpy(), np.maximum(bias, 0)[[0, 0, 1, 1, 1]])


# Later calls ----------------------------------------------------------------------------------------------------------


@variants
def test_sizes_and_alpha_of_each_call_are_used(supported: cudakit.Device, name: str) -> None:
    """Later calls take shorter ways: they must read the offsets on the device again, and the new alpha."""
    a, b = whole(40, 16), whole(2, 16, 8, seed=2)
    of_a, of_b, offsets = supported.array(a), supported.array(b), supported.array(np.array([0, 10, 40], np.int32))
    for middle, alpha in ((10, 1.0), (33, 2.0), (0, -1.0), (40, 0.0)):
        offsets.copy_from(supported.array(np.array([0, middle, 40], np.int32)))
        made = ops.gemm_grouped(of_a, of_b, offsets=offsets, alpha=alpha, dtype="float32", variant=name).numpy()
        np.testing.assert_array_equal(made, alpha * wanted(np.zeros((40, 8)), a, b, [0, middle, 40]))


def test_a_graph_reads_new_sizes(device: cudakit.Device) -> None:
    """The call does not wait for the device, so a capture works, and each replay has other groups."""
    a, b = whole(40, 16), whole(2, 16, 8, seed=2)
    of_a, of_b, offsets = device.array(a), device.array(b), device.array(np.array([0, 10, 40], np.int32))
    out, stream = device.zeros((40, 8), np.float32), device.stream()
    with stream.capture() as graph:
        ops.gemm_grouped(of_a, of_b, out, offsets=offsets, stream=stream)
    executable = graph.instantiate()
    for middle in (10, 3):
        offsets.copy_from(device.array(np.array([0, middle, 40], np.int32)))
        device.synchronize()
        executable.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(out.numpy(), wanted(np.zeros((40, 8)), a, b, [0, middle, 40]))


# Choice ---------------------------------------------------------------------------------------------------------------


def problem_of(device: cudakit.Device, groups: int, rows: int, n: int, k: int) -> Any:
    a, b = device.empty((rows, k), np.float16), device.empty((groups, k, n), np.float16)
    return problem((a, b, device.empty((groups + 1,), np.int32)), device.empty((rows, n), np.float16))


def test_the_variant_for_auto(sim: cudakit.Device) -> None:
    usual = problem_of(sim, 8, 512, 256, 128)
    assert FAMILY.pick("auto", usual, "sm_90a").name == "grouped"
    assert FAMILY.pick("auto", usual, "sm_80").name == "grouped_mma"
    assert FAMILY.pick("auto", problem_of(sim, MOST_GROUPS, 512, 192, 128), "sm_90a").name == "grouped"
    assert FAMILY.pick("auto", problem_of(sim, 8, 512, 255, 127), "sm_90a").name == "grouped"
    assert FAMILY.pick("auto", problem_of(sim, 8, 512, 256, 0), "sm_90a").name == "grouped_mma"


def chosen(device: cudakit.Device, groups: int, rows: int, n: int, k: int) -> GroupedTile:
    made = problem_of(device, groups, rows, n, k)
    product = replace(made.product, sms=132)
    layout = layout_of(product)
    assert isinstance(layout, Layout)
    tile = best_tile(product, False, layout)
    assert tile is not None
    return tile


@pytest.mark.parametrize("n", [64, 160, 256, 320, 1536, 2048, 4096, 4104, 4160, 7168])
def test_a_tile_is_chosen_that_n_fills(sim: cudakit.Device, n: int) -> None:
    tile = chosen(sim, 8, 16384, n, 512)
    columns = n // tile.bn * tile.bn + tile.tail if tile.tail else -(-n // tile.bn) * tile.bn
    assert columns <= 1.04 * n


def test_few_rows_take_narrow_tiles(sim: cudakit.Device) -> None:
    """Wider ones would leave multiprocessors without work."""
    assert chosen(sim, 8, 8, 1024, 512).bn < chosen(sim, 8, 16384, 1024, 512).bn


def test_lists_of_many_groups_leave_room_for_the_ring(sim: cudakit.Device) -> None:
    for tile in TILES:
        made = problem_of(sim, MOST_GROUPS, MOST_GROUPS, 2 * tile.bn, 64)
        layout = layout_of(made.product)
        assert isinstance(layout, Layout)
        best = best_tile(made.product, False, layout)
        assert best is not None
        launch = tile_launch(made, made.product, layout, best)
        assert isinstance(launch, Launch)
        assert launch.shared <= made.product.shared


def test_aligned_operands_are_not_copied(sim: cudakit.Device) -> None:
    for variant in FAMILY:
        assert len(variant.launches(problem_of(sim, 8, 512, 256, 128))) == 1
        assert len(variant.launches(problem_of(sim, 8, 512, 255, 128))) == 2


# Refused arrays -------------------------------------------------------------------------------------------------------


def shapes(device: cudakit.Device, a: Any, b: Any, sizes: Any, kind: str = "int32") -> tuple[Any, Any, Any]:
    return device.zeros(a, np.float16), device.zeros(b, np.float16), device.zeros(sizes, memory.as_dtype(kind))


@pytest.mark.parametrize(
    ("a", "b", "sizes", "form", "words"),
    [
        ((5, 16), (2, 16, 8), (3,), {}, "takes offsets, for a of shape .* got neither"),
        ((5, 16), (2, 16, 8), (3,), {"offsets", "rows"}, "or rows, .* got both"),
        ((5, 16), (2, 16, 8), (2,), {"rows"}, r"with rows takes an a with 3 axes, got shape \(5, 16\)"),
        ((2, 5, 16), (2, 16, 8), (3,), {"offsets"}, r"with offsets takes an a with 2 axes, got shape \(2, 5, 16\)"),
        ((5, 16), (2, 16, 8), (2,), {"offsets"}, r"2 groups takes offsets of int32 and shape \(3,\), got int32 \(2,\)"),
        ((2, 5, 16), (2, 16, 8), (3,), {"rows"}, r"of 2 groups takes rows of int32 and shape \(2,\), got int32 \(3,\)"),
        ((5, 16), (2, 15, 8), (3,), {"offsets"}, r"got a \(5, 16\) and b \(2, 15, 8\)"),
        ((5, 16), (16, 8), (2,), {"offsets"}, r"b \(groups, k, n\), got a \(5, 16\) and b \(16, 8\)"),
        ((3, 5, 16), (2, 16, 8), (3,), {"rows"}, r"got a \(3, 5, 16\) and b \(2, 16, 8\)"),
        ((5, 16), (0, 16, 8), (1,), {"offsets"}, "takes 1 to 1024 groups, got 0"),
        ((5, 1), (MOST_GROUPS + 1, 1, 1), (MOST_GROUPS + 2,), {"offsets"}, "got 1025: split them into several calls"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_match(sim: cudakit.Device, a: Any, b: Any, sizes: Any, form: Any, words: str) -> None:
    of_a, of_b, numbers = shapes(sim, a, b, sizes)
    with pytest.raises(ValueError, match=words):
        ops.gemm_grouped(of_a, of_b, **dict.fromkeys(form, numbers))


def test_other_dtypes_are_refused(sim: cudakit.Device) -> None:
    a, b, offsets = shapes(sim, (5, 16), (2, 16, 8), (3,))
    single = sim.zeros((5, 16), np.float32)
    with pytest.raises(ValueError, match="a and b of one dtype, float16 or bfloat16; got a float32 and b float16"):
        ops.gemm_grouped(single, b, offsets=offsets)
    with pytest.raises(ValueError, match="got a float16 and b bfloat16"):
        ops.gemm_grouped(a, sim.zeros((2, 16, 8), memory.as_dtype("bfloat16")), offsets=offsets)
    with pytest.raises(ValueError, match=r"takes offsets of int32 and shape \(3,\), got int64 \(3,\): convert"):
        ops.gemm_grouped(a, b, offsets=sim.zeros((3,), np.int64))
    with pytest.raises(ValueError, match="an output of float16 or float32, got float64"):
        ops.gemm_grouped(a, b, sim.zeros((5, 8), np.float64), offsets=offsets)
    with pytest.raises(ValueError, match="dtype=float32 differs from the output's dtype float16"):
        ops.gemm_grouped(a, b, sim.zeros((5, 8), np.float16), offsets=offsets, dtype="float32")


def test_other_arrays_are_refused(sim: cudakit.Device) -> None:
    a, b, offsets = shapes(sim, (5, 16), (2, 16, 8), (3,))
    with pytest.raises(ValueError, match="an a whose last axis is contiguous, got a stride of 5 elements there: copy"):
        ops.gemm_grouped(sim.zeros((16, 5), np.float16).T, b, offsets=offsets)
    with pytest.raises(ValueError, match=r"has shape \(5, 8\), out has \(5, 9\)"):
        ops.gemm_grouped(a, b, sim.zeros((5, 9), np.float16), offsets=offsets)
    with pytest.raises(ValueError, match=r"a bias of float16 or float32 and shape \(2, 8\).*; got float16 \(8,\)"):
        ops.gemm_grouped(a, b, offsets=offsets, bias=sim.zeros((8,), np.float16))
    with pytest.raises(ValueError, match=r"activation must be None or one of .*, got 'rely'.*relu"):
        ops.gemm_grouped(a, b, offsets=offsets, activation="rely")
    with pytest.raises(ValueError, match="the output of a grouped product overlaps a"):
        ops.gemm_grouped(a, b, a[:, :8], offsets=offsets)


def test_wgmma_is_refused_elsewhere(sim: cudakit.Device) -> None:
    with pytest.raises(cudakit.UnsupportedVariant, match="needs sm_90a itself, the device is sm_80"):
        FAMILY.pick("grouped", problem_of(sim, 2, 5, 8, 16), "sm_80")
