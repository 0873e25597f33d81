"""A bench or a tuning of a family from Python: `report = cudakit.bench(FAMILY)`, `cudakit.tune(FAMILY)`, then
`report.show()` and `.save()`, and a bench's `.plot()`."""

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
from cudakit.show import outputs, plots, tables, terminal, tuning_tables
from cudakit.tuning.run import Settings, TuneReport
from cudakit.tuning.run import tune as run_tuning

if TYPE_CHECKING:
    from cudakit.family import Ladder


@dataclass
class Report(BenchReport):
    """The rows of a bench. ok: whether no row failed. as_dict(): what `save` writes."""

    def show(self) -> None:
        """Prints the table: times on a GPU, counters on a simulated device."""
        tables.show(self.as_dict(), terminal.console())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as JSON, which `cudakit draw`, `cudakit fill` and `cudakit bench --against` read."""
        outputs.write_json(self.as_dict(), os.fspath(path))

    def plot(self, path: str | os.PathLike[str]) -> list[str]:
        """Draws one bar per variant for one shape, or one line per variant over several; the ending names the format.
        Returns the files that were written. Needs the extra `plot`."""
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
    """Checks every variant of a family on every shape, and times those that are correct next to a copy of the same
    bytes and the peers.

    device: a Device, or its name; the first GPU, or the simulated device, unless given. shapes: the family's own unless
    given; an int is a shape of one axis. variants, dtypes, modes: by name; all variants, the usual dtype and mode
    unless given. once: launch each variant once, checked and not timed. seed: of the inputs.
    Raises Refused for a shape or name that the family does not have.
    """
    with _opened(device) as opened:
        places = _places(family.shapes_for(opened.kind, once=once) if shapes is None else shapes)
        runner = Bench(opened, once=once, seed=seed)
        made = runner.run(family, places, Selection(variants, dtypes, modes))
        if runner.device is not opened:  # a kernel lost it
            runner.device.close()
    return Report(**{entry.name: getattr(made, entry.name) for entry in fields(made)})


@dataclass
class TuningReport(TuneReport):
    """The configurations of a tuning. ok: whether none was wrong or failed. as_dict(): what `save` writes."""

    def show(self) -> None:
        """Prints the best configurations of each shape, what ended badly, and what is kept."""
        tuning_tables.show(self.as_dict(), terminal.console())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes every configuration that was tried as JSON."""
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
    """Finds the best configurations of a family's variants for each shape, and keeps them for `variant="auto"`.

    device, shapes, variants, dtypes, modes: as for `bench`. budget: seconds for each shape, dtype and mode. search:
    "auto", "exhaustive" or "random". seed: of the search and the inputs. cold: do not start from the usual
    configurations. keep: False leaves "auto" as it is. threads: compiles at once, one per CPU unless given. A fault
    that loses a GPU ends it; the command `cudakit tune` goes on in another process.
    Raises Refused for a shape or name that the family does not have.
    """
    settings = Settings(budget, search, seed, cold, keep, threads)
    with _opened(device) as opened:
        places = _places(family.shapes_for(opened.kind) if shapes is None else shapes)
        made = run_tuning(opened, family, places, Selection(variants, dtypes, modes), settings)
    return TuningReport(**{entry.name: getattr(made, entry.name) for entry in fields(made)})


@contextmanager
def _opened(device: str | Device | None) -> Iterator[Device]:
    """A caller's device, which stays open, or one by its name for as long as it is used."""
    if isinstance(device, Device):
        yield device
        return
    with Device(device) as opened:
        yield opened


def _places(shapes: Sequence[Shape | int]) -> list[Shape]:
    """Shapes, of which an int is one of one axis."""
    return [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
