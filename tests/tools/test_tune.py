"""`cudakit tune` on a user's family, from the declaration to the call that uses the result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import Device, tuned
from cudakit.__main__ import main
from cudakit.compare import bounds
from cudakit.families import gemm, gemm_tiles
from cudakit.family import find
from cudakit.measure.bench import Selection
from cudakit.measure.timing import Spread
from cudakit.tuning.bench import FamilyBench
from cudakit.tuning.run import Settings, TuneReport, tune

KERNELS = """
__global__ void naive(const float* x, float* out, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) out[col * rows + row] = x[row * cols + col];
}

// PAD 2 leaves the last line of a tile out, PAD 3 reads past the end of x, PAD 4 does not compile.
template <int TILE, int ROWS, int PAD>
__global__ void __launch_bounds__(512) tiled(const float* x, float* out, int rows, int cols) {
    static_assert(PAD != 4, "no padding of 4");
    __shared__ float tile[TILE][TILE + PAD];
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    for (int i = threadIdx.y; i < TILE; i += ROWS)
        if ((top + i < rows && left + threadIdx.x < cols) || PAD == 3)
            tile[i][threadIdx.x] = x[(top + i) * cols + left + threadIdx.x + (PAD == 3) * rows * cols];
    __syncthreads();
    for (int i = threadIdx.y; i < TILE - (PAD == 2); i += ROWS)
        if (left + i < cols && top + threadIdx.x < rows)
            out[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][i];
}
"""
DECLARED = """
from cudakit import Family, Launch, ceil_div

FAMILY = Family("{name}", reference=lambda x: x.T, inputs={{"x": "float32[rows, cols]"}}, shapes=((32, 32),){more})


@FAMILY.variant("turn.cu")
def naive(p):
    return Launch((ceil_div(p.cols, 32), ceil_div(p.rows, 8)), (32, 8))


@FAMILY.variant("turn.cu", tune={{"tile": (8, 16), "rows": (4, 8, 16), "pad": {pads}}})
def tiled(p, tile=8, rows=8, pad=0):
    if tile % rows:
        return "tile must be a multiple of rows"
    entry = f"tiled<{{tile}}, {{rows}}, {{pad}}>"
    return Launch((ceil_div(p.cols, tile), ceil_div(p.rows, tile)), (tile, rows{deep}), entry=entry)
"""


class Project:
    """A user's folder with its own cache. Each test declares a family with another name: compiled kernels are shared,
    tuned configurations are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def declare(self, name: str, pads: Sequence[int] = (0,), more: str = "", deep: str = "") -> str:
        """Write the family `name`; return its command-line argument. more: other fields. deep: threads along z."""
        (self.folder / "turn.cu").write_text(KERNELS)
        file = self.folder / f"{name}.py"
        file.write_text(DECLARED.format(name=name, pads=tuple(pads), more=more, deep=deep))
        return f"{file}:FAMILY"

    def tune(self, target: str, *flags: str) -> tuple[int, dict[str, Any]]:
        """Return the exit status and the JSON of `cudakit tune` on the simulated device."""
        to = self.folder / "tuned.json"
        to.unlink(missing_ok=True)
        status = main(["tune", target, "--device", "sim", "--json", str(to), "--quiet", "--threads", "1", *flags])
        return status, json.loads(to.read_text()) if to.exists() else {}

    def launched(self, target: str, shape: tuple[int, int] = (32, 32), variant: str = "auto") -> str:
        """Return the name of the kernel that a call of the family launches on a new device, as in a new process."""
        family: Any = find.load(target)
        with Device("sim", fresh=True) as device:
            x = device.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
            with device.counters() as counters:
                y = family(x, variant=variant)
            assert np.array_equal(y.numpy(), x.numpy().T)
        (kernel,) = counters
        return str(kernel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tune")


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.delenv("CUDAKIT_TUNED", raising=False)
    return Project(folder)


def verdicts(tuning: dict[str, Any]) -> dict[int, set[str]]:
    """Return the verdicts of the tiled variant by padding."""
    found: dict[int, set[str]] = {}
    for trial in tuning["trials"]:
        if trial["variant"] == "tiled":
            found.setdefault(trial["configuration"]["pad"], set()).add(trial["verdict"])
    return found


def test_what_tune_finds_is_what_auto_launches(project: Project) -> None:
    target = project.declare("turn_kept")
    assert project.launched(target) == "tiled<8, 8, 0>"
    status, report = project.tune(target)
    assert status == 0
    (tuning,) = report["tunings"]
    best = tuning["best"]
    assert (tuning["unit"], tuning["tried"], tuning["tried_all"]) == ("slots", 6, True)
    assert tuning["refused"] == {"tile must be a multiple of rows": 1}
    assert best["cost"] == min(trial["cost"] for trial in tuning["trials"])
    assert tuning["usual"]["configuration"] == {"tile": 8, "rows": 8, "pad": 0}
    assert tuning["ratio"] > 1.0
    at = best["configuration"]
    kernel = f"tiled<{at['tile']}, {at['rows']}, {at['pad']}>"
    assert kernel != "tiled<8, 8, 0>"
    assert project.launched(target) == kernel
    assert project.launched(target, variant="tiled") == "tiled<8, 8, 0>"  # tuning affects only `auto`


def test_a_call_looks_again_after_a_tuning_in_its_process(project: Project) -> None:
    family: Any = find.load(project.declare("turn_again"))
    with Device("sim", fresh=True) as device:
        x, out = device.zeros((32, 32)), device.zeros((32, 32))
        with device.counters() as before:
            family(x, out=out)
        report = cudakit.tune(family, device, shapes=[(32, 32)], threads=1)
        with device.counters() as after:
            family(x, out=out)
    best = report.tunings[0].outcome.best
    assert best is not None
    at = best.configuration
    assert ([*before], [*after]) == (["tiled<8, 8, 0>"], [f"tiled<{at['tile']}, {at['rows']}, {at['pad']}>"])


def test_a_call_looks_for_a_choice_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    target = project.declare("turn_once")
    project.tune(target)
    looked: list[str] = []
    real = tuned.choices

    def counted(*given: Any, **options: Any) -> Any:
        looked.append("")
        return real(*given, **options)

    monkeypatch.setattr(tuned, "choices", counted)
    family: Any = find.load(target)
    with Device("sim", fresh=True) as device:
        x, other = device.zeros((32, 32)), device.zeros((32, 32))
        for _ in range(3):
            family(x)
            family(other)
        assert len(looked) == 1
        family(device.zeros((40, 32)))
        assert len(looked) == 2


def test_a_near_shape_takes_the_nearest_choice_and_a_far_one_does_not(project: Project) -> None:
    target = project.declare("turn_near")
    project.tune(target)
    assert project.launched(target, (40, 24)) == project.launched(target)
    assert project.launched(target, (8, 300)) == "tiled<8, 8, 0>"


def test_a_family_that_chooses_itself_is_overruled_for_tuned_shapes_alone(project: Project) -> None:
    target = project.declare("turn_choosing", more=', choose=lambda problem, arch: "naive"')
    assert project.launched(target) == "naive"
    project.tune(target)
    assert project.launched(target).startswith("tiled<")
    assert project.launched(target, (40, 24)) == "naive"


def test_a_choice_ends_with_its_source_and_can_be_switched_off_and_forgotten(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = project.declare("turn_changed")
    project.tune(target)
    tuned_kernel = project.launched(target)
    assert tuned_kernel != "tiled<8, 8, 0>"
    monkeypatch.setenv("CUDAKIT_TUNED", "ignore")
    assert project.launched(target) == "tiled<8, 8, 0>"
    monkeypatch.delenv("CUDAKIT_TUNED")
    source = project.folder / "turn.cu"
    source.write_text(KERNELS + "// changed\n")
    assert project.launched(target) == "tiled<8, 8, 0>"
    source.write_text(KERNELS)
    assert project.launched(target) == tuned_kernel
    assert main(["tune", target, "--forget"]) == 0
    assert "1 saved" in capsys.readouterr().out
    assert project.launched(target) == "tiled<8, 8, 0>"


def test_python_tunes_and_shows_as_the_command_does(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    family: Any = find.load(project.declare("turn_python"))
    report = cudakit.tune(family, "sim", shapes=[(32, 32)], threads=1)
    assert report.ok
    report.show()
    assert "COUNTS, NOT TIMES" in capsys.readouterr().out
    report.save(project.folder / "python.json")
    (tuning,) = json.loads((project.folder / "python.json").read_text())["tunings"]
    assert tuning["kept"] == str(report.tunings[0].kept)
    for wrong in ({"budget": 0}, {"search": "genetic"}):
        with pytest.raises(ValueError, match=r"budget|search"):
            cudakit.tune(family, "sim", **wrong)


def test_a_dry_run_keeps_nothing(project: Project) -> None:
    target = project.declare("turn_dry")
    status, report = project.tune(target, "--dry-run")
    assert status == 0
    assert report["tunings"][0]["kept"] is None
    assert project.launched(target) == "tiled<8, 8, 0>"


def test_wrong_and_faulting_configurations_fail_the_run_and_are_never_the_best(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    target = project.declare("turn_wrong", pads=(0, 2, 3, 4))
    to = project.folder / "t.json"
    status = main(["tune", target, "--device", "sim", "--threads", "1", "--json", str(to)])
    assert status == 1
    (tuning,) = json.loads(to.read_text())["tunings"]
    assert verdicts(tuning) == {0: {"measured"}, 2: {"wrong"}, 3: {"failed"}, 4: {"not compiled"}}
    assert tuning["best"]["configuration"].get("pad", 0) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "WRONG: tiled" in said
    assert "element (7, 0)" in said
    assert "turn.cu:9" in said  # the kernel's definition, because it does not store to the wrong element
    assert "FAILED: tiled" in said
    assert "turn.cu:15" in said
    assert "not compiled: tiled" in said
    assert "no padding of 4" in said


@pytest.mark.parametrize(("pad", "why"), [(2, "is wrong"), (3, "fails"), (4, "does not compile")])
def test_a_usual_choice_that_is_a_bug_is_named(
    project: Project, pad: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = project.declare(f"turn_usual_{pad}", pads=(0, pad))
    file = Path(target.removesuffix(":FAMILY"))
    file.write_text(file.read_text().replace("pad=0", f"pad={pad}"))
    assert main(["tune", target, "--device", "sim", "--threads", "1", "--variants", "tiled", "--dry-run"]) == 1
    assert f"auto's default, tiled, {why}; nothing was saved" in " ".join(capsys.readouterr().out.split())


def test_another_process_goes_on_after_a_fault_that_loses_the_device_for_good(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is not reopened after a fault; the test prevents the simulated device from being reopened."""
    target = project.declare("turn_lost", pads=(0, 3))
    monkeypatch.setattr(FamilyBench, "recover", lambda bench: "the device was lost")
    status, report = project.tune(target, "--shapes", "32x32,16x16")
    assert status == 1
    assert [tuning["shape"] for tuning in report["tunings"]] == [[32, 32], [16, 16]]
    for tuning in report["tunings"]:
        assert verdicts(tuning) == {0: {"measured"}, 3: {"failed"}}
        assert tuning["lost"] is None
        assert tuning["best"]["configuration"].get("pad", 0) == 0
        assert tuning["ratio"] > 0
    assert report["tunings"][0]["refused"]["failed before"] == 1


def test_a_configuration_that_only_does_not_compile_fails_nothing(project: Project) -> None:
    status, report = project.tune(project.declare("turn_static", pads=(0, 4)))
    assert status == 0
    assert verdicts(report["tunings"][0]) == {0: {"measured"}, 4: {"not compiled"}}


def test_a_block_that_cannot_be_resident_is_left_out_before_it_is_launched(project: Project) -> None:
    """__launch_bounds__ allows 16 x 4 x 8 threads, but not 16 x 8 x 8; no chip supports blocks of 16 x 16 x 8."""
    _, report = project.tune(project.declare("turn_bounds", pads=(0,), deep=", 8 if tile == 16 else 1"))
    (tuning,) = report["tunings"]
    unfit = [trial for trial in tuning["trials"] if trial["verdict"] == "unfit"]
    assert [trial["configuration"] for trial in unfit] == [{"tile": 16, "rows": 8, "pad": 0}]
    assert "at most 512 threads per block" in unfit[0]["why"]
    assert tuning["refused"]["more than 1024 threads per block"] == 1


def test_nothing_measured_is_status_2(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    target = project.declare("turn_nothing", pads=(0, 4))
    file = project.folder / "turn_nothing.py"
    file.write_text(file.read_text().replace("return Launch", 'return "not today"\n    return Launch'))
    status, _ = project.tune(target)
    assert status == 2
    assert "not today" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--variants", "tilde"], "no variant 'tilde'"),
        (["--dtypes", "float16"], "no dtype 'float16'"),
        (["--shapes", "4x4x4"], "has a shape of 2 extents"),
        (["--search", "genetic"], "invalid choice"),
        (["--budget", "0"], "not a number of seconds"),
        (["--seed", "-1"], "not a seed"),
        (["--shapes", "0x8"], "is empty"),
    ],
)
def test_a_wrong_request_is_refused(project: Project, flags: list[str], why: str, capsys: Any) -> None:
    target = project.declare("turn_refused")
    try:
        status = project.tune(target, *flags)[0]
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert why in capsys.readouterr().err


def test_a_bench_names_the_line_of_a_wrong_result_too(project: Project) -> None:
    """The report names the last store to the wrong element, even if the kernel stores all elements there."""
    (project.folder / "shift.cu").write_text(
        "__global__ void shift(const float* x, float* out, int n) {\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) out[i] = x[i] + (i == 7);\n"
        "}\n"
    )
    (project.folder / "shifting.py").write_text(
        "from cudakit import Family, Launch, ceil_div\n"
        "FAMILY = Family('shifting', reference=lambda x: x, inputs={'x': 'float32[n]'}, shapes=((64,),))\n"
        "@FAMILY.variant('shift.cu')\n"
        "def shift(p):\n"
        "    return Launch(ceil_div(p.n, 32), 32)\n"
    )
    family: Any = find.load(f"{project.folder / 'shifting.py'}:FAMILY")
    rows = [row for row in cudakit.bench(family, "sim").rows if row.subject.variant == "shift"]
    assert [row.ok for row in rows] == [False]
    why = str(rows[0].verdict.why)
    assert "last stored by kernel shift, block (0, 0, 0), thread (7, 0, 0)" in why
    assert "shift.cu:3" in why


# Timed by a planted clock ---------------------------------------------------------------------------------------------


class InstructionClock:
    """A clock for the simulated device: a launch takes one microsecond per warp instruction."""

    def __init__(self, device: Device, stream: Any) -> None:
        self.device, self.budget_ms, self.timed = device, 0.0, 0

    def time(self, launches: Sequence[Any]) -> Spread:
        with self.device.counters() as counters:
            launches[self.timed % len(launches)]()
        self.timed += 1
        return Spread.of([sum(each.instructions for each in counters.values()) / 1000])


@pytest.fixture
def timed(project: Project) -> Iterator[TuneReport]:
    family = find.load(project.declare("turn_timed"))
    with Device("sim", fresh=True) as device:
        settings = Settings(threads=1)
        clock: Any = InstructionClock
        yield tune(device, family, [(32, 32)], Selection(), settings, timer=clock)


def test_configurations_are_timed_in_turns_and_the_fastest_is_kept(timed: TuneReport) -> None:
    (found,) = timed.tunings
    assert found.unit == "ms"
    assert timed.ok
    best = found.outcome.best
    assert best is not None
    assert best.variant == "naive"  # the fewest instructions
    assert best.cost == min(trial.cost for trial in found.outcome.trials if trial.cost)
    assert found.kept is not None
    assert json.loads(found.kept.read_text())["unit"] == "ms"


def test_a_kernel_that_adds_to_its_output_is_timed_on_outputs_with_their_initial_values(project: Project) -> None:
    """The simulated device would report reads of uninitialised memory."""
    (project.folder / "count.cu").write_text(
        "__global__ void count(const unsigned char* x, unsigned* counts, int n) {\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) atomicAdd(&counts[x[i] % 16], 1u);\n"
        "}\n"
    )
    (project.folder / "counting.py").write_text(
        "import numpy as np\n"
        "from cudakit import Family, Launch, ceil_div\n"
        "FAMILY = Family('counting', reference=lambda x: np.bincount(x % 16, minlength=16), initial=0,\n"
        "                inputs={'x': 'uint8[n]'}, outputs={'counts': 'uint32[16]'}, shapes=((500,),))\n"
        "@FAMILY.variant('count.cu', tune={'block': (32, 64)})\n"
        "def count(p, block=32):\n"
        "    return Launch(ceil_div(p.n, block), block)\n"
    )
    clock: Any = InstructionClock
    with Device("sim", fresh=True) as device:
        family = find.load(f"{project.folder / 'counting.py'}:FAMILY")
        report = tune(device, family, [(500,)], settings=Settings(threads=1), timer=clock)
    assert report.ok
    assert [trial.verdict for trial in report.tunings[0].outcome.trials] == ["measured", "measured"]


# The built-in product -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 32, 16), (33, 55, 77)])
def test_the_tile_space_of_the_product_has_every_tile_of_the_tables(shape: tuple[int, ...]) -> None:
    """A search without the tables can find their tiles."""
    tables = {
        "pipelined": gemm_tiles.PLAIN_TILES,
        "sliced": gemm_tiles.SLICED_TILES,
        "stream_k": gemm_tiles.STREAM_TILES,
    }
    with Device("sim", fresh=True) as device:
        bench = FamilyBench(device, gemm.FAMILY, shape, "float32", variants=list(tables), cold=True)
        for variant, tiles in tables.items():
            for tile in tiles:
                rows = tile.bm // tile.warps_m // tile.tm
                at = {
                    "tm": tile.tm, "tn": tile.tn, "warps_m": tile.warps_m, "warps_n": tile.warps_n, "rows": rows,
                    "stages": tile.stages, "resident": tile.resident, "slices": tile.slices,
                }  # fmt: skip
                names = bench.space.axes[variant].names
                point = bench.space.point(variant, {name: at[name] for name in names})
                assert bench.space.refusal(point) is None
                (launch, *_) = bench.variant(point).launches(bench.case.problem)
                assert f"<{tile.constants(variant != 'pipelined')}, " in launch.entry
        usual = [bench.space.refusal(point) for point in bench.usual]
        assert usual == ["the default configuration, which a cold start leaves out"] * 3
        bench.close()


@pytest.mark.parametrize(
    ("variant", "at"),
    [
        ("pipelined", {"tm": 4, "tn": 4, "warps_m": 1, "warps_n": 2, "rows": 8, "stages": 2, "resident": 4}),
        (
            "stream_k",
            {"tm": 4, "tn": 8, "warps_m": 2, "warps_n": 1, "rows": 4, "stages": 2, "resident": 1, "slices": 2},
        ),
    ],
)
def test_a_tile_that_no_table_has_is_right(variant: str, at: dict[str, int]) -> None:
    family = gemm.FAMILY
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((37, 45), np.float32), rng.standard_normal((45, 70), np.float32)
    with Device("sim") as device:
        inputs, out = [device.array(a), device.array(b)], device.empty((37, 70))
        family.launch(device, family[variant].configured(**at), inputs, out, device.default_stream)
        assert family.judge(out.numpy(), (a, b)).ok


# The fast check of a result -------------------------------------------------------------------------------------------


def test_bounds_pass_what_is_within_and_nothing_else() -> None:
    exact, allowed = np.array([1.0, -2.0, np.inf, 0.1]), np.array([1e-6, 1e-6, 0.0, 1e-8])
    low, high = bounds(exact, allowed, np.dtype(np.float32)) or ((), ())
    inside = np.float32([1.0 + 5e-7, -2.0, np.inf, 0.1])
    assert np.all((inside >= low) & (inside <= high))
    for place, value in ((0, 1.00001), (0, 0.99999), (1, np.nan), (2, 3e38), (3, 0.10001)):
        wrong = inside.copy()
        wrong[place] = value
        assert not np.all((wrong >= low) & (wrong <= high))
    assert bounds(exact, allowed, np.dtype(np.float16)) is None
    whole = np.array([1, 2])
    assert bounds(whole, 0.0, np.dtype(np.int32)) is not None


@pytest.mark.gpu
def test_a_gpu_times_a_users_transpose_and_keeps_the_best(gpu: Device, project: Project) -> None:
    target = project.declare("turn_gpu", pads=(0, 1))
    to = project.folder / "gpu.json"
    assert main(["tune", target, "--device", "gpu", "--shapes", "1024x1024", "--json", str(to), "--budget", "40"]) == 0
    (tuning,) = json.loads(to.read_text())["tunings"]
    assert tuning["unit"] == "ms"
    assert tuning["ratio"] > 0
    assert tuning["best"]["cost"] < max(trial["cost"] for trial in tuning["trials"])
    assert os.path.exists(tuning["kept"])
