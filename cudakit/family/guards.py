"""The guard of a resolved call: a generated function that recognises calls of one kind and makes them.

`front.apply` tries the guard of the family's last call, and of the last call with the same first shape, before it makes
a signature. A guard compares each attribute with its value when the call was resolved, and launches. The code is
generated, because function calls and tuples would cost more time than the comparisons; the methods called `text` show
examples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.family.readers import ForeignReader, Reader
from cudakit.family.resolved import ResolvedCall
from cudakit.memory.array import DeviceArray
from cudakit.memory.scratch import scratch

#: guard(inputs, out, variant, stream, options) returns the output; or None, without side effects, if the call is of
#: another kind.
Guard = Callable[[Sequence[Any], Any, Any, Any, Mapping[str, Any]], Any]

_PLAIN = (bool, int, str, type(None))


def make_guard(
    call: ResolvedCall,
    reader: Reader,
    device: Device,
    arrays: Sequence[Any],
    fresh: bool,
    variant: str,
    options: Mapping[str, Any],
) -> Guard | None:
    """Return the guard of `call`, which was made with `arrays` (inputs, then the output) and `options`. fresh: the call
    made the output itself.

    Returns None if an option is not in the family's `scalars` and not a bool, int, str or None; and for calls that
    launch nothing, because a guard detects a closed device by its kernels' modules.
    """
    if not call.launches:
        return None
    if any(name not in call.numbers and type(value) not in _PLAIN for name, value in options.items()):
        return None
    if fresh and call.family.initial is not None:
        return None  # front.apply fills the new output
    kind = _ForeignGuard if isinstance(reader, ForeignReader) else _OwnGuard
    made = kind(call, reader, device, arrays, fresh, variant, options)
    # a file name of this package, so that searches for the caller's line skip it
    exec(compile(made.text(), f"{__file__}:guard", "exec"), made.names)
    call.guard_names = made.names
    guard: Guard = made.names["guard"]
    return guard


class _OwnGuard:
    """The source of a guard for cudakit's own arrays, and its globals."""

    def __init__(
        self,
        call: ResolvedCall,
        reader: Reader,
        device: Device,
        arrays: Sequence[Any],
        fresh: bool,
        variant: str,
        options: Mapping[str, Any],
    ) -> None:
        self.call, self.reader, self.device, self.fresh, self.options = call, reader, device, fresh, options
        self.arrays = arrays
        self.inputs = len(arrays) - 1
        self.seen = range(self.inputs if fresh else self.inputs + 1)  # indexes of the arrays that the caller passed
        self.names: dict[str, Any] = {
            "call": call,
            "wanted": variant,
            "device": device,
            "scratch": functools.partial(scratch, nbytes=call.scratch_bytes),
            "attention": call.attention,
        }
        for i, launch in enumerate(call.launches):
            for name in ("words", "send", "address", "again", "retired"):
                self.names[f"{name}{i}"] = getattr(launch, name)
            for j, each in enumerate(call.maps[i]):
                self.names[f"map{i}_{j}"], self.names[f"view{i}_{j}"] = each, each.view

    def text(self) -> str:
        """Return the source of the guard. For softmax(x, y), one kernel:

        def guard(inputs, out, variant, stream, options):
            global last
            if variant != wanted or out is None or retired0 or len(options) != 0: return None
            try:
                a0, = inputs
                a1 = out
                on = default if stream is None else stream
                last0, last1, last_on = last
                if not (a0.tag is last0 and a1.tag is last1 and on.tag is last_on):
                    if not (
                        type(on) is Stream and on.context is context and not on.closed
                        and type(a0) is DeviceArray and a0.context is context and a0.dtype is dtype0
                        and a0.shape == shape0 and a0.strides == strides0
                        and a0.readonly is False and a0.pointer & 15 == 0
                        and ... the same for a1 ...
                        and not -4096 < a0.pointer - a1.pointer < 4096
                    ):
                        return None
                    last = nothing
                    words0[0] = a0.pointer
                    words0[1] = a1.pointer
                    if a0.allocation.uses.home is not on: a0.allocation.uses.add(on)
                    if a1.allocation.uses.home is not on: a1.allocation.uses.add(on)
                    last = a0.tag, a1.tag, on.tag
                if not (a0.allocation.open and a1.allocation.open): return None
            except (AttributeError, KeyError, ValueError):
                return None
            handle = on.handle
            if attention:
                call.attended(handle)
                return out
            result = send0(handle, address0, 0)
            if result[0]: again0(send0, handle, result[0])
            return out
        """
        context, default = self.device.context, self.device.default_stream
        self.names.update(context=context, default=default, Stream=Stream, DeviceArray=DeviceArray)
        tags = [f"a{i}.tag" for i in self.seen] + ["on.tag"]
        lasts = [f"last{i}" for i in self.seen] + ["last_on"]
        same = " and ".join(f"{tag} is {last}" for tag, last in zip(tags, lasts, strict=True))
        self.names["last"] = self.names["nothing"] = (None,) * len(tags)
        tests = ["type(on) is Stream and on.context is context and not on.closed"]
        for i in self.seen:
            tests += self._same_kind(i)
        pointers = [f"a{i}.pointer" for i in range(self.inputs + 1)]
        tests += self._distances(pointers)
        uses = [f"if a{i}.allocation.uses.home is not on: a{i}.allocation.uses.add(on)" for i in self.seen]
        opened = " and ".join(f"a{i}.allocation.open" for i in self.seen)
        lines = [
            "def guard(inputs, out, variant, stream, options):",
            "    global last",
            *self._first_lines(),
            "        on = default if stream is None else stream",
            f"        {', '.join(lasts)} = last",
            f"        if not ({same}):",
            f"            if not ({_joined(tests)}):",
            "                return None",
            "            last = nothing",
            *(f"            {line}" for line in self._patches(pointers, self.seen)),
            *(f"            {line}" for line in uses),
            f"            last = {', '.join(tags)}",
            f"        if not ({opened}): return None",
            "    except (AttributeError, KeyError, ValueError):",
            "        return None",
            *self._changed_numbers(),
        ]
        if self.fresh:
            self.names["shape"], self.names["dtype"] = self.call.shape, self.call.dtype
            lines.append(f"    out = a{self.inputs} = device.empty(shape, dtype, on)")
            lines += [f"    {line}" for line in self._patches(pointers, [self.inputs])]
        lines += [*self._scratch(pointers), "    handle = on.handle"]
        return "\n".join([*lines, *self._launches(), ""])

    def _same_kind(self, i: int) -> list[str]:
        """Return the tests of array i."""
        a, array = f"a{i}", self.arrays[i]
        self.names[f"dtype{i}"], self.names[f"shape{i}"], self.names[f"strides{i}"] = (
            array.dtype, array.shape, array.strides,
        )  # fmt: skip
        return [
            f"type({a}) is DeviceArray and {a}.context is context and {a}.dtype is dtype{i}",
            f"{a}.shape == shape{i} and {a}.strides == strides{i}",
            f"{a}.readonly is {array.readonly} and {a}.pointer & 15 == {array.pointer & 15}",
        ]

    def _distances(self, pointers: Sequence[str]) -> list[str]:
        """Return the tests of the distances between inputs and output. A new output shares no memory with the
        inputs."""
        if self.fresh:
            return []
        output, apart = pointers[-1], {place: bounds for place, *bounds in self.call.apart}
        tests = []
        for place in range(self.inputs):
            if place in apart:
                low, high = apart[place]
                tests.append(f"not {low} < {pointers[place]} - {output} < {high}")
            else:
                tests.append(f"{pointers[place]} == {output}")
        return tests

    def _first_lines(self) -> list[str]:
        """Return the tests of the number of arrays and of the options."""
        wrong = ["variant != wanted", "out is not None" if self.fresh else "out is None"]
        wrong += [f"retired{i}" for i in range(len(self.call.launches))]
        wrong.append(f"len(options) != {len(self.options)}")
        lines = [f"    if {' or '.join(wrong)}: return None", "    try:"]
        for name, value in self.options.items():
            if name not in self.call.numbers:
                self.names[f"option_{name}"] = value
                option = f"options[{name!r}]"
                test = f"{option} is option_{name}"
                if not (value is None or isinstance(value, bool)):
                    test = f"type({option}) is {type(value).__name__} and {option} == option_{name}"
                lines.append(f"        if not ({test}): return None")
        for name, number in self.call.numbers.items():
            self.names[f"number_{name}"] = number
            # A number of another kind needs another resolved call, which front.apply finds by its signature.
            if number.kind is not None:
                lines.append(f"        if options[{name!r}] is not number_{name}.value: return None")
            else:
                lines.append(f"        options[{name!r}]")  # a KeyError if the call has other options
        lines.append(f"        {''.join(f'a{i}, ' for i in range(self.inputs))[:-1]} = inputs")
        if not self.fresh:
            lines.append(f"        a{self.inputs} = out")
        return lines

    def _changed_numbers(self) -> list[str]:
        return [
            f"    if options[{name!r}] is not number_{name}.value: number_{name}.become(options[{name!r}])"
            for name, number in self.call.numbers.items()
            if number.kind is None
        ]

    def _patches(self, pointers: Sequence[str], roles: Sequence[int]) -> list[str]:
        """Return statements that write the addresses of some of the arrays, or of the scratch memory, and their tensor
        maps into the arguments. Those of a map: `view0_0[:] = map0_0[a0.pointer]`."""

        def address(role: int, offset: int) -> str:
            return pointers[role] + (f" + {offset}" if offset else "")

        return [
            *(
                f"words{i}[{word}] = {address(role, offset)}"
                for i, slots in enumerate(self.call.slots)
                for word, role, offset in slots
                if role in roles
            ),
            *(
                f"view{i}_{j}[:] = map{i}_{j}[{address(each.role, each.offset)}]"
                for i, maps in enumerate(self.call.maps)
                for j, each in enumerate(maps)
                if each.role in roles
            ),
        ]

    def _scratch(self, pointers: Sequence[str]) -> list[str]:
        """Return statements that write the address of the scratch memory into the arguments, if the kernels need
        some."""
        if not self.call.scratch_bytes:
            return []
        patches = self._patches([*pointers, "temporary"], [self.inputs + 1])
        return ["    temporary = scratch(on)", *(f"    {line}" for line in patches)]

    def _launches(self) -> list[str]:
        lines = ["    if attention:", "        call.attended(handle)", "        return out"]
        for i in range(len(self.call.launches)):
            lines.append(f"    result = send{i}(handle, address{i}, 0)")
            lines.append(f"    if result[0]: again{i}(send{i}, handle, result[0])")
        return [*lines, "    return out"]


class _ForeignGuard(_OwnGuard):
    """The source of a guard for another library's arrays and its current stream, and the guard's globals."""

    reader: ForeignReader

    def text(self) -> str:
        """Return the source of the guard. If the library has a checker, it replaces the tests in the `try` block:
        check(a0, a1). For softmax(x, y) on torch tensors, one kernel, on a machine with one GPU:

        def guard(inputs, out, variant, stream, options):
            global address, handle, on
            if stream is not None: return None
            if variant != wanted or out is None or retired0 or len(options) != 0: return None
            try:
                a0, = inputs
                a1 = out
                if not (
                    type(a0) is type0 and a0.is_cuda and a0.dtype is dtype0 and a0.shape == shape0
                    and a0.is_contiguous() and not a0.is_neg()
                    and ... the same for a1 ...
                ):
                    return None
            except (AttributeError, KeyError, ValueError):
                return None
            p0 = a0.data_ptr()
            p1 = a1.data_ptr()
            if not (not (p0 | p1) & 15 and not -4096 < p0 - p1 < 4096): return None
            words0[0] = p0
            words0[1] = p1
            current = current_stream(number)
            if current != address or on.closed:
                on = stream_of(device, None)
                address, handle = current, on.handle
            ...
        """
        library, names = self.reader.library, self.names
        number = self.device.context.ordinal
        names["last"] = names["nothing"] = None
        names.update(
            current_stream=library.current_stream, stream_of=self.reader.stream, address=None, on=None, number=number
        )
        tests = []
        if library.checker is not None:
            names["checker"] = library.checker
            names["check"] = library.checker([self.arrays[i].allocation.owner for i in self.seen])
            tests = [f"check({', '.join(f'a{i}' for i in self.seen)})"]
        else:
            for i in self.seen:
                tests += self._same_kind(i)
        pointers = [f"p{i}" for i in range(self.inputs + 1)]
        off = [self.arrays[i].pointer & 15 for i in self.seen]
        if any(off):
            places = [f"p{i} & 15 == {off[i]}" for i in self.seen]
        else:
            places = [f"not ({' | '.join(f'p{i}' for i in self.seen)}) & 15"]
        places += self._distances(pointers)
        lines = [
            "def guard(inputs, out, variant, stream, options):",
            "    global address, handle, on",
            "    if stream is not None: return None",
            *self._first_lines(),
            f"        if not ({_joined(tests)}):",
            "            return None",
            "    except (AttributeError, KeyError, ValueError):",
            "        return None",
            *(f"    p{i} = {library.pointer.format(f'a{i}')}" for i in self.seen),
            f"    if not ({' and '.join(places)}): return None",
            *self._changed_numbers(),
        ]
        if self.fresh:
            names["empty"] = library.maker(self.call.shape, self.call.dtype.name, number)
            lines.append("    out = empty()")
            lines.append(f"    p{self.inputs} = {library.pointer.format('out')}")
            lines.append(f"    if p{self.inputs} & 15: return None")
        lines += [f"    {line}" for line in self._patches(pointers, range(self.inputs + 1))]
        lines += [
            "    current = current_stream(number)",
            "    if current != address or on.closed:",
            "        on = stream_of(device, None)",
            "        address, handle = current, on.handle",
        ]
        return "\n".join([*lines, *self._scratch(pointers), *self._launches(), ""])

    def _same_kind(self, i: int) -> list[str]:
        library, names, a, view = self.reader.library, self.names, f"a{i}", self.arrays[i]
        array = view.allocation.owner
        names[f"type{i}"], names[f"dtype{i}"], names[f"shape{i}"] = type(array), array.dtype, view.shape
        one = library.kind == "gpu" and self.device.context.alone
        placed = library.placed if one and library.placed else f"{library.device} == number"
        tests = [f"type({a}) is type{i} and {placed.format(a)} and {library.dtype.format(a)} is dtype{i}"]
        tests.append(f"{library.shape.format(a)} == shape{i}")
        if view.is_contiguous:
            tests.append(library.contiguous.format(a))
        else:
            names[f"strides{i}"] = tuple(library.read(library.strides)(array))
            tests.append(f"{library.strides.format(a)} == strides{i}")
        if library.negated:
            tests.append(f"not {library.negated.format(a)}")
        return tests


def renew(call: ResolvedCall, device: Device, arrays: Sequence[Any]) -> None:
    """Make the guard of `call` compare with `arrays`, which the caller passed, and use the device's current default
    stream.

    A checker also compares flags that are not in the signature, such as whether gradients are recorded.
    """
    names = call.guard_names
    if "checker" in names:
        names["check"] = names["checker"](arrays)
    elif "default" in names:
        names["default"] = device.default_stream


def _joined(tests: Sequence[str]) -> str:
    return "\n                and ".join(tests)
