"""Device: creates streams, arrays and modules.

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
from cudakit.compile.machine_code import MachineCode
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context, MemoryInfo
from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.graph.capturing import capture
from cudakit.graph.graph import Graph
from cudakit.launch.counted import LaunchCounters
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

    Args:
        spec: "gpu", "gpu:1", "sim" or "sim:sm_80"; None or "auto": `CUDAKIT_DEVICE`, or the first GPU, or the simulated
            device.
        fresh: Create a simulated device with its own memory, instead of one on the simulated driver that the process
            shares.
        options: Settings of the simulated device: `checks`, `memory`, `devices`, `step_limit`, and `order` with `seed`.

    Attributes:
        context: Its Context.
        arch: The architecture its kernels are compiled for, such as "sm_90a".

    Raises:
        DeviceUnavailable: If there is no such device.
    """

    def __init__(self, spec: str | int | Context | None = None, *, fresh: bool = False, **options: Any) -> None:
        if isinstance(spec, Context):
            context = spec
        else:
            with nvtx.range("open device"):
                context = Context(drivers.open(spec, fresh=fresh, **options))
        self.context = context
        if context.kind == "sim":
            context.driver.simKeepCode(MachineCode())
        chip = compiler.chip_arch(*context.compute_capability)
        self.arch: str = context.driver.arch if context.kind == "sim" else chip
        self._modules: dict[compiler.Request, Module] = {}
        self._default_stream: Stream | None = None
        self.kept: dict[Any, Any] = {}  # such as kernels of ops; kept until the device is closed
        # Arrays reference their context, through which they find the device and its default stream.
        context.device_object = self

    @classmethod
    def several(cls, spec: str | None = None, count: int | None = None, **options: Any) -> list[Device]:
        """Open several devices of one kind, from number 0 on.

        Simulated devices of one call share a driver, and copy to each other as GPUs do.

        Args:
            spec: The kind, as for `Device`.
            count: How many; by default all GPUs, or 2 simulated devices.
            options: Settings of the simulated devices.

        Raises:
            DeviceUnavailable: If there are fewer GPUs than `count`.
            ValueError: If `count` is not a whole number of at least 1.
        """
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"count must be a whole number of at least 1, got {count!r}")
        first = drivers.open(spec)
        if first.kind == "sim":
            count = count or 2
            first = drivers.open(first.spec, devices=count, **options)
        elif count is None:
            count = drivers.count(first)
        return [cls(Context(drivers.numbered(first, number))) for number in range(count)]

    def reopened(self) -> Device:
        """A new simulated device with the architecture and settings of this one, to continue after it was lost."""
        return Device(self.context.spec, fresh=True, **self.context.driver.settings)

    @classmethod
    def of(cls, context: Context) -> Device:
        """The Device that a context was made with; a new Device if it was made without one."""
        with _lock:
            device: Device | None = context.device_object
            return device if device is not None else cls(context)

    @classmethod
    def of_gpu(cls, ordinal: int) -> Device:
        """The Device that this process shares for GPU number `ordinal`; created at the first call."""
        known = _of_gpu.get(ordinal)
        if known is not None and not known.context.closed:
            return known
        with _lock:
            device = _of_gpu.get(ordinal)
            if device is None or device.context.closed:
                device = _of_gpu[ordinal] = cls(f"gpu:{ordinal}")
            return device

    def __repr__(self) -> str:
        state = ", closed" if self.context.closed else ", lost" if self.context.lost else ""
        return f"Device({self.context.spec!r}{state})"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(warn=kind in (None, SystemExit))

    def close(self) -> None:
        """Free everything made with the device and release the driver's context. Idempotent.

        The simulated device warns of leaks (LeakWarning) and of faults that no call has raised (UnseenFault); see
        `Context.close`.
        """
        self._close(warn=True)

    def _close(self, *, warn: bool) -> None:
        self._modules.clear()
        self.kept.clear()
        self.context.close(warn=warn)

    # Properties -------------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """ "gpu" or "sim"."""
        return self.context.kind

    @property
    def ordinal(self) -> int:
        """Its number, counted from 0."""
        return self.context.ordinal

    @property
    def name(self) -> str:
        """Its name, from the driver."""
        return self.context.name

    @property
    def multiprocessors(self) -> int:
        """The number of its multiprocessors."""
        return self.attribute("MULTIPROCESSOR_COUNT")

    def attribute(self, name: Any) -> int:
        """Return a device attribute.

        Args:
            name: The driver's name without its prefix, such as "L2_CACHE_SIZE".
        """
        return self.context.attribute(name)

    def enable_peer(self, other: Device) -> None:
        """Let kernels and copies of this device access memory of `other` directly; the other direction is not enabled.

        Raises:
            DeviceMismatch: If the two devices have no peer access.
        """
        self.context.enable_peer(other.context)

    def memory_info(self) -> MemoryInfo:
        """Free and total memory in bytes."""
        return self.context.memory_info()

    def info(self) -> dict[str, str]:
        """Facts to publish with results: name, kind, arch, and the versions of the driver and NVRTC."""
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
        """Create a stream, which is not ordered with the legacy default stream.

        Args:
            priority: Smaller numbers run first.
        """
        return Stream(self.context, priority)

    @property
    def default_stream(self) -> Stream:
        """The stream that is used unless another is given. It is ordered with the legacy default stream."""
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
        """Capture the work that a `with` block queues on a stream into a Graph; see `cudakit.graph.capture`.

        Args:
            stream: The stream; the default stream if None.
        """
        return capture(Stream.of(self.context, self._on(stream)))

    def event(self, *, timing: bool = True) -> Event:
        """Create an event, to be recorded with `event.record(stream)`.

        Args:
            timing: Whether times between events can be measured.
        """
        return Event(self.context, timing=timing)

    def synchronize(self) -> None:
        """Wait for all work on the device.

        Raises:
            DeviceFault: If a kernel failed; on the simulated device with the fault's report.
        """
        self.context.synchronize()

    def _on(self, stream: Any) -> Any:
        return self.default_stream if stream is None else stream

    # Memory -----------------------------------------------------------------------------------------------------------

    def array(self, host: Any, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """Create an array with the contents of another.

        A device array is copied in `stream`'s order: if work on it is queued on another stream, such as another
        device's default stream, wait for that stream first (`stream.wait(other)`, or `other.synchronize()`).

        Args:
            host: A numpy or device array, or any object that `numpy.asarray` takes.
            dtype: The array's dtype; that of `host` if None.
            stream: The stream of the allocation and the copy; the default stream if None.
        """
        return makers.array(self.context, self._on(stream), host, dtype)

    def empty(self, shape: Any, dtype: Any = "float32", stream: Any = None) -> DeviceArray:
        """Create an array with undefined contents.

        Args:
            shape: Extents, in elements.
            dtype: A numpy dtype or its name.
            stream: The stream of the allocation; the default stream if None.
        """
        return memory.empty(self.context, self._on(stream), shape, dtype)

    def zeros(self, shape: Any, dtype: Any = "float32", stream: Any = None) -> DeviceArray:
        """Create an array of zeros; arguments as for `empty`."""
        return makers.zeros(self.context, self._on(stream), shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """Create an array with every element set to `value`.

        Args:
            shape: Extents, in elements.
            value: The value.
            dtype: The array's dtype; that of `value` if None.
            stream: The stream of the allocation and the fill; the default stream if None.
        """
        return makers.full(self.context, self._on(stream), shape, value, dtype)

    def empty_like(self, other: Any, stream: Any = None) -> DeviceArray:
        """Create a contiguous array with undefined contents and the shape and dtype of another.

        Args:
            other: A device array or a numpy array.
            stream: The stream of the allocation; the default stream if None.
        """
        return memory.empty(self.context, self._on(stream), other.shape, other.dtype)

    def pinned(self, shape: Any, dtype: Any = "float32") -> npt.NDArray[Any]:
        """Create a numpy array in pinned (page-locked) host memory, for asynchronous copies; contents undefined.

        Args:
            shape: Extents, in elements.
            dtype: A numpy dtype or its name.
        """
        return makers.pinned(self.context, shape, dtype)

    def wrap(self, exporter: Any, stream: Any = None) -> DeviceArray:
        """Create an array over another library's memory, without a copy.

        Args:
            exporter: An object with `__dlpack__` or `__cuda_array_interface__`, such as a torch tensor. It is kept
                alive until work on the array is done.
            stream: The stream on which the array is used, which waits for the exporter's work; the default stream if
                None.

        Raises:
            TypeError: If the object exports no memory.
            DeviceMismatch: If the memory is on another device.
            GradientError: If it is a torch tensor that requires gradients.
        """
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
        """Compile a `.cu` file or a source text with NVRTC, or take it from the cache, and load it.

        The same request returns the same module. A source that includes a header by a macro's name, and options that
        read or write files, are compiled at each call.

        Args:
            path: The file; relative paths are tried in the working directory, then among cudakit's kernels.
            source: The source text, instead of `path`.
            name: The file name that reports use for `source`.
            names: Name expressions of templates and variables to compile, such as "k<4>" and "&table".
            defines: Macros and their values.
            options: Further options of NVRTC.
            include: Folders of headers.
            std: The C++ standard.
            fmad: Whether multiplications and additions may be fused.
            max_registers: Limit of registers per thread.
            line_info: Keep source lines for profilers and reports.

        Raises:
            CompileError: If NVRTC reports errors; its text has the source around each.
            FileNotFoundError: If the file does not exist.
            ValueError: If both or neither of `path` and `source` are given.
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
        """Compile and load a request for this device's architecture, as `compile` does."""
        with nvtx.range(f"compile {os.path.basename(request.name)}"):
            compiled = cache.compiled(request)
        with _lock:
            module = self._modules.get(request)
            if module is None or module.closed or module.compiled is not compiled:
                module = self._modules[request] = Module(self.context, compiled)
                self.context.own.add(module)
        return module

    def load(self, image: str | bytes | os.PathLike[str], *, name: str | None = None) -> Module:
        """Load the output of another compiler (Triton, clang, nvcc): PTX, or on a GPU a cubin or fat binary.

        Launches are checked as far as the image has types. PTX has the number and width of parameters, and marks
        floats and pointers; machine code has only the number and sizes.

        Args:
            image: PTX as text or bytes, machine code as bytes, or the path of a file (a str of one line is a path).
            name: The name that errors use; the path if None.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the image is neither PTX nor machine code.
            CudaError: If the driver cannot load it; the text has its reason.
            CudakitError: If it is machine code and the device is simulated.
        """
        if isinstance(image, str) and "\n" in image:
            return Module(self.context, object_code(image, name or "module.ptx"))
        if isinstance(image, (bytes, bytearray, memoryview)):
            return Module(self.context, object_code(bytes(image), name or "module"))
        path = Path(image)
        return Module(self.context, object_code(path.read_bytes(), name or str(path)))

    @contextlib.contextmanager
    def counters(self) -> Iterator[LaunchCounters]:
        """Count memory traffic, bank conflicts and instructions of the kernels that a `with` block launches.

        Only the simulated device counts; on a GPU use Nsight Compute. The end of the block waits for the device.

        Yields:
            A dict from kernel name to Counters, summed over the kernel's launches; filled at the end of the block.

        Raises:
            CudakitError: On a GPU.

        Example:

            with dev.counters() as counters:
                kernel.launch(...)
            print(counters["tree_reduce"].bank_conflicts)
        """
        if self.kind != "sim":
            raise CudakitError(f"{self.context.spec} has no counters: profile with ncu, or count on Device('sim')")
        driver = self.context.driver
        self.synchronize()
        counted = LaunchCounters()
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
        files = {file for counters in counted.values() for file, _ in counters.per_line}
        texts = {file: driver.simSourceText(file) for file in files}
        counted.sources = {file: text for file, text in texts.items() if text is not None}


def _kernel_driver() -> str:
    """The version of NVIDIA's kernel driver, or "unknown"."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", text)
    return match[1] if match else "unknown"
