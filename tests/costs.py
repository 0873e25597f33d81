"""Costs of the simulated device as ratios: their summary, and the file with them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from typing import Any

import cudakit
from cudakit.measure.command import command_line
from cudakit.show import outputs, terminal


def summary_of(ratios: Iterable[float], limit: int) -> dict[str, float]:
    """Return the number of kernels, the median and the largest ratio, and how many exceed a limit."""
    found = sorted(ratios)
    return {
        "kernels": len(found),
        "median": found[len(found) // 2],
        "most": found[-1],
        f"over_{limit}": sum(ratio > limit for ratio in found),
    }


def write(summary: Mapping[str, Mapping[str, float]], rows: list[dict[str, Any]], path: str) -> None:
    """Write the measured rows and their summary as JSON, and print the summary."""
    with cudakit.Device("sim", fresh=True) as device:
        about = {"device": device.info(), "date": datetime.date.today().isoformat(), "command": command_line()}
    outputs.write_json(about | {"cores": os.cpu_count(), "summary": summary, "rows": rows}, path)
    for name, figures in summary.items():
        terminal.say(f"{name}: {figures}")
