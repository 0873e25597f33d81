"""The look of every picture: a light and a dark theme, sizes that stay readable at 830 pixels, colours that
colour-blind readers can distinguish.

Needs the `plot` extra (matplotlib), which is imported when a picture is drawn.
"""

from __future__ import annotations

import importlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudakit.errors import Refused
from cudakit.show.outputs import check_destination, write_file


@dataclass(frozen=True)
class Theme:
    """Colours. accent: the best of ours. ours: our other variants. peer: other libraries. lines: for curves, of equal
    weight, distinguishable by colour-blind readers."""

    page: str
    ink: str
    soft: str
    faint: str
    accent: str
    ours: str
    peer: str
    peer_line: str
    on_bar: str  # text within a bar
    on_accent: str  # text within the bar of the best
    lines: tuple[str, ...]


LIGHT = Theme(
    page="#ffffff", ink="#1b1f24", soft="#57606a", faint="#d0d7de", accent="#d55e00", ours="#7fb2d9", peer="#b6bdc5",
    peer_line="#7a838d", on_bar="#10151a", on_accent="#10151a",
    lines=("#0072b2", "#d55e00", "#009e73", "#b5538f", "#2f9fd6", "#b97f00"),
)  # fmt: skip
DARK = Theme(
    page="#0f1318", ink="#e6edf3", soft="#9aa4af", faint="#30363d", accent="#ff8b3d", ours="#3d78a8", peer="#6b747e",
    peer_line="#8b949e", on_bar="#ffffff", on_accent="#10151a",
    lines=("#4ea8de", "#ff8b3d", "#2fc79a", "#e08cc0", "#8fd3f7", "#e6b84d"),
)  # fmt: skip

# Inches. A page shows a picture 830 pixels wide, so 7 points are 9.7 pixels there.
WIDTH = 8.3
SMALL, NORMAL, LARGE = 7.5, 8.5, 11.5
_DPI = 180
# A palette of so many colours keeps the edges of letters smooth and a PNG at a third of its size.
_PALETTE = 96


def theme_of(path: str) -> Theme:
    """The theme of a picture by its name: dark for `x.dark.png`, else light."""
    return DARK if Path(path).stem.endswith(".dark") else LIGHT


def check(path: str, flag: str = "--plot") -> None:
    """Raise Refused if no picture can be written to `path`, the value of `flag`. Call it before any work is done."""
    if path == "-":
        raise Refused(f"{flag} -: a picture is written to a file; name one")
    check_destination(flag, path)
    backends = load("matplotlib.backend_bases")
    known = sorted(backends.FigureCanvasBase.get_supported_filetypes())
    ending = os.path.splitext(path)[1][1:]
    if ending and ending.lower() not in known:
        raise Refused(f"{flag} {path}: matplotlib does not write .{ending} files. Use one of {', '.join(known)}")


def load(name: str) -> Any:
    """Return a module of matplotlib. Raises Refused if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused("a picture needs matplotlib: pip install 'cudakit[plot]'") from error


def figure(height: float, theme: Theme) -> Any:
    """Return an empty figure, `height` inches high. It is not one of pyplot's, so that it needs no closing."""
    backend, figures = load("matplotlib.backends.backend_agg"), load("matplotlib.figure")
    made = figures.Figure(figsize=(WIDTH, height), dpi=_DPI, layout="constrained", facecolor=theme.page)
    made.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    backend.FigureCanvasAgg(made)
    return made


def save(made: Any, path: str) -> None:
    """Write a figure in the format that the path's ending names."""
    image = io.BytesIO()
    kind = os.path.splitext(path)[1][1:].lower() or "png"
    made.savefig(image, format=kind, dpi="figure")
    if kind == "png":
        pixels = load("PIL.Image").open(image).convert("RGB")
        image = io.BytesIO()
        pixels.quantize(_PALETTE, dither=0).save(image, "png", optimize=True)
    write_file(path, image.getvalue())


def literal(text: str) -> str:
    """Escape `text` for matplotlib, which reads text between two dollars as mathematics and rejects surrogates."""
    return text.encode(errors="backslashreplace").decode().replace("$", r"\$")


def plain(axes: Any, title: str, under: str, theme: Theme) -> None:
    """Set the title at the figure's left edge, with a smaller line under it, and remove the frame except the axes."""
    head(axes.figure, title, under, theme)
    frame(axes, theme)


def head(made: Any, title: str, under: str, theme: Theme) -> None:
    """Set a figure's title at its left edge, with a smaller line under it."""
    high = made.get_figheight()
    made.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.5 / high))
    left = 0.1 / WIDTH
    large = {"fontsize": LARGE, "color": theme.ink, "fontweight": "bold"}
    made.text(left, 1 - 0.2 / high, literal(title), va="center", **large)
    made.text(left, 1 - 0.42 / high, literal(under), va="center", fontsize=SMALL, color=theme.soft)


def frame(axes: Any, theme: Theme) -> None:
    """Remove the frame except the left and the bottom line, and colour what is left."""
    axes.set_facecolor(theme.page)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(theme.faint)
    axes.tick_params(which="both", colors=theme.soft, labelsize=SMALL)
    axes.xaxis.label.set(color=theme.soft, fontsize=NORMAL)
    axes.yaxis.label.set(color=theme.soft, fontsize=NORMAL)
    axes.set_axisbelow(True)


def legend(owner: Any, theme: Theme, **more: Any) -> Any:
    """Add a legend without a frame."""
    made = owner.legend(fontsize=SMALL, frameon=False, labelcolor=theme.ink, **more)
    if made.get_title() is not None:
        made.get_title().set(color=theme.soft, fontsize=SMALL)
    return made


def log_ticks(axis: Any) -> None:
    """Label a log axis with plain numbers: each decade, and 2 and 5 times it if there are few decades."""
    ticker = load("matplotlib.ticker")
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def spread(places: list[float], apart: float) -> list[float]:
    """Return `places`, moved as little as possible so that neighbours are at least `apart`, in the same order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[tuple[float, int]] = []  # the middle of each run of neighbours, and their number
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
