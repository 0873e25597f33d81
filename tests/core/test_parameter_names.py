"""The names of a kernel's parameters in the source, in refusals of launches and in reports of faults."""

from __future__ import annotations

import re
import sys

import pytest

import cudakit
from cudakit.launch.parameter_names import parameter_names

NAMED = [
    ("__global__ void k(float* x, int n) {}", "k", ("x", "n")),
    ("__global__ void k() {}", "k", ()),
    ("__global__ void k(void) {}", "k", ()),
    ('extern "C" __global__ void k(const float *__restrict__ x, unsigned long long n) {}', "k", ("x", "n")),
    ("__global__ void __launch_bounds__(256, 2) k(float x) {}", "k", ("x",)),
    ("__global__ __cluster_dims__(2, 1, 1) void k(float x) {}", "k", ("x",)),
    ("template <typename T, int N = (3 > 2)> __global__ void k(T* x, Box<T, 4> b, T y[N]) {}", "k<int>",
     ("x", "b", "y")),
    ("namespace a { __global__ void k(int n) {} } __global__ void kk(int wrong) {}", "a::k", ("n",)),
    ("// __global__ void k(int wrong) {}\n/* k(int wrong) */ __global__ void k(int /* no */ n, // a, \n int m) {}",
     "k", ("n", "m")),
    ('const char* s = "__global__ void k(int wrong) {"; __global__ void k(int n) {}', "k", ("n",)),
    ("__global__ void k(int wrong);\n__global__ void k(int n) {}", "k", ("n",)),
    ("__global__ void k(int n);", "k", ("n",)),
    ("__global__ void k(int, float* x, const int, Foo, const Foo) {}", "k", ("", "x", "", "", "")),
    ("__global__ void k(void (*f)(int, int), float (&tile)[4], int n) {}", "k", ("f", "tile", "n")),
    ("__global__ void k(const __grid_constant__ Shape shape, typename T::type t, ns::Foo) {}", "k", ("shape", "t", "")),
    ("template <typename... T> __global__ void k(int n, T*... rest) {}", "k<float, int>", ("n", "rest", "rest")),
    ("#if A\n__global__ void k(int n, int a) {}\n#else\n__global__ void k(int n, int b) {}\n#endif", "k", ("n", "")),
    ("__global__ void k(int n) {}\n__global__ void k(float* x, int n) {}", "k", ("x", "n")),
    ("__global__ void other(int a) {}", "k", ("",)),
    ("DEFINE(k)", "k", ("", "")),
    ("__global__ void k(int n", "k", ("",)),
    ("template <> __global__ void k<4>(int n) {}", "k<4>", ("n",)),
]  # fmt: skip


@pytest.mark.parametrize(("source", "kernel", "names"), NAMED)
def test_names_are_read_from_the_definition(source: str, kernel: str, names: tuple[str, ...]) -> None:
    assert parameter_names(source, kernel, len(names)) == names


SOURCE = """
// out[i] = in[i + shift]; called by nobody as copy(int wrong)
template <typename T>
__global__ void copy(const T* __restrict__ in, T* out /* (n,) */, int shift) {
    out[threadIdx.x] = in[threadIdx.x + shift];
}
"""


@pytest.fixture
def copy(sim: cudakit.Device) -> cudakit.Kernel:
    return sim.compile(source=SOURCE, name="copy.cu", names=("copy<float>",))["copy<float>"]


def fault(device: cudakit.Device, kernel: cudakit.Kernel, *args: object) -> str:
    kernel.launch(device.default_stream, grid=1, block=32, args=args)
    with pytest.raises(cudakit.DeviceFault) as caught:
        device.synchronize()
    return str(caught.value.report)


def test_a_refused_argument_is_named(sim: cudakit.Device, copy: cudakit.Kernel) -> None:
    x = sim.zeros(32)
    for args, text in (
        ((x, x, 1.5), r"parameter 2 \(`shift`\) is int, got float 1.5"),
        ((x, 7, 0), r"parameter 1 \(`out`\) is float\*, got int 7"),
        ((x, x, None), r"parameter 2 \(`shift`\) is int, got None"),
    ):
        with pytest.raises(cudakit.LaunchError, match=text):
            copy.launch(sim.default_stream, grid=1, block=32, args=args)


def test_without_the_source_a_parameter_has_its_number(sim: cudakit.Device) -> None:
    source = "#define KERNEL(name) __global__ void name(float* x, int n) { x[n] = 1; }\nKERNEL(made)"
    kernel = sim.compile(source=source, name="made.cu")["made"]
    x = sim.zeros(4)
    with pytest.raises(cudakit.LaunchError, match=r"parameter 1 is int, got float"):
        kernel.launch(sim.default_stream, grid=1, block=1, args=(x, 1.0))
    assert ", passed as parameter 0\n" in fault(sim, kernel, x, 4)


def test_a_fault_names_the_parameter_and_the_line_of_the_launch(sim: cudakit.Device, copy: cudakit.Kernel) -> None:
    x, y = sim.zeros(32), sim.zeros(32)
    line = sys._getframe().f_lineno + 1
    copy.launch(sim.default_stream, grid=1, block=32, args=(x, y, 1))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    report = caught.value.report
    assert f"\n  launched at {__file__}:{line}\n" in str(report)
    assert ", passed as parameter 0 (`in`)\n" in str(report)
    told = report.as_dict()
    assert (told["launched"]["file"], told["launched"]["line"]) == (__file__, line)
    assert told["parameter"] == "parameter 0 (`in`)"


@pytest.mark.parametrize("none", [0, 1])
def test_a_fault_says_which_pointer_was_none(sim: cudakit.Device, copy: cudakit.Kernel, none: int) -> None:
    args: list[object] = [sim.zeros(32), sim.zeros(32), 0]
    args[none] = None
    text = fault(sim, copy, *args)
    assert f"\n  parameter {none} (`{('in', 'out')[none]}`) was None" in text


def test_a_fault_says_where_a_graph_and_an_extended_launch_were_made(sim: cudakit.Device, copy: cudakit.Kernel) -> None:
    x = sim.zeros(32)
    sim.synchronize()
    stream = sim.stream()
    with stream.capture() as graph:
        line = sys._getframe().f_lineno + 1
        copy.launch(stream, grid=1, block=32, args=(x, None, 0), cooperative=True)
    graph.instantiate().launch(stream)
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    assert f"launched at {__file__}:{line}\n" in str(caught.value)
    assert "parameter 1 (`out`) was None" in str(caught.value)


def test_faults_of_several_simulated_devices_say_which() -> None:
    devices = cudakit.Device.several("sim")
    kernel = devices[1].compile(source="__global__ void k(int* x) { *x = 1; }", name="k.cu")["k"]
    assert "kernel k on sim:1, block" in fault(devices[1], kernel, None)
    devices[0].synchronize()
    for device in devices:
        device.close()


def test_a_fault_of_the_only_device_does_not_number_it(sim: cudakit.Device, copy: cudakit.Kernel) -> None:
    assert "kernel copy, block" in fault(sim, copy, None, sim.zeros(32), 0)


def test_an_array_of_another_simulated_device_is_told_apart(sim: cudakit.Device, copy: cudakit.Kernel) -> None:
    numbers = r"sim:sm_90a \(simulated devices (\d+) and (\d+)\)"
    with cudakit.Device("sim", fresh=True) as other:
        x = other.zeros(32)
        for stream, args in ((sim.default_stream, (x, x, 0)), (other.default_stream, (None, None, 0))):
            with pytest.raises(cudakit.LaunchError, match=numbers) as caught:
                copy.launch(stream, grid=1, block=32, args=args)
            found = re.search(numbers, str(caught.value))
            assert found is not None
            assert int(found[1]) > int(found[2])  # the array or the stream, and then the kernel
