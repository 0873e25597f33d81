"""Fork: a child that uses its parent's device gets an error, and its exit does not affect the parent."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

import pytest
from core_fixtures import DEVICES, opened

from cudakit import nvtx
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import ForkedProcess
from cudakit.memory import array as memory
from cudakit.memory import makers

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(params=DEVICES)
def context(request):
    with opened(request.param) as made:
        yield made


def in_child(work) -> str:
    """Return the result or error of `work` in a forked child, which then exits through Python's normal exit."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking with threads, which these tests do on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            try:
                text = str(work())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os.close(writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return text


def test_every_use_in_a_child_is_a_clear_error(context):
    stream = Stream(context)
    event = stream.record()
    array = makers.zeros(context, stream, (10,))
    for use in (
        context.synchronize, context.memory_info, stream.synchronize, stream.query, stream.record, event.synchronize,
        event.query, array.numpy, lambda: array.fill(1), lambda: array[1:].copy(), lambda: Stream(context),
        lambda: memory.empty(context, stream, (3,)), lambda: makers.pinned(context, (3,)),
    ):  # fmt: skip
        said = in_child(use)
        assert said.startswith(f"{ForkedProcess.__name__}: {context.spec} was opened in process {os.getpid()}"), said
        assert "spawn" in said
    assert not array.numpy().any()


def test_dropping_and_closing_in_a_child_is_harmless(context):
    stream = Stream(context)
    with stream.record() as event:
        array = makers.zeros(context, stream, (10,))
        pinned = makers.pinned(context, (10,), "int32")
        pinned[:] = 7
        kept = [stream, event, array, pinned]

        def drop():
            array.close()
            event.close()
            stream.close()
            kept.clear()
            context.close()
            context.close()
            return "nothing said"

        assert in_child(drop) == "nothing said"
    assert array.numpy().tolist() == [0] * 10
    assert pinned.tolist() == [7] * 10
    context.synchronize()


def test_a_child_may_open_a_simulated_device_of_its_own():
    parents = Context("sim")

    def work():
        with Context("sim") as childs:
            made = makers.full(childs, Stream(childs), (4,), 3, "int32")
            return childs.driver is not parents.driver, made.numpy().tolist()

    assert in_child(work) == "(True, [3, 3, 3, 3])"
    parents.synchronize()
    parents.close()


def test_a_child_forked_while_another_thread_opens_a_device():
    """The module's lock may be held by a thread that the child does not have."""
    with drivers._lock:

        def work():
            return drivers.open("sim").kind

        assert in_child(work) == "sim"


def test_probing_in_a_child_does_not_wait_for_its_parents_devices():
    with opened("sim") as context, contextlib.ExitStack() as begun:
        array = makers.zeros(context, Stream(context), (10,))

        def work():
            with drivers.probing():
                return "fine"

        assert in_child(work) == "fine"
        begun.enter_context(drivers.probing())
        assert in_child(begun.close) == "None"
        assert array.numpy().shape == (10,)


def test_ranges_work_in_a_child():
    def work():
        with nvtx.range("x"):
            return "fine"

    assert in_child(work) == "fine"


def test_python_leaves_a_child_cleanly(context):
    """sys.exit in the child runs every finalizer there."""
    array = makers.zeros(context, Stream(context), (10,))
    import subprocess

    code = f"""
import os, sys
from cudakit.memory import array as memory
from cudakit.memory import makers
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
context = Context({context.spec!r})
stream = Stream(context)
array = makers.zeros(context, stream, (10,))
pinned = makers.pinned(context, (10,))
array.copy_from(pinned)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(array.numpy().shape)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "(10,)", "")
    assert array.numpy().shape == (10,)
