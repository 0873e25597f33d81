"""The figure by which a report's rows are compared: bandwidth or arithmetic if timed, bytes moved if only counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cudakit.show.tables import Group, copy_group, counts_flops

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A figure of a row: `key` in the row, or in its counters if it was counted and not timed."""

    key: str
    unit: str
    name: str
    more_is_better: bool = True
    counted: bool = False

    @staticmethod
    def of(report: Mapping[str, Any]) -> Measure:
        if report["device"]["kind"] != "gpu":
            name = "global memory traffic (counted, not timed)"
            return Measure("bytes_per_element", "bytes per element", name, more_is_better=False, counted=True)
        if counts_flops(report["rows"]):
            return Measure("tflops", "TFLOP/s", "arithmetic")
        return Measure("gbps", "GB/s", "memory bandwidth")

    def value(self, row: Row) -> float | None:
        """Return the row's figure; None if there is no figure or the result was wrong."""
        figure = (row["counters"] or {}).get(self.key) if self.counted else row[self.key]
        return float(figure) if figure is not None and row["ok"] else None

    def best(self, rows: Sequence[Row]) -> Row | None:
        """Return the best row of those that have a figure."""
        known = [row for row in rows if self.value(row) is not None]
        choose = max if self.more_is_better else min
        return choose(known, key=lambda row: self.value(row) or 0.0, default=None)

    def ceiling_name(self, rows: Sequence[Row]) -> str:
        """Return the name of the rows' ceiling: "copy", or the peer that it is from."""
        return next((str(row["ceiling"]).removeprefix("peer:") for row in rows if row.get("ceiling")), "copy")

    def ceiling(self, report: Mapping[str, Any], group: Group) -> float | None:
        """Return the ceiling of a group's rows, measured in the same run: a copy of the same bytes, or the library."""
        if self.counted:
            return None
        if self.key == "gbps":
            copies = report["ceilings"].get("copy", [])
            return next((copy["gbps"] for copy in copies if copy_group(copy) == group[1:]), None)
        # Compute the ceiling from a row's value and its fraction of the ceiling.
        for row in report["rows"]:
            ours = (row["family"], tuple(row["shape"]), row["dtype"], row.get("mode", "")) == group
            value = self.value(row)
            if ours and value is not None and row["of_ceiling"]:
                return float(value / row["of_ceiling"])
        return None
