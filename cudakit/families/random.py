"""Random float32 numbers made on the device: uniform in [0, 1) and normal, by Philox4x32-10.

Element i of a stream depends on the seed and on i alone: `uniform(..., seed=s, offset=k)` gives elements k, k + 1, ...
of the stream of s, whatever the launch, and parts made one by one are the same numbers as the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.family import OUT, Family, Launch, Scalar, Variant, alignment, apply, ceil_div, cpp_bool, variant
from cudakit.rounding import U

BLOCK = 256
EACH = 4  # counters a thread of counter_per_thread
LARGEST_NORMAL = 5.77


@dataclass(frozen=True)
class RandomProblem:
    """n elements from number `offset` on; whether they lie as whole counters on 16-byte boundaries; multiprocessors."""

    n: int
    seed: int
    offset: int
    aligned: bool
    sms: int

    def __str__(self) -> str:
        return f"{self.n} random numbers from number {self.offset} on"


# Philox ---------------------------------------------------------------------------------------------------------------


def philox(counters: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Four 32-bit words for each 64-bit counter: (n, 4) uint32, as the kernels make them."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    counters = np.asarray(counters, np.uint64)
    x0, x1 = counters & low, counters >> shift
    x2, x3 = np.zeros_like(x0), np.zeros_like(x0)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (b >> shift) ^ x1 ^ np.uint64(k0), b & low, (a >> shift) ^ x3 ^ np.uint64(k1), a & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3], axis=-1).astype(np.uint32)


def _words(n: int, seed: int, offset: int) -> np.ndarray[Any, Any]:
    first = offset // 4
    counters = np.arange(ceil_div(offset % 4 + n, 4), dtype=np.uint64) + np.uint64(first)
    return philox(counters, seed)


def _uniform(n: int, seed: int, offset: int, dtype: Any) -> Any:
    words = _words(n, seed, offset).ravel() >> np.uint32(8)
    return (words[offset % 4 :][:n].astype(dtype)) * dtype(2.0**-24)


def _normal(n: int, seed: int, offset: int, dtype: Any) -> np.ndarray[Any, Any]:
    words = (_words(n, seed, offset) >> np.uint32(8)).astype(dtype)
    scale = dtype(2.0**-24)
    radius = np.sqrt(dtype(-2) * np.log((words[:, 0::2] + dtype(1)) * scale))
    angle = dtype(2 * np.pi) * (words[:, 1::2] * scale)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return pairs.reshape(-1)[offset % 4 :][:n].astype(dtype)


# Families -------------------------------------------------------------------------------------------------------------


def _number(name: str) -> Callable[[int], int]:
    def read(value: int) -> int:
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} is {value}: it must be from 0 to 2**64 - 1")
        return int(value)

    return read


def _offset_kind(offset: int) -> tuple[int, int]:
    """Its place in a counter; and the offset itself if the stream could end before the array does."""
    whole = int(offset)
    return whole % 4, whole if whole >= 2**63 else 0


_SCALARS = {"seed": Scalar("seed", _number("seed")), "offset": Scalar("offset", _number("offset"), _offset_kind)}


def problem(inputs: Sequence[Any], output: Any, seed: int = 0, offset: int = 0) -> RandomProblem:
    """The problem of filling `output`; ValueError says what it refuses."""
    if output.dtype != np.float32:
        raise ValueError(f"random numbers are float32, the output is {output.dtype}")
    if not output.is_contiguous:
        raise ValueError(
            f"random numbers are written to a contiguous array, the output has strides {tuple(output.strides)} bytes"
        )
    seed, offset = (_SCALARS[name].read(value) for name, value in (("seed", seed), ("offset", offset)))
    if offset + output.size > 2**64:
        raise ValueError(f"a stream has 2**64 numbers, asked were {output.size} from number {offset} on")
    aligned = offset % 4 == 0 and alignment(output) == 16
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    return RandomProblem(int(output.size), seed, offset, aligned, sms)


def _variants(kind: str) -> tuple[Variant[RandomProblem], ...]:
    @variant("random/01_word_per_thread.cu")
    def word_per_thread(problem: RandomProblem) -> Launch:
        """one element a thread"""
        return Launch(ceil_div(problem.n, BLOCK), BLOCK, entry=f"word_per_thread<{kind}>")

    @variant("random/02_counter_per_thread.cu")
    def counter_per_thread(problem: RandomProblem) -> Launch:
        """all four words of a counter"""
        counters = ceil_div(problem.n + problem.offset % 4, 4)
        entry = f"counter_per_thread<{kind}, {cpp_bool(problem.aligned)}, {EACH}>"
        return Launch(ceil_div(counters, BLOCK * EACH), BLOCK, entry=entry)

    return word_per_thread, counter_per_thread


def _family(name: str, kind: str, made: Any, rounding: Any, function: Callable[..., Any]) -> Family[RandomProblem]:
    def reference(x: Any, *, seed: int = 0, offset: int = 0) -> Any:
        """The numbers in the precision of x, which tells the shape and is not read."""
        return made(x.size, seed, offset, x.dtype.type).reshape(x.shape)

    family: Family[RandomProblem] = Family(
        name=name,
        reference=reference,
        variants=_variants(kind),
        inputs=lambda shape, dtype, rng, **_: (np.zeros(shape, np.float32),),
        outputs={"out": "float32"},
        problem=problem,
        arguments=lambda p: (OUT, p.n, p.seed, p.offset),
        rounding=rounding,
        traffic=lambda problem: 4 * problem.n,
        scalars=_SCALARS,
        shapes={
            "gpu": ((1024, 1024, 64),),
            "sim": ((1000,), (3, 37, 50)),
            "sim sweep": ((1 << 10,), (1 << 14,)),
            "sweep": ((1 << 16,), (1 << 20,), (1 << 24,), (1 << 28,)),
        },
        problems="cudakit.testing.random:random_cases",
    )
    family.call = lambda inputs, out, variant, stream, **options: functools.partial(
        function, out=out, variant=variant, stream=stream, **options
    )
    return family


def uniform(shape: Any = None, **options: Any) -> Any:
    """Random numbers in [0, 1), multiples of 2**-24. Takes what `normal` takes."""
    return _fill(UNIFORM, shape, **options)


def normal(shape: Any = None, **options: Any) -> Any:
    """Random numbers of mean 0 and variance 1, by Box and Muller's transform; the largest possible is 5.77.

    shape: of a new array on `device` (a Device; cudakit.Device() unless given). out: a contiguous float32 array to fill
    instead, cudakit's, torch's or CuPy's. seed, offset: which numbers of which stream, both from 0 to 2**64 - 1.
    variant: a rung by name, or "auto". stream: as for every op. Returns without waiting. Raises ValueError for what it
    does not take.
    """
    return _fill(NORMAL, shape, **options)


def _fill(
    family: Family[RandomProblem],
    shape: Any,
    *,
    out: Any = None,
    seed: int = 0,
    offset: int = 0,
    device: Device | None = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    if (shape is None) == (out is None):
        raise ValueError(f"{family.name} takes either the shape of a new array or out=, an array to fill")
    if out is None:
        out = (device or Device()).empty(shape, np.float32, stream=stream)
    return apply(family, (out,), out, variant, stream, {"seed": seed, "offset": offset})


def _normal_rounding(exact: Any, x: Any, **_: Any) -> Any:
    """The rounding of the radius, relative to a number, and of the angle (at most 2 pi), relative to the radius."""
    return 8 * U * (np.abs(exact) + LARGEST_NORMAL)


UNIFORM = _family("uniform", "Uniform", _uniform, 0.0, uniform)
NORMAL = _family("normal", "Normal", _normal, _normal_rounding, normal)
