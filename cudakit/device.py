"""Device: the front object. It makes streams, arrays and modules, and says what it is.

dev = Device()                      # $CUDAKIT_DEVICE, or the first GPU, or the simulated device
module = dev.compile("softmax/05_tree_reduce.cu")
x = dev.array(host)
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit import nvtx
from cudakit.compile import cache, compiler
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context, MemoryInfo
from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.graph.capturing import capture
from cudakit.graph.graph import Graph
from cudakit.launch.mangling import demangle
from cudakit.launch.module import Module, object_code
from cudakit.memory import array as memory
from cudakit.memory import makers
from cudakit.memory.array import DeviceArray

if TYPE_CHECKING:
    import numpy.typing as npt

_lock = threading.RLock()
_of_gpu: dict[int, Device] = {}


class Device:
    """A GPU, or the simulated device.

    spec: None or "auto", "gpu", "gpu:1", "sim", "sim:sm_80" (see `cudakit.driver`). fresh, options: a simulated device
    of its own, and what it is made with (checks, memory, devices). context: its Context. arch: what its kernels are
    compiled for ("sm_90a").
    """

    def __init__(self, spec: str | int | Context | None = None, *, fresh: bool = False, **options: Any) -> None:
        if isinstance(spec, Context):
            context = spec
        else:
            with nvtx.range("open device"):
                context = Context(drivers.open(spec, fresh=fresh, **options))
        self.context = context
        self.arch = compiler.chip_arch(*context.compute_capability)
        self._modules: dict[compiler.Request, Module] = {}
        self._default_stream: Stream | None = None
        self.kept: dict[Any, Any] = {}  # what the layers above keep for as long as the device: kernels of ops
        # Arrays hold their context, and by it the device whose default stream they are ordered on.
        context.device_object = self

    @classmethod
    def several(cls, spec: str | None = None, count: int | None = None, **options: Any) -> list[Device]:
        """`count` devices of the kind that `spec` names, from number 0 on: GPUs (all there are unless `count` says
        less), or simulated devices of one driver (2 unless it says otherwise), which copy to each other as GPUs do.

        Raises DeviceUnavailable if there are not as many GPUs.
        """
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"{count!r} devices were asked for: at least one is needed, a whole number")
        first = drivers.open(spec)
        if first.kind == "sim":
            count = count or 2
            first = drivers.open(first.spec, devices=count, **options)
        elif count is None:
            count = drivers.count(first)
        return [cls(Context(drivers.numbered(first, number))) for number in range(count)]

    def reopened(self) -> Device:
        """A fresh simulated device of the same architecture and with the same checks, in place of one that was lost."""
        return Device(self.context.spec, fresh=True, checks=self.context.driver.checks)

    @classmethod
    def of(cls, context: Context) -> Device:
        """The Device of a context: the one it was made with."""
        with _lock:
            device: Device | None = context.device_object
            return device if device is not None else cls(context)

    @classmethod
    def of_gpu(cls, ordinal: int) -> Device:
        """The Device that this process shares for GPU number `ordinal`; made when it is first asked for."""
        known = _of_gpu.get(ordinal)
        if known is not None and not known.context.closed:
            return known
        with _lock:
            device = _of_gpu.get(ordinal)
            if device is None or device.context.closed:
                device = _of_gpu[ordinal] = cls(f"gpu:{ordinal}")
            return device

    def __repr__(self) -> str:
        return f"Device({self.context.spec!r})"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(warn=kind in (None, SystemExit))

    def close(self) -> None:
        """Free everything made with it, and let go of the driver's context. Idempotent.

        The simulated device warns of what is still held (LeakWarning) and of faults that no call has raised
        (UnseenFault): see `Context.close`.
        """
        self._close(warn=True)

    def _close(self, *, warn: bool) -> None:
        self._modules.clear()
        self.kept.clear()
        self.context.close(warn=warn)

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """ "gpu" or "sim"."""
        return self.context.kind

    @property
    def ordinal(self) -> int:
        """Its number, from 0."""
        return self.context.ordinal

    @property
    def name(self) -> str:
        """Its name, as the driver reports it."""
        return self.context.name

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors it has."""
        return self.attribute("MULTIPROCESSOR_COUNT")

    def attribute(self, name: Any) -> int:
        """A device attribute by its driver name without the prefix, such as "L2_CACHE_SIZE"."""
        return self.context.attribute(name)

    def enable_peer(self, other: Device) -> None:
        """Let kernels and copies of this device use memory of `other` directly, over the link between them. One way.

        Raises DeviceMismatch if the two cannot.
        """
        self.context.enable_peer(other.context)

    def memory_info(self) -> MemoryInfo:
        """Free and total memory in bytes."""
        return self.context.memory_info()

    def info(self) -> dict[str, str]:
        """What results are published with: name, kind, arch, driver and nvrtc (versions)."""
        version = int(self.context.call("cuDriverGetVersion"))
        cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
        return {
            "name": self.name,
            "kind": self.kind,
            "arch": self.arch,
            "driver": f"{_kernel_driver()} ({cuda})" if self.kind == "gpu" else f"simulated ({cuda})",
            "nvrtc": compiler.nvrtc_label(),
        }

    # Streams ----------------------------------------------------------------------------------------------------------

    def stream(self, priority: int = 0) -> Stream:
        """A new stream; smaller priorities run first. It is not ordered with the legacy default stream."""
        return Stream(self.context, priority)

    @property
    def default_stream(self) -> Stream:
        """The device's own stream, used where none is named. It is ordered with the legacy default stream."""
        if self._default_stream is None or self._default_stream.closed:
            with _lock:
                if self._default_stream is None or self._default_stream.closed:
                    self._default_stream = Stream(self.context, blocking=True)
                    self.context.own.add(self._default_stream)
                    if self.kind == "sim":
                        self.context.driver.simNameStream(
                            self._default_stream.handle, f"the default stream of {self.context.spec}"
                        )
        return self._default_stream

    def capture(self, stream: Any = None) -> AbstractContextManager[Graph]:
        """Capture what is queued on a stream (the default stream unless given) in a `with` block into a Graph.

        See `cudakit.graph.capture`.
        """
        return capture(Stream.of(self.context, self._on(stream)))

    def event(self, *, timing: bool = True) -> Event:
        """A new event, to be recorded with `event.record(stream)`."""
        return Event(self.context, timing=timing)

    def synchronize(self) -> None:
        """Wait for all work on the device, and raise what any of it failed with."""
        self.context.synchronize()

    def _on(self, stream: Any) -> Any:
        return self.default_stream if stream is None else stream

    # Memory -----------------------------------------------------------------------------------------------------------

    def array(self, host: Any, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """A new array with the contents of a numpy or device array, or of what numpy makes an array of.

        A device array is copied in `stream`'s order: work on it that is queued on another stream, such as another
        device's default stream, must be waited for first (`stream.wait(other)`, or `other.synchronize()`).
        """
        return makers.array(self.context, self._on(stream), host, dtype)

    def empty(self, shape: Any, dtype: Any = "float32", stream: Any = None) -> DeviceArray:
        """A new array, its contents undefined."""
        return memory.empty(self.context, self._on(stream), shape, dtype)

    def zeros(self, shape: Any, dtype: Any = "float32", stream: Any = None) -> DeviceArray:
        """A new array of zeros."""
        return makers.zeros(self.context, self._on(stream), shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """A new array of one value; dtype: the value's own, unless given."""
        return makers.full(self.context, self._on(stream), shape, value, dtype)

    def empty_like(self, other: Any, stream: Any = None) -> DeviceArray:
        """A new contiguous array of the shape and dtype of another, of the device or numpy's; contents undefined."""
        return memory.empty(self.context, self._on(stream), other.shape, other.dtype)

    def pinned(self, shape: Any, dtype: Any = "float32") -> npt.NDArray[Any]:
        """A numpy array in pinned host memory, its contents undefined: copies of it are asynchronous and fast."""
        return makers.pinned(self.context, shape, dtype)

    def wrap(self, exporter: Any, stream: Any = None) -> DeviceArray:
        """An array over another library's memory, without a copy (`__dlpack__` or `__cuda_array_interface__`)."""
        return makers.wrap(self.context, self._on(stream), exporter)

    # Kernels ----------------------------------------------------------------------------------------------------------

    def compile(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        source: str | None = None,
        name: str | None = None,
        names: Sequence[str] = (),
        defines: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        include: Sequence[str | os.PathLike[str]] = (),
        std: str = "c++17",
        fmad: bool = True,
        max_registers: int | None = None,
        line_info: bool = True,
    ) -> Module:
        """The module of a `.cu` file (looked for in the working directory, then among cudakit's kernels), or of text.

        names: name expressions of templates and variables to compile ("k<4>", "&table"). defines: macros. options: more
        options of NVRTC. include: folders. The same request gives the same module, from the cache if it is warm.
        A source that names a header by a macro, and options that read or write files, are compiled at each call.
        Raises FileNotFoundError, CompileError (with the source around each error).
        """
        if (path is None) == (source is None):
            raise ValueError("compile() takes a path, or source=... with a name, and not both")
        settings: dict[str, Any] = {
            "arch": self.arch, "options": options, "defines": defines, "names": names, "include": include,
            "std": std, "fmad": fmad, "max_registers": max_registers, "line_info": line_info,
        }  # fmt: skip
        if path is not None:
            return self.module_of(compiler.request_of(path, **settings))
        return self.module_of(compiler.request(source or "", name=name or "kernel.cu", **settings))

    def module_of(self, request: compiler.Request) -> Module:
        """The module of a compile request for this device's architecture: what `compile` returns for it."""
        with nvtx.range(f"compile {os.path.basename(request.name)}"):
            compiled = cache.compiled(request)
        with _lock:
            module = self._modules.get(request)
            if module is None or module.closed or module.compiled is not compiled:
                module = self._modules[request] = Module(self.context, compiled)
                self.context.own.add(module)
        return module

    def load(self, image: str | bytes | os.PathLike[str], *, name: str | None = None) -> Module:
        """A new module of what another compiler made (Triton, clang, nvcc): PTX, or a cubin or fat binary on a GPU.

        image: PTX as text or bytes, machine code as bytes, or the path of a file of either (a str of one line is one).
        name: what errors call it; the path unless given. Launches are checked as far as PTX has types: counts, widths,
        floats and marked pointers; with machine code alone, counts and sizes.
        Raises FileNotFoundError, ValueError for what is neither, CudaError with the reason if it does not load, and
        CudakitError for machine code on the simulated device.
        """
        if isinstance(image, str) and "\n" in image:
            return Module(self.context, object_code(image, name or "module.ptx"))
        if isinstance(image, (bytes, bytearray, memoryview)):
            return Module(self.context, object_code(bytes(image), name or "module"))
        path = Path(image)
        return Module(self.context, object_code(path.read_bytes(), name or str(path)))

    @contextlib.contextmanager
    def counters(self) -> Iterator[dict[str, Any]]:
        """Count what the kernels launched in the block do, on the simulated device.

            with dev.counters() as counters:
                kernel.launch(...)
            print(counters["tree_reduce"].bank_conflicts)

        The dict is filled at the block's end, which waits for the device: kernel name to Counters, added up over its
        launches. Raises CudakitError on a GPU, where Nsight Compute counts.
        """
        if self.kind != "sim":
            raise CudakitError(
                f"{self.context.spec} does not count by itself: profile with ncu, or count on Device('sim')"
            )
        driver = self.context.driver
        self.synchronize()
        counted: dict[str, Any] = {}
        count = driver.simCount(self.context.handle)
        try:
            yield counted
            self.synchronize()
        finally:
            records = driver.simEndCount(count)
        for record in records:
            signature = demangle(record.name)
            name = signature.name if signature is not None else record.name
            if name not in counted:
                counted[name] = type(record.counters)()
            counted[name].merge(record.counters)


def _kernel_driver() -> str:
    """The version of NVIDIA's kernel driver, or "unknown"."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", text)
    return match[1] if match else "unknown"
