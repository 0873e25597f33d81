"""NVTX ranges, so that Nsight Systems and Nsight Compute show what a stretch of work was for.

    with nvtx.range("softmax 05_tree_reduce"):
        ...

    @nvtx.range("epoch")
    def epoch(): ...

Ranges stand in the domain "cudakit" and nest. cudakit has them around what it does itself: opening a device, compiling,
loading, allocating, copying, launching, waiting, freeing, and each rung of each op. A trace collects the same ranges
within the process, with or without a tool:

    with nvtx.trace() as t:
        ...
    print(t.table())

Where nobody listens a range costs a comparison as it begins and one as it ends. The nvtx package is asked once, at the
first range, whether a tool is there (ncu shows ranges only with --nvtx); a trace begins and ends when it is told to.
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

# Of a function's code: generators, coroutines and asynchronous generators do not run when they are called.
_YIELDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Listener(Protocol):
    """Who is told of ranges: a tool, or a trace."""

    def push(self, name: str, color: str | None) -> None:
        """A range begins on this thread, within those that are open on it."""

    def pop(self, raised: type[BaseException] | None) -> None:
        """The innermost range of this thread ends."""

    def mark(self, name: str, color: str | None) -> None:
        """A moment."""


class _Unasked:
    """Stands in the list until the nvtx package was asked for a tool, so that the first range comes to ask."""

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
        # What the tool cannot be told must not fail in programs that run without one: file names of no encoding, and
        # colours that the package does not know.
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

#: Who listens. Empty where nobody does, which is all that a range looks at then; launches look at it too. It is this
#: very list that is changed, never replaced.
listeners: list[Listener] = [_UNASKED]


def _tool() -> _Tool | None:
    """The tool of this process, or None."""
    import nvtx

    if not nvtx.enabled():  # NVTX_DISABLE; domains would be handed out all the same
        return None
    domain = nvtx.get_domain(DOMAIN)
    # Without a tool the package hands out a stand-in that is no Domain.
    return _Tool(domain) if isinstance(domain, nvtx.Domain) else None


def _ask() -> None:
    """Put the tool in place of what stands for the question; where there is none, nothing."""
    tool = _tool()
    # Of several threads that ask at once one finds nothing to replace, or replaces the other's by the like.
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
    """A named range of time: a context manager and a decorator, any number of times, on any thread.

    color: "green" and the like, for display. ncu filters by name, so leave out its signs: / [ ] * @ and commas.
    A thread's ranges end innermost first, as NVTX has it, so none may stand around a yield or an await: TypeError for
    generators and coroutines that are decorated, and for a name that is no text.
    """

    __slots__ = ("color", "name")

    def __init__(self, name: str, color: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a range is named by a str, not by a {type(name).__name__}: {name!r}")
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
                "would end as it is made, before it runs. Put `with nvtx.range(...)` within it, around what does not "
                "yield or await"
            )

        @functools.wraps(function)
        def inside(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return inside  # type: ignore[return-value]


def mark(name: str, color: str | None = None) -> None:
    """A moment, shown as a flag."""
    if listeners:
        if _UNASKED in listeners:
            _ask()
        for listener in tuple(listeners):
            listener.mark(name, color)


def listening() -> bool:
    """Whether anybody takes the ranges of this process: a tool, or a trace."""
    if _UNASKED in listeners:
        _ask()
    return bool(listeners)


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Collect the ranges of a `with` block, of every thread, whether a tool listens or not.

        with nvtx.trace() as t:
            with nvtx.range("work"):
                ...
        print(t.table())
        t.chrome("work.json")

    Ranges that are open as it begins are left out; those open at its end count up to there. Traces may nest. See
    `cudakit.trace.Trace`; `cudakit.show.plots.ranges` draws one. The times are the host's; on a simulated device they
    say how fast it simulates.
    """
    collected = Trace()
    listeners.append(collected)
    try:
        yield collected
    finally:
        collected.end()
        listeners.remove(collected)
