"""Groups of collective calls: collected per thread, compared, and queued together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cudakit.errors import CudakitError
from cudakit.libs import collectives, nccl_library
from cudakit.libs.collectives import Call, Form
from cudakit.libs.nccl_library import Link


class _Group(threading.local):
    """The calls of this thread's open group, and the number of nested groups."""

    def __init__(self) -> None:
        self.depth = 0
        self.calls: list[Call] = []


_group = _Group()


def add(call: Call) -> None:
    """Add a call to this thread's group; queue it at once if no group is open."""
    with group():
        _group.calls.append(call)


@contextmanager
def group() -> Iterator[None]:
    """Collect the calls of a `with` block and queue them together at its end; nested groups end with the outer one.

    One thread that makes calls of several ranks must do so in a group, since a single call may wait for the other
    ranks' calls. If the block raises, nothing is queued.

    Raises:
        CudakitError: If the calls of this process's ranks differ in kind, dtype, size, op or root; nothing was queued.
        CollectiveTimeout: If the other ranks' calls are missing after the timeout.
    """
    _group.depth += 1
    try:
        yield
    except BaseException:
        if _group.depth == 1:
            _group.calls.clear()
        raise
    else:
        if _group.depth == 1:
            calls, _group.calls = _group.calls, []
            _launch(calls)
    finally:
        _group.depth -= 1


def _launch(calls: Sequence[Call]) -> None:
    _expect_equal(calls)
    by_kind: dict[Any, list[Call]] = {}
    for call in calls:
        link = call.communicator.link
        by_kind.setdefault(Link if isinstance(link, Link) else link, []).append(call)
    for link, those in by_kind.items():
        timeout = max(call.communicator.timeout for call in those)
        if link is Link:
            nccl_library.launch(those, timeout)
        else:
            link.launch(those, timeout)


def _expect_equal(calls: Sequence[Call]) -> None:
    """Raise CudakitError if ranks of one process make different calls in one group."""
    series: dict[int, dict[int, list[Form]]] = {}
    for call in calls:
        if call.form.kind not in collectives.PAIRWISE:
            link = call.communicator.link
            clique = id(link.clique) if isinstance(link, Link) else id(link)
            series.setdefault(clique, {}).setdefault(call.communicator.rank, []).append(call.form)
    for ranks in series.values():
        for number, forms in enumerate(zip(*ranks.values(), strict=False), 1):
            why = collectives.mismatch(number, dict(zip(ranks, forms, strict=True)))
            if why:
                raise CudakitError(f"{why.replace('of the communicator', 'of the group')}. Nothing was queued")
