"""Invalid PTX raises at the load of its module; an unsupported instruction raises at the launch of a kernel that needs
it. The error has the instruction's name, its lines, and an alternative. No modifier is silently ignored."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
from simdevice import SimDevice, compile_ptx
from simulated import start

from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import PtxError, UnsupportedPtx
from cudakit.sim.ptx.opcodes import ROWS, row_of

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .reg .b128 %q<3>;
    .reg .f32 %f<8>;
    .reg .f64 %fd<4>;
    .shared .align 16 .b8 buffer[256];
    .loc 1 42 7
    LINE
    ret;
}
.file 1 "kernel.cu"
"""
TEXT = "\n" * 41 + "    the_line_at_fault();\n"


def load(line: str) -> LoadedModule:
    return LoadedModule(HEAD.replace("LINE", line), AddressSpace(), {"kernel.cu": TEXT}.get)


def error_of(line: str) -> PtxError | None:
    """The error at the load of a line, or at the launch of its kernel."""
    try:
        return load(line).functions["k"].refusal
    except PtxError as error:
        return error


def refused(line: str) -> str:
    error = error_of(line)
    assert error is not None
    assert error.line == 15
    message = str(error)
    assert message.startswith("PTX line 15: ")
    # the kernel, the position in its source, and the text there
    assert message.endswith("\n  in the kernel k\n  at kernel.cu:42\n      the_line_at_fault();")
    return message


# instructions of every unsupported group, several if a group has several kinds
INSTRUCTIONS = [
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[buffer], [%rd1, {%r1, %r2, %r3}], [%rd2], {%h1};",
    "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {%r1, %r2, %r3}], [buffer];",
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.im2col_no_offs.bulk_group "
    "[%rd1, {%r1, %r2, %r3}], [buffer];",
    "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%rd1, {%r1, %r2, %r3, %r4}], {%h1, %h2};",
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
    "[buffer], [%rd1, {%r1, %r2, %r3, %r4, %r5}], [%rd2];",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd1, {%r1, %r2, %r3, %r4, %r5}], [buffer];",
    "cp.async.bulk.tensor.1d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[buffer], [%rd1, {%r1}], [%rd2];",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [buffer], 16, %h1;",
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd1], 1;",
    "st.async.mmio.release.sys.global.u32 [%rd1], %r1;",
    "red.async.mmio.release.sys.global.add.u32 [%rd1], %r1;",
    "st.bulk.weak.shared::cta [buffer], 64, 0;",
    "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [buffer], [%rd2];",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %r1, 0, 1, 1, 1, 0, 0;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [buffer], 32;",
    "tcgen05.wait::ld.sync.aligned;",
    "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2, %f3, %f4}, %r1, 0x0;",
    "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
    "{%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4}, %r1, {0, 0}, %r2, {0, 0};",
    "multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd1];",
    "multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;",
    "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];",
    "tex.level.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}], %f3;",
    "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];",
    "txq.width.b32 %r1, [%rd1];",
    "suld.b.1d.b32.trap %r1, [%rd1, {%r1}];",
    "sust.b.1d.b32.trap [%rd1, {%r1}], %r2;",
    "sured.b.add.1d.u32.trap [%rd1, {%r1}], %r2;",
    "suq.width.b32 %r1, [%rd1];",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [%r1], [%rd1], %r2, %r3, %r3, [%r4];",
    "mbarrier.init.layout::v0.shared.b64 [%r1], 1;",
    "mbarrier.test_wait.phase_type::primary.acquire.cta.shared::cta.b64 %p1|%p2, [%r1], %rd1;",
    "istypep.texref %p1, %rd1;",
    "vadd.s32.s32.s32 %r1, %r2, %r3;",
    "vmad.s32.s32.s32 %r1, %r2, %r3, %r4;",
    "vset.s32.u32.lt %r1, %r2, %r3;",
    "vavrg4.u32.u32.u32 %r1, %r2, %r3, %r4;",
    "shfl.up.b32 %r1, %r2, 1, 0;",
    "vote.ballot.b32 %r1, %p1;",
    "mov.u32 %r1, %pm0;",
    "mov.u64 %rd1, %current_graph_exec;",
    "mov.u32 %r1, %aggr_smem_size;",
    "nonsense.u32 %r1, %r2;",
    ".reg .b256 %wide;",
    ".local .texref texture;",
    ".nonsense 1;",
]


@pytest.mark.parametrize("line", INSTRUCTIONS)
def test_what_is_not_executed_is_refused_by_name(line):
    message = refused(line)
    words = line.split()
    name = words[1] if words[0] == "@%p1" else words[0]
    if name.startswith("."):
        assert words[1].strip("%;") in message
    elif name in ("mov.u32", "mov.u64"):
        assert words[2].rstrip(";") in message
    else:
        assert f"'{name.rstrip(';')}'" in message


@pytest.mark.parametrize("row", [row for row in ROWS if row.refusal is not None], ids=lambda row: row.names)
def test_every_refused_row_says_why_and_what_to_do_instead(row):
    message = refused(row.refusal.example)
    assert f"({row.refusal.reason})" in message
    assert any(row_of(instruction) is row for instruction in map(_parse, INSTRUCTIONS) if instruction is not None)


def _parse(line):
    from cudakit.sim.ptx.parser import parse

    try:
        return parse(HEAD.replace("LINE", line)).functions["k"].instructions[0]
    except PtxError:
        return None


# supported forms, to which invalid modifiers are added
EXECUTED = [
    "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
    "ld.relaxed.gpu.global.u32 %r1, [%rd1];",
    "ld.volatile.shared.v2.b32 {%r1, %r2}, [%r3];",
    "ld.global.L2::cache_hint.b128 %q1, [%rd1], %rd2;",
    "ld.param.u64 %rd1, [p];",
    "ldu.global.u32 %r1, [%rd1];",
    "st.global.wt.v2.u64 [%rd1], {%rd2, %rd3};",
    "st.release.sys.global.b32 [%rd1], %r1;",
    "st.shared::cluster.u8 [%r1], %h1;",
    "mov.b32 %r1, %r2;",
    "mov.b128 %q1, {%rd1, %rd2};",
    "mov.b64 {%r1, %r2}, %rd1;",
    "cvta.to.global.u64 %rd1, %rd2;",
    "isspacep.shared::cluster %p1, %rd1;",
    "mapa.shared::cluster.u32 %r1, %r2, %r3;",
    "alloca.u64 %rd1, %rd2, 16;",
    "stacksave.u64 %rd1;",
    "stackrestore.u32 %r1;",
    "getctarank.shared::cluster.u32 %r1, %r2;",
    "atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], %r2;",
    "atom.global.cas.b128 %q1, [%rd1], %q2, %q1;",
    "atom.global.add.noftz.f16x2 %r1, [%rd1], %r2;",
    "atom.global.v2.f32.add {%f1, %f2}, [%rd1], {%f3, %f4};".replace("v2.f32.add", "add.v2.f32"),
    "red.shared.max.s32 [%r1], %r2;",
    "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;",
    "vote.sync.any.pred %p1, %p2, -1;",
    "vote.sync.ballot.b32 %r1, %p2, -1;",
    "match.any.sync.b64 %r1, %rd1, -1;",
    "redux.sync.add.s32 %r1, %r2, -1;",
    "elect.sync %r1|%p1, -1;",
    "activemask.b32 %r1;",
    "bar.sync 0;",
    "barrier.sync.aligned 0, 64;",
    "barrier.cta.red.popc.u32 %r1, 0, %p1;",
    "bar.warp.sync -1;",
    "barrier.cluster.arrive.release.aligned;",
    "barrier.cluster.wait.acquire;",
    "fence.acq_rel.gpu;",
    "fence.proxy.async;",
    "membar.gl;",
    "prefetch.global.L2 [%rd1];",
    "prefetchu.L1 [%rd1];",
    "discard.global.L2 [%rd1], 128;",
    "applypriority.global.L2::evict_normal [%rd1], 128;",
    "createpolicy.fractional.L2::evict_last.b64 %rd1, 0f3F800000;",
    "nanosleep.u32 100;",
    "griddepcontrol.wait;",
    "setmaxnreg.inc.sync.aligned.u32 96;",
    "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;",
    "cp.async.wait_group 0;",
    "mbarrier.init.shared::cta.b64 [buffer], 1;",
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], %r2;",
    "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [buffer], 0;",
    "mbarrier.try_wait.relaxed.cluster.b64 %p1, [%rd1], %rd2, 100;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [buffer], 16;",
    "mbarrier.pending_count.b64 %r1, %rd1;",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [buffer];",
    "fence.mbarrier_init.release.cluster;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [buffer], [%rd1], 16, [%r2];",
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [buffer], %r1, %rd2;",
    "cp.async.bulk.wait_group.read 0;",
    "cp.async.bulk.prefetch.L2.global [%rd1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%rd1], [buffer], 16;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, 0}], [%r2];",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r1}], [buffer];",
    "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd1, {%r1}], [buffer];",
    "cp.async.bulk.prefetch.tensor.1d.L2.global [%rd1, {%r1}];",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r1], {%r2, %r3}, [%r4];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
    "tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], 0, %r1;",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [buffer], 128;",
    "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    "prefetch.param.tensormap [p];",
    "vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r4;",
    "add.rn.ftz.f32 %f1, %f2, %f3;",
    "mul.wide.s32 %rd1, %r1, %r2;",
    "fma.rn.f64 %fd1, %fd2, %fd3, %fd1;",
    "cvt.rni.sat.s32.f32 %r1, %f1;",
    "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
    "lop3.b32 %r1, %r2, %r3, %r4, 0x96;",
    "prmt.b32.f4e %r1, %r2, %r3, %r4;",
    "shf.l.wrap.b32 %r1, %r2, %r3, %r4;",
    "min.NaN.f32 %f1, %f2, %f3;",
    "bra done;\ndone:",
    "exit;",
]
# modifiers that are invalid on these instructions
SPOILERS = ["nonsense", "v3", "v4.v4", "L1::nonsense", "L2::96B", "shared::grid", "gpu.gpu", "relaxed.acquire", "async"]
SPOILERS += ["tensormap", "b256", "mbarrier::complete_tx::bytes", "multicast::cluster", "uni.uni", "f128", "cc.cc"]


@pytest.mark.parametrize("line", EXECUTED)
def test_a_modifier_that_nobody_knows_is_refused_and_never_ignored(line):
    assert error_of(line) is None
    name, rest = line.split(" ", 1) if " " in line else (line.rstrip(";"), ";")
    parts = name.split(".")
    pick = random.Random(name)
    spoilt = [f"{name}.{spoiler}" for spoiler in SPOILERS]
    spoilt += [".".join([*parts[:at], pick.choice(SPOILERS), *parts[at:]]) for at in range(1, len(parts))]
    for wrong in spoilt:
        error = error_of(f"{wrong} {rest}" if rest != ";" else f"{wrong};")
        assert "PTX line 15" in str(error), wrong


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.relaxed.u32 %r1, [%rd1];",
        "ld.global.gpu.u32 %r1, [%rd1];",
        "ld.global.v4.u64 {%rd1, %rd2}, [%rd1];",
        "ld.global.v2.u32 %r1, [%rd1];",
        "ld.global.u64 %r1, [%rd1];",
        "ld.global.L2::cache_hint.u32 %r1, [%rd1];",
        "ld.global.u32 %r1, [%rd1], %rd2;",
        "ld.shared.nc.u32 %r1, [%r2];",
        "ld.mmio.u32 %r1, [%rd1];",
        "ld.global.b8 %p1, [%rd1];",
        "st.const.u32 [%rd1], %r1;",
        "st.global.u32 [%rd1];",
        "st.global.u64 [%rd1], %r1;",
        "st.param.u32 [p], %r1;",
        "atom.global.inc.s32 %r1, [%rd1], %r2;",
        "atom.global.add.f16 %h1, [%rd1], %h2;",
        "atom.global.add.noftz.u32 %r1, [%rd1], %r2;",
        "atom.global.max.f32 %f1, [%rd1], %f2;",
        "atom.global.add.v8.f32 {%f1, %f2}, [%rd1], {%f3, %f4};",
        "atom.global.cas.b32 %r1, [%rd1], %r2;",
        "atom.local.add.u32 %r1, [%rd1], %r2;",
        "red.global.exch.b32 [%rd1], %r1;",
        "redux.sync.add.b32 %r1, %r2, -1;",
        "redux.sync.max.NaN.u32 %r1, %r2, -1;",
        "vote.sync.ballot.pred %p1, %p2, -1;",
        "shfl.sync.up.b32 %r1, %r2, 1;",
        "bar.sync;",
        "bar.arrive 1;",
        "bar.red.popc.pred %p1, 0, %p2;",
        "barrier.cluster.arrive.acquire;",
        "barrier.cluster.sync;",
        "bar.cluster.arrive;",
        "membar.gpu;",
        "fence.gl;",
        "prefetch.shared.L1 [%r1];",
        "discard.global.L2 [%rd1], 64;",
        "cvta.u64 %rd1, %rd2;",
        "cvta.shared.u32 %r1, %r2;",
        "isspacep.nowhere %p1, %rd1;",
        "mov.u8 %h1, %h2;",
        "wmma.sync.load.a.aligned.row.m16n16k16.shared.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [buffer];",
        "wmma.sync.store.d.aligned.row.m16n16k16.shared.f32 [buffer], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};",
        "wmma.sync.mma.aligned.row.col.m8n8k4.f64.f64.f64.f64 {%fd0,%fd1}, {%fd2}, {%fd3}, {%fd0,%fd1};",
    ],
)
def test_forms_that_ptx_does_not_have_are_refused(line):
    with pytest.raises(PtxError, match="PTX line 15"):
        load(line)


def test_a_module_with_32_bit_addresses_or_an_unknown_directive_is_refused():
    space = AddressSpace()
    with pytest.raises(UnsupportedPtx, match="PTX line 3: only addresses of 64 bits are supported"):
        LoadedModule(HEAD.replace("size 64", "size 32").replace("LINE", ""), space)
    with pytest.raises(UnsupportedPtx, match=r"directive .nonsense(.|\n)*in the kernel k"):
        LoadedModule(HEAD.replace("(.param .u64 p)\n", "(.param .u64 p)\n.nonsense 3\n").replace("LINE", ""), space)


BESIDE = """.version 8.8
.target sm_90a
.address_size 64
DECLARED
.visible .entry good(.param .u64 p)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
.func helper()
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    .reg .f32 %f<5>;
    .param .b64 a;
    .param .b32 b;
    bra later;
    LINE
later:
    add.s32 %r1, %r1, %r1;
    ret;
}
.func between() { call helper; ret; }
.visible .entry bad(.param .u64 p) { call between; ret; }
.visible .entry worse() { LINE2 ret; }
"""
# what the bad kernel needs: the module's declarations, the instruction, and words of the reason
NEEDS = {
    "instruction": ("", "tcgen05.wait::ld.sync.aligned;", "fifth-generation tensor cores"),
    "texture": ("", "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];", "textures and surfaces"),
    "texture reference": (
        ".global .texref image;",
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [image, {%r1}];",
        "textures",
    ),
    "address of a texture": (".global .texref image;", "mov.u64 %rd1, image;", "'image' is a .texref: textures"),
    "surface": (".global .surfref s;", "suld.b.1d.b32.trap %r1, [s, {%r1}];", "textures and surfaces"),
    "table of tables": (
        ".extern .func lost(); .global .u64 t[1] = {lost}; .global .u64 u[1] = {generic(t)};",
        "mov.u64 %rd1, u;",
        "the address of 'lost', which this module declares but does not define",
    ),
    "extern variable": (".extern .global .u32 v;", "ld.global.u32 %r1, [v];", "'v' is declared extern"),
    "extern function": (".extern .func lost();", "call lost;", "declares but does not define"),
    "device-side launch": (
        ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 x, .param .b64 y);",
        "call (b), cudaLaunchDeviceV2, (a, a);",
        "device-side launches are not simulated: launch the kernel from the host",
    ),
    "special register": ("", "mov.u32 %r1, %pm0;", "special register %pm0"),
}


def beside(need: str, other: str = "") -> str:
    declared, line, _ = NEEDS[need]
    return BESIDE.replace("DECLARED", declared).replace("LINE2", other).replace("LINE", line)


@pytest.mark.parametrize("need", NEEDS)
def test_only_the_kernels_that_need_what_is_not_simulated_are_refused(need):
    device = SimDevice(beside(need), ptx=True)
    out = np.zeros(1, np.int32)
    for _ in range(2):
        with pytest.raises(UnsupportedPtx) as caught:
            device.launch("bad", 1, 1, out)
        assert NEEDS[need][2] in str(caught.value)
        assert str(caught.value).startswith("PTX line 23: ")
        assert "\n  in the function helper\n  called by the kernel bad" in str(caught.value)
    device.launch("good", 1, 1, out)
    device.launch("worse", 1, 1)
    assert out[0] == 7


def test_two_kernels_that_use_one_table_of_functions_are_both_refused():
    device = SimDevice(beside("table of tables", ".reg .b64 %rd<2>; mov.u64 %rd1, t;"), ptx=True)
    for kernel in ("bad", "worse"):
        assert "the address of 'lost'" in str(device.kernel(kernel).refusal)


def test_text_that_is_not_valid_is_refused_at_load_beside_what_is_not_simulated():
    for wrong in ("nonsense.u32;", "ld.global.u32 0, [8];", "shfl.up.b32 0, 1, 2, 3;"):
        with pytest.raises(PtxError, match="PTX line 30"):
            SimDevice(beside("instruction", wrong), ptx=True)
        # after the unsupported instruction, in the same function
        with pytest.raises(PtxError, match="PTX line 23"):
            SimDevice(beside("texture").replace("[%rd1, {%r1}];", "[%rd1, {%r1}]; " + wrong), ptx=True)


def test_a_kernel_with_blocks_that_are_clusters_is_refused_at_its_launch():
    text = beside("instruction").replace("worse()", "worse() .blocksareclusters")
    refusal = str(SimDevice(text, ptx=True).kernel("worse").refusal)
    assert "PTX line 30" in refusal
    assert "use __cluster_dims__\n  in the kernel worse" in refusal


CUDA = r"""
#if defined(MULTIMEM)
__global__ void k(int* out) {
    asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(out), "r"(1) : "memory");  // refused
}
#elif defined(TEXTURE)
__global__ void k(float* out, cudaTextureObject_t image) {
    out[threadIdx.x] = tex2D<float>(image, threadIdx.x, 1.0f);  // refused
}
#endif
"""


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("MULTIMEM", r"'multimem\.\S+' \(multicast memory of several GPUs is not simulated"),
        ("TEXTURE", r"'tex\.\S+' \(textures and surfaces are not simulated"),
    ],
)
def test_cuda_that_needs_them_is_refused_with_its_source_line(what, words):
    device = SimDevice(CUDA, name="refused.cu", options=(f"-D{what}",))
    (kernel,) = device.module.functions.values()
    with pytest.raises(UnsupportedPtx, match=words) as caught:
        device.launch(kernel.name, 1, 1, *[0] * len(kernel.params))
    message = str(caught.value)
    assert "in the kernel _Z1kP" in message
    starts = [n for n, text in enumerate(CUDA.splitlines(), 1) if what in text]
    own = [n for n, text in enumerate(CUDA.splitlines(), 1) if n > starts[0] and text.endswith("// refused")]
    assert f"refused.cu:{own[0]}" in message


def test_the_driver_returns_the_refusal_and_a_hint_at_the_launch():
    host = start()
    module = host.cuModuleLoadData(beside("instruction").encode())
    good, bad = (host.cuModuleGetFunction(module, name) for name in (b"good", b"bad"))
    assert host.cuModuleGetFunctionCount(module) == 3
    out = host.cuMemAlloc(4)
    values = ((out,), (ctypes.c_void_p,))
    driver = host.driver
    for _ in range(2):
        (code,) = driver.cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, 0, values, 0)
        assert code.name == "CUDA_ERROR_NOT_SUPPORTED"
        refused = "PTX line 23: the simulated device does not execute 'tcgen05.wait::ld.sync.aligned'"
        assert refused in driver.simLastMessage()
        assert "called by the kernel bad" in driver.simLastMessage()
        assert "run it on a GPU" in driver.simLastHint()
    # the context works on
    host.cuLaunchKernel(good, 1, 1, 1, 1, 1, 1, 0, 0, values, 0)
    assert host.download(out, 1, np.int32)[0] == 7


def test_a_texture_reference_is_not_a_variable():
    host = start()
    module = host.cuModuleLoadData(beside("texture reference").encode())
    assert host.driver.cuModuleGetGlobal(module, b"image")[0].name == "CUDA_ERROR_NOT_FOUND"


def test_ptx_of_other_targets_loads():
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = sinf(x[threadIdx.x]) / x[0]; }'
    for arch in ("sm_75", "sm_86", "sm_100a", "sm_120a"):
        assert list(LoadedModule(compile_ptx(source, arch=arch), AddressSpace()).functions) == ["k"]
