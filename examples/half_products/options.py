"""Checks of command-line options, before the device is opened."""

from cudakit.errors import Refused
from cudakit.shapes import shape_text


def expect_known(option, values, known):
    """Raise Refused for a value of `option` that does not exist."""
    for value in values:
        if value not in known:
            raise Refused(f"{option} {value}: unknown; choose from {', '.join(known)}")


def product_shapes(shapes):
    """Return (m, n, k) of each shape of --shapes; N is a square product."""
    made = [shape * 3 if len(shape) == 1 else shape for shape in shapes]
    for given, shape in zip(shapes, made, strict=True):
        if len(shape) != 3 or 0 in shape:
            raise Refused(f"--shapes {shape_text(given)}: write N or MxNxK, with extents of at least 1")
    return made
