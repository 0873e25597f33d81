"""The debugger: breakpoints, stepping, watchpoints, the focus, the state at faults, and the console."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from debug_sessions import SMOOTH, at, flow, launched, line_of, replies, session

import cudakit
from cudakit.debugger import attached
from cudakit.debugger.console import Console, Quit

# ---- breakpoints and stepping ----


def test_a_condition_in_a_templated_function_stops_its_thread_only() -> None:
    found = replies([f"break {at('PART')} if i == 38 && k == 1", "run", "print k", "print parts[0]", "bt", "info args"])
    assert "weighted<float, 3> (values=(const float *) 0x" in found["run"]
    assert "block (0,0,0), thread (38,0,0)]" in found["run"]
    assert found["print k"] == "$1 = 1"
    assert found["print parts[0]"] == "$2 = 76"
    frames = found["bt"].splitlines()
    assert frames[0].startswith("#0  weighted<float, 3> (")
    assert frames[0].endswith(f":{line_of('PART')}")
    assert frames[1].startswith("#1  smooth (")
    assert frames[1].endswith(f":{line_of('EVEN')}")
    assert "i = 38" in found["info args"]
    assert "factor = 2" in found["info args"]


def test_a_kernel_under_the_debugger_has_the_same_results() -> None:
    kept: list[Any] = []
    session([f"break {at('PART')} if false", "run"], lambda: kept.append(launched()[1]))
    assert (kept[0] == launched()[1]).all()


def test_steps_follow_the_thread_in_focus_through_a_divergent_branch() -> None:
    even, odd = (
        session(
            [f"break {at('AFTER')} if threadIdx.x == {thread}", "run", "next", "next", "next", "print result"],
        )
        for thread in (4, 5)
    )
    for lines, branch in ((even, "EVEN"), (odd, "ODD")):
        numbers = [int(match[1]) for line in lines if (match := re.match(r"(\d+)\t", line))]
        after = line_of("AFTER")
        assert numbers == [after, after + 1, line_of(branch), line_of("STORE")]
    assert even[-1] == "$1 = 27"  # 3 * 4 * 2 + 0 + 1 + 2
    assert odd[-1] == "$1 = -5"


def test_step_enters_a_function_and_finish_returns_its_value() -> None:
    commands = [f"break {at('EVEN')} if i == 10", "run", "step", "bt", "finish", "next", "print result"]
    found = replies(commands)
    assert "weighted<float, 3> (" in found["step"]
    assert len(found["bt"].splitlines()) == 2
    assert "weighted<float, 3> returned 63" in found["finish"]
    assert found["next"].startswith(f"{line_of('STORE')}\t")
    assert found["print result"] == "$1 = 63"


def test_next_does_not_enter_a_function() -> None:
    found = replies([f"break {at('EVEN')} if i == 10", "run", "next"])
    assert found["next"].startswith(f"{line_of('STORE')}\t")


def test_stepi_executes_one_instruction() -> None:
    found = replies([f"break {at('AFTER')}", "run", "info line", "stepi", "disassemble"])
    lines = [line for line in found["disassemble"].splitlines() if line.startswith("=>")]
    assert len(lines) == 1
    assert lines[0].split("  ", 2)[-1].strip() not in found["info line"]


def test_a_breakpoint_stops_each_time_and_counts() -> None:
    commands = [
        f"break {at('PART')} if i == 2",
        "run",
        "continue",
        "ignore 1 1",
        "info breakpoints",
        "delete",
        "continue",
    ]
    found = replies(commands)
    assert "stopped 2 times" in found["info breakpoints"]
    assert "Breakpoint 1" in found["continue"] or found["continue"] == ""


def test_a_temporary_breakpoint_stops_once() -> None:
    lines = session([f"tbreak {at('PART')}", "run", "info breakpoints", "continue"])
    assert lines.count("No breakpoints.") == 1
    assert sum("Temporary breakpoint 1, " in line for line in lines) == 1


def test_breakpoints_at_functions_by_any_of_their_names() -> None:
    for name in ("weighted", "weighted<float, 3>", "weighted<float,3>"):
        assert "weighted<float, 3> (" in replies([f"break {name}", "run"])["run"]


def test_a_line_without_code_stops_at_the_next_one() -> None:
    commands = [f"break {SMOOTH.name}:{line_of('AFTER') - 1}", "run", f"break {line_of('STORE') + 1}"]
    assert f"\n{line_of('AFTER') - 1}\t" in replies(commands)["run"]
    found = replies([f"break {at('INDEX')}", "run", f"break {line_of('TOTAL') - 3}", "continue"])
    assert "weighted" in found["continue"]


def test_only_the_chosen_block_and_thread_stop() -> None:
    found = replies([f"break {at('STORE')} if blockIdx.x == 1 && threadIdx.x == 7", "run", "print i"])
    assert "block (1,0,0), thread (7,0,0)]" in found["run"]
    assert found["print i"] == "$1 = 71"


def test_a_wrong_condition_stops_and_is_named() -> None:
    found = replies([f"break {at('STORE')} if missing > 3", "run"])
    assert "the condition 'missing > 3' has no value: no variable 'missing' at this line" in found["run"]


def test_several_breakpoints_at_one_line(tmp_path: Path) -> None:
    commands = ["break @END if i == 5", "tbreak @END if i == 6", "break @END if (size_t)i == 5", "run", "continue"]
    found = flow(commands, tmp_path)
    assert "thread (5,0,0)" in found["run"]
    assert "thread (6,0,0)" in found["continue"]


def test_until_stops_the_thread_in_focus_only(tmp_path: Path) -> None:
    found = flow(["break @SUM if i == 4", "run", "delete", "until @END", "info breakpoints"], tmp_path)
    assert "thread (4,0,0)" in found["until @END"]
    assert found["info breakpoints"] == "No breakpoints."


# ---- watchpoints, focus, state ----


def test_a_watchpoint_names_the_thread_and_the_line_that_write_a_shared_element() -> None:
    found = replies(["break smooth", "run", "watch tile[5]", "continue"])
    assert found["continue"].startswith("Watchpoint 2: tile[5]")
    assert "new value = 5" in found["continue"]
    assert f"written by block (0,0,0), thread (5,0,0) at {SMOOTH}:{line_of('TILE')}" in found["continue"]


def test_a_watchpoint_on_a_global_element_and_on_a_variable() -> None:
    found = replies(["break smooth", "run", "watch out[70]", "delete 1", "continue"])
    assert f"written by block (1,0,0), thread (6,0,0) at {SMOOTH}:{line_of('STORE')}" in found["continue"]
    commands = [f"break {at('PART')} if i == 6", "run", "watch parts[1]", "delete 1", "continue", "print k"]
    found = replies(commands)
    assert "new value = 13" in found["continue"]
    assert found["print k"].startswith("$1 = 1")


FILLED = """
extern "C" __global__ void fill(float* out) {
    __shared__ int tile[4];
    __shared__ unsigned char flags[8];
    int i = threadIdx.x;
    if (i == 1) tile[1] = -1; // TILE
    if (i == 2) flags[2] = 255; // FLAG
    if (i == 3) out[3] = __int_as_float(-1); // OUT
    __syncthreads();
    out[i] = tile[1] + flags[2];
}
"""


def test_a_first_store_of_the_bits_that_unwritten_memory_has_is_a_change(tmp_path: Path) -> None:
    source = tmp_path / "fill.cu"
    source.write_text(FILLED)

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        device.compile(source)["fill"].launch(device.default_stream, grid=1, block=4, args=(device.empty(4),))
        device.synchronize()

    for text, mark, value in (("tile[1]", "TILE", "-1"), ("flags[2]", "FLAG", "255"), ("out[3]", "OUT", "-nan")):
        found = replies(["break fill", "run", f"watch {text}", "continue"], launch)
        assert found[f"watch {text}"].endswith("now <uninitialised>")
        assert "old value = <uninitialised>" in found["continue"]
        assert f"new value = {value}" in found["continue"]
        assert f"{source}:{line_of(mark, source)}" in found["continue"]


def test_the_focus_moves_to_other_threads_and_blocks() -> None:
    commands = [f"break {at('PART')}", "run", "cuda block (1,0,0) thread (2,0,0)", "print i", "cuda thread 3", "bt"]
    found = replies([*commands, "cuda warp 1 lane 4", "cuda block (9,0,0)", "thread (64,0,0)", "up", "print result"])
    assert "block (1,0,0), thread (2,0,0)" in found["cuda block (1,0,0) thread (2,0,0)"]
    assert found["print i"] == "$1 = 66"
    assert found["bt"].startswith("#0  smooth (")  # an odd thread is not in the function
    assert "thread (36,0,0)" in found["cuda warp 1 lane 4"]
    assert "block (9,0,0) is not running" in found["cuda block (9,0,0)"]
    assert "thread (64,0,0) is not in the block of 64x1x1 threads" in found["thread (64,0,0)"]
    assert "#1  smooth (" in found["up"]


def test_the_states_of_threads_barriers_and_shared_memory() -> None:
    found = replies(
        [f"break {at('PART')} if i == 0", "run", "info threads", "info warps", "info shared", "info blocks"]
    )
    stopped, others = found["info threads"].splitlines()[1:]
    assert stopped.startswith("*  (0,0,0)     (0,0,0)  (1,0,0)   (62,0,0)  64     script.cu:")
    assert stopped.endswith("weighted<float, 3>  stopped, with gaps")
    assert f"script.cu:{line_of('ODD')}" in others
    assert "0x55555555" in found["info warps"]
    assert "0xaaaaaaaa" in found["info warps"]
    assert "tile: 256 of 256 bytes are initialised" in found["info shared"]
    assert f"store by thread (0,0,0) to (63,0,0) at {SMOOTH.name}:{line_of('TILE')}" in found["info shared"]
    assert "grid of 2 blocks: 0 have ended, 2 run together" in found["info blocks"]


WAITING = r"""
extern "C" __global__ void waiting(float *out) {
    __shared__ float tile[64];
    if (threadIdx.x >= 32) {
        asm volatile("bar.sync 1, 64;");
    } else {
        tile[threadIdx.x] = 1; // HERE
        asm volatile("bar.sync 1, 64;");
    }
    out[threadIdx.x] = tile[threadIdx.x % 32];
}
"""


def test_threads_that_wait_at_a_barrier_are_shown() -> None:
    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        kernel = device.compile(source=WAITING, name="waiting.cu")["waiting"]
        kernel.launch(device.default_stream, grid=1, block=64, args=(device.zeros(64),))
        device.synchronize()

    found = replies(["break waiting.cu:7", "run", "info barriers", "info threads"], launch)
    waits = "barrier 1, at which 32 of 64 threads have arrived"
    assert found["info barriers"].startswith(
        "32 threads, block (0,0,0) thread (32,0,0) to block (0,0,0) thread (63,0,0)"
    )
    assert found["info barriers"].endswith(f"wait at waiting.cu:5 for {waits}")
    assert f"waits for {waits}" in found["info threads"].splitlines()[-1]


def test_a_race_report_opens_the_debugger_at_the_fault() -> None:
    lines: list[str] = []
    console = Console(["print i", "print tile[1]", "print next", "info shared"], lambda p: None, lines.append)
    console.session.on_report = True
    with attached.attached(console), pytest.raises(Quit):
        launched("race", 1)
    text = "\n".join(lines)
    assert "data race: " in text
    assert f"{SMOOTH.name}:{line_of('RACE')}" in text
    assert "$1 = 0" in text
    assert "$2 = 1" in text
    assert f"at {SMOOTH.name}:{line_of('RACY')}" in text


def test_optimised_code_has_lines_and_registers_and_says_so() -> None:
    commands = [
        f"break {at('STORE')}",
        "run",
        "print result",
        "info locals",
        "info registers",
        "print threadIdx.x",
        "step",
    ]
    found = replies(commands, variables=False)
    assert "smooth () at" in found["run"]
    assert "optimised and has lines and registers only; compile it with -G" in found["print result"]
    assert "optimised and has lines and registers only" in found["info locals"]
    assert re.search(r"^%r\d+ +b32 +\d+  0x", found["info registers"], re.MULTILINE)
    assert found["print threadIdx.x"] == "$1 = 0"


def test_a_function_that_is_inlined_is_named_in_the_backtrace() -> None:
    inlined = '__device__ float twice(float x) {\n    return x * x;\n}\nextern "C" __global__ void k(float *x) {\n'
    inlined += "    x[threadIdx.x] = twice(x[threadIdx.x]);\n}\n"

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        device.compile(source=inlined, name="inlined.cu")["k"].launch(
            device.default_stream, grid=1, block=32, args=(device.zeros(32),)
        )
        device.synchronize()

    found = replies(["break inlined.cu:2", "run", "bt"], launch, variables=False)
    assert re.search(r"inlined at .*inlined\.cu:5", found["bt"])


def test_watchpoints_on_a_bit_field_and_through_a_reference(tmp_path: Path) -> None:
    found = flow(["break @A if i == 2", "run", "watch bits.b", "continue", "print bits.a"], tmp_path)
    assert "new value = 2" in found["continue"]
    assert found["print bits.a"] == "$1 = 1"
    found = flow(["break @CALL if i == 3", "run", "watch sum", "continue"], tmp_path)
    assert f"thread (3,0,0) at {tmp_path / 'flow.cu'}:{line_of('BYREF', tmp_path / 'flow.cu')}" in found["continue"]


ENDLESS = """
__global__ void endless(volatile int* flag, int* out) {
    int turns = 0;
    while (*flag == 0) {
        turns++; // TURN
    }
    out[0] = turns;
}
"""


def test_ctrl_c_stops_an_endless_kernel() -> None:
    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        flag, out = device.zeros(1, "int32"), device.zeros(1, "int32")
        kernel = device.compile(source=ENDLESS, name="endless.cu")["endless"]
        kernel.launch(device.default_stream, grid=1, block=1, args=(flag, out))
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        device.synchronize()

    commands = ["break endless.cu:7", "run", "print turns > 0", "set var *flag = 1", "continue", "print *flag"]
    found = replies(commands, launch)
    assert re.search(r"^[45]\t", found["run"], re.MULTILINE)
    assert found["print turns > 0"] == "$1 = true"
    assert found["print *flag"] == "$2 = 1"  # at the breakpoint after the loop


def test_no_command_ends_a_session(tmp_path: Path) -> None:
    odd = ["print/d (float)0 / 0", "cuda warp (0,0,0)", "print 08", "print 'x", "x/3i pair", "disable 99", "break 3 if"]
    found = flow(["break @END if i == 1", "run", *odd, "print i"], tmp_path)
    assert found["print i"].endswith(" = 1")
    assert all(found[one] for one in odd)


# ---- the console ----


def test_unknown_and_ambiguous_commands_are_named() -> None:
    lines = session(["brake 3", "u", "info nothing", "print 1", "break 12", "step"])
    text = "\n".join(lines)
    assert "no command 'brake'" in text
    assert "break" in text
    assert "info has no 'nothing'" in text
    assert "no thread is stopped: set a breakpoint and let the script run" in text
    assert "no kernel is stopped, so line 12 needs its file: break FILE.cu:12" in text
