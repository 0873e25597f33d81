"""Family: a callable ladder for arrays of any library."""

from __future__ import annotations

from typing import Any

from cudakit.family import front
from cudakit.family.declaration import P
from cudakit.family.ladder import Ladder
from cudakit.family.problem import counted


class Family(Ladder[P]):
    """A ladder of variants, declared once and called like a function.

    Its parameters are those of `cudakit.family.declared.Declared`.

    FAMILY = Family("transpose", reference=lambda x: x.T, inputs={"x": "float32[rows, cols]"})

    @FAMILY.variant("transpose.cu")
    def naive(p):
        return Launch((ceil_div(p.cols, 32), ceil_div(p.rows, 8)), (32, 8))

    y = FAMILY(x)
    """

    def __call__(self, *inputs: Any, out: Any = None, variant: str = "auto", stream: Any = None, **options: Any) -> Any:
        """Launch a variant on arrays of cudakit, torch or CuPy, and return the output, an array of the same library.

        Does not wait for the device. A family with an `initial` value fills new outputs with it, and adds to outputs
        that are passed.

        Args:
            inputs: The inputs, in the declared order.
            out: The output, or a tuple of several. By default new arrays.
            variant: The name of a variant, or "auto".
            stream: By default the device's default stream, or the current stream of torch or CuPy.
            options: The family's options, by name.

        Returns:
            The output, or a tuple of several.

        Raises:
            ValueError: If the arrays do not match the declaration.
            TypeError: If an option is unknown, or an input is not an array on a device.
            UnsupportedVariant: If the variant does not support the arrays.
            Refused: If the declaration is wrong, for example if the reference fails.
        """
        if len(inputs) != len(self.specs) and self.problem is None:
            raise ValueError(f"{self.name} takes {counted(list(self.specs))} by position, got {len(inputs)}")
        if self.in_place and out is None:
            out = inputs[self.over]
        if isinstance(out, list):
            out = tuple(out)
        return front.apply(self, inputs, out, variant, stream, options)
