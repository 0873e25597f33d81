"""A worker's part in a cluster run, without a cluster: shares that it gets while it still computes dropped ones."""

import threading

import numpy as np
import pytest

from cudakit import ops, pipeline
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.request import Options
from cudakit.pipeline.worker import Devices, Job, Session

COUNT = 12
LIMIT = 60  # seconds, after which a share does not end


class Kept(pipeline.Sink):
    """The items that are written to a share, in order."""

    def __init__(self):
        self.numbers: list[int] = []
        self.items = np.full((COUNT, 3), np.nan, np.float32)
        self.whole = False

    def open(self, spec):
        return []

    def write(self, start, stop, items):
        self.numbers += range(start, stop)
        self.items[start:stop] = items

    def finish(self, count):
        self.whole = len(self.numbers) == count


@pytest.fixture
def items(tmp_path):
    made = np.random.default_rng(5).standard_normal((COUNT, 3), dtype=np.float32)
    np.save(tmp_path / "in.npy", made)
    return made


@pytest.fixture
def go():
    """Set to let the function continue."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def begun():
    """Set once the function is called."""
    return threading.Event()


@pytest.fixture
def session(items, tmp_path, go, begun):
    def held(chunk, x, out):
        begun.set()
        go.wait(LIMIT)
        ops.scale(x, 2.0, out=out, stream=chunk.stream)

    source = pipeline.FromFile(tmp_path / "in.npy")
    options = Options(1, 3, None, None, 1, 2, False, False, False, None, False, False)
    job = Job(
        "run", held, (source,), (source.item,), (source.item,), COUNT, COUNT, 1,
        RunOrigin([source], COUNT).identity, options, "topic",
    )  # fmt: skip
    made = Session(job, Devices(("sim",), 1), lambda items: None)
    yield made
    go.set()
    made.end()
    source.close()


class Running(threading.Thread):
    """A share in a thread, as a task of Dask has one."""

    def __init__(self, session, start, stop):
        super().__init__(daemon=True)
        self.kept, self.dropped, self.result = Kept(), threading.Event(), None
        self._share = session, start, stop
        self.start()

    def run(self):
        session, start, stop = self._share
        self.result = session.process(start, stop, [self.kept], self.dropped.is_set)

    def ended(self):
        self.join(LIMIT)
        assert not self.is_alive(), f"the share has {sorted(self.kept.numbers)} and does not end"
        return self.result


@pytest.mark.parametrize("noticed", [True, False], ids=["gone", "still there"])
@pytest.mark.parametrize("again", [(0, COUNT), (0, 5), (3, COUNT)], ids=str)
def test_a_share_with_items_of_a_dropped_one_gets_all_of_its_own_results(session, items, go, begun, noticed, again):
    """Chunks of the dropped share are still in flight. They count neither for the new share, nor instead of it."""
    old = Running(session, 0, COUNT)
    assert begun.wait(LIMIT)
    if noticed:
        old.dropped.set()
        assert old.ended() is False
    new = Running(session, *again)
    go.set()
    assert new.ended() is True
    numbers = list(range(*again))
    assert sorted(new.kept.numbers) == numbers
    assert new.kept.whole
    np.testing.assert_array_equal(new.kept.items[numbers], 2 * items[numbers])
    if not noticed:  # the worker may as well finish it
        assert old.ended() is True
        np.testing.assert_array_equal(old.kept.items, 2 * items)
