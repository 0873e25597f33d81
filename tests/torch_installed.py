"""torch for tests of cudakit.torch: `torch = torch_installed.require()` at the top of a module."""

from __future__ import annotations

import os
from typing import Any

import pytest


def require() -> Any:
    """Return torch. If it is missing, the module is skipped, or fails if CUDAKIT_NEED_TORCH is set, as CI does."""
    try:
        import torch
    except ImportError as error:
        if os.environ.get("CUDAKIT_NEED_TORCH"):
            raise
        pytest.skip(f"torch cannot be imported: {error}", allow_module_level=True)
    return torch
