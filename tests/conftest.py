"""Fixtures and settings shared by all tests.

`device` runs a test on the simulated device and on the GPU; the run on the GPU has the mark `gpu` and is skipped, with
the reason, if there is no GPU. `sim` is a new simulated device, which the test may break.

Hypothesis profiles: `ci` (the default: few examples, derandomized) and `fuzz` (thousands, random). Choose one with
HYPOTHESIS_PROFILE or `--hypothesis-profile`; HYPOTHESIS_MAX_EXAMPLES sets the count of either.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from outcomes import Outcomes
from paths import ROOT
from systems import systems

from cudakit.pytest_plugin import why_no_gpu

if TYPE_CHECKING:
    import cudakit


# Workers and later runs share compiled kernels. The cache's keys are hashes of contents, so no entry can be stale.
# Child processes of tests inherit the variable.
os.environ.setdefault("CUDAKIT_CACHE_DIR", str(ROOT / ".pytest_cache" / "kernels"))

# A developer's saved tuning must not change what tests run; tests of tuning enable it.
os.environ.setdefault("CUDAKIT_TUNED", "ignore")

# A process started in the background ignores SIGINT, which would break tests of Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist sets it in its workers: outputs that tests read would be wrapped.
os.environ.pop("COLUMNS", None)

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]


def _examples(default: int) -> int:
    return int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", default))


settings.register_profile(
    "ci",
    max_examples=_examples(10),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "fuzz", max_examples=_examples(1000), deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# It concerns this run only, not those that tests start.
_all_systems = os.environ.pop("CUDAKIT_NEED_SYSTEMS", None)


def pytest_configure(config: pytest.Config) -> None:
    """With CUDAKIT_NEED_SYSTEMS, each test that docs/systems.md names must pass. Not in pytest-xdist's workers."""
    if _all_systems and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(test for system in systems() for test in system.tests))


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: thousands of them live until the end."""
    gc.collect()
    gc.freeze()


_deselected: list[pytest.Item] = []


def pytest_deselected(items: list[pytest.Item]) -> None:
    _deselected.extend(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report a pytest-xdist worker's number of deselected tests; each worker collects all tests."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["deselected"] = len(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the workers' deselected tests to pytest's last line, which has them without workers."""
    count = getattr(node, "workeroutput", {}).get("deselected", 0)
    node.config.pluginmanager.get_plugin("terminalreporter").stats["deselected"] = [SimpleNamespace()] * count


def pytest_runtest_setup(item: pytest.Item) -> None:
    _modules_before[0] = len(sys.modules)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Remove modules that a test imported from its own folder: the next test's `mine.py` is a different file."""
    for name in list(sys.modules)[_modules_before[0] :]:  # the newest are last
        if f"{os.sep}pytest-of-" in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


_modules_before = [0]


def open_device(spec: str) -> cudakit.Device:
    """Open the device `spec`; skip the test if it is a GPU and there is none."""
    import cudakit

    if spec.startswith("gpu") and (reason := why_no_gpu()) is not None:
        pytest.skip(f"no GPU: {reason}")
    return cudakit.Device(spec)


DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[cudakit.Device]:
    """Each device in turn, one per module: hypothesis may run many examples on it. Do not break it: see `sim`."""
    with open_device(request.param) as opened:
        yield opened
        let_go(opened)


@pytest.fixture(scope="module", params=DEVICES)
def roomy(request: pytest.FixtureRequest) -> Iterator[cudakit.Device]:
    """Each device in turn, with room for arrays of 2^31 elements and more. The simulated device only reserves them, and
    does not check for races and uninitialised reads: those checks need tables as large as the arrays."""
    import cudakit

    if request.param == "sim":
        opened = cudakit.Device("sim", memory=1 << 40, checks=("barrier", "warp"))
    else:
        opened = open_device(request.param)
    with opened:
        yield opened
        let_go(opened)


@pytest.fixture
def gpu() -> Iterator[cudakit.Device]:
    """The GPU. A test that uses it needs the mark `gpu`."""
    with open_device("gpu") as opened:
        yield opened
        let_go(opened)


def let_go(opened: cudakit.Device) -> None:
    """Return unused pool memory to the GPU: other workers also run tests with arrays of 2^31 elements."""
    if opened.kind != "gpu" or opened.context.closed or opened.context.lost is not None:
        return
    import cudakit
    from cudakit.memory.allocation import trim

    with contextlib.suppress(cudakit.CudakitError):  # a test may have broken the device
        opened.synchronize()
        trim(opened.context)
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()


@pytest.fixture
def sim() -> Iterator[cudakit.Device]:
    """A new simulated device, which the test may break."""
    import cudakit

    with cudakit.Device("sim", fresh=True) as opened:
        yield opened
