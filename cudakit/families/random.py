"""Random float32 numbers generated on the device: uniform in [0, 1) and normal, by Philox4x32-10.

Element i of a stream of numbers depends only on the seed and on i: `uniform(..., seed=s, offset=k)` returns elements k,
k + 1, ... of the stream of s for any launch, and several calls on parts return the same numbers as one call.
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
EACH = 4  # counters per thread of counter_per_thread
LARGEST_NORMAL = 5.77


@dataclass(frozen=True)
class RandomProblem:
    """n elements, starting at number `offset` of the stream; whether they are whole counters on 16-byte boundaries; the
    device's multiprocessors."""

    n: int
    seed: int
    offset: int
    aligned: bool
    sms: int

    def __str__(self) -> str:
        return f"{self.n} random numbers from number {self.offset} on"


# Philox ---------------------------------------------------------------------------------------------------------------


def philox(counters: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Return four 32-bit words per 64-bit counter, (n, 4) uint32, equal to the kernels' words."""
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
            raise ValueError(f"{name} must be from 0 to 2**64 - 1, got {value}")
        return int(value)

    return read


def _offset_kind(offset: int) -> tuple[int, int]:
    """Return the offset's position within a counter, and the offset itself (or 0 if the array cannot exceed the
    stream)."""
    whole = int(offset)
    return whole % 4, whole if whole >= 2**63 else 0


_SCALARS = {"seed": Scalar("seed", _number("seed")), "offset": Scalar("offset", _number("offset"), _offset_kind)}


def problem(inputs: Sequence[Any], output: Any, seed: int = 0, offset: int = 0) -> RandomProblem:
    """Return the problem of filling `output`. Raise ValueError for unsupported arrays."""
    if output.dtype != np.float32:
        raise ValueError(f"random numbers are float32, the output is {output.dtype}")
    if not output.is_contiguous:
        raise ValueError(
            f"random numbers are written to a contiguous array, the output has strides {tuple(output.strides)} bytes"
        )
    seed, offset = (_SCALARS[name].read(value) for name, value in (("seed", seed), ("offset", offset)))
    if offset + output.size > 2**64:
        raise ValueError(f"a stream has 2**64 numbers, requested were {output.size} from number {offset} on")
    aligned = offset % 4 == 0 and alignment(output) == 16
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    return RandomProblem(int(output.size), seed, offset, aligned, sms)


def _variants(kind: str) -> tuple[Variant[RandomProblem], ...]:
    @variant("random/01_word_per_thread.cu")
    def word_per_thread(problem: RandomProblem) -> Launch:
        """one element per thread"""
        return Launch(ceil_div(problem.n, BLOCK), BLOCK, entry=f"word_per_thread<{kind}>")

    @variant("random/02_counter_per_thread.cu")
    def counter_per_thread(problem: RandomProblem) -> Launch:
        """four elements per counter, four counters per thread"""
        counters = ceil_div(problem.n + problem.offset % 4, 4)
        entry = f"counter_per_thread<{kind}, {cpp_bool(problem.aligned)}, {EACH}>"
        return Launch(ceil_div(counters, BLOCK * EACH), BLOCK, entry=entry)

    return word_per_thread, counter_per_thread


def _family(name: str, kind: str, made: Any, rounding: Any, function: Callable[..., Any]) -> Family[RandomProblem]:
    def reference(x: Any, *, seed: int = 0, offset: int = 0) -> Any:
        """Return the numbers in the precision of x. Only the shape and dtype of x are used."""
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
    """Return random numbers in [0, 1), multiples of 2**-24. Takes the arguments of `normal`."""
    return _fill(UNIFORM, shape, **options)


def normal(shape: Any = None, **options: Any) -> Any:
    """Return random numbers of mean 0 and variance 1, by the Box-Muller transform; the largest possible is 5.77.

    Does not wait for the device.

    Args:
        shape: The shape of a new array. Pass either `shape` or `out`.
        out: A contiguous float32 array to fill, of cudakit, torch or CuPy.
        seed: Selects the stream of numbers; from 0 to 2**64 - 1.
        offset: The index of the first number in its stream; from 0 to 2**64 - 1.
        device: The device of a new array, by default `cudakit.Device()`.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The filled array.

    Raises:
        ValueError: If an argument is not supported.
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
        raise ValueError(f"{family.name} takes either the shape of a new array, or out=, an array to fill")
    if out is None:
        out = (device or Device()).empty(shape, np.float32, stream=stream)
    return apply(family, (out,), out, variant, stream, {"seed": seed, "offset": offset})


def _normal_rounding(exact: Any, x: Any, **_: Any) -> Any:
    """Return the allowed rounding error. The radius's error is proportional to each result; the angle is at most 2 pi,
    and its error is proportional to the radius."""
    return 8 * U * (np.abs(exact) + LARGEST_NORMAL)


UNIFORM = _family("uniform", "Uniform", _uniform, 0.0, uniform)
NORMAL = _family("normal", "Normal", _normal, _normal_rounding, normal)
