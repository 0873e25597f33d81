"""Host cost of calls: microseconds per launch, graph replay, NVTX range and library call, compared with the bare call.

Launches have four arguments and come in bursts of 200. The floor is `bare`: cuLaunchKernel of cuda.bindings with the
parameters packed beforehand. `checked` is cudakit's Kernel.launch with the same arguments each time, `checked-varied`
with different ones each time: it packs them and checks them against the kernel's signature. `prepared` is a launch that
was checked once; `checked-torch` and `checked-cupy` are checked launches with those libraries' arrays. CuPy, cuda.core,
torch and Triton are measured too if they are installed.

Other rows compare a graph's replay with a bare cuGraphLaunch (and show the GPU's time per node), an NVTX range without
a profiler with an empty call, and cuBLAS's gemm and cuFFT's transform with calls of the bare bindings. Fresh processes
measure the import of cudakit, compared with the import of numpy, and the first launch if the kernel is in the cache and
NVRTC is not needed.

On the simulated device this measures the host's cost of queueing into the simulator, which is unrelated to a GPU's.

    python examples/launch_overhead.py
    python examples/launch_overhead.py --json -
"""

import argparse
import ctypes
import functools
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy as np

from cudakit import nvtx
from cudakit.commands import against, cli
from cudakit.errors import Refused
from cudakit.libs import blas, fft
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import BURST, GpuTimer, host_costs
from cudakit.show import example_tables, outputs, tables, terminal

N = 256
FACTOR = 2.0

# y[i] = factor * x[i]
SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""

EXTERN_C = 'extern "C" ' + SOURCE.strip()

IMPORT = "import time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
# cudakit loads its parts on first use, so importing the package alone would miss most of the cost.
IMPORTS = {
    "numpy": "import numpy",
    "cudakit": "import cudakit",
    "cudakit.Device": "import cudakit; cudakit.Device",
}

FIRST_LAUNCH = """
import json, sys, time
begin = time.perf_counter()
import cudakit
device = cudakit.Device(None if sys.argv[1] == "auto" else sys.argv[1])
kernel = device.compile(source=sys.argv[2], name="scale.cu")["scale"]
with device.stream() as stream:
    x = device.zeros((256,), "float32", stream=stream)
    kernel.launch(stream, grid=1, block=256, args=(x, x, 2.0, 256))
    stream.synchronize()
took = time.perf_counter() - begin
print(json.dumps({"seconds": took, "nvrtc_loaded": "libnvrtc.so" in open("/proc/self/maps").read()}))
"""


@dataclass
class HostRow(Row):
    """A row with the host's microseconds per call, the difference to the bare call, and, for a graph on a GPU, the time
    per node."""

    host_us: dict | None = None
    above_bare_us: float | None = None
    node_us: float | None = None

    def take(self, costs):
        """Set this row's times from `costs`, which has all variants and the bare call; do nothing if the variant was
        not measured."""
        cost = costs.get(self.subject.variant)
        if cost is not None:
            self.host_us, self.above_bare_us = cost.as_dict(), cost.median - costs["bare"].median


def bare(device, stream, kernel, x, y):
    """cuLaunchKernel of the bindings with parameters packed once: the cheapest launch possible in Python."""
    values = (ctypes.c_uint64(x.pointer), ctypes.c_uint64(y.pointer), ctypes.c_float(FACTOR), ctypes.c_int(N))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    address = ctypes.addressof(pointers)
    function, handle, launch = kernel.handle, stream.handle, device.context.driver.cuLaunchKernel

    def call(keep=(values, pointers)):
        launch(function, 1, 1, 1, N, 1, 1, 0, handle, address, 0)

    return call


def checked(device, stream, kernel, x, y):
    return lambda: kernel.launch(stream, grid=1, block=N, args=(x, y, FACTOR, N))


def varied(device, stream, kernel, x, y):
    """Different arguments in each call, so that no cached launch can be reused."""
    arguments = itertools.cycle(((x, y, FACTOR, N), (y, x, FACTOR, N)))
    return lambda: kernel.launch(stream, grid=1, block=N, args=next(arguments))


def prepared(device, stream, kernel, x, y):
    return functools.partial(kernel.prepare(grid=1, block=N, args=(x, y, FACTOR, N)).launch, stream)


def cuda_core(device, stream, kernel, x, y):
    from cuda import core

    core.Device(device.ordinal).set_current()
    theirs = core.ObjectCode.from_cubin(kernel.module.cubin).get_kernel(kernel.mangled)
    config = core.LaunchConfig(grid=1, block=N)
    queue = core.Stream.from_handle(int(stream))
    factor, n = np.float32(FACTOR), np.int32(N)
    return lambda: core.launch(queue, config, theirs, x.pointer, y.pointer, factor, n)


def cupy_arrays(device, stream):
    """Return two arrays, and make `stream` CuPy's current stream for the rest of the process."""
    import cupy

    cupy.cuda.Device(device.ordinal).use()
    wrap = getattr(cupy.cuda.Stream, "from_external", lambda own: cupy.cuda.ExternalStream(int(own)))
    wrap(stream).use()
    return cupy.ones(N, cupy.float32), cupy.empty(N, cupy.float32)


def cupy(device, stream, kernel, x, y):
    import cupy

    arguments = (*cupy_arrays(device, stream), cupy.float32(FACTOR), cupy.int32(N))
    theirs = cupy.RawKernel(EXTERN_C, "scale")
    return lambda: theirs((1,), (N,), arguments)


def with_arrays(make, arrays):
    """Return a function like `make` that passes another library's arrays instead of cudakit's."""

    def made(device, stream, kernel, x, y):
        source, target = arrays(device, stream)
        checked(device, stream, kernel, source, target)()
        if not bool((target == FACTOR * source).all()):
            raise Refused("the launch did not multiply by its factor")
        return make(device, stream, kernel, source, target)

    return made


def torch_arrays(device, stream):
    """Return two tensors, and make `stream` torch's current stream for the rest of the process."""
    import torch

    place = torch.device("cuda", device.ordinal)
    torch.cuda.set_stream(torch.cuda.ExternalStream(int(stream), device=place))
    return torch.ones(N, device=place), torch.empty(N, device=place)


def torch_mul(device, stream, kernel, x, y):
    import torch

    source, target = torch_arrays(device, stream)
    return lambda: torch.mul(source, FACTOR, out=target)


def triton_jit(device, stream, kernel, x, y):
    from cudakit.measure.peers.with_triton import scale_kernel

    source, target = torch_arrays(device, stream)
    return lambda: scale_kernel[(1,)](source, target, FACTOR, N, BLOCK=N)


OURS = {
    "bare": ("cuda.bindings, parameters packed beforehand", bare),
    "checked": ("cudakit Kernel.launch", checked),
    "checked-varied": ("cudakit Kernel.launch, different arguments each time", varied),
    "prepared": ("cudakit Kernel.prepare(...).launch", prepared),
}
PEERS = {
    "checked-torch": ("cudakit Kernel.launch, torch tensors", with_arrays(checked, torch_arrays), "torch"),
    "checked-torch-varied": ("the same, different tensors each time", with_arrays(varied, torch_arrays), "torch"),
    "checked-cupy": ("cudakit Kernel.launch, CuPy arrays", with_arrays(checked, cupy_arrays), "cupy"),
    "peer:cuda.core": ("cuda.core launch", cuda_core, "cuda.core"),
    "peer:cupy": ("CuPy RawKernel", cupy, "cupy"),
    "peer:torch": ("torch.mul(out=)", torch_mul, "torch"),
    "peer:triton": ("Triton JIT", triton_jit, "triton"),
}


def measure_launches(device, burst, bursts):
    """The rows of all ways to launch; those not installed are skipped."""
    rows, calls = {}, {}
    with device.stream() as stream:
        x = device.array(np.ones(N, np.float32), stream=stream)
        y = device.empty_like(x, stream=stream)
        kernel = device.compile(source=SOURCE, name="scale.cu")["scale"]
        contenders = dict(OURS)
        for name, (idea, make, package) in PEERS.items() if device.kind == "gpu" else ():
            rows[name] = HostRow(Subject("launch", name, None, (N,), "float32", idea=idea))
            if importable(package):
                contenders[name] = (idea, make)
            else:
                rows[name].skip(f"{package} is not installed")
        for name, (idea, make) in contenders.items():
            row = rows.setdefault(name, HostRow(Subject("launch", name, None, (N,), "float32", idea=idea)))
            try:
                calls[name] = make(device, stream, kernel, x, y)
                y.fill(float("nan"), stream)
                calls[name]()
                stream.synchronize()
            except Exception as error:
                if name in OURS:
                    raise
                row.skip(f"{type(error).__name__}: {error}".splitlines()[0])
                calls.pop(name, None)
                continue
            row.verdict.ok = True
            if name in OURS and not np.array_equal(y.numpy(stream), np.full(N, FACTOR, np.float32)):
                row.fail("the launch did not multiply by its factor")
        costs = host_costs(calls, stream.synchronize, burst=burst, bursts=bursts)
        calls.clear()  # frees other libraries' arrays before the stream they were used on
    ordered = [rows[name] for name in (*OURS, *PEERS) if name in rows]
    for row in ordered:
        row.take(costs)
    return ordered


def measure_ranges(bursts):
    """The rows of an NVTX range without a profiler, and of an empty call."""
    bare = HostRow(Subject("nvtx", "bare", None, (), "", idea="an empty call"))
    row = HostRow(Subject("nvtx", "range", None, (), "", idea="cudakit.nvtx.range, no tool attached"))
    if nvtx.listening():
        for each in (bare, row):
            each.skip("a tool collects this process's ranges")
        return [bare, row]

    def empty():
        pass

    def ranged():
        with nvtx.range("work"):
            pass

    costs = host_costs({"bare": empty, "range": ranged}, empty, burst=2000, bursts=bursts)
    for each in (bare, row):
        each.verdict.ok = True
        each.take(costs)
    return [bare, row]


def measure_graphs(device, bursts):
    """The rows of replaying a chain of one-block launches: one call of the host for any number of nodes.

    Run before another library opens a stream: with several streams in the process, a node takes longer on an H200.
    """
    gpu, rows = device.kind == "gpu", []
    kernel = device.compile(source=SOURCE, name="scale.cu")["scale"]
    with device.stream() as stream:
        x, y = device.array(np.ones(N, np.float32), stream=stream), device.zeros((N,), stream=stream)
        for nodes in (1, 500 if gpu else 20):
            with stream.capture() as captured:
                for _ in range(nodes):
                    kernel.launch(stream, grid=1, block=N, args=(x, y, FACTOR, N))
            with captured.instantiate() as replay:
                send = functools.partial(device.context.driver.cuGraphLaunch, replay.handle, stream.handle)
                calls = {"bare": send, "replay": functools.partial(replay.launch, stream)}
                ideas = {"bare": "cuGraphLaunch of cuda.bindings", "replay": "cudakit Executable.launch"}
                pair = []
                for name, call in calls.items():
                    row = HostRow(Subject("graph", name, None, (nodes,), "float32", idea=ideas[name]))
                    y.fill(float("nan"), stream)
                    call()
                    row.verdict.ok = True
                    if not np.array_equal(y.numpy(stream), np.full(N, FACTOR, np.float32)):
                        row.fail("the replay did not multiply by its factor")
                    pair.append(row)
                costs = host_costs(calls, stream.synchronize, burst=10 if gpu else 2, bursts=bursts)
                for row in pair:
                    row.take(costs)
                if gpu:
                    pair[1].node_us = 1000 * GpuTimer(device, stream).time([calls["replay"]]).median / nodes
                rows += pair
    return rows


def gemm_calls(device, stream):
    """cuBLAS's product of two 64x64 matrices: (calls, result, expected, resources to close)."""
    from nvmath.bindings import cublas

    n = 64
    hosts = np.random.default_rng(1).integers(-4, 5, (2, n, n)).astype(np.float32)  # exact in float32
    a, b = (device.array(host, stream=stream) for host in hosts)
    out = device.zeros((n, n), stream=stream)
    factors = np.array([1, 0], np.float32)
    at, handle = factors.ctypes.data, cublas.create()
    cublas.set_stream(handle, int(stream.handle))
    # B first: cuBLAS is column-major. 68: compute in float32; -1: the default algorithm.
    arguments = (handle, 0, 0, n, n, n, at, b.pointer, 0, n, a.pointer, 0, n, at + 4, out.pointer, 0, n, 68, -1)
    calls = {
        "bare": lambda keep=factors: cublas.gemm_ex(*arguments),
        "gemm": functools.partial(blas.gemm, a, b, out, stream=stream),
    }
    return calls, out, hosts[0] @ hosts[1], lambda: cublas.destroy(handle)


def fft_calls(device, stream):
    """cuFFT's transform of 4 signals of 256: (calls, result, expected, resources to close)."""
    from nvmath.bindings import cufft

    batch, n = 4, 256
    host = np.zeros((batch, n), np.complex64)
    host[:, 0] = 1  # its transform is exactly 1 everywhere
    x, out = device.array(host, stream=stream), device.zeros((batch, n), "complex64", stream=stream)
    theirs, ours = cufft.create(), fft.Plan(device, n, batch=batch, stream=stream)
    cufft.make_plan1d(theirs, n, 0x29, batch)  # 0x29: complex64 to complex64
    cufft.set_stream(theirs, int(stream.handle))
    calls = {
        "bare": lambda: cufft.exec_c2c(theirs, x.pointer, out.pointer, -1),
        "forward": lambda: ours.forward(x, out),
    }

    def close():
        ours.close()
        cufft.destroy(theirs)

    return calls, out, np.ones((batch, n), np.complex64), close


LIBRARIES = {
    "gemm": ((64, 64, 64), "float32", gemm_calls, {"bare": "cublas.gemm_ex of nvmath", "gemm": "cudakit blas.gemm"}),
    "fft": ((4, 256), "complex64", fft_calls, {"bare": "cufft.exec_c2c of nvmath", "forward": "cudakit Plan.forward"}),
}


def measure_libraries(device, burst, bursts):
    """The rows of cuBLAS and cuFFT calls, and of the bare bindings."""
    rows = []
    for family, (shape, dtype, make, ideas) in LIBRARIES.items():
        pair = [HostRow(Subject(family, name, None, shape, dtype, idea=idea)) for name, idea in ideas.items()]
        rows += pair
        if device.kind == "sim" or not importable("nvmath.bindings"):
            for row in pair:
                row.skip("it needs a GPU" if device.kind == "sim" else "nvmath-python is not installed")
            continue
        with device.stream() as stream:
            calls, out, expected, close = make(device, stream)
            for row in pair:
                out.fill(float("nan"), stream)
                calls[row.subject.variant]()
                row.verdict.ok = True
                if not np.array_equal(out.numpy(stream), expected):
                    row.fail("the result is not exact")
            costs = host_costs(calls, stream.synchronize, burst=burst, bursts=bursts)
            for row in pair:
                row.take(costs)
            stream.synchronize()
            close()
    return rows


def importable(package):
    """Whether `package` is installed, without importing it (its parent is imported)."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def fresh_process(code, *arguments, **environment):
    """The output of `code` in a new interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise Refused(f"a fresh process failed:\n{done.stderr.strip()}")
    return done.stdout.strip().splitlines()[-1]


def measure_imports(repeats):
    """The seconds of each import: the median of `repeats` fresh processes, alternating between the imports."""
    samples = {name: [] for name in IMPORTS}
    for number in range(repeats + 1):
        for name, statement in IMPORTS.items():
            took = float(fresh_process(IMPORT.format(statement=statement)))
            if number:  # the first reads the files from disk
                samples[name].append(took)
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    ratios = {name: seconds / medians["numpy"] for name, seconds in medians.items()}
    return {"seconds": medians, "over_numpy": ratios, "n": repeats}


def measure_first_launch(device_name):
    """The seconds of the first launch: in a process that compiles, and in a second one that uses the cache."""
    with tempfile.TemporaryDirectory() as folder:
        cold = fresh_process(FIRST_LAUNCH, device_name, SOURCE, CUDAKIT_CACHE_DIR=folder)
        warm = fresh_process(FIRST_LAUNCH, device_name, SOURCE, CUDAKIT_CACHE_DIR=folder, CUDAKIT_COMPILE="never")
    return {"cold": json.loads(cold), "warm": json.loads(warm)}


def show(result, console):
    rows, notes = result["rows"], terminal.Notes()
    spreads = [row["host_us"] for row in rows]
    nothing = [f"- {notes.mark('skipped: ' + row['skipped'])}" if row["host_us"] is None else "" for row in rows]
    columns = [
        terminal.Column("launch", [example_tables.call_name(row) for row in rows], words=True),
        terminal.Column("us", [f"{s['median']:.2f}" if s else none for s, none in zip(spreads, nothing, strict=True)]),
        terminal.Column("p10 to p90", [f"{s['p10']:.2f} to {s['p90']:.2f}" if s else "" for s in spreads], leave=2),
        terminal.Column("above bare", [f"{row['above_bare_us']:+.2f}" if row["host_us"] else "" for row in rows]),
        terminal.Column(
            "us per node on the GPU",
            ["" if row["node_us"] is None else f"{row['node_us']:.2f}" for row in rows],
            leave=1,
        ),
    ]
    title = f"host microseconds per call; launches of four arguments, bursts of {result['burst']}"
    styles = [None if spread else "dim" for spread in spreads]
    terminal.show_table(console, title, columns, notes=notes.lines(), styles=styles)
    for name, idea in dict.fromkeys((example_tables.call_name(row), row["idea"]) for row in rows if row["idea"]):
        terminal.show_text(console, f"{name}: {idea}")
    if result["device"]["kind"] == "sim":
        terminal.show_text(
            console, "simulated: this machine's time for queueing into the simulator, unrelated to a GPU's driver"
        )
    imports, first = result["import"], result["first_launch"]
    for name, seconds in imports["seconds"].items():
        statement = IMPORTS[name]
        over = f"{imports['over_numpy'][name]:.2f} times numpy"
        terminal.show_text(console, f"{statement}: {1000 * seconds:.0f} ms, {over}")
    for state in ("cold", "warm"):
        nvrtc = "loaded" if first[state]["nvrtc_loaded"] else "not loaded"
        took = f"{first[state]['seconds']:.2f} s"
        terminal.show_text(console, f"first launch of a process, {state} cache: {took}, NVRTC {nvrtc}")
    terminal.show_text(console, tables.device_line(result))


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    earlier = against.load(arguments.against) if arguments.against else None
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        report = BenchReport(device.info())
        burst, bursts = BURST if gpu else 20, arguments.bursts or (50 if gpu else 3)
        graphs = measure_graphs(device, bursts)
        report.rows += measure_launches(device, burst, bursts)
        report.rows += [*graphs, *measure_ranges(bursts), *measure_libraries(device, burst, bursts)]
    result = {
        **report.as_dict(),
        "burst": burst,
        "import": measure_imports(arguments.repeats),
        "first_launch": measure_first_launch(arguments.device),
    }
    if not arguments.quiet:
        show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    good = report.ok and not result["first_launch"]["warm"]["nvrtc_loaded"]
    status = cli.EXIT_OK if good else cli.EXIT_FALSE
    return status if earlier is None else max(status, against.conclude(earlier, result, arguments.against, table))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    cli.add_against_argument(parser, "compare with an older --json of this script")
    parser.add_argument("--bursts", type=int, help="bursts per contender (default: 50, on the simulated device 3)")
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes per import (default: 7)")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
