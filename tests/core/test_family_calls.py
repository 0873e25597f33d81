"""Calls of a declared family: given outputs, and shapes and options that it does not support."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cudakit import nvtx
from cudakit.family import Family, Launch, ceil_div

SOURCE = """
__global__ void split(const float* x, const float* y, float* low, float* high, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        low[i] = fminf(x[i], y[i]);
        high[i] = fmaxf(x[i], y[i]);
    }
}
__global__ void scaled(const float* x, const float* y, float* out, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
__global__ void fused(const float* x, const float* y, float* out, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaf(a, x[i], y[i]);
}
"""
INPUTS = {"x": "float32[n]", "y": "float32[n]"}


def launch(p):
    return Launch(ceil_div(p.n, 64), 64)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "calls.cu"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def split(source):
    outputs = {"low": "float32[n]", "high": "float32[n]"}
    family = Family("split", lambda x, y: (np.minimum(x, y), np.maximum(x, y)), inputs=INPUTS, outputs=outputs)
    family.variant(source, name="split")(launch)
    return family


@pytest.fixture
def scaled(source):
    family = Family("scaled", lambda x, y, *, a=1.0: a * x + y, inputs=INPUTS)
    family.variant(source, name="scaled")(launch)
    return family


@pytest.fixture
def arrays(sim):
    rng = np.random.default_rng(1)
    return [sim.array(rng.standard_normal(100, dtype=np.float32)) for _ in range(2)]


def test_several_outputs_may_be_given(sim, split, arrays):
    x, y = arrays
    out = sim.zeros(100, np.float32), sim.zeros(100, np.float32)
    for _ in range(2):
        assert split(x, y, out=out) is out
        np.testing.assert_array_equal(out[0].numpy(), np.minimum(x.numpy(), y.numpy()))
        np.testing.assert_array_equal(out[1].numpy(), np.maximum(x.numpy(), y.numpy()))
        x, y = y, x
    with pytest.raises(ValueError, match="has 2 outputs, got 1"):
        split(x, y, out=out[0])
    with pytest.raises(ValueError, match="overlaps low"):
        split(x, y, out=(out[0], out[0]))


def test_one_output_takes_no_tuple_of_two(sim, scaled, arrays):
    out = sim.zeros(100, np.float32), sim.zeros(100, np.float32)
    with pytest.raises(ValueError, match="has 1 output, got 2"):
        scaled(*arrays, out=out)


def test_what_a_family_does_not_take_is_no_error_of_its_reference(scaled, arrays):
    x, y = arrays
    with pytest.raises(ValueError, match=r"y is declared as float32\[n\], and n is 100 by x; got \(50,\)"):
        scaled(x, y[:50])
    with pytest.raises(TypeError, match="scaled has no option 'b'; it has a"):
        scaled(x, y, b=2.0)


def test_auto_means_a_variant_that_is_added_after_a_call(sim, source, scaled, arrays):
    with nvtx.trace() as trace:
        scaled(*arrays)
        scaled(*arrays)
        scaled.variant(source, name="fused")(launch)
        scaled(*arrays)
        scaled(*arrays)
    ran = [span.name for span in trace.spans if span.name.startswith("scaled.")]
    assert ran == ["scaled.scaled"] * 2 + ["scaled.fused"] * 2


def test_a_family_that_is_declared_again_runs_the_edited_source(sim, source, arrays):
    """As if a notebook cell were edited and run again, on a device that stays open."""
    x, y = arrays
    for sign in ("+", "-"):
        Path(source).write_text(SOURCE.replace("a * x[i] + y[i]", f"a * x[i] {sign} y[i] "))
        family = Family("scaled", lambda x, y, *, a=1.0: a * x + y, inputs=INPUTS)
        family.variant(source, name="scaled")(launch)
        got = family(x, y).numpy()
        np.testing.assert_array_equal(got, x.numpy() + y.numpy() if sign == "+" else x.numpy() - y.numpy())


def test_calls_may_differ_in_which_options_they_give(source, arrays):
    x, y = arrays
    family = Family("scaled", lambda x, y, *, a=1, b=0: (a + b) * x + y, inputs=INPUTS)

    def shifted(p):
        return Launch(ceil_div(p.n, 64), 64, args=(p.x, p.y, p.out, float(p.a + p.b), p.n))

    family.variant(source, name="scaled")(shifted)
    for options, factor in (
        ({"a": 2}, 2),
        ({"b": 2}, 3),
        ({"a": 4}, 4),
        ({}, 1),
        ({"a": 2}, 2),
        ({"b": 2}, 3),
    ):
        for _ in range(2):
            np.testing.assert_allclose(family(x, y, **options).numpy(), factor * x.numpy() + y.numpy(), atol=1e-5)
