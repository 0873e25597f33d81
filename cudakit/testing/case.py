"""A kernel problem drawn by hypothesis (layouts, values, options), and the check of a variant on it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from cudakit.compare import ADDS, POISON, Comparison, still_poisoned
from cudakit.errors import CudakitError
from cudakit.family import Ladder, Variant, one_or_all, several
from cudakit.family.wrong_results import Watch
from cudakit.memory import array as memory
from cudakit.memory import layout, makers
from cudakit.memory.bounds import restrict

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.memory.array import DeviceArray

GUARD = 64  # guard elements before and after every array


@dataclass(frozen=True)
class Layout:
    """The layout of an array in its buffer.

    Args:
        shape: Extents.
        strides: In elements; may be negative or 0.
        lead: Elements between the guard and the lowest address of the array.
        dtype: The dtype of the elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lead: int = 0
    dtype: str | np.dtype[Any] = "float32"

    @property
    def reach(self) -> tuple[int, int]:
        """The lowest offset and one past the highest, in elements from the first element; (0, 0) if the array is
        empty."""
        return layout.span(self.shape, self.strides, 1)

    @property
    def first(self) -> int:
        """The index of the first element in the buffer."""
        return GUARD + self.lead - self.reach[0]

    @property
    def extent(self) -> int:
        """Elements of the buffer, including guards."""
        low, high = self.reach
        return 2 * GUARD + self.lead + high - low

    def buffer(self) -> np.ndarray[Any, Any]:
        """Return a host buffer of `extent` elements, filled with the poison pattern."""
        dtype = memory.as_dtype(self.dtype)
        return np.full(self.extent * dtype.itemsize, POISON, np.uint8).view(dtype)

    def of(self, buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array as a view of a host buffer of `extent` elements."""
        steps = tuple(stride * buffer.itemsize for stride in self.strides)
        return as_strided(buffer[self.first :], self.shape, steps)

    def said(self, name: str) -> str:
        """Return the array's description for a message, such as "x float32[3, 4] with strides (1, 3)"."""
        dense = contiguous(self.shape).strides
        strides = f" with strides {self.strides}" if self.strides != dense and 0 not in self.shape else ""
        lead = f" from element {self.lead} of its buffer on" if self.lead else ""
        return f"{name} {self.dtype}[{', '.join(map(str, self.shape))}]{strides}{lead}"

    def on(self, buffer: DeviceArray, stream: Any) -> DeviceArray:
        """Return the array as a view of a device buffer of `extent` elements."""
        steps = tuple(stride * buffer.itemsize for stride in self.strides)
        pointer = buffer.pointer + self.first * buffer.itemsize
        return makers.over(
            buffer.context, stream, pointer, self.shape, buffer.dtype, strides=steps, owner=buffer
        )  # fmt: skip


Filler = Callable[[tuple[int, ...]], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """One problem of a family.

    Args:
        inputs: The layout of each input.
        fill: One filler per input, or one filler for all inputs; every input after the first then gets its values in
            reverse order along the last axis.
        output: The layout of the output, or of several; None if the variant works in place.
        options: The family's options, by name.
        over: The index of the input that is also the output, if `output` is None.
    """

    inputs: tuple[Layout, ...]
    fill: Filler | tuple[Filler, ...]
    output: Layout | tuple[Layout, ...] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    over: int = 0

    def values(self, index: int) -> np.ndarray[Any, Any]:
        """Return the values of input number `index`."""
        place = self.inputs[index]
        if isinstance(self.fill, tuple):
            values = self.fill[index](place.shape)
        else:
            values = self.fill(place.shape)
            values = values[..., ::-1] if index and values.ndim else values
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(memory.as_dtype(place.dtype))

    def __repr__(self) -> str:
        options = f", options={dict(self.options)}" if self.options else ""
        output = self.output or ("in place" if self.over == 0 else f"over input {self.over}")
        return f"Case(inputs={self.inputs}, output={output}, fill={self.fill}{options})"

    def said(self, family: Ladder[Any]) -> str:
        """Return the problem's description for a message: its arrays and options by their names in `family`, and the
        inputs' fillers."""
        named = list(family.specs)
        names = [named[i] if i < len(named) else f"input {i}" for i in range(len(self.inputs))]
        arrays = list(map(Layout.said, self.inputs, names))
        if self.output is None:
            arrays[self.over] += ", in place"
        else:
            places = several(self.output)
            arrays += map(Layout.said, places, family.output_names(len(places)))
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        if isinstance(self.fill, tuple):
            filled = [f"{name} = {_said(one)}" for name, one in zip(names, self.fill, strict=True)]
        else:
            filled = [f"{', '.join(names)} = {_said(self.fill)}"] if names else []
        return ", ".join(arrays + options) + (f"; {', '.join(filled)}" if filled else "")


def _said(filler: Filler) -> str:
    """Return a filler's description for a message, without fields that have their defaults."""
    text = repr(filler)
    if not is_dataclass(filler):
        return text
    for each in fields(filler):
        if getattr(filler, each.name) == each.default:
            text = text.replace(f", {each.name}={each.default!r}", "")
    return text


@dataclass(frozen=True)
class Unsupported:
    """The result of a problem that the variant does not support. reason: a sentence."""

    reason: str


# Strategies -----------------------------------------------------------------------------------------------------------


def likely_extents(most: int) -> list[int]:
    """Return extents up to `most` at which kernels are likely to fail: 0, 1, primes, multiples of warps, vectors and
    blocks, and these plus or minus one."""
    edges = [n + d for n in (4, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 14080, 32768) for d in (-1, 0, 1)]
    return sorted(n for n in {0, 1, 2, 3, 5, 7, 13, 37, 127, 251, 509, 1021, *edges} if n <= most)


@functools.cache  # hypothesis validates each new strategy, which takes longer than drawing
def extents(most: int) -> st.SearchStrategy[int]:
    """Return a strategy for extents from 0 to `most`; half of them are extents at which kernels are likely to fail."""
    return st.one_of(st.sampled_from(likely_extents(most)), st.integers(0, most))


@st.composite
def layouts(
    draw: st.DrawFn, shape: tuple[int, ...], *, output: bool = False, dtype: str | np.dtype[Any] = "float32"
) -> Layout:
    """Return a strategy for layouts of one shape: C order, transposed, with gaps, negative and (inputs only) zero
    strides, any alignment.

    Half of them are contiguous or almost contiguous, because fast code paths need that.

    Args:
        shape: Extents.
        output: Whether the array is written; strides are then never 0.
        dtype: The dtype of the elements.

    Returns:
        The strategy.
    """
    lead = draw(st.integers(0, 5))
    if draw(st.booleans()):
        gap = draw(st.sampled_from((0, 0, 0, 1, 3, 4)))
        order = range(len(shape) - 1, -1, -1)
        return Layout(shape, nested(shape, order, lambda axis: gap * (axis == len(shape) - 2)), lead, dtype)
    shuffled = draw(st.permutations(range(len(shape))))
    strides = list(nested(shape, shuffled, lambda axis: draw(st.integers(0, 3))))
    for axis in range(len(shape)):
        change = draw(st.sampled_from((1, 1, -1) if output else (1, 1, -1, 0)))
        strides[axis] *= change
    return Layout(shape, tuple(strides), lead, dtype)


def dense(draw: st.DrawFn, shape: tuple[int, ...], dtype: str = "float32") -> Layout:
    """Draw a contiguous layout that starts on a 16-byte boundary."""
    return contiguous(shape, draw(st.sampled_from((0, 0, 1, 5))) * (16 // memory.as_dtype(dtype).itemsize), dtype)


def aligned_rows(draw: st.DrawFn, shape: tuple[int, ...], dtype: str = "float32") -> Layout:
    """Draw a layout in C order in which every row is contiguous and starts on a 16-byte boundary. The last extent must
    be a multiple of 16 bytes."""
    pieces = 16 // memory.as_dtype(dtype).itemsize
    gap, lead = (pieces * draw(st.sampled_from((0, 0, 1, 3))) for _ in range(2))
    order = range(len(shape) - 1, -1, -1)
    return Layout(shape, nested(shape, order, lambda axis: gap * (axis == len(shape) - 2)), lead, dtype)


def known(kind: str, *kinds: str) -> None:
    """Raise ValueError for a kind of problems that is not in `kinds`."""
    if kind not in ("", *kinds):
        raise ValueError(f"unknown kind of problems {kind!r}; known are {', '.join(kinds) or 'none'}")


def contiguous(shape: tuple[int, ...], lead: int = 0, dtype: str | np.dtype[Any] = "float32") -> Layout:
    """Return a contiguous layout.

    Args:
        shape: Extents.
        lead: Elements between the allocation's alignment and the first element.
        dtype: The dtype of the elements.

    Returns:
        The layout.
    """
    return Layout(shape, nested(shape, range(len(shape) - 1, -1, -1), lambda axis: 0), lead, dtype)


def nested(shape: tuple[int, ...], order: Any, gap: Callable[[int], int]) -> tuple[int, ...]:
    """Return strides that nest the axes in `order`, innermost first, with `gap(axis)` unused elements after each
    step."""
    strides = [0] * len(shape)
    reach = 1
    for axis in order:
        strides[axis] = reach + gap(axis)
        reach = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


@dataclass(frozen=True)
class Values:
    """A filler: normal numbers with special values.

    Args:
        seed: The seed of the numbers.
        scale: Their standard deviation.
        specials: (place, value) pairs; a place is a fraction of the array.
        empty_row: The place of a row of -inf, as a fraction of the rows; None for no such row.
    """

    seed: int
    scale: float
    specials: tuple[tuple[float, float], ...] = ()
    empty_row: float | None = None

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        with np.errstate(over="ignore"):
            values = (rng.standard_normal(shape) * self.scale).astype(np.float32)
        if not values.size:
            return values
        for place, special in self.specials:
            values.flat[int(place * (values.size - 1))] = special
        if self.empty_row is not None and values.ndim:
            rows = values.reshape(-1, values.shape[-1])
            rows[int(self.empty_row * (len(rows) - 1))] = -np.inf
        return values


@functools.cache
def float32_values(*, hard: bool = True) -> st.SearchStrategy[Values]:
    """Return a strategy for fillers with scales from tiny to almost overflow. hard: include infinities, NaN, denormals
    and rows of -inf."""
    scale = st.sampled_from((1.0, 1.0, 10.0, 1e-3, 1e4, 1e30, 1e-40))
    if not hard:
        return st.builds(Values, st.integers(0, 2**32 - 1), scale)
    special = st.sampled_from((np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, -0.0, 88.0))
    places = st.lists(st.tuples(st.floats(0, 1), special), max_size=3).map(tuple)
    empty = st.one_of(st.none(), st.none(), st.floats(0, 1))
    return st.builds(Values, st.integers(0, 2**32 - 1), scale, places, empty)


def binary_case(
    draw: st.DrawFn, a: tuple[int, ...], b: tuple[int, ...], result: tuple[int, ...]
) -> Case:  # fmt: skip
    """Draw a case of two inputs: with any layouts; with equal layouts, which fast code paths need; or in place over an
    input."""
    over = draw(st.sampled_from((None, None, 0, 1)))
    if over is not None and (a, b)[over] != result:
        over = None
    if a == b == result and draw(st.booleans()):
        alike = draw(st.one_of(st.just(contiguous(result)), layouts(result, output=True)))
        leads = [draw(st.sampled_from((alike.lead, alike.lead, alike.lead, 1, 4))) for _ in range(3)]
        places = [Layout(result, alike.strides, lead) for lead in leads]
        return Case(
            (places[0], places[1]), draw(float32_values()), None if over is not None else places[2], over=over or 0
        )
    first, second = draw(layouts(a, output=over == 0)), draw(layouts(b, output=over == 1))
    if draw(st.booleans()):
        first, second = (_either_order(draw, shape) for shape in (a, b))
    output = None if over is not None else draw(st.one_of(st.just(contiguous(result)), layouts(result, output=True)))
    return Case((first, second), draw(float32_values()), output, over=over or 0)


def _either_order(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Draw a layout in C order or transposed."""
    if draw(st.integers(0, 2)):
        return contiguous(shape, draw(st.integers(0, 4)))
    return Layout(shape, contiguous(shape[::-1]).strides[::-1], draw(st.integers(0, 4)))


# One run --------------------------------------------------------------------------------------------------------------


def run_case(
    device: Device, family: Ladder[Any], variant: Variant[Any] | None, case: Case, watch: Watch | None = None
) -> Comparison | Unsupported:
    """Run a variant on a problem and compare the result with the reference.

    Arrays are in buffers with guards on both sides. The output, the gaps between its elements and the guards are filled
    with a poison pattern, so that unwritten elements and out-of-bounds writes are found. On the simulated device guards
    and gaps are out of bounds: an access raises DeviceFault, after which `device` is unusable.

    Args:
        device: The device.
        family: The family.
        variant: The variant; None for the one that "auto" picks.
        case: The problem.
        watch: Returns the context that the kernels run within, for example a record of stores to a wrong element.

    Returns:
        The comparison with the reference; Unsupported if the variant does not support the problem.

    Raises:
        CudakitError: If the launch fails or a kernel faults.
    """
    verdict = _run(device, family, variant, case, family.initial, watch)
    again = watch is None and case.output is not None and family.initial is None
    if isinstance(verdict, Unsupported) or verdict.ok or not again:
        return verdict
    try:
        on_zeros = _run(device, family, variant, case, 0)
    except CudakitError:
        return verdict
    if isinstance(on_zeros, Unsupported) or not on_zeros.ok:
        return verdict
    return replace(verdict, why=f"{verdict.why}{ADDS}")


def _run(
    device: Device,
    family: Ladder[Any],
    variant: Variant[Any] | None,
    case: Case,
    initial: float | None,
    watch: Watch | None = None,
) -> Comparison | Unsupported:
    """Run once. initial: the value of the outputs before the launch; None for the poison pattern."""
    stream = device.default_stream
    hosts = [place.buffer() for place in case.inputs]
    views = []
    for index, (place, host) in enumerate(zip(case.inputs, hosts, strict=True)):
        view = place.of(host)
        view[...] = case.values(index)
        views.append(view.copy())  # as stored: with a stride of 0, several values share an address
    buffers = [device.array(host, stream=stream) for host in hosts]
    inputs = [place.on(buffer, stream) for place, buffer in zip(case.inputs, buffers, strict=True)]
    if case.output is None:
        targets = [_Target(case.inputs[case.over], hosts[case.over], buffers[case.over], inputs[case.over])]
    else:
        targets = [_Target.new(place, initial, device, stream) for place in several(case.output)]
    for buffer, array in (*zip(buffers, inputs, strict=True), *((one.buffer, one.array) for one in targets)):
        restrict(buffer, array)
    output = one_or_all(tuple(target.array for target in targets))

    problem = family.problem_of(inputs, output, **case.options)
    if variant is None:
        variant = family.pick("auto", problem, device.arch)
    refusal = variant.refusal(problem, device.arch)
    if refusal is not None:
        return Unsupported(refusal)
    with nullcontext() if watch is None else watch(output):
        family.launch(device, variant, inputs, output, stream, **case.options)
        after = [target.buffer.numpy(stream=stream) for target in targets]
    results = tuple(target.place.of(host).copy() for target, host in zip(targets, after, strict=True))
    verdict = family.judge(one_or_all(results), views, variant, **case.options)
    if not verdict.ok and case.output is not None and initial is None:
        verdict = replace(verdict, why=verdict.why + still_poisoned(results))
    for number, (target, host) in enumerate(zip(targets, after, strict=True)):
        found = target.stray(host)
        if found is not None:
            at, now = found
            why = f"{variant.name} wrote outside its output: element {at:+d} from the first, now {now}"
            return replace(verdict, ok=False, why=why, stray=at, output=number)
    return verdict


@dataclass(frozen=True)
class _Target:
    """An output: its layout, the contents of its host buffer before the launch, its device buffer, and the array that
    is a view of the device buffer."""

    place: Layout
    before: np.ndarray[Any, Any]
    buffer: DeviceArray
    array: DeviceArray

    @classmethod
    def new(cls, place: Layout, initial: float | None, device: Device, stream: Any) -> _Target:
        before = place.buffer()
        if initial is not None:
            place.of(before)[...] = initial
        buffer = device.array(before, stream=stream)
        return cls(place, before, buffer, place.on(buffer, stream))

    def stray(self, after: np.ndarray[Any, Any]) -> tuple[int, Any] | None:
        """Return the first element outside of the array that a kernel changed, counted from the array's first element,
        and its new value; None if there is none."""
        self.place.of(after)[...] = self.place.of(self.before)
        found = np.flatnonzero(after.view(np.uint8) != self.before.view(np.uint8)) // after.itemsize
        if not found.size:
            return None
        return int(found[0]) - self.place.first, after[found[0]]
