"""LaunchCounters: what `Device.counters()` collects, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any


class LaunchCounters(dict[str, Any]):
    """Counters by kernel name. sources: the texts of files that are not on disk, by the names that counters have.

    In a notebook with `%load_ext cudakit` it is shown as the annotated source.
    """

    #: Returns the HTML of an object of this class; set by the package that can make it. None shows plain text.
    render: Callable[[LaunchCounters], str] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, str] = {}

    def __repr__(self) -> str:
        lines = [f"{name}: {counters!r}" for name, counters in self.items()]
        return "\n".join(lines) or "LaunchCounters(no kernel has run)"

    def _repr_html_(self) -> str:
        render = LaunchCounters.render
        return f"<pre>{escape(repr(self))}</pre>" if render is None or not self else render(self)
