"""cuFFT, or numpy on the simulated device: the same transforms on both devices compared with numpy's, and rejected
calls."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit.libs import blas, calls, fft

EPS = {"complex64": 2.0**-23, "complex128": 2.0**-52, "float32": 2.0**-23, "float64": 2.0**-52}
REAL = {"complex64": "float32", "complex128": "float64"}


def numbers(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape)).astype(dtype) if dtype[0] == "c" else values.astype(dtype)


def near(got: np.ndarray, exact: np.ndarray, dtype: str) -> None:
    """Check the error against the root mean square of the result: a transform's stages spread each rounding error over
    all elements."""
    size = np.sqrt(np.mean(np.abs(exact) ** 2)) + 1e-30
    assert got.shape == exact.shape
    assert np.abs(got - exact).max() <= 40 * EPS[dtype] * size


SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
NORMS = st.sampled_from(["backward", "ortho", "forward", None])


@given(shape=SHAPES, axes=st.integers(1, 3), dtype=st.sampled_from(sorted(REAL)), norm=NORMS, in_place=st.booleans())
def test_complex_transforms_are_numpys(
    device: Any, shape: tuple[int, ...], axes: int, dtype: str, norm: Any, in_place: bool
) -> None:
    axes = min(axes, len(shape))
    last = tuple(range(-axes, 0))
    x = numbers(shape, dtype)
    wide = x.astype(np.complex128)
    size = np.prod(shape[-axes:])
    ours = device.array(x)
    out = fft.fft(ours, axes, ours if in_place else None, norm=norm)
    assert (out is ours) == in_place
    near(out.numpy(), np.fft.fftn(wide, axes=last, norm=norm or "backward"), dtype)
    ours = device.array(x)
    back = fft.ifft(ours, last, ours if in_place else None, norm=norm)
    near(back.numpy(), np.fft.ifftn(wide, axes=last, norm=norm or "backward") * (1 if norm else size), dtype)


@given(shape=SHAPES, axes=st.integers(1, 3), dtype=st.sampled_from(sorted(REAL)), norm=NORMS)
def test_real_transforms_are_numpys(device: Any, shape: tuple[int, ...], axes: int, dtype: str, norm: Any) -> None:
    axes = min(axes, len(shape))
    last = tuple(range(-axes, 0))
    x = numbers(shape, REAL[dtype])
    wide = x.astype(np.float64)
    exact = np.fft.rfftn(wide, axes=last, norm=norm or "backward")
    near(fft.rfft(device.array(x), axes, norm=norm).numpy(), exact, dtype)
    terms = device.array(exact.astype(dtype))
    before = terms.numpy()
    back = fft.irfft(terms, axes, n=shape[-1], norm=norm)
    near(back.numpy(), wide * (1 if norm else np.prod(shape[-axes:])), REAL[dtype])
    assert np.array_equal(terms.numpy(), before)  # the input is unchanged, though cuFFT itself overwrites it


def test_the_result_of_irfft_is_even_unless_said_otherwise(device: Any) -> None:
    x = numbers((2, 9), "float32")
    terms = fft.rfft(device.array(x))
    assert fft.irfft(terms).shape == (2, 8)
    out = device.empty((2, 9))
    assert fft.irfft(terms, out=out) is out
    near(out.numpy(), x, "float32")
    with pytest.raises(ValueError, match=r"must have 6 terms on its last axis .*got 5"):
        fft.irfft(terms, n=10)


def test_nothing_to_transform(device: Any) -> None:
    assert fft.fft(device.empty((0, 8), "complex64")).shape == (0, 8)
    assert fft.rfft(device.empty((0, 8), "float32")).shape == (0, 5)
    with pytest.raises(ValueError, match="no elements"):
        fft.fft(device.empty((4, 0), "complex64"))


# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_plan_is_unscaled_and_reusable(device: Any) -> None:
    x = numbers((5, 4, 6), "complex64")
    with fft.Plan(device, (4, 6), batch=5) as plan, device.array(x) as a, device.empty_like(x) as b:
        for _ in range(2):
            assert plan.forward(a, b) is b
            near(b.numpy(), np.fft.fft2(x), "complex64")
        near(plan.inverse(b, b).numpy(), 24 * x, "complex64")
        assert plan.forward(a).shape == (5, 4, 6)


def test_a_plan_of_real_numbers_writes_over_its_input_on_the_way_back(device: Any) -> None:
    x = numbers((3, 4, 6), "float64")
    forward = fft.Plan(device, (4, 6), "R2C", batch=3, dtype="complex128")
    back = fft.Plan(device, (4, 6), "C2R", batch=3, dtype="complex128")
    terms = forward.forward(device.array(x))
    near(terms.numpy(), np.fft.rfft2(x), "complex128")
    near(back.inverse(terms).numpy(), 24 * x, "float64")
    if device.kind == "sim":
        assert np.isnan(terms.numpy()).all()
    theirs = cudakit.memory.array.DeviceArray(
        terms.allocation, terms.pointer, terms.shape, terms.strides, terms.dtype, readonly=True
    )
    with pytest.raises(ValueError, match="read-only"):
        back.inverse(theirs)
    fft.irfft(theirs, 2)  # transforms a copy
    with pytest.raises(ValueError, match="use inverse"):
        back.forward(terms)
    with pytest.raises(ValueError, match="use forward"):
        forward.inverse(terms)


def over_itself(device: Any) -> Any:
    x = device.zeros(12, "complex64")
    return fft.fft(x[:8], out=x[4:])


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "kind": (lambda d: fft.Plan(d, 8, "C2X"), ValueError, "C2C, R2C and C2R"),
    "half": (lambda d: fft.Plan(d, 8, dtype="float16"), ValueError, "float16"),
    "four axes": (lambda d: fft.Plan(d, (2, 2, 2, 2)), ValueError, "1 to 3 axes"),
    "none": (lambda d: fft.Plan(d, (2, 0)), ValueError, "none empty"),
    "no batch": (lambda d: fft.Plan(d, 2, batch=0), ValueError, "1 or more"),
    "shape": (lambda d: fft.Plan(d, 8).forward(d.zeros(9, "complex64")), ValueError, r"shape \(9,\).*needs \(8,\)"),
    "batch": (lambda d: fft.Plan(d, 8, batch=3).forward(d.zeros((2, 8), "complex64")), ValueError, r"3 of \(8,\)"),
    "dtype": (lambda d: fft.Plan(d, 8).forward(d.zeros(8, "complex128")), TypeError, "complex128"),
    "real for complex": (lambda d: fft.fft(d.zeros(8)), TypeError, r"complex64 or complex128 .*got float32"),
    "complex for real": (lambda d: fft.rfft(d.zeros(8, "complex64")), TypeError, "float32 or float64"),
    "gaps": (lambda d: fft.fft(d.zeros((4, 8), "complex64")[:, ::2]), ValueError, r"copy\(\) it"),
    "transposed": (lambda d: fft.fft(d.zeros((4, 8), "complex64").T), ValueError, r"copy\(\) it"),
    "first axis": (lambda d: fft.fft(d.zeros((4, 8), "complex64"), (0,)), ValueError, "the last ones"),
    "too many axes": (lambda d: fft.fft(d.zeros(8, "complex64"), 2), ValueError, r"axes must be at most 1, .*got 2"),
    "no axes": (lambda d: fft.fft(d.zeros(8, "complex64"), 0), ValueError, "1 to 3"),
    "norm": (lambda d: fft.fft(d.zeros(8, "complex64"), norm="none"), ValueError, "'none'"),
    "out": (lambda d: fft.fft(d.zeros(8, "complex64"), out=d.zeros(7, "complex64")), ValueError, "out has shape"),
    "a host array": (lambda d: fft.fft(np.zeros(8, np.complex64)), TypeError, r"device\.array"),
    "unaligned": (
        lambda d: fft.fft(d.zeros(18).view(np.float32)[1:17].view("complex64")),
        ValueError,
        "must be aligned to 8 bytes",
    ),
    "partly over itself": (over_itself, ValueError, "overlap"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_before_anything_is_queued(device: Any, name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call(device)


def test_what_was_closed_is_told(device: Any) -> None:
    x = device.zeros(8, "complex64")
    plan = fft.Plan(device, 8)
    out = plan.forward(x)
    plan.forward(x, out)
    out.close()
    with pytest.raises(cudakit.Closed):
        plan.forward(x, out)
    plan.close()
    plan.close()
    with pytest.raises(cudakit.Closed, match="make a new plan"):
        plan.forward(x)
    with cudakit.Device("sim", fresh=True) as other, pytest.raises(cudakit.DeviceMismatch):
        fft.Plan(other, 8).forward(x)


# Streams and work areas -----------------------------------------------------------------------------------------------


def test_one_plan_on_two_streams_at_once_is_told(sim: Any) -> None:
    """A common mistake: one plan has one work area, and two simultaneous streams both write to it."""
    x = numbers(64, "complex64")
    with fft.Plan(sim, 64) as plan, sim.stream() as one, sim.stream() as two:
        assert plan.nbytes > 0
        a, b = (sim.array(x, stream=stream) for stream in (one, two))
        plan.forward(a, a, stream=one)
        plan.forward(b, b, stream=two)
        with pytest.raises(cudakit.CudaError, match="race between streams") as raised:
            sim.synchronize()
        assert "cufftExecC2C" in str(raised.value)
        assert "test_libs_fft.py" in str(raised.value)


def test_one_plan_on_two_streams_in_turn_is_right(device: Any) -> None:
    x = numbers(64, "complex64")
    with fft.Plan(device, 64) as plan, device.stream() as one, device.stream() as two:
        a, b = (device.array(x, stream=stream) for stream in (one, two))
        plan.forward(a, a, stream=one)
        two.wait(one)
        plan.forward(b, b, stream=two)
        near(a.numpy(one), np.fft.fft(x), "complex64")
        near(b.numpy(two), np.fft.fft(x), "complex64")
        device.synchronize()


def test_the_functions_have_a_plan_for_each_stream(device: Any) -> None:
    x = numbers((16, 64), "complex64")
    with device.stream() as one, device.stream() as two:
        a, b = (device.array(x, stream=stream) for stream in (one, two))
        for stream, array in ((one, a), (two, b), (one, a), (two, b)):
            fft.fft(array, out=array, stream=stream)
        exact = np.fft.fft(np.fft.fft(x.astype(np.complex128)))
        near(a.numpy(one), exact, "complex64")
        near(b.numpy(two), exact, "complex64")


def test_plans_are_kept_up_to_a_number_and_freed_with_their_stream(sim: Any) -> None:
    library = calls.bindings(sim, "cufft")
    with sim.stream() as stream:
        x = sim.zeros(64, "complex64", stream=stream)
        for n in (*range(1, fft.PLANS + 4), fft.PLANS + 3):
            y = x[:n].copy(stream)
            fft.fft(y, out=y, stream=stream)
        gc.collect()
        assert len(library._plans) == fft.PLANS
        x.close()
        sim.synchronize()
    gc.collect()
    assert len(library._plans) == 0


def test_nothing_that_is_kept_counts_as_a_leak_but_a_users_plan_does() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cudakit.Device("sim", fresh=True) as device, device.zeros(8, "complex64") as x:
            fft.fft(x).close()
            fft.ifft(x).close()
    with (
        pytest.warns(cudakit.LeakWarning, match="device memory of 64 bytes"),
        cudakit.Device("sim", fresh=True) as device,
    ):
        plan = fft.Plan(device, 8)
    assert plan.nbytes == 64


def test_a_stream_that_is_dropped_takes_its_plans_along(sim: Any) -> None:
    library = calls.bindings(sim, "cufft")
    stream = sim.stream()
    x = sim.zeros(8, "complex64", stream=stream)
    fft.fft(x, stream=stream).numpy(stream)
    assert len(library._plans) == 1
    del stream, x
    assert len(library._plans) == 0


@pytest.mark.parametrize("warm", [True, False], ids=["known plans", "new plans"])
def test_calls_become_part_of_a_graph_which_keeps_what_they_use(device: Any, warm: bool) -> None:
    x = numbers((3, 8, 8), "complex64")
    with device.stream() as stream:
        a, e = (device.array(x, stream=stream) for _ in range(2))
        b, c = (device.zeros(x.shape, x.dtype, stream=stream) for _ in range(2))
        length = device.zeros((), "float32", stream=stream)

        def step(right: Any, into: Any) -> None:
            blas.gemm(a, right, into, stream=stream)
            fft.fft(into, 2, into, stream=stream)
            fft.ifft(into, 2, c, stream=stream)
            blas.nrm2(c.reshape(-1), length, stream=stream)

        if warm:
            step(e, b)
        with stream.capture() as graph:
            step(e, b)
        ready = graph.instantiate()
        del b, e
        for factor in (1, 2):
            a.copy_from(factor * x, stream)
            ready.launch(stream)
            exact = factor * (x.astype(np.complex128) @ x)
            near(c.numpy(stream), exact, "complex64")
            assert length.numpy(stream) == pytest.approx(np.linalg.norm(exact), rel=1e-5)
        ready.close()
        graph.close()


def test_work_is_queued_in_stream_order(sim: Any) -> None:
    x = sim.zeros(8, "complex64")
    sim.synchronize()
    fft.fft(x, out=x)
    x.fill(3)
    fft.ifft(x, out=x)
    assert np.allclose(x.numpy(), [3, 0, 0, 0, 0, 0, 0, 0])


def test_an_array_dropped_after_the_call_is_freed_after_its_work(sim: Any) -> None:
    with sim.stream() as other:
        x, out = sim.zeros(8, "complex64"), sim.zeros(8, "complex64")
        sim.synchronize()
        fft.fft(x, out=out, stream=other)
        del x
        sim.synchronize()


def test_an_uninitialised_input_is_told(sim: Any) -> None:
    fft.fft(sim.empty(8, "complex64"))
    with pytest.raises(cudakit.errors.DeviceFault, match="cufftExecC2C reads 64 bytes that were never written"):
        sim.synchronize()


def test_threads_share_the_plans_of_a_stream(device: Any) -> None:
    x = numbers((4, 32), "complex64")
    a = device.array(x)
    wrong: list[Any] = []

    def work() -> None:
        try:
            for _ in range(10):
                near(fft.fft(a).numpy(), np.fft.fft(x), "complex64")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
