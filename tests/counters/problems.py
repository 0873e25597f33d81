"""What both devices run: problems of the families' ladders, small and odd enough for the simulated one."""

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
    """A shape of a family. variants: the rungs that run it; all that take it, where none are named, but `without`."""

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
    """A rung on a problem. source: the digest of what it is made of. launch: queues it on the default stream."""

    variant: str
    source: str
    launch: Callable[[], None]


# A comment, or (the group) a text, in which the signs of one mean nothing.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)

# These launch two kernels a row, and a library's besides: they get a few rows of their own.
_ON_BLAS = ("blas_read_back", "blas_on_device")
_LONG_ROWS = ("tree_reduce", "vec4", "warp_shuffle", "registers", "split_row", "two_launches", "on_chip")

PROBLEMS = (
    Problem("softmax", (64, 1000), without=_ON_BLAS),
    Problem("softmax", (33, 1001), without=_ON_BLAS),
    Problem("softmax", (32, 4096), variants=_LONG_ROWS),
    Problem("softmax", (2, 20000), variants=("split_row", "two_launches", "on_chip")),
    Problem("softmax", (5, 1003), variants=_ON_BLAS),
    Problem("gemm", (192, 160, 224)),
    Problem("gemm", (130, 70, 99)),
    Problem("gemm", (5, 200, 300), variants=("gemv",)),
    Problem("gemm_half", (192, 160, 224), "bfloat16"),
    Problem("gemm_half", (130, 70, 99), "bfloat16"),
    Problem("attention", (1, 2, 1, 65, 130, 64), "bfloat16"),
    Problem("add_broadcast", (6, 7, 101)),
    Problem("sum", (40, 1001)),
    Problem("blur", (2, 67, 131)),
    Problem("blur", (2, 33, 64)),
)


def chosen(families: Sequence[str]) -> tuple[Problem, ...]:
    """The problems of these families; all, where none are named."""
    return tuple(problem for problem in PROBLEMS if not families or problem.family in families)


def runs(device: Device, problem: Problem) -> Iterator[Run]:
    """Each rung that takes the problem on this device. The same numbers on every device."""
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
        yield Run(variant.name, digest, launch)


@functools.cache
def identity(source: str) -> str:
    """A digest of a kernel file and of every header of ours that it includes: what was measured is known by it.
    Comments and blanks are not of it."""
    path = headers.find_source(source)
    text = path.read_text()
    request = compiler.request(text, name=str(path), arch="sm_90a")
    included = headers.scan(text, str(path), request.directories).files
    digest = hashlib.sha256(_code(text).encode())
    for name, content in sorted((file.rpartition("/")[2], content) for file, content in included.items()):
        digest.update(f"{name}\0{_code(content.decode())}".encode())
    return digest.hexdigest()[:12]


def _code(text: str) -> str:
    """The text without comments, and with one blank where there were any."""
    return " ".join(_COMMENT.sub(lambda found: found[1] or " ", text).split())
