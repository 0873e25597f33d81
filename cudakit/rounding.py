"""Bounds of float32 rounding errors, by which the results of families are judged.

A rounding to nearest moves a number by at most u = 2^-24 of itself, and by 0.42 u in the root mean square. Roundings of
one sum are nearly independent, so that they add up like a random walk (Higham and Mary, "A New Approach to
Probabilistic Rounding Error Analysis", 2019): the spread of a sum is 0.42 u times the root of the sum of squares of its
partial sums. The bounds here are 6 such spreads of typical numbers. A worst-case bound would be so wide that a sum with
a missing term passes. tests/ops/test_rounding.py compares them with sums in several orders.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

U = 2.0**-24
# The smallest normal float32, and the smallest denormal one.
LEAST_NORMAL, SMALLEST = 2.0**-126, 2.0**-149
SPREADS = 6 * 0.42 * U
# The branches per level of a tree that are added one by one, as in the kernels of reduce/ and in a block's chains.
BRANCHES = 32
_PIECE = 1 << 22


def of_tree(terms: Any) -> Any:
    """The bound of float32 sums along the last axis of `terms`, added in a tree of at most BRANCHES branches per level.

    At each of log32(n) levels the squares of the partial sums add up to BRANCHES / 2 times the squares of the terms if
    the signs are mixed; terms of one sign add BRANCHES / 3 times the square of the largest partial sum. 0 for sums that
    are exact in float32: of small whole numbers, or of one term.
    """
    n = terms.shape[-1]
    if n < 2:
        return np.zeros(terms.shape[:-1])
    flat = terms.reshape(-1, n)
    step = max(1, _PIECE // n)
    with np.errstate(all="ignore"):
        pieces = [_of_tree(flat[first : first + step]) for first in range(0, len(flat), step)]
    return np.concatenate(pieces or [np.zeros(0)]).reshape(terms.shape[:-1])


def _of_tree(terms: Any) -> Any:
    wide = terms.astype(np.float64)
    squares = np.einsum("ij,ij->i", wide, wide)
    whole = (np.abs(wide).sum(axis=1) < 2**24) & (wide == np.floor(wide)).all(axis=1)
    prefix = np.cumsum(wide, axis=1, out=wide)
    span = np.maximum(prefix.max(axis=1), 0) - np.minimum(prefix.min(axis=1), 0)
    levels = math.ceil(math.log(terms.shape[1], BRANCHES))
    return np.where(whole, 0.0, SPREADS * np.sqrt(BRANCHES / 2 * levels * squares + BRANCHES / 3 * span**2))


def of_products(terms: Any) -> Any:
    """The bound of a float32 sum of products in a tree, with the roundings of the products."""
    with np.errstate(all="ignore"):
        squares = np.einsum("...i,...i->...", terms, terms, dtype=np.float64)
        return of_tree(terms) + SPREADS * np.sqrt(squares)


def of_chain(terms: int) -> float:
    """The relative bound of a float32 sum of products, added from left to right by fused multiply-adds. It is relative
    to the sum's size: the root of the sum of the products' squares, or the sum if that is larger. The squares of the
    partial sums add up to terms / 2 times the square of the size."""
    return SPREADS * math.sqrt(terms / 2) + 2 * U


def of_exponential(below: Any) -> Any:
    """The relative bound of float32's exp(x - maximum), with `below` = maximum - x: the error of __expf, which is 2 ulp
    plus 1.173 ulp per unit of its argument (CUDA C++ Programming Guide), the error of the difference, and the errors of
    later factors."""
    return U * (12 + 4 * below)


def of_set_amplitudes(spectra: Any, amplitudes: Any) -> Any:
    """The bound of a float32 image whose spectrum has new amplitudes: inverse(amplitudes * spectra / |spectra|). The
    spectra are Fourier transforms of the last two axes; returns one bound per image.

    A transform of n numbers moves each of them by up to `few` of the root mean square of all. That turns the phase of a
    small element by a large angle, so the bound depends on the smallest |spectra|. The changes of different elements
    are independent, and the inverse transform adds them like a random walk.
    """
    n = spectra.shape[-2] * spectra.shape[-1]
    few = 3 * U * (math.log2(n) + 4)
    sizes = np.abs(spectra)
    error = few * np.sqrt(np.mean(sizes**2, axis=(-2, -1), keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        angles = np.where(error > 0, np.minimum(error / sizes, 2.0), 0.0)
    turned = np.sum((amplitudes * angles) ** 2, axis=(-2, -1))
    return (np.sqrt(turned) + few * np.sqrt(np.sum(amplitudes.astype(np.float64) ** 2, axis=(-2, -1)))) / n
