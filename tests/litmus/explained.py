"""The reasons why the simulated device's report on a litmus test differs from the PTX memory model."""

from __future__ import annotations

from .program import Variant
from .verdicts import FALSE, NOT_REACHED

FENCE = "a fence also counts for flags that other threads of the block set after a barrier"
SEQUENCE = "a store of another thread does not end a release sequence"
VOLATILE = "reported on purpose: volatile does not order accesses of different threads"
SCHEDULE = "no schedule of the simulated device has an outcome with a data race"


def reason(variant: Variant, verdict: str) -> str:
    """Return why the device and the model differ; "" if there is no known reason."""
    if verdict == NOT_REACHED:
        return SCHEDULE
    if verdict == FALSE:
        return VOLATILE if "volatile" in variant.text and variant.placement == "lanes" else ""
    if variant.shape == "release sequence":
        return SEQUENCE
    fenced = any("fence" in thread or "membar" in thread for thread in variant.text.split("|"))
    return FENCE if fenced and variant.shape == "grid barrier" else ""
