"""The state of an mbarrier after each of a few operations: its 64 bits, both parities, and states' pending counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .case import HEADER
from .runner import Runner

_LIMIT = (1 << 20) - 1
_WORDS = 6  # per operation: the low and high word, test_wait of parity 0 and 1, pending count and test of the state


def _arrive(what: str = "arrive", count: str = "") -> str:
    return f"mbarrier.{what}.shared.b64 %k, [%b]{f', {count}' if count else ''};"


def _init(count: int) -> str:
    return f"mbarrier.init.shared.b64 [%b], {count};"


def _expect(size: int) -> str:
    return f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], {size};"


def _complete(size: int) -> str:
    return f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], {size};"


_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%in], 64, [%b]; nanosleep.u32 50000;"
_COPY = "cp.async.ca.shared.global [%s], [%in], 16;"
_ARRIVES = "arrive.expect_tx.release.cta"
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "fresh": (_init(1), _init(2), _init(5), _init(_LIMIT)),
    "arrivals": (_init(2), *(_arrive(),) * 5),
    "more arrivals than pending": (_init(2), _arrive(count="3"), _arrive(), _arrive()),
    "an arrival of 0": (_init(2), "mov.u32 %x, 0; " + _arrive(count="%x"), _arrive(), _arrive()),
    "expected, arrived, completed": (_init(1), _expect(64), _arrive(), _complete(32), _complete(32), _arrive()),
    "arrivals while only bytes are missing": (_init(1), _expect(64), _arrive(), _arrive(), _arrive(), _complete(64)),
    "completed before expected": (_init(1), _complete(64), _expect(64), _arrive()),
    "completed while pending": (_init(1), _expect(16), _complete(16), _arrive()),
    "more completed than expected, nothing pending": (_init(1), _expect(16), _arrive(), _complete(32), _expect(16)),
    "bytes below zero, then arrival": (_init(1), _complete(64), _arrive(), _expect(64)),
    "most bytes": (_init(1), _expect(_LIMIT), _expect(1), _expect(_LIMIT), _complete(_LIMIT), _complete(1)),
    "fewest bytes": (_init(1), _complete(_LIMIT), _complete(1), _complete(_LIMIT), _expect(_LIMIT)),
    "drop": (_init(3), _arrive("arrive_drop"), _arrive(), _arrive(), _arrive(), _arrive()),
    "drop 2": (_init(4), _arrive("arrive_drop", "2"), _arrive(count="2"), _arrive(), _arrive()),
    "drop all": (_init(1), _arrive("arrive_drop"), _arrive(), _arrive()),
    "without completion": (_init(3), _arrive("arrive.noComplete", "2"), _arrive(), _arrive("arrive.noComplete", "2")),
    "without completion, to the end": (_init(2), _arrive("arrive.noComplete", "2"), _arrive(), _arrive()),
    "arrive.expect_tx": (_init(2), f"mbarrier.{_ARRIVES}.shared::cta.b64 %k, [%b], 48;", _complete(48), _arrive()),
    "bulk load before its bytes are expected": (_init(1), _LOAD, _expect(64), _arrive()),
    "inval": (_init(3), _arrive(), "mbarrier.inval.shared.b64 [%b];", _init(2), _arrive()),
    "cp.async.mbarrier.arrive": (
        _init(1),
        f"{_COPY} cp.async.mbarrier.arrive.shared.b64 [%b];",
        "nanosleep.u32 50000;",
        _arrive(),
        f"{_COPY} cp.async.mbarrier.arrive.noinc.shared.b64 [%b]; nanosleep.u32 50000;",
    ),
    "cp.async.mbarrier.arrive without copies": (
        _init(2),
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%b]; nanosleep.u32 50000;",
        "cp.async.mbarrier.arrive.shared.b64 [%b]; nanosleep.u32 50000;",
        _arrive(),
    ),
    "phases": (_init(1), *(_arrive(),) * 6),
}


def module(operations: tuple[str, ...]) -> str:
    """Return a kernel that runs operations by one thread and stores the state after each."""
    lines = [
        HEADER,
        ".visible .entry k(.param .u64 pin, .param .u64 pout) {",
        ".shared .align 128 .b8 tile[256]; .reg .b64 %in, %out, %w, %k; .reg .b32 %b, %s, %x, %v<6>; .reg .pred %p;",
        "ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];",
        "cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;",
        "mov.u32 %s, tile; add.u32 %b, %s, 128; mov.b64 %k, 0;",
    ]
    for number, operation in enumerate(operations):
        state = "%k" in operation
        lines += [operation, "ld.volatile.shared.v2.b32 {%v0, %v1}, [%b];"]
        for parity in (0, 1):
            lines.append(f"mbarrier.test_wait.parity.shared.b64 %p, [%b], {parity}; selp.u32 %v{2 + parity}, 1, 0, %p;")
        lines.append("mov.u32 %v4, 0xffffffff; mov.u32 %v5, 0xffffffff;")
        if state:
            lines.append("mbarrier.pending_count.b64 %v4, %k;")
            lines.append("mbarrier.test_wait.shared.b64 %p, [%b], %k; selp.u32 %v5, 1, 0, %p;")
        lines += [f"st.global.b32 [%out+{4 * (_WORDS * number + k)}], %v{k};" for k in range(_WORDS)]
    return "\n".join([*lines, "ret;\n}\n"])


def _states(runner: Runner, title: str) -> Iterator[str]:
    yield f"mbarrier, {title}:"
    operations, device = EXPERIMENTS[title], runner.device
    kernel = device.load(module(operations), name="facts.ptx")["k"]
    given, made = device.zeros(64, np.uint8), device.zeros(_WORDS * len(operations), np.uint32)
    kernel.launch(device.default_stream, grid=1, block=1, args=(given, made))
    results = made.numpy().reshape(-1, _WORDS)
    for operation, (low, high, even, odd, pending, passed) in zip(operations, results.tolist(), strict=True):
        state = "" if pending == 0xFFFFFFFF else f", state: pending {pending}, passed {passed}"
        yield f"    {high:08x}{low:08x} parity 0: {even}, 1: {odd}{state}    {operation}"


PARTS = tuple(partial(_states, title=title) for title in EXPERIMENTS)
