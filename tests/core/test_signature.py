"""Parameter types: from mangled names that compilers made, and from PTX."""

from __future__ import annotations

import pytest

from cudakit.compile import compiler
from cudakit.launch.mangling import demangle
from cudakit.launch.signature import PtxParameter, parameters, ptx_entries

# Names made by g++ or NVRTC from the declarations on the right.
NAMES = {
    "_Z1gf": "g(float)",
    "_Z4instv": "inst()",
    "_ZL2stPi": "st(int*)",
    "_Z1kILi256EEvPKfPfxfd7__half2": "k<256>(const float*, float*, long long, float, double, __half2)",
    "_Z1tIfLi4EEvPT_PKS0_1SIS0_XT0_EE1ES0_": "t<float, 4>(float*, const float*, S<float, 4>, E, float)",
    "_ZN3foo3barEPi": "foo::bar(int*)",
    "_ZN2ns5plainEPfPKfS0_PKS2_RiRK1POS6_": (
        "ns::plain(float*, const float*, float*, const float* const*, int&, const P&, P&&)"
    ),
    "_ZN2ns1kILi8EdEEvPKT0_PS1_xfd6__halfNS_2in1VIS1_XT_EEEPS8_NS6_1QEPKSA_PKPSA_": (
        "ns::k<8, double>(const double*, double*, long long, float, double, __half, ns::in::V<double, 8>, "
        "ns::in::V<double, 8>*, ns::in::Q, const ns::in::Q*, ns::in::Q* const*)"
    ),
    "_ZN2ns12_GLOBAL__N_14anonE1P6float4PS2_PVKi": (
        "ns::(anonymous namespace)::anon(P, float4, float4*, const volatile int*)"
    ),
    "_ZN2ns12_GLOBAL__N_12atIiEEvT_NS0_1LEPS3_": (
        "ns::(anonymous namespace)::at<int>(int, ns::(anonymous namespace)::L, ns::(anonymous namespace)::L*)"
    ),
    "_Z2arIfLi3EEvRAT0__T_PS0_PFviS0_EN2ns2in1VIS0_XplmlT0_Li2ELi1EEEE": (
        "ar<float, 3>(float[3]&, float*, void (*)(int, float), ns::in::V<float, ((3 * 2) + 1)>)"
    ),
    "_Z2fpIfXadL_Z1gfEEEvPT_": "fp<float, &g>(float*)",
    "_Z2oiIfLi2EEvN5OuterIT_E5InnerIXT0_EEEPNS0_IfE5InnerILi3EEENS0_IiE5PlainEPSA_PS5_": (
        "oi<float, 2>(Outer<float>::Inner<2>, Outer<float>::Inner<3>*, Outer<int>::Plain, Outer<int>::Plain*, "
        "Outer<float>*)"
    ),
    "_Z2ttIN2ns2in1VEfEvT_IT0_Li4EEPS3_IS4_Li8EE": ("tt<ns::in::V, float>(ns::in::V<float, 4>, ns::in::V<float, 8>*)"),
    "_Z3depIiEvN2ns2in2TrIT_E4typeEPNS4_1IES3_": "dep<int>(ns::in::Tr<int>::type, ns::in::Tr<int>::I*, int)",
    "_Z3varIJifPdEEviDpPT_": "var<int, float, double*>(int, int*, float*, double**)",
    "_Z3negILin3EEvPi": "neg<-3>(int*)",
    "_Z4valsIL1E1ELb1ELj3ELln5ELc120EEvPi": "vals<(E)1, true, 3u, (long)-5, (char)120>(int*)",
    "_Z4stdxPSt7complexIfESt5arrayIiLm3EES_IdEPSt5tupleIJifEEahcbtmDsDnn": (
        "stdx(std::complex<float>*, std::array<int, (unsigned long)3>, std::complex<double>, std::tuple<int, float>*, "
        "signed char, unsigned char, char, bool, unsigned short, unsigned long, char16_t, std::nullptr_t, __int128)"
    ),
    "_Z4manyILi0ELi1ELi2ELi3ELi4ELi5ELi6ELi7ELi8ELi9ELi10ELi11EfLi13EEv3BoxIT11_XT12_EEPS1_": (
        "many<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, float, 13>(Box<float, 13>, float*)"
    ),
    "_Z3lamI2OpIfEEvT_i": "lam<Op<float>>(Op<float>, int)",
}


@pytest.mark.parametrize("mangled", NAMES)
def test_demangle(mangled: str) -> None:
    signature = demangle(mangled)
    assert signature is not None
    assert signature.text == NAMES[mangled]


@pytest.mark.parametrize(
    "mangled", ["plain", "_Z", "_Z9short", "_Z1kQ", "_Z1kDTfp_E", "_Z1kT_", "_Z1kS5_", "_Z1kIiEvPT3_"]
)
def test_what_is_not_understood_is_said(mangled: str) -> None:
    assert demangle(mangled) is None


def test_every_cut_of_a_name_is_survived() -> None:
    for mangled in NAMES:
        for end in range(len(mangled)):
            demangle(mangled[:end])


def test_types_say_what_a_launch_needs() -> None:
    signature = demangle("_Z1kPKfPvbahtiyfd6__half13__nv_bfloat166float41PPKS4_")
    assert signature is not None
    assert signature.types is not None
    pointer, void, boolean, signed, byte, short, whole, long, single, double, half, brain, vector, struct, to_struct = (
        signature.types
    )
    assert (pointer.kind, pointer.size, pointer.const) == ("pointer", 8, False)
    assert pointer.target is not None
    assert (pointer.target.dtype, pointer.target.const) == ("float32", True)
    assert void.target is not None
    assert void.target.kind == "void"
    assert (boolean.kind, boolean.size) == ("bool", 1)
    assert [(kind.size, kind.signed) for kind in (signed, byte, short, whole, long)] == [
        (1, True), (1, False), (2, False), (4, True), (8, False),
    ]  # fmt: skip
    assert [kind.dtype for kind in (single, double, half, brain)] == ["float32", "float64", "float16", "bfloat16"]
    assert (vector.kind, vector.size, vector.lanes) == ("vector", 16, 4)
    assert (struct.kind, struct.size) == ("struct", 0)
    assert to_struct.target is not None
    assert to_struct.target.text == "const float4"


PTX = """
.version 9.0
.target sm_90a
.visible .entry plain(
	.param .u64 plain_param_0,
	.param .u64 .ptr .global .align 4 plain_param_1,
	.param .u64 .ptr .align 1 plain_param_2,
	.param .u32 plain_param_3,
	.param .f32 plain_param_4,
	.param .align 16 .b8 plain_param_5[24]
)
.maxntid 128, 1, 1
{
	ret;
}
.entry none()
{
}
.weak .entry bare
{
}
"""


def test_ptx_entries() -> None:
    entries = ptx_entries(PTX)
    assert list(entries) == ["plain", "none", "bare"]
    assert entries["none"] == entries["bare"] == ()
    assert entries["plain"] == (
        PtxParameter("u64", 8, 8, False, False),
        PtxParameter("u64", 8, 8, True, False),
        PtxParameter("u64", 8, 8, True, False),
        PtxParameter("u32", 4, 4, False, False),
        PtxParameter("f32", 4, 4, False, False),
        PtxParameter("b8", 24, 16, False, True),
    )


def test_extern_c_has_what_ptx_says() -> None:
    layout = [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 24)]
    found = parameters("plain", layout, ptx_entries(PTX)["plain"])
    assert [parameter.kind for parameter in found] == ["bits", "pointer", "pointer", "int", "float", "struct"]
    assert [(parameter.offset, parameter.size) for parameter in found] == layout
    assert found[3].type.signed is None


def test_sizes_alone() -> None:
    found = parameters("plain", [(0, 8), (8, 4), (12, 4)])
    assert [(parameter.kind, parameter.size) for parameter in found] == [("bits", 8), ("struct", 4), ("struct", 4)]


def test_types_that_do_not_fit_the_driver_are_not_trusted() -> None:
    assert [p.text for p in parameters("_Z1kif", [(0, 4), (4, 4)])] == ["int", "float"]
    assert [p.kind for p in parameters("_Z1kif", [(0, 8), (8, 4)])] == ["bits", "struct"]
    assert [p.kind for p in parameters("_Z1kif", [(0, 4)])] == ["struct"]


def test_what_nvrtc_makes_is_understood() -> None:
    source = """
    #include <cuda_fp16.h>
    namespace ns {
        enum Mode : short { A, B };
        struct Pair { int a; double b; };
        template <class T, int N> struct Block { T x[N]; };
        template <class T> struct Same { using type = T; };
        template <class T, int N>
        __global__ void k(T* out, const T* __restrict__ in, long long stride, Mode mode, Pair pair, Block<T, N> block,
                          typename Same<T>::type alias, float4 v, __half h, bool flag) {}
    }
    extern "C" __global__ void plain(float* p, unsigned n, double d, float3 v) {}
    """
    names = ("ns::k<float, 4>", "ns::k<double, 3>")
    result = compiler.compile(compiler.request(source, name="k.cu", arch="sm_90a", names=names))
    entries = ptx_entries(result.ptx)
    mangled = result.lowered["ns::k<float, 4>"]
    sizes = [parameter.size for parameter in entries[mangled]]
    found = parameters(mangled, [(0, size) for size in sizes], entries[mangled])
    assert [(p.text, p.kind, p.size) for p in found] == [
        ("float*", "pointer", 8),
        ("const float*", "pointer", 8),
        ("long long", "int", 8),
        ("ns::Mode", "enum", 2),
        ("ns::Pair", "struct", 16),
        ("ns::Block<float, 4>", "struct", 16),
        ("ns::Same<float>::type", "float", 4),
        ("float4", "vector", 16),
        ("__half", "float", 2),
        ("bool", "bool", 1),
    ]
    assert demangle(mangled).text.startswith("ns::k<float, 4>(float*, const float*,")
    plain = entries["plain"]
    assert [p.kind for p in parameters("plain", [(0, p.size) for p in plain], plain)] == [
        "bits",
        "int",
        "float",
        "struct",
    ]
