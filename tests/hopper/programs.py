"""Random mbarrier programs without races or deadlocks, and what the rules determine of their results.

A program is made by a random walk: in each step one warp does an operation that is legal in the state of the walk. The
rules keep every other order of the same operations equivalent:

- A warp arrives, or changes the transaction count, only if it knows that the previous phase is complete: by its own
  wait, or by one that the arrivals of another warp or a barrier of all threads have passed on.
- The arrivals of a phase add up to its expected count, so none is early and none is late.
- Expected bytes precede an arrival of the same warp in the same phase. Bytes may complete before they are expected.
- A warp that waits for a phase arrives in the next one, so no later phase of that parity completes before.

Every wait is for a phase that the walk has completed: by induction over the walk, all of them end.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOT = 128  # bytes of a destination of copies
SLOTS = 10  # per block
LANES = 32
MAXIMUM = 4  # barriers per program


@dataclass(frozen=True)
class Op:
    """One operation of a warp.

    what: "arrive", "expect", "complete", "load" (bulk, from global memory), "send" (bulk, to the other block), "store"
    (st.async), "cp.async" (with .noinc, which arrives), "wait", "test" or "read" (of a slot). barrier: its number.
    lanes: 1 (lane 0) or 32. count: arrivals per lane. tx: bytes to expect or to complete. token: the number of the
    state that an arrival returns or a wait uses, -1 for none. parity: of a wait or test. slot: of the copied data, in
    the barrier's block. at: the first word of the result that it stores, -1 for none. how: a variant of the
    instruction.
    """

    what: str
    barrier: int
    lanes: int = 1
    count: int = 1
    drop: bool = False
    complete: bool = True
    tx: int = 0
    token: int = -1
    parity: int = 0
    slot: int = -1
    at: int = -1
    how: str = ""


Segment = dict[int, list[Op]]


@dataclass(frozen=True)
class Program:
    """counts, homes: the initial count and the block of each barrier. segments: the operations of each warp (numbered
    over all blocks) between barriers of all threads. renewed: per segment, barriers that are invalidated and
    initialised again before it, with their new counts. words: of the result, before its final part. expected: words
    that the rules determine. reads: (first word, block, slot) of the copied data that warps have read. copies: the
    operation that wrote a slot of a block, and the number of bytes. final: per barrier a warp, which
    tests the last phase at the end, its parity, and the pending count."""

    seed: int
    blocks: int
    warps: int
    counts: tuple[int, ...]
    homes: tuple[int, ...]
    segments: tuple[Segment, ...]
    renewed: tuple[dict[int, int], ...]
    words: int
    expected: dict[int, int]
    reads: tuple[tuple[int, int, int], ...]
    copies: dict[tuple[int, int], tuple[Op, int]]
    final: tuple[tuple[int, int, int], ...]

    @property
    def name(self) -> str:
        return f"mbarrier program {self.seed}"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.blocks} blocks of {self.warps} warps"]
        for k, (count, home) in enumerate(zip(self.counts, self.homes, strict=True)):
            lines.append(f"barrier {k} of block {home}: count {count}")
        for number, segment in enumerate(self.segments):
            if self.renewed[number]:
                lines.append(f"renewed: {self.renewed[number]}")
            for warp, ops in sorted(segment.items()):
                for op in ops:
                    shown = ", ".join(
                        f"{key} {value}" for key, value in vars(op).items() if value != vars(_NOTHING)[key]
                    )
                    lines.append(f"  block {warp // self.warps} warp {warp % self.warps}: {shown}")
            lines.append("barrier of all threads")
        return "\n".join(lines)


_NOTHING = Op("", -1)
