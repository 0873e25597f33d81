"""The search for the best configuration, with planted costs, and the choices saved on disk."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cudakit import tuned
from cudakit.compile.cache import CacheWarning
from cudakit.errors import CompileError, ContextLost, CudakitError, DeviceFault
from cudakit.tuned import Choice, Situation
from cudakit.tuning.counts import Load
from cudakit.tuning.search import Search
from cudakit.tuning.space import Point, Space
from cudakit.tuning.trial import Trial, Unfit, Wrong
from cudakit.tuning.tuner import Outcome, Tuner

Cost = Callable[[str, Mapping[str, Any]], float]
TILED = {"tiled": {"tile": (8, 16, 32, 64), "rows": (1, 2, 4, 8), "stages": (1, 2, 3)}}


class Planted:
    """A workbench with planted costs; `end` makes a configuration fail. noise: the relative error of a measurement.
    dies: the device is not reopened after a fault."""

    def __init__(
        self, space: Space, cost: Cost, *, exact: bool = False, noise: float = 0.0, dies: bool = False
    ) -> None:
        self.space, self.planted, self.exact, self.noise, self.dies = space, cost, exact, noise, dies
        self.ends: dict[tuple[tuple[str, Any], ...], Exception] = {}
        self.compiled: list[Point] = []
        self.measured: list[Point] = []
        self.drift = 1.0  # every cost grows during the run, as on a clock that slows down
        self._rng = random.Random(1)

    def end(self, error: Exception, **configuration: Any) -> None:
        """Make one configuration end with an error."""
        self.ends[tuple(configuration.items())] = error

    def compile(self, point: Point) -> None:
        self.compiled.append(point)
        self._raise(point, CompileError)

    def check(self, trial: Trial) -> float:
        self._raise(trial.point, (Unfit, Wrong, CudakitError))
        return self._cost(trial.point)

    def cost(self, point: Point) -> float:
        self.measured.append(point)
        return self._cost(point)

    def race(self, points: Sequence[Point], effort: int) -> list[float]:
        return [self._cost(point) for point in points]

    def recover(self) -> str | None:
        return "the device was lost" if self.dies else None

    def _cost(self, point: Point) -> float:
        self.drift *= 1.001
        off = 1 + self.noise * self._rng.uniform(-1, 1)
        return self.planted(point.variant, self.space.configuration(point)) * off * (1.0 if self.exact else self.drift)

    def _raise(self, point: Point, kinds: Any) -> None:
        error = self.ends.get(tuple(self.space.configuration(point).items()))
        if isinstance(error, kinds) and (not isinstance(error, CompileError) or kinds is CompileError):
            raise error


def bowl(variant: str, configuration: Mapping[str, Any]) -> float:
    """A cost with one minimum: tile 32, rows 4, stages 2."""
    tile, rows, stages = configuration["tile"], configuration["rows"], configuration["stages"]
    return 1.0 + abs(tile - 32) / 16 + abs(rows - 4) / 2 + abs(stages - 2)


def taken(variant: str, configuration: Mapping[str, Any]) -> str | None:
    return None


def tuned_by(bench: Planted, **options: Any) -> Outcome:
    options.setdefault("threads", 2)
    return Tuner(bench.space, bench, **options).run()


def best_of(outcome: Outcome) -> dict[str, Any]:
    assert outcome.best is not None
    return dict(outcome.best.configuration)


# The search -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exhaustive", "random", "auto"])
def test_every_search_finds_the_best_of_a_small_space_and_tries_nothing_twice(kind: str) -> None:
    bench = Planted(Space(TILED, taken), bowl, noise=0.01)
    outcome = tuned_by(bench, search=kind)
    assert best_of(outcome) == {"tile": 32, "rows": 4, "stages": 2}
    assert outcome.tried_all
    assert len(outcome.trials) == 48 == len(set(bench.compiled))


def test_a_random_search_climbs_to_the_best_of_a_large_space_with_few_trials() -> None:
    tune = {"k": {name: tuple(range(12)) for name in "abcd"}}  # 20736 configurations

    def cost(variant: str, at: Mapping[str, Any]) -> float:
        return 1.0 + sum(abs(value - goal) for value, goal in zip(at.values(), (7, 2, 9, 4), strict=True))

    search = Search(Space(tune, taken), "random", seed=3)
    costs: list[float] = []
    for _ in range(400):
        point = search.ask()
        assert point is not None
        costs.append(cost("k", search.space.configuration(point)))
        search.tell(point, costs[-1])
    assert min(costs) == 1.0


def test_a_search_leaves_a_valley_that_is_not_the_deepest() -> None:
    tune = {"k": {"a": tuple(range(40)), "b": tuple(range(40))}}

    def cost(at: Mapping[str, Any]) -> float:
        floor, place = (1.0, 5) if at["a"] + at["b"] < 30 else (2.0, 30)
        return floor + (abs(at["a"] - place) + abs(at["b"] - place)) / 10

    found = []
    for seed in range(4):
        search = Search(Space(tune, taken), "random", seed=seed)
        costs = []
        for _ in range(600):
            point = search.ask()
            assert point is not None
            costs.append(cost(search.space.configuration(point)))
            search.tell(point, costs[-1])
        found.append(min(costs))
    assert found == [1.0, 1.0, 1.0, 1.0]


def test_the_same_seed_tries_the_same_configurations_and_another_one_does_not() -> None:
    tune = {"k": {"a": tuple(range(30)), "b": tuple(range(30))}}

    def way(seed: int) -> list[Point | None]:
        search = Search(Space(tune, taken), "random", seed=seed)
        points = []
        for number in range(40):
            point = search.ask()
            points.append(point)
            if point is not None:
                search.tell(point, float(number % 7))
        return points

    assert way(1) == way(1) != way(2)


def test_auto_is_random_unless_the_budget_suffices_for_all() -> None:
    space = Space(TILED, taken)
    hurried, patient = Search(space, "auto"), Search(space, "auto")
    hurried.pace(1.0, 10.0)
    patient.pace(0.1, 10.0)
    assert not hurried.lists_all
    assert patient.lists_all


def test_a_refused_configuration_is_never_compiled_and_its_reason_is_counted() -> None:
    def refuses(variant: str, at: Mapping[str, Any]) -> str | None:
        return "tile must be a multiple of 16" if at["tile"] % 16 else None

    bench = Planted(Space(TILED, refuses), bowl)
    outcome = tuned_by(bench)
    assert all(bench.space.configuration(point)["tile"] != 8 for point in bench.compiled)
    assert bench.space.refused == {"tile must be a multiple of 16": 12}
    assert outcome.tried_all
    assert len(outcome.trials) == 36


def test_a_space_in_which_everything_is_refused_ends_with_nothing() -> None:
    bench = Planted(Space(TILED, lambda variant, at: "never"), bowl)
    outcome = tuned_by(bench)
    assert outcome.best is None
    assert not outcome.trials
    assert not bench.compiled


def test_variants_without_constants_take_part() -> None:
    bench = Planted(Space({"naive": {}, **TILED}, taken), lambda v, at: 0.5 if v == "naive" else bowl(v, at))
    outcome = tuned_by(bench)
    assert outcome.best is not None
    assert outcome.best.variant == "naive"
    assert best_of(outcome) == {}


def test_the_budget_ends_the_search_and_what_was_found_is_kept() -> None:
    now = [0.0]

    class Slow(Planted):
        def check(self, trial: Trial) -> float:
            now[0] += 1.0
            return super().check(trial)

    bench = Slow(Space(TILED, taken), bowl)
    outcome = tuned_by(bench, budget_s=10.0, clock=lambda: now[0])
    assert outcome.best is not None
    assert not outcome.tried_all
    assert 5 <= len(outcome.trials) <= 11


def test_what_was_measured_leads_to_what_is_tried_next() -> None:
    """Testing 250 of 20736 configurations finds the best one; 250 random ones would not come close."""
    now = [0.0]

    class Slow(Planted):
        def check(self, trial: Trial) -> float:
            now[0] += 1.0
            return super().check(trial)

    def cost(variant: str, at: Mapping[str, Any]) -> float:
        return 1.0 + sum(abs(value - goal) for value, goal in zip(at.values(), (7, 2, 9, 4), strict=True))

    bench = Slow(Space({"k": {name: tuple(range(12)) for name in "abcd"}}, taken), cost, exact=True)
    outcome = tuned_by(bench, budget_s=250.0, clock=lambda: now[0])
    assert best_of(outcome) == {"a": 7, "b": 2, "c": 9, "d": 4}


# Candidates that fail -------------------------------------------------------------------------------------------------


def test_each_bad_end_is_reported_with_its_reason_and_the_search_goes_on() -> None:
    bench = Planted(Space(TILED, taken), bowl)
    best, second = {"tile": 32, "rows": 4, "stages": 2}, {"tile": 32, "rows": 4, "stages": 1}
    bench.end(Wrong("element (3,) is 7"), **best)
    bench.end(CompileError("mine.cu does not compile"), **{**second, "stages": 3})
    bench.end(Unfit("512 registers per thread"), **{**second, "rows": 2})
    bench.end(DeviceFault("cuStreamSynchronize", 700, "ILLEGAL_ADDRESS", "at mine.cu:7"), **{**second, "rows": 8})
    outcome = tuned_by(bench)
    ends = {trial.verdict: trial for trial in outcome.trials if trial.why}
    assert {verdict: trial.why for verdict, trial in ends.items()} == {
        "wrong": "element (3,) is 7",
        "not compiled": "mine.cu does not compile",
        "unfit": "512 registers per thread",
        "failed": str(bench.ends[tuple({**second, "rows": 8}.items())]),
    }
    assert best_of(outcome) != best
    assert outcome.tried_all
    assert {trial.verdict for trial in outcome.bugs} == {"wrong", "failed"}


def test_a_wrong_candidate_is_never_measured() -> None:
    bench = Planted(Space(TILED, taken), bowl)
    fastest = {"tile": 32, "rows": 4, "stages": 2}
    bench.end(Wrong("element (0,) is nan"), **fastest)
    tuned_by(bench)
    assert bench.space.point("tiled", fastest) not in bench.measured


def test_a_usual_configuration_that_does_not_compile_is_a_bug() -> None:
    space = Space(TILED, taken)
    bench = Planted(space, bowl)
    usual = {"tile": 8, "rows": 1, "stages": 1}
    bench.end(CompileError("mine.cu does not compile"), **usual)
    outcome = tuned_by(bench, auto=space.point("tiled", usual))
    assert [trial.verdict for trial in outcome.bugs] == ["not compiled"]
    assert outcome.final is None
    assert outcome.kept is outcome.best


def test_a_device_that_does_not_come_back_ends_the_search_with_what_was_found() -> None:
    space = Space(TILED, taken)
    bench = Planted(space, bowl, dies=True)
    for number, point in enumerate(space.every()):
        if number == 5:
            bench.end(
                ContextLost("cuStreamSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "", ""),
                **space.configuration(point),
            )
    outcome = tuned_by(bench, search="exhaustive")
    assert outcome.lost == "the device was lost"
    assert len(outcome.trials) == 6
    assert outcome.best is not None


# Measuring ------------------------------------------------------------------------------------------------------------


def test_a_slow_candidate_costs_one_launch_and_a_far_one_a_short_measurement() -> None:
    space = Space({"k": {"speed": (1, 2, 100)}}, taken)
    bench = Planted(space, lambda variant, at: float(at["speed"]))
    outcome = tuned_by(bench, search="exhaustive")
    ends = {trial.configuration["speed"]: trial.verdict for trial in outcome.trials}
    assert ends == {1: "measured", 2: "slower", 100: "slower"}
    assert space.point("k", {"speed": 100}) not in bench.measured
    assert space.point("k", {"speed": 2}) in bench.measured


def test_a_clock_that_slows_down_does_not_favour_what_was_measured_first() -> None:
    """Planted costs grow by 0.1 % per measurement, so late candidates look slow next to early ones."""
    space = Space({"k": {"n": tuple(range(60))}}, taken)
    bench = Planted(space, lambda variant, at: 2.0 - at["n"] / 500)
    assert best_of(tuned_by(bench, search="exhaustive")) == {"n": 59}


def test_the_usual_configuration_is_kept_unless_another_is_better() -> None:
    space = Space(TILED, taken)
    bench = Planted(space, bowl, exact=True)
    usual = space.point("tiled", {"tile": 32, "rows": 4, "stages": 2})
    outcome = tuned_by(bench, auto=usual)
    assert outcome.kept is outcome.usual
    assert outcome.final == (1.0, 1.0)
    other = tuned_by(Planted(space, bowl, exact=True), auto=space.point("tiled", {"tile": 8, "rows": 4, "stages": 2}))
    assert other.kept is other.best
    assert other.final == (1.0, 2.5)


def test_a_cold_start_does_not_see_the_usual_configuration_and_is_held_against_it() -> None:
    usual = {"tile": 32, "rows": 4, "stages": 2}

    def refuses(variant: str, at: Mapping[str, Any]) -> str | None:
        return "it is the usual one" if at == usual else None

    space = Space(TILED, refuses)
    outcome = tuned_by(Planted(space, bowl, exact=True), auto=space.point("tiled", usual), cold=True)
    assert outcome.final == (2.0, 1.0)
    assert best_of(outcome) != usual
    assert outcome.kept is outcome.usual


def test_several_compile_at_once() -> None:
    meeting = threading.Barrier(3)

    class Together(Planted):
        def compile(self, point: Point) -> None:
            meeting.wait(timeout=20)  # passes only if three threads wait here

    outcome = tuned_by(Together(Space(TILED, taken), bowl), threads=3)
    assert outcome.tried_all
    assert not outcome.bugs


# Counts ---------------------------------------------------------------------------------------------------------------


def test_counts_order_by_the_busiest_unit() -> None:
    """A 32 x 32 transpose: uncoalesced, through unpadded shared memory, and through padded shared memory."""
    naive = Load.of({"instructions": 32 * 16, "global_load_sectors": 128, "global_store_sectors": 1024})
    conflicts = Load.of(
        {
            "instructions": 32 * 30, "global_load_sectors": 128, "global_store_sectors": 128,
            "shared_store_wavefronts": 32, "shared_load_wavefronts": 1024,
        }
    )  # fmt: skip
    padded = Load.of(
        {
            "instructions": 32 * 30, "global_load_sectors": 128, "global_store_sectors": 128,
            "shared_store_wavefronts": 32, "shared_load_wavefronts": 32,
        }
    )  # fmt: skip
    assert padded.cost < conflicts.cost < naive.cost
    assert (naive.busiest, conflicts.busiest, padded.busiest) == ("memory", "shared", "memory")


def test_counts_of_divergence_atomics_and_local_memory_count() -> None:
    plain = {"instructions": 400, "global_load_sectors": 80}
    assert Load.of({**plain, "atomic_depth": 500}).cost > Load.of({**plain, "atomic_depth": 100}).cost
    assert Load.of({**plain, "local_store_bytes": 6400}).cost > Load.of(plain).cost
    assert Load.of({**plain, "instructions": 800}).cost > Load.of(plain).cost  # as if both sides of branches ran
    assert Load.of({**plain, "occupancy": 1.0}).cost < Load.of({**plain, "occupancy": 0.25}).cost


# Choices saved on disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUDAKIT_TUNED", raising=False)
    return tmp_path


def situation(*shape: int, dtype: str = "float32", chip: str = "gpu H200 sm_90a 132", options: str = "") -> Situation:
    return Situation("transpose", chip, ((shape, dtype), (shape[::-1], dtype)), options)


def choice(tile: int, when: str = "", print_: str = "f") -> Choice:
    return Choice("tiled", {"tile": tile}, print_, 1.5, "ms", 3.0, when)


def kept_tiles(where: Situation, nearby: bool = True) -> list[int]:
    return [found.configuration["tile"] for found in tuned.choices(where, nearby)]


def test_a_choice_comes_back_for_its_situation_alone(store: Path) -> None:
    assert kept_tiles(situation(64, 64)) == []
    assert tuned.keep(situation(64, 64), choice(32)) is not None
    (found,) = tuned.choices(situation(64, 64))
    assert (found.variant, found.configuration, found.cost, found.unit, found.usual) == (
        "tiled",
        {"tile": 32},
        1.5,
        "ms",
        3.0,
    )
    assert kept_tiles(situation(64, 64, dtype="float16")) == []
    assert kept_tiles(situation(64, 64, chip="sim")) == []
    assert kept_tiles(situation(64, 64, options="causal=True")) == []
    assert kept_tiles(situation(64, 64, 1)) == []


def test_a_later_choice_replaces_an_earlier_one_for_the_same_situation(store: Path) -> None:
    tuned.keep(situation(64, 64), choice(16))
    tuned.keep(situation(64, 64), choice(32))
    assert kept_tiles(situation(64, 64)) == [32]


def test_the_nearest_shape_comes_next_and_far_ones_do_not(store: Path) -> None:
    tuned.keep(situation(64, 64), choice(1))
    tuned.keep(situation(96, 64), choice(2))
    tuned.keep(situation(4096, 4096), choice(3))
    assert kept_tiles(situation(64, 64)) == [1, 2]
    assert kept_tiles(situation(90, 64)) == [2, 1]
    assert kept_tiles(situation(90, 64), nearby=False) == []
    assert kept_tiles(situation(512, 512)) == []
    assert kept_tiles(situation(0, 64)) == []


def test_the_environment_switches_the_choices_off(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.keep(situation(64, 64), choice(32))
    monkeypatch.setenv("CUDAKIT_TUNED", "ignore")
    assert kept_tiles(situation(64, 64)) == []


def damaged(text: str) -> dict[str, str]:
    entry = json.loads(text)
    return {
        "torn": text[: len(text) // 2],
        "empty": "",
        "not an object": "[1, 2]",
        "edited": json.dumps({**entry, "configuration": {"tile": 9999}}),
        "without a field": json.dumps({name: value for name, value in entry.items() if name != "arrays"}),
    }


@pytest.mark.parametrize("kind", ["torn", "empty", "not an object", "edited", "without a field"])
def test_a_corrupt_file_is_named_and_the_others_are_used(store: Path, kind: str) -> None:
    bad = tuned.keep(situation(64, 64), choice(16))
    tuned.keep(situation(96, 64), choice(32))
    assert bad is not None
    bad.write_text(damaged(bad.read_text())[kind])
    bad.chmod(0o600)
    os.utime(bad.parent)
    with pytest.warns(CacheWarning, match=str(bad)):
        assert kept_tiles(situation(64, 64)) == [32]
    tuned.keep(situation(64, 64), choice(8))
    assert kept_tiles(situation(64, 64)) == [8, 32]


def test_a_file_that_others_may_write_to_is_left_alone(store: Path) -> None:
    path = tuned.keep(situation(64, 64), choice(16))
    assert path is not None
    path.chmod(0o666)
    os.utime(path.parent)
    with pytest.warns(CacheWarning, match="other users may write"):
        assert kept_tiles(situation(64, 64)) == []


def test_a_store_that_cannot_be_written_costs_a_warning(store: Path) -> None:
    (store / "tuned").write_text("a file in the folder's place")
    with pytest.warns(CacheWarning, match="could not be written"):
        assert tuned.keep(situation(64, 64), choice(16)) is None


def test_concurrent_writers_and_readers_see_whole_choices(store: Path) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            tuned.keep(situation(64, 64 + number), choice(number))
            tuned.keep(situation(8, 8), choice(turn))
            assert kept_tiles(situation(64, 64 + number), nearby=False) == [number]

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    assert [kept_tiles(situation(64, 64 + number), nearby=False) for number in range(6)] == [[n] for n in range(6)]
    assert kept_tiles(situation(8, 8)) == [9]
    assert not list((store / "tuned").rglob(".*"))


def test_choices_are_forgotten_by_family(store: Path) -> None:
    tuned.keep(situation(64, 64), choice(16))
    tuned.keep(situation(64, 64, chip="sim"), choice(16))
    assert tuned.forget("transpose", "sim") == 1
    assert tuned.forget("other") == 0
    assert kept_tiles(situation(64, 64)) == [16]
    assert tuned.forget("transpose") == 1
    assert kept_tiles(situation(64, 64)) == []


def test_a_fingerprint_follows_the_source_and_its_headers(tmp_path: Path) -> None:
    source, header = tmp_path / "k.cu", tmp_path / "inner.cuh"
    header.write_text("#define N 1\n")
    source.write_text('#include "inner.cuh"\n__global__ void k() {}\n')
    first = tuned.fingerprint(source, "sm_90a")
    assert first == tuned.fingerprint(source, "sm_90a") != tuned.fingerprint(source, "sm_80")
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    (elsewhere / "k.cu").write_text(source.read_text())
    (elsewhere / "inner.cuh").write_text("#define N 1\n")
    assert tuned.fingerprint(elsewhere / "k.cu", "sm_90a") == first  # depends on contents, not on paths
    (elsewhere / "inner.cuh").write_text("#define N 2\n")
    source.write_text('#include "inner.cuh"\n__global__ void k() { }\n')
    second = tuned.fingerprint(source, "sm_90a")
    assert second != first
    header.write_text("#define N 100\n")  # the header alone changes
    assert tuned.fingerprint(source, "sm_90a") not in (first, second)


def test_every_value_of_a_configuration_survives_the_disk(store: Path) -> None:
    values: dict[str, Any] = {"tile": (16, 32), "fast": True, "name": "row", "none": None, "share": 0.5}
    tuned.keep(situation(1, 1), Choice("k", values, "f", 1.0, "ms"))
    (found,) = tuned.choices(situation(1, 1))
    assert found.configuration == {**values, "tile": [16, 32]}
    assert list(itertools.chain(found.configuration)) == list(values)
