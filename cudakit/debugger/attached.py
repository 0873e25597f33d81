"""Sessions attached to this process: `cudakit.debug()` in a script, and the scripts that `cudakit debug` runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

from cudakit.compile import options
from cudakit.debugger.console import Console
from cudakit.debugger.session import Session
from cudakit.driver import driver as drivers


class Attachable(Protocol):
    """A frontend with a session."""

    session: Session


_consoles: list[Console] = []
_kept = contextlib.ExitStack()


def debug(*commands: str) -> None:
    """Open the debugger here, like `breakpoint()`, for the kernels that run after it on the simulated device.

    It reads commands from the terminal until `run` or `continue`; the kernels then stop at the breakpoints that were
    set. Kernels that are compiled after this call have variables (-G); those that were compiled before it have lines
    and registers only. A second call opens the same debugger again.

    Args:
        commands: Commands that are carried out first, such as "break softmax.cu:12" and "run".

    Raises:
        Quit: If the user ends the script (a SystemExit).
    """
    if not _consoles:
        _kept.enter_context(attached(Console()))
    console = _consoles[-1]
    console.given.clear()
    console.given.extend(commands)
    console.loop()


@contextlib.contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Let Ctrl-C stop a kernel that the session follows, at its next statement. Otherwise, and if it is pressed again,
    it does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if session.run is not None and session.stop is None and not session.pausing:
            session.pausing = True
        elif callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def attached(frontend: Attachable, *, variables: bool = True) -> Iterator[None]:
    """Let a frontend's session follow all simulated devices within the `with` block; `variables`: compile kernels with
    -G."""
    if isinstance(frontend, Console):
        _consoles.append(frontend)
    before, options.debug_code = options.debug_code, variables
    try:
        with drivers.probing(frontend.session), _interruptible(frontend.session):
            yield
    finally:
        options.debug_code = before
        if isinstance(frontend, Console):
            _consoles.remove(frontend)
