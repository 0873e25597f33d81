"""CCCL's barriers, pipelines, asynchronous copies and PTX functions for Hopper, compiled by NVRTC, under the default
checks: each whole result against numpy, and a wrong twin of most kernels, which must be reported.

The kernels are in `tests/cccl`: NAME is the correct one, NAME_wrong has one mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cccl.forms import Form, forms_of, source
from paths import TESTS

import cudakit
from cudakit.compile import compiler
from cudakit.compile.headers import cuda_directories
from cudakit.errors import DeviceFault
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import PtxError

GENERATED = "cuda/__ptx/instructions/generated"

THREADS, TILE, SIZE, UNTOUCHED = 128, 512, 1024, -7
X = np.random.default_rng(0).integers(-1000, 1000, SIZE).astype(np.int32)
ROWS = X.reshape(-1, THREADS)
SQUARE = X.reshape(32, 32)
BOX = np.arange(256).reshape(16, 16)
INDEX = np.arange(SIZE)

RACE = "data race"
EARLY = "read before mbarrier wait"
EARLY_CP = "cp.async result used before the wait"
HANG = "deadlock: a wait for the mbarrier"
BYTES = "mbarrier bytes differ"
NO_FENCE = "missing proxy fence"


class Case(NamedTuple):
    """A kernel of `tests/cccl/SOURCE.cu`, its first results, and the report of its wrong twin, if it has one; it must
    not write other results. With `maps`, it has tensor maps of the arrays as 32 x 32, and may store to another array,
    whose first results are `other`."""

    source: str
    kernel: str
    expected: Callable[[], object]
    report: str = ""
    maps: bool = False
    other: Callable[[], object] = tuple

    @property
    def cluster(self) -> int:
        return 2 if self.kernel.startswith("cluster") else 1


def swapped(x, distance=37):
    """Element i is that at i ^ distance."""
    return x[INDEX[: len(x)] ^ distance]


def rounds(count, of=swapped):
    return np.concatenate([of(row) for row in ROWS[:count]])


def reversed_rounds():
    return ROWS[:6, ::-1]


def dropped():
    first, second = X[:64], X[64:THREADS]
    sums = first + second
    return sums + sums[::-1]


def completed():
    """The completion counts two phases per round."""
    rows = (ROWS[0] + 2 * number for number in range(3))
    return [(swapped(row, 64) + swapped(row, 1)) * (2 * number + 1) for number, row in enumerate(rows)]


def copied_bytes():
    return X.view(np.int8)[3 : 3 + 509]


def other_block():
    return X[: 2 * THREADS].reshape(2, THREADS)[::-1].ravel()


def stored_by_other():
    """Per block: the sums of the first two elements that each thread has received with the last one, and the rank."""
    out = np.full(SIZE, UNTOUCHED)
    received = other_block().reshape(2, THREADS)
    for rank, values in enumerate(received):
        out[2 * rank * THREADS :][: 2 * THREADS] = np.concatenate((values + values + 2, values + 3 + values + 2))
    out[TILE : TILE + 2 * THREADS] = np.repeat([1, 0], THREADS)
    return out


def dropped_by_half():
    out = np.full(THREADS, UNTOUCHED)
    out[64:] = X[63::-1]
    return out


def reduced():
    """In the lower left corner of y, the box's rows that are inside."""
    out = np.full((32, 32), UNTOUCHED)
    out[24:, 8:24] += BOX[:8]
    return out


def replaced():
    """The rows of the box that are inside the changed tensor."""
    out = np.full((8, 32), UNTOUCHED)
    out[:, :16] = BOX[:8]
    return out


def incremented():
    out = np.full((32, 32), UNTOUCHED)
    out[16:, :16] = SQUARE[16:, :16] + 1
    return out


def by_waiting_thread():
    return X[:TILE].reshape(THREADS, 4).sum(axis=1)


CASES = [
    Case("barriers", "arrive_and_wait", lambda: ROWS[0, ::-1], RACE),
    Case("barriers", "token", lambda: X[:TILE] + rounds(4), RACE),
    Case("barriers", "parity", lambda: rounds(4), HANG),
    Case("barriers", "arrive_and_drop", dropped, HANG),
    Case("barriers", "completion", completed, RACE),
    Case("barriers", "native_handle", lambda: rounds(1), RACE),
    Case("barriers", "several_arrivals", lambda: rounds(1), RACE),
    Case("barriers", "arrive_tx", lambda: swapped(X[:TILE]), BYTES),
    Case("barriers", "expect_tx", lambda: swapped(X[:TILE]), EARLY),
    Case("barriers", "copy_by_thread", lambda: swapped(X[:TILE]), EARLY),
    Case("barriers", "copy_by_block", lambda: swapped(X), RACE),
    Case("barriers", "copy_words", lambda: swapped(X[1 : THREADS + 1]), EARLY_CP),
    Case("barriers", "copy_bytes", copied_bytes),
    Case("barriers", "cluster", other_block, RACE),
    Case("barriers", "device_scope", lambda: rounds(2), RACE),
    Case("barriers", "thread_scope", lambda: swapped(X[:TILE], 1)),
    Case("pipelines", "of_threads", lambda: 2 * ROWS[:6], EARLY_CP),
    Case("pipelines", "of_threads_waiting", by_waiting_thread, EARLY_CP),
    Case("pipelines", "of_block", lambda: rounds(6), HANG),
    Case("pipelines", "of_device", lambda: rounds(6)),
    Case("pipelines", "of_system", lambda: rounds(6)),
    Case("pipelines", "roles", reversed_rounds, EARLY_CP),
    Case("pipelines", "producers_by_count", reversed_rounds, EARLY_CP),
    Case("pipelines", "by_group", lambda: rounds(6), EARLY_CP),
    Case("pipelines", "commit_to_barrier", lambda: rounds(1), EARLY_CP),
    Case("instructions", "bulk_load", lambda: swapped(X[:TILE]), BYTES),
    Case("instructions", "bulk_store", lambda: X[:TILE] + 1, NO_FENCE),
    Case("instructions", "bulk_store_twice", lambda: X + 1, "shared memory overwritten in flight"),
    Case("instructions", "reduce", lambda: np.concatenate((X[:TILE] + 5, np.maximum(X[:TILE], 5)))),
    Case("instructions", "counted_arrivals", lambda: np.append(rounds(1), THREADS + 4), HANG),
    Case("instructions", "dropped", dropped_by_half),
    Case("instructions", "cluster_multicast", lambda: np.tile(swapped(X[:TILE]), 2), BYTES),
    Case("instructions", "cluster_copy", lambda: swapped(other_block()), EARLY),
    Case("instructions", "cluster_reduce", lambda: X[: 2 * THREADS] + other_block()),
    Case("instructions", "cluster_stores", stored_by_other, EARLY),
    Case("instructions", "cluster_atomics", lambda: [ROWS[1].sum(), THREADS, ROWS[0].sum(), THREADS], BYTES),
    Case("instructions", "cluster_remote_arrivals", lambda: swapped(other_block()), HANG),
    Case("instructions", "copies_arrive", lambda: rounds(1), EARLY_CP),
    Case("instructions", "copies_arrive_too", lambda: rounds(1), HANG),
    Case("instructions", "tensor_copy", lambda: 3 * X, EARLY, maps=True),
    Case("instructions", "tensor_reduce", reduced, NO_FENCE, maps=True),
    Case("instructions", "tensor_replace", list, "tensor map changed without a fence", maps=True, other=replaced),
    Case("instructions", "tensor_experimental", incremented, NO_FENCE, maps=True),
    Case("instructions", "experimental_bulk", lambda: X[:TILE]),
]


def run(device: cudakit.Device, case: Case, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """Run a kernel and return the contents of y and of the other array."""
    module = device.compile(TESTS / "cccl" / f"{case.source}.cu")
    x = device.array(X)
    y, other = (device.array(np.full(SIZE, UNTOUCHED, np.int32)) for _ in range(2))
    args: tuple[object, ...] = (x, y)
    if case.maps:
        views = (cudakit.TensorMap(array, box=(16, 16), dims=SQUARE.shape) for array in args)
        args = (*views, device.zeros(16, np.uint64), other)
    more = {"cluster": case.cluster} if case.cluster > 1 else {}
    module[kernel].launch(device.default_stream, grid=case.cluster, block=THREADS, args=args, **more)
    return y.numpy(), other.numpy()


def whole(first: object) -> np.ndarray:
    """Results that begin with `first`; the others are not written."""
    out = np.full(SIZE, UNTOUCHED)
    first = np.ravel(first)
    out[: len(first)] = first
    return out


def check(device: cudakit.Device, case: Case) -> None:
    y, other = run(device, case, case.kernel)
    np.testing.assert_array_equal(y, whole(case.expected()))
    np.testing.assert_array_equal(other, whole(case.other()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_correct_kernel_agrees_with_numpy_and_raises_no_report(case: Case, sim: cudakit.Device) -> None:
    check(sim, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_the_moments_at_which_copies_complete_do_not_matter(case: Case, seed: int) -> None:
    with cudakit.Device("sim", fresh=True, order="random", seed=seed) as device:
        check(device, case)


@pytest.mark.parametrize("case", [case for case in CASES if case.report], ids=lambda case: case.kernel)
def test_a_mistake_is_reported(case: Case, sim: cudakit.Device) -> None:
    with pytest.raises(DeviceFault, match=case.report) as caught:
        run(sim, case, f"{case.kernel}_wrong")
    assert f"{case.source}.cu:" in str(caught.value)


# ---- every function of cuda::ptx ----

# versions of PTX whose new instructions may be unknown to the simulated device, which names them then
UNKNOWN_SINCE = 92
# what is refused at the launch
REFUSED = ("multimem_", "get_sreg_aggr_smem_size", "get_sreg_current_graph_exec")


@pytest.fixture(scope="module")
def forms() -> list[Form]:
    headers = next(folder / GENERATED for folder in map(Path, cuda_directories()) if (folder / GENERATED).is_dir())
    found = [form for header in sorted(headers.glob("*.h")) for form in forms_of(header)]
    assert len({form.name for form in found}) > 150
    return found


def ptx_of(forms: list[Form]) -> str:
    return compiler.compile(compiler.request(source(forms), name="forms.cu", arch="sm_90a")).ptx


def test_each_ptx_function_compiles_and_loads(forms: list[Form]) -> None:
    known = [form for form in forms if form.version < UNKNOWN_SINCE]
    module = LoadedModule(ptx_of(known), AddressSpace())
    for number, form in enumerate(known):
        refusal = module.functions[f"form_{number}"].refusal
        assert (refusal is not None) == form.name.startswith(REFUSED), f"{form.kernel(number)}{refusal}"


def test_a_newer_ptx_function_runs_or_is_refused_by_name(forms: list[Form]) -> None:
    newer = [form for form in forms if form.version >= UNKNOWN_SINCE]
    for form in newer:
        text = ptx_of([form])
        try:
            refusal = LoadedModule(text, AddressSpace()).functions["form_0"].refusal
        except PtxError as error:
            refusal = error
        if refusal is not None:
            assert "does not execute" in str(refusal), f"{form.kernel(0)}{refusal}"
