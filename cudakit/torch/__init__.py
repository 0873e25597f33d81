"""cudakit in torch: the functions of `cudakit.ops` as `torch.ops.cudakit`, and `op` for kernels of your own.

    import cudakit.torch

    y = torch.ops.cudakit.softmax(x)

The ops work in `torch.compile`, and have gradients if these can be computed with cudakit's ops. CUDA tensors are
computed on their GPU, CPU tensors on the simulated device (`simulated_device`), which reports data races and
out-of-bounds accesses.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("cudakit.torch needs torch: pip install 'cudakit[torch]'", name="torch") from error

from cudakit.torch import gradients, ops
from cudakit.torch.kernels import op
from cudakit.torch.simulated import set_simulated_device, simulated_device

__all__ = ["op", "set_simulated_device", "simulated_device"]

ops.register()
gradients.register(tuple(ops.OPS))
