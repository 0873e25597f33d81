"""Misspelt names: the known name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """Return ". Did you mean 'softmax'?", to end a sentence with; "" if no known name is similar to `name`."""
    close = difflib.get_close_matches(name.lower(), [other for other in known if other], n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
