"""Run cases on a device, through cudakit itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cudakit

from .case import Bytes, Case, module
from .isolated import Work, resumed

KERNELS = 64  # per module


@dataclass
class Outcome:
    """A case's result, or the error if there is none."""

    result: Bytes | None = None
    error: str = ""


class Runner:
    """Runs cases on one device. spec: "sim" or "gpu"; options: of the simulated device.

    Cases run on a GPU in child processes, so that those after a fault run too.
    """

    def __init__(self, spec: str, **options: Any) -> None:
        self.simulated = spec.startswith("sim")
        self._spec = spec
        self._options = {"fresh": True, **options} if self.simulated else {}
        self._device: cudakit.Device | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def device(self) -> cudakit.Device:
        """The device, opened by the first access in a process."""
        if self._device is None:
            self._device = cudakit.Device(self._spec, **self._options)
        return self._device

    def _close(self) -> None:
        if self._device is not None:
            with contextlib.suppress(cudakit.CudakitError):
                self._device.close()
        self._device = None

    def about(self) -> dict[str, str]:
        """Return the device's name and versions."""
        ((_, found),) = self.resumed(1, lambda start: iter([(start, self.device.info())]), lambda text: {"name": text})
        return dict(found)

    def resumed(self, count: int, work: Work, lost: Any) -> Iterator[tuple[int, Any]]:
        """Yield (number, value) for the numbers 0 to count - 1 from work(start), which may end early after a fault."""
        if not self.simulated:
            yield from resumed(count, work, lost)
            return
        start = 0
        while start < count:
            for number, value in work(start):
                start = number + 1
                yield number, value
            self._close()  # after a fault, also of the last one

    def run(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
        """Yield each case with its outcome. Cases share modules; one that does not load is found by bisection."""

        def work(start: int) -> Iterator[tuple[int, Outcome]]:
            for at in range(start, len(cases), KERNELS):
                for number, outcome, lost in self._run_module(cases[at : at + KERNELS]):
                    yield at + number, outcome
                    if lost:
                        return

        for number, outcome in self.resumed(len(cases), work, lambda text: Outcome(error=text)):
            yield cases[number], outcome

    def here(self, case: Case) -> Outcome:
        """Run one case in this process.

        Raises:
            CudakitError: If its kernel does not load, or fails.
        """
        return self._launch(self.device.load(module([case]), name="hopper.ptx")["k0"], case)

    def _run_module(self, cases: Sequence[Case]) -> Iterator[tuple[int, Outcome, bool]]:
        """Yield the number and the outcome of each case, and whether the device was lost."""
        try:
            loaded = self.device.load(module(cases), name="hopper.ptx")
        except cudakit.CudakitError as error:
            if len(cases) == 1:
                yield 0, Outcome(error=short(error)), False
                return
            middle = len(cases) // 2
            for at, half in ((0, cases[:middle]), (middle, cases[middle:])):
                for number, outcome, lost in self._run_module(half):
                    yield at + number, outcome, lost
                    if lost:
                        return
            return
        for number, case in enumerate(cases):
            try:
                outcome = self._launch(loaded[f"k{number}"], case)
            except cudakit.CudakitError as error:
                yield number, Outcome(error=short(error)), True
                return
            yield number, outcome, False
        loaded.close()

    def _launch(self, kernel: cudakit.Kernel, case: Case) -> Outcome:
        device = self.device
        given, made = device.array(case.input()), device.array(case.output())
        try:
            maps = tuple(one.encoded(device, (made if one.of_output else given).pointer) for one in case.maps)
        except cudakit.CudakitError as error:  # the driver rejects a map: the context is as usable as before
            return Outcome(error=short(error))
        kernel.launch(
            device.default_stream,
            grid=case.cluster,
            block=case.block,
            args=(given, made, *maps),
            cluster=case.cluster if case.cluster > 1 else None,
        )
        result: Bytes = made.numpy()
        given.close()
        made.close()
        return Outcome(result)


def short(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    start = text.find("PTX line")
    return f"{type(error).__name__}: {text[max(start, 0) :][:300]}"
