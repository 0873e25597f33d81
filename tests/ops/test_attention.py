"""Attention: masks, lengths, grouped heads, layouts and special values in each variant, compared with a float64
reference defined here."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.compare import within
from cudakit.families import attention_host
from cudakit.families.attention import FAMILY, FLASH_TILES, AttentionProblem
from cudakit.memory import array as memory

VARIANTS = [variant.name for variant in FAMILY]
INF, NAN = np.inf, np.nan


def attention64(q, k, v, causal=False, scale=None):
    """Return the result by the definition, one query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    for b, h, i in np.ndindex(*q.shape[:3]):
        last = i + k.shape[2] - q.shape[2] if causal else k.shape[2] - 1
        keys, values = (x[b, h * k.shape[1] // q.shape[1], : last + 1] if last >= 0 else x[0, 0, :0] for x in (k, v))
        if not len(keys):
            continue
        with np.errstate(all="ignore"):
            scores = keys @ q[b, h, i] * factor
            weights = np.exp(scores - np.fmax.reduce(scores))
            out[b, h, i] = weights / weights.sum() @ values
    return out


def draw(shape, dtype="float32", seed=1):
    batches, heads, key_heads, sq, skv, d = shape
    rng = np.random.default_rng(seed)
    sizes = ((batches, heads, sq, d), (batches, key_heads, skv, d), (batches, key_heads, skv, d))
    return [rng.standard_normal(size).astype(memory.as_dtype(dtype)) for size in sizes]


def dtype_of(variant: str) -> str:
    return "float16" if variant in ("tensor_cores", "flash") else "float32"


def run(device, host, variant="auto", **options):
    return ops.attention(*(device.array(x) for x in host), variant=variant, **options).numpy().astype(np.float64)


def check(device, host, variant="auto", **options):
    got = run(device, host, variant, **options)
    bound = {"float32": 3e-6, "float16": 3e-3, "bfloat16": 2e-2}[host[0].dtype.name]
    np.testing.assert_allclose(got, attention64(*host, **options), rtol=bound, atol=bound)
    return got


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1, 32),
        (2, 3, 1, 17, 33, 32),  # one key head for three query heads
        (1, 4, 2, 65, 64, 64),  # two key heads for four query heads
        (1, 1, 1, 129, 130, 40),  # no variant has a tile of this head size
        (1, 1, 1, 3, 200, 96),
        (1, 1, 1, 70, 5, 256),
    ],
)
def test_every_rung_is_the_definition(device: cudakit.Device, variant: str, shape) -> None:
    host = draw(shape, dtype_of(variant))
    check(device, host, variant)
    check(device, host, variant, causal=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_causal_limit_is_aligned_at_the_last_query_and_key(device: cudakit.Device, variant: str) -> None:
    q, k, v = draw((1, 1, 1, 3, 70, 32), dtype_of(variant))
    whole = check(device, (q, k, v), variant)
    more = check(device, (q, k, v), variant, causal=True)
    np.testing.assert_array_equal(more[..., 2, :], whole[..., 2, :])  # the last of 3 queries sees all 70 keys...
    first = check(device, (q[..., :1, :], k[..., :68, :], v[..., :68, :]), variant)
    np.testing.assert_allclose(more[..., 0, :], first[..., 0, :], atol=2e-3)  # ...and the first query sees 68 of them

    q, k, v = draw((1, 2, 1, 150, 20, 32), dtype_of(variant))
    fewer = check(device, (q, k, v), variant, causal=True)
    np.testing.assert_array_equal(fewer[..., :130, :], 0)  # with 20 keys the first 130 queries see none
    np.testing.assert_allclose(fewer[..., 130, :], v[:, :, 0].astype(np.float64).repeat(2, 1), atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(device: cudakit.Device, variant: str, dtype: str) -> None:
    check(device, draw((1, 2, 1, 40, 90, 64), dtype), variant, causal=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_scores_pick_one_value(device: cudakit.Device, variant: str) -> None:
    """Scores reach 6e4, so their exponentials overflow unless the maximum is subtracted. One key has the whole weight:
    the result is its value, up to the rounding of the probability to half precision."""
    rng = np.random.default_rng(4)
    chosen = rng.integers(0, 200, 50)
    k = rng.integers(-3, 4, (1, 1, 200, 32))
    k[0, 0, :, 0] = np.arange(200) % 8  # neighbouring keys differ
    k[0, 0, :, 1] = np.arange(200) // 8
    keys = k / np.linalg.norm(k, axis=-1, keepdims=True)
    q = keys[:, :, chosen] * 245
    v = rng.integers(-8, 9, (1, 1, 200, 32))
    host = [x.astype(dtype_of(variant)) for x in (q, keys * 245, v)]
    scores = host[0][0, 0].astype(np.float64) @ host[1][0, 0].astype(np.float64).T
    two = np.sort(scores, axis=-1)[:, -2:]
    assert (two[:, 1] - two[:, 0]).min() > 150
    assert scores.max() > 5e4
    rounding = 2**-10 if host[0].dtype == np.float16 else 0
    got = run(device, host, variant, scale=1.0)[0, 0]
    np.testing.assert_allclose(got, v[0, 0, scores.argmax(-1)], rtol=rounding, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [0.3, 1.5, -0.3, -1.5])
def test_maxima_that_rise_and_fall(device: cudakit.Device, variant: str, step: float) -> None:
    """Each tile raises the running maximum slightly, by a lot, or not at all, for either order of the keys."""
    q, k, v = draw((1, 1, 1, 20, 300, 32), "float32", 5)
    q[..., 0], k[..., 0] = 1, np.arange(300) * step
    q[..., 1:] *= 0.1
    host = [x.astype(dtype_of(variant)) for x in (q, k, v)]
    got = run(device, host, variant, scale=0.25)
    assert FAMILY.judge(got, host, scale=0.25).ok


@pytest.mark.parametrize("variant", VARIANTS)
def test_hard_values_reach_what_they_should(device: cudakit.Device, variant: str) -> None:
    q, k, v = draw((1, 2, 2, 40, 70, 32), dtype_of(variant))
    q[0, 0, 3, 5] = NAN  # affects this query only
    q[0, 0, 4, 5] = INF  # scores of +inf and -inf
    k[0, 0, 60, 2] = NAN  # affects each query that sees the key: all, or if causal those from the 31st on
    k[0, 1, :, 1] = -INF  # head 1: all scores are -inf if q[..., 1] is positive, +inf if it is negative
    v[0, 0, 20, 7] = NAN  # affects one column of every query
    for causal in (False, True):
        got, want = run(device, (q, k, v), variant, causal=causal), attention64(q, k, v, causal=causal)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        assert np.isnan(got).any(axis=-1).all()
    k[0, 1, :, 1] = np.where(np.arange(70) % 64 < 60, -INF, 1.0)  # the first tiles are all -inf, later keys are not
    q[0, 1, :, 1] = 1
    for causal in (False, True):
        got, want = run(device, (q, k, v), variant, causal=causal)[0, 1], attention64(q, k, v, causal=causal)[0, 1]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, atol=3e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layouts(device: cudakit.Device, variant: str) -> None:
    """Views of (batch, length, head, d) arrays, rows with gaps, and heads that share one set of keys by stride 0."""
    q, k, v = draw((2, 3, 3, 20, 37, 32), dtype_of(variant))
    want = attention64(q, k, v)
    there = [device.array(np.ascontiguousarray(x.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3) for x in (q, k, v)]
    out = device.zeros((2, 20, 3, 32), q.dtype)
    ops.attention(*there, out=out.transpose(0, 2, 1, 3), variant=variant)
    np.testing.assert_allclose(out.numpy().transpose(0, 2, 1, 3), want, atol=3e-3)
    gaps = [
        device.array(np.pad(x, ((0, 0), (0, 0), (0, 0), (8, 16)), constant_values=NAN))[..., 8:40] for x in (q, k, v)
    ]
    np.testing.assert_allclose(ops.attention(*gaps, variant=variant).numpy(), want, atol=3e-3)


@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
@pytest.mark.parametrize("shape", [(0, 1, 1, 4, 4, 32), (1, 0, 0, 4, 4, 32), (1, 2, 1, 0, 4, 32), (1, 2, 1, 4, 0, 32)])
def test_empty_problems(device: cudakit.Device, variant: str, shape) -> None:
    """No queries: an empty output. No keys: zeros."""
    host = draw(shape, "float16")
    out = device.full(host[0].shape, 7, dtype=np.float16)
    ops.attention(*(device.array(x) for x in host), out=out, variant=variant)
    np.testing.assert_array_equal(out.numpy(), 0)


def test_auto_is_the_highest_rung_that_takes_the_problem(device: cudakit.Device) -> None:
    def chosen(dtype, lead=0):
        buffer = device.zeros((4096,), memory.as_dtype(dtype))
        x = buffer[lead : lead + 1024].reshape(1, 1, 32, 32)
        out = device.zeros((1, 1, 32, 32), memory.as_dtype(dtype))
        return FAMILY.choose(FAMILY.problem_of((x, x, x), out), device.arch)

    assert [chosen("float32"), chosen("bfloat16"), chosen("float16", 1)] == ["online", "flash", "tensor_cores"]


@pytest.mark.parametrize("heads", [1, 3, 5])
@pytest.mark.parametrize("section", [1, 2, 100])
def test_heads_that_advance_together(monkeypatch, device: cudakit.Device, heads: int, section: int) -> None:
    """Any number of heads may share the L2 at a time; the last group may be smaller."""
    host = draw((1, heads, heads, 150, 40, 32), "float16")
    module = sys.modules["cudakit.families.attention"]  # the package has the function under this name
    monkeypatch.setattr(module, "SHARED_KEYS", section * 2 * 40 * 32 * 2)
    check(device, host, "flash", causal=True)


def test_flash_reads_shared_memory_without_conflicts(sim: cudakit.Device) -> None:
    for d in FLASH_TILES:  # including the tile used on an H200
        host = [sim.array(x) for x in draw((1, 1, 1, 128, 128, d), "float16")]
        with sim.counters() as counters:
            ops.attention(*host, variant="flash")
            sim.default_stream.synchronize()
        (counted,) = counters.values()
        assert counted.as_dict()["bank_conflicts"] == 0, d


def test_refusals_name_what_was_wrong(device: cudakit.Device) -> None:
    def zeros(*shape, dtype=np.float16):
        return device.zeros(shape, dtype)

    q, k = zeros(2, 4, 16, 32), zeros(2, 2, 20, 32)
    wrong = [
        ((q, k, zeros(2, 2, 20, 32, dtype=np.float32)), {}, "of one dtype"),
        ((zeros(2, 2, 8, 32, dtype=np.float64),) * 3, {}, "float32, float16, bfloat16; got float64"),
        ((q[0], k[0], k[0]), {}, r"shape \(batch, heads, length, d\)"),
        ((q, k, zeros(2, 2, 21, 32)), {}, "k and v of one shape"),
        ((q, zeros(2, 3, 20, 32), zeros(2, 3, 20, 32)), {}, "got 4 query heads and 3 key heads"),
        ((zeros(1, 1, 4, 12),) * 3, {}, "multiples of 8, got 12: pad"),
        ((zeros(1, 1, 4, 264),) * 3, {}, "8 to 256"),
        (
            (q.transpose(0, 1, 3, 2)[..., :8],) + (zeros(2, 2, 20, 8),) * 2,
            {},
            "last axis is contiguous, q has a stride of 32",
        ),
        ((q, k, k), {"out": zeros(2, 4, 16, 40)}, "shape of q"),
        ((q, q, q), {"out": q}, "overlaps q"),
        ((q, k, k), {"scale": -1.0}, "positive finite scale, got -1.0: for a negative scale, negate q"),
        ((q, k, k), {"scale": NAN}, "positive finite scale"),
    ]
    for arrays, options, words in wrong:
        with pytest.raises(ValueError, match=words):
            ops.attention(*arrays, **options)
    single = [device.zeros(x.shape, np.float32) for x in (q, k, k)]
    for variant in ("flash", "tensor_cores"):
        with pytest.raises(cudakit.UnsupportedVariant, match="not float32"):
            ops.attention(*single, variant=variant)
    with pytest.raises(cudakit.UnsupportedVariant, match="start on a 16-byte boundary"):
        ops.attention(*(zeros(2, 2, 8, 40)[..., 1:33] for _ in range(3)), variant="flash")
    long = zeros(1, 1, 8000, 32)
    with pytest.raises(cudakit.UnsupportedVariant, match="8000 keys need"):
        ops.attention(long[:, :, :1], long, long, variant="fused_rows")


def test_the_first_rung_says_where_its_scores_do_not_fit() -> None:
    strides = ((0, 0, 8),) * 4
    problem = AttentionProblem(64, 16, 16, 16384, 16384, 8, strides, 16, "float16", False, 1.0, 232448)
    assert "bytes of scratch memory" in str(FAMILY["three_passes"].refusal(problem, "sm_90"))


@pytest.mark.parametrize("drawn", [0, 1 << 40])
def test_the_host_knows_heads_that_come_again(monkeypatch, drawn: int) -> None:
    monkeypatch.setattr(attention_host, "DRAWN_WORK", drawn)
    monkeypatch.setattr(attention_host, "_BLOCK", 1000)
    dtype = memory.as_dtype("bfloat16")
    host = FAMILY.inputs_for((3, 4, 2, 50, 70, 32), dtype, np.random.default_rng(1))
    assert [x.shape for x in host] == [(3, 4, 50, 32), (3, 2, 70, 32), (3, 2, 70, 32)]
    assert len({keys.tobytes() for keys in host[1].reshape(6, -1)}) == (6 if drawn else 2)
    exact = FAMILY.exact(host, causal=True)
    np.testing.assert_allclose(exact, attention64(*host, causal=True), rtol=1e-12, atol=1e-15)
    rounding = FAMILY.allowed(exact, host, causal=True)
    assert 1e-4 < rounding.max() < 3e-2
    assert within(FAMILY.baseline_of(host, causal=True), exact, rounding).ok


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="BATCHxHEADSxKEY_HEADSxQUERIESxKEYSxD"):
        FAMILY.inputs_for((4, 4), np.dtype(np.float32), np.random.default_rng(1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_offsets_past_two_to_the_31(roomy: cudakit.Device, variant: str) -> None:
    """Rows are 2^26 elements apart, so the last rows begin past 2^32 elements."""
    apart, rows, dtype = 2**26, 70, dtype_of(variant)
    if roomy.memory_info()[0] < 2 * rows * apart * np.dtype(dtype).itemsize:
        pytest.skip("the GPU has too little free memory for rows 256 MiB apart")
    buffer = roomy.empty((rows * apart,), np.dtype(dtype))
    host = draw((1, 1, 1, rows, rows, 32), dtype)
    views = [buffer.reshape(1, 1, rows, apart)[..., at : at + 32] for at in (0, 64, 128, 192)]
    for view, values in zip(views, host, strict=False):
        view.copy_from(values)
    for causal in (False, True):
        with pytest.raises(ValueError, match="overlaps"):  # the output is interleaved with the inputs
            ops.attention(*views[:3], out=views[3], variant=variant)
        got = ops.attention(*views[:3], variant=variant, causal=causal).numpy()
        np.testing.assert_allclose(got, attention64(*host, causal=causal), atol=3e-3)
    target = buffer.reshape(1, 1, rows, apart)[..., :32]
    ops.attention(*(roomy.array(x) for x in host), out=target, variant=variant)
    np.testing.assert_allclose(target.numpy(), attention64(*host), atol=3e-3)
    buffer.close()


@pytest.mark.parametrize("arch", ["sm_75", "sm_86"])
@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_chips_with_less_shared_memory(arch: str, d: int, dtype: str) -> None:
    with cudakit.Device(f"sim:{arch}", fresh=True) as device:
        check(device, draw((1, 1, 1, 20, 70, d), dtype), causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_torch_tensors(gpu: cudakit.Device, causal: bool) -> None:
    """With as many keys as queries, torch's mask, which is aligned at the first query and key, is the same as ours."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.randn(2, 300, 4, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    got = ops.attention(q, k[:, :2], v[:, :2], causal=causal)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k[:, :2].repeat_interleave(2, 1).float(), v[:, :2].repeat_interleave(2, 1).float(), is_causal=causal
    )
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


# ---- lengths per batch entry ----

WITH_LENGTHS = ["online", "flash"]


def each_entry(host, lengths, **options):
    """Return the definition's result for each batch entry alone, in an output of zeros."""
    out = np.zeros(host[0].shape)
    for entry, (sq, skv) in enumerate(lengths):
        q, k, v = (x[entry : entry + 1, :, :n] for x, n in zip(host, (sq, skv, skv), strict=True))
        out[entry, :, :sq] = attention64(q, k, v, **options)[0]
    return out


@pytest.mark.parametrize("variant", WITH_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_each_batch_entry_has_its_own_lengths(device: cudakit.Device, variant: str, causal: bool) -> None:
    """Grouped heads; more and fewer keys than queries, none of one or both. Rows past the lengths are NaN."""
    lengths = [(70, 150), (150, 70), (1, 64), (0, 9), (33, 0), (129, 129)]
    host = draw((6, 4, 2, 150, 150, 32), dtype_of(variant))
    for array, column in zip(host, (0, 1, 1), strict=True):
        for entry, own in enumerate(lengths):
            array[entry, :, own[column] :] = NAN
    pairs = device.array(np.array(lengths, np.int32))
    got = run(device, host, variant, causal=causal, lengths=pairs)
    want = each_entry(host, lengths, causal=causal)
    np.testing.assert_allclose(got, want, rtol=3e-3, atol=3e-3)
    assert FAMILY.judge(got.astype(host[0].dtype), (*host, pairs.numpy()), causal=causal).ok


@pytest.mark.parametrize("variant", WITH_LENGTHS)
def test_one_length_counts_queries_and_keys(device: cudakit.Device, variant: str) -> None:
    """Every second element of an array, one of them too large and one negative."""
    host = draw((3, 2, 2, 40, 40, 32), dtype_of(variant))
    given = device.array(np.array([17, 5, 1000, 5, -3, 5], np.int32))[::2]
    got = run(device, host, variant, causal=True, lengths=given)
    np.testing.assert_allclose(got, each_entry(host, [(17, 17), (40, 40), (0, 0)], causal=True), atol=3e-3)


@pytest.mark.parametrize("variant", WITH_LENGTHS)
def test_queries_past_the_lengths_are_0_even_if_a_key_is_infinite(device: cudakit.Device, variant: str) -> None:
    host = draw((1, 1, 1, 20, 20, 32), dtype_of(variant))
    host[1][0, 0, 2, 5] = INF
    got = run(device, host, variant, lengths=device.array(np.array([7], np.int32)))
    assert np.isnan(got[0, 0, :7]).any()
    np.testing.assert_array_equal(got[0, 0, 7:], 0)


def test_lengths_that_are_refused(device: cudakit.Device) -> None:
    q = device.zeros((2, 1, 16, 32), np.float16)
    for wrong in (np.zeros(2, np.int64), np.zeros(3, np.int32), np.zeros((2, 3), np.int32)):
        with pytest.raises(ValueError, match=r"lengths of int32 and shape \(2,\), or \(2, 2\)"):
            ops.attention(q, q, q, lengths=device.array(wrong))
    for variant in set(VARIANTS) - set(WITH_LENGTHS):
        with pytest.raises(cudakit.UnsupportedVariant, match="by online and flash only"):
            ops.attention(q, q, q, lengths=device.array(np.zeros(2, np.int32)), variant=variant)


def test_blocks_past_the_lengths_load_nothing(sim: cudakit.Device) -> None:
    """A batch entry of an eighth of the length costs less than a fifth of the loads."""
    host = [sim.array(x) for x in draw((1, 1, 1, 512, 512, 32), "float16")]

    def loads(length: int) -> int:
        with sim.counters() as counters:
            ops.attention(*host, lengths=sim.array(np.array([length], np.int32)), variant="flash")
            sim.default_stream.synchronize()
        (counted,) = counters.values()
        return counted.global_load_sectors

    assert loads(64) * 5 < loads(512)
