"""CUDA graphs: capture the work queued on a stream, instantiate it, and replay it with one driver call.

    with stream.capture() as graph:
        blur.launch(stream, grid=..., block=..., args=(x, y, n))
        y.copy_to(pinned, stream)
    ready = graph.instantiate()
    for _ in range(1000):
        ready.launch(stream)
    ready.update("blur", args=(y, x, n))

While a stream is captured, its work does not run. Launches, fills, copies of device and pinned memory, and host
functions become nodes. A stream that waits for an event of the capture (`other.wait(stream.record())`) joins it,
and must be waited for in turn before the block ends. Allocate memory before the capture.

A graph keeps alive what its nodes use: arrays, pinned memory of device.pinned(), modules. It recognises another
library's arrays only if they were wrapped (device.wrap); `Graph.keep` keeps anything else. If memory that a graph uses
is closed, the next launch raises GraphError.

If the driver or its Python bindings are older than CUDA 13.2, compute-sanitizer reports one failed call of
cuFuncGetParamInfo per captured function of another library (per capture, if it has no parameters). The call does no
harm; `--report-api-errors no` hides it.
"""

from __future__ import annotations

from cudakit.errors import GraphError
from cudakit.graph.capturing import Captured, capture, captured
from cudakit.graph.graph import Executable, Graph
from cudakit.graph.nodes import Node

__all__ = ["Captured", "Executable", "Graph", "GraphError", "Node", "capture", "captured"]
