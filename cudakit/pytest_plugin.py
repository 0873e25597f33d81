"""The pytest plugin: a device for tests of kernels. pytest loads it if cudakit is installed.

- Fixture `cuda_device`: a device that all tests share. After a fault the next test gets a new one.
- `--cudakit-device`: `auto` (the default), `sim`, `gpu`, `both`, or a device's name such as `sim:sm_80`.
- `--cudakit-checks`: the checks of the simulated device. `--cudakit-examples`, `--cudakit-seed`: the number and the
  seed of the problems that `cudakit.testing.kernel_test` draws.
- `@pytest.mark.cuda_gpu`: the test needs a GPU.

cudakit is imported when a test first uses one of them. (PYTEST_DONT_REWRITE: there are no asserts here.)
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cudakit.device import Device

_DEVICES = re.compile(r"auto|both|sim(:sm_\d+[af]?)?(:\d)?|gpu(:\d+)?")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cudakit", "kernels (cudakit)")
    group.addoption(
        "--cudakit-device",
        default="auto",
        type=_device,
        metavar="auto|sim|gpu|both",
        help="the device of the fixture cuda_device; auto (the default): CUDAKIT_DEVICE, or the first GPU, or the "
        "simulated device if there is no GPU; both: run each test on both; or a name such as sim:sm_80 or gpu:1",
    )
    group.addoption(
        "--cudakit-checks",
        default=None,
        type=_names,
        metavar="C,...",
        help="only these checks of the simulated device (race, benign, init, barrier, syncthreads, warp, streams, "
        "leaks), or none; default: all but benign",
    )
    group.addoption(
        "--cudakit-examples",
        default=20,
        type=_count,
        metavar="N",
        help="number of different problems per variant in tests of kernel_test; at least 20, the default",
    )
    group.addoption(
        "--cudakit-seed",
        default=0,
        type=_seed,
        metavar="N|random",
        help="seed of the problems that kernel_test draws (default: 0, the same problems each time)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda_gpu: needs an NVIDIA GPU; skipped with the reason if there is none")


def _device(text: str) -> str:
    if not _DEVICES.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: use auto, sim, gpu, both, sim:sm_80 or gpu:1")
    return text


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip() not in ("", "none"))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: use a whole number of at least 1")
    return int(text)


def _seed(text: str) -> int | str:
    if text != "random" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: use a whole number, or random")
    return text if text == "random" else int(text)


def _wanted(config: pytest.Config) -> str:
    """The requested device: the option's, or that of CUDAKIT_DEVICE if the option is "auto"."""
    option: str = config.getoption("cudakit_device")
    return (os.environ.get("CUDAKIT_DEVICE", "").strip() or option) if option == "auto" else option


# Devices --------------------------------------------------------------------------------------------------------------


@functools.cache
def why_no_gpu() -> str | None:
    """The reason why there is no GPU; None if there is one. A GPU that does not start raises its own error."""
    from cudakit.device import Device
    from cudakit.errors import DeviceUnavailable

    try:
        with Device("gpu"):
            return None
    except DeviceUnavailable as error:
        return str(error).splitlines()[0][:100]


class SharedDevice:
    """One device for many tests. A simulated device that a test lost or closed is replaced by a new one."""

    def __init__(self, spec: str, checks: frozenset[str] | None) -> None:
        from cudakit.device import Device

        # a simulated device with its own memory, so that its faults do not affect other devices of the process
        self._options: dict[str, Any] = {} if spec.startswith("gpu") else {"fresh": True}
        if checks is not None and not spec.startswith("gpu"):
            self._options["checks"] = checks
        self._spec = spec
        self._device = Device(spec, **self._options)

    def usable(self) -> Device:
        """The device, replaced if it was lost. Fails the test if the device is a GPU that an earlier test lost."""
        from cudakit.device import Device

        context = self._device.context
        if context.lost is not None and self._device.kind == "gpu":
            pytest.fail(f"the GPU was lost by an earlier test of this process:\n{context.lost}", pytrace=False)
        if context.lost is not None or context.closed:
            self._device.close()
            self._device = Device(self._spec, **self._options)
        return self._device

    def close(self) -> None:
        self._device.close()


@pytest.fixture(scope="session")
def cudakit_shared_device(request: pytest.FixtureRequest) -> Iterator[SharedDevice]:
    """The device that `cuda_device` returns to each test."""
    from cudakit.errors import CudakitError

    spec = getattr(request, "param", None) or _wanted(request.config)
    if spec in ("auto", "both"):
        spec = "gpu" if spec == "auto" and why_no_gpu() is None else "sim"
    refused = ""
    try:
        shared = SharedDevice(spec, request.config.getoption("cudakit_checks"))
    except ValueError as error:
        refused = f"--cudakit-checks: {error}"
    except CudakitError as error:
        refused = f"--cudakit-device: {error}"
    if refused:
        pytest.fail(refused, pytrace=False)
    yield shared
    shared.close()


@pytest.fixture
def cuda_device(cudakit_shared_device: SharedDevice) -> Iterator[Device]:
    """The device of `--cudakit-device`, which all tests share.

    At the end of a test the fixture waits for the work that the test queued, and fails the test if that work failed.
    After a fault the next test gets a new device. A test's arrays are freed when they go out of scope.
    """
    from cudakit.errors import CudakitError

    device = cudakit_shared_device.usable()
    yield device
    failure = None
    if device.context.lost is None and not device.context.closed:
        try:
            device.synchronize()
        except CudakitError as error:
            failure = str(error)
    if failure is not None:
        pytest.fail(f"work that the test did not wait for failed:\n{failure}", pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cudakit_shared_device" not in metafunc.fixturenames or metafunc.config.getoption("cudakit_device") != "both":
        return
    devices = ["sim", pytest.param("gpu", marks=pytest.mark.cuda_gpu)]
    if metafunc.definition.get_closest_marker("cuda_gpu"):
        del devices[0]
    metafunc.parametrize("cudakit_shared_device", devices, indirect=True, scope="session")


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda_gpu") is None:
        return
    wanted = _wanted(item.config)
    if wanted.startswith("sim"):
        pytest.skip(f"needs a GPU, and the requested device is {wanted}")
    # if a GPU was requested by name and is missing, the run is an error
    if not wanted.startswith("gpu") and (reason := why_no_gpu()) is not None:
        pytest.skip(f"no GPU: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show errors at the line of the test or the fixture, without cudakit's frames."""
    if call.excinfo is not None and "cudakit.errors" in sys.modules:
        from cudakit import tracebacks

        error = call.excinfo.value
        if tracebacks.are_trimmed(error):
            tracebacks.trim(error)
            call.excinfo = pytest.ExceptionInfo.from_exception(error)
    return (yield)
