"""`cudakit debug --dap`: sessions of a client of the Debug Adapter Protocol, in processes of their own."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from debug_client import RECORDS, Editor, normalised
from paths import ROOT

from cudakit.debugger.dap_messages import Channel, Malformed, RequestError

KERNEL = """struct Range { float low, high; int steps[3]; };

__device__ float scaled(const float* x, int i, float factor) {
    float value = x[i] * factor;
    return value + 1.0f;
}

extern "C" __global__ void scale(const float* x, float* y, int n, Range range) {
    __shared__ float tile[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    tile[threadIdx.x] = i;
    __syncthreads();
    if (i < n) {
        float s = scaled(x, i, range.high);
        y[i] = s + tile[0];
    }
}
"""
SCRIPT = """import numpy as np
import cudakit

device = cudakit.Device()
kernel = device.compile("scale.cu")["scale"]
x, y = device.array(np.arange(60, dtype=np.float32)), device.zeros(60)
values = np.zeros(1, [("low", "f4"), ("high", "f4"), ("steps", "i4", 3)])
values["low"], values["high"], values["steps"] = -1, 2, [7, 8, 9]
kernel.launch(device.default_stream, grid=2, block=32, args=(x, y, 60, values[0]))
print("results", y.numpy()[[1, 37]])
"""
LOOP = """
extern "C" __global__ void wait(volatile int* flag) {
    int rounds = 0;
    while (*flag == 0) rounds++;
}
"""
LOOPING = """import cudakit
device = cudakit.Device()
flag = device.zeros(1, "int32")
device.compile(source=LOOP)["wait"].launch(device.default_stream, grid=1, block=1, args=(flag,))
try:
    flag.numpy()
finally:
    print("cleaned up")
""".replace("LOOP", repr(LOOP))


def line_of(text, source=KERNEL):
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale.cu").write_text(KERNEL, encoding="utf-8")
    (tmp_path / "run.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def write(folder, text):
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


# ---- a whole session, recorded ----


def whole_session(folder):
    """A session from the first request to the last one: breakpoints, variables, steps, the debug console, the end."""
    source = {"path": str(folder / "scale.cu"), "name": "scale.cu"}
    with Editor() as editor:
        editor.initialize()
        editor.event("initialized")
        wanted = [{"line": line_of("float value"), "condition": "i == 37"}, {"line": line_of("tile[threadIdx") - 1}]
        editor("setBreakpoints", source=source, breakpoints=[{"line": 1}])
        editor("setBreakpoints", source=source, breakpoints=wanted)
        editor("setExceptionBreakpoints", filters=["report"])
        editor("launch", program=str(folder / "run.py"), cwd=str(folder), args=["--größe", "✓"])
        editor("configurationDone")
        editor.event("stopped")  # in the line after the one without code, all threads
        editor("setBreakpoints", source=source, breakpoints=wanted[:1])
        editor("continue", threadId=2)
        thread = editor.event("stopped")["threadId"]
        editor("threads")
        frames = editor("stackTrace", threadId=thread)["stackFrames"]
        for frame in frames[:2]:
            for scope in editor("scopes", frameId=frame["id"])["scopes"]:
                if scope["expensive"]:
                    continue
                for variable in editor.inside(scope).values():
                    if variable["variablesReference"]:
                        editor.inside(variable, start=0, count=2)
        editor("evaluate", expression="x[i] * 2", frameId=frames[0]["id"], context="watch")
        editor("evaluate", expression="info threads", frameId=frames[0]["id"], context="repl")
        editor("next", threadId=thread)
        editor.event("stopped")
        top = editor.top(thread)
        local = editor("scopes", frameId=top["id"])["scopes"][0]
        editor("setVariable", variablesReference=local["variablesReference"], name="value", value="i + 0.5")
        editor("stepOut", threadId=thread)
        editor.event("stopped")
        editor("next", threadId=thread)
        editor.event("stopped")
        editor("continue", threadId=thread)
        editor.finish()
        return normalised(editor.messages, folder)


def test_a_session_from_launch_to_disconnect_is_as_recorded(folder):
    folder = folder / "größe ✓"
    folder.mkdir()
    for name in ("run.py", "scale.cu"):
        (folder.parent / name).rename(folder / name)
    found = whole_session(folder).splitlines()
    recorded = (RECORDS / "session.jsonl").read_text(encoding="utf-8").splitlines()
    for number, (line, expected) in enumerate(zip(found, recorded, strict=False), 1):
        assert json.loads(line) == json.loads(expected), f"message {number}; `python {__file__}` records the session"
    assert len(found) == len(recorded)


# ---- breakpoints ----


def test_breakpoints_move_wait_and_are_replaced(folder):
    source = folder / "scale.cu"
    empty = line_of("const int i") + 1
    wanted = [
        {"line": empty},
        {"line": line_of("y[i]"), "condition": "i == ("},
        {"line": line_of("y[i]"), "hitCondition": "often"},
        {"line": 900},
    ]
    with Editor() as editor:
        states = editor.start(folder / "run.py", source, wanted, cwd=str(folder))
        assert [state["verified"] for state in states] == [False] * 4
        assert "launched" in states[0]["message"]
        assert "'i == ('" in states[1]["message"]
        assert ">= N" in states[2]["message"]
        stop = editor.event("stopped")
        assert (stop["reason"], stop["hitBreakpointIds"]) == ("breakpoint", [states[0]["id"]])
        changed = [m["body"]["breakpoint"] for m in editor.messages if m.get("event") == "breakpoint"]
        assert [(one["id"], one["verified"], one.get("line")) for one in changed] == [
            (states[0]["id"], True, empty + 1),
            (states[3]["id"], False, None),
        ]
        assert "no code at line 900" in changed[1]["message"]
        # the first one stays as it is; the second one stops at the second block's warp only, which is a stop of its own
        wanted = [wanted[0], {"line": line_of("float s ="), "condition": "blockIdx.x == 1 && threadIdx.x > 25"}]
        again = editor("setBreakpoints", source={"path": str(source)}, breakpoints=wanted)["breakpoints"]
        assert again[0]["id"] == states[0]["id"]
        editor("continue", threadId=stop["threadId"])
        second = editor.event("stopped")
        assert second["hitBreakpointIds"] == [again[1]["id"]]
        assert editor.evaluate("i") == "58"
        lines = editor("breakpointLocations", source={"path": str(source)}, line=empty, endLine=empty + 2)
        assert [one["line"] for one in lines["breakpoints"]] == [empty + 1, empty + 2]
        editor("continue", threadId=second["threadId"])
        assert editor.finish() == 0


def test_log_points_and_hit_counts_and_functions(folder):
    text = SCRIPT.replace("print(", "for _ in range(3):\n    kernel.launch(device.default_stream, grid=2, block=32, "
                          "args=(x, y, 60, values[0]))\nprint(")  # fmt: skip
    source = folder / "scale.cu"
    wanted = [
        {"line": line_of("y[i]"), "logMessage": "block {blockIdx.x} has {range.high}", "condition": "i > 30"},
        {"line": line_of("float s ="), "hitCondition": ">= 4"},
    ]
    with Editor() as editor:
        editor.start(write(folder, text), source, wanted, cwd=str(folder), functions=["no_such"])
        editor.event("stopped")
        launches = editor.output("console").count("block 0 has 2\n")
        assert launches == 3
        assert editor.output("console").count("block 1 has 2  (28 threads)\n") == 3
        editor("setFunctionBreakpoints", breakpoints=[{"name": "scaled"}])
        editor("setBreakpoints", source={"path": str(source)}, breakpoints=[])
        editor("continue", threadId=2)
        stop = editor.event("stopped")
        assert stop["reason"] == "function breakpoint"
        assert editor.top(stop["threadId"])["name"] == "scaled"
        editor("setFunctionBreakpoints", breakpoints=[])
        editor("continue", threadId=2)
        assert editor.finish() == 0


# ---- the stopped kernel ----


def test_values_are_expanded_changed_watched_and_read(folder):
    with Editor() as editor:
        line = line_of("tile[threadIdx")
        editor.start(folder / "run.py", folder / "scale.cu", [{"line": line}], cwd=str(folder))
        thread = editor.event("stopped")["threadId"]
        frame = editor.top(thread)["id"]
        assert (editor.top(thread)["line"], editor.top(thread)["name"]) == (line, "scale")

        arguments = editor.scope("Arguments", frame)
        members = editor.inside(arguments["range"])
        assert (members["high"]["value"], members["high"]["type"]) == ("2", "float")
        steps = editor.inside(members["steps"], filter="indexed", start=1, count=1)
        assert [(v["name"], v["value"], v["evaluateName"]) for v in steps.values()] == [("[1]", "8", "range.steps[1]")]
        assert editor.inside(arguments["x"])["*x"]["value"] == "0"
        assert editor.evaluate("range.steps[1] + 1", format={"hex": True}, frameId=frame) == "0x9"
        assert {"threadIdx", "blockIdx", "laneid"} <= editor.scope("Built-in", frame).keys()
        assert "%tid.x" not in editor.scope("Registers", frame)

        # a write of the thread itself: the old and the new value
        tile = next(s for s in editor("scopes", frameId=frame)["scopes"] if s["name"] == "Shared memory")
        array = editor.inside(tile)["tile"]
        info = editor("dataBreakpointInfo", variablesReference=array["variablesReference"], name="[3]")
        assert info["description"] == "tile[3]"
        [state] = editor("setDataBreakpoints", breakpoints=[{"dataId": info["dataId"]}])["breakpoints"]
        assert state["verified"]
        assert editor("dataBreakpointInfo", name="1 + 2", frameId=frame)["dataId"] is None
        editor("setBreakpoints", source={"path": str(folder / "scale.cu")}, breakpoints=[])
        editor("continue", threadId=thread)
        stop = editor.event("stopped")
        assert (stop["reason"], stop["hitBreakpointIds"]) == ("data breakpoint", [state["id"]])
        assert "new value = 3" in editor.output("console")
        editor("setDataBreakpoints", breakpoints=[])

        # the array as bytes, and the target of a pointer
        data = editor("readMemory", memoryReference=array["memoryReference"], count=200)
        assert data["unreadableBytes"] == 200 - 128
        frame = editor.top(stop["threadId"])["id"]
        assert "earlier stop" in editor.refused("scopes", frameId=frame - 1)
        assert editor("setExpression", expression="tile[5]", value="2.5", frameId=frame)["value"] == "2.5"
        assert editor.evaluate("tile[5]", frameId=frame) == "2.5"
        assert "no variable 'nothing'" in editor.refused("evaluate", expression="nothing", frameId=frame)
        editor("continue", threadId=thread)
        editor.finish()


def test_steps_the_focus_and_commands_of_the_console(folder):
    source = folder / "scale.cu"
    wanted = [{"line": line_of("float s ="), "condition": "i == 3"}]
    with Editor() as editor:
        editor.start(folder / "run.py", source, wanted, cwd=str(folder))
        thread = editor.event("stopped")["threadId"]
        threads = {one["id"]: one["name"] for one in editor("threads")["threads"]}
        assert next(iter(threads)) == thread
        assert re.match(r"block \(0,0,0\) thread \(3,0,0\): scale.cu:\d+$", threads[thread])
        # an instruction, and into the function
        frame = editor.top(thread)
        reference = frame["instructionPointerReference"]
        count = 400
        listed = editor("disassemble", memoryReference=reference, instructionOffset=-200, instructionCount=count)
        assert len(listed["instructions"]) == count
        here = listed["instructions"][200]
        assert (here["address"], here["line"]) == (reference, frame["line"])
        line = editor.evaluate("-exec info line", "repl")
        assert here["instruction"].split()[0] in line
        assert f":{frame['line']}, PTX line" in line
        editor("next", threadId=thread, granularity="instruction")
        editor.event("stopped")
        assert editor.top(thread)["instructionPointerReference"] == listed["instructions"][201]["address"]
        editor("stepIn", threadId=thread)
        editor.event("stopped")
        assert editor.top(thread)["name"] == "scaled"

        # a name of a variable is an expression, even if it is a command too; others are commands
        frame = editor.top(thread)["id"]
        assert editor.evaluate("i", "repl", frameId=frame) == "3"
        assert editor.evaluate("print i @ warp", "repl", frameId=frame).split()[-1] == "31"
        assert "no command" in editor.evaluate("-exec frobnicate", "repl", frameId=frame)
        assert "cannot read" in editor.refused("evaluate", expression="info threads", frameId=frame, context="hover")

        # the focus moves, and stays although the client still names the frame of before
        editor.evaluate("cuda thread (9,0,0)", "repl", frameId=frame)
        moved = editor.event("stopped")
        assert editor.evaluate("threadIdx.x", "repl", frameId=frame) == "9"
        assert editor.evaluate("threadIdx.x", frameId=editor.top(moved["threadId"])["id"]) == "9"
        assert editor.evaluate("threadIdx.x", frameId=frame) == "3"

        editor.evaluate("finish", "repl", frameId=frame)
        editor.event("continued")
        stop = editor.event("stopped")
        assert (stop["threadId"], editor.top(stop["threadId"])["name"]) == (thread, "scale")
        # a command deletes the client's breakpoint, and out of the kernel is to its end
        editor.evaluate("delete 1", "repl")
        assert editor.event("breakpoint") == {"reason": "removed", "breakpoint": {"id": 1, "verified": False}}
        editor("stepOut", threadId=thread)
        assert editor.finish() == 0


def test_a_source_without_a_file_and_the_line_of_the_launch(folder):
    script = write(folder, SCRIPT.replace('compile("scale.cu")', f"compile(source={KERNEL!r})"))
    with Editor() as editor:
        editor.start(script, stopOnEntry=True, cwd=str(folder))
        stop = editor.event("stopped")
        assert stop["reason"] == "entry"
        frames = editor("stackTrace", threadId=stop["threadId"])["stackFrames"]
        kernel, launch = frames
        assert (launch["source"]["path"], launch["line"]) == (str(script), line_of("launch(", SCRIPT))
        assert launch["name"] == "scale<<<(2, 1, 1), (32, 1, 1)>>>"
        assert editor("scopes", frameId=launch["id"])["scopes"] == []
        text = editor("source", sourceReference=kernel["source"]["sourceReference"])["content"]
        assert text.strip() == KERNEL.strip()
        assert kernel["source"] in editor("loadedSources")["sources"]
        wanted = [{"line": line_of("y[i]")}]
        [state] = editor("setBreakpoints", source=kernel["source"], breakpoints=wanted)["breakpoints"]
        assert state["verified"]
        editor("continue", threadId=stop["threadId"])
        assert editor.event("stopped")["reason"] == "breakpoint"
        editor("disconnect")
        assert editor.process.wait(20) == 0


# ---- faults, pauses and ends ----


def test_a_fault_stops_the_kernel_and_fails_the_script(folder):
    script = write(folder, SCRIPT.replace("args=(x, y, 60,", "args=(x, y, 64,"))
    with Editor() as editor:
        editor.start(script, cwd=str(folder))
        stop = editor.event("stopped")
        assert stop["reason"] == "exception"
        assert "out-of-bounds" in stop["text"]
        info = editor("exceptionInfo", threadId=stop["threadId"])
        assert info["exceptionId"] == "out of bounds"
        assert "float value = x[i] * factor" in info["description"]
        assert editor.evaluate("i") == "60"
        editor("continue", threadId=stop["threadId"])
        assert editor.finish() == 1
        assert "out-of-bounds access" in editor.output("stderr")


def test_an_endless_kernel_is_paused_and_terminated(folder):
    with Editor() as editor:
        editor.start(write(folder, LOOPING))
        assert editor("threads")["threads"][0]["id"] == 1
        assert editor.refused("stackTrace", threadId=1) == "no kernel is stopped"
        assert editor.refused("evaluate", expression="1", context="watch") == "no kernel is stopped"
        assert "set once" in editor.evaluate("break elsewhere.cu:3", "repl")
        assert "elsewhere.cu:3" in editor.evaluate("info breakpoints", "repl")
        rounds = "0"
        while not rounds.isdigit() or int(rounds) < 5:
            editor("pause", threadId=1)
            stop = editor.event("stopped")
            assert stop["reason"] == "pause"
            rounds = editor.scope("Locals", editor.top()["id"])["rounds"]["value"]
            editor("continue", threadId=stop["threadId"])
        editor("terminate")
        assert editor.finish() == 0
        assert "cleaned up" in editor.output("stdout")


def test_output_of_c_code_and_of_children_and_an_exception(folder):
    text = """import ctypes, os, subprocess, sys
print("naïve ✓")
ctypes.CDLL(None).puts(b"from C")
os.write(1, b"from a descriptor\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
here = os.getcwd() == os.path.dirname(__file__)
print(sys.argv[1:], os.environ["WORD"], "PATH" in os.environ, here, repr(sys.stdin.read()))
raise SystemExit(3)
"""
    if sys.platform == "win32":
        text = text.replace('ctypes.CDLL(None).puts(b"from C")', 'print("from C")')
    with Editor() as editor:
        environment = {"WORD": "wort", "PATH": None}
        editor.start(write(folder, text), cwd=str(folder), args=["a b", "é"], env=environment)
        assert editor.finish() == 3
        out = editor.output("stdout")
        assert set(out.splitlines()) == {
            "naïve ✓", "from C", "from a descriptor", "from a child", "['a b', 'é'] wort False True ''"
        }  # fmt: skip


def test_the_end_of_the_input_ends_a_script_that_waits(folder):
    with Editor() as editor:
        editor.start(write(folder, "import time\nprint('waits')\ntime.sleep(100)\n"))
        editor.event("output")
        editor.channel.close()
        assert editor.process.wait(20) == 0


def test_requests_that_are_refused(folder):
    with Editor() as editor:
        editor.initialize()
        assert "program" in editor.refused("launch", cwd=str(folder))
        assert "no script" in editor.refused("launch", program=str(folder / "nothing.py"))
        assert "must be a list" in editor.refused("launch", program=str(folder / "run.py"), args="x")
        assert "launch" in editor.refused("attach")
        assert "does not support" in editor.refused("restart")
        assert "breakpoints must consist of objects" in editor.refused(
            "setBreakpoints", source={"path": "a.cu"}, breakpoints=[3]
        )
        editor("disconnect")
        assert editor.process.wait(20) == 0
        # requests that are wrong on purpose are not the protocol's
        editor.messages[:] = [m for m in editor.messages if m["type"] != "request"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"hello\r\n\r\n", "a header is needed"),
        (b"Content-Length: many\r\n\r\n", "must be a number"),
        (b"Content-Length: 99999999999\r\n\r\n", "up to"),
        (b"Content-Type: json\r\n\r\n{}", "no Content-Length"),
        (b"Content-Length: 10\r\n\r\n{}", "ended after 2 of 10 bytes"),
        (b"x" * 100_000, "a header is needed"),
    ],
)
def test_malformed_input_ends_the_session(data, error):
    with pytest.raises(Malformed, match=error):
        Channel(io.BytesIO(data), io.BytesIO()).read()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"type": "event"}', b'{"type": "request", "seq": 1, "command": 3}'])
def test_a_message_that_is_not_a_request_is_refused_and_the_next_is_read(data):
    good = b'{"type":"request","seq":2,"command":"x","arguments":{"text":"\xc3\xa9"}}'
    both = b"".join(b"content-length:%d\r\nOther: x\r\n\r\n%s" % (len(one), one) for one in (data, good))
    channel = Channel(io.BytesIO(both), io.BytesIO())
    with pytest.raises(RequestError, match=r"^a (message|request)"):
        channel.read()
    assert channel.read().text("text") == "é"
    assert channel.read() is None


def test_the_process_ends_after_malformed_input():
    command = [sys.executable, "-m", "cudakit", "debug", "--dap"]
    done = subprocess.run(command, input=b"nonsense\r\n\r\n", capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"a header is needed" in done.stdout


# ---- a port, and VS Code ----


@pytest.fixture
def port():
    command = [sys.executable, "-m", "cudakit", "debug", "--dap", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        finally:
            server.kill()


def test_a_port_serves_one_client_after_another(folder, port):
    for _ in range(2):
        with Editor(socket.create_connection(("127.0.0.1", port))) as editor:
            editor.start(write(folder, "print('served')"))
            assert editor.finish() == 0
            assert editor.output("stdout") == "served\n"


def test_the_client_with_which_vs_code_tests_debug_adapters(folder, port):
    package = "@vscode/debugadapter-testsupport"
    installed = str(ROOT / ".pytest_cache" / "npm" / "node_modules")
    environment = {**os.environ, "NODE_PATH": os.pathsep.join([installed, os.environ.get("NODE_PATH", "")])}
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", f"require.resolve('{package}')"], env=environment,
                                      capture_output=True).returncode:  # fmt: skip
        pytest.skip(f"needs node and: npm install --prefix .pytest_cache/npm {package}")
    command = [node, str(RECORDS / "vscode_session.js"), str(port), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("all sessions passed\n", 0), done.stderr


def test_the_extension_starts_the_adapter_and_describes_its_attributes():
    manifest = json.loads((ROOT / "editors" / "vscode" / "package.json").read_text(encoding="utf-8"))
    assert "main" not in manifest  # it has no code
    [debugger] = manifest["contributes"]["debuggers"]
    assert [debugger["runtime"], *debugger["runtimeArgs"]] == ["cudakit", "debug", "--dap"]
    assert "program" not in debugger  # VS Code would look for it in the extension's folder
    source = (ROOT / "cudakit" / "debugger" / "dap.py").read_text(encoding="utf-8")
    launched = source[source.index("def _launched") : source.index("def _attach")]
    read = set(re.findall(r'request\.\w+\("(\w+)"', launched)) - {"noDebug"}  # VS Code sends it
    assert debugger["configurationAttributes"]["launch"]["properties"].keys() == read
    languages = {one["id"]: one for one in manifest["contributes"]["languages"]}
    assert {one["language"] for one in manifest["contributes"]["breakpoints"]} >= set(languages)


if __name__ == "__main__":
    home = Path(tempfile.mkdtemp()) / "größe ✓"
    home.mkdir()
    os.environ.setdefault("CUDAKIT_CACHE_DIR", str(ROOT / ".pytest_cache" / "kernels"))
    (home / "scale.cu").write_text(KERNEL, encoding="utf-8")
    (home / "run.py").write_text(SCRIPT, encoding="utf-8")
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / "session.jsonl").write_text(whole_session(home), encoding="utf-8")
    shutil.rmtree(home.parent)
