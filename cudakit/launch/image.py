"""Image: machine code or PTX loaded by the driver. Module adds its kernels and variables."""

from __future__ import annotations

import os
from typing import Any

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.errors import Closed


class Image:
    """An image loaded by the driver: the part of a module that its kernels need."""

    again = "compile"  # the verb for the error after close(): how to get the module again

    def __init__(self, context: Context, name: str, image: bytes) -> None:
        self.context = context
        self.name = name
        self.retired: list[bool] = []  # not empty after it or its device was closed; each launch tests it
        # Relaxed: a kernel's first launch may be in another library's capture, which forbids loading.
        with nvtx.range(f"load {os.path.basename(name)}"), context.relaxed():
            self.handle: Any = context.call("cuModuleLoadData", image)
        self._finalizer = context.adopt(self, _unload, context, self.handle, self.retired)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.context.spec!r}{', closed' if self.closed else ''})"

    @property
    def closed(self) -> bool:
        """Whether it, or its device, was closed."""
        return bool(self.retired)

    def expect_open(self) -> None:
        """Raise Closed if it was closed."""
        if self.closed:
            raise Closed(f"{self!r} was closed; {self.again} it again")

    def close(self) -> None:
        """Unload it after the work that uses it is done. Its kernels and arrays are then unusable. Idempotent."""
        self.retired.append(True)
        self.context.closings += 1
        self._finalizer()


def _unload(context: Context, handle: Any, retired: list[bool]) -> None:
    retired.append(True)
    context.attempt("cuModuleUnload", handle)
