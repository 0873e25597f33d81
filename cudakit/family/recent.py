"""The last calls of a family, whose guards are tried first."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any


def _none() -> None:
    return None


class Recent(threading.local):
    """One thread's last calls of a family: weak references to guards of resolved calls, which their devices own.

    last(): the guard of the last call, or None. by_shape: the guards of earlier calls, by the shape of the first input.
    """

    MOST = 256

    def __init__(self) -> None:
        self.last: Callable[[], Any] = _none
        self.by_shape: dict[Any, weakref.ref[Any]] = {}

    def keep(self, shape: Any, guard: Any) -> None:
        """Make `guard` the first to be tried at the next call."""
        if len(self.by_shape) >= self.MOST:
            self.by_shape.clear()
        self.last = self.by_shape[shape] = weakref.ref(guard)

    def of_shape(self, array: Any) -> Any:
        """Return the guard of the last call with a first input of this shape, and make it `last`; None if it already
        is."""
        try:
            found = self.by_shape.get(array.shape)
        except (AttributeError, TypeError):  # not an array: checked later
            return None
        if found is None or found is self.last:
            return None
        self.last = found
        return found()
