"""Arrays of torch and CuPy, read through their own attributes: no DLPack capsule, no event, no reference.

A Library describes each access as text, a Python expression of `{0}`, because launch code is generated: a function
call per attribute would cost as much as the attribute. `Library.read` makes a function of such an expression. Only
libraries that the program has imported are found; none is imported here.

On the stream that a library considers current, its allocator orders reuse: memory that it allocates again is used after
the work queued there. On another stream the caller must keep the array alive, or call `record_use`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.errors import CudakitError
from cudakit.memory import layout


@dataclass(frozen=True)
class Library:
    """How to read and make the arrays of one library.

    types: the exact types of its arrays. kind: of their devices, as in Context.kind.

    Expressions of `{0}`, an array:
    pointer: the address of its first element. dtype, shape: the library's own. strides: a tuple, in elements if
    `strides_in` is "elements", else in bytes. device: the device's number, -1 if it is not on such a device.
    described: whether `__cuda_array_interface__` describes its arrays completely, so that kernels may take them by the
    rules for all objects that have one.
    contiguous: whether its elements are in C order without gaps. placed: whether it is on a GPU ("" if the library has
    no such attribute). Both cost less than strides and device.
    negated, conjugated: whether it is a lazy view, whose values are the negated or conjugated memory ("" if the library
    has no such views). conjugated is false for dtypes that are not complex.
    """

    name: str
    types: tuple[type, ...]
    pointer: str
    dtype: str
    shape: str
    strides: str
    strides_in: str
    device: str
    contiguous: str
    #: Returns the name of one of its dtypes as numpy or ml_dtypes spell it.
    dtype_name: Callable[[Any], str]
    #: current_stream(device number): the address of the stream that the library considers current.
    current_stream: Callable[[int], int]
    #: maker(shape, dtype name, device number): a function that makes new arrays with the library's allocator.
    maker: Callable[[tuple[int, ...], str, int], Callable[[], Any]]
    #: record_use(array, stream address, device number): delays reuse of its memory until the stream's work so far is
    #: done. None if the library cannot: then the caller keeps the array alive.
    record_use: Callable[[Any, int, int], None] | None = None
    #: stream_owner(device number): an object that keeps the current stream's address from being reused by another
    #: stream. None if addresses are not reused.
    stream_owner: Callable[[int], Any] | None = None
    negated: str = ""
    placed: str = ""
    conjugated: str = ""
    #: checker(arrays): returns check(*others), which reports whether each of as many objects has the type, dtype,
    #: shape, strides, device and flags of its counterpart. None if the library has no such check.
    checker: Callable[[Sequence[Any]], Callable[..., bool]] | None = None
    kind: str = "gpu"
    described: bool = False

    def read(self, expression: str) -> Callable[[Any], Any]:
        """Return a function of an array that evaluates one of the expressions above."""
        return _function(expression)

    def unresolved(self, array: Any) -> bool:
        """Return whether the memory of `array` does not hold its values: a negated or conjugated view."""
        return any(self.read(expression)(array) for expression in (self.negated, self.conjugated) if expression)

    def strides_of(self, array: Any) -> tuple[int, ...]:
        """Return the strides of `array` in bytes."""
        strides = tuple(self.read(self.strides)(array))
        return tuple(s * array.itemsize for s in strides) if self.strides_in == "elements" else strides


@functools.cache
def _function(expression: str) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = eval(f"lambda array: {expression.format('array')}")
    return made


#: Further libraries for `of`, which tries them before torch and CuPy.
more: list[Library] = []


def of(kind: type, *, exact: bool = True) -> Library | None:
    """Return the library whose arrays have the type `kind` or, unless `exact`, one of its base classes; else None.

    Only exact types are read by these expressions: a subclass may override attributes or have no memory at all.
    """
    for library in (*more, _torch(), _cupy()):
        if library is not None and (kind in library.types or (not exact and issubclass(kind, library.types))):
            return library
    return None


def named(name: str) -> Library:
    """Return the library "torch" or "cupy". Raises CudakitError if the program has not imported it."""
    library = {"torch": _torch, "cupy": _cupy}[name]()
    if library is None:
        raise CudakitError(f"arrays of {name} were requested, but {name} is not imported; import it first")
    return library


def _torch() -> Library | None:
    torch = sys.modules.get("torch")
    # Another thread may be importing torch: both attributes exist once the import has ended.
    if torch is None or not hasattr(torch, "Tensor") or not hasattr(getattr(torch, "nn", None), "Parameter"):
        return None
    return _torch_library(torch)


@functools.cache
def _torch_library(torch: Any) -> Library:
    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # returns the address without making an object

    def current_stream(device: int) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def maker(shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        # It allocates on the current device, so it is used only on a host with one GPU. It costs a third of
        # torch.empty.
        empty_strided = getattr(guards, "_empty_strided_cuda", None)
        if empty_strided is not None and torch.cuda.device_count() == 1:
            return functools.partial(empty_strided, shape, layout.contiguous(shape, 1), getattr(torch, dtype))
        return functools.partial(torch.empty, shape, dtype=getattr(torch, dtype), device=torch.device("cuda", device))

    def checker(tensors: Sequence[Any]) -> Callable[..., bool]:
        # torch.compile guards its compiled functions with this check. It returns false if a tensor occurs twice.
        firsts = [next(j for j, other in enumerate(tensors) if other is tensor) for tensor in tensors]
        distinct = sorted(set(firsts))
        check: Callable[..., bool] = guards.TensorGuards(
            *(tensors[i] for i in distinct), dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        if len(distinct) == len(tensors):
            return check
        again = [f"a{i} is a{first}" for i, first in enumerate(firsts) if first != i]
        tests = " and ".join([*again, f"check({', '.join(f'a{i}' for i in distinct)})"])
        with_twice: Callable[..., bool] = eval(
            f"lambda {', '.join(f'a{i}' for i in range(len(tensors)))}: {tests}", {"check": check}
        )
        return with_twice

    def record_use(array: Any, stream: int, device: int) -> None:
        array.record_stream(torch.cuda.ExternalStream(stream, device=device))

    return Library(
        name="torch",
        types=(torch.Tensor, torch.nn.Parameter),
        pointer="{0}.data_ptr()",
        dtype="{0}.dtype",
        shape="{0}.shape",
        strides="{0}.stride()",
        strides_in="elements",
        # get_device() also numbers devices of other types.
        device="({0}.get_device() if {0}.is_cuda else -1)",
        placed="{0}.is_cuda",
        contiguous="{0}.is_contiguous()",
        dtype_name=lambda dtype: str(dtype).removeprefix("torch."),
        current_stream=raw_stream or current_stream,
        maker=maker,
        record_use=record_use,
        checker=checker if _tells_apart(torch, checker) else None,
        negated="{0}.is_neg()",
        conjugated="{0}.is_conj()",
    )


def _tells_apart(torch: Any, checker: Callable[[Sequence[Any]], Callable[..., bool]]) -> bool:
    """Return whether a checker behaves as expected in this version of torch."""
    try:
        tensor = torch.zeros(2, 3)
        check = checker((tensor, torch.ones(2, 3)))
        layouts = (torch.zeros(3, 2), torch.zeros(3, 2).T, torch._neg_view(tensor))
        others = (*layouts, tensor.double(), tensor.to("meta"), torch.nn.Parameter(tensor), 1)
        return check(tensor, torch.zeros(2, 3)) and not any(check(tensor, other) for other in others)
    except Exception:  # not part of torch's public interface
        return False


def _cupy() -> Library | None:
    cupy = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "ndarray") or not hasattr(getattr(cupy, "cuda", None), "get_current_stream"):
        return None
    return _cupy_library(cupy)


@functools.cache
def _cupy_library(cupy: Any) -> Library:
    def stream_owner(device: int) -> Any:
        try:
            return cupy.cuda.get_current_stream(device)
        except TypeError:  # before CuPy 11: for the current device only
            with cupy.cuda.Device(device):
                return cupy.cuda.get_current_stream()

    def current_stream(device: int) -> int:
        return int(stream_owner(device).ptr)

    def maker(shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        kind = np.dtype(dtype)

        def make() -> Any:
            with cupy.cuda.Device(device):
                return cupy.empty(shape, kind)

        return make

    return Library(
        name="cupy",
        types=(cupy.ndarray,),
        pointer="{0}.data.ptr",
        dtype="{0}.dtype",
        shape="{0}.shape",
        strides="{0}.strides",
        strides_in="bytes",
        device="{0}.data.device_id",
        # `flags` makes an object that reads this attribute; reading it directly is cheaper.
        contiguous="{0}._c_contiguous" if hasattr(cupy.ndarray, "_c_contiguous") else "{0}.flags.c_contiguous",
        dtype_name=lambda dtype: str(dtype.name),
        current_stream=current_stream,
        stream_owner=stream_owner,
        maker=maker,
        described=True,
    )
