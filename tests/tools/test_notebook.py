"""`%load_ext cudakit` in IPython: the `%%cu` magic, and errors as a sentence and an excerpt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import cudakit

pytest.importorskip("IPython", reason="IPython is not installed: pip install 'cudakit[docs]'")

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

Cell = Callable[[str], str]

SCALE = """%%cu
__global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    try:
        yield made
    finally:
        cudakit.unload_ipython_extension(made)
        InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell: InteractiveShell, sim: cudakit.Device, capsys: pytest.CaptureFixture[str]) -> Cell:
    """Run a cell in a shell with the extension and a device `dev`, and return the output."""

    def run(text: str) -> str:
        shell.run_cell(text, store_history=True)
        said = capsys.readouterr()
        return said.out + said.err

    shell.push({"cudakit": cudakit, "dev": sim, "np": np})
    assert run("%load_ext cudakit") == ""
    return run


def test_a_cell_binds_its_kernels(cell: Cell, shell: InteractiveShell, sim: cudakit.Device) -> None:
    assert cell(SCALE + "namespace ns { __global__ void other(int* p) {} }") == ""
    scale, x = shell.user_ns["scale"], sim.array(np.ones(5, np.float32))
    assert shell.user_ns["other"].signature == "ns::other(int*)"
    scale.launch(sim.default_stream, grid=1, block=8, args=(x, 3.0, 5))
    assert (x.numpy() == 3).all()


def test_a_cell_binds_its_module_to_a_name(cell: Cell, shell: InteractiveShell) -> None:
    source = "template <int N> __global__ void fill(TYPE* x) { x[0] = N; }"
    assert cell(f'%%cu fills --names "fill<4>" --names fill<2> --defines TYPE=int\n{source}') == ""
    assert list(shell.user_ns["fills"]) == ["fill<4>", "fill<2>"]
    assert "fill" not in shell.user_ns


def test_options_reach_the_compiler(cell: Cell, shell: InteractiveShell) -> None:
    line = "%%cu made --std c++20 --no-fmad --max_registers 32 --no-line_info --options=--use_fast_math"
    assert cell(f"{line}\n{SCALE.partition(chr(10))[2]}") == ""
    options = shell.user_ns["made"].compiled.options
    for option in ("--std=c++20", "--fmad=false", "--maxrregcount=32", "--use_fast_math"):
        assert option in options
    assert "-lineinfo" not in options


def test_kernels_that_no_variable_can_be_named_after_are_mentioned(cell: Cell, shell: InteractiveShell) -> None:
    said = cell("%%cu\n__global__ void k(int*) {} __global__ void k(float*) {} __global__ void one() {}")
    assert "2 more kernels" in said
    assert "%%cu NAME" in said
    assert "k" not in shell.user_ns
    assert "one" in shell.user_ns


def test_the_device_is_the_open_one_or_named(cell: Cell, shell: InteractiveShell, sim: cudakit.Device) -> None:
    cell(SCALE)
    assert shell.user_ns["scale"].context is sim.context
    cell(SCALE.replace("%%cu", "%%cu --device sim:sm_80"))
    assert shell.user_ns["scale"].context.spec == "sim:sm_80"
    with cudakit.Device("sim:sm_100", fresh=True) as second:
        shell.push({"second": second})
        assert "choose one with --device" in cell(SCALE)
        cell(SCALE.replace("%%cu", "%%cu --device second"))
        assert shell.user_ns["scale"].context is second.context


def test_a_compile_error_is_a_sentence_and_an_excerpt(cell: Cell) -> None:
    said = cell("%%cu\n__global__ void wrong(float* x) {\n    x[0] = y;\n}")
    assert said.splitlines() == [
        "CompileError: <cell 2> does not compile for sm_90a: 1 error",
        "<cell 2>:",
        "  1 | //%%cu",
        "  2 | __global__ void wrong(float* x) {",
        "> 3 |     x[0] = y;",
        '    |            ^ error: identifier "y" is undefined',
        "  4 | }",
        "",
    ]


def test_a_fault_names_cells_and_none_of_our_frames(cell: Cell) -> None:
    cell(SCALE.replace("i < n", "i <= n"))
    cell("x = dev.zeros(5)")
    cell("\nscale.launch(dev.default_stream, 1, 8, args=(x, 2.0, 5))")
    said = cell("y = 1\ndev.synchronize()")
    assert "out-of-bounds access" in said
    assert "  at <cell 2>:4\n      if (i <= n) x[i] *= factor;\n" in said
    assert "launched at <cell 4>:" in said
    assert "made at <cell 3>:1" in said
    assert "      x = dev.zeros(5)\n" in said
    assert "----> 2 dev.synchronize()" in said
    assert "/cudakit/" not in said
    assert len(said.splitlines()) < 20


def test_an_error_of_a_plain_call_shows_the_callers_line_alone(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    cell(SCALE)
    launch = "def twice(x):\n    scale.launch(dev.default_stream, 1, 8, args=(x,))\ntwice(3)"
    said = cell(launch)
    assert "LaunchError: scale: takes 3 arguments" in said
    assert "----> 3 twice(3)" in said
    assert "----> 2     scale.launch" in said
    assert "/cudakit/" not in said
    monkeypatch.setenv("CUDAKIT_TRACEBACK", "full")
    assert "/cudakit/launch/kernel.py" in cell(launch)


def test_a_bug_shows_all_frames(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(cudakit.Device, "stream", broken)
    assert "broken" in cell("dev.stream()")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("--nope", "unrecognized arguments: --nope"),
        ("not-a-name", "must be a name of Python"),
        ("class", "must be a name of Python"),
        ('"open', "No closing quotation"),
        ("--device nosuch", "not a variable that holds a Device, and unknown device 'nosuch'; use 'gpu'"),
    ],
)
def test_wrong_options_are_one_sentence(cell: Cell, line: str, match: str) -> None:
    said = cell(f"%%cu {line}\n__global__ void k() {{}}")
    assert match in said
    assert "Traceback" not in said


def test_a_cell_without_kernels_says_what_to_write(cell: Cell) -> None:
    said = cell("%%cu\n__device__ int x;")
    assert "write a __global__ function" in said
    assert "Traceback" not in said


def test_the_magic_explains_itself(cell: Cell, shell: InteractiveShell) -> None:
    help = shell.find_cell_magic("cu").__doc__
    assert help is not None
    reference = (ROOT / "docs" / "api" / "notebook.md").read_text(encoding="utf-8")
    options = set(re.findall(r"--[\w-]+", help))
    assert options.issuperset({"--device", "--names", "--no-fmad"})
    for option in options:
        assert f"`{option}`" in reference


def test_arrays_are_shown_by_their_values(cell: Cell, shell: InteractiveShell) -> None:
    assert cell("dev.array(np.arange(3, dtype='f4'))").startswith("Out[2]: DeviceArray([0., 1., 2.], shape=(3,)")
    array = shell.user_ns["_2"]
    data, _ = shell.display_formatter.format(array)
    assert "<pre>[0., 1., 2.]</pre>" in data["text/html"]


def test_the_page_of_the_documentation_shows_what_its_cells_show() -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'cudakit[docs]'")
    import nbformat
    import notebook_page

    committed = nbformat.read(notebook_page.PAGE, as_version=4)
    nbformat.validate(committed)
    found = notebook_page.differences(committed, notebook_page.run())
    assert not found, "\n\n".join(["python tests/notebook_page.py --write", *found])


def test_an_output_that_differs_is_found() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install 'cudakit[docs]'")
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'cudakit[docs]'")
    import notebook_page

    def page(text: str) -> Any:
        shown = nbformat.v4.new_output("stream", name="stdout", text=text)
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("f()", outputs=[shown])])

    assert not notebook_page.differences(page("nvrtc ...\n7\n"), page("nvrtc 13.5\n7\n"))
    (found,) = notebook_page.differences(page("nvrtc ...\n7\n"), page("nvrtc 13.5\n8\n"))
    assert found.startswith("cell 1, stdout:")
    assert "+8" in found
