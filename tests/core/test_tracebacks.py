"""Tracebacks of errors: without cudakit's frames, and with the wait that found a GPU's fault."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import cudakit
from cudakit import tracebacks
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context

PACKAGE = str(Path(cudakit.__file__).parent)


def raised(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_frames_of_cudakit_are_left_out_and_the_callers_stay(sim: cudakit.Device) -> None:
    def mine() -> None:
        sim.compile(source="__global__ void k(int n) {}", name="k.cu")["k"].launch(
            sim.default_stream, 1, 1, args=("x",)
        )

    error = raised(mine)
    assert any(file.startswith(PACKAGE) for file in files(error))
    own = [file for file in files(error) if not file.startswith(PACKAGE)]
    tracebacks.trim(error)
    assert files(error) == own == [__file__] * 2 + own[2:]


def test_the_errors_that_led_to_one_are_trimmed_too_and_a_callback_stays(sim: cudakit.Device) -> None:
    def callback() -> None:
        try:
            sim.zeros(-1)
        except ValueError as error:
            raise cudakit.CudakitError("mine") from error

    error = raised(callback)
    tracebacks.trim(error)
    assert error.__cause__ is not None
    assert files(error.__cause__) == files(error)[-1:] == [__file__]


def test_errors_in_a_group_are_trimmed_too(sim: cudakit.Device) -> None:
    def several() -> None:
        errors = [raised(lambda: sim.zeros(-1)), raised(lambda: [][0])]
        raise ExceptionGroup("both", errors)

    group = raised(several)
    tracebacks.trim(group)
    assert {file for error in group.exceptions for file in files(error)} == {__file__}  # type: ignore[attr-defined]


def test_a_bug_shows_all_frames(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(sim.context, "make_current", bug)
    error = raised(lambda: sim.empty(0))
    before = files(error)
    tracebacks.trim(error)
    assert files(error) == before
    assert any(file.startswith(PACKAGE) for file in before)


def test_a_traceback_of_cudakits_frames_alone_stays(sim: cudakit.Device) -> None:
    error = raised(lambda: sim.zeros(-1))
    entry = error.__traceback__
    while entry is not None and not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
        entry = entry.tb_next
    tracebacks.trim(error.with_traceback(entry))
    assert error.__traceback__ is entry is not None


def test_of_an_error_that_led_to_another_within_cudakit_the_text_is_left(sim: cudakit.Device) -> None:
    kernel = sim.compile(source="__global__ void k() {}", name="k.cu")["k"]
    error = raised(lambda: kernel.launch("no stream", grid=1, block=1))
    assert error.__cause__ is not None
    assert files(error.__cause__)
    tracebacks.trim(error)
    assert files(error.__cause__) == []
    assert files(error)[-1] == __file__


def test_an_uncaught_error_is_shown_at_the_users_line(tmp_path: Path) -> None:
    script = tmp_path / "try.py"
    script.write_text("import cudakit\n\ndef mine():\n    cudakit.Device('nothing')\n\nmine()\n")
    environment = {"PYTHONPATH": str(Path(PACKAGE).parent)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert f'{script}", line 6' in done.stderr
    assert f'{script}", line 4, in mine' in done.stderr
    assert PACKAGE not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ValueError: unknown device 'nothing'")


@pytest.mark.parametrize("shown", ["", "full"])
def test_all_frames_are_shown_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: str
) -> None:
    monkeypatch.setenv("CUDAKIT_TRACEBACK", shown)
    error = raised(lambda: cudakit.Device("nothing"))
    sys.excepthook(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert __file__ in said
    assert (PACKAGE in said) == (shown == "full")


@pytest.mark.parametrize(
    ("code", "blocking", "text"),
    [
        (700, "", "the faulty launch came earlier. Set CUDA_LAUNCH_BLOCKING=1"),
        (700, "0", "the faulty launch came earlier. Set CUDA_LAUNCH_BLOCKING=1"),
        (700, "1", "with CUDA_LAUNCH_BLOCKING set, that is the launch"),
        (214, "", "detected it."),
    ],
)
def test_a_gpus_fault_says_which_call_found_it_and_how_to_find_the_launch(
    monkeypatch: pytest.MonkeyPatch, code: int, blocking: str, text: str
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "gpu", "gpu:0"))
    driver.simInject("cuCtxSynchronize", code=code)
    error = raised(context.synchronize)
    assert isinstance(error, cudakit.DeviceFault)
    assert f"The call at {__file__}:" in str(error)
    assert text in str(error)
    context.close()


@pytest.mark.gpu
def test_a_fault_of_a_gpu_says_which_call_found_it(tmp_path: Path, gpu: cudakit.Device) -> None:
    script = tmp_path / "try.py"
    script.write_text(
        "import cudakit\n"
        "device = cudakit.Device('gpu')\n"
        "source = '__global__ void k(int* x) { *x = 1; }'\n"
        "kernel = device.compile(source=source, name='k.cu')['k']\n"
        "kernel.launch(device.default_stream, grid=1, block=1, args=(None,))\n"
        "device.synchronize()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"The call at {script}:6 detected it; the faulty launch came earlier" in done.stderr
