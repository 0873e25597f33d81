"""Guard zones: the simulated device reports any access to an allocation outside the elements of one array."""

from __future__ import annotations

from cudakit.memory.array import DeviceArray


def restrict(buffer: DeviceArray, array: DeviceArray) -> None:
    """Restrict kernels on a simulated device to the elements of `array` within the allocation of `buffer`.

    Every other byte is then out of bounds, gaps between strided elements included: a load, store or atomic there is a
    fault. Its report names the `.cu` line, the thread, the parameter, and the distance from the array. It applies from
    this call on, also to kernels already queued. Copies and fills may still use the whole allocation, so that the host
    can fill guards and check them.

    On a GPU this does nothing: compare the guards with the values they had before.

    Args:
        buffer: An array or view; its whole allocation is restricted.
        array: A view of the same allocation, whose elements stay accessible.

    Raises:
        ValueError: If `array` is not within the allocation, or `buffer` is empty or closed.
    """
    context = buffer.context
    if context.kind == "sim":
        context.driver.simRestrict(
            int(buffer.pointer), int(array.pointer), array.shape, array.strides, array.dtype.itemsize
        )


def lift(buffer: DeviceArray) -> None:
    """Remove the restriction: kernels may access the whole allocation of `buffer` again."""
    if buffer.context.kind == "sim":
        buffer.context.driver.simRestrict(int(buffer.pointer))
