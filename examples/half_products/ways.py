"""The ways to compute a product: cudakit's function, and torch's functions on cuBLAS, compiled, and in Triton."""

import functools
from dataclasses import dataclass
from typing import Any

from cudakit import ops
from cudakit.families import gemm_grouped

OURS, TORCH, COMPILED, TRITON = "cudakit", "peer:torch", "peer:torch-compile", "peer:triton"
# The peer of a grouped product: one product of ours, of as many rows.
ONE = "peer:gemm"
# The epilogue that only adds an array of the output's shape.
RESIDUAL = "residual"
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
    """One way to compute a product. epilogue: None for a plain product, RESIDUAL, or the activation of a product with a
    bias. bind(a, b, added, out) returns a function without arguments that makes the call and returns its result; added:
    the arrays of the epilogue, by name."""

    name: str
    idea: str
    bind: Any
    epilogue: str | None = None

    @property
    def ours(self):
        return self.name == OURS


def array_of(epilogue):
    """Return the name of the array that an epilogue adds."""
    return RESIDUAL if epilogue == RESIDUAL else "bias"


def ours(variant, stream, epilogue=None):
    """cudakit's product."""

    def bind(a, b, added, out):
        fused = {} if epilogue is None else {array_of(epilogue): added[array_of(epilogue)]}
        if epilogue not in (None, RESIDUAL):
            fused["activation"] = epilogue
        return functools.partial(ops.gemm, a, b, out, variant=variant, stream=stream, **fused)

    return Way(OURS, f"cudakit.ops.gemm{_with(epilogue)}", bind, epilogue)


def by_torch(torch, epilogue=None):
    """torch's own functions, which call cuBLAS."""

    def bind(a, b, added, out):
        if epilogue is not None:
            return functools.partial(_fused(torch, epilogue), a, b, added[array_of(epilogue)])
        if out.dtype != a.dtype:
            return functools.partial(torch.mm, a, b, out_dtype=out.dtype, out=out)
        return functools.partial(torch.matmul, a, b, out=out)

    idea = "torch.matmul(out=), cuBLAS" if epilogue is None else f"torch.addmm{_with(epilogue)}, cuBLAS"
    return Way(TORCH, idea, bind, epilogue)


def grouped(stream, case, sizes):
    """cudakit's grouped product, by its default variant. sizes: those of the case, on the device."""
    form = "rows" if case.capacity else "offsets"

    def bind(a, b, added, out):
        return functools.partial(ops.gemm_grouped, a, b, out, stream=stream, **{form: sizes})

    return Way(OURS, "cudakit.ops.gemm_grouped", bind)


def each_group(torch, case):
    """torch's product of each group, one after another, on cuBLAS."""
    single = by_torch(torch)

    def bind(a, b, added, out):
        pieces = gemm_grouped.pieces(a, case.sizes)
        calls = [single.bind(a[place], b[group], added, out[place]) for group, place in pieces]

        def launch():
            for call in calls:
                call()
            return out

        return launch

    return Way(TORCH, f"{len(case.rows)} calls of torch.matmul(out=), cuBLAS", bind)


def compiled(torch, name, epilogue=None):
    """torch.compile's fastest code for one shape; call `torch.compiler.reset()` before another shape."""
    work = torch.matmul if epilogue is None else _fused(torch, epilogue)
    made = torch.compile(lambda *arrays: work(*arrays), dynamic=False, **COMPILE_OPTIONS[name])

    def bind(a, b, added, out):
        if out.dtype != a.dtype:
            raise ValueError(f"only an output of {a.dtype} is compiled, got {out.dtype}")
        return functools.partial(made, a, b, *(() if epilogue is None else (added[array_of(epilogue)],)))

    kind = "Triton kernels only" if name == TRITON else "the fastest of cuBLAS and Triton"
    return Way(name, f"torch.compile, max-autotune, {kind}", bind, epilogue)


def _with(epilogue):
    """Return an epilogue in words."""
    return {None: "", RESIDUAL: " with a residual"}.get(epilogue, f" with bias and {epilogue}")


def _fused(torch, epilogue):
    """Return the function of (x, w, bias or residual) that the fused products of cudakit compute."""
    if epilogue == RESIDUAL:
        return lambda x, w, residual: torch.addmm(residual, x, w)
    kind = {"gelu": "none", "gelu_tanh": "tanh"}[epilogue]
    return lambda x, w, bias: torch.nn.functional.gelu(torch.addmm(bias, x, w), approximate=kind)
