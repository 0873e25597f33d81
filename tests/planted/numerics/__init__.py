"""Kernels with planted numerical bugs, each with its correct twin: `wrong` and `right` of one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
ROWS, COLUMNS, N = 64, 96, 256


@dataclass(frozen=True)
class Case:
    """A bug. kind: of the trap's report; "" if the shadow finds it. trap: the trap that stops it. arguments: those of
    both kernels, as numpy arrays (a copy on the device each) and numbers, for `threads` threads."""

    name: str
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    trap: str = ""
    kind: str = ""
    grid: int = 1
    block: int = ROWS

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.cu"

    @property
    def bug(self) -> int:
        """The marked line."""
        lines = self.file.read_text().splitlines()
        return next(number for number, text in enumerate(lines, 1) if "// BUG" in text)


def _float(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def _results(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _masked(rng: np.random.Generator) -> tuple[Any, ...]:
    mask = _float(rng.random((ROWS, COLUMNS)) < 0.5)
    mask[9] = 0
    return _float(rng.standard_normal((ROWS, COLUMNS))), mask, _results(ROWS), ROWS, COLUMNS


def _softmax(rng: np.random.Generator) -> tuple[Any, ...]:
    return _float(rng.standard_normal((4, 64)) + 100 * (np.arange(4) == 2)[:, None]), _results(4, 64)


def _variance(rng: np.random.Generator) -> tuple[Any, ...]:
    return _float(rng.standard_normal((ROWS, COLUMNS)) + 3000), _results(ROWS), ROWS, COLUMNS


def _window(rng: np.random.Generator) -> tuple[Any, ...]:
    row0, rows, pitch = 40_000, 64, 60_000
    return _float(rng.standard_normal(rows * pitch)), _results(rows), row0, rows, pitch, row0 * pitch


def _halves(rng: np.random.Generator) -> tuple[Any, ...]:
    x = rng.uniform(0.05, 0.15, (ROWS, 4096)).astype(np.float16)
    return x, _results(ROWS), ROWS, 4096


def _norm(rng: np.random.Generator) -> tuple[Any, ...]:
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float16)
    x[30] *= np.float16(50)
    return x, _results(ROWS, COLUMNS, dtype=np.float16), ROWS, COLUMNS


def _circle(rng: np.random.Generator) -> tuple[Any, ...]:
    x = _float(np.sin(rng.uniform(0, 6, N)))
    x[77] = np.nextafter(np.float32(1), np.float32(2))
    return x, _results(N), N


def _chances(rng: np.random.Generator) -> tuple[Any, ...]:
    p = rng.random((ROWS, COLUMNS))
    p[5, 7] = 0
    return _float(p / p.sum(axis=1, keepdims=True)), _results(ROWS), ROWS, COLUMNS


def _likely(rng: np.random.Generator) -> tuple[Any, ...]:
    return _float(rng.uniform(0.3, 0.5, (ROWS, COLUMNS))), _results(ROWS), ROWS, COLUMNS


def _counted(rng: np.random.Generator) -> tuple[Any, ...]:
    x = _float(rng.random((ROWS, COLUMNS)))
    return x, _results(ROWS), np.float32(0.25), ROWS, COLUMNS, (1 << 24) - 10


def _buckets(rng: np.random.Generator) -> tuple[Any, ...]:
    counts = rng.integers(1, 9, N).astype(np.int32)
    counts[100] = 0
    return (counts * 3).astype(np.int32), counts, _results(N, dtype=np.int32), N


def _roots(rng: np.random.Generator) -> tuple[Any, ...]:
    return _float(rng.uniform(2000, 9000, N)), _float(rng.uniform(1, 2, N)), _results(N), N


def _small(rng: np.random.Generator) -> tuple[Any, ...]:
    return _float(rng.uniform(1e-6, 1e-5, N)), _results(N), N


def _vectors(rng: np.random.Generator) -> tuple[Any, ...]:
    a, b = _float(rng.standard_normal((N, 2))), _float(rng.standard_normal((N, 2)))
    b[::64] = a[::64] * 2
    return a, b, _results(N), N


def _total(rng: np.random.Generator) -> tuple[Any, ...]:
    return (_float([1 << 24]),)


def _unequal(rng: np.random.Generator) -> tuple[Any, ...]:
    x = _float(rng.uniform(0.1, 0.4, (ROWS, COLUMNS)))
    x[:, 0] = 1e7
    return x, _results(ROWS), ROWS, COLUMNS


CASES = {
    case.name: case
    for case in (
        Case("masked_mean", _masked, "nan", "NaN made"),
        Case("softmax_no_max", _softmax, "overflow", "overflow", grid=4),
        Case("variance_of_squares", _variance),
        Case("offset_in_window", _window, "overflow", "index overflow"),
        Case("half_sum", _halves),
        Case("half_norm", _norm, "overflow", "overflow"),
        Case("root_of_residue", _circle, "nan", "NaN made", block=N),
        Case("entropy", _chances, "inf", "infinity made"),
        Case("likelihood", _likely, "denormal", "denormal result"),
        Case("float_counter", _counted),
        Case("mean_of_buckets", _buckets, "division", "division by zero", block=N),
        Case("quadratic", _roots, block=N),
        Case("log_of_one_plus", _small, block=N),
        Case("angle", _vectors, "nan", "NaN made", block=N),
        Case("atomic_counter", _total, grid=8, block=N),
        Case("compensated_sum", _unequal),
    )
}
