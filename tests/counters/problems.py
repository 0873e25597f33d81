"""The problems that both devices run: small problems of odd sizes from the families' ladders."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cudakit import ops
from cudakit.compile import compiler, headers
from cudakit.device import Device
from cudakit.memory import array as memory
from cudakit.shapes import shape_text


@dataclass(frozen=True)
class Problem:
    """A shape of a family. variants: those that run it; if empty, all that support it, except `without`."""

    family: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    variants: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`softmax 64x1000 float32`: also the NVTX range of its launches."""
        return f"{self.family} {shape_text(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Run:
    """A variant on a problem. source: the digest of its source files. launch: queues it on the default stream. output:
    the array that it writes."""

    variant: str
    source: str
    launch: Callable[[], None]
    output: memory.DeviceArray


# A comment, or (group 1) a string literal, which may contain // and /*.
_MESSAGE = re.compile(r'(\bstatic_assert\s*\((?:[^()"]|\((?:[^()"]|\([^()"]*\))*\))*),\s*"(?:\\.|[^"\\])*"\s*\)')
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)

# These launch two kernels and a library's per row, so they run on only a few rows.
_ON_BLAS = ("blas_read_back", "blas_on_device")
_LONG_ROWS = ("tree_reduce", "vec4", "warp_shuffle", "registers", "split_row", "two_launches", "on_chip")

# No GPU has been measured with the present kernels of these variants.
_PACKED = ("packed",)
_HALF = ("wmma", "ldmatrix", "swizzled", "pipelined")  # measured

PROBLEMS = (
    Problem("softmax", (64, 1000), without=_ON_BLAS),
    Problem("softmax", (33, 1001), without=_ON_BLAS),
    Problem("softmax", (32, 4096), variants=_LONG_ROWS),
    Problem("softmax", (2, 20000), variants=("split_row", "two_launches", "on_chip")),
    Problem("softmax", (5, 1003), variants=_ON_BLAS),
    Problem("gemm", (192, 160, 224), without=_PACKED),
    Problem("gemm", (130, 70, 99), without=_PACKED),
    Problem("gemm", (5, 200, 300), variants=("gemv",)),
    Problem("gemm_half", (192, 160, 224), "bfloat16", variants=_HALF),
    Problem("gemm_half", (130, 70, 99), "bfloat16", variants=_HALF),
    Problem("attention", (1, 2, 1, 65, 130, 64), "bfloat16"),
    Problem("add_broadcast", (6, 7, 101)),
    Problem("sum", (40, 1001)),
    Problem("blur", (2, 67, 131)),
    Problem("blur", (2, 33, 64)),
)


def chosen(families: Sequence[str]) -> tuple[Problem, ...]:
    """Return the problems of these families, or all if none are named."""
    return tuple(problem for problem in PROBLEMS if not families or problem.family in families)


def runs(device: Device, problem: Problem) -> Iterator[Run]:
    """Yield each variant that supports the problem on this device. Inputs are the same on every device."""
    family = ops.families()[problem.family]
    host = family.inputs_for(family.read_shape(problem.shape), memory.as_dtype(problem.dtype), np.random.default_rng(0))
    inputs = [device.array(array) for array in host]
    output = device.empty(*family.outputs_like(host)[0])
    found = family.problem_of(inputs, output)
    stream = device.default_stream
    for variant in family:
        if variant.name in problem.without or (problem.variants and variant.name not in problem.variants):
            continue
        if variant.refusal(found, device.arch) is not None:
            continue
        launches = variant.launches(found) if variant.run is None else ()
        files = dict.fromkeys(launch.source or variant.source for launch in launches) or {variant.source: None}
        digest = "+".join(identity(file) for file in files)
        launch = functools.partial(family.launch, device, variant, inputs, output, stream, found)
        yield Run(variant.name, digest, launch, output)


@functools.cache
def identity(source: str) -> str:
    """Return a digest of a kernel file and of every header of ours that it includes, without comments and
    messages. It shows whether the code has changed since it was measured."""
    path = headers.find_source(source)
    text = path.read_text()
    request = compiler.request(text, name=str(path), arch="sm_90a")
    included = headers.scan(text, str(path), request.directories).files
    digest = hashlib.sha256(_code(text).encode())
    for name, content in sorted((file.rpartition("/")[2], content) for file, content in included.items()):
        if name == "cuda.h":
            # headers of CUDA name it, but not for NVRTC
            continue
        digest.update(f"{name}\0{_code(content.decode())}".encode())
    return digest.hexdigest()[:12]


def _code(text: str) -> str:
    """Return the text without comments and messages of static_assert, and with single blanks."""
    return " ".join(_COMMENT.sub(lambda found: found[1] or " ", _MESSAGE.sub(r"\1)", text)).split())
