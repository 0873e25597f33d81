"""The nodes of a captured graph, as the driver reports them, and the owners of the memory that they use."""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudakit.driver.context import Context
from cudakit.launch.function import Dim, parameter_count
from cudakit.launch.image import Image
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module
from cudakit.memory import pinned
from cudakit.memory.allocation import Allocation

# The sizes of the parameters of other libraries' kernels, by function and name, if the driver does not count them.
_sizes_by_function: weakref.WeakKeyDictionary[Context, dict[tuple[int, str], list[int]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of a graph.

    Attributes:
        index: Its index in Graph.nodes, in which each node comes after those it waits for.
        kind: "kernel", "memcpy", "memset", "host" or another of the driver's.
        name: The kernel's name, or a description of the operation.
        handle: The driver's handle.
        after: The indices of the nodes it waits for.
        kernel: The kernel of a launch; None if it is not cudakit's.
        grid: Blocks of a launch.
        block: Threads per block of a launch.
        shared: Dynamic shared memory per block, in bytes.
        nbytes: Bytes of a copy or fill.
        kept: The arrays, pinned blocks and modules that it uses.
    """

    index: int
    kind: str
    name: str
    handle: Any
    after: tuple[int, ...]
    kernel: Kernel | None = None
    grid: Dim | None = None
    block: Dim | None = None
    shared: int = 0
    nbytes: int = 0
    kept: tuple[object, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.kind == "kernel":
            return f"{self.index}: kernel {self.name}, grid {self.grid}, block {self.block}"
        return f"{self.index}: {self.name}" + (f", {self.nbytes} bytes" if self.nbytes else "")


def dimensions(params: Any, what: str) -> Dim:
    """Return the "grid" or "block" of the driver's parameters of a kernel node."""
    x, y, z = (int(getattr(params, f"{what}Dim{axis}")) for axis in "XYZ")
    return x, y, z


def listing(nodes: Sequence[Node]) -> str:
    """Return nodes in one line, for errors."""
    return "; ".join(map(str, nodes)) or "no nodes"


class NodeReader:
    """Reads a captured graph from the driver, and finds the owners of the addresses in it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        made = context.made()
        self.images = {int(image.handle): image for image in made if isinstance(image, Image)}
        owners: list[tuple[int, int, object]] = [(*one.span, one) for one in made if isinstance(one, Allocation)]
        for image in self.images.values():
            if isinstance(image, Module):
                owners += [(*variable.span, variable) for variable in image.variables]
        owners += [(block.address, block.address + block.nbytes, block) for block in pinned.blocks()]
        self.owners = sorted((owner for owner in owners if owner[0] < owner[1]), key=lambda owner: owner[0])
        self.starts = [owner[0] for owner in self.owners]

    def owner(self, address: int) -> object | None:
        """Return the array, module variable or pinned block that contains an address; None if it has no owner."""
        place = bisect.bisect_right(self.starts, address) - 1
        return self.owners[place][2] if place >= 0 and address < self.owners[place][1] else None

    def nodes(self, graph: Any) -> tuple[Node, ...]:
        """Return the nodes of a driver's graph, each after those it waits for, else in the driver's order."""
        call = self.context.call
        count = int(call("cuGraphGetNodes", graph)[-1])
        if count == 0:
            return ()
        handles = list(call("cuGraphGetNodes", graph, count)[0])
        waits: dict[int, set[int]] = {int(handle): set() for handle in handles}
        edges = int(call("cuGraphGetEdges", graph)[-1])
        if edges:
            from_, to = call("cuGraphGetEdges", graph, edges)[:2]
            for before, after in zip(from_, to, strict=True):
                waits[int(after)].add(int(before))
        places: dict[int, int] = {}
        nodes: list[Node] = []
        remaining = handles
        while remaining:
            later = []
            for handle in remaining:
                if waits[int(handle)] <= places.keys():
                    after = tuple(sorted(places[before] for before in waits[int(handle)]))
                    places[int(handle)] = len(nodes)
                    nodes.append(self._node(len(nodes), handle, after))
                else:
                    later.append(handle)
            remaining = later
        return tuple(nodes)

    def _node(self, index: int, handle: Any, after: tuple[int, ...]) -> Node:
        kind = self.context.call("cuGraphNodeGetType", handle).name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
        read: Callable[..., Node] | None = {
            "kernel": self._kernel, "memcpy": self._memcpy, "memset": self._memset,
        }.get(kind)  # fmt: skip
        if read is not None:
            return read(index, handle, after)
        if kind != "host":
            return Node(index, kind, kind, handle, after)
        addresses = self.context.driver.simHostNodeAddresses(handle) if self.context.kind == "sim" else ()
        return Node(index, kind, "host function", handle, after, kept=self._owners_of(addresses))

    def _owners_of(self, addresses: Iterable[int]) -> tuple[object, ...]:
        """Return the owners of the addresses, each once."""
        owners = [self.owner(address) for address in addresses]
        return tuple({id(owner): owner for owner in owners if owner is not None}.values())

    def _kernel(self, index: int, handle: Any, after: tuple[int, ...]) -> Node:
        params = self.context.call("cuGraphKernelNodeGetParams", handle)
        kernel, name = self._named(params)
        sizes = self._sizes(params.func, name) if kernel is None else [one.size for one in kernel.parameters]
        kept = self._owners_of(_addresses(int(params.kernelParams), sizes))
        if kernel is not None:
            kept = (kernel.module, *kept)
        return Node(
            index, "kernel", name, handle, after, kernel, dimensions(params, "grid"), dimensions(params, "block"),
            int(params.sharedMemBytes), kept=kept,
        )  # fmt: skip

    def _named(self, params: Any) -> tuple[Kernel | None, str]:
        """Return the kernel of a launch, if it is cudakit's, and its name."""
        driver, function = self.context.driver, params.func
        if int(function):
            code, module = driver.cuFuncGetModule(function)
            image = None if code else self.images.get(int(module))
            kernel = image.kernel_of(function) if isinstance(image, Module) else None
            if kernel is not None:
                return kernel, kernel.name
            code, name = driver.cuFuncGetName(function)
        else:
            code, name = driver.cuKernelGetName(params.kern)
        return None, "another library's kernel" if code else name.decode(errors="replace")

    def _sizes(self, function: Any, name: str) -> list[int]:
        """Return the size of each parameter of another library's kernel; empty if the driver does not report them.

        If the driver does not report their number, the sizes are kept per function, so that at most one call fails for
        a function with parameters.
        """
        if not int(function):
            return []
        count = parameter_count(self.context, function)
        if count is not None:
            return self._first_sizes(function, count)
        known = _sizes_by_function.setdefault(self.context, {})
        key = int(function), name
        sizes = known.get(key)
        # After a module was unloaded, its function's handle may be another function's. One with the same name and
        # more parameters is not noticed.
        if sizes is None or sizes != self._first_sizes(function, len(sizes)):
            sizes = self._first_sizes(function, None)
            if sizes:  # not of a function that is not loaded yet
                known[key] = sizes
        return sizes

    def _first_sizes(self, function: Any, count: int | None) -> list[int]:
        """Return the sizes of the first `count` parameters, or of all if None; fewer if the function has fewer."""
        sizes: list[int] = []
        while count is None or len(sizes) < count:
            code, _, size = self.context.driver.cuFuncGetParamInfo(function, len(sizes))
            if code:
                break
            sizes.append(int(size))
        return sizes

    def _memcpy(self, index: int, handle: Any, after: tuple[int, ...]) -> Node:
        params = self.context.call("cuGraphMemcpyNodeGetParams", handle)
        sides, addresses = [], []
        for side in ("src", "dst"):
            host = getattr(params, f"{side}MemoryType") == self.context.driver.CUmemorytype.CU_MEMORYTYPE_HOST
            addresses.append(int(getattr(params, f"{side}Host" if host else f"{side}Device")))
            pinned_ = host or isinstance(self.owner(addresses[-1]), pinned.PinnedBlock)
            sides.append("host" if pinned_ else "device")
        nbytes = int(params.WidthInBytes) * max(int(params.Height), 1) * max(int(params.Depth), 1)
        name = f"copy {sides[0]} to {sides[1]}"
        return Node(index, "memcpy", name, handle, after, nbytes=nbytes, kept=self._owners_of(addresses))

    def _memset(self, index: int, handle: Any, after: tuple[int, ...]) -> Node:
        params = self.context.call("cuGraphMemsetNodeGetParams", handle)
        nbytes = int(params.elementSize) * int(params.width) * max(int(params.height), 1)
        return Node(index, "memset", "fill", handle, after, nbytes=nbytes, kept=self._owners_of([int(params.dst)]))


def _addresses(pointers: int, sizes: Sequence[int]) -> Iterator[int]:
    """Yield every eight bytes in a launch's parameters that may be an address. pointers: kernelParams."""
    if not pointers:
        return
    for place, size in zip((ctypes.c_uint64 * len(sizes)).from_address(pointers), sizes, strict=True):
        for offset in range(0, size - 7, 8):
            yield ctypes.c_uint64.from_address(place + offset).value
