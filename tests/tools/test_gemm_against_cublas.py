"""examples/gemm_against_cublas.py: its draws, checks and tables."""

from __future__ import annotations

import json
import math
import types

import numpy as np
import pytest
from against_cublas import (
    SIZES,
    arrays,
    cases,
    modes,
    result_of,
    run,
    tables,
    ways,
)

from cudakit.families import gemm_grouped
from cudakit.families.gemm_half import FAMILY

# Draws and cases ------------------------------------------------------------------------------------------------------


def test_drawn_shapes_are_those_that_the_page_describes():
    shapes = cases.drawn(400, 20261128)
    expected = np.exp(np.random.default_rng(20261128).uniform(math.log(16), math.log(16384), (400, 3)))
    assert shapes == [tuple(int(x) for x in row) for row in np.rint(expected)]
    assert cases.drawn(400, 1) != shapes
    extents = np.array(shapes)
    assert extents.min() >= 16
    assert extents.max() <= 16384
    for low in (16, 64, 256, 1024, 4096):  # equal parts of the logarithm, 240 each within their noise
        assert 190 < ((extents >= low) & (extents < 4 * low)).sum() < 290


def test_traffic_counts_a_float32_output_as_four_bytes():
    case = cases.Case((3, 5, 7), "float16")
    assert (case.flops, case.traffic, case.mode) == (210, 2 * (21 + 35 + 15), "")
    wide = cases.Case((3, 5, 7), "float16", "tn", "float32", (1, 0, 2))
    assert (wide.traffic, wide.mode) == (2 * (21 + 35) + 60, "tn float32 out rows + 1,0,2")


def test_rows_per_group_are_those_that_the_page_describes():
    shape = (8, 16384, 4096, 7168)
    found = {case.mode: case for case in cases.grouped(shape, 20261128)}
    assert list(found) == ["drawn", "drawn masked", "equal", "equal masked"]
    expected = np.random.default_rng(20261128).integers(256, 4097, 8)
    assert found["drawn"].rows == found["drawn masked"].rows == tuple(expected)
    assert found["drawn"].shape == (8, expected.sum(), 4096, 7168)
    assert found["equal"].rows == (2048,) * 8
    assert found["equal"].shape == shape
    assert cases.grouped(shape, 1)[0].rows != found["drawn"].rows
    for seed in range(50):
        rows = cases.grouped((64, 64 * 16, 8, 8), seed)[0].rows
        assert set(rows).issubset(range(2, 33))
    assert min(cases.grouped((64, 64, 8, 8), 0)[0].rows) == 1


def test_the_work_of_a_group_is_that_of_its_own_rows():
    for case in cases.grouped((2, 6, 5, 7), 3, dtype="float16", out_dtype="float32"):
        rows = case.shape[1]
        assert rows == sum(case.rows)
        assert (case.flops, case.traffic) == (2 * rows * 35, 2 * (rows * 7 + 2 * 35) + 4 * rows * 5)
        assert case.flops == case.one.flops
    masked = cases.GroupedCase((2, 5, 5, 7), rows=(4, 1), capacity=6)
    assert (masked.sizes.tolist(), masked.starts.tolist(), masked.held) == ([4, 1], [0, 6], 12)
    contiguous = cases.GroupedCase((2, 5, 5, 7), rows=(4, 1))
    assert (contiguous.sizes.tolist(), contiguous.starts.tolist(), contiguous.held) == ([0, 4, 5], [0, 4], 5)


def test_cancelling_data_has_small_sums(sim):
    made = arrays.OwnArrays(sim, sim.default_stream, 0)
    for k in (64, 65):
        a, b = cases.cancelling(made, 8, 9, k)
        pairs = k // 2 * 2
        assert np.abs(a[:, :pairs] @ b[:pairs]).max() < 0.05 * math.sqrt(k)
        assert np.abs(a).mean() > 0.5
    a, _ = cases.large_row(made, 9, 3, 500)
    assert np.abs(a).mean(axis=1).argmax() == 4


# On the simulated device ----------------------------------------------------------------------------------------------


def test_every_layout_dtype_and_padding_is_multiplied_and_checked():
    arguments = ["--shapes", SIZES, "--layouts", "nn,nt,tn,tt", "--dtypes", "bfloat16,float16", "--leading", "1,3,5"]
    for out in ("", "float32"):
        rows = result_of(run(*arguments, "--out-dtype", out))["rows"]
        ours = [row for row in rows if not row["variant"].startswith("peer:")]
        assert len({(row["dtype"], row["mode"], *row["shape"]) for row in ours}) == len(ours) == 16
        assert all(row["ok"] and row["rung"] for row in ours)
        unknown = {row["variant"] for row in ours} - {variant.name for variant in FAMILY}
        assert not unknown, "named after the variant that ran"
        assert {row["skipped"] for row in rows if row not in ours} == {"it needs a GPU"}


def test_all_tables_in_one_run(tmp_path):
    page = tmp_path / "page.md"
    asked = ["--drawn", "2", "--errors", "--epilogue", "--calls", "--grouped"]
    done = run(*asked, "--shapes", "24x40x33", "--markdown", str(page))
    result = result_of(done)
    ours = [row for row in result["rows"] if not row["variant"].startswith("peer:")]
    counts = {name: sum(row["table"] == name for row in ours) for name in modes.MODES}
    assert counts == {"shapes": 0, "drawn": 2, "errors": 8, "epilogue": 4, "calls": 1, "grouped": 4}
    assert all(row["ok"] for row in ours)
    assert all(row["time_ms"] is None and row["call_us"] is None for row in result["rows"])
    titles = [title for name, (title, _) in tables.TABLES.items() if name != "shapes"]
    assert all(title in done.stderr and f"**{title}**" in page.read_text() for title in titles)
    errors = {(row["data"], row["mode"]): row for row in ours if row["table"] == "errors"}
    for kind in cases.DATA:
        narrow, wide = errors[kind, kind], errors[kind, f"float32 out {kind}"]
        assert 0 < wide["mean_abs_error"] < narrow["mean_abs_error"] < narrow["max_abs_error"]
    worst = max(("normal", "large_row"), key=lambda kind: errors[kind, kind]["max_abs_error"])
    assert worst == "large_row"


def test_grouped_products_are_checked_in_both_forms():
    arguments = ["--grouped", "3x96x40x32,2x10x33x17", "--dtypes", "bfloat16,float16"]
    for out in ("", "float32"):
        result = result_of(run(*arguments, "--out-dtype", out, "--seed", "7"))
        rows = result["rows"]
        assert {(row["table"], row["family"]) for row in rows} == {("grouped", "gemm_grouped")}
        ours, one, torch = (
            [row for row in rows if row["variant"].startswith(name)] for name in ("grouped", "peer:gemm", "peer:torch")
        )
        assert len({(*row["shape"], row["dtype"], row["mode"]) for row in ours}) == len(ours) == len(one) == 16
        assert all(row["ok"] for row in ours + one)
        assert {row["variant"] for row in ours}.issubset(variant.name for variant in gemm_grouped.FAMILY)
        assert {row["skipped"] for row in torch} == {"it needs a GPU"}
        for row, other in zip(ours, one, strict=True):
            assert (row["shape"], row["mode"]) == (other["shape"], other["mode"])
            assert other["idea"].startswith(f"cudakit.ops.gemm, one product of {sum(row['group_rows'])} rows: ")
            assert other["idea"].rpartition(" ")[2] in {variant.name for variant in FAMILY}
            groups, rows_in_all, *_ = row["shape"]
            assert (len(row["group_rows"]), sum(row["group_rows"])) == (groups, rows_in_all)
            assert bool(row["capacity"]) == ("masked" in row["mode"])
    first = result["rows"][0]["group_rows"]
    assert first == np.random.default_rng(7).integers(4, 65, 3).tolist()


def test_grouped_products_alone_make_one_table_with_their_rows(tmp_path):
    page = tmp_path / "page.md"
    done = run("--grouped", "--markdown", str(page))
    assert {row["table"] for row in result_of(done)["rows"]} == {"grouped"}
    for text in (done.stderr, page.read_text()):
        assert "3x96x40x32 equal: 32, 32, 32 rows" in text
        assert "3x96x40x32 equal masked: memory for 64 rows per group" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grouped", "8x64x64"], "--grouped 8x64x64: write GROUPSxROWSxNxK, with extents of at least 1"),
        (["--grouped", "8x0x64x64"], "--grouped 8x0x64x64: write GROUPSxROWSxNxK, with extents of at least 1"),
        (["--grouped", "8x100x64x64"], "100 rows cannot be divided into 8 equal groups; write a multiple of 8 rows"),
        (["--grouped", "1025x2050x8x8"], "1025 groups; at most 1024 are supported"),
        (["--grouped", "--layouts", "nn,nt"], "--layouts nn,nt: --grouped supports only nn; leave out --layouts"),
        (["--grouped", "--leading", "0,8,0"], "--leading 0,8,0: --grouped supports only 0,0,0; leave out --leading"),
        (["--grouped", "--variant", "pipelined"], "--variant pipelined: --grouped supports only auto"),
        (["--grouped", "--peers", "torch,compile"], "--peers torch,compile: --grouped supports only torch"),
        (["--layouts", "nx"], "--layouts nx: unknown; choose from nn, nt, tn, tt"),
        (["--dtypes", "float32"], "--dtypes float32: unknown; choose from float16, bfloat16"),
        (["--peers", "cutlass"], "choose from torch, compile, triton"),
        (["--variant", "fastest"], "--variant fastest: unknown; choose from auto, wmma"),
        (["--leading", "1,2"], "write three numbers"),
        (["--shapes", "2x3x4x5"], "write N or MxNxK"),
        (["--rest-ms", "no"], "write milliseconds"),
        (["--markdown", "/no/such/folder/x.md"], "does not exist"),
    ],
)
def test_impossible_requests_are_refused(arguments, words, monkeypatch):
    monkeypatch.setattr(ways, "ops", None)  # nothing is launched
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def broken(change):
    """cudakit.ops, with a change of gemm's result on the host."""
    real = ways.ops

    def gemm(a, b, out, *, stream, **options):
        return overwritten(real.gemm(a, b, out, stream=stream, **options), stream, change)

    return types.SimpleNamespace(gemm=gemm)


def one_element(host):
    host[7, 11] += 1


def nothing_written(host):
    host[-1] = np.nan


@pytest.mark.parametrize("change", [one_element, nothing_written])
def test_a_wrong_product_is_reported_and_not_hidden_by_the_table(monkeypatch, change):
    monkeypatch.setattr(ways, "ops", broken(change))
    for table in ("--errors", "--calls"):
        done = run("--shapes", "24x40x33", table)
        assert done.returncode == 1, done.stderr
        assert "NO [1]" in done.stderr
        assert "in the sample, it is (" in done.stderr


def overwritten(array, stream, change):
    """Make `change` to an array, by its copy in host memory."""
    host = array.numpy(stream)
    change(host)
    return array.copy_from(host, stream)


def first_row_of_a_group(host):
    host[..., 0, 3] += 1


def row_after_the_last_group(host):
    host[-1, -1, 5] = 0


@pytest.mark.parametrize(
    ("change", "forms"), [(first_row_of_a_group, {"", "masked"}), (row_after_the_last_group, {"masked"})]
)
def test_a_wrong_group_is_reported(monkeypatch, change, forms):
    real = ways.ops

    def gemm_grouped(a, b, out, *, stream, **options):
        result = real.gemm_grouped(a, b, out, stream=stream, **options)
        return overwritten(result, stream, change) if ("masked" if a.ndim == 3 else "") in forms else result

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=real.gemm, gemm_grouped=gemm_grouped))
    done = run("--grouped", "3x96x40x32")
    assert done.returncode == 1, done.stderr
    wrong = {row["mode"]: row["variant"] for row in json.loads(done.stdout)["rows"] if row["ok"] is False}
    expected = [f"{kind} {form}".strip() for kind in ("drawn", "equal") for form in sorted(forms)]
    assert wrong == dict.fromkeys(expected, "grouped")


def test_groups_of_the_wrong_matrix_are_reported(monkeypatch):
    real = ways.ops

    def shifted(a, b, out, **options):
        b.copy_from(np.roll(b.numpy(options["stream"]), 1, axis=0), options["stream"])
        return real.gemm_grouped(a, b, out, **options)

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=real.gemm, gemm_grouped=shifted))
    done = run("--grouped", "3x96x40x32")
    rows = json.loads(done.stdout)["rows"]
    assert [row["ok"] for row in rows if row["variant"] == "grouped"] == [False] * 4


def test_a_wrong_product_of_all_rows_is_reported(monkeypatch):
    real = ways.ops
    monkeypatch.setattr(ways, "ops", broken(nothing_written))
    ways.ops.gemm_grouped = real.gemm_grouped
    done = run("--grouped", "3x96x40x32")
    assert done.returncode == 1, done.stderr
    assert {row["variant"] for row in json.loads(done.stdout)["rows"] if row["ok"] is False} == {"peer:gemm"}
    assert "NO [1]" in done.stderr


# Tables ---------------------------------------------------------------------------------------------------------------


def figures(table, variant, ms, shape=(64, 64, 64), mode="", **others):
    """A row of the JSON."""
    call = others.pop("call", None)
    row = {"table": table, "variant": variant, "shape": shape, "dtype": "bfloat16", "mode": mode, "family": "gemm_half"}
    row |= {"ok": True, "skipped": None, "why": None, "sm_mhz": 1980.0, "watts": None, "of_copy": 0.5, "gbps": 900.0}
    row |= {"time_ms": None if ms is None else {"median": ms}, "tflops": None if ms is None else 1 / ms}
    row |= {"call_us": None if call is None else {"median": call}, "of_ceiling": None, "of_plain": None}
    row |= {"group_rows": (), "capacity": 0}
    return row | {"mean_abs_error": None, "max_abs_error": None} | others


def test_products_are_summed_up_by_the_geometric_mean_and_the_least():
    rows = [
        figures("drawn", "packed", 1.0, (16, 32, 48), of_ceiling=2.0),
        figures("drawn", "peer:torch", 2.0, (16, 32, 48), of_ceiling=1.0),
        figures("drawn", "pipelined", 1.0, of_ceiling=0.5),
        figures("drawn", "peer:torch", 0.5, of_ceiling=1.0),
        figures("drawn", "pipelined", None, (9, 9, 9)),
    ]
    summary = tables.summaries({"rows": rows})["drawn"]
    assert summary == {"count": 2, "geometric_mean": 1.0, "least": 0.5, "least_at": "64x64x64 bfloat16"}
    headings, cells = tables.product_table(tables.lines_of({"rows": rows})["drawn"])
    first = dict(zip(headings, cells[0], strict=True))
    assert (first["TFLOP/s"], first["cuBLAS"], first["of cuBLAS"]) == ("1", "0.5", "2.000")
    assert (first["variant"], first["MHz, ours / cuBLAS"], first["W"]) == ("packed", "1980 / 1980", "-")
    assert cells[2][3] == "-"


def test_epilogues_are_compared_with_the_plain_product_and_with_torch():
    rows = [
        figures("epilogue", "pipelined", 1.02, mode="gelu", of_plain=1.02),
        figures("epilogue", "peer:torch", 2.04, mode="gelu"),
        figures("epilogue", "peer:torch-compile", 1.53, mode="gelu"),
    ]
    headings, (cells,) = tables.epilogue_table(tables.lines_of({"rows": rows})["epilogue"])
    found = dict(zip(headings, cells, strict=True))
    assert (found["of plain"], found["torch / ours"], found["torch-compile / ours"]) == ("1.02", "2.000", "1.500")


def test_grouped_products_are_compared_with_one_product_and_with_a_call_per_group():
    shape, columns = (2, 64, 32, 48), {"drawn": (1.05, 1.0, 2.1), "drawn masked": (1.02, 1.0, 0.51)}
    rows = []
    for mode, (ours, one, theirs) in columns.items():
        of = {"shape": shape, "mode": mode, "group_rows": (40, 24), "capacity": 64 * ("masked" in mode)}
        rows += [
            figures("grouped", "grouped", ours, **of, of_plain=ours / one, of_ceiling=theirs / ours),
            figures("grouped", "peer:gemm", one, **of | {"sm_mhz": 1700.0}),
            figures("grouped", "peer:torch", theirs, **of | {"sm_mhz": 1500.0}),
        ]
    result = {"rows": rows}
    headings, cells = tables.grouped_table(tables.lines_of(result)["grouped"])
    drawn, masked = (dict(zip(headings, line, strict=True)) for line in cells)
    assert (drawn["ms"], drawn["one product, ms"], drawn["cuBLAS per group, ms"]) == ("1.05", "1", "2.1")
    assert (drawn["ours / one"], drawn["cuBLAS / ours"], drawn["variant"]) == ("1.050", "2.000", "grouped")
    assert (masked["ours / one"], masked["cuBLAS / ours"]) == ("1.020", "0.500")
    assert drawn["MHz, ours / one / cuBLAS"] == "1980 / 1700 / 1500"
    summary = tables.summaries(result)["grouped"]
    assert summary == {
        "count": 2, "geometric_mean": pytest.approx(1), "least": 0.5, "least_at": "2x64x32x48 bfloat16 drawn masked",
        "most_of_one": 1.05, "most_of_one_at": "2x64x32x48 bfloat16 drawn",
    }  # fmt: skip
    assert tables.notes_of({**result, "summaries": {"grouped": summary}}, "grouped") == [
        "2x64x32x48 drawn: 40, 24 rows",
        "2x64x32x48 drawn masked: memory for 64 rows per group",
        "ours / one product: at most 1.050, at 2x64x32x48 bfloat16 drawn",
        "of cuBLAS: geometric mean 1.000 of 2, least 0.500 at 2x64x32x48 bfloat16 drawn masked",
    ]


def test_wrong_rows_and_differences_of_calls_are_in_the_table():
    rows = [
        figures("calls", "pipelined", None, call=6.5),
        figures("calls", "peer:torch", None, call=9.0, ok=False, why="element 3"),
    ]
    _, (cells,) = tables.call_table(tables.lines_of({"rows": rows})["calls"])
    assert cells[1:4] == ["6.5", "9", "-2.50"]
    assert cells[-1] == "NO: peer:torch: element 3"
