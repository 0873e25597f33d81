"""The texts that mutants are made of: compiled kernels, forms of the catalogue, and small modules of our own."""

from __future__ import annotations

from functools import cache

from cudakit.compile import compiler
from tests.differential import forms
from tests.differential.catalogue import groups
from tests.paths import ROOT

# short kernels of several families: reductions, tiles, half precision, tensor cores, cp.async, atomics
_KERNELS = (
    "vector_add/04_vector_add_vec4",
    "vector_add/03_vector_add_grid_stride",
    "softmax/01_thread_per_row",
    "softmax/08_warp_shuffle",
    "blur/01_naive",
    "matrix_add/02_many_blocks",
    "gemm/03_tiled",
    "random/01_word_per_thread",
)
_HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
_REGISTERS = """.reg .pred %p<4>;
.reg .b16 %rs<4>;
.reg .b32 %r<16>;
.reg .b64 %rd<8>;
.reg .f32 %f<16>;
.reg .f64 %fd<4>;
.reg .b128 %q<3>;
.shared .align 16 .b8 buffer[1024];
"""
_BODIES = {
    "tensor": """mov.u32 %r9, buffer;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r9];
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r5, %r6}, [%r9+64];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, \
{%f1, %f2, %f3, %f4};
mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, \
{%f1, %f2, %f3, %f4};
mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, \
{%r1, %r2, %r3, %r4};
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9], {%r7};
movmatrix.sync.aligned.m8n8.trans.b16 %r7, %r6;
wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, [%r9], 16;
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%r9];
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, \
{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, \
{%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};
wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r9], {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, 16;""",
    "copies": """ld.param.u64 %rd1, [p];
cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r1, buffer;
cp.async.ca.shared.global [%r1], [%rd2], 8;
cp.async.cg.shared.global.L2::128B [%r1+16], [%rd2+16], 16, %r2;
cp.async.commit_group;
cp.async.wait_group 0;
cp.async.wait_all;
bar.sync 0;
ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];
st.global.v2.f32 [%rd2+8], {%f1, %f2};
prefetch.global.L2 [%rd2];
discard.global.L2 [%rd2], 128;
createpolicy.fractional.L2::evict_first.b64 %rd3, 1.0;
ld.global.L2::cache_hint.u32 %r1, [%rd2], %rd3;""",
    "atomics": """ld.param.u64 %rd1, [p];
atom.global.add.u32 %r1, [%rd1], 1;
atom.shared.cas.b32 %r2, [buffer+4], %r1, %r3;
atom.global.add.noftz.f16x2 %r4, [%rd1], %r2;
atom.global.add.v2.f32 {%f1, %f2}, [%rd1], {%f3, %f4};
atom.acq_rel.gpu.global.exch.b128 %q1, [%rd1], %q2;
red.relaxed.gpu.global.max.s32 [%rd1+8], %r5;
red.add.f32 [%rd1], %f1;
fence.acq_rel.gpu;
membar.gl;
ld.acquire.gpu.global.u32 %r1, [%rd1];
st.release.gpu.global.u32 [%rd1], %r1;""",
    "warp": """mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 7;
shfl.sync.bfly.b32 %r2|%p2, %r1, 16, 31, -1;
@%p1 shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xffffffff;
vote.sync.ballot.b32 %r3, %p1, -1;
vote.sync.all.pred %p3, !%p1, -1;
match.any.sync.b32 %r4, %r2, -1;
match.all.sync.b64 %r4|%p2, %rd2, -1;
redux.sync.add.s32 %r5, %r1, -1;
elect.sync %r6|%p1, -1;
activemask.b32 %r7;
bar.warp.sync -1;
bar.red.popc.u32 %r8, 1, 64, %p1;
bar.arrive 2, 64;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mapa.shared::cluster.u32 %r1, %r2, 0;
nanosleep.u32 100;""",
    "arithmetic": """add.cc.u32 %r1, %r2, %r3;
addc.u32 %r4, %r5, 6;
mad.wide.s32 %rd1, %r1, %r2, %rd2;
mul.hi.u64 %rd3, %rd1, %rd2;
fma.rn.ftz.f32 %f1, %f2, %f3, 0f3F800000;
add.rn.f64 %fd1, %fd2, 1.0;
fma.rn.f16x2 %r1, %r2, %r3, %r4;
add.rn.bf16 %rs1, %rs2, %rs3;
ex2.approx.ftz.f32 %f4, %f1;
sqrt.rn.f64 %fd3, %fd1;
div.rn.f32 %f1, %f2, %f3;
cvt.rzi.s32.f32 %r1, %f1;
cvt.rn.f16x2.f32 %r2, %f1, %f2;
cvt.u64.u8 %rd1, %rs1;
setp.lt.and.s32 %p1|%p2, %r1, %r2, %p3;
set.eq.u32.f32 %r1, %f1, %f2;
selp.f32 %f1, %f2, 0f00000000, %p1;
slct.s32.f32 %r1, %r2, %r3, %f1;
lop3.b32 %r1, %r2, %r3, %r4, 0x96;
shf.l.wrap.b32 %r1, %r2, %r3, 7;
bfe.u32 %r1, %r2, 4, 8;
bfi.b32 %r1, %r2, %r3, 0, 8;
prmt.b32 %r1, %r2, %r3, 0x5410;
popc.b64 %r1, %rd1;
dp4a.s32.u32 %r1, %r2, %r3, %r4;
vadd4.u32.u32.u32 %r1, %r2, %r3, %r4;
mov.b64 {%r1, %r2}, %rd1;
mov.b32 %r1, {%rs1, %rs2};
max.s32 %r1, %r2, -5;
testp.finite.f32 %p1, %f1;
xor.pred %p1, %p2, %p3;
not.b32 %r1, %r2;""",
    "flow": """.local .align 8 .b8 stack[64];
.reg .u32 i;
.param .b32 given;
.param .align 8 .b8 back[16];
mov.u64 %rd1, stack;
cvta.local.u64 %rd2, %rd1;
st.local.u32 [stack+4], %r1;
mov.u32 i, 0;
table: .branchtargets A, B;
setp.gt.u32 %p1, %r1, 1;
@%p1 bra C;
brx.idx %r1, table;
A: add.u32 i, i, 1;
{ .reg .b32 i; mov.u32 i, %laneid; st.u32 [%rd2], i; }
bra.uni C;
B: @!%p1 trap;
C:
st.param.b32 [given], %r1;
call.uni (back), twice, (given);
ld.param.v2.b32 {%r1, %r2}, [back+8];
{ .param .b64 text; .param .b64 list; .param .b32 count; st.param.b64 [text], %rd1; st.param.b64 [list], %rd2;
call.uni (count), vprintf, (text, list); ld.param.b32 %r3, [count]; }
@%p2 exit;""",
    "pointers": """.param .b32 given;
.param .align 8 .b8 back[16];
shape: .callprototype (.param .align 8 .b8 _[16]) _ (.param .b32 _);
known: .calltargets twice, thrice;
regs: .callprototype (.reg .b32 _) _ (.reg .b32 _, .reg .f32 _);
nothing: .callprototype _ .noreturn;
mov.u64 %rd1, twice;
ld.global.u64 %rd2, [functions+8];
st.param.b32 [given], %r1;
call (back), %rd1, (given), shape;
call (back), %rd2, (%r1), known;
@%p1 call.uni (back), %rd2, (given), functions;
ld.param.v2.b32 {%r1, %r2}, [back+8];
call (%r2), %rd1, (%r1, %f1), regs;
@!%p2 call %rd2, nothing;""",
    "stack": """mov.u64 %rd1, 64;
stacksave.u64 %rd2;
alloca.u64 %rd3, %rd1, 16;
st.local.u32 [%rd3+4], %r1;
stackrestore.u64 %rd2;
alloca.u32 %r3, %r2;
stacksave.u32 %r4;
stackrestore.u32 %r4;""",
    "textures": """tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];
tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];
suld.b.1d.b32.trap %r1, [%rd1, {%r1}];
sust.b.1d.b32.trap [%rd1, {%r1}], %r2;
txq.width.b32 %r1, [%rd1];
mbarrier.init.shared.b64 [buffer], 1;
cp.async.bulk.commit_group;
wgmma.fence.sync.aligned;
vadd.s32.s32.s32 %r1, %r2, %r3;""",
}
_GLOBALS = """.extern .shared .align 16 .b8 dynamic[];
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.visible .global .align 4 .u32 counter = 7;
.global .align 8 .u64 pointers[3] = {generic(counter), counter, generic(counter)+4};
.const .align 4 .f32 weights[4] = {1.0, 0f40000000, -2.5, 0f40400000};
.global .v4 .f32 four;
.weak .global .s16 small[2][2] = {{1, 2}, {-3, 4}};
.func (.param .align 8 .b8 out[16]) twice (.param .b32 in)
{
.reg .b32 %r<3>;
ld.param.u32 %r1, [in];
shl.b32 %r2, %r1, 1;
st.param.b32 [out], %r2;
st.param.v2.b32 [out+8], {%r1, %r2};
ret;
}
.func (.param .align 8 .b8 out[16]) thrice (.param .b32 in) { ret; }
.global .u64 functions[2] = {twice, thrice};
"""


def _module(body: str) -> str:
    opening = ".visible .entry k(.param .u64 p, .param .align 8 .b8 s[24])\n.maxntid 256, 1, 1\n{\n"
    return f"{_HEAD}{_GLOBALS}{opening}{_REGISTERS}{body}\nret;\n}}\n"


@cache
def texts() -> tuple[str, ...]:
    """Every text that mutants are made of."""
    found = [_module(body) for body in _BODIES.values()]
    for group in groups().values():
        # about six forms per group of instructions, three to a module
        chosen = group[:: max(len(group) // 6, 1)][:6]
        found += [forms.module(chosen[:3]), forms.module(chosen[3:])] if len(chosen) > 3 else [forms.module(chosen)]
    for name in _KERNELS:
        request = compiler.request_of(ROOT / "kernels" / f"{name}.cu", arch="sm_90a")
        found.append(compiler.compile(request).ptx)
    return tuple(found)
