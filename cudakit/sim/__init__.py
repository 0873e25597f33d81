"""A simulated CUDA device: the driver API over a lockstep machine that runs PTX.

`Driver` has the functions of `cuda.bindings.driver`. Its module is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudakit.sim.driver.api import ALL_CHECKS, DEFAULT_CHECKS, Driver

__all__ = ["ALL_CHECKS", "DEFAULT_CHECKS", "Driver"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from cudakit.sim.driver import api as driver

        return getattr(driver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
