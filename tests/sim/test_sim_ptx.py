"""The PTX parser, on NVRTC's output and on hand-written PTX."""

from __future__ import annotations

import struct

import pytest
from simdevice import compile_ptx

from cudakit.sim.ptx import parser as ptx
from cudakit.sim.values import arithmetic

_HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def _body(text):
    """Return the function k with this body, which begins in line 5 of the PTX."""
    return ptx.parse(f"{_HEAD}.visible .entry k(.param .u64 p) {{\n{text}\n}}").functions["k"]


def _operands(text, registers=".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;"):
    return _body(f"{registers}\n{text}").instructions[0].operands


def test_module_directives():
    module = ptx.parse(_HEAD + '.file 1 "/a/b.cu"\n.file 2 "/c.cuh", 123, 456\n')
    assert (module.version, module.target, module.address_size) == ("8.6", "sm_90a", 64)
    assert module.files == {1: "/a/b.cu", 2: "/c.cuh"}


def test_a_trailing_null_and_comments_are_no_matter():
    module = ptx.parse("// note\n/* more\n.version 1.0 */ .version 8.0 // end\n.target sm_80\n.address_size 64\n\0")
    assert module.version == "8.0"


@pytest.mark.parametrize(
    ("literal", "bits", "kind"),
    [
        ("12", 12, "s64"),
        ("-12", -12, "s64"),
        ("0x1F", 31, "s64"),
        ("017", 15, "s64"),
        ("0b101", 5, "s64"),
        ("42U", 42, "u64"),
        ("0xFFFFFFFFFFFFFFFF", (1 << 64) - 1, "u64"),
        ("-9223372036854775808", -(1 << 63), "s64"),
        ("(1 << 4) + 3", 19, "s64"),
        ("~0", -1, "s64"),
        ("2 + 3 * 4", 14, "s64"),
        ("WARP_SZ", 32, "s64"),
        ("0f3F800000", 0x3F800000, "f32"),
        ("0F3f800000", 0x3F800000, "f32"),
        ("-0f3F800000", 0xBF800000, "f32"),
        ("0d3FF0000000000000", 0x3FF0000000000000, "f64"),
        ("1.5", 0x3FF8000000000000, "f64"),
        ("-2.5e-1", 0xBFD0000000000000, "f64"),
        ("1e3", 0x408F400000000000, "f64"),
    ],
)
def test_literals(literal, bits, kind):
    assert _operands(f"mov.b32 %r1, {literal};")[1] == ptx.Immediate(bits, kind)


def test_operand_forms():
    r1, r2, rd1 = ptx.Register("%r1", "b32"), ptx.Register("%r2", "b32"), ptx.Register("%rd1", "b64")
    p1, p2 = ptx.Register("%p1", "pred"), ptx.Register("%p2", "pred")
    assert _operands("ld.global.b32 %r1, [%rd1];") == (r1, ptx.Address(rd1, 0))
    assert _operands("ld.global.b32 %r1, [%rd1+-8];")[1] == ptx.Address(rd1, -8)
    assert _operands("ld.param.b64 %rd1, [p+4];")[1] == ptx.Address(ptx.Symbol("p"), 4)
    assert _operands("ld.global.b32 %r1, [4096];")[1] == ptx.Address(None, 4096)
    assert _operands("ld.global.v2.b32 {%r1, _}, [%rd1];")[0] == ptx.Vector((r1, None))
    assert _operands("setp.lt.and.s32 %p1|%p2, %r1, 3, !%p1;") == (
        ptx.Pair(p1, p2),
        r1,
        ptx.Immediate(3, "s64"),
        ptx.Negated(p1),
    )
    assert _operands("shfl.sync.idx.b32 %r1|_, %r2, 0, 31, -1;")[0] == ptx.Pair(r1, None)
    assert _operands("setp.eq.s32 _|%p2, %r1, %r2;")[0] == ptx.Pair(None, p2)
    assert _operands("atom.global.add.u32 _, [%rd1], 1;")[0] is None
    assert _operands("mov.u32 %r1, %tid.x;")[1] == ptx.Special("%tid.x")
    assert _operands("cp.async.bulk.tensor.2d.shared [%r1], [%rd1, {%r1, %r2}];")[1] == (
        ptx.Address(rd1, 0),
        ptx.Vector((r1, r2)),
    )


def test_instruction_record():
    function = _body(".reg .b32 %r<3>; .reg .pred %p;\n@!%p   ld.global.nc.L1::no_allocate.v2.u32\n  {%r1, %r2}, [p];")
    (instruction,) = function.instructions
    assert instruction.opcode == "ld"
    assert instruction.modifiers == ("global", "nc", "L1::no_allocate", "v2", "u32")
    assert instruction.guard == (ptx.Register("%p", "pred"), True)
    assert instruction.line == 6
    assert instruction.text == "@!%p ld.global.nc.L1::no_allocate.v2.u32 {%r1, %r2}, [p];"
    assert function.registers == {"%r1": "b32", "%r2": "b32", "%p": "pred"}


def test_vector_registers_become_their_elements():
    function = _body(".reg .v4 .f32 %v; .reg .f32 %f;\nld.param.v4.f32 %v, [p];\nadd.f32 %f, %v.x, %v.w;")
    parts = [ptx.Register(f"%v.{c}", "f32") for c in "xyzw"]
    assert function.instructions[0].operands[0] == ptx.Vector(tuple(parts))
    assert function.instructions[1].operands[1:] == (parts[0], parts[3])


def test_nested_scopes_hide_names_and_end():
    function = _body(
        ".reg .b32 %r<3>; .reg .b32 t;\n"
        "mov.b32 t, 1;\n"
        "{ .reg .b32 t; .reg .b64 %r<5>; .param .b32 a; mov.b32 t, 2; mov.b64 %r4, 0;\n"
        "st.param.b32 [a], t; L: bra L; }\n"
        "{ .reg .b32 t; .param .b32 a; mov.b32 t, 3; bra L; L: }\n"
        "mov.b32 t, %r1; L: ret;"
    )
    names = [str(i.operands[0].name) for i in function.instructions if i.opcode == "mov"]
    assert names[0] == names[4] == "t"
    assert len({names[0], names[1], names[2], names[3]}) == 4
    assert function.registers[names[2]] == "b64"
    assert len({v.name for v in function.variables}) == 2
    targets = [function.labels[i.operands[0].name] for i in function.instructions if i.opcode == "bra"]
    # the first branch is to itself, the second to the end of its own scope
    assert targets == [4, 7]
    assert function.labels["L"] == 8


def test_branch_targets_and_forward_labels():
    function = _body(
        ".reg .b32 %r<3>; .reg .pred %p<2>;\n"
        "table: .branchtargets A, B, A;\nbrx.idx %r1, table;\nA: @%p1 bra.uni B;\nB: ret;\nC:"
    )
    assert function.branch_targets == {"table": ["A", "B", "A"]}
    assert function.instructions[0].operands[1] == ptx.Label("table")
    assert function.labels == {"A": 1, "B": 2, "C": 3}


def test_calls():
    module = ptx.parse(
        _HEAD + ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        ".extern .func g .noreturn;\n.extern .func (.param .b32 r) one;\n"
        ".func (.reg .f32 out) h (.reg .f32 in, .param .align 8 .b8 s[24]) { mov.f32 out, in; ret; }\n"
        ".entry k() { .reg .b32 %r<3>; .reg .b64 %d<3>; .param .b32 x; .param .b64 y; .param .align 8 .b8 s[24];\n"
        "call.uni (x), vprintf, (y, y); call g; call (%r2), h, (%r1, s); call (x), one, ();\n"
        "proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 4 .b8 _[12]) .noreturn;\n"
        ".param .align 4 .b8 t[12]; call (x), %d1, (y, t), proto; ret; }"
    )
    assert not module.functions["vprintf"].body
    assert module.functions["g"].directives == {"noreturn": ()}
    assert module.functions["h"].registers == {"out": "f32", "in": "f32"}
    assert [(p.size, p.align) for p in module.functions["h"].params] == [(4, 4), (24, 8)]
    x, y, r1 = ptx.Symbol("x"), ptx.Symbol("y"), ptx.Register("%r1", "b32")
    calls = [i.operands for i in module.functions["k"].instructions if i.opcode == "call"]
    assert calls == [
        ((x,), ptx.Symbol("vprintf"), (y, y)),
        ((), ptx.Symbol("g"), ()),
        ((ptx.Symbol("h#3"),), ptx.Symbol("h"), (ptx.Symbol("h#4"), ptx.Symbol("s"))),
        ((x,), ptx.Symbol("one"), ()),
        ((x,), ptx.Register("%d1", "b64"), (y, ptx.Symbol("t")), ptx.Symbol("proto")),
    ]
    # registers are moved to variables and back
    names = [(i.name, i.operands) for i in module.functions["k"].instructions if i.opcode in ("ld", "st")]
    taken, made = ptx.Address(ptx.Symbol("h#4"), 0), ptx.Address(ptx.Symbol("h#3"), 0)
    assert names == [("st.param.f32", (taken, r1)), ("ld.param.f32", (ptx.Register("%r2", "b32"), made))]
    written = [i.name for i in module.functions["h"].instructions]
    assert written == ["ld.param.f32", "mov.f32", "st.param.f32", "ret", "st.param.f32"]
    prototype = module.functions["k"].prototypes["proto"]
    assert [v.size for v in prototype.params] == [8, 12]
    assert prototype.noreturn


def test_kernel_directives_and_parameters():
    module = ptx.parse(
        _HEAD + ".weak .entry k(.param .u64 .ptr .global .align 4 a, .param .align 8 .b8 b[20], .param .f32 c)\n"
        '.maxntid 256, 2, 1\n.minnctapersm 2\n.pragma "nounroll";\n{ ret; }'
    )
    kernel = module.functions["k"]
    assert kernel.entry
    assert [(p.name, p.type, p.size, p.align) for p in kernel.params] == [
        ("a", "u64", 8, 8),
        ("b", "b8", 20, 8),
        ("c", "f32", 4, 4),
    ]
    assert kernel.directives["maxntid"] == (256, 2, 1)
    assert kernel.directives["minnctapersm"] == (2,)


def test_variables_and_initialisers():
    module = ptx.parse(
        _HEAD + ".extern .shared .align 16 .b8 dynamic[];\n"
        ".visible .global .align 4 .u32 n = 7;\n"
        ".global .b8 text[] = {104, 105, 0};\n"
        ".const .align 8 .f64 d[3] = {0d3FF8000000000000, -2.0};\n"
        ".global .f32 f[2][2] = {{1.0, 0f40000000}, {3.0, 4.5}};\n"
        ".global .s16 s[3] = {-1, 2};\n"
        ".global .v4 .f32 v;\n"
        ".global .align 8 .u64 ptrs[4] = {generic(text), 5, n, generic(n)+4};\n"
        ".global .u32 one, two;\n"
        ".global .attribute(.managed) .u32 m;\n"
    )
    v = module.variables
    assert (v["dynamic"].size, v["dynamic"].extern, v["dynamic"].align) == (0, True, 16)
    assert v["n"].initial == struct.pack("<I", 7)
    assert (v["text"].size, v["text"].initial) == (3, b"hi\0")
    assert v["d"].initial == struct.pack("<2d", 1.5, -2.0)
    assert v["f"].initial == struct.pack("<4f", 1, 2, 3, 4.5)
    assert v["s"].initial == struct.pack("<2h", -1, 2)
    assert (v["v"].size, v["v"].align, v["v"].initial) == (16, 16, None)
    assert v["ptrs"].relocations == ((0, "text", 0, True), (16, "n", 0, False), (24, "n", 4, True))
    assert v["ptrs"].initial == struct.pack("<4Q", 0, 5, 0, 0)
    assert v["one"].size == v["two"].size == v["m"].size == 4


def test_a_large_variable_with_few_initial_values_takes_no_memory():
    v = ptx.parse(_HEAD + ".global .s16 large[4294967295][2] = {{1, 2}, {-3, 4}};\n").variables["large"]
    assert (v.size, v.initial) == (4 * 4294967295, struct.pack("<4h", 1, 2, -3, 4))


def test_only_the_first_bound_of_an_array_may_be_zero():
    for values in ("", " = {{1, 2}, {3, 4}}"):
        with pytest.raises(ptx.PtxError, match="only the first bound of an array may be 0"):
            ptx.parse(_HEAD + f".global .s16 small[2][0]{values};\n")


def test_locations_chain_through_inlined_calls():
    function = ptx.parse(
        _HEAD + ".entry k() {\n"
        ".loc 1 10 3\nmembar.gl;\n"
        ".loc 1 5 2, function_name $S0, inlined_at 1 10 3\nmembar.gl;\n"
        ".loc 2 7 1, function_name $S0+6, inlined_at 1 5 2\nmembar.gl;\n"
        ".loc 1 0 3\nmembar.gl;\nret; }\n"
        ".section .debug_str\n{\n$S0:\n.b8 104,101,108,112,50\n.b8 0\n.b8 97\n.b8 0\n}\n"
    ).functions["k"]
    outer, middle, inner, none, _ = (i.location for i in function.instructions)
    assert (outer.file, outer.line, outer.column, outer.function, outer.inlined_at) == (1, 10, 3, None, None)
    assert (middle.line, middle.function, middle.inlined_at) == (5, "help2", outer)
    assert (inner.file, inner.line, inner.function, inner.inlined_at) == (2, 7, "a", middle)
    assert none == inner, "line 0 is no place: the last one stands"


def test_carries_have_a_register_of_their_own():
    function = _body(".reg .b32 %r<4>;\nadd.cc.u32 %r1, %r2, %r3;\naddc.u32 %r1, %r2, %r3;")
    assert function.registers["%cc.cf"] == "pred"
    assert arithmetic.flatten(function.instructions[0])[0][-1] == ptx.CARRY
    assert arithmetic.flatten(function.instructions[1])[1][-1] == ptx.CARRY


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (".reg .b32 %r<2>; mov.b32 %r1 2;", 5, "expected ';'"),
        ("\nmov.b32 %x1, 2;", 6, "'%x1' is not declared"),
        ("mov.b32 nothing, 2;", 5, "'nothing' is not declared"),
        ("bra nowhere;", 5, "no label 'nowhere'"),
        ("bra 4;", 5, "bra needs a label"),
        ("L: L: ret;", 5, "label 'L' is defined twice"),
        (".what 5;", 5, "unknown directive '.what'"),
        ("mov.b32 %r, #;", 5, "cannot read"),
        (".reg .b32 %r<2>; mov.b32 %r2, 0;", 5, "'%r2' is not declared"),
        ("ld.b32 _, [0f00000000];", 5, "not an address"),
        (".global .b8 x[2] = {1, 2, 3};", 5, "more than its 2 elements"),
        (".reg .b32 %r<2>; mov.b32 %r1, 1 / 0;", 5, "divides by zero"),
        (".reg .b32 %r<2>; mov.b32 %r1, 0x10000000000000000;", 5, "does not fit 64 bits"),
    ],
)
def test_errors_name_the_line(text, line, part):
    with pytest.raises(ptx.PtxError) as caught:
        _body(text)
    assert f"PTX line {line}: " in str(caught.value)
    assert part in str(caught.value)
    assert caught.value.line == line


def test_text_that_is_no_ptx_or_ends_early_is_an_error():
    with pytest.raises(ptx.PtxError, match=r"no \.version"):
        ptx.parse("")
    with pytest.raises(ptx.PtxError, match="line 4: the text ends within k"):
        ptx.parse(_HEAD + ".entry k() { ret;")
    with pytest.raises(ptx.PtxError, match="line 1"):
        ptx.parse("\x7fELF")


@pytest.mark.parametrize("text", [".reg .b256 %q<2>;", ".shared .texref t;"])
def test_types_that_are_not_supported_are_named(text):
    with pytest.raises(ptx.UnsupportedPtx, match="PTX line 5"):
        _body(text)


# ---- NVRTC's output ----

_KERNEL = """
__device__ int count = 5;
__constant__ float weights[4] = {1.0f, 2.0f, 3.5f};
__device__ int *where = &count;
__device__ const char *names[2] = {"ab", "cd"};
struct Pair { float a[3]; int k; };
__device__ __noinline__ Pair twice(Pair p, int i) { p.a[i % 3] *= 2; p.k += i; return p; }
__device__ float helper(float x) {
  return x * weights[2]; /* helper's line */
}
__global__ void __launch_bounds__(128, 2) kernel(Pair *p, const float *x, float *y) {
  extern __shared__ float dynamic[];
  __shared__ float fixed[32];
  int i = threadIdx.x, local[8];
  for (int k = 0; k < 8; ++k) local[k] = p[k].k;
  p[i] = twice(p[i], local[p[9].k & 7]);
  dynamic[i] = fixed[i & 31] = helper(x[i]);
  __syncthreads();
  if (y[0] == 1) printf("%d %s\\n", *where, names[i & 1]);
  switch (p[i].k) {
    case 0: y[i] = 1; break;
    case 1: y[i] = dynamic[i ^ 1]; break;
    case 2: y[i] = sinf(y[i]); break;
    case 3: y[i] += 3; break;
    case 4: y[i] /= fixed[i]; break;
    case 5: y[i] -= 5; break;
    case 6: y[i] = 7; break;
  }
  int r;
  asm volatile("{ .reg .pred p; .reg .b32 t; setp.lt.s32 p, %1, 5;"
               "@p add.s32 t, %1, 1; @!p mov.b32 t, 0; mov.b32 %0, t; }" : "=r"(r) : "r"(i));
  y[i] += r;
}
"""


@pytest.fixture(scope="module", params=[(), ("-G",)], ids=["optimised", "debug"])
def compiled(request):
    return ptx.parse(compile_ptx(_KERNEL, options=request.param))


def test_nvrtc_module(compiled):
    kernel = next(f for f in compiled.functions.values() if f.entry)
    assert kernel.directives["maxntid"][0] == 128
    assert kernel.directives["minnctapersm"] == (2,)
    assert [p.size for p in kernel.params] == [8, 8, 8]
    variables = compiled.variables
    assert variables["weights"].initial == struct.pack("<3f", 1, 2, 3.5)
    assert variables["count"].initial == struct.pack("<i", 5)
    assert variables["where"].relocations == ((0, "count", 0, True),)
    assert len(variables["names"].relocations) == 2
    called = [
        str(i.operands[1].name) for f in compiled.functions.values() for i in f.instructions if i.opcode == "call"
    ]
    assert "vprintf" in called
    assert any("twice" in name for name in called)
    assert any(v.space == "local" for v in kernel.variables)


def test_nvrtc_locations_are_the_source_lines(compiled):
    lines = _KERNEL.splitlines()
    place = next(n for n, line in enumerate(lines, 1) if "helper's line" in line)
    found = [i for f in compiled.functions.values() for i in f.instructions if i.location and i.location.line == place]
    assert any(i.opcode == "mul" for i in found)
    for instruction in found:
        if instruction.location.inlined_at is not None:
            assert "helper(x[i])" in lines[instruction.location.inlined_at.line - 1]
            assert "helper" in instruction.location.function


def test_every_label_and_register_is_known(compiled):
    for function in compiled.functions.values():
        for instruction in function.instructions:
            for operand in instruction.operands:
                if isinstance(operand, ptx.Label):
                    assert operand.name in function.labels or operand.name in function.branch_targets
                if isinstance(operand, ptx.Register):
                    assert function.registers[operand.name] == operand.type
        assert all(0 <= place <= len(function.instructions) for place in function.labels.values())


_UNARY = """expf exp2f exp10f expm1f logf log2f log10f log1pf sinf cosf tanf sinhf coshf tanhf asinf acosf atanf asinhf
acoshf atanhf sinpif cospif erff erfcf tgammaf lgammaf sqrtf rsqrtf cbrtf rcbrtf floorf ceilf truncf rintf roundf fabsf
__expf __logf __sinf __cosf __tanf __saturatef __frcp_rz __fsqrt_rd normcdff erfinvf j0f"""
_BINARY = """powf atan2f fmodf remainderf hypotf fdimf fmaxf fminf copysignf nextafterf __fdividef __powf __fadd_rz
__fmul_ru __fdiv_rd __fsub_rd"""
_DOUBLE = """exp log sin cos tan sqrt rsqrt cbrt tanh erf tgamma exp2 log2 floor rint __drcp_rz __dsqrt_rd"""
_INTEGER = """
typedef unsigned u; typedef long long ll; typedef unsigned long long ull;
__global__ void integers(int *x, u *y, ll *p, ull *q, short *s, signed char *c) {
  int i = threadIdx.x;
  x[i] = x[i + 1] / x[i + 2] + x[i + 3] % x[i + 4] + __mulhi(x[i], x[i + 1]) + __mul24(x[i], 3) + __sad(x[i], 1, y[i]);
  y[i] = y[i + 1] / y[i + 2] + y[i + 3] % 10 + __umulhi(y[i], y[i + 1]) + __byte_perm(y[i], y[i + 1], y[i + 2]);
  p[i] = p[i + 1] / p[i + 2] + p[i + 3] % 7 + __mul64hi(p[i], p[i + 1]) + llabs(p[i]) + min(p[i + 5], p[i + 6]);
  q[i] = q[i + 1] / q[i + 2] + __brevll(q[i]) + __popcll(q[i + 1]) + __clzll(p[i]);
  q[i] += __ffsll(p[i + 2]) + __umul64hi(q[i], q[i + 1]);
  s[i] = s[i + 1] / s[i + 2] + c[i] * c[i + 1]; c[i] = c[i + 1] >> 2;
  x[i] += __clz(x[i]) + __popc(x[i]) + __brev(x[i]) + __ffs(x[i]);
  x[i] += __dp4a(x[i], x[i + 1], x[i + 2]) + __fns(x[i], 3, 2);
  y[i] += __funnelshift_l(y[i], y[i + 1], 3) + __funnelshift_rc(y[i], y[i + 1], y[i + 2]);
  y[i] += __vabsdiffu4(y[i], y[i + 1]);
  y[i] += __vadd4(y[i], y[i + 1]) + __vmaxs2(y[i], y[i + 2]) + __vsadu4(y[i], y[i + 1]);
  y[i] += __viaddmax_s16x2(y[i], y[i], y[i]);
  x[i] += __vimax_s32_relu(x[i], x[i + 1]) + __float2int_ru(x[i]) + __double2int_rn(x[i]) + (x[i] >> 5 & 63);
}
"""
_HALF = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
template <class T, class T2> __device__ void all(T *x, T2 *y, float *f, int *n) {
  int i = threadIdx.x;
  x[i] = __hadd(x[i], x[i + 1]) * __hfma(x[i], x[i + 1], x[i + 2]) - __hdiv(x[i], x[i + 1]) + __hneg(__habs(x[i]));
  x[i] = __hmax(x[i], x[i + 1]) + __hmin_nan(x[i], x[i + 2]) + __hfma_relu(x[i], x[i], x[i]) + T(f[i]);
  y[i] = __hfma2(y[i], y[i + 1], y[i + 2]) + __hmax2(y[i], y[i + 1]) + h2exp(y[i]) + h2sqrt(y[i]) + __h2div(y[i], y[i]);
  n[i] = __hgt(x[i], x[i + 1]) + __hequ(x[i], x[i + 2]) + __hisnan(x[i]) + __hbgt2(y[i], y[i + 1]) + int(x[i]);
  x[i] = hexp(x[i]) + hlog(x[i]) + hsin(x[i]) + hrcp(x[i]) + hfloor(x[i]) + htanh_approx(x[i]) + T(n[i]) + T(f[i]);
  f[i] = float(x[i]) + float(__hadd_sat(x[i], x[i + 1]));
}
"""


def _calls(names, kind, count):
    arguments = ", ".join(f"x[i + {k}]" for k in range(count))
    return "".join(
        f"__global__ void k_{name}({kind} *x, {kind} *y) {{ int i = threadIdx.x; y[i] = {name}({arguments}); }}\n"
        for name in names
    )


_SOURCES = {
    "float": _calls(_UNARY.split(), "float", 1) + _calls(_BINARY.split(), "float", 2),
    "double": _calls(_DOUBLE.split(), "double", 1) + _calls(["pow", "fmod", "atan2", "__ddiv_rn"], "double", 2),
    "integer": _INTEGER,
    "half": _HALF
    + "__global__ void h(__half *x, __half2 *y, float *f, int *n) { all(x, y, f, n); }\n"
    + "__global__ void b(__nv_bfloat16 *x, __nv_bfloat162 *y, float *f, int *n) { all(x, y, f, n); }\n"
    + "__global__ void e(__nv_fp8_e4m3 *x, __nv_fp8_e5m2 *y, float *f) {\n"
    + "  x[0] = __nv_fp8_e4m3(f[0]); f[1] = float(y[2]); }",
}


@pytest.mark.parametrize("options", [(), ("-use_fast_math",)], ids=["plain", "fast"])
@pytest.mark.parametrize("name", _SOURCES)
def test_what_nvrtc_emits_for_arithmetic_is_executed(name, options):
    """Every lane-wise instruction compiles; the others are memory and control instructions."""
    module = ptx.parse(compile_ptx(_SOURCES[name], options=options))
    others = set()
    count = 0
    for function in module.functions.values():
        for instruction in function.instructions:
            if arithmetic.compile_lanewise(instruction) is None:
                others.add(instruction.opcode)
            count += 1
    assert count > 100
    assert others <= {"ld", "st", "cvta", "bra", "ret", "call", "brx"}
