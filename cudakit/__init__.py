"""cudakit: write, check and time CUDA kernels from Python, on a GPU or on a simulated device.

    import cudakit

    dev = cudakit.Device()
    kernel = dev.compile("softmax/05_tree_reduce.cu")["tree_reduce"]

Names are imported at their first use, so that `import cudakit` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cudakit import tracebacks

if TYPE_CHECKING:
    from cudakit.compile.cache import CacheWarning
    from cudakit.compile.compiler import Compiled, Resources
    from cudakit.debugger.attached import debug
    from cudakit.debugger.numerics import AccuracyReport, float64_shadow, trap
    from cudakit.debugger.who import watch_parameter
    from cudakit.debugger.writes import WriteHistory, trace_writes
    from cudakit.device import Device
    from cudakit.driver.context import Context
    from cudakit.driver.stream import Event, Stream
    from cudakit.errors import (
        Closed,
        CollectiveTimeout,
        CompileError,
        ContextLost,
        CudaError,
        CudakitError,
        DeviceFault,
        DeviceMismatch,
        DeviceUnavailable,
        ForkedProcess,
        GradientError,
        GraphError,
        LaunchError,
        LeakWarning,
        OutOfMemory,
        UnseenFault,
        UnsupportedVariant,
    )
    from cudakit.evaluation import bench, tune
    from cudakit.family import Family, Input, Launch, TensorMapSlot, Variant, ceil_div, variant
    from cudakit.graph.graph import Executable, Graph
    from cudakit.launch.kernel import Kernel, Prepared
    from cudakit.launch.module import Module, UnknownName
    from cudakit.launch.strides import strided
    from cudakit.memory.array import DeviceArray
    from cudakit.memory.tensor_map import TensorMap
    from cudakit.recording.recorder import record
    from cudakit.shipped import ShippedKernels, load

tracebacks.install()

__version__ = "0.2.0"

_HOMES = {
    "compile.cache": ("CacheWarning",),
    "compile.compiler": ("Compiled", "Resources"),
    "driver.context": ("Context",),
    "debugger.attached": ("debug",),
    "debugger.numerics": ("AccuracyReport", "float64_shadow", "trap"),
    "debugger.who": ("watch_parameter",),
    "debugger.writes": ("WriteHistory", "trace_writes"),
    "device": ("Device",),
    "errors": (
        "Closed",
        "CollectiveTimeout",
        "CompileError",
        "ContextLost",
        "CudaError",
        "CudakitError",
        "DeviceFault",
        "DeviceMismatch",
        "DeviceUnavailable",
        "ForkedProcess",
        "GradientError",
        "GraphError",
        "LaunchError",
        "LeakWarning",
        "OutOfMemory",
        "UnseenFault",
        "UnsupportedVariant",
    ),
    "evaluation": ("bench", "tune"),
    "family": ("Family", "Input", "Launch", "TensorMapSlot", "Variant", "ceil_div", "variant"),
    "graph": ("Executable", "Graph"),
    "launch.kernel": ("Kernel", "Prepared"),
    "memory.array": ("DeviceArray",),
    "memory.tensor_map": ("TensorMap",),
    "recording.recorder": ("record",),
    "launch.module": ("Module", "UnknownName"),
    "launch.strides": ("strided",),
    "shipped": ("ShippedKernels", "load"),
    "driver.stream": ("Event", "Stream"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = frozenset(
    {
        "family",
        "frontends",
        "graph",
        "libs",
        "measure",
        "nvtx",
        "ops",
        "parallel",
        "pipeline",
        "profiling",
        "recording",
        "sim",
        "testing",
        "torch",
    }
)

__all__ = [
    "AccuracyReport",
    "CacheWarning",
    "Closed",
    "CollectiveTimeout",
    "CompileError",
    "Compiled",
    "Context",
    "ContextLost",
    "CudaError",
    "CudakitError",
    "Device",
    "DeviceArray",
    "DeviceFault",
    "DeviceMismatch",
    "DeviceUnavailable",
    "Event",
    "Executable",
    "Family",
    "ForkedProcess",
    "GradientError",
    "Graph",
    "GraphError",
    "Input",
    "Kernel",
    "Launch",
    "LaunchError",
    "LeakWarning",
    "Module",
    "OutOfMemory",
    "Prepared",
    "Resources",
    "ShippedKernels",
    "Stream",
    "TensorMap",
    "TensorMapSlot",
    "UnknownName",
    "UnseenFault",
    "UnsupportedVariant",
    "Variant",
    "WriteHistory",
    "__version__",
    "bench",
    "ceil_div",
    "debug",
    "float64_shadow",
    "load",
    "record",
    "strided",
    "trace_writes",
    "trap",
    "tune",
    "variant",
    "watch_parameter",
]


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%cu` to IPython; `%load_ext cudakit` calls this."""
    from cudakit import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the cell magic `%%cu` again; `%unload_ext cudakit` calls this."""
    from cudakit import notebook

    notebook.unload(shell)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
