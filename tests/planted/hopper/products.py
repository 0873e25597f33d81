"""Bugs of wgmma and setmaxnreg."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from ..catalogue import Empty, Launch
from .catalogue import Map, planted

Y = Empty((64, 8))


def operand(*shape: int) -> np.ndarray:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(len(shape)).integers(-4, 5, (*shape, 64)).astype(bfloat16)


A, B = operand(64), operand(8)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32).T


def product(factor: float = 1.0) -> Launch:
    return Launch(1, 128, (A, B, Y), {2: factor * PRODUCT})


@planted("accumulator")
def sums_scaled_early(wrong: bool) -> Launch:
    """wgmma sums scaled before the wait"""
    return product(2.0)


@planted("accumulator")
def sums_in_branch(wrong: bool) -> Launch:
    """wgmma sums changed in a branch before the wait"""
    return Launch(1, 128, (A, B, np.full(1, 3, np.float32), Y), {3: PRODUCT + 3})


@planted("fragment")
def fragment_reloaded(wrong: bool) -> Launch:
    """A fragment in registers reloaded while a wgmma reads it"""
    return product()


@planted("fragment")
def fragment_moved(wrong: bool) -> Launch:
    """The next fragment moved into registers that a wgmma in flight reads"""
    return product()


@planted("operand")
def operand_overwritten(wrong: bool) -> Launch:
    """A wgmma's tile overwritten by ordinary stores before the wait"""
    b = operand(2, 8)
    want = A.astype(np.float32) @ b.astype(np.float32).sum(0).T
    return Launch(1, 128, (A, b, Y), {2: want})


@planted("operand")
def operand_refilled(wrong: bool) -> Launch:
    """A wgmma's tile refilled by a tensor copy before the wait"""
    b = operand(16)
    want = A.astype(np.float32) @ (b[:8].astype(np.float32) + b[8:].astype(np.float32)).T
    return Launch(1, 128, (A, Map(b, (8, 64), "128B"), Y), {2: want})


@planted("proxy fence")
def operand_no_fence(wrong: bool) -> Launch:
    """Tiles written by ordinary stores and read by wgmma without fence.proxy.async"""
    return product()


@planted("proxy fence")
def operand_late_fence(wrong: bool) -> Launch:
    """fence.proxy.async after the barrier, by the readers, before a wgmma"""
    return product()


@planted("wgmma fence")
def first_product_no_fence(wrong: bool) -> Launch:
    """No wgmma.fence before the first wgmma"""
    c = np.random.default_rng(3).integers(-9, 9, (64, 8)).astype(np.float32)
    return Launch(1, 128, (A, B, c, Y), {3: PRODUCT + c})


@planted("wgmma fence")
def scaled_sums_no_fence(wrong: bool) -> Launch:
    """No wgmma.fence after the sums were changed"""
    return product(1.5)


@planted("wgmma fence")
def fragment_after_fence(wrong: bool) -> Launch:
    """A fragment loaded between wgmma.fence and the wgmma"""
    return product()


@planted("wgmma commit")
def product_no_commit(wrong: bool) -> Launch:
    """wgmma without a commit before the wait"""
    return product()


@planted("wgmma commit")
def commit_before_last(wrong: bool) -> Launch:
    """wgmma committed before the last product"""
    return product()


@planted("half warp")
def product_by_half_warp(wrong: bool) -> Launch:
    """wgmma executed by half of each warp"""
    return product()


@planted("divergent")
def product_by_three_warps(wrong: bool) -> Launch:
    """wgmma executed by three warps of a warpgroup"""
    want = PRODUCT.copy()
    want[48:] = 0
    return Launch(1, 128, (A, B, np.zeros((64, 8), np.float32), 48), {2: want})


@planted("setmaxnreg")
def setmaxnreg_one_warp(wrong: bool) -> Launch:
    """setmaxnreg executed by one warp of a warpgroup"""
    return Launch(1, 384, (Empty(384, np.int32),), {0: np.arange(384)})


@planted("setmaxnreg")
def setmaxnreg_per_warp(wrong: bool) -> Launch:
    """setmaxnreg with different counts in the warps of a warpgroup"""
    return Launch(1, 128, (Empty(128, np.int32),), {0: np.arange(128)})


@planted("registers")
def registers_never_fit(wrong: bool) -> Launch:
    """setmaxnreg.inc for more registers than a block has"""
    return Launch(1, 384, (Empty(384, np.int32),), {0: np.arange(384)})


@planted("descriptors differ")
def descriptor_of_warps_rows(wrong: bool) -> Launch:
    """wgmma with another tile of A in each warp"""
    return product()


@planted("descriptors differ")
def descriptor_of_warps_columns(wrong: bool) -> Launch:
    """wgmma with another tile of B in each warp"""
    b = operand(4, 8)
    return Launch(1, 128, (A, b, Y), {2: A.astype(np.float32) @ b.astype(np.float32).sum(0).T})


@planted("descriptor outside")
def descriptor_stride(wrong: bool) -> Launch:
    """wgmma descriptor whose stride is in bytes"""
    return product()


@planted("descriptor outside")
def descriptor_past_end(wrong: bool) -> Launch:
    """wgmma descriptor of rows past the end of shared memory"""
    return Launch(1, 128, (A, B, Y), {2: PRODUCT}, shared=9216)


@planted("swizzle")
def swizzle_unaligned(wrong: bool) -> Launch:
    """wgmma on a swizzled tile that is not 1024-byte aligned"""
    return Launch(1, 128, (A, B, Y), {2: PRODUCT}, shared=10240)


@planted("swizzle")
def swizzle_base_offset(wrong: bool) -> Launch:
    """wgmma descriptor with a base offset for an aligned tile"""
    return product()
