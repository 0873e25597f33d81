"""The rules of tensor maps, which are those that cuTensorMapEncodeTiled checks. They name the broken rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudakit.sim.lockstep.tensor_maps import TensorMap

#: The numbers of the driver's enums, by the names that cudakit uses.
DATA_TYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float32_ftz": 10, "tf32": 11, "tf32_ftz": 12,
}  # fmt: skip
INTERLEAVES = {"none": 0, "16B": 1, "32B": 2}
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
PROMOTIONS = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
FILLS = {"zeros": 0, "nan": 1}


def described(
    data_type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    *modes: int,
) -> TensorMap:
    """Return the fields of a map from the arguments of cuTensorMapEncodeTiled. modes: interleave, swizzle, promotion
    and fill."""
    from cudakit.sim.lockstep import tensor_maps

    fields = (tuple(dims), tuple(strides), tuple(box), tuple(element_strides))
    return tensor_maps.TensorMap(data_type, address, *fields, *modes)


def mistake(tensor: TensorMap) -> tuple[str, int | None, str] | None:
    """Return the first rule that a map breaks: the name of the argument of cuTensorMapEncodeTiled, the index in it
    (None for the whole argument) and the rule with the value; None if all are obeyed."""
    from cudakit.sim.lockstep import tensor_map_rules

    return next(tensor_map_rules.mistakes(tensor), None)
