"""Plots of reports: their content, what is left out, and reports that cannot be drawn."""

from __future__ import annotations

import itertools
import json
import sys

import numpy
import pytest
from paths import ROOT

from cudakit import __main__ as command_line
from cudakit import pipeline
from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.pipeline.report import Link
from cudakit.show import outputs, plots
from cudakit.show.plots import style

Text = pytest.importorskip("matplotlib.text", reason="the plot extra is not installed").Text
Image = pytest.importorskip("PIL.Image")
to_rgb = pytest.importorskip("matplotlib.colors").to_rgb


def row(variant, rung, shape, gbps, **more):
    made = {
        "family": "softmax", "variant": variant, "rung": rung, "shape": list(shape), "dtype": "float32", "mode": "",
        "idea": f"the idea of {variant}", "ok": True, "skipped": None, "gbps": gbps, "tflops": None, "counters": None,
        "of_ceiling": gbps and gbps / 4000, "ceiling": "copy", "time_ms": {"median": 1.0},
    }  # fmt: skip
    return made | more


def report(*shapes, kind="gpu", **more):
    rows = []
    for shape in shapes:
        rows += [
            row("cpu", None, shape, 3.0, **more),
            row("first", 1, shape, 200.0, **more),
            row("second", 2, shape, 3000.0 + shape[-1], **more),
            row("wrong", 3, shape, 3999.0, **more) | {"ok": False},
            row("third", 4, shape, None, **more) | {"ok": None, "skipped": "too long"},
            row("peer:torch", None, shape, 1500.0, **more),
        ]
    return {
        "device": {"name": "A GPU", "kind": kind, "arch": "sm_90", "driver": "13.0", "nvrtc": "13.4"},
        "date": "2026-11-20",
        "ceilings": {"copy": [{"shape": list(shape), "gbps": 4000.0} for shape in shapes]},
        "rows": rows,
    }


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw a report to a file, and return the axes."""

    def drawn(result, **options):
        kept = []
        save = style.save
        monkeypatch.setattr(style, "save", lambda made, path: (kept.append(made), save(made, path)))
        (written,) = plots.plot(result, str(tmp_path / "out.png"), **options)
        with open(written, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"
        (axes,) = kept[-1].axes
        assert kept[-1].get_facecolor() == (1, 1, 1, 1), "an opaque background is readable on dark pages too"
        return axes

    return drawn


def words(axes):
    """Return all text within the axes, except the line that names the device."""
    return [text.get_text() for text in axes.texts if "driver" not in text.get_text()]


def test_one_shape_is_a_bar_a_rung_below_the_copy(drawn):
    axes = drawn(report((8, 16)))
    assert [bar.get_width() for bar in axes.patches] == [200.0, 3016.0, 1500.0], "wrong and skipped rows have no bar"
    said = words(axes)
    assert "copy 4,000 GB/s = 100 %" in said
    assert {"1  first", "the idea of first", "2  second", "torch"} <= set(said)
    assert "3,016 · 75 %" in said
    assert not [text for text in said if "wrong" in text or "third" in text or "cpu" in text]
    assert axes.get_xlabel() == "memory bandwidth, GB/s"
    best, other = axes.patches[1], axes.patches[0]
    assert best.get_facecolor() != other.get_facecolor(), "the best variant is highlighted"


def test_a_small_share_of_the_ceiling_is_not_zero(drawn):
    axes = drawn({**report(), "rows": [row("first", 1, (8, 16), 8.0)], "ceilings": report((8, 16))["ceilings"]})
    assert "8 · 0.2 %" in words(axes)


def luminance(color):
    """Return the relative luminance of WCAG 2."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK])
def test_text_can_be_read_on_its_background(theme):
    pairs = [
        (theme.ink, theme.page), (theme.soft, theme.page), (theme.on_bar, theme.ours), (theme.on_bar, theme.peer),
        (theme.on_accent, theme.accent),
    ]  # fmt: skip
    for pair in pairs:
        dark, bright = sorted(luminance(color) for color in pair)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, f"{pair[0]} on {pair[1]}"


def test_rates_of_arithmetic_are_held_against_the_library_of_their_run(drawn):
    result = report((512, 512, 512), ceiling="cublas")
    for one in result["rows"]:
        one["tflops"] = one["gbps"] and one["gbps"] / 100
        one["of_ceiling"] = one["tflops"] and one["tflops"] / 50
    axes = drawn(result)
    assert axes.get_xlabel() == "arithmetic, TFLOP/s"
    assert "cublas 50 TFLOP/s = 100 %" in words(axes)


def test_a_simulated_report_shows_bytes_and_no_time(drawn):
    result = report((8, 16), kind="sim")
    for one in result["rows"]:
        one["counters"] = {"bytes_per_element": 12.0 if one["variant"] == "second" else 30.0}
    axes = drawn(result)
    assert "bytes" in axes.get_xlabel()
    assert not [text for text in words(axes) if "%" in text or "GB/s" in text]
    assert axes.patches[1].get_facecolor() != axes.patches[0].get_facecolor(), "the fewest bytes are the best"


def test_several_shapes_are_a_line_a_variant_to_scale(drawn):
    axes = drawn(report((8, 64), (8, 16)))
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
    assert lines == {
        "copy (ceiling)": ([16, 64], [4000.0, 4000.0]),
        "first": ([16, 64], [200.0, 200.0]),
        "second": ([16, 64], [3016.0, 3064.0]),
        "peer:torch": ([16, 64], [1500.0, 1500.0]),
    }
    assert axes.get_xscale() == "log"
    assert {"copy", "first", "second", "torch"} == set(words(axes))
    colors = {line.get_label(): line.get_color() for line in axes.get_lines()}
    assert [name for name in colors if colors[name] == style.LIGHT.accent] == ["second"], "the best has the accent"


def test_shapes_without_a_scale_stand_side_by_side(drawn):
    axes = drawn(report((8, 16), (32, 4), (5, 7)))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["32x4", "5x7", "8x16"]
    assert axes.get_xscale() == "linear"


def test_of_many_rungs_the_best_and_the_most_different_have_colours(drawn):
    result = report((8, 16), (8, 32))
    for shape in ((8, 16), (8, 32)):
        result["rows"] += [row(f"alike{n}", 10 + n, shape, 201.0 + n) for n in range(4)]
        result["rows"] += [row(f"step{n}", 20 + n, shape, 300.0 * 2**n) for n in range(4)]
    named = set(words(drawn(result))) - {"copy", "torch"}
    assert named.issuperset({"second", "step3"})
    assert len([name for name in named if name.startswith("alike") or name == "first"]) == 1, named
    axes = drawn(result, variants=["alike2"])
    assert set(words(axes)) == {"copy", "torch", "alike2"}
    (legend,) = axes.figure.legends
    explained = [text.get_text() for text in legend.get_texts()]
    assert explained == ["other libraries", "cudakit, other variants"], "lines have no label"


def test_a_shape_can_be_chosen_for_the_bars(drawn, tmp_path):
    axes = drawn(report((8, 16), (8, 64)), kind="ladder", shape=(8, 64))
    assert axes.patches[1].get_width() == 3064.0
    with pytest.raises(Refused, match="no row of that shape"):
        plots.plot(report((8, 16)), str(tmp_path / "out.png"), kind="ladder", shape=(1, 1))


def test_several_families_have_a_picture_each(tmp_path):
    result = report((8, 16))
    result["rows"] += [one | {"family": "sum"} for one in result["rows"]]
    written = plots.plot(result, str(tmp_path / "bench.png"))
    assert written == [str(tmp_path / "bench_softmax.png"), str(tmp_path / "bench_sum.png")]
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("bench_softmax.png", "bench_sum.png"))


def test_names_at_the_ends_of_lines_do_not_lie_on_each_other():
    assert style.spread([10.0, 50.0], 5) == [10.0, 50.0], "labels with enough space stay"
    places = style.spread([10.0, 11.0, 10.5, 40.0, 10.2], 5)
    assert sorted(places) == sorted(set(places))
    ordered = sorted(places)
    assert min(b - a for a, b in itertools.pairwise(ordered)) >= 5 - 1e-9
    assert [sorted(places).index(place) for place in places] == [0, 3, 2, 4, 1], "labels are in the order of the lines"


def test_a_picture_needs_rows_and_matplotlib(monkeypatch, tmp_path):
    for rows in ([], [row("first", 1, (8, 16), None, ok=None)], [row("cpu", None, (8, 16), 3.0)]):
        for kind in plots.KINDS if not rows or rows[0]["rung"] else ["ladder"]:
            with pytest.raises(Refused, match="no row of the report is correct and has GB/s"):
                plots.plot({**report(), "rows": rows}, str(tmp_path / "out.png"), kind=kind)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Refused, match=r"cudakit\[plot\]"):
        plots.plot(report((8, 16)), str(tmp_path / "out.png"))


def test_the_command_draws_what_was_measured_before(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text(json.dumps(report((8, 16), (8, 64))))
    assert command_line.main(["draw", "x.json", "--plot", "x.png", "--kind", "ladder", "--shape", "8x64"]) == 0
    assert capsys.readouterr().out == "x.png\n"
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert command_line.main(["draw", "absent.json", "--plot", "x.png"]) == cli.EXIT_REFUSED
    assert "absent.json" in capsys.readouterr().err
    assert command_line.main(["draw", "x.json", "--plot", "x.xyz"]) == cli.EXIT_REFUSED
    assert "does not write .xyz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rows": [{"kernel": "softmax", "metrics": {}}]}, "it has no family, variant, rung, shape, dtype, ok"),
        ({"rows": None, "cases": 5}, "it has no family"),
        ({"ncu": "2025.3"}, "cudakit profile --import"),
    ],
)
def test_json_of_something_else_is_refused(more, said, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({**report((8, 16)), **more}))
    assert command_line.main(["draw", "x.json", "--plot", "x.png"]) == cli.EXIT_REFUSED
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_a_variant_that_the_report_lacks_is_refused(tmp_path):
    with pytest.raises(Refused, match="has no seventh; there are cpu, first, second"):
        plots.plot(report((8, 16), (8, 64)), str(tmp_path / "x.png"), variants=["second", "seventh"])


def test_dollars_in_an_idea_are_no_mathematics(drawn):
    assert drawn({**report(), "rows": [row("first", 1, (8, 16), 2.0, idea=r"from $x^^ to $\frac")]})


def test_what_was_measured_is_kept_where_there_is_nothing_to_draw(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def refuse(*_, **__):
        raise Refused("there is nothing to draw")

    monkeypatch.setattr(plots, "plot", refuse)
    command = ["bench", "vector_add", "--device", "sim", "--shapes", "33", "--variants", "vector_add"]
    assert command_line.main([*command, "--json", "x.json", "--plot", "x.png"]) == cli.EXIT_REFUSED
    said = capsys.readouterr()
    assert "nothing to draw" in said.err
    assert "vector_add 33" in said.out
    assert json.loads((tmp_path / "x.json").read_text())["rows"]


# Committed pictures ---------------------------------------------------------------------------------------------------

H200 = ROOT / "profiles" / "h200"
DRAWN = {
    "ladder_softmax": ("bench", "ladder", None),
    "ladder_gemm": ("gemm", "ladder", None),
    "ladder_gemm_half": ("gemm_half_ladder", "ladder", (4096, 4096, 4096)),
    "ladder_attention": ("attention_ladder", "ladder", None),
    "ladder_sum": ("sum_ladder", "ladder", (8192, 8192)),
    "ladder_vector_add": ("vector_add", "ladder", (10_000_000,)),
    "gemm": ("gemm", None, None),
    "softmax": ("softmax", None, None),
    "softmax_vs_n": ("softmax_vs_n", None, None),
}


def overlapping(figure):
    """Return pairs of overlapping texts, and texts that extend beyond the picture."""
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if text.get_rotation() == 0]  # the box of a slanted text is mostly empty
    # An axis creates ticks beyond its ends and does not draw them.
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    # Leave out the lines that lead to some names; an annotation's extent includes them.
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts if text not in hidden]
    page = figure.bbox
    beyond = [text for text, box in boxes if box.x0 < -1 or box.y0 < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1]
    over = [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1.5
    ]
    return beyond, over


@pytest.mark.parametrize("name", DRAWN)
def test_a_committed_picture_shows_its_json_and_no_text_overlaps(name, monkeypatch, tmp_path):
    source, kind, shape = DRAWN[name]
    result = outputs.load(H200 / f"{source}.json")
    result["rows"] = [one for one in result["rows"] if one["family"] == result["rows"][0]["family"]]
    kept = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda made, path: (kept.append(made), save(made, path)))
    plots.plot(result, str(tmp_path / f"{name}.png"), kind=kind, shape=shape)
    assert same_picture(tmp_path / f"{name}.png", H200 / f"{name}.png"), "draw it again"
    assert overlapping(kept[0]) == ([], [])
    with Image.open(H200 / f"{name}.png") as light, Image.open(H200 / f"{name}.dark.png") as dark:
        assert light.size == dark.size
        assert dark.convert("L").getpixel((0, 0)) < 40 < 250 < light.convert("L").getpixel((0, 0))


def same_picture(one, other):
    """Return whether two pictures have the same size and nearly the same pixels; releases of matplotlib
    draw letters differently."""
    pixels, others = (numpy.asarray(Image.open(path).convert("L"), float) for path in (one, other))
    if abs(pixels.shape[0] - others.shape[0]) > 20 or pixels.shape[1] != others.shape[1]:
        return False
    height = min(len(pixels), len(others))
    return numpy.mean(abs(pixels[:height] - others[:height]) > 60) < 0.05


def test_of_many_variants_those_that_improve_are_shown_and_the_rest_counted(drawn):
    result = report((8, 16))
    result["rows"] += [row(f"slower{n}", 10 + n, (8, 16), 100.0) for n in range(4)]
    result["rows"] += [row(f"better{n}", 20 + n, (8, 16), 3020.0 * 1.2 ** (n + 1)) for n in range(12)]
    axes = drawn(result)
    said = set(words(axes))
    assert said.issuperset({"first", "better11"}), "the first and the best, without numbers since some are missing"
    assert not [text for text in said if "slower" in text]
    assert len(axes.patches) == 7 + 1, "seven of ours, and a peer"
    (legend,) = axes.figure.legends
    assert "11 more variants not shown" in [text.get_text() for text in legend.get_texts()]
    named = words(drawn(result, kind="ladder", variants=["slower1", "better0"]))
    assert {"slower1", "better0"} <= set(named)


def test_copies_of_streams_share_a_lane_per_engine(monkeypatch, tmp_path):
    spans = []
    for chunk in range(4):
        at, lane = 0.002 * chunk, f"stream {chunk % 2}"
        spans += [
            pipeline.ChunkSpan(lane, "h2d", chunk, at - 0.001, at + 0.002),  # one millisecond of it is waiting
            pipeline.ChunkSpan(lane, "compute", chunk, at + 0.002, at + 0.0025),
            pipeline.ChunkSpan(lane, "d2h", chunk, at + 0.0025, at + 0.004),
        ]
    link = Link(h2d=50e9, d2h=50e9, both=40e9)
    done = pipeline.PipelineReport(
        ["gpu:0"], 2, 1, 4, 0, 0, bytes_in=10**9, bytes_out=10**9, seconds=0.05, link=link, spans=spans
    )
    kept = []
    monkeypatch.setattr(style, "save", lambda made, path: kept.append(made))
    plots.timeline(spans, str(tmp_path / "x.png"), "a pipeline", done)
    (axes,) = kept[0].axes
    assert [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()] == [
        "copy engine host to device", "kernels", "copy engine device to host",
    ]  # fmt: skip
    copies = axes.collections[0].get_paths()
    ends = [(path.get_extents().x0, path.get_extents().x1) for path in copies]
    assert all(left[1] <= right[0] + 1e-9 for left, right in itertools.pairwise(ends)), "one copy at a time"
    assert len({tuple(color) for color in axes.collections[0].get_facecolors()}) == 2, "one colour per stream"
    assert [text.get_text() for text in kept[0].legends[0].get_texts()] == ["stream 0", "stream 1"]
    assert "50 % of the link's measured bandwidth" in " ".join(text.get_text() for text in kept[0].texts)
    assert overlapping(kept[0]) == ([], [])


def test_the_first_copy_that_is_drawn_does_not_include_its_wait(monkeypatch, tmp_path):
    spans = [pipeline.ChunkSpan(f"stream {at % 2}", "h2d", at, at - 1.0, at + 1.0) for at in range(1, 100)]
    kept = []
    monkeypatch.setattr(style, "save", lambda made, path: kept.append(made))
    plots.timeline(spans, str(tmp_path / "x.png"), "a pipeline of 100 chunks")
    widths = [path.get_extents().width for path in kept[0].axes[0].collections[0].get_paths()]
    assert widths == pytest.approx([1000.0] * len(widths)), "milliseconds"
