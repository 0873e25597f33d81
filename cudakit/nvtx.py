"""NVTX ranges: Nsight Systems and Nsight Compute show named parts of a program.

    with nvtx.range("softmax 05_tree_reduce"):
        ...

    @nvtx.range("epoch")
    def epoch(): ...

Ranges are in the domain "cudakit" and can be nested. cudakit's own operations have ranges too: opening a device,
compiling, loading, allocating, copying, launching, waiting, freeing, and each variant of each op. A trace collects the
same ranges within the process, with or without a profiler:

    with nvtx.trace() as t:
        ...
    print(t.table())

Without a profiler and a trace, a range costs two comparisons. The nvtx package is asked once, at the first range,
whether a profiler is attached (ncu shows ranges only with --nvtx).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from cudakit.trace import Trace

__all__ = ["DOMAIN", "Listener", "Trace", "listeners", "listening", "mark", "range", "trace"]

DOMAIN = "cudakit"

# Flags of functions that do not run when they are called: generators, coroutines, asynchronous generators.
_YIELDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Listener(Protocol):
    """A receiver of ranges: a tool, or a trace."""

    def push(self, name: str, color: str | None) -> None:
        """Start a range on this thread, nested in those that are open on it."""

    def pop(self, raised: type[BaseException] | None) -> None:
        """End the innermost range of this thread."""

    def mark(self, name: str, color: str | None) -> None:
        """Record a mark."""


class _Unasked:
    """A placeholder in the list, so that the first range asks the nvtx package for a tool."""

    def push(self, name: str, color: str | None) -> None:
        pass

    def pop(self, raised: type[BaseException] | None) -> None:
        pass

    mark = push


class _Tool:
    """A tool, through the nvtx package's domain."""

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._attributes = functools.lru_cache(maxsize=1024)(self._made)

    def _made(self, name: str, color: str | None) -> Any:
        # A program that runs without a tool must run with one: unencodable names and unknown colours are replaced.
        text = name.encode(errors="backslashreplace").decode()
        try:
            return self._domain.get_event_attributes(message=text, color=color)
        except (TypeError, ValueError):
            return self._domain.get_event_attributes(message=text, color=None)

    def push(self, name: str, color: str | None) -> None:
        self._domain.push_range(self._attributes(name, color))

    def pop(self, raised: type[BaseException] | None) -> None:
        self._domain.pop_range()

    def mark(self, name: str, color: str | None) -> None:
        self._domain.mark(self._attributes(name, color))


_UNASKED = _Unasked()

#: The tool and the traces that receive ranges. Ranges and launches only test whether it is empty. The list is changed
#: in place, never replaced.
listeners: list[Listener] = [_UNASKED]


def _tool() -> _Tool | None:
    """The tool of this process, or None."""
    import nvtx

    if not nvtx.enabled():  # NVTX_DISABLE is set, but the package would still return domains
        return None
    domain = nvtx.get_domain(DOMAIN)
    # Without a tool the package returns a dummy that is not a Domain.
    return _Tool(domain) if isinstance(domain, nvtx.Domain) else None


def _ask() -> None:
    """Replace the placeholder by the tool, or remove it if there is no tool."""
    tool = _tool()
    # If several threads do so at once, only the first finds the placeholder.
    with contextlib.suppress(ValueError):
        if tool is None:
            listeners.remove(_UNASKED)
        else:
            listeners[listeners.index(_UNASKED)] = tool


def _push(name: str, color: str | None) -> None:
    if _UNASKED in listeners:
        _ask()
    for listener in tuple(listeners):
        listener.push(name, color)


def _pop(raised: type[BaseException] | None) -> None:
    for listener in tuple(listeners):
        listener.pop(raised)


class range:
    """A named range of time: a context manager and a decorator, reusable on any thread.

    A thread's ranges must end innermost first, so a range must not contain a yield or an await.

    Args:
        name: The name. `ncu` filters by it, so avoid the characters / [ ] * @ and commas.
        color: For display, such as "green".

    Raises:
        TypeError: If the name is not a str, or a generator or coroutine is decorated.
    """

    __slots__ = ("color", "name")

    def __init__(self, name: str, color: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a range must be a str, got {type(name).__name__}: {name!r}")
        self.name = name
        self.color = color

    def __enter__(self) -> range:
        if listeners:
            _push(self.name, self.color)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if listeners:
            _pop(kind)

    def __call__(self, function: _Function) -> _Function:
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _YIELDS:
            raise TypeError(
                f"{getattr(function, '__name__', function)} is a generator or a coroutine: the range {self.name!r} "
                "would end before it runs. Put `with nvtx.range(...)` inside it, around code without yield or await"
            )

        @functools.wraps(function)
        def inside(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return inside  # type: ignore[return-value]


def mark(name: str, color: str | None = None) -> None:
    """Mark a point in time, which tools show as a flag.

    Args:
        name: The name.
        color: For display, such as "green".
    """
    if listeners:
        if _UNASKED in listeners:
            _ask()
        for listener in tuple(listeners):
            listener.mark(name, color)


def listening() -> bool:
    """Return whether a tool or a trace receives the ranges of this process."""
    if _UNASKED in listeners:
        _ask()
    return bool(listeners)


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Collect the ranges of a `with` block, of every thread, with or without a tool.

    Ranges that are open at its start are left out; those open at its end count up to there. Traces may be nested. Times
    are the host's; on a simulated device they are the time of the simulation.

    Yields:
        The Trace: a table, or a file for a trace viewer.

    Example:

        with nvtx.trace() as t:
            with nvtx.range("work"):
                ...
        print(t.table())
        t.chrome("work.json")
    """
    collected = Trace()
    listeners.append(collected)
    try:
        yield collected
    finally:
        collected.end()
        listeners.remove(collected)
