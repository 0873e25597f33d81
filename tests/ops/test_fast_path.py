"""Repeated calls of an op behave like the first: the same launches, results and errors, even if arguments or state
change in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from both_ways import Boxed, Call, Choices, History, Spec, World
from both_ways_foreign import FORMS, ForeignHistory
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit import ops
from cudakit.errors import Closed
from cudakit.family import front
from cudakit.launch.module import Module
from cudakit.memory import libraries, scratch

Draw = Callable[[Any], Any]


@pytest.fixture(scope="module")
def choices() -> Iterator[Choices]:
    with Choices.counted() as counted:
        yield counted


@pytest.fixture(scope="module", params=[1, 2], ids=["one device", "two devices"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sims() -> Iterator[World]:
    made = World(1)
    yield made
    made.close()


# Strategies -----------------------------------------------------------------------------------------------------------

ELEMENTWISE = [(33,), (4, 8), (3, 5), (2, 3, 4), (1, 16), (0,), (2, 0)]
ROWS = [(4, 8), (3, 5), (1, 33), (2, 64), (16,), (0, 4), (3, 0)]
IMAGES = [(5, 8), (2, 3, 4), (7, 5), (0, 3)]
PRODUCTS = [
    ((4, 8), (8, 4)), ((3, 5), (5, 2)), ((1, 7), (7, 4)), ((2, 3, 4), (4, 3)), ((3, 0), (0, 2)), ((0, 4), (4, 2)),
]  # fmt: skip
HEADS = [((1, 2, 3, 8), (1, 1, 5, 8)), ((1, 1, 4, 16), (1, 1, 4, 16)), ((1, 1, 0, 8), (1, 1, 2, 8))]

FACTORS = [
    1.0, 1, True, 0.0, -0.0, 0.5, float("nan"), float("-inf"), 1e300, np.float32(0.5), np.float64(0.5), np.int64(2),
    np.float16(-0.0), Boxed(0.25), Boxed(3.0), Boxed(float("nan")), Boxed(0.5, array=False),
    10**400, "half", None,
]  # fmt: skip
AXES = [None, 0, 1, -1, True, False, 0.0, np.int64(0), np.int64(-1), 2, "rows"]
WHOLE = [
    0, 1, True, 4, 5, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 4, 2**64 - 33, 2**64, -1, 1.0, 0.5, np.int64(3),
    np.uint64(1), np.uint64(2**64 - 1), np.uint64(2**64 - 33), np.int32(-1), "seed", None,
]  # fmt: skip
VALUES = [
    0, 0.0, -0.0, 1, True, 1.5, float("nan"), -float("nan"), float("inf"), np.float32(-0.0), np.float64(0.0), 255, 256,
    -1, np.int64(7), Boxed(0.0), Boxed(-0.0), Boxed(2.0), Boxed(1.0, array=False),
    Boxed(3.0, array=False), 1e300, "one",
]  # fmt: skip
FLAGS = [False, True, 0, 1, np.True_, "yes", None, Boxed(0.0, array=False), Boxed(1.0, array=False)]

OPTIONS: dict[str, dict[str, list[Any]]] = {
    "add": {},
    "scale": {"factor": FACTORS},
    "threshold": {"limit": FACTORS},
    "cast": {"to": ["float16", np.float32, "int32", np.dtype(np.float16), "float64", "bfloat16", "what"]},
    "fill": {"value": VALUES},
    "sum": {"axis": AXES},
    "max": {"axis": AXES},
    "argmax": {"axis": AXES},
    "softmax": {"log": FLAGS, "scale": FACTORS},
    "softmax_backward": {"log": FLAGS, "scale": FACTORS},
    "gemm": {"alpha": FACTORS, "beta": FACTORS},
    "attention": {"causal": FLAGS, "scale": FACTORS},
    "blur": {"border": ["zero", "clamp", "reflect", "wrap", 0]},
    "uniform": {"seed": WHOLE, "offset": WHOLE},
    "normal": {"seed": WHOLE, "offset": WHOLE},
}
NEEDED = {"scale": ("factor",), "threshold": ("limit",), "cast": ("to",), "fill": ("value",)}
REDUCTIONS = ["auto", "thread_per_row", "shared_tree", "warp_shuffle", "vec4", "two_step", "columns"]
MAPS = ["auto", "strided", "vectors"]
VARIANTS = {
    "add": ["auto", "strided", "rows", "tiles", "dense", "flat", "vector_add", "vector_add_vec4"],
    "scale": MAPS,
    "threshold": MAPS,
    "cast": MAPS,
    "fill": MAPS,
    "sum": REDUCTIONS,
    "max": REDUCTIONS,
    "argmax": REDUCTIONS,
    "softmax": [
        "auto",
        "warp_shuffle",
        "two_launches",
        "split_row",
        "registers",
        "two_reads",
        "span",
        "blas_on_device",
    ],
    "softmax_backward": ["auto", "two_reads", "registers", "split_row"],
    "gemm": ["auto", "naive", "tiled16", "gemv", "stream_k", "pipelined", "packed"],
    "attention": ["auto", "three_passes", "fused_rows", "online"],
    "blur": ["auto", "naive", "tiled", "walking"],
    "uniform": ["auto"],
    "normal": ["auto"],
}
DTYPES = ["float32", "float32", "float32", "float16", "bfloat16"]
OTHER_DTYPES = ["float64", "int32", "float16", "bool"]
STARTS = [0, 0, 4, 8, 1, 2, 3, 5, 256, 260, 257, 512, 516]
STREAMS = [None, None, (0, 0), (0, 1), (0, 2), (1, 0), (0, "nothing")]


def laid_out(draw: Draw, dtype: str, shape: tuple[int, ...], *, repeated: bool = True) -> Spec:
    """The description of an array: its shape and one of several layouts."""
    layouts = ["plain"] * 4 + ["padded", "wide", "turned", "twice", "backward"] + ["repeated"] * repeated
    kind = draw(st.sampled_from(layouts)) if shape else "plain"
    extents = [max(extent, 1) for extent in shape]
    order = range(len(shape)) if kind == "turned" else range(len(shape) - 1, -1, -1)
    steps, step = [0] * len(shape), 2 if kind == "twice" else 1
    for axis in order:
        steps[axis] = step
        step *= extents[axis]
        if axis == len(shape) - 1:
            step += {"padded": 1, "wide": 4}.get(kind, 0)
    start = draw(st.sampled_from(STARTS))
    if kind == "repeated":
        steps[0] = 0
    if kind == "backward":
        start += (extents[-1] - 1) * steps[-1]
        steps[-1] = -steps[-1]
    made = Spec(dtype, shape, tuple(steps), start, bank=draw(st.integers(0, 1)))
    return made if made.inside else replace(made, start=(extents[-1] - 1) if kind == "backward" else 0)


def an_output(draw: Draw, inputs: tuple[Spec, ...], dtype: str, shape: tuple[int, ...]) -> Spec | None:
    kind = draw(st.sampled_from(["new", "separate", "separate", "separate", "in place", "another in place", "near"]))
    if kind == "new":
        return None
    if kind == "separate":
        return laid_out(draw, dtype, shape, repeated=False)
    one = draw(st.sampled_from(inputs))
    if kind == "near":
        moved = replace(one, start=one.start + draw(st.sampled_from([1, 2, 4, 8, 16, -1, -4])))
        return moved if moved.inside else one
    return replace(one, copy=1) if kind == "another in place" else one


@st.composite
def calls(draw: Draw, names: list[str]) -> Call:
    """Draw a call that is likely to succeed. names: the ops to draw from."""
    op = draw(st.sampled_from(names))
    dtype = draw(st.sampled_from(DTYPES)) if op in ("scale", "threshold", "softmax", "softmax_backward") else "float32"
    options = {name: draw(st.sampled_from(OPTIONS[op][name][:8])) for name in NEEDED.get(op, ())}
    if op == "attention":
        dtype = draw(st.sampled_from(["float32", "float16"]))
        q, k = draw(st.sampled_from(HEADS))
        inputs = tuple(Spec(dtype, s, _contiguous(s), start) for s, start in ((q, 0), (k, 256), (k, 512)))
        shape = q
    elif op == "gemm":
        dtype = draw(st.sampled_from(["float32"] * 5 + ["float16"]))
        a, b = draw(st.sampled_from(PRODUCTS))
        shape = (*a[:-1], b[-1])
        inputs = laid_out(draw, dtype, a), laid_out(draw, dtype, b)
        if draw(st.booleans()):
            inputs = (*inputs, laid_out(draw, dtype, shape))
            options = {"beta": draw(st.sampled_from([0.0, 1.0, 0.5]))}
    else:
        few = {"add": ELEMENTWISE, "softmax": ROWS, "softmax_backward": ROWS, "blur": IMAGES}
        reduction = op in ("sum", "max", "argmax")
        shape = draw(st.sampled_from(ROWS if reduction else few.get(op, ELEMENTWISE)))
        inputs = (laid_out(draw, dtype, shape),)
        if op == "add":
            other = draw(st.sampled_from([shape, shape, shape[-1:], (*shape[:-1], 1)]))
            inputs = (*inputs, laid_out(draw, dtype, other))
        if op == "softmax_backward":
            inputs = (*inputs, laid_out(draw, dtype, shape))
        if op == "softmax" and draw(st.integers(0, 3)) == 0:
            inputs = (*inputs, laid_out(draw, draw(st.sampled_from(["bool", "float32"])), shape))
        if reduction:
            options = {"axis": draw(st.sampled_from([None, 0, -1]))}
            shape = () if options["axis"] is None else shape[1:] if options["axis"] == 0 else shape[:-1]
    to = {"argmax": "int64"}.get(op, dtype)
    if op == "cast":
        to = np.dtype(options["to"]).name if options["to"] not in ("bfloat16", "what") else "bfloat16"
    out = None
    if op not in ("fill", "uniform", "normal"):
        out = an_output(draw, inputs, to, shape)
    elif inputs[0].steps and 0 in inputs[0].steps:
        inputs = (Spec(dtype, shape, _contiguous(shape)),)
    variant = draw(st.sampled_from(["auto", draw(st.sampled_from(VARIANTS[op]))]))
    return Call(op, inputs, out, variant, tuple(options.items()), thread=0)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


CHANGES = [
    "move", "move", "layout", "bank", "out", "out", "onto", "option", "option", "option", "variant", "stream", "thread",
    "flags", "dtype", "device",
]  # fmt: skip


def changed(draw: Draw, call: Call, devices: int, forms: list[str]) -> Call:
    """Return the call with one thing changed. forms: how another library passes arrays."""
    change = draw(st.sampled_from(CHANGES))
    if change == "thread":
        return replace(call, thread=1)
    if change == "variant":
        return replace(call, variant=draw(st.sampled_from([*VARIANTS[call.op], "none"])))
    if change == "stream":
        stream = draw(st.sampled_from(STREAMS))
        return replace(call, stream=(stream[0] % devices, stream[1]) if stream else None)
    if change == "option":
        if not OPTIONS[call.op]:
            return call
        name = draw(st.sampled_from(sorted(OPTIONS[call.op])))
        value = draw(st.sampled_from(OPTIONS[call.op][name]))
        return replace(call, options=tuple({**dict(call.options), name: value}.items()))
    if change == "out" and call.op not in ("fill", "uniform", "normal"):
        shape, dtype = (call.out.shape, call.out.dtype) if call.out else (call.inputs[0].shape, call.inputs[0].dtype)
        return replace(call, out=an_output(draw, call.inputs, dtype, shape))
    if change == "onto" and call.out:
        one = draw(st.sampled_from(call.inputs))
        moved = replace(
            call.out, device=one.device, bank=one.bank, start=one.start + draw(st.sampled_from([4, 8, 16, -4]))
        )
        return replace(call, out=moved) if moved.inside else call
    if change == "device":
        device = draw(st.integers(0, devices - 1))
        inputs = tuple(replace(spec, device=device) for spec in call.inputs)
        out = call.out and replace(call.out, device=device if draw(st.integers(0, 3)) else 0)
        return replace(call, inputs=inputs, out=out)
    place = draw(st.integers(0, len(call.arrays) - 1))
    spec = call.arrays[place]
    if change == "layout":
        spec = laid_out(draw, spec.dtype, spec.shape)
    elif change == "dtype":
        spec = laid_out(draw, draw(st.sampled_from(OTHER_DTYPES)), spec.shape)
    elif change == "bank":
        spec = replace(spec, bank=1 - spec.bank)
    elif change == "flags" and forms:
        spec = replace(spec, form=draw(st.sampled_from(forms)))
    elif change == "flags":
        spec = replace(spec, readonly=not spec.readonly) if draw(st.booleans()) else replace(spec, copy=1)
    else:
        moved = replace(spec, start=spec.start + draw(st.sampled_from([4, 8, 16, -4, 1, 2, 3, 128])))
        spec = moved if moved.inside else spec
    arrays = (*call.arrays[:place], spec, *call.arrays[place + 1 :])
    if len({array for array in arrays if array.form == "roaming"}) > 1:  # there is only one such object
        arrays = tuple(replace(array, form="") for array in arrays)
    count = len(call.inputs)
    return replace(call, inputs=arrays[:count], out=arrays[count] if call.out else None)


EVENTS = ["close arena", "close stream", "close default stream", "forget objects", "settle", "settle"]


@st.composite
def sequences(draw: Draw, names: list[str], devices: int, forms: list[str] | None = None) -> list[Any]:
    """Draw a sequence: calls of a few kinds, variations of them, and events in between."""
    few = draw(st.lists(calls(names), min_size=1, max_size=3))
    steps: list[Any] = [call for call in few for _ in range(2)]
    for _ in range(draw(st.integers(4, 20))):
        kind = draw(st.integers(0, 9))
        call = draw(st.sampled_from(few))
        if kind == 0:
            events = ["current stream", "forget objects", "settle"] if forms else EVENTS
            steps.append((draw(st.sampled_from(events)), draw(st.sampled_from(call.arrays))))
        elif kind < 4:
            steps.append(call)
        else:
            call = changed(draw, call, devices, forms or [])
            if kind == 4:
                call = changed(draw, call, devices, forms or [])
            steps += [call] * draw(st.sampled_from([1, 2]))
            if kind == 5:
                few[draw(st.integers(0, len(few) - 1))] = call
    return steps


def run(history: History, steps: list[Any]) -> None:
    renew_in = 0
    for step in steps:
        if renew_in and not (renew_in := renew_in - 1):
            history.renew_devices()
            history.renew()
            history.renew_streams()
        if isinstance(step, Call):
            if history.ready(step):
                history.call(step)
            continue
        event, spec = step
        if event == "settle":
            history.settle()
        elif event == "forget objects":
            history.forget_objects()
        elif isinstance(history, ForeignHistory):
            history.next_stream()
        else:
            renew_in = 4
            if event == "close arena":
                history.settle()
                history.close_arena(spec.arena)
            elif event == "close device":
                history.close_device(spec.device)
            else:
                history.close_stream(spec.device, None if event == "close default stream" else 0)
    history.settle()


OPS = [
    "add", "scale", "threshold", "cast", "fill", "sum", "max", "argmax", "softmax", "softmax_backward", "blur",
    "uniform", "normal", "gemm", "gemm",
]  # fmt: skip


@given(st.data())
def test_calls_agree(world: World, choices: Choices, data: Any) -> None:
    steps = data.draw(sequences(OPS, len(world.devices)))
    with History(world, choices, data.draw(st.integers(0, 3))) as history:
        run(history, steps)


@pytest.mark.long
@given(st.data())
def test_calls_of_attention_agree(world: World, choices: Choices, data: Any) -> None:
    steps = data.draw(sequences(["attention"], len(world.devices)))
    with History(world, choices) as history:
        run(history, steps[:8])


@given(st.data())
def test_calls_agree_if_few_are_kept(world: World, choices: Choices, data: Any) -> None:
    """A thread that makes more kinds of calls than it can keep."""
    steps = data.draw(sequences(["add", "scale", "fill", "sum", "uniform"], len(world.devices)))
    with pytest.MonkeyPatch.context() as patch, History(world, choices, keeps=False) as history:
        patch.setattr(front, "MOST_CALLS", 2)
        run(history, steps)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
@given(st.data())
def test_calls_agree_if_devices_are_closed(choices: Choices, count: int, data: Any) -> None:
    """Devices are reopened, with memory and streams at the same addresses."""
    steps = data.draw(sequences(["scale", "add", "fill"], count))
    for _ in range(data.draw(st.integers(1, 2))):
        call = next(step for step in steps if isinstance(step, Call))
        steps.insert(data.draw(st.integers(1, len(steps))), ("close device", call.inputs[0]))
    world = World(count)
    try:
        with History(world, choices) as history:
            run(history, steps)
            history.renew_devices()
    finally:
        world.close()


@pytest.mark.parametrize("library", ["torch", "cupy"])
@given(st.data())
def test_calls_with_arrays_of_another_library_agree(choices: Choices, sims: World, library: str, data: Any) -> None:
    """Calls use the library's current stream, which changes, and other streams; one object gets new memory."""
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    steps = data.draw(sequences(["add", "scale", "softmax", "sum", "gemm", "fill", "cast"], 1, FORMS[library]))
    with ForeignHistory(sims, choices, library, data.draw(st.integers(0, 3))) as history:
        run(history, steps)


# Cases that the drawn sequences do not reach --------------------------------------------------------------------------


def test_each_thread_has_its_own_scratch_on_a_stream(sims: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads call ops with two launches each on one stream, alternately and at the same time, and the scratch
    memory grows."""
    monkeypatch.setattr(scratch, "LEAST", 64)
    device = sims.devices[0]
    stream = device.stream()
    rng = np.random.default_rng(0)
    jobs = [
        (ops.sum, "two_step", (3, 40)), (ops.softmax, "two_launches", (2, 300)), (ops.sum, "two_step", (60, 40)),
        (ops.argmax, "two_step", (200, 5)), (ops.sum, "columns", (2000, 3)),
    ]  # fmt: skip
    hosts = [rng.standard_normal(shape, dtype=np.float32) for _, _, shape in jobs]

    def of(number: int, x: Any) -> Any:
        function, variant, _ = jobs[number]
        options = {} if function is ops.softmax else {"axis": 0 if variant == "columns" else 1}
        return function(x, variant=variant, stream=stream, **options)

    expected = [of(number, device.array(host, stream=stream)).numpy(stream) for number, host in enumerate(hosts)]

    def work(turns: list[int]) -> list[tuple[int, Any]]:
        made = []
        for turn in turns:
            # values differ from those of the other thread
            sign = 1 if turn >= 0 else -1
            number = abs(turn) - 1
            made.append((turn, of(number, device.array(sign * hosts[number], stream=stream))))
        return made

    forth = [1, 2, 3, 4, 5] * 3
    with ThreadPoolExecutor(2) as pool:
        results = [*pool.submit(work, forth).result()]
        for at_once in (pool.submit(work, forth), pool.submit(work, [-turn for turn in forth])):
            results += at_once.result()
    mirrored = [of(number, device.array(-host, stream=stream)).numpy(stream) for number, host in enumerate(hosts)]
    for turn, made in results:
        wanted = expected[turn - 1] if turn > 0 else mirrored[-turn - 1]
        np.testing.assert_array_equal(made.numpy(stream), wanted)
    stream.close()


@pytest.mark.parametrize("new", [False, True])
def test_a_module_that_was_closed_is_refused_again(choices: Choices, new: bool) -> None:
    """The error is that of a first call, for a given output and for a new one."""
    world = World(1)
    device = world.devices[0]
    x = Spec("float32", (4, 8), (8, 1))
    call = Call("scale", (x,), None if new else replace(x, bank=1), options=(("factor", 2.0),))
    with History(world, choices) as history:
        for _ in range(3):
            assert history.call(call).error is None
        history.settle()
        for module in device.context.made():
            if isinstance(module, Module):
                module.close()
        refused = history.call(call)
        assert refused.error is not None
        assert refused.error[0] == "Closed"
    world.close()


@pytest.mark.parametrize("new", [False, True])
def test_a_call_without_elements_on_a_device_that_was_closed(new: bool) -> None:
    """The call launches nothing, and raises the same error as other calls."""
    device = cudakit.Device("sim", fresh=True)
    x = device.empty((0, 5))
    out = None if new else device.empty((0, 5))
    for _ in range(3):
        assert ops.scale(x, 2.0, out).shape == (0, 5)
    device.close()
    with pytest.raises(Closed):
        ops.scale(x, 2.0, out)


def test_a_stream_of_another_device_object_that_was_closed() -> None:
    """The stream is closed with the Device object that made it, though another object for the same device is open. Its
    handle must not reach the driver."""
    with cudakit.Device("sim") as device:
        x = device.zeros((4, 8))
        device.synchronize()
        with cudakit.Device("sim") as other:
            stream = other.stream()
            for _ in range(2):
                ops.scale(x, 2.0, x, stream=stream)
            stream.synchronize()
        with pytest.raises(Closed):
            ops.scale(x, 2.0, x, stream=stream)


def test_families_made_of_another_have_calls_of_their_own(sims: World) -> None:
    """Two families that differ only in `choose` run their own kernels, whichever ran last."""
    device = sims.devices[0]
    x, y = device.zeros((4, 8)), device.empty((4, 8))
    family = ops.families()["softmax"]
    other = replace(family, choose=lambda problem, arch: "no_such_variant")
    front.apply(family, (x,), y, "auto", None)
    with pytest.raises(ValueError, match="no_such_variant"):
        front.apply(other, (x,), y, "auto", None)
    device.synchronize()


@pytest.mark.parametrize("op", [op for op in OPTIONS if OPTIONS[op]])
def test_options_are_told_apart(sims: World, choices: Choices, op: str) -> None:
    """All values of OPTIONS in mixed order, among them 0.0 and -0.0, True and 1, and values that are rejected."""
    rng = np.random.default_rng(0)
    base = next(call for call in once_each() if call.op == op)
    with History(sims, choices) as history:
        for name, values in OPTIONS[op].items():
            times = 1 if op == "attention" else 2  # attention is slow
            for index in rng.permutation(np.arange(times * len(values)) % len(values)):
                history.call(replace(base, options=tuple({**dict(base.options), name: values[index]}.items())))
                if op == "fill":
                    history.settle()
        history.settle()


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("number", [0, None])
def test_a_stream_that_was_closed(sims: World, choices: Choices, new: bool, number: int | None) -> None:
    """A closed stream that the call names is rejected; a closed default stream is created again."""
    x = Spec("float32", (4, 8), (8, 1))
    stream = None if number is None else (0, number)
    call = Call("scale", (x,), None if new else replace(x, bank=1), options=(("factor", 2.0),), stream=stream)
    with History(sims, choices) as history:
        for _ in range(2):
            assert history.call(call).error is None
        history.close_stream(0, number)
        for _ in range(2):
            refused = history.call(call).error
            assert refused is None if number is None else refused is not None and refused[0] == "Closed"
        history.renew_streams()
        assert not history.call(call).picked
        history.settle()


def test_a_checker_of_tensors_takes_one_that_comes_twice() -> None:
    """As for an in-place operation. Otherwise each such call would create a signature and a checker."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    checker = libraries.named("torch").checker
    if checker is None:
        pytest.skip("this version of torch has no checker, so attributes are compared one by one")
    x, y, z, other = torch.zeros(4, 8), torch.zeros(4, 8), torch.ones(4, 8), torch.zeros(8, 4)
    assert checker((x, x))(x, x)
    assert checker((x, x))(y, y)
    assert not checker((x, x))(x, y)
    assert not checker((x, x))(other, other)
    assert checker((x, y, x))(y, z, y)
    assert not checker((x, y, x))(x, y, y)
    assert not checker((x, y, x))(x, other, x)
    assert checker((x, y))(y, z)


def once_each() -> Iterator[Call]:
    """Yield one valid call of every op."""
    x, t = Spec("float32", (4, 8), (8, 1)), Spec("float32", (8, 4), (1, 8))
    heads = Spec("float32", (1, 1, 4, 8), (32, 32, 8, 1))
    options: dict[str, dict[str, Any]] = {
        "scale": {"factor": 2.0}, "threshold": {"limit": 0.5}, "cast": {"to": "float16"}, "fill": {"value": 3.0},
        **{op: {"axis": None} for op in ("sum", "max", "argmax")},
    }  # fmt: skip
    inputs = {"add": (x, x), "softmax_backward": (x, x), "gemm": (x, t), "attention": (heads, heads, heads)}
    for op in OPTIONS:
        given = tuple(options.get(op, {}).items())
        yield Call(op, inputs.get(op, (x,)), options=given)
        if op in ("add", "scale", "threshold", "softmax", "softmax_backward", "blur", "attention"):
            one = inputs.get(op, (x,))[0]
            yield Call(op, inputs.get(op, (x,)), replace(one, bank=1), options=given)
        if op == "gemm":  # a boxed number, whose value is part of the key of a call
            yield Call(
                op,
                inputs[op],
                replace(x, shape=(4, 4), steps=(4, 1), bank=1),
                options=(("beta", Boxed(0.5, array=False)),),
            )
        if op in ("softmax", "attention"):  # the scale selects another family, or is another type of number
            yield Call(op, inputs.get(op, (x,)), options=(("scale", 0.5),))


def test_a_call_that_was_made_before_chooses_nothing(sims: World, choices: Choices) -> None:
    """Three calls per op, the third with other memory and other numbers: only the first selects a variant. The drawn
    sequences check this for each repeated call too."""
    with History(sims, choices) as history:
        for call in once_each():
            numbers = tuple((name, 3.5 if value == 2.0 else value) for name, value in call.options)
            moved = replace(call, inputs=tuple(replace(x, start=64) for x in call.inputs), options=numbers)
            picked = [history.call(each).picked for each in (call, call, moved)]
            assert picked == [True, False, False], call
        history.settle()
