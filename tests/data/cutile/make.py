"""Makes the cubins in this folder with cuTile, ahead of time: no GPU is needed.

    python tests/data/cutile/make.py            # writes vector_add.sm_90.cubin, what launches it (.json), and so on

A cubin is loaded with `cudakit.frontends.cutile.load`, for which cuTile need not be installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import cuda.tile as ct

from cudakit.frontends import cutile

HERE = Path(__file__).resolve().parent
ARCH = "sm_90"


@ct.kernel
def vector_add(a, b, out, TILE: ct.Constant[int]):
    """out = a + b; one block of tiles for TILE elements."""
    block = ct.bid(0)
    total = ct.load(a, index=(block,), shape=(TILE,)) + ct.load(b, index=(block,), shape=(TILE,))
    ct.store(out, index=(block,), tile=total)


@ct.kernel
def softmax(x, out, TILE: ct.Constant[int]):
    """Softmax of each row of at most TILE columns; one block a row."""
    row = ct.bid(0)
    values = ct.load(x, index=(row, 0), shape=(1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
    powers = ct.exp(values - ct.max(values, 1, keepdims=True))
    ct.store(out, index=(row, 0), tile=powers / ct.sum(powers, 1, keepdims=True))


@ct.kernel
def scale(x, out, factor, TILE: ct.Constant[int]):
    """out = factor * x, of any stride."""
    block = ct.bid(0)
    ct.store(out, index=(block,), tile=factor * ct.load(x, index=(block,), shape=(TILE,)))


WIDE, ANY, ROWS = "float32[::1]:16", "float32[:]", "float32[:, ::1]"
MADE = {
    "vector_add_16": (vector_add, {"a": WIDE, "b": WIDE, "out": WIDE}, {"TILE": 16}),
    "vector_add_1024": (vector_add, {"a": WIDE, "b": WIDE, "out": WIDE}, {"TILE": 1024}),
    "vector_add_1024_of_16": (vector_add, {"a": WIDE, "b": WIDE, "out": WIDE}, {"TILE": 1024}, 16),
    "softmax_1024": (softmax, {"x": ROWS, "out": ROWS}, {"TILE": 1024}),
    "scale_256": (scale, {"x": ANY, "out": ANY, "factor": "float32"}, {"TILE": 256}),
}


def portable(cubin: bytes) -> bytes:
    """A cubin without this machine's folders, which its line tables name; no byte moves."""
    here = str(HERE).encode()
    return cubin.replace(here, b"tests/data/cutile".rjust(len(here), b"/")[-len(here) :])


def main() -> None:
    for name, (kernel, signature, constants, *multiple) in MADE.items():
        made = cutile.build(ARCH, kernel, signature, constants, divisible_by=multiple[0] if multiple else 1)
        (HERE / f"{name}.{ARCH}.cubin").write_bytes(portable(made.cubin))
        (HERE / f"{name}.{ARCH}.json").write_text(json.dumps(made.launch, indent=1) + "\n")


if __name__ == "__main__":
    main()
