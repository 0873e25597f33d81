"""The temporary places of a cluster run's shares, without a cluster."""

import pickle
import threading

import numpy as np
import pytest

from cudakit import pipeline
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.shares_folder import SharesFolder


@pytest.mark.parametrize("whole", [True, False], ids=["all places", "one place"])
def test_a_worker_that_still_writes_leaves_nothing_after_the_removal(tmp_path, whole):
    """A worker notices late that its share was dropped; the client does not wait for it."""
    for attempt in range(40):
        folder = SharesFolder(tmp_path / "shares")
        place = folder.new("run-1")
        place.mkdir()
        at_work = threading.Event()
        stopped = []

        def write(place=place, at_work=at_work, stopped=stopped):
            try:
                for number in range(1 << 14):
                    (place / f"{number}.npy").touch()
                    if number == 20:
                        at_work.set()
            except FileNotFoundError as error:
                stopped.append(error)

        worker = threading.Thread(target=write)
        worker.start()
        at_work.wait()
        if whole:
            folder.remove()
        else:
            folder.discard("run-1")
        worker.join()
        assert stopped, "the worker could write on"
        left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
        assert left == ([] if whole else ["shares"]), f"attempt {attempt}"


def test_places_of_a_killed_run_are_removed(tmp_path):
    for folder in ("shares/run-1", "shares.removed/run-1", "shares.removed/run-2"):
        (tmp_path / folder).mkdir(parents=True)
        np.save(tmp_path / folder / "0.npy", np.zeros(3))
    SharesFolder(tmp_path / "shares").remove()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_into_one_folder_keep_their_places_apart(tmp_path):
    """Runs may share a folder if their items have different names; the first to end must not remove the other's."""
    item = np.arange(6, dtype=np.float32).reshape(2, 3)
    sinks = []
    for letter in "ab":
        paths = [tmp_path / f"{letter}{number}.npy" for number in range(2)]
        for path in paths:
            np.save(path, np.zeros(3, np.float32))
        source = pipeline.FromFiles(paths)
        sink = pipeline.ToFolder(tmp_path / "out")
        spec = pipeline.SinkSpec(source.item, 2, RunOrigin([source], 2))
        assert sink.open(spec) == []
        sinks.append((sink, spec))
    (one, one_spec), (other, other_spec) = sinks
    slow, fast = (pickle.loads(pickle.dumps(sink.portion("run-1"))) for sink in (one, other))
    for portion, spec in ((slow, one_spec), (fast, other_spec)):
        portion.open(spec)
    fast.write(0, 2, item)
    fast.finish(2)
    fast.close()
    other.adopt("run-1", 0, 2)
    other.finish(2)
    other.close()
    slow.write(0, 2, -item)
    slow.finish(2)
    slow.close()
    one.adopt("run-1", 0, 2)
    one.finish(2)
    one.close()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a0.npy", "a1.npy", "b0.npy", "b1.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "a1.npy"), -item[1])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "b0.npy"), item[0])
