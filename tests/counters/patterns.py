"""Wavefronts of single accesses to shared memory: patterns of 32 offsets, counted per instruction on a GPU.

    python -m tests.counters.patterns tests/data/wavefronts_h200.npz

runs them under ncu on a GPU and records its counts; `tests/sim/test_counters_agree.py` compares the simulated device
with the recording.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cudakit
from cudakit import profiling
from cudakit.commands import cli
from cudakit.errors import Refused

Numbers = NDArray[np.int64]

COUNT = 96  # kPatterns of patterns.cu
ACCESSES = {"load_4": 4, "load_8": 8, "load_16": 16, "store_8": 8, "store_16": 16}
COPIES = {"copy_4": 4, "copy_8": 8, "copy_16": 16, "copy_16_bypass": 16}
METRICS = (
    "memory_l1_wavefronts_shared",
    "memory_l1_wavefronts_shared_ideal",
    "memory_l1_tag_requests_global",
    "memory_l2_theoretical_sectors_global",
    "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "inst_executed",
)
_LANES = np.arange(32)

# Functions from lanes to elements, before some are shuffled or made inactive.
_REGULAR: tuple[Callable[[Numbers], Numbers], ...] = (
    lambda t: t,
    lambda t: t * 0,
    lambda t: t // 2,
    lambda t: t // 4,
    lambda t: t // 8,
    lambda t: t // 16,
    lambda t: t % 2,
    lambda t: t % 4,
    lambda t: t % 8,
    lambda t: t % 16,
    lambda t: t // 2 % 2,
    lambda t: t // 4 % 2,
    lambda t: t // 4 % 4,
    lambda t: t // 2 % 8,
    lambda t: t % 4 + t // 8 * 4,
    lambda t: t % 2 + t // 4 * 2,
    lambda t: t % 8 + t // 16 * 8,
    lambda t: t * 2,
    lambda t: t * 3,
    lambda t: t * 4,
    lambda t: t * 8,
    lambda t: t * 9,
    lambda t: t * 32,
    lambda t: t * 33,
    lambda t: t ^ (t // 8),
    lambda t: 31 - t,
    lambda t: t // 2 * 8,
    lambda t: t // 2 * 32,
    lambda t: t % 2 * 32 + t // 2,
    lambda t: t % 4 * 8 + t // 4,
)


def offsets(size: int, seed: int) -> Numbers:
    """(COUNT, 32) byte offsets, multiples of `size` below 16 KiB; -1 for inactive lanes."""
    rng = np.random.default_rng(seed)
    rows = [made(_LANES) for made in _REGULAR]
    for number in range(COUNT - len(rows)):
        if number % 3 == 0:  # few different elements
            row = rng.choice(rng.integers(0, 64, 1 + number % 12), 32)
        elif number % 3 == 1:  # regular, shuffled
            row = rng.permutation(rows[rng.integers(len(_REGULAR))])
        else:
            row = rng.integers(0, 128, 32)
        rows.append(row)
    found: Numbers = np.array(rows, np.int64) * size % 16384
    for row in found[40:]:
        out = rng.integers(5)
        if out == 0:
            row[rng.random(32) < rng.random()] = -1
        elif out == 1:
            row[rng.integers(1, 32) :] = -1
        elif out == 2:
            row[rng.integers(2) == _LANES % 2] = -1
    found[(found < 0).all(axis=1), 0] = 0
    return found


def sources(size: int, seed: int) -> tuple[Numbers, Numbers]:
    """Return (COUNT, 32) byte offsets of the copies' sources in global memory, and the number of bytes that each
    copies."""
    rng = np.random.default_rng(seed + 1)
    rows, bytes_ = [], np.full((COUNT, 32), size, np.int64)
    for number in range(COUNT):
        run = int(2 ** rng.integers(0, 6))  # consecutive lanes that read consecutive elements
        pitch = int(rng.choice((run, run, 2 * run, run + 1, 64, 100)))
        rows.append(_LANES % run + _LANES // run * pitch + rng.integers(0, 9) * (number % 2))
        if number % 4 == 3:
            bytes_[number, rng.random(32) < rng.random()] = 0
        elif number % 8 == 6:
            bytes_[number] = 0
    return np.array(rows, np.int64) * size, bytes_


def launch(device: cudakit.Device) -> None:
    """Launch every kernel of patterns.cu once."""
    module = device.compile(Path(__file__).with_name("patterns.cu"))
    stream = device.default_stream
    for seed, (name, size) in enumerate((ACCESSES | COPIES).items()):
        table = device.array(offsets(size, seed).astype(np.int32))
        if name in ACCESSES:
            arguments: tuple[Any, ...] = (table, device.empty(32, np.uint32))
        else:
            at, counts = (device.array(array.astype(np.int32)) for array in sources(size, seed))
            arguments = (table, at, counts, device.zeros(1 << 17, np.uint8))
        module[name].launch(stream, grid=1, block=32, shared=32768, args=arguments)
    device.synchronize()


def recorded(report: Path) -> dict[str, Numbers]:
    """Return ncu's counts of each pattern, by kernel and metric, in the order of the code."""
    found = {}
    for action in _actions(report):
        for name in METRICS:
            metric = action.metric_by_name(name)
            if metric is None or not metric.num_instances():
                continue
            places = metric.correlation_ids()
            by_place = sorted((places.as_uint64(i), metric.as_uint64(i)) for i in range(metric.num_instances()))
            found[f"{action.name()}.{name}"] = np.array(by_place, np.int64)
    return found


def _actions(report: Path) -> list[Any]:
    """Return the launches of a report from ncu's reader, with counts per instruction."""
    folder = profiling.find_reader(profiling.find_ncu())
    if folder is None:
        raise Refused("ncu's Python module ncu_report was not found next to ncu")
    sys.path.insert(0, str(folder))
    reader: Any = importlib.import_module("ncu_report")
    launches = reader.load_report(str(report)).range_by_idx(0)
    return [launches.action_by_idx(number) for number in range(launches.num_actions())]


def main() -> int:
    if sys.argv[1:] == ["--launch"]:
        with cli.open_device("gpu") as device:
            launch(device)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "patterns.ncu-rep"
        command = [sys.executable, "-m", "tests.counters.patterns", "--launch"]
        profiling.run_ncu(command, report, metrics=METRICS)
        np.savez_compressed(sys.argv[1], **recorded(report))
    return 0


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
