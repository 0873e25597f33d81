"""Parameter types read from a source, for kernels whose name does not encode them (`extern "C"`)."""

from __future__ import annotations

import pytest

from cudakit.launch.declarations import plain_types

WRITTEN = [
    ("int n", "int"),
    ("int", "int"),
    ("unsigned", "unsigned int"),
    ("unsigned n", "unsigned int"),
    ("long long int n", "long long"),
    ("long unsigned int n", "unsigned long"),
    ("const std::uint64_t n", "const unsigned long"),
    ("size_t n = 3", None),  # defaults are not read
    ("bool flag", "bool"),
    ("half h", "__half"),
    ("float4 v", "float4"),
    ("const float* __restrict__ x", "const float*"),
    ("float const *x", "const float*"),
    ("void* out", "void*"),
    ("float** table", "float**"),
    ("float* const* table", "float* const*"),
    ("const volatile int* flag", "const int*"),
    ("Params p", None),
    ("real* x", None),
    ("void (*f)(int)", None),
    ("float (&tile)[4]", None),
    ("T x", None),
]


@pytest.mark.parametrize(("declaration", "text"), WRITTEN)
def test_plain_types_are_read_and_others_are_not_guessed(declaration: str, text: str | None) -> None:
    (found,) = plain_types(f'extern "C" __global__ void k({declaration}) {{}}', "k", 1)
    assert (None if found is None else found.text) == text


def test_sizes_and_targets() -> None:
    n, x, m = plain_types('extern "C" __global__ void k(size_t n, const double* x, short m) {}', "k", 3)
    assert n is not None
    assert (n.size, n.signed, n.dtype) == (8, False, "uint64")
    assert x is not None
    assert x.target is not None
    assert (x.kind, x.size, x.target.dtype, x.target.const) == ("pointer", 8, "float64", True)
    assert m is not None
    assert m.size == 2
    assert plain_types("", "k", 2) == (None, None)
