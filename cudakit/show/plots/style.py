"""How every picture looks: an opaque page, so that it reads on light and dark pages alike, colours that colour-blind
readers tell apart, and names at the lines where there is room.

Needs the `plot` extra (matplotlib), which is imported when a picture is asked for.
"""

from __future__ import annotations

import importlib
import io
import os
from typing import Any

from cudakit.errors import Refused
from cudakit.show.outputs import check_destination, write_file

# Okabe and Ito's colours, without the yellow that vanishes on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
INK, SOFT, FAINT = "#1b1f24", "#57606a", "#c9d1d9"
PEER = "#8c959f"
CEILING = "#1b1f24"


def check(path: str, flag: str = "--plot") -> None:
    """Raises Refused where nothing could be drawn to `path`, the value of `flag`: before anything runs for it."""
    if path == "-":
        raise Refused(f"{flag} -: a picture is written to a file; name one")
    check_destination(flag, path)
    backends = load("matplotlib.backend_bases")
    known = sorted(backends.FigureCanvasBase.get_supported_filetypes())
    ending = os.path.splitext(path)[1][1:]
    if ending and ending.lower() not in known:
        raise Refused(f"{flag} {path}: matplotlib does not write .{ending} files. Use one of {', '.join(known)}")


def load(name: str) -> Any:
    """A module of matplotlib. Raises Refused where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused("a picture needs matplotlib: pip install 'cudakit[plot]'") from error


def figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, apart from pyplot's: it needs no closing and disturbs no notebook."""
    backend, figures = load("matplotlib.backends.backend_agg"), load("matplotlib.figure")
    made = figures.Figure(figsize=(width, height), layout="constrained", facecolor="white")
    backend.FigureCanvasAgg(made)
    return made


def save(made: Any, path: str) -> None:
    """Writes a figure in the format that the path's ending names."""
    image = io.BytesIO()
    made.savefig(image, dpi=150, format=os.path.splitext(path)[1][1:].lower() or "png")
    write_file(path, image.getvalue())


def literal(text: str) -> str:
    """`text` for matplotlib, which would read what stands between two dollars as mathematics, and refuse surrogates."""
    return text.encode(errors="backslashreplace").decode().replace("$", r"\$")


def plain(axes: Any, title: str, under: str = "") -> None:
    """The title on the left, with a line under it, and no frame but the two axes."""
    axes.set_title(literal(title), fontsize=12, loc="left", color=INK, fontweight="bold", pad=34 if under else 8)
    if under:
        axes.annotate(
            literal(under),
            (0, 1),
            xytext=(0, 20),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8.5,
            color=SOFT,
        )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=SOFT, labelsize=9)
    axes.set_axisbelow(True)


def spread(places: list[float], apart: float) -> list[float]:
    """`places` moved as little as it takes to lie `apart` of each other, in their order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[tuple[float, int]] = []  # the middle of each run of neighbours, and how many they are
    for index in order:
        groups.append((places[index], 1))
        while len(groups) > 1:
            (one, ones), (other, others) = groups[-2:]
            if other - one >= apart * (ones + others) / 2:
                break
            groups[-2:] = [((one * ones + other * others) / (ones + others), ones + others)]
    settled = [middle + apart * (step - (count - 1) / 2) for middle, count in groups for step in range(count)]
    out = [0.0] * len(places)
    for index, place in zip(order, settled, strict=True):
        out[index] = place
    return out
