"""The first instruction that goes wrong: traps on the simulated device, and the accuracy of kernels by source line.

with cudakit.trap("nan", "overflow"):
    kernel.launch(stream, grid=grid, block=block, args=(x, y))

with cudakit.float64_shadow() as accuracy:
    kernel.launch(stream, grid=grid, block=block, args=(x, y))
print(accuracy)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError
from cudakit.names import hint
from cudakit.sim.lockstep.report import plain_name
from cudakit.sim.probing.indices import IndexTraps
from cudakit.sim.probing.losses import LineAccuracy
from cudakit.sim.probing.shadow import ShadowProbe
from cudakit.sim.probing.traps import KINDS, ValueTraps

__all__ = ["KINDS", "AccuracyReport", "LineAccuracy", "float64_shadow", "trap"]


@contextlib.contextmanager
def trap(*kinds: str, device: Device | None = None) -> Iterator[None]:
    """Stop kernels of simulated devices at the first instruction that makes a wrong value from correct operands.

    Args:
        kinds: Some of `KINDS`; all of them if none is named.
            "nan": a NaN, and no operand is NaN.
            "inf": an infinity of finite operands, for any reason: 1 / 0, log(0), a result that is too large.
            "overflow": a result of finite operands that is too large for its format, including half, bfloat16 and
            8-bit floats, which may saturate; 32-bit index arithmetic whose result does not fit, used in an address.
            "denormal": a subnormal result of normal operands, or one that .ftz flushes to 0.
            "division": a division by 0, of floats or integers.
        device: The simulated device whose kernels are followed; by default those of all simulated devices of the
            process, including those opened in the block.

    The value counts once it is used: stored to global memory, an operand of an atomic, an address, or, if it is NaN, of
    a comparison that decides a branch. The report names the line that made it, with the operands. A value that another
    replaces (`x == 0 ? 0 : y / x`) is not reported.

    Raises:
        DeviceFault: From the call that waits for the kernel, at the end of the block at the latest.
        ValueError: If a kind is unknown.
        TypeError: If a kind is not a string, or the device not a Device.
        CudakitError: If the device is a GPU.
    """
    known = ", ".join(KINDS)
    for kind in kinds:
        if not isinstance(kind, str):
            raise TypeError(f"a trap for {kind!r} was requested; name kinds as strings, such as trap('nan'): {known}")
        if kind not in KINDS:
            raise ValueError(f"a trap for {kind!r} was requested; the kinds are {known}{hint(kind, KINDS)}")
    wanted = kinds or KINDS
    probes: list[Any] = [ValueTraps(wanted)]
    if "overflow" in wanted:
        probes.append(IndexTraps())
    with drivers.probing(*probes, driver=_driver(device, "a trap")):
        yield


@contextlib.contextmanager
def float64_shadow(device: Device | None = None) -> Iterator[AccuracyReport]:
    """Run kernels of simulated devices next to a shadow of themselves in float64, and report which lines lose accuracy.

    Args:
        device: The simulated device whose kernels are followed; by default those of all simulated devices of the
            process, including those opened in the block.

    Yields the report, which is complete after the block. The results of the kernels do not change.

    Raises:
        CudakitError: If the device is a GPU.
    """
    probe = ShadowProbe()
    with drivers.probing(probe, driver=_driver(device, "a float64 shadow")):
        yield AccuracyReport(probe)


def _driver(device: Device | None, what: str) -> Any:
    if device is None:
        return None
    if not isinstance(device, Device):
        raise TypeError(f"{what} of {device!r} was requested; device must be a cudakit.Device, such as Device('sim')")
    if device.kind != "sim":
        raise CudakitError(f"{what} of {device!r} was requested, but only simulated devices have it: use Device('sim')")
    return device.context.driver


class AccuracyReport:
    """The accuracy of kernels by source line.

    lines: a LineAccuracy per line with float operations, in the order in which they ran.
    losses: those that lose accuracy, the largest error in memory first.
    notes: the instructions at which the shadow restarts from the kernel's own values: errors made before are not seen.
    """

    def __init__(self, probe: ShadowProbe) -> None:
        self._shadows = probe.shadows

    @property
    def lines(self) -> list[LineAccuracy]:
        return self._shadows.lines

    @property
    def losses(self) -> list[LineAccuracy]:
        return self._shadows.losses()

    @property
    def notes(self) -> list[str]:
        names = ", ".join(self._shadows.restarts)
        return [f"the shadow restarts from the kernel's own values at {names}"] if names else []

    def worst(self, count: int = 10) -> list[LineAccuracy]:
        """Return the lines that lose accuracy, and after them those with the largest errors, `count` in total."""
        losses = self.losses
        lost = {id(line) for line in losses}
        rest = [line for line in self.lines if id(line) not in lost]
        return (losses + sorted(rest, key=lambda line: -line.error))[:count]

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain types, for JSON."""
        return {
            "losses": [line.as_dict() for line in self.losses],
            "lines": [line.as_dict() for line in self.lines],
            "notes": self.notes,
        }

    def __str__(self) -> str:
        losses = self.losses
        if not self._shadows.lines:
            return "no kernel with float operations has run"
        if not losses:
            head = "no line loses accuracy; the largest errors are"
        else:
            head = f"{len(losses)} line{'s' * (len(losses) != 1)} lose{'s' * (len(losses) == 1)} accuracy"
        text = [head]
        for line in losses:
            text += _described(line)
        rows: list[tuple[str, ...]] = [("line", "operations", "typical", "largest", "bits lost", "source")]
        for line in self.worst():
            place = f"{Path(line.place.file).name}:{line.place.line}"
            source = (line.place.text or "").strip()
            numbers = (f"{line.operations:,}", _error(line.typical), _error(line.error), f"{line.bits_lost:.0f}")
            rows.append((place, *numbers, source))
        return "\n".join([*text, "", *_aligned(rows), *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"AccuracyReport({len(self._shadows.lines)} lines, {len(self.losses)} lose accuracy)"


def _described(line: LineAccuracy) -> list[str]:
    """The printed form of a line that loses accuracy."""
    why = "its sum drops addends" if line.stagnates else f"loses {line.bits_lost:.0f} of {-line.unit} bits"
    right = 0.0 if line.stored_error <= 0 else max(0.0, -math.log10(line.stored_error))
    found = [
        f"  {line.place.file}:{line.place.line}: {why}; stored results have {right:.0f} correct digits at worst",
        *([f"      {line.place.text.strip()}"] if line.place.text else []),
        f"    kernel {plain_name(line.kernel)}, block {line.block}, thread {line.thread}: "
        f"{line.operation} = {line.result}, {line.exact} without rounding",
    ]
    return found


def _error(error: float) -> str:
    return "0" if error == 0 else f"{error:.1e}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """A table whose first and last columns are text and whose others are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell if column == last else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
