"""The ways to compute a product: cudakit's function, and torch's functions on cuBLAS, compiled, and in Triton."""

import functools
from dataclasses import dataclass
from typing import Any

from cudakit import ops
from cudakit.families import gemm_grouped

OURS, TORCH, COMPILED, TRITON = "cudakit", "peer:torch", "peer:torch-compile", "peer:triton"
# The peer of a grouped product: one product of ours, of as many rows.
ONE = "peer:gemm"
#: The peers that can be chosen, by the name on the command line.
PEERS = {"torch": TORCH, "compile": COMPILED, "triton": TRITON}
COMPILE_OPTIONS = {
    COMPILED: {"mode": "max-autotune-no-cudagraphs"},
    TRITON: {
        "options": {
            "max_autotune": True,
            "coordinate_descent_tuning": True,
            "max_autotune_gemm_backends": "TRITON",
        }
    },
}


@dataclass(frozen=True)
class Way:
    """One way to compute a product. activation: the activation of a product with a bias; None for a plain product.
    bind(a, b, bias, out) returns a function without arguments that makes the call and returns its result."""

    name: str
    idea: str
    bind: Any
    activation: str | None = None

    @property
    def ours(self):
        return self.name == OURS


def ours(variant, stream, activation=None):
    """cudakit's product."""

    def bind(a, b, bias, out):
        fused = {} if activation is None else {"bias": bias, "activation": activation}
        return functools.partial(ops.gemm, a, b, out, variant=variant, stream=stream, **fused)

    idea = "cudakit.ops.gemm" + ("" if activation is None else f" with bias and {activation}")
    return Way(OURS, idea, bind, activation)


def by_torch(torch, activation=None):
    """torch's own functions, which call cuBLAS."""

    def bind(a, b, bias, out):
        if activation is not None:
            return functools.partial(_fused(torch, activation), a, b, bias)
        if out.dtype != a.dtype:
            return functools.partial(torch.mm, a, b, out_dtype=out.dtype, out=out)
        return functools.partial(torch.matmul, a, b, out=out)

    idea = "torch.matmul(out=), cuBLAS" if activation is None else f"torch's addmm and {activation}"
    return Way(TORCH, idea, bind, activation)


def grouped(stream, case, sizes):
    """cudakit's grouped product, by its default variant. sizes: those of the case, on the device."""
    form = "rows" if case.capacity else "offsets"

    def bind(a, b, bias, out):
        return functools.partial(ops.gemm_grouped, a, b, out, stream=stream, **{form: sizes})

    return Way(OURS, "cudakit.ops.gemm_grouped", bind)


def each_group(torch, case):
    """torch's product of each group, one after another, on cuBLAS."""
    single = by_torch(torch)

    def bind(a, b, bias, out):
        pieces = gemm_grouped.pieces(a, case.sizes)
        calls = [single.bind(a[place], b[group], None, out[place]) for group, place in pieces]

        def launch():
            for call in calls:
                call()
            return out

        return launch

    return Way(TORCH, f"{len(case.rows)} calls of torch.matmul(out=), cuBLAS", bind)


def compiled(torch, name, activation=None):
    """torch.compile's fastest code for one shape; call `torch.compiler.reset()` before another shape."""
    work = torch.matmul if activation is None else _fused(torch, activation)
    made = torch.compile(lambda *arrays: work(*arrays), dynamic=False, **COMPILE_OPTIONS[name])

    def bind(a, b, bias, out):
        if out.dtype != a.dtype:
            raise ValueError(f"only an output of {a.dtype} is compiled, got {out.dtype}")
        return functools.partial(made, a, b, *(() if activation is None else (bias,)))

    kind = "Triton kernels only" if name == TRITON else "the fastest of cuBLAS and Triton"
    return Way(name, f"torch.compile, max-autotune, {kind}", bind, activation)


def _fused(torch, activation):
    """Return the function of (x, w, bias) that the fused products of cudakit compute."""
    kind = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
    return lambda x, w, bias: torch.nn.functional.gelu(torch.addmm(bias, x, w), approximate=kind)
