"""Messages of the Debug Adapter Protocol: JSON after a header, over two streams of bytes.

https://microsoft.github.io/debug-adapter-protocol/specification
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, BinaryIO

Body = dict[str, Any]

# the longest message and the longest line of a header that are read
_MOST_BYTES = 64 << 20
_MOST_HEADER = 8192


class RequestError(Exception):
    """A request cannot be carried out: the response's error. ``short`` is the response's message; the protocol defines
    "notStopped" and "cancelled"."""

    def __init__(self, text: str, short: str = "") -> None:
        super().__init__(text)
        self.short = short or text


class Malformed(Exception):
    """The input is not the protocol's, so that the next message's start is unknown."""


@dataclass(frozen=True)
class Request:
    """A request; ``seq`` is the client's number of it. The methods read an argument and raise RequestError if it is
    missing and has no default (None), or has another type."""

    seq: int
    command: str
    arguments: Body = field(default_factory=dict)

    def text(self, name: str, default: str | None = None) -> str:
        found: str = self._argument(name, str, "a string", default)
        return found

    def number(self, name: str, default: int | None = None) -> int:
        found: int = self._argument(name, int, "an integer", default)
        return found

    def flag(self, name: str) -> bool:
        found: bool = self._argument(name, bool, "true or false", False)
        return found

    def bodies(self, name: str) -> list[Request]:
        """The objects of a list; their own arguments are read in the same way. Empty if it is missing."""
        found: list[Any] = self._argument(name, list, "a list", [])
        return [self._inner(name, one) for one in found]

    def body(self, name: str) -> Request:
        """An object; empty if it is missing."""
        return self._inner(name, self._argument(name, dict, "an object", {}))

    def texts(self, name: str) -> list[str]:
        found: list[str] = self._argument(name, list, "a list of strings", [])
        if not all(isinstance(one, str) for one in found):
            raise RequestError(f"{self.command}: {name} must be a list of strings, not {json.dumps(found)[:60]}")
        return found

    def _inner(self, name: str, found: Any) -> Request:
        if not isinstance(found, dict):
            raise RequestError(f"{self.command}: {name} must consist of objects, not {json.dumps(found)[:60]}")
        return Request(self.seq, f"{self.command}: {name}", found)

    def _argument(self, name: str, kind: type, what: str, default: Any) -> Any:
        found = self.arguments.get(name)
        if found is None:
            if default is None:
                raise RequestError(f"{self.command} needs {name}: {what}")
            return default
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise RequestError(f"{self.command}: {name} must be {what}, not {json.dumps(found)[:60]}")
        return found


class Channel:
    """The connection to a client. Several threads may send."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._lock = threading.Lock()
        self._sent = 0

    # ---- receiving ----

    def read(self) -> Request | None:
        """The next request; None at the end of the input. Raises Malformed, and RequestError if the message is complete
        but not a request, so that the next one can be read."""
        size = self._read_header()
        if size is None:
            return None
        data = self._source.read(size)
        if len(data) < size:
            raise Malformed(f"the input ended after {len(data)} of {size} bytes of a message")
        try:
            message = json.loads(data)
        except ValueError as error:
            raise RequestError(f"a message is not JSON: {error}") from None
        return _request(message)

    def _read_header(self) -> int | None:
        """The bytes of the next message; None at the end of the input."""
        size: int | None = None
        first = True
        while (line := self._source.readline(_MOST_HEADER)).strip():
            name, colon, value = line.partition(b":")
            if not colon or not line.endswith(b"\n"):
                raise Malformed(f"a header is needed, such as Content-Length: 42, not {_shown(line)}")
            if name.strip().lower() == b"content-length":
                if not value.strip().isdigit() or int(value) > _MOST_BYTES:
                    raise Malformed(f"Content-Length must be a number up to {_MOST_BYTES}, not {_shown(value)}")
                size = int(value)
            first = False
        if not line and first:
            return None
        if size is None:
            raise Malformed("the header has no Content-Length")
        return size

    # ---- sending ----

    def respond(self, request: Request, body: Body | None = None) -> None:
        # some clients need a body, even if it is empty
        answer = {"type": "response", "request_seq": request.seq, "success": True, "command": request.command}
        self._send(answer | {"body": body or {}})

    def refuse(self, request: Request, error: RequestError, *, show: bool) -> None:
        """Respond with an error; `show`: the client should show it to the user."""
        detail = {"id": 1, "format": "{text}", "variables": {"text": str(error)}, "showUser": show}
        answer = {"type": "response", "request_seq": request.seq, "success": False, "command": request.command}
        self._send(answer | {"message": error.short, "body": {"error": detail}})

    def event(self, name: str, body: Body | None = None) -> None:
        self._send({"type": "event", "event": name, "body": body or {}})

    def output(self, category: str, text: str) -> None:
        """Show text to the user: `category` is "console", "important", "stdout" or "stderr"."""
        self.event("output", {"category": category, "output": text})

    def _send(self, message: Body) -> None:
        with self._lock:
            self._sent += 1
            # text from a script may have lone surrogates, which UTF-8 does not have
            data = json.dumps({"seq": self._sent, **message}, ensure_ascii=False).encode("utf-8", "replace")
            try:
                self._sink.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
                self._sink.flush()
            except (OSError, ValueError):
                pass  # the client is gone: the end of the input ends the session


def _request(message: Any) -> Request:
    if not isinstance(message, dict):
        raise RequestError(f"a message must be an object, not {json.dumps(message)[:60]}")
    seq, command, arguments = message.get("seq"), message.get("command"), message.get("arguments") or {}
    if message.get("type") != "request" or not isinstance(command, str) or not isinstance(seq, int):
        raise RequestError(f"a request has type, seq and command, not {json.dumps(message)[:60]}")
    if not isinstance(arguments, dict):
        raise RequestError(f"{command}: arguments must be an object, not {json.dumps(arguments)[:60]}")
    return Request(seq, command, arguments)


def _shown(data: bytes) -> str:
    return repr(data.strip()[:60].decode("utf-8", "replace"))
