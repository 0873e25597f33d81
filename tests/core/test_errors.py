"""The check of driver results: its return value or exception for every kind of result."""

from __future__ import annotations

import ctypes
import pickle

import pytest
from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

from cudakit import Device, errors, sim
from cudakit.errors import CompileError, ContextLost, CudaError, CudakitError, DeviceFault, OutOfMemory, check


@pytest.fixture(scope="module")
def driver():
    made = sim.Driver()
    made.cuInit(0)
    return made


OK = cu.CUresult.CUDA_SUCCESS


@pytest.mark.parametrize(
    ("result", "values"), [((OK,), None), ((OK, 7), 7), ((OK, 7, 8), (7, 8)), ((OK, None), None), ((OK, 0), 0)]
)
def test_success_gives_the_values(driver, result, values):
    assert check(driver, "cuX", result) == values


def test_failure_says_routine_name_code_text_and_what_to_do(driver):
    with pytest.raises(CudaError) as caught:
        check(driver, "cuModuleLoadData", (cu.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, None))
    error = caught.value
    assert (error.routine, error.code, error.name) == (
        "cuModuleLoadData",
        222,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    )
    assert "unsupported toolchain" in error.text
    assert "cubin" in error.hint
    for part in (error.routine, "222", error.name, error.text, error.hint):
        assert part in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY, OutOfMemory),
        (cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, DeviceFault),
        (cu.CUresult.CUDA_ERROR_LAUNCH_FAILED, DeviceFault),
        (cu.CUresult.CUDA_ERROR_INVALID_VALUE, CudaError),
        (cu.CUresult.CUDA_ERROR_NOT_READY, CudaError),
        # An error of one launch; the context remains usable.
        (cu.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CudaError),
        (cu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CudaError),
    ],
)
def test_the_class_says_what_can_be_done(driver, code, kind):
    with pytest.raises(CudaError) as caught:
        check(driver, "cuX", (code, None))
    assert type(caught.value) is kind


def test_a_fault_is_caught_as_a_lost_context():
    assert issubclass(DeviceFault, ContextLost)
    assert issubclass(ContextLost, CudaError)
    assert issubclass(CudaError, CudakitError)


def test_every_usual_error_has_a_hint(driver):
    names = (
        "OUT_OF_MEMORY ILLEGAL_ADDRESS MISALIGNED_ADDRESS LAUNCH_OUT_OF_RESOURCES INVALID_PTX UNSUPPORTED_PTX_VERSION "
        "NO_BINARY_FOR_GPU NOT_READY INVALID_VALUE INVALID_HANDLE NO_DEVICE NOT_FOUND LAUNCH_FAILED INVALID_IMAGE"
    )
    for name in names.split():
        error = errors.failure(driver, "cuX", getattr(cu.CUresult, f"CUDA_ERROR_{name}"))
        assert error.hint, name


UNSUPPORTED = {
    "several": (
        """__global__ void k() {
            int sum;
            asm volatile("multimem.ld_reduce.relaxed.sys.global.add.s32 %0, [%1];" : "=r"(sum) : "l"(0ull));
        }""",
        r"does not execute 'multimem.*\n  in the kernel .*\n  at several\.cu:3\n"
        r" +asm volatile\(.*\n",
    ),
    "sparse": (
        """__global__ void k() {
            asm volatile("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%0, %0, %0, %0}, %1, %1, %2, 0, 1, 1, "
                         "1, 0, 0;" :: "f"(0.0f), "l"(0ull), "r"(0));
        }""",
        r"does not execute 'wgmma\.mma_async\.sp.*\n  in the kernel .*\n  at sparse\.cu:2\n",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_the_simulated_device_does_not_run_yet_is_named_with_its_line(name):
    source, text = UNSUPPORTED[name]
    with Device("sim", fresh=True) as device:
        module = device.compile(source=source + "\n__global__ void other() {}", name=f"{name}.cu")
        stream = device.default_stream
        module["other"].launch(stream, grid=1, block=1)
        with pytest.raises(CudaError, match=text) as caught:
            module["k"].launch(stream, grid=1, block=1)
        assert caught.value.hint.startswith("The simulated device does not support this yet: run it on a GPU")
        assert "architecture" not in str(caught.value)


def test_the_host_passes_the_address_of_a_function_from_a_variable_to_a_kernel():
    source = """__device__ int a() { return 1; } __device__ int b() { return 2; }
        __device__ int (*t[2])() = {a, b};
        __global__ void k(int* out, int (*f)()) { *out = f(); }"""
    with Device("sim", fresh=True) as device:
        module = device.compile(source=source, name="t.cu", names=("&t", "k"))
        addresses = module.variable("t", "int64").numpy()
        out = device.zeros(1, "int32")
        for address, result in zip(addresses.ravel(), (1, 2), strict=True):
            module["k"].launch(device.default_stream, grid=1, block=1, args=(out, ctypes.c_void_p(int(address))))
            assert out.numpy()[0] == result


def test_hints_are_for_errors_that_exist():
    names = {member.name for member in cu.CUresult} | {member.name for member in nvrtc.nvrtcResult}
    assert set(errors._HINTS) <= names


def test_sticky_codes_exist():
    known = {int(member) for member in cu.CUresult}
    assert known >= errors.STICKY
    assert not errors.STICKY & {0, errors.OUT_OF_MEMORY, errors.NOT_READY, 1, 701, 720}


def test_nvrtc_results_go_through_the_same_check():
    assert check(nvrtc, "nvrtcVersion", nvrtc.nvrtcVersion())[0] >= 13
    with pytest.raises(
        CudaError, match=r"nvrtcCompileProgram failed with NVRTC_ERROR_COMPILATION \(6\).*log"
    ) as caught:
        check(nvrtc, "nvrtcCompileProgram", (nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION,))
    # NVRTC's code 1 means that NVRTC, not a device, is out of memory.
    with pytest.raises(CudaError) as caught:
        check(nvrtc, "nvrtcCreateProgram", (nvrtc.nvrtcResult.NVRTC_ERROR_PROGRAM_CREATION_FAILURE,))
    assert type(caught.value) is CudaError


def test_errors_cross_process_boundaries():
    error = OutOfMemory("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "free some")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is OutOfMemory
    assert (str(again), again.code, again.hint) == (str(error), 2, "free some")
    compile_error = CompileError("x.cu does not compile", log="x.cu(3): error: no", options=("-O3",), excerpt="3 | int")
    again = pickle.loads(pickle.dumps(compile_error))
    assert (str(again), again.log, again.options) == (str(compile_error), compile_error.log, ("-O3",))


def test_a_compile_error_shows_each_error_once_and_keeps_log_and_options_aside():
    error = CompileError("x.cu does not compile", log="error: no", options=("-a", "-b"), excerpt="  3 | int x")
    assert str(error).splitlines() == ["x.cu does not compile", "  3 | int x"]
    assert (error.log, error.options) == ("error: no", ("-a", "-b"))
    unknown = CompileError("x.cu does not compile", log="error: no such option", options=("-a",))
    assert str(unknown).splitlines() == ["x.cu does not compile", "NVRTC's log:", "error: no such option"]
