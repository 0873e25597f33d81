"""Discrete Fourier transforms along one axis or several: complex (FFT), real to complex (RFFT) and complex
to real (IRFFT), in float32, or stored as float16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cudakit.families import fft_host as host
from cudakit.families.fft_ladder import COMPLEX_LADDER, LADDER, long_rows, planes, planes_under_way, rows
from cudakit.families.fft_problem import Axes, FftProblem, problem
from cudakit.family import Family, apply

# The part of L2 that planes under way may fill. On an H200 with 50 MB, planes were faster than cuFFT with 25 MB under
# way, and slower with 67 MB.
L2_SHARE = 0.6


def choose(problem: FftProblem, arch: str) -> str:
    """Return the variant for "auto": planes if those under way fit in L2, else a launch per axis, or two if a row does
    not fit in a block."""
    under_way = 1 + planes_under_way(problem)
    one = problem.planes
    if one is not None and under_way > 1 and one.count > under_way:
        size = one.rows * one.cols * (4 if problem.half else 8)
        if under_way * size <= L2_SHARE * problem.l2 and planes.refusal(problem, arch) is None:
            return "planes"
    return next((one.name for one in (rows, long_rows) if one.refusal(problem, arch) is None), "direct")


def _family(form: str, reference: Callable[..., Any], **given: Any) -> Family[FftProblem]:
    common: dict[str, Any] = {
        "variants": LADDER,
        "problem": functools.partial(problem, form),
        "rounding": host.rounding,
        "baseline": host.baseline(form),
        "choose": choose,
        "widened": False,
        "ceiling": "cufft",
        "shapes": {
            "gpu": ((2**20, 256), (2**18, 1024), (2**16, 4096), (2**18, 1000), (170_000, 1536)),
            "gpu once": ((2**16, 1024),),
            "sim": ((16, 256), (5, 1000)),
            "sim sweep": ((32, 64), (16, 256), (8, 1024), (3, 1000), (2, 4096)),
            "sweep": tuple((2**28 // n, n) for n in (16, 64, 256, 512, 1000, 1024, 1536, 2048, 4096, 8192, 16384)),
        },
        "problems": f"cudakit.testing.fft:{form}_cases",
        "modes": {"": {}, "2d": {"axes": 2}, "ortho": {"norm": "ortho"}},
    }
    return Family(name=form, reference=reference, **(common | given))


FFT: Family[FftProblem] = _family(
    "fft",
    host.reference,
    inputs=host.inputs,
    outputs=host.like,
    dtypes=("complex64", "float16"),
    variants=COMPLEX_LADDER,
    modes={
        "": {},
        "inverse": {"inverse": True, "norm": None},
        "2d": {"axes": 2},
        "columns": {"axes": (-2,)},
        "ortho": {"norm": "ortho"},
    },
)
RFFT: Family[FftProblem] = _family(
    "rfft",
    host.reference_rfft,
    inputs=host.real_inputs,
    outputs=host.like_rfft,
    dtypes=("float32", "float16"),
)
IRFFT: Family[FftProblem] = _family(
    "irfft",
    host.reference_irfft,
    inputs=host.half_inputs,
    outputs=host.like_irfft,
    dtypes=("complex64", "float16"),
    modes={"": {"norm": None}, "2d": {"axes": 2, "norm": None}, "backward": {}},
)


def _call(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    return lambda inputs, out, variant, stream, **options: functools.partial(
        function, inputs[0], out=out, variant=variant, stream=stream, **options
    )


def _taken(axes: Any) -> Any:
    """Return axes in a form that calls can be recognised by."""
    return tuple(axes) if isinstance(axes, list) else axes


def fft(
    x: Any,
    axes: Axes = 1,
    out: Any = None,
    *,
    norm: str | None = "backward",
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return the discrete Fourier transform of an array of cudakit, torch or CuPy.

    Lengths whose prime factors are at most 13 take one launch per axis, up to 16384 elements; other lengths are summed
    directly, in time proportional to their square. Does not wait for the device.

    Args:
        x: complex64, any strides; or float16 with pairs (real, imaginary) along the last axis, which is not counted
            among the axes. Axes that are not transformed must merge into two.
        axes: The number of last axes to transform; or their numbers, as numpy's `axes`.
        out: The result, of x's shape and dtype; it may be `x`. By default a new array.
        norm: Scaling as in numpy: "backward" (none here, 1/n in ifft), "ortho" (1/sqrt(n) in both) or "forward" (1/n
            here, none in ifft); None for no scaling in either. It costs no time.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays, the axes or the norm are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(FFT, (x,), out, variant, stream, {"axes": _taken(axes), "norm": norm, "inverse": False})


def ifft(
    x: Any,
    axes: Axes = 1,
    out: Any = None,
    *,
    norm: str | None = "backward",
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return the inverse of `fft`. Takes the arguments of `fft`."""
    return apply(FFT, (x,), out, variant, stream, {"axes": _taken(axes), "norm": norm, "inverse": True})


def rfft(
    x: Any,
    axes: Axes = 1,
    out: Any = None,
    *,
    norm: str | None = "backward",
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return the `fft` of a real array: the first n // 2 + 1 terms along the last of the axes, which determine the
    others.

    Does not wait for the device.

    Args:
        x: float32 or float16, any strides.
        axes: As for `fft`.
        out: The result, separate from `x`: complex64; for float16, pairs of float16. By default a new array.
        norm: As for `fft`.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays, the axes or the norm are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(RFFT, (x,), out, variant, stream, {"axes": _taken(axes), "norm": norm})


def irfft(
    x: Any,
    axes: Axes = 1,
    out: Any = None,
    *,
    n: int | None = None,
    norm: str | None = "backward",
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return the inverse of `rfft`, a real array. As in numpy, imaginary parts that must be 0 are ignored.

    Does not wait for the device, and does not write to `x`.

    Args:
        x: m terms along the last of the axes: complex64, or pairs of float16, any strides.
        axes: As for `fft`.
        out: The result, separate from `x`, float32 or float16. By default a new array.
        n: The length of the result along the last of the axes, 2 * m - 2 or 2 * m - 1. By default that of `out`;
            without `out`, the even one.
        norm: As for `fft`.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays, the axes, n or the norm are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(IRFFT, (x,), out, variant, stream, {"axes": _taken(axes), "norm": norm, "n": n})


FFT.call = lambda inputs, out, variant, stream, inverse=False, **options: functools.partial(
    ifft if inverse else fft, inputs[0], out=out, variant=variant, stream=stream, **options
)
RFFT.call, IRFFT.call = _call(rfft), _call(irfft)
