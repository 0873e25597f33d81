"""A progress bar for `pipeline.run`: items, GB/s in each direction, and the rate of each worker of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from cudakit.pipeline.chunk import Progress

_SHOWN = 6  # workers with a rate of their own; the others are one sum


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show a bar while the context is active, if the console is a terminal.

    Args:
        console: The console; standard error if None.

    Yields:
        The function for `pipeline.run(progress=...)`.
    """
    console = Console(stderr=True) if console is None else console
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = console.quiet or not console.is_terminal
    with RichProgress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)

        def tell(far: Progress) -> None:
            bar.update(task, completed=far.items, total=far.count, description=described(far))

        yield tell


def described(far: Progress) -> str:
    """Return the rates as text: both directions, then items per second of each worker, the fastest first."""
    text = f"{far.gbps_in:.1f} GB/s in, {far.gbps_out:.1f} GB/s out"
    if not far.workers:
        return text
    workers = sorted(far.workers, key=lambda worker: -(worker.rate or 0.0))
    rates = [f"{worker.name} {_rate(worker.rate)}" for worker in workers[:_SHOWN]]
    others = workers[_SHOWN:]
    if others:
        rates.append(f"{len(others)} others {_rate(sum(worker.rate or 0.0 for worker in others))}")
    return f"{text}; {', '.join(rates)}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.3g}/s" if rate < 1000 else f"{rate:,.0f}/s"
