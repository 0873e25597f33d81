"""Family: a ladder that can be called on arrays of any library."""

from __future__ import annotations

from typing import Any

from cudakit.family import front
from cudakit.family.declaration import P
from cudakit.family.ladder import Ladder
from cudakit.family.problem import counted


class Family(Ladder[P]):
    """A ladder of variants, declared once, that is called like a function.

    Its parameters are those of `cudakit.family.declared.Declared`.

    FAMILY = Family("transpose", reference=lambda x: x.T, inputs={"x": "float32[rows, cols]"})

    @FAMILY.variant("transpose.cu")
    def naive(p):
        return Launch((ceil_div(p.cols, 32), ceil_div(p.rows, 8)), (32, 8))

    y = FAMILY(x)
    """

    def __call__(self, *inputs: Any, out: Any = None, variant: str = "auto", stream: Any = None, **options: Any) -> Any:
        """Launches a variant on arrays of cudakit, torch or CuPy, and returns the output, of the same library.

        out: where to write (a tuple of several outputs); new arrays unless given. A family with an `initial` value
        fills new arrays with it, and adds to those that are given. variant: one by name, or "auto". stream: the
        device's default stream, or torch's or CuPy's current one, unless given. Returns without waiting.
        Raises ValueError for arrays that the family does not take, TypeError for an unknown option and for what is not
        an array on a device, UnsupportedVariant for a variant that does not take them, Refused if the declaration is
        wrong, as if the reference fails.
        """
        if len(inputs) != len(self.specs) and self.problem is None:
            raise ValueError(f"{self.name} takes {counted(list(self.specs))} by position, got {len(inputs)}")
        if self.in_place and out is None:
            out = inputs[self.over]
        if isinstance(out, list):
            out = tuple(out)
        return front.apply(self, inputs, out, variant, stream, options)
