"""Graph, a captured graph, and Executable, an instantiated one that is launched and updated."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.driver.stream_set import StreamSet
from cudakit.errors import Closed, GraphError
from cudakit.graph.nodes import Node, NodeReader, dimensions, listing
from cudakit.launch import following
from cudakit.launch.image import Image
from cudakit.launch.kernel import Prepared
from cudakit.launch.strides import unwrapped
from cudakit.memory.allocation import Allocation


class Graph:
    """A captured graph. Made by `Stream.capture`; `close()` destroys it.

    After close(), an Executable made from it can still be launched, but its nodes can no longer be updated one by one.

    Attributes:
        kept: Objects that the graph keeps alive in addition to those that its nodes use.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.handle: Any = None  # while it is being captured
        self._nodes: tuple[Node, ...] = ()
        self.kept: list[object] = []
        self._finalizer: Any = None

    def __repr__(self) -> str:
        state = "being captured" if self.handle is None else "closed" if self.closed else f"{len(self._nodes)} nodes"
        return f"Graph({state}, {self.context.spec!r})"

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it, or its device, was closed."""
        return self._finalizer is not None and not self._finalizer.alive

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its operations, each after those it waits for. Raises GraphError while it is being captured."""
        self._expect_captured()
        return self._nodes

    def keep(self, *things: object) -> None:
        """Keep objects alive as long as this graph, and everything instantiated from it later, may use them.

        Args:
            things: Any objects.
        """
        self.kept.extend(things)

    def instantiate(self) -> Executable:
        """Return an executable graph, which can be launched any number of times.

        Raises:
            GraphError: If the graph is still being captured.
            Closed: If it was closed.
        """
        self.expect_open()
        return Executable(self)

    def close(self) -> None:
        """Destroy the graph. A second call does nothing."""
        if self._finalizer is not None:
            self._finalizer()
            self.kept = []

    def _expect_captured(self) -> None:
        if self.handle is None:
            raise GraphError("the graph is still being captured; use it after the with block")

    def expect_open(self) -> None:
        """Raise GraphError while it is being captured, Closed after it was closed."""
        self._expect_captured()
        if self.closed:
            self.context.make_current()
            raise Closed(f"{self!r} was closed; capture it again")

    def take(self, handle: Any, kept: Sequence[object]) -> None:
        """Take over the driver's graph `handle`, and keep the objects that its capture kept."""
        self.handle = handle
        self._finalizer = self.context.adopt_handle(self, "cuGraphDestroy", handle)
        self.kept.extend(kept)
        self._nodes = NodeReader(self.context).nodes(handle)


class _Update(NamedTuple):
    """The update of one node: the driver's parameters, the owner of their arguments, and the objects they use."""

    params: Any
    packed: Prepared | None
    kept: tuple[object, ...]


class Executable:
    """An instantiated graph. Made by `Graph.instantiate`; `launch(stream)` replays it.

    Launches of one executable graph never overlap, even on different streams: instantiate it once per stream for
    concurrent launches. If ops with scratch memory were captured, all instances share it: capture one graph per stream
    instead.

    Attributes:
        graph: The graph it was made from.
    """

    def __init__(self, graph: Graph) -> None:
        context = self.context = graph.context
        self.graph = graph
        self._current = graph  # the graph whose nodes it has now; another one after a whole update
        self._updated: dict[int, _Update] = {}  # by node
        self._kept: list[object] = []
        self._streams = StreamSet()  # the streams that it was launched on
        self._retired: list[bool] = []
        self._known: Any = None  # the stream of the last launch, while nothing needs to be checked again
        self._seen = -1
        with context.relaxed():
            self.handle: Any = context.call("cuGraphInstantiate", graph.handle, 0)
        self._send = functools.partial(context.driver.cuGraphLaunch, self.handle)
        self._finalizer = context.adopt(
            self, _destroy, context, self.handle, self._retired, self._streams, self._kept
        )  # fmt: skip
        self._gather()

    def __repr__(self) -> str:
        return f"Executable({len(self._current.nodes)} nodes, {self.context.spec!r}{', closed' * self.closed})"

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it, or its device, was closed."""
        return bool(self._retired)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph that it was made from or last updated from."""
        return self._current.nodes

    def close(self) -> None:
        """Destroy it after its queued launches. A second call does nothing."""
        self._finalizer()

    def launch(self, stream: Any) -> None:
        """Queue the whole graph on `stream` with one driver call.

        Args:
            stream: A stream of the graph's device.

        Raises:
            GraphError: If an array or module that it uses was closed, or the stream is being captured.
            Closed: If the executable graph or the stream was closed.
        """
        context = self.context
        if (
            stream is not self._known
            or stream is None
            or stream.closed
            or context.closings != self._seen
            or context.captures
        ):
            stream = self._accept(stream)
        elif self._retired:
            raise self._closed()
        context.make_current()
        if nvtx.listeners:
            for follower in following.followers:
                follower.graph(context)
            with nvtx.range("launch graph"):
                result = self._send(stream.handle)
        else:
            result = self._send(stream.handle)
        if result[0]:
            raise context.failed("cuGraphLaunch", result[0])

    def _closed(self) -> Exception:
        self.context.make_current()
        return Closed(f"{self!r}: instantiate the graph again")

    def _accept(self, stream: Any) -> Stream:
        """Return the stream as a Stream, after checking all memory in use and ordering its free after work on it."""
        if self._retired:
            raise self._closed()
        context = self.context
        accepted = Stream.of(context, stream)
        handle = accepted.expect_open()
        for thing in self._kept:
            if isinstance(thing, Allocation):
                if not thing.open:
                    raise GraphError(
                        f"an array that {self._user(thing)} uses was closed; update the node, or capture again"
                    )
                thing.uses.add(accepted)
            elif isinstance(thing, Image) and thing.closed:
                raise GraphError(f"{thing!r}, whose kernel {self._user(thing)} launches, was closed; capture again")
        context.captures.refuse(
            handle,
            f"{self!r} cannot be launched on {accepted!r} while that stream is being captured: graphs do not nest",
        )
        self._streams.add(accepted)
        self._known, self._seen = accepted, context.closings
        return accepted

    def _user(self, thing: object) -> str:
        """Return the node that uses an object, for errors."""
        for node in self._current.nodes:
            if any(thing is kept for kept in self._kept_by(node)):
                return f"node {node}"
        return f"{self!r}"

    # Updates ----------------------------------------------------------------------------------------------------------

    def update(
        self,
        what: Graph | Node | str | int,
        *,
        args: Sequence[Any] | None = None,
        grid: Any = None,
        block: Any = None,
        shared: int | None = None,
    ) -> None:
        """Change the next launches; those already queued keep their arguments.

        Update one kernel's node with new arguments, grid, block or shared memory, each checked as by `Kernel.launch`;
        whatever is not passed stays. Or update all nodes from another Graph with the same nodes in the same order.

        Args:
            what: A kernel's node, its index, or its name if that is unique; or a Graph.
            args: The kernel's arguments, as a tuple.
            grid: Blocks: an int, or a tuple of up to three.
            block: Threads per block, likewise.
            shared: Dynamic shared memory per block, in bytes.

        Raises:
            GraphError: If the graphs differ, there is no such node, or it does not launch a kernel of cudakit.
            LaunchError: If an argument or a size is wrong.
            Closed: If the executable graph was closed.
        """
        if self._retired:
            raise self._closed()
        self.context.make_current()
        if isinstance(what, Graph):
            if args is not None or grid is not None or block is not None or shared is not None:
                raise GraphError(
                    "update() got a graph together with args, grid, block or shared; pass either a graph, or a node "
                    "and its changes"
                )
            self._update_all(what)
        else:
            self._update_node(self._node(what), args, grid, block, shared)
        self._gather()

    def _node(self, what: Node | str | int) -> Node:
        nodes = self._current.nodes
        if isinstance(what, Node):
            if not any(what is node for node in (*nodes, *self.graph.nodes)):
                raise GraphError(f"node {what} is of another graph; use one of .nodes")
            return nodes[what.index]
        if isinstance(what, str):
            named = [node for node in nodes if node.name == what]
            if len(named) != 1:
                which = "several nodes are" if named else "no node is"
                raise GraphError(f"{which} named {what!r}; pass the node or its index. The graph has {listing(nodes)}")
            return named[0]
        if not isinstance(what, int):
            raise TypeError(
                f"update() needs a node, its name or index, or another Graph, got {type(what).__name__}; the graph has "
                f"{listing(nodes)}"
            )
        if not 0 <= what < len(nodes):
            raise GraphError(f"there is no node {what}; the graph has {listing(nodes)}")
        return nodes[what]

    def _update_node(self, node: Node, args: Sequence[Any] | None, grid: Any, block: Any, shared: int | None) -> None:
        kernel = node.kernel
        if kernel is None:
            raise GraphError(
                f"node {node} cannot be updated alone, because it does not launch a kernel that cudakit compiled or "
                "loaded; capture the graph again, and update from it"
            )
        # `original` identifies the node to the driver; `params` has the arguments that stay.
        for graph in (self.graph, self._current):
            graph.expect_open()
        original = self.graph.nodes[node.index].handle
        if node.index in self._updated:
            params, packed, kept = self._updated[node.index]
        else:
            params, packed, kept = self.context.call("cuGraphKernelNodeGetParams", node.handle), None, node.kept
        asked = (
            dimensions(params, "grid") if grid is None else grid,
            dimensions(params, "block") if block is None else block,
            int(params.sharedMemBytes) if shared is None else shared,
        )
        changed = self.context.driver.CUDA_KERNEL_NODE_PARAMS()
        changed.func = kernel.handle
        changed.kernelParams = params.kernelParams
        if args is not None:
            prepared = kernel.prepare(grid=asked[0], block=asked[1], shared=asked[2], args=args)
            config, changed.kernelParams = prepared.config, prepared.pointers
            packed = prepared
            hosts = (value for value in map(unwrapped, prepared.arguments) if isinstance(value, np.ndarray))
            kept = (kernel.module, *prepared.allocations, *hosts)
        else:
            kernel.expect_open()
            config = kernel.config(*asked)
        changed.gridDimX, changed.gridDimY, changed.gridDimZ = config.grid
        changed.blockDimX, changed.blockDimY, changed.blockDimZ = config.block
        changed.sharedMemBytes = config.shared
        self.context.call("cuGraphExecKernelNodeSetParams", self.handle, original, changed)
        self._updated[node.index] = _Update(changed, packed, kept)

    def _update_all(self, other: Graph) -> None:
        other.expect_open()
        if other.context is not self.context:
            raise GraphError(f"{self!r} cannot be updated from {other!r}, which is on another device")
        mine, theirs = self._current.nodes, other.nodes
        if [(node.kind, node.after) for node in mine] != [(node.kind, node.after) for node in theirs]:
            raise GraphError(
                "a graph can be updated only from one with the same kinds of nodes in the same order, got "
                f"{listing(theirs)} instead of {listing(mine)}; instantiate it instead"
            )
        result = self.context.driver.cuGraphExecUpdate(self.handle, other.handle)
        if result[0]:
            error = self.context.failed("cuGraphExecUpdate", result[0])
            if self.context.lost is not None:
                raise error
            raise GraphError(f"the driver cannot update {self!r} from {other!r}; instantiate it instead") from error
        self._current = other
        self._updated.clear()

    def _kept_by(self, node: Node) -> tuple[object, ...]:
        updated = self._updated.get(node.index)
        return node.kept if updated is None else updated.kept

    def _gather(self) -> None:
        """Rebuild the de-duplicated keep-alive list."""
        current = self._current
        kept = {id(thing): thing for thing in current.kept}
        for node in current.nodes:
            kept.update((id(thing), thing) for thing in self._kept_by(node))
        _outlive(self.context, self._streams, [thing for thing in self._kept if id(thing) not in kept])
        self._kept[:] = kept.values()
        self._known = None


def _destroy(context: Context, handle: Any, retired: list[bool], streams: StreamSet, kept: list[object]) -> None:
    retired.append(True)
    context.attempt("cuGraphExecDestroy", handle)
    _outlive(context, streams, kept)
    kept.clear()


def _outlive(context: Context, streams: StreamSet, things: Iterable[object]) -> None:
    """Keep pinned memory until the work queued on the streams is done; arrays are freed in stream order anyway."""
    if context.closed:
        return  # close() has waited for all work
    hosts = [thing for thing in things if not isinstance(thing, (Allocation, Image))]
    for stream in streams.others if hosts else ():
        if not stream.closed:
            context.in_flight.hold(stream.handle, hosts)
        elif stream.last is not None and stream.last.alive:
            context.attempt("cuEventSynchronize", stream.last.handle)
