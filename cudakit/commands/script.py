"""A user's script as the main program on the simulated device; runs one and collects its faults and leaks."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cudakit import reports
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError, DeviceUnavailable, LeakWarning, Refused, UnseenFault


def run(script: str, arch: str, watch: drivers.Watch, fail_on_leaks: bool) -> dict[str, Any]:
    """Run a script, with the simulated device as the default device, until its threads and all queued work have ended.

    Returns the JSON's "ok", "failure" and "leaks", and "reports", a list of `Report`. Raises Refused if the script
    requests a GPU.
    """
    about: dict[str, Any] = {"step": f"run {script}", "arch": arch, "script": script}
    found: list[reports.Report] = []
    folder = os.getcwd()
    streams = sys.stdout, sys.stderr
    failure = None
    warned: list[Any] = []
    before = set(threading.enumerate())
    try:
        with as_main(script, arch), _listening(warned), _kept_alive():
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    failure = f"the script ended with status {ended.code}"
                    found = [reports.Report("failed script", failure, file=script, full_text=failure, **about)]
            for thread in set(threading.enumerate()) - before:
                if not thread.daemon:
                    thread.join()
            watch.finish()
    except DeviceUnavailable as error:
        raise Refused(
            f"--run {script}: the script requests a GPU ({error}). Use cudakit.Device(), which is the simulated "
            "device here"
        ) from error
    except CudakitError as error:
        failure = str(error)
        found = reports.of_error(error, **about)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # asyncio.CancelledError is not an Exception
        failure = failure_text(error, script)
        found = reports.of_error(error, **about)
    finally:
        os.chdir(folder)
        sys.stdout, sys.stderr = streams
    if sys.stdout.closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (flushed when this process ends)
        raise Refused(f"--run {script}: the script closed stdout, to which the result is printed: call flush() instead")
    # errors that the script caught count too
    faults = {str(fault): fault for fault in (*warned, *watch.reports())}
    leaks = [text for text, fault in faults.items() if fault.kind == "leak"]
    if failure is None:
        failure = "\n".join(text for text in faults if text not in leaks or fail_on_leaks) or None
    for text, fault in faults.items():
        if text not in {one.full_text for one in found}:
            passed = text in leaks and not fail_on_leaks
            found.append(reports.of_fault(fault, severity=reports.WARNING if passed else reports.ERROR, **about))
    found = [one.at(script) for one in found]
    return {"step": about["step"], "ok": failure is None, "failure": failure, "leaks": leaks, "reports": found}


@contextlib.contextmanager
def as_main(script: str, arch: str, arguments: Sequence[str] = ()) -> Iterator[None]:
    """The script's arguments and folder as Python sets them, and the simulated device as the default device."""
    kept = os.environ.get("CUDAKIT_DEVICE"), sys.argv, sys.path[:]
    os.environ["CUDAKIT_DEVICE"] = f"sim:{arch}"
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        device, sys.argv, sys.path[:] = kept
        os.environ.pop("CUDAKIT_DEVICE", None)
        if device is not None:
            os.environ["CUDAKIT_DEVICE"] = device


def failure_text(error: BaseException, script: str) -> str:
    """The traceback from the script's own frame on, or only the error if there is no such frame (a syntax error)."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    if frames is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return "".join(traceback.format_exception(error.with_traceback(frames))).rstrip()


@contextlib.contextmanager
def _listening(warned: list[Any]) -> Iterator[None]:
    """Collect the reports that are emitted as warnings, because Python may hide them."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, *where: Any, **more: Any) -> None:
            if isinstance(message, (LeakWarning, UnseenFault)):
                warned.append(message.report)
            else:
                show(message, *where, **more)

        warnings.simplefilter("always", LeakWarning)
        warnings.simplefilter("always", UnseenFault)
        warnings.showwarning = note
        yield


class _Left(BaseException):
    """The script called a function that ends or replaces this process; the message names it."""


@contextlib.contextmanager
def _kept_alive() -> Iterator[None]:
    """Make os._exit() and os.exec*() end only the script and not this process, so that the result is printed."""
    process = os.getpid()
    exits = os._exit
    calls: tuple[Callable[..., Any], ...] = (exits, os.execv, os.execve)

    def kept(call: Callable[..., Any]) -> Callable[..., None]:
        def leave(*how: Any) -> None:
            here = os.getpid() == process
            if not here or (call is exits and threading.current_thread() is not threading.main_thread()):
                call(*how)
            raise _Left(f"os.{call.__name__}({', '.join(map(repr, how[:1]))})")

        return leave

    for call in calls:
        setattr(os, call.__name__, kept(call))
    try:
        yield
    except _Left as left:
        raise CudakitError(f"the script ended by {left}, so its queued work was not checked") from None
    finally:
        for call in calls:
            setattr(os, call.__name__, call)
