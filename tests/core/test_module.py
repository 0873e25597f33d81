"""Modules: kernels by every name, what kernels say of themselves, variables, loading on both kinds of device."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import UnknownName
from cudakit.errors import Closed, CudaError, CudakitError, LaunchError

SOURCE = r"""
#include <cuda_fp16.h>

__constant__ float table[4];
__constant__ int single;
__device__ unsigned counter;
__device__ double sums[3];
struct Odd { int a; float b; };
__device__ Odd odd;
__constant__ float unused[4];
namespace ns { __device__ long long inner[2]; }

namespace ns {
__global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= table[threadIdx.x % 4]; }
__global__ void only(float* x) { x[0] = single; ns::inner[1] = 5; }
}
__global__ void scale(double* x) { x[0] *= 2; sums[1] += x[0]; atomicAdd(&counter, 1u); odd.a = 1; odd.b = 2; }
template <int N, class T> __global__ void fill(T* x) { for (int i = 0; i < N; ++i) x[i] = T(N); }
extern "C" __global__ void plain(float* x) { x[0] = 1; }
"""
NAMES = ("fill<4, float>", "fill< 8,int >")


@pytest.fixture(scope="module")
def module(device: cudakit.Device) -> cudakit.Module:
    return device.compile(source=SOURCE, name="module.cu", names=NAMES)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("only", "ns::only(float*)"),
        ("ns::only", "ns::only(float*)"),
        ("ns::scale", "ns::scale(float*, int)"),
        ("scale(double*)", "scale(double*)"),
        ("scale", "scale(double*)"),
        ("ns::scale(float*, int)", "ns::scale(float*, int)"),
        ("void ns::scale(float *, int)", "ns::scale(float*, int)"),
        ("_ZN2ns5scaleEPfi", "ns::scale(float*, int)"),
        ("fill<4, float>", "fill<4, float>(float*)"),
        ("fill<4,float>", "fill<4, float>(float*)"),
        ("fill< 8,int >", "fill<8, int>(int*)"),
        ("fill<8, int>", "fill<8, int>(int*)"),
        ("plain", "plain(64 bits (a pointer or an integer))"),
    ],
)
def test_kernels_by_name(module: cudakit.Module, name: str, signature: str) -> None:
    assert module[name].signature == signature
    assert module[name] is module[name]
    assert name in module


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "fill",
            r"'fill' is the name of several kernels of module\.cu: .*fill<4, float>\(float\*\).* Use the full text",
        ),
        ("ns::scales", r"no kernel 'ns::scales'. Similar: ns::scale\(float\*, int\)"),
        ("xyz", r"no kernel 'xyz'. It has: .*fill<8, int>\(int\*\).*only"),
        ("fill<16, float>", r'only compiled if it is named: compile\(..., names=\("fill<16, float>",\)\)'),
        ("fill<4, double>", "Similar: fill<4, float>"),
    ],
)
def test_wrong_names(module: cudakit.Module, name: str, match: str) -> None:
    with pytest.raises(UnknownName, match=match):
        module[name]
    with pytest.raises(KeyError):
        module[name]
    assert name not in module


def test_a_template_not_asked_for(device: cudakit.Device) -> None:
    module = device.compile(source="template <int N> __global__ void k(int* p) {}", name="template.cu")
    assert module.kernels == ()
    with pytest.raises(UnknownName, match=r'has no kernels.*names=\("k<4>",\)'):
        module["k"]


def test_every_kernel_is_listed(module: cudakit.Module) -> None:
    assert sorted(kernel.signature for kernel in module.kernels) == [
        "fill<4, float>(float*)",
        "fill<8, int>(int*)",
        "ns::only(float*)",
        "ns::scale(float*, int)",
        "plain(64 bits (a pointer or an integer))",
        "scale(double*)",
    ]


def test_a_module_lists_its_kernels_in_the_order_of_the_source(module: cudakit.Module) -> None:
    names = ["ns::scale", "ns::only", "scale", "fill<4, float>", "fill<8, int>", "plain"]
    assert list(module) == names
    assert len(module) == 6
    assert [module[name] for name in names] == list(module.kernels)
    assert "plain" in module
    assert "plane" not in module
    assert 0 not in module


def test_overloads_are_listed_by_their_signatures(device: cudakit.Device) -> None:
    source = "__global__ void k(int* p) {} __global__ void k(float* p) {} __global__ void a() {}"
    module = device.compile(source=source, name="overloads.cu")
    assert list(module) == ["k(int*)", "k(float*)", "a"]
    assert [module[name].signature for name in module] == ["k(int*)", "k(float*)", "a()"]


def test_a_module_without_kernels_is_true(device: cudakit.Device) -> None:
    module = device.compile(source="__device__ int x;", name="none.cu")
    assert list(module) == []
    assert module


def test_two_kernels_of_one_name_in_two_namespaces(device: cudakit.Device) -> None:
    source = "namespace a { __global__ void k(int* p) {} } namespace b { __global__ void k(float* p) {} }"
    module = device.compile(source=source, name="two.cu")
    assert module["a::k"].signature == "a::k(int*)"
    with pytest.raises(UnknownName, match=r"several kernels .* a::k\(int\*\); b::k\(float\*\)|b::k.*; a::k"):
        module["k"]


def test_what_a_kernel_says(device: cudakit.Device) -> None:
    source = """
    __global__ void __launch_bounds__(256) busy(const float* __restrict__ x, float* y, long long n) {
        float a[32];
        for (int i = 0; i < 32; ++i) a[i] = 0;
        for (int i = 0; i < n; ++i) a[(i * n) % 32] += x[i];
        __shared__ float tile[512];
        extern __shared__ float more[];
        tile[threadIdx.x] = x[threadIdx.x];
        more[threadIdx.x] = 1;
        __syncthreads();
        y[threadIdx.x] = a[int(tile[255 - threadIdx.x] + n) % 32] + more[0];
    }
    """
    kernel = device.compile(source=source, name="busy.cu")["busy"]
    assert kernel.name == "busy"
    assert kernel.signature == "busy(const float*, float*, long long)"
    assert [(p.index, p.text, p.kind, p.offset, p.size) for p in kernel.parameters] == [
        (0, "const float*", "pointer", 0, 8),
        (1, "float*", "pointer", 8, 8),
        (2, "long long", "int", 16, 8),
    ]
    assert 8 <= kernel.registers <= 255
    assert kernel.static_shared == 2048
    assert kernel.local_bytes >= 128
    assert kernel.max_threads == 256
    assert kernel.max_dynamic_shared == device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 2048
    assert kernel.spills == 0
    assert kernel.required_cluster is None


def test_occupancy(device: cudakit.Device) -> None:
    source = "__global__ void k(float* x) { extern __shared__ float s[]; s[threadIdx.x] = 1; x[0] = s[5]; }"
    kernel = device.compile(source=source, name="occupancy.cu")["k"]
    threads = device.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    blocks = device.attribute("MAX_BLOCKS_PER_MULTIPROCESSOR")
    assert kernel.occupancy(1024) == threads // 1024
    assert kernel.occupancy((16, 16)) == threads // 256
    assert kernel.occupancy(32) == blocks
    assert kernel.occupancy(256, kernel.max_dynamic_shared) == 1
    assert kernel.occupancy(256, 100 * 1024) == device.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR") // (101 * 1024)
    assert kernel.occupancy(1025) == 0
    assert kernel.occupancy(32, kernel.max_dynamic_shared + 1) == 0


def test_registers_limit_occupancy(device: cudakit.Device) -> None:
    lines = "".join(f"float a{i} = p[{i} * n];" for i in range(80))
    sums = "".join(f"p[{i} * n + 1] = a{i} * a{79 - i};" for i in range(80))
    source = f"__global__ void k(volatile float* p, int n) {{ {lines} __syncthreads(); {sums} }}"
    kernel = device.compile(source=source, name="registers.cu")["k"]
    assert kernel.registers > 64
    assert kernel.occupancy(1024) == (1 if kernel.max_threads == 1024 else 0)


# Variables ------------------------------------------------------------------------------------------------------------


def test_constants(device: cudakit.Device, module: cudakit.Module) -> None:
    table, single = module.constant("table"), module.constant("single")
    assert (table.shape, table.dtype) == ((4,), np.float32)
    assert (single.shape, single.dtype) == ((), np.int32)
    table.copy_from(np.array([1, 2, 3, 4], np.float32))
    single.copy_from(np.array(41, np.int32))
    x = device.full((8,), 10, np.float32)
    device.synchronize()
    module["ns::scale"].launch(device.default_stream, grid=1, block=8, args=(x, 8))
    assert list(x.numpy()) == [10, 20, 30, 40] * 2
    module["only"].launch(device.default_stream, grid=1, block=1, args=(x,))
    assert x.numpy()[0] == 41


def test_variables(device: cudakit.Device, module: cudakit.Module) -> None:
    sums, counter, inner = module.variable("sums"), module.variable("counter"), module.variable("ns::inner")
    assert (sums.shape, sums.dtype) == ((3,), np.float64)
    assert (counter.shape, counter.dtype) == ((), np.uint32)
    assert (inner.shape, inner.dtype) == ((2,), np.int64)
    sums.fill(0)
    counter.fill(0)
    x = device.full((1,), 3, np.float64)
    device.synchronize()
    for _ in range(2):
        module["scale(double*)"].launch(device.default_stream, grid=1, block=1, args=(x,))
    device.synchronize()
    assert list(sums.numpy()) == [0, 18, 0]
    assert counter.numpy() == 2


def test_a_variable_of_a_struct_needs_a_dtype(device: cudakit.Device, module: cudakit.Module) -> None:
    with pytest.raises(ValueError, match=r"odd of module\.cu has 8 bytes of unknown type; pass its dtype"):
        module.variable("odd")
    pair = np.dtype([("a", np.int32), ("b", np.float32)])
    x = device.zeros((1,), np.float64)
    module["scale(double*)"].launch(device.default_stream, grid=1, block=1, args=(x,))
    device.synchronize()
    assert module.variable("odd", pair).numpy().tolist() == [(1, 2.0)] or module.variable("odd", pair).numpy()["b"] == 2
    with pytest.raises(ValueError, match="not a multiple of"):
        module.variable("odd", np.complex128)


def test_wrong_variables(module: cudakit.Module) -> None:
    with pytest.raises(
        UnknownName, match=r"no __constant__ variable 'tables'; it has: .*table.*names=\(\"&tables\",\)"
    ):
        module.constant("tables")
    with pytest.raises(UnknownName, match=r"no __device__ variable 'table'"):
        module.variable("table")


def test_a_variable_asked_for_by_name(device: cudakit.Device) -> None:
    source = "__constant__ float unused[4]; __global__ void k() {}"
    module = device.compile(source=source, name="kept.cu", names=("&unused",))
    assert module.constant("unused").shape == (4,)


def test_the_last_part_of_a_name_is_enough_where_it_is_unique(device: cudakit.Device) -> None:
    source = """
    namespace p { __constant__ float c[2]; __device__ int twice; }
    namespace q { __device__ int twice; __device__ int once; }
    namespace ns {
    template <int N> __global__ void k(float* x) { x[0] = N + p::c[1] + p::twice + q::twice + q::once; }
    }
    namespace other { template <int N> __global__ void k(int* x) { x[0] = N; } }
    """
    names = ("ns::k<128>", "ns::k<64>", "other::k<64>")
    module = device.compile(source=source, name="last.cu", names=names)
    assert module["k<128>"] is module["ns::k<128>"]
    assert "k<128>" in module
    with pytest.raises(UnknownName, match=r"'k<64>' is the name of several kernels of last\.cu: .* Use the full text"):
        module["k<64>"]
    assert module.constant("c").pointer == module.constant("p::c").pointer
    assert module.constant("c").dtype == np.float32
    assert module.variable("once").shape == ()
    with pytest.raises(
        UnknownName, match=r"the name of several __device__ variables of last\.cu: [pq]::twice, [pq]::twice\. Use"
    ):
        module.variable("twice")


def test_variables_of_a_closed_module_are_closed(device: cudakit.Device) -> None:
    source = "__constant__ float c[4]; __global__ void k(float* x) { x[0] = c[threadIdx.x]; }"
    module = device.compile(source=source, name="closed.cu")
    table = module.constant("c")
    view = table[1:]
    table.copy_from(np.ones(4, np.float32))
    x = device.zeros((1,))
    kernel = module["k"]
    module.close()
    module.close()
    assert table.closed
    assert view.closed
    for use in (table.numpy, view.numpy, lambda: x.copy_from(view[:1]), lambda: table.fill(1)):
        with pytest.raises(Closed, match="was closed"):
            use()
    with pytest.raises(Closed, match=r"closed\.cu.* was closed; compile it again"):
        module.constant("c")
    other = device.compile(source=source, name="closed.cu")["k"]
    assert other is not kernel
    with pytest.raises(LaunchError, match="it was closed"):
        other.launch(device.default_stream, grid=1, block=1, args=(view,))


# Loading --------------------------------------------------------------------------------------------------------------


def test_a_user_file_with_its_own_header(
    device: cudakit.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper.cuh").write_text("__device__ inline float twice(float x) { return 2 * x; }\n")
    (tmp_path / "mine.cu").write_text('#include "helper.cuh"\n__global__ void k(float* x) { x[0] = twice(x[0]); }\n')
    monkeypatch.chdir(tmp_path)
    x = device.full((1,), 4, np.float32)
    module = device.compile("mine.cu")
    module["k"].launch(device.default_stream, grid=1, block=1, args=(x,))
    assert x.numpy()[0] == 8
    assert module.name == str(tmp_path / "mine.cu")
    assert device.compile(tmp_path / "mine.cu") is module
    (tmp_path / "helper.cuh").write_text("__device__ inline float twice(float x) { return 3 * x; }\n")
    device.compile("mine.cu")["k"].launch(device.default_stream, grid=1, block=1, args=(x,))
    assert x.numpy()[0] == 24


def test_defines_make_another_module(device: cudakit.Device) -> None:
    x = device.zeros((1,), np.int32)
    for tile in (4, 8):
        module = device.compile(
            source="__global__ void k(int* x) { x[0] = TILE; }", name="d.cu", defines={"TILE": tile}
        )
        module["k"].launch(device.default_stream, grid=1, block=1, args=(x,))
        assert x.numpy()[0] == tile


def test_compile_takes_a_path_or_text(device: cudakit.Device) -> None:
    with pytest.raises(ValueError, match="a path, or source="):
        device.compile()
    with pytest.raises(ValueError, match="a path, or source="):
        device.compile("a.cu", source="")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cu"):
        device.compile("nowhere.cu")


def test_a_failed_load_leaves_nothing(sim: cudakit.Device) -> None:
    before = sim.context.driver.simStats().modules
    code = sim.context.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    sim.context.driver.simInject("cuModuleLoadData", code=code)
    with pytest.raises(cudakit.OutOfMemory):
        sim.compile(source=SOURCE, name="module.cu", names=NAMES)
    assert sim.context.driver.simStats().modules == before
    module = sim.compile(source=SOURCE, name="module.cu", names=NAMES)
    for routine in ("cuModuleGetFunction", "cuFuncLoad", "cuFuncGetParamInfo", "cuFuncGetAttribute"):
        sim.context.driver.simInject(routine, code=sim.context.driver.CUresult.CUDA_ERROR_UNKNOWN)
        with pytest.raises(CudaError, match=routine):
            module["only"]
    assert module["only"].registers


@pytest.mark.parametrize("counted", [False, True])
def test_the_driver_describes_every_parameter(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """Without PTX, their number is the driver's, which reports it since CUDA 13.2; then no call fails."""
    driver, failed = sim.context.driver, []
    kernel = sim.compile(source=SOURCE, name="module.cu", names=NAMES)["only"]
    describe, count = driver.cuFuncGetParamInfo, len(kernel.parameters)

    def described(function: Any, index: int) -> Any:
        answer = describe(function, index)
        failed.extend(answer[:1] if answer[0] else ())
        return answer

    monkeypatch.setattr(driver, "cuFuncGetParamInfo", described)
    if counted:
        success = driver.CUresult.CUDA_SUCCESS
        monkeypatch.setattr(driver, "cuFuncGetParamCount", lambda function: (success, count), raising=False)
    assert kernel.parameter_layout(None) == kernel.parameter_layout(count) != []
    assert len(failed) == (0 if counted else 1)


def test_errors_of_launches_are_raised(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=SOURCE, name="module.cu", names=NAMES)["only"]
    x = sim.zeros((1,), np.float32)
    prepared = kernel.prepare(grid=1, block=1, args=(x,))
    launches = [lambda: prepared.launch(sim.default_stream)] + [
        lambda: kernel.launch(sim.default_stream, grid=1, block=1, args=(x,)) for _ in range(2)
    ]
    for launch in launches:
        sim.context.driver.simInject(
            "cuLaunchKernel", code=sim.context.driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        )
        with pytest.raises(CudaError, match=r"cuLaunchKernel.*OUT_OF_RESOURCES"):
            launch()
        launch()
    sim.synchronize()


def test_an_unloaded_module_frees_its_handle(sim: cudakit.Device) -> None:
    from cudakit.launch.module import Module

    compiled = sim.compile(source=SOURCE, name="module.cu", names=NAMES).compiled
    before = sim.context.driver.simStats().modules
    with Module(sim.context, compiled) as module:
        assert sim.context.driver.simStats().modules == before + 1
        kernel = module["only"]
    assert sim.context.driver.simStats().modules == before
    with pytest.raises(Closed):
        kernel.launch(sim.default_stream, grid=1, block=1, args=(None,))
    module = Module(sim.context, compiled)
    kernel = module["only"]
    del module
    gc.collect()
    assert sim.context.driver.simStats().modules == before + 1  # a kernel keeps its module
    del kernel
    gc.collect()
    assert sim.context.driver.simStats().modules == before


def test_a_text_source_is_quoted_in_reports(sim: cudakit.Device) -> None:
    source = "__global__ void over(float* x) {\n    x[threadIdx.x] = 1;  // one too many\n}\n"
    x = sim.zeros((31,), np.float32)
    sim.compile(source=source, name="over.cu")["over"].launch(sim.default_stream, grid=1, block=32, args=(x,))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    text = str(caught.value)
    assert "over.cu" in text
    assert "one too many" in text
    assert "out-of-bounds access" in text


def test_a_file_is_quoted_in_reports(sim: cudakit.Device, tmp_path: Path) -> None:
    path = tmp_path / "over.cu"
    path.write_text("__global__ void over(float* x) {\n    x[threadIdx.x] = 1;  // in the file\n}\n")
    x = sim.zeros((31,), np.float32)
    sim.compile(path)["over"].launch(sim.default_stream, grid=1, block=32, args=(x,))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    assert f"{path}" in str(caught.value)
    assert "in the file" in str(caught.value)


def test_launches_say_that_the_context_is_lost(sim: cudakit.Device) -> None:
    source = "__global__ void over(float* x) { x[1000000] = 1; }"
    x = sim.zeros((31,), np.float32)
    kernel = sim.compile(source=source, name="over.cu")["over"]
    prepared = kernel.prepare(grid=1, block=1, args=(x,))
    kernel.launch(sim.default_stream, grid=1, block=1, args=(x,))
    with pytest.raises(cudakit.DeviceFault):
        sim.synchronize()
    for launch in (
        lambda: kernel.launch(sim.default_stream, grid=1, block=1, args=(x,)),
        lambda: prepared.launch(sim.default_stream),
    ):
        with pytest.raises(cudakit.ContextLost, match="was lost"):
            launch()


def test_device_printf(device: cudakit.Device, capfd: Any) -> None:
    source = r'__global__ void hello(int n) { printf("hello %d of %d\n", threadIdx.x, n); }'
    device.compile(source=source, name="hello.cu")["hello"].launch(device.default_stream, grid=1, block=2, args=(2,))
    device.synchronize()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "hello 0 of 2", "hello 1 of 2"]


# Code of other compilers ----------------------------------------------------------------------------------------------

PTX = """
.version 7.0
.target sm_75
.address_size 64

.visible .const .align 4 .f32 factor = 0f40000000;

.visible .entry scaled(
    .param .u64 .ptr .global .align 4 x,
    .param .u64 y,
    .param .f32 shift,
    .param .u32 n
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [shift];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra done;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.const.f32 %f3, [factor];
    fma.rn.f32 %f4, %f2, %f3, %f1;
    st.global.f32 [%rd5], %f4;
done:
    ret;
}
"""


@pytest.mark.parametrize("form", ["text", "bytes", "path", "str path"])
def test_loaded_ptx(device: cudakit.Device, tmp_path: Path, form: str) -> None:
    path = tmp_path / "scaled.ptx"
    path.write_text(PTX)
    image: Any = {"text": PTX, "bytes": PTX.encode(), "path": path, "str path": str(path)}[form]
    with device.load(image) as module:
        assert module.name == {"text": "module.ptx", "bytes": "module"}.get(form, str(path))
        kernel = module["scaled"]
        assert kernel.signature == "scaled(void*, 64 bits (a pointer or an integer), float, 32-bit integer)"
        assert module.kernels == (kernel,)
        x, y = device.array(np.arange(8, dtype=np.float32)), device.full((8,), -1, np.float32)
        device.synchronize()
        with device.stream() as stream:
            kernel.launch(stream, grid=1, block=32, args=(x, y, 0.5, 7))
            assert y.numpy(stream=stream).tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, -1]
            module.constant("factor").fill(3)
            device.synchronize()
            kernel.prepare(grid=1, block=32, args=(x, y, 0, 8)).launch(stream)
            assert y.numpy(stream=stream).tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    with pytest.raises(Closed, match="was closed; load it again"):
        module["scaled"].prepare(grid=1, block=32, args=(x, y, 0, 8))


@pytest.mark.parametrize(
    ("index", "value", "match"),
    [
        (0, 1.5, r"parameter 0 .*is void\*, got float 1.5"),
        (1, "text", "parameter 1 .*is 64 bits"),
        (2, None, "parameter 2 .*is float, got None"),
        (3, 2.0, "parameter 3 .*is 32-bit integer, got float 2.0"),
        (3, 1 << 33, "parameter 3 .*is 32-bit integer"),
    ],
)
def test_launches_of_loaded_ptx_are_checked(device: cudakit.Device, index: int, value: Any, match: str) -> None:
    kernel = device.load(PTX, name="other.ptx")["scaled"]
    x = device.zeros((8,))
    arguments: list[Any] = [x, x, 0.0, 8]
    with pytest.raises(LaunchError, match="takes 4 arguments"):
        kernel.launch(device.default_stream, grid=1, block=32, args=tuple(arguments[:3]))
    arguments[index] = value
    with pytest.raises(LaunchError, match=match):
        kernel.launch(device.default_stream, grid=1, block=32, args=tuple(arguments))


def test_each_load_is_a_module_of_its_own(device: cudakit.Device) -> None:
    first, second = device.load(PTX), device.load(PTX)
    assert first is not second
    first.constant("factor").fill(5)
    first.close()
    assert second.constant("factor").numpy() == 2


def test_wrong_images(device: cudakit.Device, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.ptx"):
        device.load("nowhere.ptx")
    with pytest.raises(ValueError, match=r"must be PTX .*, a cubin"):
        device.load(b"\x01\xff\xfe")
    (tmp_path / "kernel.cu").write_text("__global__ void k() {}\n")
    with pytest.raises(ValueError, match=r"kernel\.cu must be PTX"):
        device.load(tmp_path / "kernel.cu")
    # the compiler's own words are in the error: which line, and what
    line = next(number for number, text in enumerate(PTX.splitlines(), 1) if "mul.wide" in text)
    with pytest.raises(CudaError, match=rf"INVALID_PTX[\s\S]*line {line}\b"):
        device.load(PTX.replace("mul.wide", "mul.wild"))
    with pytest.raises(UnknownName, match=r"^module.ptx has no kernel 'scale'\. Similar: scaled$"):
        device.load(PTX)["scale"]


def test_a_cubin_needs_a_gpu(sim: cudakit.Device) -> None:
    before = sim.context.driver.simStats().modules
    compiled = sim.compile(source=SOURCE, name="module.cu", names=NAMES)
    with pytest.raises(CudakitError, match=r"made.cubin is machine code for GPUs, but sim.* runs PTX; pass the PTX"):
        sim.load(compiled.cubin, name="made.cubin")
    assert sim.context.driver.simStats().modules == before + 1


@pytest.mark.gpu
def test_a_bare_cubin(gpu: cudakit.Device, tmp_path: Path) -> None:
    path = tmp_path / "module.cubin"
    path.write_bytes(gpu.compile(source=SOURCE, name="module.cu", names=NAMES).cubin)
    module = gpu.load(path)
    assert sorted(kernel.mangled for kernel in module.kernels)[0] == "_Z4fillILi4EfEvPT0_"
    assert module["ns::scale"].signature == "ns::scale(float*, int)"
    assert module["plain"].signature == "plain(64 bits (a pointer or a number))"
    x = gpu.full((4,), 2, np.float32)
    module.constant("table", "float32").copy_from(np.arange(4, dtype=np.float32))
    gpu.synchronize()
    module["ns::scale"].launch(gpu.default_stream, grid=1, block=32, args=(x, 3))
    assert x.numpy().tolist() == [0, 2, 4, 2]
    with pytest.raises(LaunchError, match=r"parameter 1 .*is int, got float 1.5"):
        module["ns::scale"].launch(gpu.default_stream, grid=1, block=32, args=(x, 1.5))
    with pytest.raises(ValueError, match="pass its dtype"):
        module.constant("table")
