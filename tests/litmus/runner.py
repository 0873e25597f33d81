"""Run litmus tests on a device and count the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cudakit

from .kernels import ALIGN, DELAY, PRELOAD, STRESS, Layout, entry, module
from .program import Variant

Outcomes = Counter[tuple[int, ...]]
_SCRATCH = 1 << 18  # elements of the memory that stressing blocks access
_STRESS_BLOCKS = 132
_TESTERS = 256  # blocks that run instances
_KERNELS = 32  # tests per module


@dataclass(frozen=True)
class Way:
    """How to run the instances of one launch. reverse: the order of the threads' code; multiplier: odd, spreads the
    instances over memory; mode: bits of `kernels`."""

    reverse: bool
    multiplier: int
    mode: int


WAYS = (
    Way(False, 1, ALIGN),
    Way(True, 0x9E3779B1, ALIGN | DELAY),
    Way(False, 1, ALIGN | PRELOAD | STRESS),
    Way(True, 0x9E3779B1, ALIGN | DELAY | STRESS),
    Way(False, 0x9E3779B1, ALIGN | DELAY | PRELOAD),
    Way(True, 1, ALIGN | DELAY | PRELOAD | STRESS),
)


def wide(variant: Variant, instances: int) -> Layout:
    """Return a layout of at least `instances` instances that fills a GPU if there are enough of them."""
    one = Layout(variant)
    one = replace(one, sets=max(1, 4 // one.warps))
    layout = replace(one, groups=max(1, min(_TESTERS // one.blocks, instances // one.instances)))
    return replace(layout, rounds=-(-instances // layout.instances))


def launch(device: cudakit.Device, kernel: Any, layout: Layout, way: Way, seed: int) -> Outcomes:
    """Run the instances of a layout and count the outcomes."""
    variant, length = layout.variant, layout.length
    registers = len(variant.registers)
    memory = device.zeros(length * len(variant.locations), np.uint32)
    results = device.zeros(max(1, registers) * length, np.uint32)
    counters = device.zeros(layout.instances, np.uint32)
    scratch = device.zeros(_SCRATCH if way.mode & STRESS else 1, np.uint32)
    kernel.launch(
        device.default_stream,
        grid=layout.testers + (_STRESS_BLOCKS if way.mode & STRESS else 0),
        block=layout.block,
        args=(memory, results, counters, scratch, way.multiplier, way.mode, seed),
        cluster=layout.blocks if variant.cluster else None,
    )
    got = list(results.numpy().reshape(-1, length)[:registers, : layout.instances])
    cells = memory.numpy().reshape(-1, length)
    instance = np.arange(layout.instances, dtype=np.uint64)
    for name in variant.final.split():
        at = variant.locations.index(name)
        got.append(cells[at][(instance * np.uint64(way.multiplier) + np.uint64(129 * at)) % np.uint64(length)])
    for array in (memory, results, counters, scratch):
        array.close()
    packed = np.zeros(layout.instances, np.uint64)
    for column in got:
        if int(column.max()) > 7:
            raise ValueError(f"{variant.name}: {column.max()} is not a value of the test")
        packed = packed * np.uint64(8) + column
    values, counts = np.unique(packed, return_counts=True)
    places = range(3 * (len(got) - 1), -1, -3)
    return Counter({tuple(int(v) >> at & 7 for at in places): int(n) for v, n in zip(values, counts, strict=True)})


def observe(
    device: cudakit.Device, variants: Sequence[Variant], instances: int, ways: Sequence[Way] = WAYS
) -> Iterator[tuple[Variant, Outcomes]]:
    """Run each test in each way, `instances` at a time, and yield the counts of its outcomes."""
    for start in range(0, len(variants), _KERNELS):
        layouts = [wide(variant, instances) for variant in variants[start : start + _KERNELS]]
        orders = [range(len(layout.variant.places)) for layout in layouts]
        entries = [
            entry(f"test{k}_{reverse:d}", layout, order[::-1] if reverse else order)
            for k, (layout, order) in enumerate(zip(layouts, orders, strict=True))
            for reverse in (False, True)
        ]
        loaded = device.load(module(entries), name="litmus.ptx")
        for k, layout in enumerate(layouts):
            counts: Outcomes = Counter()
            for number, way in enumerate(ways):
                counts += launch(device, loaded[f"test{k}_{way.reverse:d}"], layout, way, 977 * number + k)
            yield layout.variant, counts
        loaded.close()
