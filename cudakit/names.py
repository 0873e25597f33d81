"""Wrong names: the known name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """`. Did you mean 'softmax'?`, the end of a sentence; "" if no known name is close to `name`."""
    close = difflib.get_close_matches(name.lower(), [other for other in known if other], n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
