"""Run forms on a device, through cudakit itself, and compare two devices' results."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cudakit

from . import bounds
from .forms import BLOCK, CELL, Form, module
from .operands import Words, vectors

Mask = NDArray[np.bool_]
KERNELS = 96  # per module


@dataclass
class Outcome:
    """A device's results of a form (one row per result), or the error if there are none."""

    results: Words | None = None
    error: str = ""


@dataclass
class Comparison:
    """Two devices' outcomes of one form. wrong: the lanes that differ, or that exceed the bound."""

    form: Form
    operands: Words
    sim: Outcome
    gpu: Outcome
    wrong: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    note: str = ""

    @property
    def cases(self) -> int:
        return self.operands.shape[1]

    @property
    def mismatches(self) -> int:
        if self.sim.error or self.gpu.error:
            return self.cases
        return int(self.wrong.sum())

    def lines(self, count: int = 3) -> list[str]:
        """Return the first lanes that differ, as text."""
        if self.sim.error or self.gpu.error:
            return [f"{self.form.short}: sim {self.sim.error or 'ran'}; gpu {self.gpu.error or 'ran'}"]
        sim, gpu = self.sim.results, self.gpu.results
        if sim is None or gpu is None:
            raise RuntimeError("an outcome has neither results nor an error")
        found = []
        for lane in np.flatnonzero(self.wrong)[:count]:
            of, ours, theirs = (" ".join(f"{int(row[lane]):x}" for row in rows) for rows in (self.operands, sim, gpu))
            found.append(f"{self.form.short} of {of}: sim {ours}, gpu {theirs} {self.note}".rstrip())
        return found


def padded(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


class Runner:
    """Runs forms on one device; opens it again after a kernel's fault. spec: "sim" or "gpu"."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.device = self._open()

    def _open(self) -> cudakit.Device:
        return cudakit.Device(self.spec, fresh=True) if self.spec.startswith("sim") else cudakit.Device(self.spec)

    def close(self) -> None:
        self.device.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, forms: Sequence[Form], operands: Sequence[Words]) -> list[Outcome]:
        """Return one outcome per form. Forms share modules; a form that does not load is found by bisection."""
        outcomes: list[Outcome] = []
        parts = [slice(at, at + KERNELS) for at in range(0, len(forms), KERNELS)]
        for part in parts:
            outcomes += self._run_module(forms[part], operands[part])
        return outcomes

    def text(self, forms: Sequence[Form]) -> str:
        """Return the module of some forms."""
        return module(forms)

    def _run_module(self, forms: Sequence[Form], operands: Sequence[Words]) -> list[Outcome]:
        try:
            loaded = self.device.load(self.text(forms), name="forms.ptx")
        except cudakit.CudakitError as error:
            if len(forms) == 1:
                return [Outcome(error=_short(error))]
            middle = len(forms) // 2
            return [
                *self._run_module(forms[:middle], operands[:middle]),
                *self._run_module(forms[middle:], operands[middle:]),
            ]
        outcomes = []
        for number, (form, rows) in enumerate(zip(forms, operands, strict=True)):
            try:
                outcomes.append(Outcome(self._launch(loaded[f"k{number}"], form, rows)))
            except cudakit.CudakitError as error:
                outcomes.append(Outcome(error=_short(error)))
                self._reopen()
                rest = slice(number + 1, None)
                return outcomes + (self._run_module(forms[rest], operands[rest]) if forms[rest] else [])
        loaded.close()
        return outcomes

    def _reopen(self) -> None:
        """Close the device and open it again: its context is unusable after a kernel's fault."""
        with contextlib.suppress(cudakit.CudakitError):
            self.device.close()
        self.device = self._open()

    def _launch(self, kernel: Any, form: Form, rows: Words) -> Words:
        device, count = self.device, rows.shape[1]
        given = device.array(rows) if rows.size else device.zeros(1, np.uint64)
        made = device.zeros((len(form.outputs), count), np.uint64)
        cells = device.zeros(count * CELL // 8, np.uint64)
        grid, block = self.shape(count)
        kernel.launch(device.default_stream, grid=grid, block=block, args=(given, made, cells, count))
        return made.numpy()

    def shape(self, count: int) -> tuple[int, int]:
        """Return the blocks, and the threads of each, that run ``count`` lanes."""
        return count // BLOCK, BLOCK


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    start = text.find("PTX line")
    return f"{type(error).__name__}: {text[max(start, 0) :][:160]}"


def compare(form: Form, operands: Words, sim: Outcome, gpu: Outcome) -> Comparison:
    """Compare two outcomes: bit for bit, or, for an approximate form, each with the bound."""
    found = Comparison(form, operands, sim, gpu)
    if sim.results is None or gpu.results is None:
        return found
    if not form.bound:
        found.wrong = (sim.results != gpu.results).any(axis=0)
        return found
    wrong_sim = bounds.misses(form, operands, sim.results)
    wrong_gpu = bounds.misses(form, operands, gpu.results)
    found.wrong = wrong_sim | wrong_gpu | bounds.classes_differ(form, sim.results, gpu.results, operands)
    found.note = "".join(
        f"({name} exceeds the bound)" for name, wrong in (("sim", wrong_sim), ("gpu", wrong_gpu)) if wrong.any()
    )
    return found


def batches(forms: Iterable[Form], count: int, seed: int = 0) -> Iterator[tuple[list[Form], list[Words]]]:
    """Yield one module's forms at a time, with operands. If count >= 1024, single 16-bit floats take all values."""
    pending = iter(forms)
    while chunk := list(itertools.islice(pending, KERNELS)):
        rows = []
        for form in chunk:
            wide = count >= 1024 and len(form.inputs) == 1 and form.inputs[0] in ("f16", "bf16", "e4m3x2", "e5m2x2")
            rows.append(vectors(form, 1 << 16 if wide else padded(count), seed))
        yield chunk, rows


def differ(forms: Sequence[Form], count: int, seed: int, ours: Runner, theirs: Runner) -> Iterator[Comparison]:
    """Compare each form on both devices. The GPU runs one module while the simulated device runs the previous one."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Any = None
        for chunk, rows in batches(forms, count, seed):
            there = pool.submit(theirs.run, chunk, rows)
            if waiting is not None:
                yield from _finish(ours, *waiting)
            waiting = (chunk, rows, there)
        if waiting is not None:
            yield from _finish(ours, *waiting)


def _finish(ours: Runner, chunk: list[Form], rows: list[Words], there: Any) -> Iterator[Comparison]:
    here = ours.run(chunk, rows)
    for form, operands, sim, gpu in zip(chunk, rows, here, there.result(), strict=True):
        yield compare(form, operands, sim, gpu)
