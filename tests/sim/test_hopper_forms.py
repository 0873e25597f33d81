"""The forms of the asynchronous instructions of Hopper, valid and invalid: the verdicts are those of ptxas 13.5 for
sm_90a and PTX 8.8, and ptxas is asked again if it is installed."""

from __future__ import annotations

import pytest

from tests.mutants.verdicts import LOADED, REFUSED, UNSUPPORTED, judge, load, missing_ptxas

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.global .align 128 .b8 gbuf[256];
.const .align 128 .b8 cbuf[128];
"""
KERNEL = """.visible .entry kNUMBER(.param .align 64 .b8 p[128])
{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .f16 %fh<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<8>;
    .reg .f64 %fd<4>;
    .shared .align 128 .b8 buffer[256];
    .local .align 16 .b8 own[16];
    LINE
    ret;
}
"""
BYTES = "mbarrier::complete_tx::bytes"
BULK, TENSOR = "cp.async.bulk", "cp.async.bulk.tensor"
REDUCE, REDUCE_TENSOR = "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor"
TO_GLOBAL = "global.shared::cta.bulk_group"
TO_SHARED = f"shared::cluster.global.{BYTES}"
TO_PEER = f"shared::cluster.shared::cta.{BYTES}"
PEER = f"shared::cluster.{BYTES}"
REPLACE = "tensormap.replace.tile"
COPY_FENCE = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release"
MAP_FENCE = "fence.proxy.tensormap::generic"
POLICY = "createpolicy.fractional.L2::evict_last.b64 %rd1"
RANGE = "createpolicy.range.global.L2::evict_last.b64 %rd1, [%rd2]"
STMATRIX = "stmatrix.sync.aligned.m8n8"

VALID = [
    # ---- mbarrier ----
    "mbarrier.init.shared::cta.b64 [buffer], %r1;",
    "mbarrier.init.b64 [%rd1], 1048575;",
    "mbarrier.init.b64 [buffer+8], 1;",
    "mbarrier.inval.shared.b64 [%r1];",
    "mbarrier.inval.b64 [%rd1];",
    "mbarrier.arrive.b64 _, [%rd1];",
    "mbarrier.arrive.shared.b64 %rd1, [%r1], 2;",
    "mbarrier.arrive.release.cta.shared::cta.b64 %rd1, [buffer], %r1;",
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1];",
    "mbarrier.arrive.noComplete.shared.b64 %rd1, [%rd2], 4294967296;",
    "mbarrier.arrive.noComplete.release.cta.b64 _, [%rd2], %r1;",
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], %r2;",
    "mbarrier.arrive.expect_tx.relaxed.cta.b64 %rd1, [%rd2], -1;",
    "mbarrier.arrive_drop.relaxed.cta.shared::cta.b64 %rd1, [%rd2];",
    "mbarrier.arrive_drop.expect_tx.shared.b64 %rd1, [%rd2], 0;",
    "mbarrier.arrive_drop.noComplete.shared.b64 %rd1, [%rd2], 1;",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64;",
    "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r1], %r2;",
    "mbarrier.complete_tx.relaxed.cluster.b64 [%rd1], 0;",
    "mbarrier.test_wait.b64 %p1, [%rd1], %rd2;",
    "mbarrier.test_wait.relaxed.cta.shared.b64 %p1, [%rd1], 5;",
    "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p1, [buffer], %r1;",
    "mbarrier.try_wait.shared.b64 %p1, [buffer], %rd1;",
    "mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [%r1], %rd1, %r2;",
    "mbarrier.try_wait.parity.relaxed.cluster.b64 %p1, [%rd1], 1, 1000;",
    "mbarrier.pending_count.b64 %r1, %rd1;",
    "mbarrier.pending_count.b64 %r1, 7;",
    "@!%p1 cp.async.mbarrier.arrive.noinc.shared.b64 [buffer];",
    "cp.async.mbarrier.arrive.b64 [%rd1];",
    # ---- bulk copies ----
    f"{BULK}.{TO_SHARED} [buffer], [gbuf], 256, [%r1];",
    f"{BULK}.{TO_SHARED} [%rd1], [%rd2], %r1, [%rd3];",
    f"{BULK}.{TO_SHARED}.multicast::cluster [%r1], [%rd1], 0, [%r2], 65535;",
    f"{BULK}.{TO_SHARED}.multicast::cluster.L2::cache_hint [%r1], [%rd1], 16, [%r2], %h1, %rd2;",
    f"{BULK}.shared::cta.global.{BYTES} [%r1], [%rd1], 16, [buffer];",
    f"{BULK}.shared::cta.global.{BYTES}.L2::cache_hint [%r1], [%rd1], 16, [buffer], 0;",
    f"{BULK}.{TO_PEER} [%r1], [buffer], 16, [%r2];",
    f"{BULK}.{TO_GLOBAL} [%rd1+16], [buffer], 1048560;",
    f"{BULK}.{TO_GLOBAL}.L2::cache_hint [%rd1], [%r1], %r2, %rd2;",
    f"{BULK}.prefetch.L2.global [gbuf], 16;",
    f"{BULK}.prefetch.L2.global.L2::cache_hint [%rd1], %r1, %rd2;",
    f"{BULK}.commit_group;",
    f"{BULK}.wait_group 0;",
    f"{BULK}.wait_group.read 7;",
    # ---- reductions ----
    *(f"{REDUCE}.{TO_GLOBAL}.add.{kind} [%rd1], [buffer], 16;" for kind in ("u32", "s32", "u64", "f32", "f64")),
    *(f"{REDUCE}.{TO_GLOBAL}.add.noftz.{kind} [%rd1], [buffer], 16;" for kind in ("f16", "bf16")),
    *(f"{REDUCE}.{TO_GLOBAL}.min.{kind} [%rd1], [buffer], 16;" for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *(f"{REDUCE}.{TO_GLOBAL}.{name}.u32 [%rd1], [buffer], 16;" for name in ("max", "inc", "dec")),
    *(f"{REDUCE}.{TO_GLOBAL}.{name}.b64 [%rd1], [buffer], 16;" for name in ("and", "or", "xor")),
    f"{REDUCE}.{TO_GLOBAL}.L2::cache_hint.or.b32 [%rd1], [buffer], %r1, %rd2;",
    *(f"{REDUCE}.{TO_PEER}.add.{kind} [%r1], [buffer], 16, [%r2];" for kind in ("u32", "s32", "u64")),
    *(f"{REDUCE}.{TO_PEER}.{name}.s32 [%r1], [buffer], 16, [%r2];" for name in ("min", "max")),
    *(f"{REDUCE}.{TO_PEER}.{name}.u32 [%r1], [buffer], 16, [%r2];" for name in ("inc", "dec")),
    *(f"{REDUCE}.{TO_PEER}.{name}.b32 [%r1], [buffer], 16, [%r2];" for name in ("and", "or", "xor")),
    # ---- tensor copies ----
    f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1, {{%r1}}], [%r2];",
    f"{TENSOR}.2d.shared::cta.global.tile.{BYTES} [buffer], [gbuf, {{0, -1}}], [%r2];",
    f"{TENSOR}.3d.{TO_SHARED}.multicast::cluster [%r1], [%rd1, {{%f1, %r1, 2}}], [%r2], %h1;",
    f"{TENSOR}.4d.{TO_SHARED}.L2::cache_hint [%r1], [%rd1, {{%r1, %r2, %r3, %r4}}], [%r2], %rd2;",
    f"{TENSOR}.5d.{TO_GLOBAL} [%rd1, {{%r1, %r2, %r3, %r4, %r5}}], [buffer];",
    f"{TENSOR}.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%rd1, {{%r1, %r2}}], [%r1], %rd2;",
    f"{BULK}.prefetch.tensor.2d.L2.global.tile [%rd1, {{%r1, %r2}}];",
    f"{BULK}.prefetch.tensor.1d.L2.global.L2::cache_hint [%rd1, {{%r1}}], %rd2;",
    *(
        f"{REDUCE_TENSOR}.2d.global.shared::cta.{name}.tile.bulk_group [%rd1, {{%r1, %r2}}], [buffer];"
        for name in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
    ),
    f"{REDUCE_TENSOR}.1d.global.shared::cta.add.bulk_group.L2::cache_hint [%rd1, {{%r1}}], [buffer], %rd2;",
    # ---- stores and reductions of registers ----
    f"st.async.weak.{PEER}.u32 [%r1], %r2, [%r3];",
    f"st.async.{BYTES}.s64 [%r1], %rd2, [buffer];",
    f"st.async.{PEER}.f32 [%r1], 0f3F800000, [%r3];",
    f"st.async.{PEER}.f64 [%rd1], %fd1, [%rd3];",
    f"st.async.{PEER}.v2.b64 [%r1], {{%rd1, 3}}, [%r3];",
    f"st.async.{PEER}.v4.b32 [%r1], {{%f1, %r2, %r3, 4}}, [%r3];",
    f"st.async.shared::cta.{BYTES}.b32 [buffer], %r2, [buffer+16];",
    *(f"red.async.relaxed.cluster.{PEER}.add.{kind} [%r1], %r2, [%r3];" for kind in ("u32", "s32")),
    *(f"red.async.relaxed.cluster.{PEER}.add.{kind} [%r1], %rd2, [%r3];" for kind in ("u64", "s64")),
    *(f"red.async.relaxed.cluster.{PEER}.{name}.s32 [%r1], -1, [%r3];" for name in ("min", "max")),
    *(f"red.async.relaxed.cluster.{PEER}.{name}.u32 [%r1], %r2, [%r3];" for name in ("inc", "dec")),
    *(f"red.async.relaxed.cluster.{BYTES}.{name}.b32 [%r1], %f2, [%r3];" for name in ("and", "or", "xor")),
    # ---- tensor maps ----
    f"{REPLACE}.global_address.global.b1024.b64 [%rd1], %rd2;",
    f"{REPLACE}.rank.shared::cta.b1024.b32 [buffer], 4;",
    f"{REPLACE}.rank.b1024.b32 [buffer], %r1;",
    f"{REPLACE}.box_dim.shared::cta.b1024.b32 [%r1], 4, %r1;",
    f"{REPLACE}.global_dim.b1024.b32 [%rd1], 0, 5;",
    f"{REPLACE}.global_stride.global.b1024.b64 [gbuf], 3, 64;",
    f"{REPLACE}.element_stride.global.b1024.b32 [%rd1], 1, %r1;",
    f"{REPLACE}.elemtype.global.b1024.b32 [%rd1], 12;",
    f"{REPLACE}.interleave_layout.global.b1024.b32 [%rd1], 2;",
    f"{REPLACE}.swizzle_mode.global.b1024.b32 [%rd1], 3;",
    f"{REPLACE}.fill_mode.global.b1024.b32 [%rd1], 1;",
    *(f"{COPY_FENCE}.{scope}.sync.aligned [%rd1], [buffer], 128;" for scope in ("cta", "cluster", "gpu", "sys")),
    *(f"{MAP_FENCE}.acquire.{scope} [%rd1], 128;" for scope in ("cta", "cluster", "gpu", "sys")),
    *(f"{MAP_FENCE}.release.{scope};" for scope in ("cta", "cluster", "gpu", "sys")),
    "prefetch.tensormap [%rd1];",
    "prefetch.param.tensormap [p];",
    "prefetch.const.tensormap [cbuf];",
    # ---- fences, barriers, hints ----
    "fence.mbarrier_init.release.cluster;",
    *(f"fence.proxy.async{space};" for space in ("", ".global", ".shared::cta", ".shared::cluster")),
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    "fence.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.release.sync_restrict::shared::cta.cluster;",
    *(f"barrier.cluster.arrive{order}{kind};" for order in ("", ".release", ".relaxed") for kind in ("", ".aligned")),
    *(f"barrier.cluster.wait{order}{kind};" for order in ("", ".acquire") for kind in ("", ".aligned")),
    "setmaxnreg.inc.sync.aligned.u32 256;",
    "setmaxnreg.dec.sync.aligned.u32 24;",
    "elect.sync %r1|%p1, %r2;",
    "elect.sync _|%p1, -1;",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
    f"{POLICY};",
    f"{POLICY}, 0.5;",
    "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %rd1, %f1;",
    f"{RANGE}, 16, 32;",
    "createpolicy.range.L2::evict_normal.b64 %rd1, [gbuf], %r1, %r2;",
    "createpolicy.cvt.L2.b64 %rd1, %rd2;",
    f"{STMATRIX}.x1.shared.b16 [%r1], {{%r1}};",
    f"{STMATRIX}.x2.trans.shared::cta.b16 [buffer], {{%r1, %f2}};",
    f"{STMATRIX}.x4.b16 [%rd1], {{%r1, %r2, %r3, %r4}};",
    # ---- another order of the modifiers ----
    "mbarrier.arrive.b64.shared::cta.cta.release %rd1, [buffer];",
    f"{TENSOR}.L2::cache_hint.{BYTES}.shared::cluster.tile.global.2d [buffer], [%rd1, {{%r1, %r2}}], [%r2], %rd2;",
    f"{REDUCE}.f32.global.bulk_group.shared::cta.add [%rd1], [buffer], 16;",
    f"st.async.v2.f32.{BYTES}.shared::cluster [%r1], {{%f1, %f2}}, [%r3];",
    f"red.async.u32.{BYTES}.inc.cluster.relaxed [%r1], %r2, [%r3];",
    "tensormap.replace.b32.b1024.rank.global.tile [%rd1], 1;",
    "fence.cluster.release.mbarrier_init;",
    "fence.proxy.shared::cta.async;",
    "setmaxnreg.inc.u32.aligned.sync 40;",
    "createpolicy.cvt.b64.L2 %rd1, %rd2;",
    "stmatrix.aligned.x1.b16.shared.m8n8.sync [%r1], {%r1};",
    "mapa.u32.shared::cluster %r1, %r2, %r3;",
    "ld.u32.relaxed.global.gpu %r1, [%rd1];",
]

# each with words of our refusal
INVALID = [
    # ---- mbarrier ----
    ("mbarrier.init.shared.b64 [buffer], 0;", "must be 1 to 1048575, got 0"),
    ("mbarrier.init.shared.b64 [buffer], 1048576;", "must be 1 to 1048575, got 1048576"),
    ("mbarrier.init.shared.b64 [buffer], %rd1;", "operand 2"),
    ("mbarrier.init.shared.b64 [buffer];", "operands"),
    ("mbarrier.init.shared::cluster.b64 [%r1], 1;", "modifier .shared::cluster"),
    ("mbarrier.init.global.b64 [%rd1], 1;", "modifier .global"),
    ("mbarrier.init.b64 [gbuf], 1;", "a variable of .global, not of .shared"),
    ("mbarrier.init.b64 [own], 1;", "a variable of .local, not of .shared"),
    ("mbarrier.init.shared.b32 [buffer], 1;", "type .b32"),
    ("mbarrier.shared.init.b64 [buffer], 1;", ".init must follow mbarrier"),
    ("mbarrier.inval.shared::cluster.b64 [%r1];", "modifier .shared::cluster"),
    ("mbarrier.arrive.shared.b64 [buffer];", "operands"),
    ("mbarrier.arrive.shared.b64 %r1, [buffer];", "operand 1"),
    ("mbarrier.arrive.shared.b64 %fd1, [buffer];", "operand 1"),
    ("mbarrier.arrive.shared.b64 %rd1, [buffer], 0;", "operand 3"),
    ("mbarrier.arrive.release.shared.b64 %rd1, [buffer];", "unknown form"),
    ("mbarrier.arrive.cta.shared.b64 %rd1, [buffer];", "unknown form"),
    ("mbarrier.arrive.acquire.cta.shared.b64 %rd1, [buffer];", "modifier .acquire"),
    ("mbarrier.arrive.release.gpu.shared.b64 %rd1, [buffer];", "modifier .gpu"),
    ("mbarrier.arrive.shared::cluster.b64 %rd1, [%r1];", "another block's mbarrier returns no state"),
    ("mbarrier.arrive.noComplete.shared.b64 %rd1, [buffer];", "operands"),
    ("mbarrier.arrive.noComplete.shared::cluster.b64 _, [%r1], 1;", "another block's mbarrier"),
    ("mbarrier.arrive.noComplete.release.cluster.shared.b64 %rd1, [buffer], 1;", ".noComplete with .release.cluster"),
    ("mbarrier.arrive.noComplete.relaxed.cta.shared.b64 %rd1, [buffer], 1;", ".noComplete with .relaxed.cta"),
    ("mbarrier.arrive.expect_tx.noComplete.shared.b64 %rd1, [buffer], 1;", "unknown form"),
    ("mbarrier.arrive.expect_tx.shared.b64 %rd1, [buffer];", "operands"),
    ("mbarrier.arrive.release.cta.expect_tx.b64 %rd1, [%rd2], 16;", ".arrive.expect_tx must follow mbarrier"),
    ("mbarrier.expect_tx.shared.b64 [buffer];", "operands"),
    ("mbarrier.expect_tx.release.cta.shared.b64 [buffer], 16;", "modifier .release"),
    ("mbarrier.complete_tx.relaxed.shared.b64 [buffer], 16;", "need each other"),
    ("mbarrier.test_wait.shared::cluster.b64 %p1, [%r1], %rd1;", "modifier .shared::cluster"),
    ("mbarrier.test_wait.shared.b64 %p1, [buffer], %rd1, 100;", "operands"),
    ("mbarrier.test_wait.shared.b64 _, [buffer], %rd1;", "operand 1"),
    ("mbarrier.test_wait.shared.b64 %p1, [buffer], %r1;", "operand 3"),
    ("mbarrier.test_wait.shared.b64 %p1, [buffer], %fd1;", "operand 3"),
    ("mbarrier.try_wait.parity.shared.b64 %p1, [buffer], 2;", "must be 0 or 1, got 2"),
    ("mbarrier.try_wait.parity.shared.b64 %p1, [buffer], %rd1;", "operand 3"),
    ("mbarrier.try_wait.release.cta.shared.b64 %p1, [buffer], %rd1;", "modifier .release"),
    ("mbarrier.try_wait.acquire.shared.b64 %p1, [buffer], %rd1;", "unknown form"),
    ("mbarrier.try_wait.shared.b64 %p1, [buffer], %rd1, %f1;", "operand 4"),
    ("mbarrier.pending_count.shared.b64 %r1, %rd1;", "modifier .shared"),
    ("mbarrier.pending_count.b64 %rd1, %rd1;", "operand 1"),
    ("cp.async.mbarrier.arrive.noinc.shared::cluster.b64 [%r1];", "modifier .shared::cluster"),
    ("cp.async.mbarrier.noinc.shared.b64 [buffer];", "must follow cp"),
    # ---- bulk copies ----
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], 8, [%r1];", "must be a multiple of 16, got 8"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], 1048576, [%r1];", "must be 0 to 1048560"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], -16, [%r1];", "must be 0 to 1048560"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], %rd2, [%r1];", "operand 3"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], 16;", "operands"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], 16, [gbuf];", "a variable of .global, not of .shared"),
    (f"{BULK}.{TO_SHARED} [gbuf], [%rd1], 16, [%r1];", "a variable of .global, not of .shared"),
    (f"{BULK}.{TO_SHARED} [buffer], [buffer], 16, [%r1];", "a variable of .shared, not of .global"),
    (f"{BULK}.{TO_SHARED} [buffer], [%rd1], 16, [%r1], %h1;", "operands"),
    (f"{BULK}.{TO_SHARED}.multicast::cluster [buffer], [%rd1], 16, [%r1];", "operands"),
    (f"{BULK}.{TO_SHARED}.multicast::cluster [buffer], [%rd1], 16, [%r1], %r2;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.multicast::cluster [buffer], [%rd1], 16, [%r1], %fh1;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.multicast::cluster [buffer], [%rd1], 16, [%r1], 65536;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.multicast::cluster [buffer], [%rd1], 16, [%r1], -1;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.L2::cache_hint [buffer], [%rd1], 16, [%r1], %r2;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.L2::cache_hint [buffer], [%rd1], 16, [%r1], %fd1;", "operand 5"),
    (f"{BULK}.{TO_SHARED}.L2::cache_hint [buffer], [%rd1], 16, [%r1], 1.5;", "operand 5"),
    (f"{BULK}.shared::cta.global.{BYTES}.multicast::cluster [%r1], [%rd1], 16, [%r2], %h1;", "multicast"),
    (f"{BULK}.shared::cta.global.bulk_group [%r1], [%rd1], 16;", "unknown form"),
    (f"{BULK}.shared.global.{BYTES} [%r1], [%rd1], 16, [%r2];", "modifier .shared"),
    (f"{BULK}.global.shared::cluster.{BYTES} [%rd1], [%r1], 16, [%r2];", "unknown form"),
    (f"{BULK}.shared::cta.shared::cluster.{BYTES} [%r1], [%r2], 16, [%r3];", "unknown form"),
    (f"{BULK}.{TO_PEER}.multicast::cluster [%r1], [buffer], 16, [%r2], %h1;", "multicast"),
    (f"{BULK}.{TO_PEER}.L2::cache_hint [%r1], [buffer], 16, [%r2], %rd1;", "cache policy"),
    (f"{BULK}.{TO_GLOBAL} [%rd1], [buffer], 17;", "must be a multiple of 16, got 17"),
    (f"{BULK}.{TO_GLOBAL} [%rd1], [buffer], 16, [%r1];", "operands"),
    (f"{BULK}.global.shared::cta.{BYTES} [%rd1], [buffer], 16, [%r1];", "unknown form"),
    (f"{BULK}.global.shared::cta [%rd1], [buffer], 16;", "unknown form"),
    (f"{BULK}.global.global.bulk_group [%rd1], [%rd2], 16;", "unknown form"),
    (f"{BULK}.prefetch.global [%rd1], 16;", "unknown form"),
    (f"{BULK}.prefetch.L2.shared::cta [buffer], 16;", "unknown form"),
    (f"{BULK}.prefetch.L2.global [%rd1], 24;", "must be a multiple of 16, got 24"),
    (f"{BULK}.prefetch.L2.global.L2::cache_hint [%rd1], 16;", "operands"),
    (f"{BULK}.commit_group 0;", "operands"),
    (f"{BULK}.wait_group %r1;", "must be a literal integer"),
    (f"{BULK}.wait_all;", ""),
    (f"{BULK}.read.wait_group 0;", "must follow cp"),
    ("cp.bulk.async.commit_group;", "must follow cp"),
    # ---- reductions ----
    *((f"{REDUCE}.{TO_GLOBAL}.add.{kind} [%rd1], [buffer], 16;", kind) for kind in ("s64", "b32", "f16", "f16x2")),
    *((f"{REDUCE}.{TO_GLOBAL}.min.{kind} [%rd1], [buffer], 16;", kind) for kind in ("f32", "f64", "b32")),
    *((f"{REDUCE}.{TO_GLOBAL}.inc.{kind} [%rd1], [buffer], 16;", kind) for kind in ("s32", "u64")),
    *((f"{REDUCE}.{TO_GLOBAL}.and.{kind} [%rd1], [buffer], 16;", kind) for kind in ("u32", "s64")),
    (f"{REDUCE}.{TO_GLOBAL}.add.noftz.f32 [%rd1], [buffer], 16;", "noftz"),
    (f"{REDUCE}.{TO_GLOBAL}.min.noftz.f16 [%rd1], [buffer], 16;", "noftz"),
    (f"{REDUCE}.{TO_GLOBAL}.exch.b32 [%rd1], [buffer], 16;", "no operation"),
    (f"{REDUCE}.{TO_GLOBAL}.u32 [%rd1], [buffer], 16;", "no operation"),
    (f"{REDUCE}.{TO_GLOBAL}.add.u32 [%rd1], [buffer], 8;", "must be a multiple of 16, got 8"),
    *((f"{REDUCE}.{TO_PEER}.add.{kind} [%r1], [buffer], 16, [%r2];", kind) for kind in ("s64", "f32", "bf16")),
    *((f"{REDUCE}.{TO_PEER}.max.{kind} [%r1], [buffer], 16, [%r2];", kind) for kind in ("u64", "s64", "f16")),
    (f"{REDUCE}.{TO_PEER}.xor.b64 [%r1], [buffer], 16, [%r2];", "xor of .b64"),
    (f"{REDUCE}.{TO_PEER}.L2::cache_hint.add.u32 [%r1], [buffer], 16, [%r2], %rd1;", "cache policy"),
    (f"{REDUCE}.{TO_SHARED}.add.u32 [%r1], [%rd1], 16, [%r2];", "unknown form"),
    (f"cp.reduce.async.{TO_GLOBAL}.add.u32 [%rd1], [buffer], 16;", "must follow cp"),
    # ---- tensor copies ----
    (f"{TENSOR}.{TO_SHARED} [buffer], [%rd1, {{%r1}}], [%r2];", "number of dimensions"),
    (f"{TENSOR}.6d.{TO_SHARED} [buffer], [%rd1, {{%r1}}], [%r2];", ""),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{%r1}}], [%r2];", "must have 2 coordinates in braces, got 1"),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{%r1, %r2, %r3}}], [%r2];", "must have 2 coordinates"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1, %r1], [%r2];", "must have 1 coordinates in braces"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1], [%r2];", "a tensor map and its coordinates"),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{%rd1, %rd2}}], [%r2];", "vector of .b64"),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{%f1, %f2}}], [%r2];", "vector of .f32"),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{%h1, %h2}}], [%r2];", "vector of .b16"),
    (f"{TENSOR}.2d.{TO_SHARED} [buffer], [%rd1, {{_, %r2}}], [%r2];", "cannot be _"),
    (f"{TENSOR}.3d.{TO_SHARED} [buffer], [%rd1, {{%r1, %f1, 2}}], [%r2];", "integers and floats"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1+64, {{%r1}}], [%r2];", "a tensor map with an offset"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [p, {{%r1}}], [%r2];", "a variable of .param, not of .global"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [buffer, {{%r1}}], [%r2];", "a variable of .shared, not of .global"),
    (f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1, {{%r1}}];", "operands"),
    (f"{TENSOR}.1d.{TO_SHARED}.multicast::cluster [buffer], [%rd1, {{%r1}}], [%r2], %r3;", "operand 4"),
    (f"{TENSOR}.1d.{TO_SHARED}.L2::cache_hint [buffer], [%rd1, {{%r1}}], [%r2];", "operands"),
    (f"{TENSOR}.1d.shared::cta.global.{BYTES}.multicast::cluster [buffer], [%rd1, {{%r1}}], [%r2], %h1;", "form"),
    (f"{TENSOR}.1d.shared::cta.bulk_group [%rd1, {{%r1}}], [buffer];", ""),
    (f"{TENSOR}.1d.shared::cta.global.bulk_group [%rd1, {{%r1}}], [buffer];", ""),
    (f"{TENSOR}.1d.{TO_PEER} [buffer], [%rd1, {{%r1}}], [%r2];", "unknown form"),
    (f"{TENSOR}.1d.{TO_GLOBAL} [%rd1, {{%r1}}], [gbuf];", "a variable of .global, not of .shared"),
    (f"{TENSOR}.1d.{TO_GLOBAL} [%rd1, {{%r1}}], [buffer], [%r1];", "operands"),
    (f"{BULK}.tensor.prefetch.1d.L2.global [%rd1, {{%r1}}];", "must follow cp"),
    (f"{BULK}.prefetch.tensor.1d.global [%rd1, {{%r1}}];", "unknown form"),
    (f"{REDUCE_TENSOR}.1d.shared::cta.global.add.bulk_group [%rd1, {{%r1}}], [buffer];", ""),
    (f"{REDUCE_TENSOR}.1d.global.shared::cta.bulk_group [%rd1, {{%r1}}], [buffer];", "unknown form"),
    (f"{REDUCE_TENSOR}.1d.global.shared::cta.add.noftz.bulk_group [%rd1, {{%r1}}], [buffer];", "noftz"),
    (f"{REDUCE_TENSOR}.1d.global.shared::cta.add.bulk_group.f32 [%rd1, {{%r1}}], [buffer];", "f32"),
    # ---- stores and reductions of registers ----
    ("st.async.shared::cluster.u32 [%r1], %r2, [%r3];", "unknown form"),
    (f"st.async.{PEER}.u16 [%r1], %h2, [%r3];", "type .u16"),
    (f"st.async.{PEER}.u32 [%r1], %rd2, [%r3];", "operand 2"),
    (f"st.async.{PEER}.u32 [%r1], %f2, [%r3];", "operand 2"),
    (f"st.async.{PEER}.u32 [%r1], %r2, [gbuf];", "a variable of .global, not of .shared"),
    (f"st.async.{PEER}.v4.b64 [%r1], {{%rd1, %rd2, %rd3, %rd4}}, [%r3];", "32 bytes at once"),
    (f"st.async.{PEER}.v2.b32 [%r1], {{%r1, %r2, %r3}}, [%r3];", "expected 2 registers, got 3"),
    (f"st.async.{PEER}.v2.b32 [%r1], {{_, %r2}}, [%r3];", "cannot be _"),
    (f"st.async.relaxed.cluster.{PEER}.b32 [%r1], %r2, [%r3];", "modifier .relaxed"),
    (f"st.async.global.{BYTES}.b32 [%rd1], %r2, [%r3];", ""),
    (f"st.weak.async.{PEER}.b32 [%r1], %r2, [%r3];", ".async must follow st"),
    (f"red.async.{PEER}.add.u32 [%r1], %r2, [%r3];", "unknown form"),
    (f"red.async.relaxed.{PEER}.add.u32 [%r1], %r2, [%r3];", "unknown form"),
    (f"red.async.relaxed.gpu.{PEER}.add.u32 [%r1], %r2, [%r3];", ""),
    (f"red.async.relaxed.cluster.shared::cta.{BYTES}.add.u32 [%r1], %r2, [%r3];", "modifier .shared::cta"),
    (f"red.async.relaxed.cluster.{PEER}.add.b32 [%r1], %r2, [%r3];", "add of .b32"),
    (f"red.async.relaxed.cluster.{PEER}.add.f32 [%r1], %f2, [%r3];", "type .f32"),
    (f"red.async.relaxed.cluster.{PEER}.min.u64 [%r1], %rd2, [%r3];", "min of .u64"),
    (f"red.async.relaxed.cluster.{PEER}.inc.s32 [%r1], %r2, [%r3];", "inc of .s32"),
    (f"red.async.relaxed.cluster.{PEER}.or.u32 [%r1], %r2, [%r3];", "or of .u32"),
    # ---- tensor maps ----
    ("tensormap.replace.rank.global.b1024.b32 [%rd1], 1;", "unknown form"),
    (f"{REPLACE}.rank.global.b32 [%rd1], 1;", "unknown form"),
    (f"{REPLACE}.rank.global.b1024.b64 [%rd1], 1;", "rank of .b64"),
    (f"{REPLACE}.global_address.global.b1024.b32 [%rd1], %r1;", "global_address of .b32"),
    (f"{REPLACE}.global_stride.global.b1024.b32 [%rd1], 0, %r1;", "global_stride of .b32"),
    (f"{REPLACE}.box_dim.global.b1024.b32 [%rd1], %r1;", "operands"),
    (f"{REPLACE}.box_dim.global.b1024.b32 [%rd1], 5, %r1;", "must be 0 to 4, got 5"),
    (f"{REPLACE}.box_dim.global.b1024.b32 [%rd1], %r1, %r1;", "must be a literal integer"),
    (f"{REPLACE}.global_dim.global.b1024.b32 [%rd1], 0, %f1;", "operand 3"),
    (f"{REPLACE}.elemtype.global.b1024.b32 [%rd1], 13;", "must be 0 to 12, got 13"),
    (f"{REPLACE}.swizzle_mode.global.b1024.b32 [%rd1], 4;", "must be 0 to 3, got 4"),
    (f"{REPLACE}.interleave_layout.global.b1024.b32 [%rd1], 3;", "must be 0 to 2, got 3"),
    (f"{REPLACE}.fill_mode.global.b1024.b32 [%rd1], %r1;", "must be a literal integer"),
    (f"{REPLACE}.rank.shared::cluster.b1024.b32 [%r1], 1;", "modifier .shared::cluster"),
    (f"{COPY_FENCE}.gpu.sync.aligned [%rd1], [buffer], 64;", "must be 128, got 64"),
    (f"{COPY_FENCE}.gpu.sync [%rd1], [buffer], 128;", "unknown form"),
    (f"{COPY_FENCE}.sync.aligned [%rd1], [buffer], 128;", "unknown form"),
    (f"{COPY_FENCE.replace('release', 'acquire')}.gpu.sync.aligned [%rd1], [buffer], 128;", "unknown form"),
    (f"{MAP_FENCE}.acquire.gpu [%rd1], 64;", "must be 128, got 64"),
    (f"{MAP_FENCE}.acquire.gpu;", "operands"),
    (f"{MAP_FENCE}.release.gpu [%rd1], 128;", "operands"),
    (f"{MAP_FENCE}.release;", "unknown form"),
    ("prefetch.tensormap [cbuf];", "a variable of .const"),
    ("prefetch.global.tensormap [%rd1];", "modifier .global"),
    ("prefetch.tensormap [%rd1], 128;", "operands"),
    # ---- fences, barriers, hints ----
    ("fence.mbarrier_init.release.cta;", "unknown form"),
    ("fence.mbarrier_init.acquire.cluster;", "unknown form"),
    ("fence.proxy.generic;", "unknown form"),
    ("fence.proxy.async.shared;", "unknown form"),
    ("fence.proxy.async.gpu;", "unknown form"),
    ("fence.global.proxy.async;", ".proxy must follow fence"),
    ("fence.proxy.async::generic.acquire.sync_restrict::shared::cta.cluster;", "unknown form"),
    ("fence.proxy.async::generic.release.sync_restrict::shared::cluster.cluster;", "unknown form"),
    ("fence.acquire.sync_restrict::shared::cta.cluster;", "unknown form"),
    ("barrier.cluster.arrive.acquire;", "modifier .acquire"),
    ("barrier.cluster.wait.release;", "modifier .release"),
    ("barrier.cluster.wait.relaxed;", "modifier .relaxed"),
    ("barrier.cluster.arrive 0;", "operands"),
    ("barrier.cluster.aligned.arrive;", "must follow barrier"),
    ("barrier.cluster;", ""),
    ("setmaxnreg.inc.sync.aligned.u32 28;", "must be"),
    ("setmaxnreg.inc.sync.aligned.u32 264;", "must be"),
    ("setmaxnreg.inc.aligned.u32 40;", "unknown form"),
    ("setmaxnreg.sync.inc.aligned.u32 40;", ".inc must follow setmaxnreg"),
    ("elect.sync %r1, -1;", "lane|p"),
    ("elect.sync %r1|_, -1;", "operand 1"),
    ("griddepcontrol.wait 0;", "operands"),
    ("griddepcontrol;", "unknown form"),
    (f"{POLICY}, 0.0;", "a fraction of 0.0"),
    (f"{POLICY}, 0f3F800001;", "a fraction of 1.0"),
    (f"{POLICY}, 1;", "operand 2"),
    ("createpolicy.fractional.L2::evict_last.L2::evict_last.b64 %rd1;", "modifier .L2::evict_last"),
    ("createpolicy.fractional.b64 %rd1;", "a priority"),
    ("createpolicy.fractional.global.L2::evict_last.b64 %rd1;", "modifier .global"),
    ("createpolicy.L2::evict_last.fractional.b64 %rd1;", ".fractional must follow createpolicy"),
    (f"{RANGE}, 33, 32;", "33 of 32 bytes"),
    ("createpolicy.cvt.b64 %rd1, %rd2;", "a priority"),
    ("createpolicy.cvt.L2.b64 %fd1, %rd2;", "operand 1"),
    (f"{STMATRIX}.x3.shared.b16 [%r1], {{%r1}};", ""),
    (f"{STMATRIX}.x2.shared.b16 [%r1], {{%r1}};", ""),
    (f"{STMATRIX}.x1.shared::cluster.b16 [%r1], {{%r1}};", ""),
    ("ld.global.L2::cache_hint.u32 %r1, [%rd1], %fd1;", "operand 3"),
    ("st.global.L2::cache_hint.u32 [%rd1], %r1, 1.5;", "operand 3"),
]

# ptxas accepts these, and the PTX manual does not: modifiers without a meaning, registers that are not addresses
LAX = [
    f"{TENSOR}.1d.{TO_GLOBAL}.gpu [%rd1, {{%r1}}], [buffer];",
    f"{TENSOR}.1d.{TO_GLOBAL} [%fd1, {{%r1}}], [buffer];",
    f"{TENSOR}.2d.{TO_GLOBAL} [%rd1, {{1.5, %r1}}], [buffer];",
    f"{TENSOR}.1d.{TO_SHARED} [buffer], [%rd1, {{%r1}}], %rd2;",
    f"{BULK}.{TO_SHARED} [buffer], [%rd1], 16, 7;",
    f"{BULK}.{TO_GLOBAL} [%r1], [buffer], 16;",
    f"st.async.{PEER}.u32 [%r1], %r2;",
    f"st.async.{PEER}.v2.b32 [%r1], %r2, [%r3];",
    "mbarrier.init.shared.b64 [%h1], 1;",
    "mbarrier.init.shared.b64 [buffer], buffer+16;",
    "mbarrier.arrive.shared.b64 %rd1, [buffer], {%r1, %r2};",
    f"{MAP_FENCE}.acq_rel.gpu;",
    "fence.mbarrier_init.release.cluster.async;",
    "elect.sync.sync %r1|%p1, -1;",
]


# a target and a PTX version that lack an instruction, and a target and a version that have it
GATES = [
    ("sm_75", "8.0", "sm_80", "8.0", "mbarrier.init.shared.b64 [buffer], 1;"),
    ("sm_75", "8.0", "sm_80", "8.0", "mbarrier.test_wait.parity.acquire.cta.shared.b64 %p1, [buffer], 0;"),
    ("sm_75", "8.0", "sm_80", "8.0", "cp.async.mbarrier.arrive.noinc.shared.b64 [buffer];"),
    ("sm_75", "8.0", "sm_80", "8.0", POLICY + ";"),
    ("sm_89", "8.0", "sm_90", "8.0", "mbarrier.arrive.shared.b64 %rd1, [buffer], 2;"),
    ("sm_89", "8.0", "sm_90", "8.0", "mbarrier.arrive.expect_tx.shared.b64 %rd1, [buffer], 2;"),
    ("sm_89", "8.0", "sm_90", "8.0", "mbarrier.try_wait.shared.b64 %p1, [buffer], %rd1;"),
    ("sm_89", "8.8", "sm_90", "8.8", "mbarrier.arrive.relaxed.cta.shared.b64 %rd1, [buffer];"),
    ("sm_89", "8.0", "sm_90", "8.0", "mbarrier.test_wait.acquire.cluster.shared.b64 %p1, [buffer], %rd1;"),
    ("sm_89", "8.0", "sm_90", "8.0", f"{BULK}.{TO_SHARED} [buffer], [%rd1], 16, [%r1];"),
    ("sm_89", "8.0", "sm_90", "8.0", f"{REDUCE}.{TO_GLOBAL}.add.u32 [%rd1], [buffer], 16;"),
    ("sm_89", "8.0", "sm_90", "8.0", f"{TENSOR}.1d.{TO_GLOBAL} [%rd1, {{%r1}}], [buffer];"),
    ("sm_89", "8.8", "sm_90", "8.8", f"st.async.{PEER}.u32 [%r1], %r2, [%r3];"),
    ("sm_89", "8.0", "sm_90", "8.0", "fence.mbarrier_init.release.cluster;"),
    ("sm_89", "8.0", "sm_90", "8.0", "fence.proxy.async.global;"),
    ("sm_89", "8.8", "sm_90", "8.8", "fence.acquire.gpu;"),
    ("sm_89", "8.0", "sm_90", "8.0", "prefetch.tensormap [%rd1];"),
    ("sm_89", "8.0", "sm_90", "8.0", "barrier.cluster.arrive.relaxed;"),
    ("sm_89", "8.0", "sm_90", "8.0", "elect.sync %r1|%p1, -1;"),
    ("sm_89", "8.0", "sm_90", "8.0", "griddepcontrol.wait;"),
    ("sm_90", "8.0", "sm_90a", "8.0", "setmaxnreg.inc.sync.aligned.u32 40;"),
    ("sm_90", "8.0", "sm_90a", "8.0", "wgmma.fence.sync.aligned;"),
    ("sm_90", "8.3", "sm_90a", "8.3", f"{REPLACE}.rank.global.b1024.b32 [%rd1], 1;"),
    ("sm_90", "8.0", "sm_90", "8.1", f"st.async.{PEER}.u32 [%r1], %r2, [%r3];"),
    ("sm_90", "8.0", "sm_90", "8.1", f"red.async.relaxed.cluster.{PEER}.add.u32 [%r1], %r2, [%r3];"),
    ("sm_90", "8.2", "sm_90", "8.3", f"{MAP_FENCE}.release.gpu;"),
    ("sm_90", "8.2", "sm_90", "8.3", f"{COPY_FENCE}.gpu.sync.aligned [%rd1], [buffer], 128;"),
    ("sm_90a", "8.2", "sm_90a", "8.3", f"{REPLACE}.rank.global.b1024.b32 [%rd1], 1;"),
    ("sm_90", "8.5", "sm_90", "8.6", "mbarrier.try_wait.parity.relaxed.cta.shared.b64 %p1, [buffer], 0;"),
    ("sm_90", "8.5", "sm_90", "8.6", f"{BULK}.shared::cta.global.{BYTES} [buffer], [%rd1], 16, [%r1];"),
    ("sm_90", "8.5", "sm_90", "8.6", f"{TENSOR}.1d.shared::cta.global.{BYTES} [buffer], [%rd1, {{%r1}}], [%r1];"),
    ("sm_90", "8.5", "sm_90", "8.6", "fence.release.cluster;"),
    ("sm_90", "8.5", "sm_90", "8.6", "fence.acquire.sync_restrict::shared::cluster.cluster;"),
]


def module(*lines: str) -> str:
    kernels = (KERNEL.replace("NUMBER", str(n)).replace("LINE", line) for n, line in enumerate(lines))
    return HEAD + "".join(kernels)


def gated(line: str, target: str, version: str) -> str:
    return module(line).replace(".target sm_90a", f".target {target}").replace(".version 8.8", f".version {version}")


@pytest.mark.parametrize("line", VALID)
def test_what_ptxas_accepts_loads(line: str) -> None:
    assert load(module(line)) == (LOADED, "")


@pytest.mark.parametrize(("line", "words"), INVALID)
def test_what_ptxas_rejects_is_refused_by_name(line: str, words: str) -> None:
    verdict, message = load(module(line))
    assert verdict in (REFUSED, UNSUPPORTED)
    assert words in message
    assert line.split()[0].rstrip(";").split(".")[0] in message


@pytest.mark.parametrize("line", LAX)
def test_what_only_ptxas_accepts_is_refused(line: str) -> None:
    assert load(module(line))[0] in (REFUSED, UNSUPPORTED)


@pytest.mark.parametrize(("target", "version", "later", "newer", "line"), GATES)
def test_older_targets_and_versions_refuse(target: str, version: str, later: str, newer: str, line: str) -> None:
    verdict, message = load(gated(line, target, version))
    assert verdict == REFUSED
    needed = later if later != target else f"PTX {newer}"
    assert f"needs {needed}" in message or "needs a target with a letter, such as sm_90a" in message
    assert load(gated(line, later, newer)) == (LOADED, "")


def test_the_installed_ptxas_says_so() -> None:
    if missing_ptxas():
        pytest.skip(missing_ptxas())
    accepted, said = judge(module(*VALID, *LAX))
    assert accepted, said
    for line, _ in INVALID:
        assert not judge(module(line))[0], line
    for target, version, later, newer, line in GATES:
        assert not judge(gated(line, target, version))[0], line
        assert judge(gated(line, later, newer))[0], line
