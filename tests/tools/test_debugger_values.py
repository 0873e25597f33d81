"""The debugger's values: variables of all types, expressions, and memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from debug_sessions import TYPES, at, flow, launched, replies, session

import cudakit
from cudakit.debugger import attached, types
from cudakit.debugger.console import Console
from cudakit.debugger.expressions import bytes_of, evaluate, numbers_of
from cudakit.debugger.session import Stop
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, parse


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


def test_a_kernel_on_one_line_has_its_arguments(tmp_path: Path) -> None:
    found = flow(["break brief if n == 4 && x != 0", "run", "print n"], tmp_path, "brief")
    assert found["print n"] == "$1 = 4"


def test_names_in_namespaces_and_values_of_the_history(tmp_path: Path) -> None:
    prints = ["print one::total", "print two::total", "print $1 * 3", "print $", "print kind == one::Kind::small"]
    found = flow(["break @END if i == 2", "run", *prints, "print &pair == &pair"], tmp_path)
    values = [found[one].partition(" = ")[2] for one in prints]
    assert values == ["11", "22", "33", "33", "true"]


@pytest.mark.parametrize("text", ["", "a b", "(1", "x[", "a.5", "'ab'", "99999999999999999999999"])
def test_text_that_is_not_an_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


UNWRITTEN = """
struct Pair { float a; int b; };
__device__ __noinline__ float first(const float* values) { return values[0]; }
extern "C" __global__ void partly(const float* x, float* y, Pair* pairs) {
    __shared__ float tile[64];
    float own[4];
    int t = threadIdx.x;
    if (t < 20) tile[t] = x[t];
    own[0] = x[t];
    if (t == 3) pairs[1].b = 7;
    __syncthreads();
    float copied = tile[t];
    float twice = 2 * copied;
    Pair pair; pair.a = copied; pair.b = t;
    __shared__ float kept[32];
    kept[t] = copied;
    char name[8]; name[0] = 'a';
    const char* text = name;
    y[t] = t < 20 ? twice : first(own); // STOP
}
"""


def test_what_was_never_written_is_not_shown_as_a_number() -> None:
    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        pairs = device.empty(24, "uint8")
        x, y = device.array(np.arange(32, dtype=np.float32)), device.empty(32)
        device.compile(source=UNWRITTEN, name="partly.cu")["partly"].launch(
            device.default_stream, grid=1, block=32, args=(x, y, pairs)
        )
        np.testing.assert_array_equal(y.numpy(), np.where(np.arange(32) < 20, 2.0, 1.0) * np.arange(32))

    expressions = ["tile", "own", "*y@2", "*pairs@2", "copied", "twice", "x[25]", "pair", "kept[24]@2", "name"]
    commands = [f"print {one}" for one in expressions]
    changes = ["set var own[1] = 5", "set var copied = 4", "set var tile[25] = 3", "set var y[0] = 1"]
    after = [
        "p own",
        "p copied",
        "p tile[25]",
        "p *y@2",
        "p copied @ warp",
        "picture copied @ warp",
        "x/2fw &tile[19]",
        "p text",
    ]
    found = replies(["break partly.cu:19 if t == 25", "run", *commands, *changes, *after, "continue"], launch)
    values = [found[one].partition(" = ")[2] for one in commands]
    assert values[0] == f"{{{', '.join(map(str, range(20)))}, <uninitialised> <repeats 44 times>}}"
    assert values[1:] == [
        "{25, <uninitialised>, <uninitialised>, <uninitialised>}",
        "{<uninitialised>, <uninitialised>}",
        "{{a = <uninitialised>, b = <uninitialised>}, {a = <uninitialised>, b = 7}}",
        *("<undefined>", "<undefined>", "25", "{a = <undefined>, b = 25}", "{<undefined>, <undefined>}"),
        "{97 'a', <uninitialised>, <uninitialised>, <uninitialised>, <uninitialised>, <uninitialised>, "
        "<uninitialised>, <uninitialised>}",
    ]
    assert found["p text"].endswith(' "a"')
    assert [found[one].partition(" = ")[2] for one in after[:4]] == [
        *("{25, 5, <uninitialised>, <uninitialised>}", "4", "3", "{1, <uninitialised>}")
    ]
    assert found["p copied @ warp"].count("<undefined>") == 11
    assert found["picture copied @ warp"].splitlines()[0].endswith("_____:______")
    assert found["x/2fw &tile[19]"].split(":")[1].split() == ["19", "<uninitialised>"]


SELECTIONS = """
__global__ void select(int* out, const int* in) {
    int i = threadIdx.x;
    int a = in[i], b = in[i + 32], c = in[i + 64];
    int m = a > 0 ? b : c;
    int low = b < 16 ? b : 16;
    out[i] = m + low; // FIRST
    if (b < 1000) {
        out[i] = c + m; // INSIDE
        c = 4;
        a += 1;
    } else { a = 3; }
    int w = a > 0 ? m : c;
    out[i + 32] = c + a + b; // MERGED
    c = b;
    for (int k = 0; k < 3; k++) { w = k > 1 ? w + c : w; if (w > 40) break; c++; }
    out[i + 64] = a + b + c + m + w + low; // LAST
}
"""


def selected(a: int, b: int, c: int) -> dict[str, dict[str, int]]:
    """The values of the variables of SELECTIONS at its marks."""
    values = {"a": a, "b": b, "c": c, "m": b if a > 0 else c, "low": min(b, 16)}
    found = {"FIRST": dict(values), "INSIDE": dict(values)}
    values |= {"a": a + 1, "c": 4} if b < 1000 else {"a": 3}
    values["w"] = values["m"] if values["a"] > 0 else values["c"]
    found["MERGED"] = dict(values)
    values["c"] = b
    for k in range(3):
        values["w"] += values["c"] if k > 1 else 0
        if values["w"] > 40:
            break
        values["c"] += 1
    found["LAST"] = values
    return found


def test_variables_keep_their_values_beside_selections(tmp_path: Path) -> None:
    """A selection copies its operands to one register, in branches that meet again."""
    source = tmp_path / "select.cu"
    source.write_text(SELECTIONS)
    operands = np.random.default_rng(0).integers(-40, 40, (3, 32)).astype(np.int32)
    operands[1, 5] = 2000

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        kernel = device.compile(source)["select"]
        kernel.launch(device.default_stream, grid=1, block=32, args=(device.zeros(96, "int32"), device.array(operands)))
        device.synchronize()

    for mark in ("FIRST", "INSIDE", "MERGED", "LAST"):
        expected = [selected(*map(int, column)) for column in operands.T]

        def check(view: View, mark: str = mark, expected: Any = expected) -> None:
            lanes = view.f.lanes.lanes[view.positions]
            for name in expected[0][mark]:
                shown = numbers_of(evaluate(parse(name), view), view)
                assert shown.tolist() == [expected[lane][mark][name] for lane in lanes.tolist()], (mark, name)

        view_at(mark, source, launch, check)
