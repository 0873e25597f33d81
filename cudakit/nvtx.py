"""NVTX ranges, so that Nsight Systems and Nsight Compute show what a stretch of work was for.

    with nvtx.range("softmax 05_tree_reduce"):
        ...

    @nvtx.range("epoch")
    def epoch(): ...

Ranges stand in the domain "cudakit" and nest. Where no tool listens a range costs one comparison: the nvtx package
is asked once, at the first range, and says so itself (ncu shows ranges only with --nvtx).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

DOMAIN = "cudakit"

_Function = TypeVar("_Function", bound=Callable[..., Any])


@functools.lru_cache(maxsize=1)
def _domain() -> Any:
    """The nvtx package's domain, or None where nobody listens."""
    import nvtx

    domain = nvtx.get_domain(DOMAIN)
    # Without a tool, or with NVTX_DISABLE, the package hands out a stand-in that is no Domain.
    return domain if isinstance(domain, nvtx.Domain) else None


@functools.lru_cache(maxsize=1024)
def _attributes(name: str, color: str | None) -> Any:
    return _domain().get_event_attributes(message=name, color=color)


class range:
    """A named range of time: a context manager and a decorator. color: "green" and the like, for display."""

    __slots__ = ("color", "name")

    def __init__(self, name: str, color: str | None = None) -> None:
        self.name = name
        self.color = color

    def __enter__(self) -> range:
        domain = _domain()
        if domain is not None:
            domain.push_range(_attributes(self.name, self.color))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        domain = _domain()
        if domain is not None:
            domain.pop_range()

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def inside(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return inside  # type: ignore[return-value]


def mark(name: str, color: str | None = None) -> None:
    """A moment, shown as a flag."""
    domain = _domain()
    if domain is not None:
        domain.mark(_attributes(name, color))


def listening() -> bool:
    """Whether a tool takes the ranges of this process."""
    return _domain() is not None
