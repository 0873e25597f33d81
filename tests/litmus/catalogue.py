"""The litmus tests: shapes, orders, fences, scopes and placements.

The names of shapes are those of the literature: MP (message passing), SB (store buffering), LB (load buffering), IRIW
(independent reads of independent writes), WRC (write to read causality), ISA2, S, R, 2+2W, and CoRR, CoWW, CoWR and
CoRW (coherence of one location). Release sequences pass a release on through atomics.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from .program import Variant

# how a thread sets the flag y after its data, and how another one reads it before them; S is the scope
_SETS = {
    "weak": "st.weak y 1",
    "volatile": "st.volatile y 1",
    "relaxed": "st.relaxed.S y 1",
    "release": "st.release.S y 1",
    "fence": "fence.acq_rel.S; st.relaxed.S y 1",
    "sc": "fence.sc.S; st.relaxed.S y 1",
    "membar": "membar.S; st.volatile y 1",
    "fence weak": "fence.acq_rel.S; st.weak y 1",
    "twice": "st.release.S z 1; st.relaxed.S y 1",
    "atom": "atom.relaxed.S.exch r3 y 1",
    "atom release": "atom.release.S.exch r3 y 1",
    "fence atom": "fence.acq_rel.S; atom.relaxed.S.exch r3 y 1",
    "fence red": "fence.acq_rel.S; red.relaxed.S.add y 1",
    "red release": "red.release.S.add y 1",
}
_GETS = {
    "weak": "ld.weak r0 y",
    "volatile": "ld.volatile r0 y",
    "relaxed": "ld.relaxed.S r0 y",
    "acquire": "ld.acquire.S r0 y",
    "fence": "ld.relaxed.S r0 y; fence.acq_rel.S",
    "sc": "ld.relaxed.S r0 y; fence.sc.S",
    "membar": "ld.volatile r0 y; membar.S",
    "fence weak": "ld.weak r0 y; fence.acq_rel.S",
    "atom": "atom.relaxed.S.add r0 y 0",
    "atom acquire": "atom.acquire.S.add r0 y 0",
    "fence atom": "atom.relaxed.S.add r0 y 0; fence.acq_rel.S",
}
_ORDERED = [
    ("release", "acquire"), ("fence", "fence"), ("sc", "sc"), ("fence", "acquire"), ("release", "fence"),
    ("membar", "membar"), ("fence atom", "fence atom"), ("atom release", "atom acquire"), ("fence red", "fence"),
    ("red release", "acquire"),
]  # fmt: skip
_UNORDERED = [
    ("weak", "weak"), ("relaxed", "relaxed"), ("volatile", "volatile"), ("atom", "atom"), ("relaxed", "acquire"),
    ("release", "relaxed"), ("fence", "relaxed"), ("fence atom", "atom"), ("fence weak", "fence weak"),
    ("twice", "acquire"),
]  # fmt: skip
_FEW = [
    ("release", "acquire"), ("fence", "fence"), ("membar", "membar"), ("fence atom", "fence atom"),
    ("relaxed", "relaxed"), ("relaxed", "acquire"), ("release", "relaxed"), ("fence weak", "fence weak"),
]  # fmt: skip


def _scoped(text: str, scope: str) -> str:
    return text.replace("membar.S", f"membar.{scope.replace('gpu', 'gl')}").replace(".S", f".{scope}")


def _passing(
    pair: tuple[str, str], scope: str, placement: str, *, data: str = "weak", other: str = "", shared: str = ""
) -> Variant:
    """Message passing: the reader reads the data only if it has seen the flag. other: the scope of the reader."""
    one, two = _scoped(_SETS[pair[0]], scope), _scoped(_GETS[pair[1]], other or scope)
    return Variant("MP", f"st.{data} x 1; {one} | {two}; if r0=1: ld.{data} r1 x", placement, shared=shared)


def _message_passing() -> Iterator[Variant]:
    for pair in _ORDERED + _UNORDERED:
        yield _passing(pair, "gpu", "blocks")
        yield _passing(pair, "cta", "warps")
    for pair in _FEW:
        yield _passing(pair, "cta", "lanes")
        yield _passing(pair, "cta", "warps", shared="x y")
        # a scope that leaves out the other block
        yield _passing(pair, "cta", "blocks")
    for pair in [pair for pair in _FEW if "membar" not in pair]:
        yield _passing(pair, "cluster", "cluster")
        yield _passing(pair, "cluster", "cluster", shared="x y")
    for pair in [("release", "acquire"), ("fence", "fence")]:
        yield _passing(pair, "cta", "lanes", shared="x y")
        yield _passing(pair, "cluster", "blocks")
        yield _passing(pair, "cta", "cluster")
        yield _passing(pair, "sys", "blocks")
        yield _passing(pair, "gpu", "blocks", other="cta")
        yield _passing(pair, "cta", "blocks", other="gpu")
        # data in shared memory, the flag in global memory, and the reverse
        yield _passing(pair, "cta", "warps", shared="x")
        yield _passing(pair, "cta", "warps", shared="y")
        # only the data have a scope that is too small
        yield _passing(pair, "gpu", "blocks", data="relaxed.cta")
    yield _passing(("relaxed", "acquire"), "cta", "lanes", shared="x y")
    for get in ("weak", "relaxed.gpu"):
        yield Variant(
            "MP", f"red.relaxed.gpu.add x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; if r0=1: ld.{get} r1 x"
        )
        yield Variant(
            "MP", f"red.relaxed.gpu.add x 1; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; if r0=1: ld.{get} r1 x"
        )
    # without a condition: data are strong, or in a data race
    for get in ("relaxed", "acquire", "fence"):
        for put in ("relaxed", "release", "fence"):
            for scope, placement in (("gpu", "blocks"), ("cta", "warps")):
                one, two = _scoped(_SETS[put], scope), _scoped(_GETS[get], scope)
                yield Variant("MP", f"st.relaxed.{scope} x 1; {one} | {two}; ld.relaxed.{scope} r1 x", placement)
    for placement, scope in (("blocks", "gpu"), ("warps", "cta")):
        one, two = _scoped(_SETS["release"], scope), _scoped(_GETS["acquire"], scope)
        yield Variant("MP", f"st.weak x 1; {one} | {two}; ld.weak r1 x", placement)
    yield Variant("MP", "st.volatile x 1; st.volatile y 1 | ld.volatile r0 y; ld.volatile r1 x")
    yield Variant("MP", "st.volatile x 1; st.volatile y 1 | ld.volatile r0 y; ld.volatile r1 x", "lanes", shared="x y")
    yield Variant("MP", "st.weak x 1; st.weak y 1 | ld.weak r0 y; ld.weak r1 x")


def _buffering() -> Iterator[Variant]:
    for fence in ("", "fence.acq_rel.gpu; ", "fence.sc.gpu; ", "membar.gl; ", "fence.sc.cta; ", "fence.sc.sys; "):
        yield Variant(
            "SB", f"st.relaxed.gpu x 1; {fence}ld.relaxed.gpu r0 y | st.relaxed.gpu y 1; {fence}ld.relaxed.gpu r1 x"
        )
    for fence in ("", "fence.acq_rel.cta; ", "fence.sc.cta; ", "membar.cta; "):
        for placement, shared in (("warps", ""), ("warps", "x y"), ("lanes", "")):
            one = f"st.relaxed.cta x 1; {fence}ld.relaxed.cta r0 y"
            two = f"st.relaxed.cta y 1; {fence}ld.relaxed.cta r1 x"
            yield Variant("SB", f"{one} | {two}", placement, shared=shared)
    yield Variant("SB", "st.release.gpu x 1; ld.acquire.gpu r0 y | st.release.gpu y 1; ld.acquire.gpu r1 x")
    yield Variant("SB", "st.volatile x 1; ld.volatile r0 y | st.volatile y 1; ld.volatile r1 x")
    yield Variant("SB", "st.weak x 1; ld.weak r0 y | st.weak y 1; ld.weak r1 x")
    yield Variant("SB", "st.weak x 1; fence.sc.gpu; ld.weak r0 y | st.weak y 1; fence.sc.gpu; ld.weak r1 x")
    yield Variant(
        "SB", "atom.relaxed.gpu.exch r2 x 1; ld.relaxed.gpu r0 y | atom.relaxed.gpu.exch r3 y 1; ld.relaxed.gpu r1 x"
    )
    # Dekker's entry: a thread that sees no other one may use the data
    yield Variant(
        "SB", "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0=0: st.weak z 1 | "
        "st.relaxed.gpu y 1; fence.sc.gpu; ld.relaxed.gpu r1 x; if r1=0: st.weak z 2",
    )  # fmt: skip
    yield Variant(
        "SB", "st.relaxed.gpu x 1; fence.acq_rel.gpu; ld.relaxed.gpu r0 y; if r0=0: st.weak z 1 | "
        "st.relaxed.gpu y 1; fence.acq_rel.gpu; ld.relaxed.gpu r1 x; if r1=0: st.weak z 2",
    )  # fmt: skip
    for scope, placement in (("gpu", "blocks"), ("cta", "warps")):
        for get, put in (("relaxed", "relaxed"), ("acquire", "release"), ("acquire", "relaxed")):
            one = f"ld.{get}.{scope} r0 x; st.{put}.{scope} y 1"
            yield Variant("LB", f"{one} | ld.{get}.{scope} r1 y; st.{put}.{scope} x 1", placement)
    yield Variant("LB", "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0 | ld.relaxed.gpu r1 y; st.relaxed.gpu x r1")
    yield Variant(
        "LB", "ld.relaxed.gpu r0 x; if r0=1: st.relaxed.gpu y 1 | ld.relaxed.gpu r1 y; if r1=1: st.relaxed.gpu x 1"
    )
    yield Variant("LB", "ld.weak r0 x; st.weak y 1 | ld.weak r1 y; st.weak x 1")


def _independent() -> Iterator[Variant]:
    for placement, scope in (("blocks", "gpu"), ("warps", "cta")):
        for get, fence in (("relaxed", ""), ("acquire", ""), ("relaxed", "acq_rel"), ("relaxed", "sc")):
            between = f"fence.{fence}.{scope}; " if fence else ""
            yield Variant(
                "IRIW",
                f"st.relaxed.{scope} x 1 | ld.{get}.{scope} r0 x; {between}ld.{get}.{scope} r1 y | "
                f"st.relaxed.{scope} y 1 | ld.{get}.{scope} r2 y; {between}ld.{get}.{scope} r3 x",
                placement,
            )


def _coherence() -> Iterator[Variant]:
    for kind, scope, placement in (
        ("weak", "", "blocks"), ("volatile", "", "blocks"), ("relaxed", ".gpu", "blocks"), ("relaxed", ".cta", "warps"),
        ("relaxed", ".cta", "blocks"),
    ):  # fmt: skip
        st, ld = f"st.{kind}{scope}", f"ld.{kind}{scope}"
        yield Variant("CoRR", f"{st} x 1 | {ld} r0 x; {ld} r1 x", placement)
        yield Variant("CoWW", f"{st} x 1; {st} x 2 | {ld} r0 x; {ld} r1 x", placement, "x")
        yield Variant("CoWR", f"{st} x 1; {ld} r0 x | {st} x 2", placement, "x")
        yield Variant("CoRW", f"{ld} r0 x; {st} x 1 | {st} x 2", placement, "x")
    yield Variant("CoRR", "st.relaxed.cta x 1 | ld.relaxed.cta r0 x; ld.relaxed.cta r1 x", "warps", shared="x")
    yield Variant("CoRR", "st.weak x 1 | ld.weak r0 x; ld.weak r1 x", "warps", shared="x")
    yield Variant("CoRR", "st.relaxed.cta x 1 | ld.relaxed.cta r0 x; ld.relaxed.cta r1 x", "lanes")
    yield Variant("CoRR", "st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; ld.weak r1 x")
    yield Variant("CoRR", "atom.relaxed.gpu.add r0 x 1 | atom.relaxed.gpu.add r1 x 1", "blocks", "x")
    yield Variant("CoRR", "atom.relaxed.cta.add r0 x 1 | atom.relaxed.gpu.add r1 x 1", "blocks", "x")
    yield Variant("CoRR", "atom.relaxed.cta.add r0 x 1 | atom.relaxed.cta.add r1 x 1", "warps", "x")
    yield Variant("CoRR", "atom.relaxed.cta.add r0 x 1 | atom.relaxed.cta.add r1 x 1", "warps", shared="x")
    yield Variant("CoRR", "red.relaxed.gpu.add x 1 | ld.weak r0 x", "blocks", "x")


def _writes() -> Iterator[Variant]:
    for fence in ("", "fence.acq_rel.gpu; ", "fence.sc.gpu; "):
        yield Variant(
            "2+2W",
            f"st.relaxed.gpu x 1; {fence}st.relaxed.gpu y 2 | st.relaxed.gpu y 1; {fence}st.relaxed.gpu x 2",
            final="x y",
        )
        yield Variant(
            "R",
            f"st.relaxed.gpu x 1; {fence}st.relaxed.gpu y 1 | st.relaxed.gpu y 2; {fence}ld.relaxed.gpu r0 x",
            final="y",
        )
        yield Variant(
            "S",
            f"st.relaxed.gpu x 2; {fence}st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; {fence}st.relaxed.gpu x 1",
            final="x",
        )
    yield Variant(
        "2+2W", "st.release.gpu x 1; st.release.gpu y 2 | st.release.gpu y 1; st.release.gpu x 2", final="x y"
    )
    yield Variant("2+2W", "st.weak x 1; st.weak y 2 | st.weak y 1; st.weak x 2", final="x y")
    yield Variant("S", "st.relaxed.gpu x 2; st.release.gpu y 1 | ld.acquire.gpu r0 y; st.relaxed.gpu x 1", final="x")
    yield Variant("S", "st.weak x 2; st.release.gpu y 1 | ld.acquire.gpu r0 y; if r0=1: st.weak x 1", final="x")
    yield Variant("S", "st.weak x 2; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; if r0=1: st.weak x 1", final="x")
    # the reader's data may be overwritten once it has reported that it has read them
    yield Variant("MP", "ld.weak r0 x; st.release.gpu y 1 | ld.acquire.gpu r1 y; if r1=1: st.weak x 1")
    yield Variant("MP", "ld.weak r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r1 y; if r1=1: st.weak x 1")


def _causality() -> Iterator[Variant]:
    for placement, scope, other in (("blocks", "gpu", "gpu"), ("warps", "cta", "cta"), ("last apart", "cta", "gpu"),
                                    ("last apart", "cta", "cta")):  # fmt: skip
        yield Variant(
            "WRC",
            f"st.relaxed.{other} x 1 | ld.relaxed.{other} r0 x; st.release.{other} y 1 | "
            f"ld.acquire.{other} r1 y; ld.relaxed.{other} r2 x",
            placement,
        )
        # the first release has the scope of the block, if the first two threads are in one
        yield Variant(
            "ISA2",
            f"st.weak x 1; st.release.{scope} y 1 | ld.acquire.{scope} r0 y; if r0=1: st.release.{other} z 1 | "
            f"ld.acquire.{other} r1 z; if r1=1: ld.weak r2 x",
            placement,
        )
    yield Variant(
        "WRC", "st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r1 y; ld.relaxed.gpu r2 x"
    )
    yield Variant(
        "WRC", "st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
        "ld.relaxed.gpu r1 y; fence.acq_rel.gpu; ld.relaxed.gpu r2 x",
    )  # fmt: skip
    yield Variant(
        "ISA2", "st.weak x 1; st.release.gpu y 1 | ld.relaxed.gpu r0 y; if r0=1: st.release.gpu z 1 | "
        "ld.acquire.gpu r1 z; if r1=1: ld.weak r2 x",
    )  # fmt: skip
    yield Variant(
        "ISA2", "st.weak x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; if r0=1: st.relaxed.gpu z 1 | "
        "ld.acquire.gpu r1 z; if r1=1: ld.weak r2 x",
    )  # fmt: skip
    # release sequences: through atomics of other threads, and not through stores
    chain = "st.weak x 1; st.release.gpu y 1 | {} | ld.acquire.gpu r1 y; if r1=2: ld.weak r2 x"
    for middle in (
        "atom.relaxed.gpu.add r0 y 1",
        "red.relaxed.gpu.add y 1",
        "atom.relaxed.cta.add r0 y 1",
        "ld.relaxed.gpu r0 y; if r0=1: st.relaxed.gpu y 2",
        "ld.relaxed.gpu r0 y; if r0=1: st.weak y 2",
    ):
        yield Variant("release sequence", chain.format(middle))
    yield Variant(
        "release sequence", "st.weak x 1; red.release.cta.add y 1 | red.relaxed.cta.add y 1 | "
        "ld.acquire.cta r1 y; if r1=2: ld.weak r2 x", "warps",
    )  # fmt: skip
    yield Variant(
        "release sequence", "st.weak x 1; fence.acq_rel.gpu; red.relaxed.gpu.add y 1 | red.relaxed.gpu.add y 1 | "
        "ld.relaxed.gpu r1 y; fence.acq_rel.gpu; if r1=2: ld.weak r2 x",
    )  # fmt: skip
    # a store of the releasing thread itself after its release
    for store in ("st.relaxed.gpu y 2", "st.weak y 2"):
        yield Variant(
            "release sequence", f"st.weak x 1; st.release.gpu y 1; {store} | ld.acquire.gpu r0 y; if r0=2: ld.weak r1 x"
        )
    # locks
    for get, put in (("acquire", "release"), ("relaxed", "relaxed"), ("acquire", "relaxed")):
        one = f"atom.{get}.gpu.exch r0 y 1; if r0=0: st.weak x 1; if r0=0: st.{put}.gpu y 0"
        two = f"atom.{get}.gpu.exch r1 y 1; if r1=0: st.weak x 2; if r1=0: st.{put}.gpu y 0"
        yield Variant("lock", f"{one} | {two}")
    for first, last in (("membar.gl; ", "membar.gl; "), ("", "membar.gl; "), ("membar.gl; ", "")):
        lock = "atom.relaxed.gpu.exch {0} y 1; {1}if {0}=0: st.weak x {2}; {3}if {0}=0: st.relaxed.gpu y 0"
        yield Variant("lock", f"{lock.format('r0', first, 1, last)} | {lock.format('r1', first, 2, last)}")


def _barriers() -> Iterator[Variant]:
    for shared in ("", "x"):
        yield Variant("barrier", "st.weak x 1; bar.sync 1 | bar.sync 1; ld.weak r0 x", "warps", shared=shared)
        yield Variant("barrier", "st.weak x 1; bar.arrive 1 | bar.sync 1; ld.weak r0 x", "warps", shared=shared)
        # an arrival does not wait
        yield Variant("barrier", "ld.weak r0 x; bar.sync 1 | bar.arrive 1; st.weak x 1", "warps", shared=shared)
        yield Variant("barrier", "st.weak x 1; bar.sync 1 | ld.weak r0 x; bar.sync 1", "warps", shared=shared)
        yield Variant("barrier", "st.weak x 1; bar.warp.sync | bar.warp.sync; ld.weak r0 x", "lanes", shared=shared)
        yield Variant("barrier", "st.weak x 1; bar.warp.sync | ld.weak r0 x; bar.warp.sync", "lanes", shared=shared)
        for arrive in ("barrier.cluster.arrive", "barrier.cluster.arrive.relaxed"):
            wait = "barrier.cluster.wait"
            text = f"st.weak x 1; {arrive}; {wait} | {arrive}; {wait}; ld.weak r0 x"
            yield Variant("barrier", text, "cluster", shared=shared)
    yield Variant(
        "barrier", "st.weak x 1; barrier.cluster.arrive; barrier.cluster.wait | "
        "barrier.cluster.arrive; ld.weak r0 x; barrier.cluster.wait", "cluster",
    )  # fmt: skip
    yield Variant(
        "barrier", "st.weak x 1; fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait | "
        "barrier.cluster.arrive.relaxed; barrier.cluster.wait; fence.acq_rel.cluster; ld.weak r0 x", "cluster",
    )  # fmt: skip
    yield Variant("barrier", "st.weak x 1; bar.arrive 1 | bar.sync 1; bar.arrive 2 | bar.sync 2; ld.weak r0 x", "warps")
    # a grid barrier by atomics: a barrier of the block, then one thread per block meets the other's. The reader's own
    # barrier orders nothing; on the simulated device it lets the other block pass its barrier first
    grid = (
        "st.weak x 1; bar.sync 1 | bar.sync 1; {0}red.{1}.gpu.add y 1 | "
        "bar.sync 2; ld.{2}.gpu r0 y; {3}st.weak s r0; bar.sync 1 | bar.sync 1; ld.weak r1 s; if r1=1: ld.weak r2 x"
    )
    fence, near = "fence.acq_rel.gpu; ", "fence.acq_rel.cta; "
    for parts in (
        (fence, "relaxed", "relaxed", fence), ("", "release", "acquire", ""),
        ("membar.gl; ", "relaxed", "relaxed", "membar.gl; "),
        ("", "relaxed", "relaxed", ""), (fence, "relaxed", "relaxed", ""), ("", "relaxed", "relaxed", fence),
        (near, "relaxed", "relaxed", near), ("", "release", "relaxed", ""),
    ):  # fmt: skip
        yield Variant("grid barrier", grid.format(*parts), "pairs")
    # the fence of the thread that stored, and the flag by another thread of its block
    for one, two in (("fence.acq_rel.gpu", fence), ("membar.gl", "membar.gl; "), ("membar.gl", "")):
        yield Variant(
            "grid barrier", f"st.weak x 1; {one}; bar.sync 1 | bar.sync 1; red.relaxed.gpu.add y 1 | "
            f"bar.sync 2; ld.relaxed.gpu r0 y; {two}if r0=1: ld.weak r1 x", "pairs",
        )  # fmt: skip
    # the message of a block to one that passes it on by a barrier
    yield Variant(
        "MP", "st.weak x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; st.weak s r0; bar.sync 1 | "
        "bar.sync 1; ld.weak r1 s; if r1=1: ld.weak r2 x", "apart", shared="",
    )  # fmt: skip
    # a fence by another thread of the warp or block
    yield Variant(
        "MP",
        "st.weak x 1; st.relaxed.cta y 1 | fence.acq_rel.cta | ld.acquire.cta r0 y; if r0=1: ld.weak r1 x",
        "lanes",
    )
    yield Variant(
        "MP",
        "st.weak x 1 | fence.acq_rel.cta; st.relaxed.cta y 1 | ld.acquire.cta r0 y; if r0=1: ld.weak r1 x",
        "lanes",
    )


@cache
def catalogue() -> tuple[Variant, ...]:
    """Return all tests. No two have the same name."""
    found = [
        *_message_passing(), *_buffering(), *_independent(), *_coherence(), *_writes(), *_causality(), *_barriers(),
    ]  # fmt: skip
    by_name = {one.name: one for one in found}
    if len(by_name) != len(found):
        raise ValueError("two litmus tests have the same name")
    return tuple(found)
