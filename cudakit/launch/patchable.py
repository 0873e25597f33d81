"""A checked launch whose pointers and numbers are replaced in place before it is sent again.

`cudakit.family` keeps one per kernel of a call that it has seen before, so that only the values that can differ between
calls are looked up or checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudakit.launch.buffer import ArgumentBuffer
from cudakit.launch.plan import Target, sending


class PatchableLaunch:
    """One launch with its configuration checked and its arguments in place. Only one thread may use it at a time.

    words: the arguments' bytes in words of 8, in which pointers are replaced: `words[place(i)] = address`.
    send(stream handle, address, 0): cuLaunchKernel. again(send, stream handle, code): call it if send returned an error
    code. attended(send, arguments): makes the context current and returns `send` in an NVTX range, recorded if there is
    a recording; needed if `attention` is not empty. arguments: as for `following.Follower.follow`.
    retired: not empty after the module was closed.
    """

    __slots__ = ("_buffer", "address", "again", "attended", "attention", "retired", "send", "words")

    def __init__(self, target: Target, routine: str, send: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._buffer = ArgumentBuffer(target.name, target.context, target.parameters, len(arguments))
        self._buffer.convert(arguments)
        self.words = memoryview(self._buffer.memory).cast("B").cast("Q")
        self.address = self._buffer.address
        self.send = send
        names = sending(target, self.address, routine)
        self.attention, self.attended, self.again = names["attention"], names["attended"], names["send_again"]
        self.retired = target.retired

    def place(self, index: int) -> int:
        """Return the index in `words` of pointer parameter `index`."""
        return self._buffer.converters[index].parameter.offset // 8

    def bytes_of(self, index: int) -> memoryview:
        """Return the bytes of parameter `index`, such as a tensor map, for replacing them."""
        parameter = self._buffer.converters[index].parameter
        return self.words.cast("B")[parameter.offset : parameter.offset + parameter.size]

    def put(self, index: int, value: Any) -> None:
        """Replace the argument of parameter `index`, by its rules. Raises LaunchError for a value it does not take."""
        self._buffer.put(index, value)
