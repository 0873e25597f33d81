"""16-bit products by Hopper's own instructions: epilogues, and calls of the family: repeated, captured, of packed
operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wgmma_products import (
    FAMILY,
    KINDS,
    NARROW,
    WAYS,
    Integers,
    case_of,
    columns,
    expect,
    named,
    own,
    pitched,
    problem_of,
    quick,
    rows,
    spread,
)

import cudakit
from cudakit import ops
from cudakit.families.gemm_half_gemv import gemv_cluster
from cudakit.families.gemm_hopper import (
    VARIANTS,
    packed_tiles,
    tiles,
)
from cudakit.families.gemm_problem import ACTIVATIONS, GemmProblem, epilogue_constants
from cudakit.family import Variant, apply
from cudakit.memory import array as memory
from cudakit.testing import Case, Layout, Values, cases_of, check_variant, contiguous

pytestmark = pytest.mark.usefixtures("needs_hopper")


# Epilogues ------------------------------------------------------------------------------------------------------------

some_forms = pytest.mark.parametrize("tile", quick([KINDS[0], KINDS[-1], *WAYS[1:]], KINDS[0], WAYS[2]), ids=named)


@some_forms
@pytest.mark.parametrize("turned", quick([False, True], False))
@pytest.mark.parametrize("out", [rows, columns, spread])
@pytest.mark.parametrize("in_place", [False, True])
def test_alpha_and_beta(device: cudakit.Device, tile: Any, turned: bool, out: Any, in_place: bool) -> None:
    """C is separate, or the output."""
    m, n, k = 200, 72, 328
    operands = (contiguous((m, k), 0, "bfloat16"), contiguous((k, n), 0, "bfloat16"))
    place = out(m, n, dtype="float32")
    options = {"alpha": -0.5, "beta": 2.0, "dtype": "float32"}
    case = Case((*operands, place if in_place else spread(m, n, dtype="float32")), Integers(), place, options)
    if in_place:
        case = replace(case, output=None, over=2)
    expect(device, own(tile, turned=turned), case)


@some_forms
@pytest.mark.parametrize("turned", quick([False, True], True))
@pytest.mark.parametrize("bias", [(1, 72), (200, 1), (200, 72), (72,)], ids=str)
def test_a_bias_per_row_column_or_element(
    device: cudakit.Device, tile: Any, turned: bool, bias: tuple[int, ...]
) -> None:
    options = {"added": "bias", "scale": -2.0, "activation": "relu", "dtype": "float32"}
    for kind in ("bfloat16", "float32"):
        case = case_of(200, 72, 328, "bfloat16", contiguous(bias, 1, kind), **options)
        expect(device, own(tile, turned=turned), case)


@some_forms
@pytest.mark.parametrize("activation", quick(ACTIVATIONS, "gelu"))
@pytest.mark.parametrize("result", quick(["float16", "float32"], "float16"))
def test_everything_in_an_epilogue(device: cudakit.Device, tile: Any, activation: str, result: str) -> None:
    """Several tiles, all partial, of two batches; neither C nor the residual has the output's layout."""
    m, n, k = tile.bm + 40, 64, 328
    layouts = (
        contiguous((2, m, k), 0, "float16"),
        contiguous((k, n), 0, "float16"),
        Layout((2, m, n), (n * m + 3, 1, m), 1, result),
        contiguous((n,), 0, "float32"),
        Layout((2, m, n), (2 * n, 4 * n + 1, 2), 0, result),
    )
    options = {"alpha": 0.125, "beta": -1.0, "scale": 0.5, "added": "c bias residual", "activation": activation}
    case = Case(layouts, Values(3, 1.0), contiguous((2, m, n), 0, result), {**options, "dtype": result})
    expect(device, own(tile, exact=False), case)


#: The kinds of C and of the residual in the kernels' template arguments, and layouts that have them for even n.
ADDENDS = {
    "kColumnPairs": lambda m, n, kind: rows(m, n, gap=2, lead=2, dtype=kind),
    "kAdjacentColumns": lambda m, n, kind: rows(m, n, gap=1, dtype=kind),
    "kAdjacentColumns, lead": lambda m, n, kind: rows(m, n, gap=2, lead=1, dtype=kind),
    "kAdjacentRows": lambda m, n, kind: columns(m, n, dtype=kind),
    "kAnyArray": lambda m, n, kind: spread(m, n, dtype=kind),
}


@pytest.mark.parametrize("tile", quick([KINDS[0], KINDS[-1], *WAYS], KINDS[0], WAYS[0]), ids=named)
@pytest.mark.parametrize("out", quick([rows, columns, spread], rows))
@pytest.mark.parametrize("result", quick(["bfloat16", "float32"], "bfloat16"))
@pytest.mark.parametrize("kind", ADDENDS)
def test_c_and_the_residual_have_any_layout(
    device: cudakit.Device, tile: Any, out: Any, result: str, kind: str
) -> None:
    """One of them has this layout, the other one the next. The last pair of columns is partial if n is odd."""
    names = [*ADDENDS, *ADDENDS]
    of_c, of_residual = (ADDENDS[name] for name in names[names.index(kind) :][:2])
    options = {"added": "c bias residual", "beta": -2.0, "activation": "relu"}
    variant, kinds = own(tile), []

    def launch(p: GemmProblem) -> Any:
        kinds.append(epilogue_constants(p)[2])
        return variant.launch(p)

    for n in (72, 71):
        added = (of_c(200, n, result), contiguous((n,), 0, "bfloat16"), of_residual(200, n, result))
        case = case_of(200, n, 328, "bfloat16", *added, **{**options, "dtype": result})
        place = pitched(out, 200, n, aligned=out is not spread, dtype=result)
        expect(device, replace(variant, launch=launch), replace(case, output=place))
    even = kind.partition(",")[0]
    odd = "kAdjacentColumns" if even == "kColumnPairs" else even
    assert kinds == sorted(kinds, key=[even, odd].index), "n is even, then odd"
    assert set(kinds) == {even, odd}


@pytest.mark.parametrize(
    ("strides", "kind", "bias"),
    [
        ({}, "kColumnPairs", "kBiasPairs"),
        ({"row": 33}, "kAdjacentColumns", "kBiasPairs"),
        ({"batch": 999}, "kAdjacentColumns", "kBiasPerColumn"),
        ({"alignment": 4}, "kAdjacentColumns", "kBiasPairs"),
        ({"alignment": 2}, "kAdjacentColumns", "kBiasPerColumn"),
        ({"row": 1, "col": 16}, "kAdjacentRows", "kAnyBias"),
        ({"row": 64, "col": 2}, "kAnyArray", "kAnyBias"),
    ],
)
def test_pairs_of_columns_are_read_if_they_are_aligned(
    shared_sim: cudakit.Device, strides: dict[str, int], kind: str, bias: str
) -> None:
    """C and the residual have numbers of 4 bytes, the bias of 2."""
    p = replace(problem_of(shared_sim, 16, 24, 8), beta=1.0, result="float32", bias_dtype="bfloat16", batch=2)
    array = replace(p.c, **{"row": 32, "col": 1, "batch": 1024, **strides})
    p = replace(p, c=array, residual=array, bias=replace(array, row=0) if array.col == 1 else array)
    assert epilogue_constants(p)[2:] == (kind, bias, kind)
    turned = {"kAdjacentRows": "kColumnPairs", "kAnyArray": "kAnyArray"}.get(kind, "kAdjacentRows")
    assert epilogue_constants(p.turned)[2] == turned
    odd = {"kColumnPairs": "kAdjacentColumns", "kBiasPairs": "kBiasPerColumn"}
    odd_kind, odd_bias = (odd.get(each, each) for each in (kind, bias))
    assert epilogue_constants(replace(p, n=23))[2:] == (odd_kind, odd_bias, odd_kind)


@some_forms
def test_the_residual_may_be_the_output(device: cudakit.Device, tile: Any) -> None:
    layouts = (contiguous((200, 328), 0, "float16"), contiguous((328, 72), 0, "float16"))
    residual = contiguous((200, 72), 0, "float16")
    options = {"added": "residual", "activation": "relu"}
    expect(device, own(tile), Case((*layouts, residual), Integers(), None, options, over=2))


@some_forms
def test_nothing_is_read_that_has_no_part_in_the_result(device: cudakit.Device, tile: Any) -> None:
    """C with beta of 0 is the output, which holds NaN; infinities are only in their own row and column."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((200, 328), (328, 72)))
    a[130, 7], b[11, 70] = np.inf, np.nan
    of_a, of_b = (device.array(x.astype(memory.as_dtype("bfloat16"))) for x in (a, b))
    out = device.full((200, 72), np.nan, dtype=np.float32)
    apply(replace(FAMILY, variants=(own(tile),)), (of_a, of_b), out, "own", None, {"beta": 0.0})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out.numpy(), a @ b)


# The family's own problems and calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.long
def test_any_problem_is_right(device: cudakit.Device, variant: Variant[Any]) -> None:
    """All layouts, epilogues and dtypes that the family draws; test_kernels.py draws fewer."""
    check_variant(device, FAMILY, variant, cases_of(FAMILY, variant, 4_000), examples=150)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("k", "lead", "gap"),
    [(1096, 0, 8), (1091, 0, 0), (1096, 1, 7), pytest.param(1096, 0, 3, marks=pytest.mark.long)],
)
def test_later_calls_use_their_own_arrays_and_numbers(
    device: cudakit.Device, variant: Variant[Any], k: int, lead: int, gap: int
) -> None:
    """The second and later calls of a kind reuse the launches of the first: the maps have new addresses, and alpha,
    beta and scale new values."""
    if (variant is tiles and k % 8) or (variant is not packed_tiles and (lead or gap % 8)):
        pytest.skip("the kernel cannot load the operand")
    m, n = 72, 40
    wide = [device.array(Integers(seed)((m + 1, k + lead + gap)).astype(np.float16)) for seed in range(3)]
    columns_of = [device.array(Integers(seed)((k, n)).astype(np.float16)) for seed in (4, 5, 6)]
    first = Integers(7)((m, n))
    for call, (alpha, beta, scale) in enumerate(
        [(1.0, 2.0, 2.0), (0.5, 2.0, 2.0), (0.5, -1.0, 4.0), (-0.0, 1.0, 2.0), (2.0, 0.0, 1.0), (-1.0, 0.0, 1.0)]
    ):
        a, b = wide[call % 3][:m, lead : lead + k], columns_of[call % 3]
        c = device.array(first)
        ops.gemm(a, b, c, alpha=alpha, beta=beta, scale=scale, variant=variant.name)
        exact = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
        np.testing.assert_array_equal(c.numpy(), scale * (alpha * exact + (beta * first if beta else 0)))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_later_call_with_an_unaligned_operand(device: cudakit.Device, variant: Variant[Any]) -> None:
    """The launch of an aligned operand is not reused for one at an odd place."""
    a, b = Integers()((72, 144)).astype(np.float16), Integers(2)((144, 24)).astype(np.float16)
    of_a, of_b = device.array(a), device.array(b)
    for first in (0, 8, 1, 0, 3):
        if variant is not packed_tiles and first % 8:
            with pytest.raises(cudakit.UnsupportedVariant, match=r"A begins at a multiple of 2 bytes .* pass variant"):
                ops.gemm(of_a[:, first : first + 128], of_b[first : first + 128], variant=variant.name)
            continue
        made = ops.gemm(of_a[:, first : first + 128], of_b[first : first + 128], variant=variant.name)
        exact = a[:, first : first + 128].astype(np.float32) @ b[first : first + 128].astype(np.float32)
        np.testing.assert_array_equal(made.numpy(), exact.astype(np.float16))


@pytest.mark.parametrize(
    "variant",
    [own(NARROW), own(WAYS[0]), own(WAYS[2]), gemv_cluster],
    ids=["tiles", "one launch", "partial sums", "gemv_cluster"],
)
def test_a_product_of_the_result_of_the_kernel_before(device: cudakit.Device, variant: Variant[Any]) -> None:
    """All are launched before that kernel ends, and must wait for it."""
    family = replace(FAMILY, variants=(variant,))
    a, b = Integers(1, 1)((8, 384)).astype(np.float16), Integers(2, 1)((384, 384)).astype(np.float16)
    stream = device.stream()
    left, right = device.array(a, stream=stream), device.array(b, stream=stream)
    once, twice = (device.zeros((8, 384), np.float16, stream=stream) for _ in range(2))
    for x, y in ((left, once), (once, twice)):
        apply(family, (x, right), y, variant.name, stream, {})
    exact = (a.astype(np.float32) @ b.astype(np.float32)) @ b.astype(np.float32)
    np.testing.assert_array_equal(twice.numpy(stream=stream), exact.astype(np.float16))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("k", quick([128, 1088, 1091], 1088, 1091))
def test_a_captured_product_is_replayed_with_new_data(device: cudakit.Device, variant: Variant[Any], k: int) -> None:
    """1088, 1091: partial sums, or packed operands, are in scratch memory."""
    m, n = 24, 40
    if variant is tiles and k % 8:
        pytest.skip("tensor copies cannot read the operands")
    stream = device.stream()
    a, b, out = (device.array(np.ones(shape, np.float16), stream=stream) for shape in ((m, k), (k, n), (m, n)))
    ops.gemm(a, b, out, variant=variant.name, stream=stream)
    with stream.capture() as captured:
        ops.gemm(a, b, out, alpha=2.0, variant=variant.name, stream=stream)
    graph = captured.instantiate()
    for seed in (1, 2):
        hosts = [Integers(seed, 1)(shape).astype(np.float16) for shape in ((m, k), (k, n))]
        a.copy_from(hosts[0], stream=stream)
        b.copy_from(hosts[1], stream=stream)
        graph.launch(stream)
        exact = 2 * (hosts[0].astype(np.float32) @ hosts[1].astype(np.float32))
        np.testing.assert_array_equal(out.numpy(stream=stream), exact.astype(np.float16))


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("batched", ["both", "a", "neither"])
def test_packed_operands(device: cudakit.Device, gap: int, batched: str) -> None:
    """Neither operand, or both of them, can be read by tensor copies; each of several matrices is packed."""
    m, n, k = 130, 70, 131
    a, b = (3, m, k) if batched != "neither" else (m, k), (3, k, n) if batched == "both" else (k, n)
    layouts = []
    for shape in (a, b):
        pitch = shape[-1] + gap
        strides = (shape[-2] * pitch, pitch, 1)[-len(shape) :]
        layouts.append(Layout(shape, strides, gap, "bfloat16"))
    out = contiguous((*a[:-2], m, n), 0, "bfloat16")
    expect(device, replace(packed_tiles, rounding=0.0), Case(tuple(layouts), Integers(most=1), out))
