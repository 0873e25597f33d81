"""The arrays of a measurement: torch tensors on a GPU with torch, otherwise cudakit's own arrays."""

import contextlib
import math

import numpy as np

from cudakit.families.gemm_half import of_sum
from cudakit.measure.peers.installed import torch_on
from cudakit.memory.array import as_dtype

# float64 references are computed in slices of about this many elements.
SLICE = 1 << 26


def made_for(device, stream, seed):
    """Return the maker of a device's arrays."""
    with_torch = torch_on(device.ordinal) if device.kind == "gpu" else None
    return OwnArrays(device, stream, seed) if with_torch is None else TorchArrays(with_torch, device, stream, seed)


class OwnArrays:
    """cudakit's arrays, of numbers that numpy draws."""

    torch = None

    def __init__(self, device, stream, seed):
        self.device, self.stream, self.random = device, stream, np.random.default_rng(seed)
        self.call_stream = stream  # of cudakit's functions

    def on(self):
        """Return the context in which all work is queued."""
        return contextlib.nullcontext()

    def normal(self, rows, cols):
        return self.random.standard_normal((rows, cols), dtype=np.float32)

    def uniform(self, rows, cols):
        return self.random.random((rows, cols), dtype=np.float32)

    def place(self, values, dtype, turned=False, padding=0):
        """Return `values` as an array on the device, whose rows in memory (columns if `turned`) have `padding` more
        elements. These are NaN."""
        lines = values.T if turned else values
        buffer = np.full((lines.shape[0], lines.shape[1] + padding), np.nan, as_dtype(dtype))
        buffer[:, : lines.shape[1]] = lines
        array = self.device.array(buffer, stream=self.stream)[:, : lines.shape[1]]
        return array.T if turned else array

    def int32(self, values):
        return self.device.array(values.astype(np.int32), stream=self.stream)

    def empty(self, rows, cols, dtype, padding=0):
        """Return an array of NaN."""
        whole = self.device.full((rows, cols + padding), math.nan, as_dtype(dtype), stream=self.stream)
        return whole[:, :cols]

    def host(self, array):
        return array.numpy(self.stream)

    def sample(self, array, rows, cols):
        """Return these rows and columns of an array in host memory. All axes except the last count as one."""
        host = self.host(array)
        return host.reshape(-1, host.shape[-1])[np.ix_(rows, cols)]

    def errors(self, result, a, b):
        """Return the mean and the largest absolute error of `result`, and the number of its elements that are infinite
        or NaN and should not be, or should be and are not."""
        exact = self.host(a).astype(np.float64) @ self.host(b).astype(np.float64)
        got = self.host(result)
        with np.errstate(over="ignore"):
            finite = np.isfinite(exact.astype(got.dtype).astype(np.float64))
        compared = finite & np.isfinite(got.astype(np.float64))
        error = np.abs(got.astype(np.float64) - exact, where=compared, out=np.zeros_like(exact))
        stray = int((np.isfinite(got.astype(np.float64)) != finite).sum())
        return float(error.sum() / max(compared.sum(), 1)), float(error.max()), stray


class TorchArrays:
    """torch tensors in memory of torch's own allocator, as a user has them. All work is on one stream."""

    def __init__(self, with_torch, device, stream, seed, kind="cuda"):
        import torch

        self.torch, self.with_torch, self.device, self.stream = torch, with_torch, device, stream
        self.where = torch.device(kind, device.ordinal if kind == "cuda" else 0)
        self.random = torch.Generator(self.where).manual_seed(seed)
        self.call_stream = None  # torch's current stream, see `on`

    def on(self):
        return self.with_torch.on_stream(self.stream, self.device.ordinal)

    def normal(self, rows, cols):
        return self.torch.randn(rows, cols, generator=self.random, device=self.where)

    def uniform(self, rows, cols):
        return self.torch.rand(rows, cols, generator=self.random, device=self.where)

    def place(self, values, dtype, turned=False, padding=0):
        lines = values.T if turned else values
        tensor = self.empty(*lines.shape, dtype, padding)
        tensor.copy_(lines)
        return tensor.T if turned else tensor

    def int32(self, values):
        return self.torch.as_tensor(values, dtype=self.torch.int32, device=self.where)

    def empty(self, rows, cols, dtype, padding=0):
        kind = getattr(self.torch, dtype)
        whole = self.torch.full((rows, cols + padding), math.nan, dtype=kind, device=self.where)
        return whole[:, :cols]

    def sample(self, array, rows, cols):
        name = str(array.dtype).removeprefix("torch.")
        rows, cols = (self.torch.as_tensor(places, device=self.where) for places in (rows, cols))
        found = array.flatten(0, -2).index_select(0, rows).index_select(1, cols)
        return found.float().cpu().numpy().astype(as_dtype(name))

    def errors(self, result, a, b):
        m, n = result.shape
        wide = b.double()
        total, largest, compared, stray = 0.0, 0.0, 0, 0
        step = max(1, SLICE // max(n, a.shape[1]))
        for start in range(0, m, step):
            exact = a[start : start + step].double() @ wide
            got = result[start : start + step]
            finite = exact.to(got.dtype).isfinite()
            both = finite & got.isfinite()
            error = (got.double() - exact).abs().where(both, 0.0)
            total += float(error.sum())
            largest = max(largest, float(error.max()))
            compared += int(both.sum())
            stray += int((got.isfinite() != finite).sum())
        return total / max(compared, 1), largest, stray

    def disagreement(self, one, other, case):
        """Return the number of elements by which two products of normal numbers differ more than can be explained by
        several roundings to the operands' dtype and by the errors of both sums. A sum of k products has a size of about
        the root of k."""
        k = case.shape[-1]
        size = math.sqrt(k)
        rounding = 4 * float(self.torch.finfo(getattr(self.torch, case.dtype)).eps)
        one, other = one.float(), other.float()
        limit = rounding * (other.abs() + size) + 6 * of_sum(k) * size
        return int(((one - other).abs() <= limit).logical_not().sum())
