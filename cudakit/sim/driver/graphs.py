"""Driver calls about graphs: capture, instantiation, launch and updates.

While a stream is being captured, its work becomes nodes of a graph, as ``QueuedWork``. Another stream joins the capture
by waiting for one of its events. A launch checks and queues the work of each node, in the order of the nodes: the nodes
of the first captured stream on the launching stream, the others on streams that belong to the executable graph.

A potentially unsafe call (``UNSAFE`` in ``state``) invalidates a capture, if the capture's mode and the calling
thread's mode forbid it. Unlike on a GPU, a graph cannot allocate memory or copy pageable memory.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.driver.arguments import Handle, member, unsigned
from cudakit.sim.driver.faults import CallError, Result, caller
from cudakit.sim.driver.launches import CheckedLaunch, LaunchCalls
from cudakit.sim.driver.objects import Context, GraphNode, Operation, QueuedWork, Stream, StreamCapture
from cudakit.sim.driver.regions import Region
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.report import Origin

_STATUS = cu.CUstreamCaptureStatus
_KINDS = {
    "kernel": cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL,
    "memcpy": cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY,
    "memset": cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET,
    "host": cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_HOST,
}


@dataclass(eq=False)
class Graph:
    """A captured graph."""

    handle: int
    context: Context
    nodes: list[GraphNode]
    place: Origin


@dataclass(eq=False)
class GraphExec:
    """An instantiated graph: the work of each node, by its handle. ``lanes`` are streams for all lanes but the first,
    ``last`` is the end of the previous launch."""

    handle: int
    context: Context
    nodes: list[GraphNode]
    work: dict[int, QueuedWork]
    lanes: list[Stream]
    place: Origin
    last: Operation | None = None


class GraphCalls(LaunchCalls):
    """cuGraph*, and the calls that capture streams."""

    # ---- capturing ----

    @call(context=False)
    def cuStreamBeginCapture(self, hStream: Handle, mode: Any) -> None:
        stream = self._stream(hStream)
        mode = member(cu.CUstreamCaptureMode, mode, "capture mode")
        if stream.legacy:
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy default stream cannot be captured"
            )
        if stream.capture is not None:
            raise CallError(
                Result.CUDA_ERROR_ILLEGAL_STATE, f"{stream} is being captured already (begun {stream.capture.place})"
            )
        stream.capture = StreamCapture(self._new_handle(), self._new_handle(), [stream], mode, place=caller())
        self._capturing.append(stream.capture)

    @call(1, context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before = self._thread_mode()
        self._local.capture_mode = member(cu.CUstreamCaptureMode, mode, "capture mode")
        return before

    @call(1, context=False)
    def cuStreamEndCapture(self, hStream: Handle) -> Any:
        stream = self._stream(hStream)
        capture = stream.capture
        if capture is None:
            raise CallError(Result.CUDA_ERROR_ILLEGAL_STATE, f"{stream} is not being captured")
        if capture.lanes[0] is not stream:
            capture.broken = capture.broken or f"cuStreamEndCapture {caller()}"
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                f"end the capture on {capture.lanes[0]}, on which it was begun; {stream} only joined it",
            )
        relaxed = capture.mode == cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        if not relaxed and capture.thread != threading.get_ident():
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                f"the capture {capture.place} was begun by another thread, which must end it",
            )
        unjoined = capture.unjoined()
        self._leave_capture(capture)
        if capture.broken:
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                f"the capture {capture.place} was invalidated by {capture.broken}",
            )
        if unjoined:
            forked = capture.lanes[unjoined[-1].lane]
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                f"{forked} has {unjoined[-1].work.kind} work in the capture {capture.place} that the captured stream"
                " does not wait for",
            )
        graph = Graph(capture.graph, stream.context, capture.nodes, capture.place or caller())
        self._objects[graph.handle] = stream.context.graphs[graph.handle] = graph
        for node in graph.nodes:
            self._objects[node.handle] = node
        return cu.CUgraph(graph.handle)

    @call(1, context=False)
    def cuStreamIsCapturing(self, hStream: Handle) -> Any:
        return self._status(self._stream(hStream))

    @staticmethod
    def _status(stream: Stream) -> Any:
        if stream.legacy:
            stream.expect_no_capture()
        if stream.capture is None:
            return _STATUS.CU_STREAM_CAPTURE_STATUS_NONE
        broken = stream.capture.broken
        return _STATUS.CU_STREAM_CAPTURE_STATUS_INVALIDATED if broken else _STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE

    @call(6, context=False)
    def cuStreamGetCaptureInfo(self, hStream: Handle) -> tuple[Any, ...]:
        stream = self._stream(hStream)
        capture = stream.capture
        if capture is None:
            return self._status(stream), cu.cuuint64_t(0), cu.CUgraph(0), [], [], 0
        nodes = [cu.CUgraphNode(node.handle) for node in stream.frontier]
        edges = [cu.CUgraphEdgeData() for _ in nodes]
        return (
            self._status(stream), cu.cuuint64_t(capture.number), cu.CUgraph(capture.graph), nodes, edges, len(nodes),
        )  # fmt: skip

    # ---- graphs and nodes ----

    def _graph(self, handle: Handle) -> Graph:
        return self._object(handle, Graph, "a graph")

    def _node(self, handle: Handle, kind: str = "") -> GraphNode:
        node = self._object(handle, GraphNode, "a node of a graph")
        if kind and node.work.kind != kind:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"a {kind} node is required, got a {node.work.kind} node")
        return node

    @call(context=False)
    def cuGraphDestroy(self, hGraph: Handle) -> None:
        graph = self._graph(hGraph)
        for node in graph.nodes:
            del self._objects[node.handle]
        del self._objects[graph.handle], graph.context.graphs[graph.handle]

    @call(2, context=False)
    def cuGraphGetNodes(self, hGraph: Handle, numNodes: int = 0) -> tuple[list[Any], int]:
        return _listed([node.handle for node in self._graph(hGraph).nodes], numNodes)

    @call(4, context=False)
    def cuGraphGetEdges(self, hGraph: Handle, numEdges: int = 0) -> tuple[list[Any], list[Any], list[Any], int]:
        edges = [(before.handle, node.handle) for node in self._graph(hGraph).nodes for before in node.after]
        from_, count = _listed([edge[0] for edge in edges], numEdges)
        to, _ = _listed([edge[1] for edge in edges], numEdges)
        return from_, to, [cu.CUgraphEdgeData() for _ in to], count

    @call(3, context=False)
    def cuGraphNodeGetDependencies(self, hNode: Handle, numDependencies: int = 0) -> tuple[list[Any], list[Any], int]:
        nodes, count = _listed([before.handle for before in self._node(hNode).after], numDependencies)
        return nodes, [cu.CUgraphEdgeData() for _ in nodes], count

    @call(1, context=False)
    def cuGraphNodeGetType(self, hNode: Handle) -> Any:
        return _KINDS[self._node(hNode).work.kind]

    @call(1, context=False)
    def cuGraphKernelNodeGetParams(self, hNode: Handle) -> Any:
        node = self._node(hNode, "kernel")
        launch: CheckedLaunch = node.work.details
        if node.kept is None:
            buffers = [ctypes.create_string_buffer(value, len(value)) for value in launch.params]
            node.kept = (buffers, (ctypes.c_void_p * max(len(buffers), 1))(*map(ctypes.addressof, buffers)))
        params = cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = cu.CUfunction(launch.function.handle)
        params.gridDimX, params.gridDimY, params.gridDimZ = launch.settings.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launch.settings.block
        params.sharedMemBytes = launch.shared
        params.kernelParams = ctypes.addressof(node.kept[1])
        return params

    @call(1, context=False)
    def cuGraphMemcpyNodeGetParams(self, hNode: Handle) -> Any:
        target, source = self._node(hNode, "memcpy").work.details
        params, kinds = cu.CUDA_MEMCPY3D(), cu.CUmemorytype
        for side, region in (("dst", target), ("src", source)):
            host = region.kind != "device"
            setattr(
                params, f"{side}MemoryType", kinds.CU_MEMORYTYPE_HOST if host else kinds.CU_MEMORYTYPE_DEVICE
            )  # fmt: skip
            setattr(params, f"{side}Host", region.address if host else 0)
            setattr(params, f"{side}Device", cu.CUdeviceptr(0 if host else region.address))
            setattr(params, f"{side}Pitch", region.pitch)
            setattr(params, f"{side}Height", region.height)
        params.WidthInBytes, params.Height, params.Depth = target.width, target.height, 1
        return params

    @call(1, context=False)
    def cuGraphMemsetNodeGetParams(self, hNode: Handle) -> Any:
        region: Region
        region, pattern = self._node(hNode, "memset").work.details
        params = cu.CUDA_MEMSET_NODE_PARAMS()
        params.dst = cu.CUdeviceptr(region.address)
        params.elementSize, params.value = pattern.itemsize, int(pattern)
        params.width, params.height, params.pitch = region.width // pattern.itemsize, region.height, region.pitch
        return params

    def simHostNodeAddresses(self, hNode: Handle) -> list[int]:
        """The device addresses that a host node reads and writes, as declared to ``simLaunchHost``."""
        with self._lock.raw, self._lock:
            return [region.address for region in self._node(hNode, "host").work.details or ()]

    # ---- executable graphs ----

    def _exec(self, handle: Handle) -> GraphExec:
        found = self._object(handle, GraphExec, "an executable graph")
        self._usable(found.context)
        return found

    @call(1, context=False)
    def cuGraphInstantiate(self, hGraph: Handle, flags: int) -> Any:
        graph = self._graph(hGraph)
        if unsigned(flags, 64) & ~15:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"flags {flags} are not in CUgraphInstantiate_flags")
        nodes, work = list(graph.nodes), {node.handle: node.work for node in graph.nodes}
        made = GraphExec(self._new_handle(), graph.context, nodes, work, _lanes(graph), caller())
        self._objects[made.handle] = graph.context.graphs[made.handle] = made
        return cu.CUgraphExec(made.handle)

    @call(context=False)
    def cuGraphExecDestroy(self, hGraphExec: Handle) -> None:
        found = self._object(hGraphExec, GraphExec, "an executable graph")
        # queued launches still run: the scheduler has their work
        del self._objects[found.handle], found.context.graphs[found.handle]

    @call(context=False)
    def cuGraphUpload(self, hGraphExec: Handle, hStream: Handle) -> None:
        self._exec(hGraphExec)
        self._stream(hStream)

    @call(context=False)
    def cuGraphLaunch(self, hGraphExec: Handle, hStream: Handle) -> None:
        found, stream = self._exec(hGraphExec), self._stream(hStream)
        if stream.context is not found.context:
            raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "the stream and the graph belong to different contexts")
        self._not_captured("cuGraphLaunch", stream)
        self._keep_up(stream.context)
        place = caller()
        for work in found.work.values():
            work.check()  # check all nodes first, so that either the whole graph is queued or nothing
        # launches of one executable graph never overlap, even on different streams
        before = [] if found.last is None else [found.last]
        start = self._scheduler.enqueue(stream, "launch of a graph", after=before, place=place)
        queued: dict[int, Operation] = {}
        ends: dict[int, Operation] = {}
        for node in found.nodes:
            lane = found.lanes[node.lane - 1] if node.lane else stream
            waits = [queued[earlier.handle] for earlier in node.after] or [start]
            queued[node.handle] = ends[node.lane] = found.work[node.handle].enqueue(lane, waits)
        found.last = self._scheduler.enqueue(stream, "end of a graph", after=ends.values(), place=place)

    # ---- updates ----

    @call(context=False)
    def cuGraphExecKernelNodeSetParams(self, hGraphExec: Handle, hNode: Handle, nodeParams: Any) -> None:
        found, node = self._exec(hGraphExec), self._node(hNode, "kernel")
        if node.handle not in found.work:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "the node is not of the graph that was instantiated")
        if nodeParams is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "nodeParams is None")
        launch: CheckedLaunch = found.work[node.handle].details
        function = self._function(nodeParams.func)
        if function.module.context is not found.context:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "the kernel and the graph belong to different contexts")
        grid = (int(nodeParams.gridDimX), int(nodeParams.gridDimY), int(nodeParams.gridDimZ))
        block = (int(nodeParams.blockDimX), int(nodeParams.blockDimY), int(nodeParams.blockDimZ))
        asked = (launch.settings._replace(grid=grid, block=block), int(nodeParams.sharedMemBytes))
        params = (nodeParams.kernelParams, nodeParams.extra)
        found.work[node.handle] = self._kernel_work(self._checked_launch(function, *asked, *params))

    @call(1, context=False)
    def cuGraphExecUpdate(self, hGraphExec: Handle, hGraph: Handle) -> Any:
        found, graph = self._exec(hGraphExec), self._graph(hGraph)
        old, new = found.nodes, graph.nodes
        if _topology(old) != _topology(new):
            raise CallError(
                Result.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                f"the graph captured {graph.place} and the executable graph differ in their nodes or their order:"
                f" {_listing(new)} instead of {_listing(old)}",
            )
        for was, node in zip(old, new, strict=True):
            if was.work.kind != "kernel":
                continue
            if was.work.details.settings.cooperative != node.work.details.settings.cooperative:
                raise CallError(
                    Result.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                    "an update cannot change whether a launch is cooperative",
                )
        found.work = {was.handle: node.work for was, node in zip(old, new, strict=True)}
        info = cu.CUgraphExecUpdateResultInfo()
        info.result = cu.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS
        return info


def _lanes(graph: Graph) -> list[Stream]:
    """Streams for all lanes except the first."""
    count = max((node.lane for node in graph.nodes), default=0)
    names = [f"branch {lane + 2} of the graph captured {graph.place}" for lane in range(count)]
    return [Stream(graph.context, 0, 1, 0, name=name) for name in names]


def _listed(handles: list[int], count: int) -> tuple[list[Any], int]:
    """A list of nodes as the bindings return it: empty if ``count`` is 0, else ``count`` long, padded with null."""
    wanted = unsigned(count, 64)
    if wanted == 0:
        return [], len(handles)
    padded = handles[:wanted] + [0] * (wanted - len(handles))
    return [cu.CUgraphNode(handle) for handle in padded], min(wanted, len(handles))


def _topology(nodes: list[GraphNode]) -> list[tuple[str, int, list[int]]]:
    places = {node.handle: index for index, node in enumerate(nodes)}
    return [(node.work.kind, node.lane, sorted(places[n.handle] for n in node.after)) for node in nodes]


def _listing(nodes: list[GraphNode]) -> str:
    return ", ".join(node.work.kind for node in nodes) or "nothing"
