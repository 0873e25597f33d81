"""A client of the debug adapter, for tests: debugpy's implementation of the protocol's messages, which also runs in the
Python debugger of VS Code. Each message is checked by the protocol's schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from functools import lru_cache
from typing import Any

import pytest
from paths import TESTS
from schemas import MISSING, SCHEMAS

messaging = pytest.importorskip(
    "debugpy.common.messaging", reason="the `test` extra has debugpy, whose client talks to the adapter"
)

# seconds until a session that does not end is killed
_PATIENCE = 60


class Stream(messaging.JsonIOStream):
    """Notes all messages in the order in which they are sent and received."""

    messages: list[dict[str, Any]]

    def read_json(self, decoder=None):
        try:
            message = super().read_json(decoder)
        except messaging.NoMoreMessages:
            raise
        except Exception as error:  # it would end the client's thread, and leave requests without an answer
            raise messaging.NoMoreMessages(f"not a message: {error}", stream=self) from None
        self.messages.append(json.loads(json.dumps(message)))
        return message

    def write_json(self, value, encoder=None):
        self.messages.append(json.loads(json.dumps(value)))
        super().write_json(value, encoder)


class Editor:
    """A session with an adapter: a new process, or with `connection` a socket."""

    def __init__(self, connection=None, **environment):
        self.process = None
        if connection is None:
            command = [sys.executable, "-m", "cudakit", "debug", "--dap"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
            )
            stream = Stream.from_process(self.process, "adapter")
        else:
            stream = Stream.from_socket(connection, "adapter")
        stream.messages = self.messages = []
        self._events = []
        self._arrived = threading.Condition()
        handlers = messaging.MessageHandlers(event=self._on_event, disconnect=self._on_end)
        self.channel = messaging.JsonMessageChannel(stream, handlers)
        self.channel.start()
        self._timer = threading.Timer(_PATIENCE, self.kill)
        self._timer.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._timer.cancel()
        self.kill()
        self.channel.close()
        self.channel.wait()
        if error == (None, None, None):
            for message in self.messages:
                expect_valid(message)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _on_event(self, event):
        with self._arrived:
            self._events.append((event.event, json.loads(json.dumps(event.body))))
            self._arrived.notify_all()

    def _on_end(self):
        with self._arrived:
            self._events.append(("end", {}))
            self._arrived.notify_all()

    def __call__(self, command, **arguments):
        """Send a request; returns the response's body. Raises MessageHandlingError if it is refused."""
        body = self.channel.request(command, arguments)
        return json.loads(json.dumps(body))

    def refused(self, command, **arguments):
        """Send a request that must be refused; returns the error's text."""
        with pytest.raises(messaging.MessageHandlingError):
            self.channel.request(command, arguments)
        error = [m for m in self.messages if m["type"] == "response"][-1]["body"]["error"]
        return error["format"].replace("{text}", error["variables"]["text"])

    def event(self, name):
        """The body of the next event of a name; earlier ones of other names are skipped, except outputs."""
        with self._arrived:
            while True:
                for number, (kind, body) in enumerate(self._events):
                    if kind == name:
                        self._events[: number + 1] = [one for one in self._events[:number] if one[0] == "output"]
                        return body
                    over = kind == "end" or (kind == "terminated" and name == "stopped")
                    assert not over, f"no {name} event: {self.messages[-3:]}"
                self._arrived.wait(_PATIENCE)

    def output(self, *categories):
        """The text of all outputs so far."""
        bodies = [m["body"] for m in self.messages if m.get("event") == "output"]
        return "".join(b["output"] for b in bodies if not categories or b["category"] in categories)

    # ---- usual sequences ----

    def start(self, program, source="unused.cu", breakpoints=(), filters=("report",), functions=(), **launch):
        """Initialise, set breakpoints and launch, in the order of VS Code. Returns the breakpoints' states."""
        self.initialize()
        self.channel.send_request("launch", {"program": str(program), **launch})
        self.event("initialized")
        states = self("setBreakpoints", source={"path": str(source)}, breakpoints=list(breakpoints))["breakpoints"]
        if functions:
            self("setFunctionBreakpoints", breakpoints=[{"name": name} for name in functions])
        self("setExceptionBreakpoints", filters=list(filters))
        self("configurationDone")
        return states

    def initialize(self):
        return self(
            "initialize",
            clientID="test",
            adapterID="cudakit",
            pathFormat="path",
            linesStartAt1=True,
            columnsStartAt1=True,
            supportsVariableType=True,
            supportsVariablePaging=True,
            supportsMemoryReferences=True,
            supportsInvalidatedEvent=True,
        )

    def top(self, thread=None):
        """The innermost frame of a thread; by default of the first one in the list."""
        if thread is None:
            thread = self("threads")["threads"][0]["id"]
        return self("stackTrace", threadId=thread, startFrame=0, levels=1)["stackFrames"][0]

    def scope(self, name, frame):
        """The variables of a scope, by name."""
        scopes = self("scopes", frameId=frame)["scopes"]
        return self.inside(next(s for s in scopes if s["name"] == name))

    def inside(self, variable, **arguments):
        """The parts of a variable, by name."""
        found = self("variables", variablesReference=variable["variablesReference"], **arguments)["variables"]
        return {v["name"]: v for v in found}

    def evaluate(self, text, context="watch", **arguments):
        return self("evaluate", expression=text, context=context, **arguments)["result"]

    def finish(self):
        """The script's exit status, after its end; disconnects."""
        status = self.event("exited")["exitCode"]
        self.event("terminated")
        self("disconnect")
        if self.process is not None:
            assert self.process.wait(_PATIENCE) == status
        return status


# ---- the protocol's schema ----


@lru_cache
def _schema():
    return json.loads((SCHEMAS / "debugAdapterProtocol.json").read_text(encoding="utf-8"))


def expect_valid(message):
    """Fail unless a message is what the protocol's schema defines, with no other properties."""
    jsonschema = pytest.importorskip("jsonschema", reason=MISSING)
    kind = message["type"]
    if kind == "response" and not message["success"]:
        name = "ErrorResponse"
    else:
        word = message["event" if kind == "event" else "command"]
        name = f"{word[0].upper()}{word[1:]}{kind.capitalize()}"
    definitions = _schema()["definitions"]
    assert name in definitions, f"the protocol has no {name}"
    jsonschema.Draft4Validator({"$ref": f"#/definitions/{name}", "definitions": definitions}).validate(message)
    if kind != "request":
        unknown = sorted(_unknown({"$ref": f"#/definitions/{name}"}, message, name))
        assert not unknown, f"not in the protocol: {unknown}"


def _unknown(schema, value, path):
    """The properties of a message that its schema does not define."""
    if isinstance(value, list):
        for one in value:
            yield from _unknown(schema.get("items", {}), one, path)
    if not isinstance(value, dict):
        return
    properties, closed = _properties(schema)
    for key, inner in value.items():
        if key in properties:
            yield from _unknown(properties[key], inner, f"{path}.{key}")
        elif closed:
            yield f"{path}.{key}"


def _properties(schema):
    """The properties of a schema, and whether it has no others."""
    if "$ref" in schema:
        return _properties(_schema()["definitions"][schema["$ref"].rsplit("/", 1)[1]])
    found = dict(schema.get("properties", {}))
    closed = bool(found) and "additionalProperties" not in schema
    for part in schema.get("allOf", ()):
        inner, inner_closed = _properties(part)
        # a later definition of a property refines an earlier one
        found |= {k: v for k, v in inner.items() if k not in found or "properties" in v or "$ref" in v or "items" in v}
        closed = closed or inner_closed
    return found, closed


# ---- recorded sessions ----

RECORDS = TESTS / "data" / "debug_adapter"


def normalised(messages, folder):
    """A session's messages as lines of JSON, without numbers, addresses and paths that differ between runs."""
    lines = []
    for message in messages:
        if lines and _category(lines[-1]) == _category(message) != "":
            lines[-1]["body"]["output"] += message["body"]["output"]  # a pipe may split it
            continue
        kept = {key: value for key, value in message.items() if key not in ("seq", "request_seq")}
        if kept.get("event") == "process":
            kept["body"] = {**kept["body"], "systemProcessId": 0}
        lines.append(kept)
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n"
    text = text.replace(json.dumps(str(folder), ensure_ascii=False)[1:-1], "FOLDER")
    return re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)


def _category(message):
    """The category of an output event; "" for other messages."""
    return message["body"].get("category", "console") if message.get("event") == "output" else ""
