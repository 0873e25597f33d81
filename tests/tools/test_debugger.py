"""The debugger: breakpoints, stepping, values of all types, watchpoints, the focus, faults, and the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit.debugger import attached, types
from cudakit.debugger.console import Console, Quit
from cudakit.debugger.expressions import bytes_of, evaluate, numbers_of
from cudakit.debugger.session import Stop
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, parse

DATA = ROOT / "tests" / "data" / "debugger"
SMOOTH = DATA / "script.cu"
TYPES = DATA / "types.cu"


def line_of(mark: str, file: Path = SMOOTH) -> int:
    """The line of a source with `// MARK`."""
    lines = file.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"// {mark}"))


def at(mark: str, file: Path = SMOOTH) -> str:
    return f"{file.name}:{line_of(mark, file)}"


def launched(kernel: str = "smooth", grid: int = 2) -> tuple[Any, Any]:
    """Launch a kernel of 64 threads per block, and return its values and results."""
    device = cudakit.Device("sim", fresh=True)
    values = np.arange(64 * grid, dtype=np.float32)
    out = device.zeros(64 * grid)
    function = device.compile(SMOOTH)[kernel]
    function.launch(device.default_stream, grid=grid, block=64, args=(device.array(values), out, 64 * grid))
    return values, out.numpy()


def session(commands: Sequence[str], run: Callable[[], object] = launched, *, variables: bool = True) -> list[str]:
    """The lines that a console prints for some commands. The kernel's last stop is followed by `quit`."""
    lines: list[str] = []
    console = Console(commands, read=lambda prompt: None, write=lambda text: lines.extend(text.split("\n")))
    with attached.attached(console, variables=variables):
        try:
            console.start()
            run()
        except Quit:
            pass
    return lines


def replies(commands: Sequence[str], run: Callable[[], object] = launched, *, variables: bool = True) -> dict[str, str]:
    """The text that a console prints after each command, up to the next one; of equal commands, after the last one."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in session(commands, run, variables=variables):
        if line.startswith("(cudakit) "):
            current = found[line.removeprefix("(cudakit) ")] = []
        else:
            current.append(line)
    return {command: "\n".join(lines).strip() for command, lines in found.items()}


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


# ---- values ----


def view_at(mark: str, file: Path, launch: Callable[[], object], check: Callable[[View], None]) -> None:
    """Call `check` with the view of all threads that stop at a line."""
    seen: list[int] = []

    class Checking(Console):
        def stopped(self, stop: Stop) -> None:
            seen.append(1)
            check(self.session.view(stop.place))

    console = Checking([f"break {at(mark, file)}", "run"], read=lambda prompt: None, write=lambda text: None)
    with attached.attached(console):
        console.start()
        launch()
    assert seen == [1]


# what each element of a row of `out` is computed from, in the source's order
ROW = (
    "odd", "letter", "negative", "byte", "small", "tall", "natural", "big", "huge", "single", "precise", "half_value",
    "brain", "halves", "quad.z", "plain", "scoped", "outer.inner.pair[1]", "outer.small + outer.negative",
    "either.bits", "grid[1][2] + watched", "*cursor + element + 2 * single", "total + counter + coefficients[1]",
    "dynamic[t] + shared_inner.low + count + flags",
)  # fmt: skip


def test_variables_of_all_types_are_what_the_kernel_computes() -> None:
    """For all threads at once: the debugger's values are those that the kernel stores after the stop."""
    shown: dict[str, Any] = {}
    out: list[Any] = []

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        results = device.zeros(24 * 32, "float64")
        values = device.array(np.arange(32, dtype=np.float32) + 0.25)
        kernel = device.compile(TYPES)["types"]
        kernel.launch(device.default_stream, grid=1, block=32, shared=128, args=(results, values, 32, 200))
        out.append(results.numpy().reshape(32, 24))

    def check(view: View) -> None:
        for text in ROW:
            value = evaluate(parse(text), view)
            if text == "halves":
                shown[text] = bytes_of(value, view).view(np.float16)[:, 1].astype(np.float64)
            else:
                shown[text] = numbers_of(value, view).astype(np.float64)
        rows = bytes_of(evaluate(parse("outer"), view), view)
        kind = evaluate(parse("outer"), view).type
        shown["text"] = re.sub(r"0x\w+", "POINTER", types.show(kind, rows[5]))
        shown["char"] = types.show(evaluate(parse("letter"), view).type, rows[5][:1])
        shown["link"] = numbers_of(evaluate(parse("outer.link->wide"), view), view)

    view_at("STORED", TYPES, launch, check)
    for column, text in enumerate(ROW):
        np.testing.assert_allclose(shown[text], out[0][:, column], rtol=1e-7, err_msg=text)
    assert shown["text"] == (
        "{<Base> = {id = 105}, inner = {low = -5, wide = 1.6666666666666667, pair = {5, 25}}, link = POINTER, "
        "small = 5, negative = -5, ready = true}"
    )
    assert (shown["link"] == np.arange(32) / 3.0).all()


def printed(*expressions: str) -> list[str]:
    """The values of expressions in thread 5 of types.cu, without their numbers."""

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        results, values = device.zeros(24 * 32, "float64"), device.array(np.arange(32, dtype=np.float32))
        kernel = device.compile(TYPES)["types"]
        kernel.launch(device.default_stream, grid=1, block=32, shared=128, args=(results, values, 32, 200))
        device.synchronize()

    found = replies([f"break {at('STORED', TYPES)} if t == 5", "run", *(f"print {e}" for e in expressions)], launch)
    return [re.sub(r"^\$\d+ = ", "", found[f"print {expression}"]) for expression in expressions]


def test_printed_values_look_as_in_gdb() -> None:
    texts = {
        "odd": "true",
        "letter": "102 'f'",
        "scoped": "Scoped::on",
        "flags": "(kRead | kExecute)",
        "halves": "{5, -5}",
        "quad": "{x = 5, y = 6, z = 7, w = 8}",
        "grid": "{{5, 1, 2}, {3, 4, -5}}",
        "either": "{number = 6, bits = 1086324736}",
        "*cursor@3": "{5, 6, 7}",
        "coefficients": "{0, 0, 0}",
        "/x natural": "0xee6b2805",
        "/t byte": "11111011",
        "/x single": "0x3f000000",
        "-7 / 2": "-3",
        "-7 % 3": "-1",
        "big >> 3": "-137438953473",
        "1 ? t : 2": "5",
        "t > 3 && values[t] == 5": "true",
        "0 && *(float*)0 == 1": "false",
        "sizeof(outer)": "48",
        "flags == kRead": "false",
        "threadIdx": "{x = 5, y = 0, z = 0}",
        "$laneid": "5",
        "0x7fffffff + 1": "-2147483648",
        "3000000000": "3000000000",
        "(unsigned char)300": "44 ','",
    }
    assert dict(zip(texts, printed(*texts), strict=True)) == texts


def test_errors_in_expressions_say_what_is_wrong() -> None:
    texts = {
        "nothing": "no variable 'nothing' at this line; in scope: ",
        "outer.missing": "Outer has no member 'missing'; its members: inner, link, small, negative, ready",
        "*(float*)0": "cannot read 4 bytes at 0x0",
        "t +": "expected a value at the end in 't +'",
        "t / 0": "division by zero",
        "sqrt(t)": "functions cannot be called in an expression",
        "outer + 1": "a number is needed, not a value of type Outer",
        "%r99999": "no register %r99999 in this function",
    }
    for text, shown in zip(texts, printed(*texts), strict=True):
        assert texts[text] in shown


def test_a_variable_over_a_warp_is_a_table_and_a_picture() -> None:
    found = replies([f"break {at('STORE')} if i == 66", "run", "print i @ warp", "print tile[0] @ block", "picture i"])
    numbers = [
        int(word) for word in re.findall(r"(?<=\s)-?\d+(?=\s|$)", re.sub(r"\(.*?\)", "", found["print i @ warp"]))
    ]
    assert numbers == list(range(64, 96))
    assert found["print tile[0] @ block"].count("64") >= 60  # tile[0] is 64 in all threads of block 1
    rows = found["picture i"].splitlines()
    assert rows[0][0] == "."  # two spaces before it are stripped
    assert rows[-2][-1] == "@"
    assert rows[-1] == "' ' is 64, '@' is 127"


def test_set_changes_what_the_kernel_computes() -> None:
    kept: list[Any] = []
    session(
        [f"break {at('STORE')} if i == 3", "run", "set var result = 12.5", "continue"], lambda: kept.append(launched())
    )
    values, out = kept[0]
    assert out[3] == 12.5
    assert out[5] == -values[5]


def test_memory_is_examined_by_address() -> None:
    found = replies([f"break {at('AFTER')}", "run", "x/4fw values", "x/2xw tile", "x/3 values + 2", "ptype tile"])
    assert found["x/4fw values"].split(":")[1].split() == ["0", "1", "2", "3"]
    assert found["x/2xw tile"].split(":")[1].split() == ["0x0", "0x3f800000"]
    assert found["x/3 values + 2"].split(":")[1].split() == ["2", "3", "4"]
    assert found["ptype tile"] == "type = float [64]"


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


FLOW = """
struct Bits { unsigned a : 3; int b : 5; };
struct Pair { int x, y; };
__device__ Bits bits;
namespace one { __device__ int total; enum class Kind { small = 3, large = 9 }; }
namespace two { __device__ int total; }
__device__ __noinline__ void bump(int& r, Pair* p) {
    r += 5; // BYREF
    p->y = 3;
}
__global__ void flow(int* out, int n) {
    int i = threadIdx.x;
    int sum = 0, found = -1;
    for (int k = 0; k < n; k++) {
        if (k == i) {
            found = k;
            continue;
        }
        sum += k * i; // SUM
        if (sum > 20)
            break;
    }
    bool large = sum > 20;
    if (i == 2) bits.a = 1; // A
    if (i == 2) bits.b = 2; // B
    if (i == 2) one::total = 11;
    if (i == 2) two::total = 22;
    Pair pair = {1, 2};
    one::Kind kind = large ? one::Kind::large : one::Kind::small;
    bump(sum, &pair); // CALL
    out[i] = sum + found + pair.x + pair.y + large + int(kind); // END
}
__global__ void brief(int* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; } // BRIEF
"""


def flow(commands: Sequence[str], tmp_path: Path, kernel: str = "flow") -> dict[str, str]:
    """The replies of a session on one of the kernels of FLOW, with 8 threads and n = 4."""
    (tmp_path / "flow.cu").write_text(FLOW)

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        out = device.zeros(8, "int32")
        device.compile(tmp_path / "flow.cu")[kernel].launch(device.default_stream, grid=1, block=8, args=(out, 4))
        device.synchronize()

    marks = {mark: str(line_of(mark, tmp_path / "flow.cu")) for mark in re.findall(r"// (\w+)\n", FLOW)}
    filled = [re.sub(r"@(\w+)", lambda match: f"flow.cu:{marks[match[1]]}", one) for one in commands]
    found = replies(filled, launch)
    return {command: found[line] for command, line in zip(commands, filled, strict=True)}


def test_variables_keep_their_values_where_branches_meet(tmp_path: Path) -> None:
    """The ranges in DWARF follow the text of the PTX: a value that one branch sets is not that of the others."""
    for thread in range(8):
        sums, sum_ = [], 0
        found_at = -1
        for k in range(4):
            if k == thread:
                found_at = k
                continue
            sums.append((k, sum_, found_at))
            sum_ += k * thread
            if sum_ > 20:
                break
        k, before, known = sums[-1]
        found = flow([f"break @SUM if i == {thread} && k == {k}", "run", "print sum", "print found"], tmp_path)
        assert (found["print sum"], found["print found"]) == (f"$1 = {before}", f"$2 = {known}")


def test_a_variable_has_no_value_before_its_declaration(tmp_path: Path) -> None:
    found = flow(
        ["tbreak @SUM if i == 7", "run", "print large", "tbreak @END if i == 7", "continue", "print kind"], tmp_path
    )
    assert "large has no value here" in found["print large"]
    assert found["print kind"] == "$1 = one::Kind::large"


def test_several_breakpoints_at_one_line(tmp_path: Path) -> None:
    commands = ["break @END if i == 5", "tbreak @END if i == 6", "break @END if (size_t)i == 5", "run", "continue"]
    found = flow(commands, tmp_path)
    assert "thread (5,0,0)" in found["run"]
    assert "thread (6,0,0)" in found["continue"]


def test_a_kernel_on_one_line_has_its_arguments(tmp_path: Path) -> None:
    found = flow(["break brief if n == 4 && x != 0", "run", "print n"], tmp_path, "brief")
    assert found["print n"] == "$1 = 4"


def test_watchpoints_on_a_bit_field_and_through_a_reference(tmp_path: Path) -> None:
    found = flow(["break @A if i == 2", "run", "watch bits.b", "continue", "print bits.a"], tmp_path)
    assert "new value = 2" in found["continue"]
    assert found["print bits.a"] == "$1 = 1"
    found = flow(["break @CALL if i == 3", "run", "watch sum", "continue"], tmp_path)
    assert f"thread (3,0,0) at {tmp_path / 'flow.cu'}:{line_of('BYREF', tmp_path / 'flow.cu')}" in found["continue"]


def test_names_in_namespaces_and_values_of_the_history(tmp_path: Path) -> None:
    prints = ["print one::total", "print two::total", "print $1 * 3", "print $", "print kind == one::Kind::small"]
    found = flow(["break @END if i == 2", "run", *prints, "print &pair == &pair"], tmp_path)
    values = [found[one].partition(" = ")[2] for one in prints]
    assert values == ["11", "22", "33", "33", "true"]


def test_until_stops_the_thread_in_focus_only(tmp_path: Path) -> None:
    found = flow(["break @SUM if i == 4", "run", "delete", "until @END", "info breakpoints"], tmp_path)
    assert "thread (4,0,0)" in found["until @END"]
    assert found["info breakpoints"] == "No breakpoints."


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


def test_debug_opens_the_prompt_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "uses_debug.py"
    script.write_text(
        "import cudakit, numpy as np\n"
        "device = cudakit.Device('sim')\n"
        f"cudakit.debug('break {at('STORE')} if i == 7', 'run')\n"
        f"kernel = device.compile({str(SMOOTH)!r})['smooth']\n"
        "x, out = device.array(np.arange(64, dtype='f')), device.zeros(64)\n"
        "kernel.launch(device.default_stream, grid=1, block=64, args=(x, out, 64))\n"
        "print('sum', out.numpy().sum())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], input="print result\ncontinue\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "$1 = -7" in done.stdout
    assert "sum " in done.stdout


SCRIPT = f"""
import sys, cudakit, numpy as np
device = cudakit.Device()
kernel = device.compile({str(SMOOTH)!r})["smooth"]
out = device.zeros(128)
kernel.launch(device.default_stream, grid=2, block=64, args=(device.array(np.arange(128, dtype="f")), out, 128))
print("arguments", sys.argv[1:], "sum", out.numpy().sum())
"""


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cudakit debug` on a script with these arguments."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "cudakit", "debug", str(script), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, cwd=ROOT)


def test_the_command_runs_a_script_with_breakpoints_and_commands(tmp_path: Path) -> None:
    done = command(
        tmp_path,
        *("--break", at("STORE"), "--if", "i == 70", "--block", "1,0,0", "--thread", "6,0,0"),
        *("-ex", "print result", "-ex", "continue", "--", "--size", "3"),
    )
    assert done.returncode == 0, done.stderr
    assert "$1 = 423" in done.stdout
    assert "arguments ['--size', '3'] sum" in done.stdout


def test_a_breakpoint_that_stops_nothing_is_a_failure(tmp_path: Path) -> None:
    for location, why in (
        (at("STORE"), "no thread came to this line with a true condition"),
        ("elsewhere.cu:3", "no launched kernel has code there; the kernels' files: script.cu"),
    ):
        done = command(tmp_path, "--break", location, "--if", "i == 1000")
        assert done.returncode == 1
        assert why in " ".join(done.stderr.split())


STENCIL = """
// the mean of an element and its neighbours; the left one is wrong at the start of a row
__global__ void blur(const float* x, float* y, int rows, int columns) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    const int column = i % columns;
    const float left = i > 0 ? x[i - 1] : 0.0f;
    const float right = column < columns - 1 ? x[i + 1] : 0.0f;
    y[i] = logf((left + x[i] + right) / 3.0f); // BLUR
}
"""
NUMBERS = """
import cudakit, numpy as np
device = cudakit.Device()
x = np.ones((4, 8), np.float32)
x[2] = [{row}] * 8
y = device.zeros((4, 8))
kernel = device.compile("stencil.cu")["blur"]
kernel.launch(device.default_stream, grid=1, block=32, args=(device.array(x), y, 4, 8))
print(y.numpy()[3, 0])
"""


def numbers(tmp_path: Path, row: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cudakit debug` on a stencil over rows of ones; `row`: the elements of row 2."""
    (tmp_path / "stencil.cu").write_text(STENCIL)
    (tmp_path / "blurred.py").write_text(NUMBERS.format(row=row))
    line = [sys.executable, "-m", "cudakit", "debug", "blurred.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)


def test_who_names_the_wrong_neighbour_of_a_stencil(tmp_path: Path) -> None:
    done = numbers(tmp_path, 7, "--who", "y[3, 0]")
    assert done.returncode == 0, done.stderr
    written = done.stdout.split("kernel store: y[3, 0]")[1]
    assert "thread (24, 0, 0)" in written
    assert f"stencil.cu:{line_of('BLUR', tmp_path / 'stencil.cu')}" in written
    assert "x[2, 7] = 7.0" in written  # of the row above
    assert "x[3, 0] = 1.0" in written


def test_a_trap_stops_the_script_at_the_line(tmp_path: Path) -> None:
    assert numbers(tmp_path, 7, "--trap", "nan,division").returncode == 0
    done = numbers(tmp_path, -9, "--trap", "nan,inf")
    assert done.returncode == 1
    assert f"stencil.cu:{line_of('BLUR', tmp_path / 'stencil.cu')}" in done.stderr
    assert "NaN made" in done.stderr


def test_a_comparison_with_float64_names_the_line_that_loses(tmp_path: Path) -> None:
    assert "no line loses accuracy" in numbers(tmp_path, 7, "--compare", "float64").stdout.lower()
    done = numbers(tmp_path, 7, "--trap", "everything")
    assert done.returncode == 2
    assert "everything" in done.stderr


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    assert "expected a value" in command(tmp_path, "--break", at("STORE"), "--if", "i ==").stderr
    assert "a block index is needed" in command(tmp_path, "--break", at("STORE"), "--block", "x").stderr
    missing = subprocess.run(
        [sys.executable, "-m", "cudakit", "debug", "missing.py"], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert missing.returncode == 2
    assert "there is no script 'missing.py'" in missing.stderr


@pytest.mark.parametrize("text", ["", "a b", "(1", "x[", "a.5", "'ab'", "99999999999999999999999"])
def test_text_that_is_not_an_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)
