"""Collective operations of warps and blocks: shuffles, votes, matches, reductions, barriers."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, statements

_ALL = "0xffffffff"
# a mask and the condition on the lane number that selects its lanes
_PART = ".reg .b32 z; .reg .pred y;"
_PARTS = (
    ("0x0000ffff", "and.b32 z, %tid_, 31; setp.lt.u32 y, z, 16; "),
    ("0x55555555", "and.b32 z, %tid_, 1; setp.eq.u32 y, z, 0; "),
    ("0x80000001", "add.u32 z, %tid_, 1; and.b32 z, z, 31; setp.lt.u32 y, z, 2; "),
)


def forms() -> Iterator[Form]:
    yield from _shuffles()
    yield from _votes()
    yield from _matches()
    yield from _reductions()
    yield from _barriers()
    yield from _specials()


def _shuffles() -> Iterator[Form]:
    group = "shfl"
    for mode in ("up", "down", "bfly", "idx"):
        clamps = (0, 0x1800, 0x1000, 0x1E00) if mode == "up" else (31, 0x181F, 0x101F, 0x1E1F)
        for clamp in clamps:
            for lane in (0, 1, 5, 16, 31):
                text = f"shfl.sync.{mode}.b32 d0|d1, a, {lane}, {clamp}, {_ALL};"
                yield statements(group, text, "b32", "b32 pred")
            text = f"shfl.sync.{mode}.b32 d0|d1, a, b, {clamp}, {_ALL};"
            yield statements(group, text, "b32 b32:below40", "b32 pred")
        yield statements(group, f"shfl.sync.{mode}.b32 d0, a, 3, {clamps[0]}, {_ALL};", "b32", "b32")
        text = f"shfl.sync.{mode}.b32 d0|d1, a, b, c, {_ALL};"
        yield statements(group, text, "b32 b32:below32 b32:any", "b32 pred")
    # partial masks: every lane reads from a lane of the mask
    for mode, lane, clamp, part in (
        ("bfly", 8, 0x101F, 0),
        ("idx", 9, 31, 0),
        ("down", 3, 0x100F, 0),
        ("up", 4, 0x1000, 0),
        ("bfly", 2, 31, 1),
        ("idx", 12, 31, 1),
        ("idx", 31, 31, 2),
    ):
        mask, condition = _PARTS[part]
        text = f"mov.b32 d0, 7; setp.ne.u32 d1, %tid_, %tid_; {condition}"
        text += f"@y shfl.sync.{mode}.b32 d0|d1, a, {lane}, {clamp}, {mask};"
        yield statements(group, text, "b32", "b32 pred", declare=_PART)


def _votes() -> Iterator[Form]:
    group = "vote and activemask"
    for negated in ("", "!"):
        for mode in ("all", "any", "uni"):
            yield statements(group, f"vote.sync.{mode}.pred d0, {negated}a, {_ALL};", "pred", "pred")
            # the lanes agree
            text = f"setp.lt.u32 x, %slot, 256; or.pred x, x, a; vote.sync.{mode}.pred d0, {negated}x, {_ALL};"
            yield statements(group, text, "pred", "pred", declare=".reg .pred x;")
        yield statements(group, f"vote.sync.ballot.b32 d0, {negated}a, {_ALL};", "pred", "b32")
    for mask, condition in _PARTS:
        text = f"mov.b32 d0, 7; {condition}@y vote.sync.ballot.b32 d0, a, {mask};"
        yield statements(group, text, "pred", "b32", declare=_PART)
        for mode in ("all", "any", "uni"):
            text = f"setp.ne.u32 d0, %tid_, %tid_; {condition}@y vote.sync.{mode}.pred d0, a, {mask};"
            yield statements(group, text, "pred", "pred", declare=_PART)
        text = f"mov.b32 d0, 7; {condition}@!y bra skip; activemask.b32 d0; skip:"
        yield statements(group, text.replace("skip:", "skip: mov.b32 d1, 1;"), "pred", "b32 b32", declare=_PART)
    yield statements(group, "activemask.b32 d0;", "pred", "b32")
    for mask, condition in ((_ALL, "setp.eq.u32 y, %tid_, %tid_; "), *_PARTS):
        text = f"mov.b32 d0, 7; setp.ne.u32 d1, %tid_, %tid_; {condition}@y elect.sync d0|d1, {mask};"
        yield statements(group, text, "u32", "b32 pred", declare=_PART)


def _matches() -> Iterator[Form]:
    group = "match"
    for kind in ("b32", "b64"):
        for values in (f"{kind}:few", f"{kind}:below2", f"{kind}:below1", kind):
            yield statements(group, f"match.any.sync.{kind} d0, a, {_ALL};", values, "b32")
            yield statements(group, f"match.all.sync.{kind} d0|d1, a, {_ALL};", values, "b32 pred")
            yield statements(group, f"match.all.sync.{kind} d0, a, {_ALL};", values, "b32")
        for mask, condition in _PARTS:
            text = f"mov.b32 d0, 7; {condition}@y match.any.sync.{kind} d0, a, {mask};"
            yield statements(group, text, f"{kind}:few", "b32", declare=_PART)
            text = f"mov.b32 d0, 7; setp.ne.u32 d1, %tid_, %tid_; {condition}"
            text += f"@y match.all.sync.{kind} d0|d1, a, {mask};"
            yield statements(group, text, f"{kind}:below2", "b32 pred", declare=_PART)


def _reductions() -> Iterator[Form]:
    group = "redux"
    operations = [(name, t) for name in ("add", "min", "max") for t in ("u32", "s32")]
    operations += [(name, "b32") for name in ("and", "or", "xor")]
    for name, t in operations:
        yield statements(group, f"redux.sync.{name}.{t} d0, a, {_ALL};", t, t)
        for mask, condition in _PARTS:
            text = f"mov.b32 d0, 7; {condition}@y redux.sync.{name}.{t} d0, a, {mask};"
            yield statements(group, text, t, t, declare=_PART)


def _barriers() -> Iterator[Form]:
    group = "barriers"
    kinds = {"popc": "u32", "and": "pred", "or": "pred"}
    for name, result in kinds.items():
        for spelled in ("bar.red", "barrier.red.aligned", "barrier.red", "barrier.cta.red.aligned", "bar.cta.red"):
            head, _, tail = spelled.partition(".red")
            for negated in ("", "!"):
                text = f"{head}.red.{name}{tail}.{result} d0, 0, {negated}a;"
                yield statements(group, text, "pred", result)
        text = f"bar.red.{name}.{result} d0, 1, 64, a;"
        yield statements(group, text, "pred", result)
    # the warps exchange stored values
    share = "mad.lo.u32 z, %tid_, 8, %tile; st.shared.b64 [z], a; "
    read = " xor.b32 w, %tid_, 32; mad.lo.u32 w, w, 8, %tile; ld.shared.b64 d0, [w];"
    for barrier in (
        "bar.sync 0;",
        "bar.sync 3, 64;",
        "bar.cta.sync 0;",
        "barrier.sync 0;",
        "barrier.sync 7, 64;",
        "barrier.sync.aligned 0;",
        "barrier.cta.sync 0;",
        "barrier.cta.sync.aligned 2, 64;",
        "barrier.cta.arrive 5, 128; barrier.cta.sync 5, 128;",
        "mov.u32 v, 4; bar.sync v;",
        "mov.u32 v, 64; bar.sync 1, v;",
        "barrier.cluster.arrive; barrier.cluster.wait;",
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
    ):
        declare = ".reg .b32 z, w, v;"
        yield statements(group, share + barrier + read, "b64", "b64", declare=declare)
    # one warp stores and arrives, the other waits and reads
    text = "mad.lo.u32 z, %tid_, 8, %tile; setp.lt.u32 y, %tid_, 32; mov.b64 d0, a; @!y bra reads; "
    text += "st.shared.b64 [z], a; bar.arrive 1, 64; bra done; reads: bar.sync 1, 64; ld.shared.b64 d0, [z+-256]; "
    text += "done: mov.b32 d1, 1;"
    yield statements(group, text, "b64", "b64 b32", declare=".reg .b32 z; .reg .pred y;")
    for mask, condition in ((_ALL, "setp.eq.u32 y, %tid_, %tid_; "), _PARTS[0]):
        text = "mad.lo.u32 z, %tid_, 8, %tile; st.shared.b64 [z], a; mov.b64 d0, a; " + condition.replace("z,", "w,")
        text = text.replace("y, z", "y, w")
        text += f"@!y bra away; bar.warp.sync {mask}; xor.b32 w, %tid_, 1; mad.lo.u32 w, w, 8, %tile; "
        text += "ld.shared.b64 d0, [w]; away: mov.b32 d1, 1;"
        yield statements(group, text, "b64", "b64 b32", declare=".reg .b32 z, w; .reg .pred y;")


def _specials() -> Iterator[Form]:
    group = "special registers"
    for names in (
        ("%tid.x", "%tid.y", "%tid.z"),
        ("%ntid.x", "%ntid.y", "%ntid.z"),
        ("%ctaid.x", "%ctaid.y", "%ctaid.z"),
        ("%nctaid.x", "%nctaid.y", "%nctaid.z"),
        ("%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"),
        ("%clusterid.x", "%nclusterid.x", "%cluster_ctaid.x", "%cluster_nctaid.x"),
        ("%cluster_ctarank", "%cluster_nctarank"),
        ("%dynamic_smem_size", "%nsmid"),
    ):
        text = " ".join(f"mov.u32 d{k}, {name};" for k, name in enumerate(names))
        yield statements(group, text, "u32", " ".join(["u32"] * len(names)))
    yield statements(group, "mov.pred d0, %is_explicit_cluster;", "u32", "pred")
    later = "mov.u64 t, %clock64; mov.u64 u, %clock64; setp.ge.u64 d0, u, t;"
    yield statements(group, later, "u32", "pred", declare=".reg .b64 t, u;")
    text = "mov.u64 t, %globaltimer; mov.u64 u, %globaltimer; setp.ge.u64 d0, u, t;"
    yield statements(group, text, "u32", "pred", declare=".reg .b64 t, u;")
    text = "mov.u32 t, %clock; mov.u32 u, %clock; sub.u32 u, u, t; setp.ge.s32 d0, u, 0;"
    yield statements(group, text, "u32", "pred", declare=".reg .b32 t, u;")
