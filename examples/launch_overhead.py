"""What a launch costs the host: microseconds a call, four arguments, in bursts of 200, beside others' launches.

The floor is `bare`: cuLaunchKernel of cuda.bindings with the parameters packed beforehand. `checked` is cudakit's
Kernel.launch with the same arguments each time, `checked-varied` with others each time: it packs them and checks them
against the kernel's signature. `prepared` is a launch that was checked once. CuPy, cuda.core, torch and Triton stand
beside them where they are installed. Also measured, in fresh processes: importing cudakit beside importing numpy, and
the first launch of a process that finds the kernel in the cache, which needs no NVRTC.

On the simulated device the host's cost of queueing into the simulator is measured, which says nothing of a GPU.

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

import numpy as np

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.measure.bench import Report, Row
from cudakit.measure.timing import BURST, host_costs
from cudakit.show import outputs, tables

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
# cudakit loads its parts when they are first named, so the import alone would not tell the whole.
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


def bare(device, stream, kernel, x, y):
    """cuLaunchKernel of the bindings, parameters packed once: nothing in Python can be cheaper."""
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
    """Other arguments at each call, so that nothing of the last launch is known again."""
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


def cupy(device, stream, kernel, x, y):
    import cupy

    cupy.cuda.Device(device.ordinal).use()
    wrap = getattr(cupy.cuda.Stream, "from_external", lambda own: cupy.cuda.ExternalStream(int(own)))
    wrap(stream).use()
    theirs = cupy.RawKernel(EXTERN_C, "scale")
    arguments = (cupy.ones(N, cupy.float32), cupy.empty(N, cupy.float32), cupy.float32(FACTOR), cupy.int32(N))
    return lambda: theirs((1,), (N,), arguments)


def torch_arrays(device, stream):
    """Two tensors, with `stream` made torch's current one for the rest of the process."""
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
    "checked-varied": ("cudakit Kernel.launch, other arguments each time", varied),
    "prepared": ("cudakit Kernel.prepare(...).launch", prepared),
}
PEERS = {
    "peer:cuda.core": ("cuda.core launch", cuda_core, "cuda.core"),
    "peer:cupy": ("CuPy RawKernel", cupy, "cupy"),
    "peer:torch": ("torch.mul(out=)", torch_mul, "torch"),
    "peer:triton": ("Triton JIT", triton_jit, "triton"),
}


def measure_launches(device, bursts, burst):
    """A row for each way to launch that is installed here."""
    rows, calls = {}, {}
    with device.stream() as stream:
        x = device.array(np.ones(N, np.float32), stream=stream)
        y = device.empty_like(x, stream=stream)
        kernel = device.compile(source=SOURCE, name="scale.cu")["scale"]
        contenders = dict(OURS)
        for name, (idea, make, package) in PEERS.items() if device.kind == "gpu" else ():
            rows[name] = Row("launch", name, None, (N,), "float32", idea)
            if importable(package):
                contenders[name] = (idea, make)
            else:
                rows[name].skipped = f"{package} is not installed"
        for name, (idea, make) in contenders.items():
            row = rows.setdefault(name, Row("launch", name, None, (N,), "float32", idea))
            try:
                calls[name] = make(device, stream, kernel, x, y)
                y.fill(float("nan"), stream)
                calls[name]()
                stream.synchronize()
            except Exception as error:
                if name in OURS:
                    raise
                row.skipped = f"{type(error).__name__}: {error}".splitlines()[0]
                calls.pop(name, None)
                continue
            row.ok = True
            if name in OURS and not np.array_equal(y.numpy(stream), np.full(N, FACTOR, np.float32)):
                row.fail("the launch did not multiply by its factor")
        costs = host_costs(calls, stream.synchronize, burst=burst, bursts=bursts)
        calls.clear()  # others' arrays go before the stream they were used on
    ordered = [rows[name] for name in (*OURS, *PEERS) if name in rows]
    return [
        {**vars(row), "host_us": cost.as_dict(), "above_bare_us": cost.median - costs["bare"].median}
        if (cost := costs.get(row.variant)) is not None
        else {**vars(row), "host_us": None, "above_bare_us": None}
        for row in ordered
    ]


def importable(package):
    """Whether `package` is there, without importing it (its parent is imported)."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def fresh_process(code, *arguments, **environment):
    """What a new interpreter prints for `code`."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise Refused(f"a fresh process failed:\n{done.stderr.strip()}")
    return done.stdout.strip().splitlines()[-1]


def measure_imports(repeats):
    """Seconds each import takes, the median of `repeats` fresh processes that take turns."""
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
    """The first launch of a process that must compile, and of a second one that may not."""
    with tempfile.TemporaryDirectory() as folder:
        cold = fresh_process(FIRST_LAUNCH, device_name, SOURCE, CUDAKIT_CACHE_DIR=folder)
        warm = fresh_process(FIRST_LAUNCH, device_name, SOURCE, CUDAKIT_CACHE_DIR=folder, CUDAKIT_COMPILE="never")
    return {"cold": json.loads(cold), "warm": json.loads(warm)}


def show(result, console):
    from rich.table import Table

    title = f"host microseconds a launch, four arguments, bursts of {result['burst']}"
    table = Table(title=title, title_justify="left")
    for heading in ("launch", "what it is", "us (p10 to p90)", "above bare"):
        table.add_column(heading, justify="left" if heading in ("launch", "what it is") else "right")
    for row in result["rows"]:
        spread = row["host_us"]
        if spread is None:
            table.add_row(row["variant"], f"skipped: {row['skipped']}", "", "", style="dim")
            continue
        times = f"{spread['median']:.2f} ({spread['p10']:.2f} to {spread['p90']:.2f})"
        table.add_row(row["variant"], row["idea"], times, f"{row['above_bare_us']:+.2f}")
    console.print(table)
    if result["device"]["kind"] == "sim":
        console.print("queueing into the simulator, by this machine's clock: not what a GPU's driver costs")
    imports, first = result["import"], result["first_launch"]
    for name, seconds in imports["seconds"].items():
        statement = IMPORTS[name]
        console.print(f"{statement}: {1000 * seconds:.0f} ms, {imports['over_numpy'][name]:.2f} times numpy")
    for state in ("cold", "warm"):
        nvrtc = "loaded" if first[state]["nvrtc_loaded"] else "not loaded"
        console.print(f"first launch of a process, {state} cache: {first[state]['seconds']:.2f} s, NVRTC {nvrtc}")
    console.print(tables.device_line(result))


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        report = Report(device.info())
        burst = BURST if gpu else 20
        rows = measure_launches(device, arguments.bursts or (50 if gpu else 3), burst)
    result = {
        **report.as_dict(),
        "burst": burst,
        "rows": rows,
        "import": measure_imports(arguments.repeats),
        "first_launch": measure_first_launch(arguments.device),
    }
    if not arguments.quiet:
        show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    good = all(row["ok"] is not False for row in rows) and not result["first_launch"]["warm"]["nvrtc_loaded"]
    return cli.EXIT_OK if good else cli.EXIT_FALSE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--bursts", type=int, help="bursts a contender (default: 50, on the simulated device 3)")
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes an import (default: 7)")
    return cli.guarded(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
