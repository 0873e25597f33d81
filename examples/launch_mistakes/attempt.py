"""One launch with a mistake by one package; prints a line of JSON. launch_mistakes.py runs it in its own process, which
the launch may crash.

python attempt.py cupy "float64 array"
"""

import json
import sys

import numpy as np

N = 4096
FACTOR = 2.0
BLOCK = 256
MANY = 2**32 + N // 2  # truncated to an int: N // 2

SCALE = """(const float* x, float* y, float factor, {count} n) {{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}}
"""
SOURCE = 'extern "C" __global__ void scale' + SCALE.format(count="long long")
SOURCE += 'extern "C" __global__ void scale_int' + SCALE.format(count="int")

# The change that each mistake makes to the correct launch: the arrays' dtype, the arguments, or the shape of the
# launch. expected: the first values of the correct result, if they differ.
MISTAKES = {
    "plain Python numbers": {},
    "float64 array": {"dtype": np.float64},
    "argument missing": {"arguments": lambda x, y, host: (x, y, FACTOR)},
    "argument too many": {"arguments": lambda x, y, host: (x, y, FACTOR, N, N)},
    "integer for a pointer": {"arguments": lambda x, y, host: (N, y, FACTOR, N)},
    "host array": {"arguments": lambda x, y, host: (host, y, FACTOR, N)},
    "integer out of range": {"kernel": "scale_int", "arguments": lambda x, y, host: (x, y, FACTOR, MANY)},
    "2048 threads per block": {"block": 2048},
    "1 MB of shared memory": {"shared": 1 << 20},
    "every second element": {
        "arguments": lambda x, y, host: (x[::2], y, FACTOR, N // 2),
        "expected": lambda host: FACTOR * host[::2],
    },
}


def attempt(package, mistake):
    """Return the outcome and the package's message: "refused" if nothing ran, else "right", "wrong" or "fault"."""
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
    """The error's class and its first line that is not empty."""
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
    """Launch with cuda.core, on the addresses of CuPy arrays, since cuda.core has no arrays."""
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
    """Launch with Triton, whose kernel is compiled for the given types and chooses its own block and shared memory."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, factor, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i, factor * tl.load(x + i, mask=i < n), mask=i < n)

    globals()["tl"] = tl  # the compiler looks up names in the module

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
