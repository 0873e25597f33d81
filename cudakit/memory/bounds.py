"""Guard zones that a kernel cannot enter unseen: the simulated device reports an access beside an array."""

from __future__ import annotations

from cudakit.memory.array import DeviceArray


def restrict(buffer: DeviceArray, array: DeviceArray) -> None:
    """Limits kernels on a simulated device to the elements of `array` in the allocation of `buffer`.

    Every other byte, gaps between strided elements included, is then out of bounds: a load, store or atomic there is a
    fault that names the `.cu` line, the thread, the parameter, and how far beside the array it was. It holds from this
    call on, for kernels that are queued already too. Copies and fills may still use the whole buffer, so the host can
    prepare guards and look at them. `buffer` may itself be a view: its whole allocation is meant.

    On a GPU this does nothing: compare the guards with what they held.
    Raises ValueError if `array` is not within the allocation, or `buffer` is empty or closed.
    """
    context = buffer.context
    if context.kind == "sim":
        context.driver.simRestrict(
            int(buffer.pointer), int(array.pointer), array.shape, array.strides, array.dtype.itemsize
        )


def lift(buffer: DeviceArray) -> None:
    """Lets kernels touch all of the allocation of `buffer` again."""
    if buffer.context.kind == "sim":
        buffer.context.driver.simRestrict(int(buffer.pointer))
