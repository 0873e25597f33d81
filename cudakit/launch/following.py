"""The hook through which a recording sees every launch (`cudakit.recording`).

Launch plans, prepared launches and repeated calls of ops bind the driver's function, so that a launch costs no lookup.
They call `attended` of `plan.sending` only if `nvtx.listeners` is not empty: a follower is a listener too, and costs
nothing while there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from cudakit.driver.context import Context

#: send(stream handle, kernelParams, extra): queues a launch and returns the driver's result.
Send = Callable[[Any, int, int], Any]
Index3 = tuple[int, int, int]


class Layout(NamedTuple):
    """The layout of an array among the arguments, of which only the address is kept. strides: in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class Follower(Protocol):
    """A receiver of launches."""

    def follow(self, context: Context, send: Send, arguments: Sequence[Any] | None) -> Send:
        """Return the function that is called instead of `send`. arguments: those of the call: Python objects, or
        Layouts of arrays and None; None if nothing is known but their bytes."""

    def graph(self, context: Context) -> None:
        """Called before a graph is launched. Raises an error to prevent it."""


followers: list[Follower] = []


def followed(context: Context, send: Send, arguments: Sequence[Any] | None = None) -> Send:
    """Return `send`, or the function that the follower calls instead."""
    for follower in followers:
        send = follower.follow(context, send, arguments)
    return send


class SentLaunch(NamedTuple):
    """The configuration that a `Send` has bound. function: the driver's handle. shared: dynamic, in bytes. cluster:
    None for no clusters."""

    function: Any
    grid: Index3
    block: Index3
    shared: int
    cluster: Index3 | None = None
    cooperative: bool = False
    programmatic: bool = False


def sender(launch: Callable[..., Any], function: Any, config: tuple[int, ...]) -> Send:
    """Return cuLaunchKernel (`launch`) with all but its last three arguments bound: stream, parameters and extra."""
    return functools.partial(launch, function, *config)


def extended_sender(launch: Callable[..., Any], function: Any, extended: Any) -> Send:
    """Return cuLaunchKernelEx (`launch`) with a CUlaunchConfig, of which only the stream is not set, and its kernel."""
    return functools.partial(_launch_extended, launch, function, extended)


def _launch_extended(
    launch: Callable[..., Any], function: Any, extended: Any, stream: Any, pointers: int, extra: int
) -> Any:
    extended.hStream = stream
    return launch(extended, function, pointers, extra)


def sent(send: Send) -> SentLaunch:
    """Return the configuration of a send that `sender` or `extended_sender` made."""
    if not isinstance(send, functools.partial):
        raise TypeError(f"a launch is sent by {send!r}, which following.sender did not make")
    if send.func is not _launch_extended:
        function, *sizes = send.args
        return SentLaunch(function, _three(sizes), _three(sizes[3:]), int(sizes[6]))
    _, function, extended = send.args
    grid = (int(extended.gridDimX), int(extended.gridDimY), int(extended.gridDimZ))
    block = (int(extended.blockDimX), int(extended.blockDimY), int(extended.blockDimZ))
    values = {each.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"): each.value for each in extended.attrs}
    cluster = values.get("CLUSTER_DIMENSION")
    return SentLaunch(
        function,
        grid,
        block,
        int(extended.sharedMemBytes),
        None if cluster is None else (int(cluster.clusterDim.x), int(cluster.clusterDim.y), int(cluster.clusterDim.z)),
        "COOPERATIVE" in values,
        "PROGRAMMATIC_STREAM_SERIALIZATION" in values,
    )


def _three(sizes: list[Any]) -> Index3:
    return int(sizes[0]), int(sizes[1]), int(sizes[2])
