"""Numbers in tables."""

from __future__ import annotations

NOTHING = "-"


def number(value: float | None, digits: int = 3) -> str:
    """`value` with three significant digits, without an exponent if that is readable: 0.00123, 12.6, 4,160."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e15 or magnitude < 1e-4:
        return f"{value:.{digits - 1}e}"
    if magnitude >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:f}"
