"""A user's kernels as torch operators, on CPU tensors: schemas, launches, and errors."""

from __future__ import annotations

import itertools

import pytest
import torch_installed

torch = torch_installed.require()

import cudakit  # noqa: E402
import cudakit.torch  # noqa: E402
from cudakit import DeviceFault, GradientError, LaunchError  # noqa: E402

SOURCE = r"""
// y = a * x + b; not axpb(int wrong)
__global__ void axpb(const float* __restrict__ x, float* y, float a, float b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + b;
}

namespace mine {
template <typename T, int N>
__global__ void __launch_bounds__(32 * N) power(const T* x, /* the result, */ T* y, long long n) {
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        y[i] = 1;
        for (int k = 0; k < N; ++k) y[i] *= x[i];
    }
}
}

__global__ void increase(int* x, unsigned char by, bool twice) { x[threadIdx.x] += twice ? 2 * by : by; }

__global__ void parts(const float* x, float* whole, int* floor) {
    whole[threadIdx.x] = truncf(x[threadIdx.x]);
    floor[threadIdx.x] = (int)x[threadIdx.x];
}

__global__ void turn(const float* x, float* y, int rows, int cols, int down, int across) {
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) y[i] = x[i / cols * down + i % cols * across];
}

__global__ void reversed_without_a_barrier(const float* x, float* y) {
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = part[63 - threadIdx.x];
}
"""

_numbers = itertools.count()


def define(kernel, *, source=SOURCE, grid=1, block=64, **options):
    """Return an op with a different name for every test."""
    return cudakit.torch.op(
        f"of_tests::op{next(_numbers)}", kernel, source=source, grid=grid, block=block, **options
    )  # fmt: skip


def count(x):
    return x.numel()


AXPB = {"outputs": {"y": "x"}, "computed": {"n": count}, "grid": lambda n: -(-n // 128), "block": 128}


def gradient(ctx, grad):
    return ctx.op(grad.contiguous(), ctx.factor, 0.0), None, None


@pytest.fixture(scope="module")
def axpb():
    def setup(ctx, inputs, output):
        ctx.op, ctx.factor = made, inputs[1]

    made = define("axpb", **AXPB, backward=gradient, setup_context=setup)
    return made


def schema(op):
    return str(op._schema).partition("(")[2].replace("(a0!)", "!")


def test_an_op_with_a_gradient(axpb):
    assert schema(axpb) == "Tensor x, float a, float b) -> Tensor"
    x = torch.randn(3, 50, requires_grad=True)
    torch.library.opcheck(axpb, (x, 2.0, 1.0))
    y = axpb(x, 2.0, 1.0)
    torch.testing.assert_close(y, 2 * x + 1)
    y.sum().backward()
    assert x.grad.eq(2).all()


def test_it_compiles(axpb):
    torch._dynamo.reset()
    function = torch.compile(lambda x: axpb(x * 2, 3.0, 1.0) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
    for extent in (5, 300):
        x = torch.randn(extent, requires_grad=True)
        torch.testing.assert_close(function(x), x * 6 + 2)
        assert torch.autograd.grad(function(x).sum(), x)[0].eq(6).all()


def test_a_template_and_a_file(tmp_path):
    file = tmp_path / "power.cu"
    file.write_text(SOURCE)
    op = cudakit.torch.op(
        "of_tests::cube",
        "mine::power<double, 3>",
        path=file,
        grid=1,
        block=96,
        outputs={"y": lambda x: (x.shape, torch.float64)},
        computed={"n": count},
    )
    assert op is torch.ops.of_tests.cube.default
    x = torch.randn(7, 9, dtype=torch.float64)
    torch.library.opcheck(op, (x,))
    torch.testing.assert_close(op(x), x**3)


def test_a_tensor_that_is_written_to():
    op = define("increase", block=count)
    assert schema(op) == "Tensor! x, SymInt by, bool twice) -> ()"
    x = torch.arange(5, dtype=torch.int32)
    torch.library.opcheck(op, (x.clone(), 3, True))
    assert op(x, 3, True) is None
    assert x.tolist() == [6, 7, 8, 9, 10]
    torch._dynamo.reset()

    def written(x):
        y = x + 1
        op(y, 2, False)
        return y * 10

    compiled = torch.compile(written, fullgraph=True, backend="aot_eager")
    assert compiled(torch.zeros(2, dtype=torch.int32)).tolist() == [30, 30]


def test_two_outputs():
    op = define("parts", block=count, outputs={"whole": "x", "floor": lambda x: (x.shape, torch.int32)})
    assert schema(op) == "Tensor x) -> (Tensor, Tensor)"
    whole, floor = op(torch.tensor([1.5, -2.5]))
    assert whole.tolist() == [1, -2]
    assert floor.tolist() == [1, -2]
    assert floor.dtype == torch.int32


def test_tensors_of_any_strides():
    sizes = {"rows": lambda x: x.shape[0], "cols": lambda x: x.shape[1]}
    steps = {"down": lambda x: x.stride(0), "across": lambda x: x.stride(1)}
    op = define("turn", outputs={"y": "x"}, computed=sizes | steps, strided=True)
    x = torch.randn(6, 8)
    torch.library.opcheck(op, (x.T,))
    assert op(x.T[::2]).equal(x.T[::2])


def test_a_grid_of_0_launches_nothing():
    op = define("axpb", **AXPB)
    assert op(torch.empty(0, 4), 1.0, 1.0).shape == (0, 4)


# Mistakes of the kernel -----------------------------------------------------------------------------------------------


def test_a_race_is_reported_and_the_next_call_works(axpb):
    op = define("reversed_without_a_barrier", outputs={"y": "x"})
    with pytest.raises(DeviceFault, match="data race") as raised:
        op(torch.randn(64))
    assert "y[threadIdx.x] = part[63 - threadIdx.x];" in str(raised.value)
    assert axpb(torch.ones(3), 2.0, 1.0).tolist() == [3, 3, 3]


def test_an_access_out_of_bounds_is_reported_and_the_next_call_works(axpb):
    op = define("axpb", outputs={"y": "x"})
    assert schema(op) == "Tensor x, float a, float b, SymInt n) -> Tensor"
    with pytest.raises(DeviceFault, match="out-of-bounds access: global load of 4 bytes") as raised:
        op(torch.randn(40), 1.0, 1.0, 41)
    assert "thread (40, 0, 0)" in str(raised.value)
    assert "op(torch.randn(40), 1.0, 1.0, 41)" in str(raised.value)  # the line of the call
    assert axpb(torch.ones(3), 2.0, 1.0).tolist() == [3, 3, 3]


def test_a_view_ends_where_it_ends():
    op = define("axpb", outputs={"y": "x"})
    with pytest.raises(DeviceFault, match="out-of-bounds access"):
        op(torch.randn(64)[:40], 1.0, 1.0, 41)


def test_a_device_of_the_users_is_not_replaced():
    op = define("reversed_without_a_barrier", outputs={"y": "x"})
    device = cudakit.Device("sim", fresh=True)
    cudakit.torch.set_simulated_device(device)
    try:
        with pytest.raises(DeviceFault, match="race"):
            op(torch.randn(64))
        with pytest.raises(cudakit.ContextLost, match="was lost after an earlier failure"):
            op(torch.randn(64))
    finally:
        cudakit.torch.set_simulated_device(None)


# Refused calls --------------------------------------------------------------------------------------------------------


def test_a_dtype_that_does_not_fit(axpb):
    with pytest.raises(LaunchError, match=r"x is a tensor of float64.*const float\* x takes float32: convert it with"):
        axpb(torch.zeros(3, dtype=torch.float64), 1.0, 1.0)
    with pytest.raises(LaunchError, match=r"x is a tensor of int64, .*int\* x takes int32"):
        define("increase")(torch.zeros(3, dtype=torch.int64), 1, True)


def test_an_output_whose_dtype_does_not_fit():
    op = define("axpb", outputs={"y": lambda x: (x.shape, torch.float16)})
    with pytest.raises(LaunchError, match=r"y is a tensor of float16, .*takes float32: declare it with that dtype"):
        op(torch.zeros(3), 1.0, 1.0, 3)
    op = define("axpb", outputs={"y": lambda x: x.shape})
    with pytest.raises(ValueError, match=r"for the output y returned .*: return \(shape, dtype\)"):
        op(torch.zeros(3), 1.0, 1.0, 3)


def test_a_layout_that_the_kernel_does_not_see(axpb):
    with pytest.raises(LaunchError, match=r"x of shape \(4, 3\) has strides \(1, 4\).*x.contiguous\(\).*strided=True"):
        axpb(torch.zeros(3, 4).T, 1.0, 1.0)


def test_numbers_out_of_range():
    with pytest.raises(LaunchError, match=r"parameter 4 .*is int, .*4294967296.* must be in"):
        define("axpb", outputs={"y": "x"})(torch.zeros(3), 1.0, 1.0, 2**32)
    with pytest.raises(LaunchError, match=r"parameter 1 .*is unsigned char, .*-1.* must be in 0..255"):
        define("increase")(torch.zeros(64, dtype=torch.int32), -1, True)
    with pytest.raises(LaunchError, match="1025"):
        define("axpb", outputs={"y": "x"}, block=1025)(torch.zeros(3), 1.0, 1.0, 3)


def test_no_gradient():
    op = define("axpb", **AXPB)
    y = op(torch.zeros(3, requires_grad=True), 1.0, 1.0)
    with pytest.raises(GradientError, match=r"of_tests::op\d+ has no gradient: define one with backward="):
        y.sum().backward()


@pytest.mark.parametrize("recording", ["x", "y"])
def test_no_gradient_of_a_write(recording):
    tensors = {name: torch.zeros(3, requires_grad=name == recording) for name in "xy"}
    op = define("axpb", computed={"n": count})
    with pytest.raises(GradientError, match=rf"writes to its arguments.*{recording} records gradients"):
        op(*tensors.values(), 1.0, 1.0)
    with torch.no_grad():
        op(*tensors.values(), 1.0, 1.0)
    assert tensors["y"].tolist() == [1, 1, 1]


# Refused declarations -------------------------------------------------------------------------------------------------

UNREADABLE = "#define PAIR const float *x, float *y\n__global__ void pair(PAIR) { y[0] = x[0]; }"

DECLARATIONS = [
    ("outputs has z, not a parameter of axpb, which has x, y, a, b, n", "axpb", {"outputs": {"z": "x"}}),
    ("computed has m, not a parameter of axpb", "axpb", {"computed": {"m": 1}}),
    ("grid has the unknown parameter m: it may take x, y, a, b, n", "axpb", {"grid": lambda m: 1}),
    (r"outputs\['y'\] has the unknown parameter y", "axpb", {"outputs": {"y": lambda y: y}}),
    (r"computed\['n'\] has the unknown parameter n", "axpb", {"computed": {"n": lambda n: n}}),
    ("y is declared like 'w', which is not a tensor argument: use one of x", "axpb", {"outputs": {"y": "w"}}),
    (r"y is declared as \(3, 4\): pass the name", "axpb", {"outputs": {"y": (3, 4)}}),
    (r"x is declared as an output, but the kernel only reads it \(const float\*\)", "axpb", {"outputs": {"x": "y"}}),
    ("a is declared as an output, but it is float, not a pointer", "axpb", {"outputs": {"a": "x"}}),
    (r"x is const float\*, and only numbers can be computed", "axpb", {"computed": {"x": 1}}),
    (r"writes to its arguments \(y\) cannot have a gradient: declare", "axpb", {"backward": gradient}),
    ("must be 5 different names, one per parameter of axpb", "axpb", {"parameters": ("x", "y")}),
    ("called 'in', not a Python name", "axpb", {"parameters": ("in", "y", "a", "b", "n")}),
    (r"names of the parameters of pair\(const float\*, float\*\) were not found", "pair", {"source": UNREADABLE}),
    (
        'the type of x is unknown: define the kernel without extern "C"',
        "plain",
        {"source": 'extern "C" __global__ void plain(float* x) { *x = 1; }'},
    ),
    (
        "x is float4, which torch's schemas do not support",
        "wide",
        {"source": "__global__ void wide(float4 x, float* y) { *y = x.x; }"},
    ),
    (
        "has no tensor among its arguments",
        "made",
        {
            "source": "__global__ void made(float* y) { *y = 1; }",
            "outputs": {"y": lambda: ((1,), torch.float32)},
        },
    ),
]


@pytest.mark.parametrize(("said", "kernel", "options"), DECLARATIONS)
def test_refused_declarations(said, kernel, options):
    with pytest.raises(ValueError, match=said):
        define(kernel, **options)


def test_names_for_parameters_that_cannot_be_read():
    op = define("pair", source=UNREADABLE, parameters=("first", "second"), outputs={"second": "first"})
    assert schema(op) == "Tensor first) -> Tensor"
    assert define("pair", source=UNREADABLE, parameters=("a", "b"), block=1)(torch.ones(1), torch.zeros(1)) is None


def test_refused_names(axpb):
    give = {"source": SOURCE, "grid": 1, "block": 1}
    with pytest.raises(ValueError, match="torch already has an op aten::add"):
        cudakit.torch.op("aten::add", "axpb", **give)
    with pytest.raises(ValueError, match=f"torch already has an op {axpb.name()}".removesuffix(".default")):
        cudakit.torch.op(axpb.name(), "axpb", **give)
    with pytest.raises(ValueError, match="NAMESPACE::NAME, such as mine::axpb, got 'axpb'"):
        cudakit.torch.op("axpb", "axpb", **give)
    with pytest.raises(cudakit.CompileError, match="axp"):
        define("axp")
    with pytest.raises(ValueError, match="pass either path= or source=, got neither"):
        cudakit.torch.op("of_tests::none", "axpb", grid=1, block=1)


def test_a_kernel_of_one_device(sim, tmp_path):
    """A Kernel is compiled again for the tensors' device, with its own options and headers."""
    (sim_include := tmp_path / "include").mkdir()
    (sim_include / "factor.h").write_text("#define FACTOR 3.0f\n")
    text = """#include "factor.h"
    template <class T> __global__ void grow(const T* x, T* y, int n) {
        if (threadIdx.x < n) y[threadIdx.x] = FACTOR * ADDED * x[threadIdx.x];
    }"""
    module = sim.compile(
        source=text, name="mine.cu", names=("grow<float>",), include=[sim_include], defines={"ADDED": "2.0f"}
    )
    name = f"of_tests::op{next(_numbers)}"
    grow = cudakit.torch.op(
        name, module["grow<float>"], grid=1, block=64, outputs={"y": "x"}, computed={"n": lambda x: x.numel()}
    )
    torch.testing.assert_close(grow(torch.ones(5)), torch.full((5,), 6.0))
    kernel = sim.compile(source=SOURCE, name="mine.cu")["axpb"]
    with pytest.raises(ValueError, match="a Kernel has its own source and options: remove source"):
        define(kernel)
    with pytest.raises(TypeError, match="pass a Kernel, or a kernel's name with path= or source=; got int"):
        define(3)
    loaded = sim.load(sim.compile(source=SOURCE, name="mine.cu").ptx)
    with pytest.raises(TypeError, match="was loaded without its source"):
        define(loaded[kernel.mangled], source=None)


@pytest.mark.gpu
def test_on_the_gpu(gpu, axpb):
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    x = torch.randn(3, 50, device="cuda", requires_grad=True)
    torch.library.opcheck(axpb, (x, 2.0, 1.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        y = axpb(x * 2, 2.0, 1.0)
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 4 * x + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = axpb(x, 3.0, 1.0)
    with torch.no_grad():
        x.fill_(2)
    graph.replay()
    assert y.eq(7).all()
