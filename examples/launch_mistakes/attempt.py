"""One wrong launch by one package: a line of JSON. Run by launch_mistakes.py, in a process of its own, which the wrong
launch may bring down.

python attempt.py cupy "float64 array"
"""

import json
import sys

import numpy as np

N = 4096
FACTOR = 2.0
BLOCK = 256
MANY = 2**32 + N // 2  # as an int it is N // 2

SCALE = """(const float* x, float* y, float factor, {count} n) {{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}}
"""
SOURCE = 'extern "C" __global__ void scale' + SCALE.format(count="long long")
SOURCE += 'extern "C" __global__ void scale_int' + SCALE.format(count="int")

# What each mistake changes of the right launch: the arrays' dtype, the arguments, or the shape of the launch; expected:
# the first values of the right result, if it is another.
MISTAKES = {
    "plain Python numbers": {},
    "float64 array": {"dtype": np.float64},
    "argument missing": {"arguments": lambda x, y, host: (x, y, FACTOR)},
    "argument too many": {"arguments": lambda x, y, host: (x, y, FACTOR, N, N)},
    "integer for a pointer": {"arguments": lambda x, y, host: (N, y, FACTOR, N)},
    "host array": {"arguments": lambda x, y, host: (host, y, FACTOR, N)},
    "integer out of range": {"kernel": "scale_int", "arguments": lambda x, y, host: (x, y, FACTOR, MANY)},
    "2048 threads a block": {"block": 2048},
    "1 MB of shared memory": {"shared": 1 << 20},
    "every second element": {
        "arguments": lambda x, y, host: (x[::2], y, FACTOR, N // 2),
        "expected": lambda host: FACTOR * host[::2],
    },
}


def attempt(package, mistake):
    """Gives what became of the launch and what the package said: "refused" before anything ran, or "right", "wrong" or
    "fault" after it ran."""
    change = MISTAKES[mistake]
    host = np.arange(N, dtype=change.get("dtype", np.float32))
    arguments = change.get("arguments", lambda x, y, _: (x, y, FACTOR, N))
    launch, array, wait = package(change.get("kernel", "scale"))
    x, y = array(host), array(np.full(N, np.nan, host.dtype))
    block, shared = change.get("block", BLOCK), change.get("shared", 0)
    try:
        launch(N // BLOCK, block, shared, arguments(x, y, host))
    except Exception as error:
        return "refused", said(error)
    try:
        got = wait(y)
    except Exception as error:
        return "fault", said(error)
    expected = change.get("expected", lambda host: FACTOR * host)(host)
    return ("right" if (got[: len(expected)] == expected).all() else "wrong"), ""


def said(error):
    """The first line that says something, after the error's class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def with_cudakit(name, spec="auto"):
    import cudakit

    device = cudakit.Device(None if spec == "auto" else spec)
    kernel, stream = device.compile(source=SOURCE.replace('extern "C" ', ""), name="scale.cu")[name], device.stream()

    def launch(grid, block, shared, arguments):
        kernel.launch(stream, grid=grid, block=block, shared=shared, args=arguments)

    return launch, lambda host: device.array(host, stream=stream), lambda y: y.numpy(stream)


def with_cupy(name):
    import cupy

    kernel = cupy.RawKernel(SOURCE, name)

    def launch(grid, block, shared, arguments):
        kernel((grid,), (block,), arguments, shared_mem=shared)

    return launch, cupy.asarray, lambda y: y.get()


def with_cuda_core(name):
    """Arrays are CuPy's, whose address is passed: cuda.core has none of its own."""
    import cupy
    from cuda import core

    device = core.Device()
    device.set_current()
    program = core.Program(
        SOURCE, "c++", core.ProgramOptions(arch=f"sm_{''.join(map(str, device.compute_capability))}")
    )
    kernel, stream = program.compile("cubin").get_kernel(name), device.create_stream()

    def launch(grid, block, shared, arguments):
        given = [item.data.ptr if isinstance(item, cupy.ndarray) else item for item in arguments]
        config = core.LaunchConfig(grid=grid, block=block, shmem_size=shared)
        core.launch(stream, config, kernel, *given)

    def wait(y):
        stream.sync()
        return y.get()

    def array(host):
        made = cupy.asarray(host)
        cupy.cuda.Device().synchronize()
        return made

    return launch, array, wait


def with_triton(name):
    """Its kernel is Python and compiled for the types it is given; block and shared memory are its own affair."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, factor, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i, factor * tl.load(x + i, mask=i < n), mask=i < n)

    globals()["tl"] = tl  # the compiler looks names up in the module

    def launch(grid, block, shared, arguments):
        scale[(grid,)](*arguments, BLOCK=BLOCK)

    def wait(y):
        torch.cuda.synchronize()
        return y.cpu().numpy()

    return launch, lambda host: torch.from_numpy(host).cuda(), wait


PACKAGES = {"cudakit": with_cudakit, "cupy": with_cupy, "cuda.core": with_cuda_core, "triton": with_triton}

if __name__ == "__main__":
    package, mistake, *options = sys.argv[1:]
    outcome, text = attempt(lambda name: PACKAGES[package](name, *options), mistake)
    print(json.dumps({"outcome": outcome, "said": text}))
