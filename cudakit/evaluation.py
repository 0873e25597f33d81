"""Bench and tune a family from Python: `report = cudakit.bench(FAMILY)` or `cudakit.tune(FAMILY)`, then `report.show()`
and `.save()`; a bench's report also has `.plot()`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cudakit.device import Device
from cudakit.measure.bench import Bench, Selection
from cudakit.measure.rows import BenchReport
from cudakit.shapes import Shape
from cudakit.show import inline, outputs, plots, tables, terminal, tuning_tables
from cudakit.tuning.run import Settings, TuneReport
from cudakit.tuning.run import tune as run_tuning

if TYPE_CHECKING:
    from cudakit.family import Ladder


@dataclass(repr=False)
class Report(BenchReport):
    """The rows of a bench. `ok` is True if no row failed; `as_dict()` has the contents that `save` writes."""

    def _repr_html_(self) -> str:
        return inline.bench(self.as_dict())

    def show(self) -> None:
        """Print the table: times on a GPU, counters on a simulated device."""
        tables.show(self.as_dict(), terminal.console())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, which `cudakit draw`, `cudakit fill` and `cudakit bench --against` read.

        Args:
            path: The file.
        """
        outputs.write_json(self.as_dict(), os.fspath(path))

    def plot(self, path: str | os.PathLike[str]) -> list[str]:
        """Draw one bar per variant if there is one shape, or one line per variant over several shapes.

        Needs the extra `plot`.

        Args:
            path: The picture; its ending names the format.

        Returns:
            The files that were written.
        """
        return [str(written) for written in plots.plot(self.as_dict(), os.fspath(path))]


def bench(
    family: Ladder[Any],
    device: str | Device | None = None,
    *,
    shapes: Sequence[Shape | int] | None = None,
    variants: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    once: bool = False,
    seed: int = 0,
) -> Report:
    """Check every variant of a family on every shape, and time those that are correct.

    For comparison, the peers and a copy of the same bytes (or the family's own ceiling) are timed in the same run. A
    simulated device reports counters instead of times.

    Args:
        family: The family.
        device: A Device or its name; None: `CUDAKIT_DEVICE`, or the first GPU, or the simulated device.
        shapes: Problem shapes; an int is a shape of one axis. The family's own shapes if None.
        variants: Names of the variants to run; all if None.
        dtypes: Names of the dtypes to run; the family's usual one if None.
        modes: Names of the modes to run; the family's usual one if None.
        once: Launch and check each variant once, without timing.
        seed: Seed of the inputs.

    Returns:
        The report, with one row per variant, shape, dtype and mode, also for those that failed or were skipped.

    Raises:
        TypeError: If the family is given by its name.
        Refused: If the family does not support a shape, or has no variant, dtype or mode of a given name.
    """
    _check_family(family)
    with _opened(device) as opened:
        places = _places(family.shapes_for(opened.kind, once=once) if shapes is None else shapes)
        runner = Bench(opened, once=once, seed=seed)
        made = runner.run(family, places, Selection(variants, dtypes, modes))
        if runner.device is not opened:  # a kernel lost it
            runner.device.close()
    return Report(**{entry.name: getattr(made, entry.name) for entry in fields(made)})


@dataclass(repr=False)
class TuningReport(TuneReport):
    """The configurations of a tuning. `ok` is True if none was wrong or failed; `as_dict()` has the contents that
    `save` writes."""

    def _repr_html_(self) -> str:
        return inline.tuning(self.as_dict())

    def show(self) -> None:
        """Print the best configurations per shape, those that failed, and the choices that are kept."""
        tuning_tables.show(self.as_dict(), terminal.console())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every configuration that was tried as JSON.

        Args:
            path: The file.
        """
        outputs.write_json(self.as_dict(), os.fspath(path))


def tune(
    family: Ladder[Any],
    device: str | Device | None = None,
    *,
    shapes: Sequence[Shape | int] | None = None,
    variants: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    budget: float = 60.0,
    search: str = "auto",
    seed: int = 0,
    cold: bool = False,
    keep: bool = True,
    threads: int | None = None,
) -> TuningReport:
    """Find the best configurations of a family's variants for each shape, and keep them for `variant="auto"`.

    A fault that loses a GPU ends the tuning; the command `cudakit tune` continues in another process.

    Args:
        family: The family.
        device: As for `bench`.
        shapes: As for `bench`.
        variants: As for `bench`.
        dtypes: As for `bench`.
        modes: As for `bench`.
        budget: Seconds per shape, dtype and mode.
        search: "auto", "exhaustive" or "random".
        seed: Seed of the search and of the inputs.
        cold: Do not start from the default configurations.
        keep: Whether to keep the best configurations; False leaves "auto" as it is.
        threads: Number of simultaneous compilations; the number of CPUs minus one if None.

    Returns:
        The report, with one row per configuration that was tried.

    Raises:
        TypeError: If the family is given by its name.
        Refused: If the family does not support a shape, or has no variant, dtype or mode of a given name.
    """
    _check_family(family)
    settings = Settings(budget, search, seed, cold, keep, threads)
    with _opened(device) as opened:
        places = _places(family.shapes_for(opened.kind) if shapes is None else shapes)
        made = run_tuning(opened, family, places, Selection(variants, dtypes, modes), settings)
    return TuningReport(**{entry.name: getattr(made, entry.name) for entry in fields(made)})


def _check_family(family: Any) -> None:
    """Raise TypeError for the name of a family, which only commands accept."""
    if isinstance(family, str):
        raise TypeError(
            f"family must be a Family, got {family!r}; import it: from cudakit.families.softmax import FAMILY"
        )


@contextmanager
def _opened(device: str | Device | None) -> Iterator[Device]:
    """The caller's device, which stays open, or a new one of this name, which is closed at the end."""
    if isinstance(device, Device):
        yield device
        return
    with Device(device) as opened:
        yield opened


def _places(shapes: Sequence[Shape | int]) -> list[Shape]:
    """Shapes as tuples; an int is a shape of one axis."""
    return [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
