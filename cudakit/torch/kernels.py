"""User kernels as ops of torch's library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import torch

from cudakit.compile import cache, compiler, headers
from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.errors import LaunchError
from cudakit.family.readers import reader_of
from cudakit.launch.kernel import Kernel
from cudakit.launch.strides import strided
from cudakit.torch import library, simulated
from cudakit.torch.rules import Rule
from cudakit.torch.schema import INPUT, OUTPUT, WRITTEN, KernelParameter, kernel_parameters, schema_of

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_ADVICE = "define one with backward=, or call it under torch.no_grad()"

Dims = int | Sequence[int]
# A value, or a function that takes arguments of the op by name.
OfArguments = Any


def op(
    name: str,
    kernel: str | Kernel,
    *,
    path: str | PathLike[str] | None = None,
    source: str | None = None,
    grid: OfArguments,
    block: OfArguments,
    shared: OfArguments = 0,
    outputs: Mapping[str, str | Callable[..., Any]] | None = None,
    computed: Mapping[str, OfArguments] | None = None,
    parameters: Sequence[str] | None = None,
    strided: bool = False,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Register a kernel as an op of torch's library.

    The schema is derived from the kernel's C++ parameters: a pointer to const is a tensor that is read; any other
    pointer is a tensor that is written to, unless it is an output; numbers are int, float and bool. CUDA tensors run on
    their GPU, CPU tensors on the simulated device. The first call on a device compiles the kernel for it. A call raises
    LaunchError if the kernel does not support a dtype, a layout or a number, and DeviceFault with the report if the
    simulated device finds a fault.

    Args:
        name: The op's name with its namespace, such as "mine::axpb".
        kernel: A Kernel made by `Device.compile`, which is compiled again for other devices; or the kernel's name in
            `path` or `source`, which may be a name expression ("axpb<float>").
        path: The `.cu` file with the kernel.
        source: The source text, instead of `path`.
        grid, block, shared: As for `Kernel.launch`; each is a value, or a function of the op's arguments by name
            (`lambda x: x.numel() // 256`). A grid of 0 launches nothing.
        outputs: The tensors that the op allocates and returns, by parameter: the name of an argument with the same
            shape and dtype, or a function that returns (shape, dtype).
        computed: Numbers computed from the arguments instead of passed: `{"n": lambda x: x.numel()}`.
        parameters: The names of the kernel's parameters in order, if they cannot be read from the source.
        strided: Accept tensors of any strides; the kernel must have the strides among its parameters.
        backward: The gradient, as for `torch.library.register_autograd`; without one, a backward pass raises
            GradientError.
        setup_context: Saves values for `backward`, as for `torch.library.register_autograd`.
        **options: As for `Device.compile` (defines, include, std, ...); not with a Kernel, which has its own.

    Returns:
        The op, an OpOverload.

    Raises:
        ValueError: If a declaration does not fit the kernel, or torch already has an op of that name.
        TypeError: If `kernel` is neither a name nor a Kernel with its source.
        CompileError: If the kernel does not compile.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of an op must be NAMESPACE::NAME, such as mine::axpb, got {name!r}")
    if library.is_defined(name):
        raise ValueError(f"torch already has an op {name}: choose another name")
    made = KernelOp(
        name,
        *_request(name, kernel, path, source, options),
        launch={"grid": grid, "block": block, "shared": shared},
        outputs=outputs or {},
        computed=computed or {},
        names=parameters,
        strided=strided,
    )
    if made.writes and backward is not None:
        raise ValueError(
            f"{name}: an op that writes to its arguments ({', '.join(made.writes)}) cannot have a gradient: declare "
            "them as outputs, or remove backward"
        )
    overload = library.define(name, made.schema, cuda=made.on_gpu, cpu=made.on_simulated, fake=made.fake)
    if backward is not None:
        library.add_gradient(name, backward, setup_context)
    elif not made.writes:
        library.add_no_gradient(name, _ADVICE)
    return overload


def _request(
    name: str,
    kernel: str | Kernel,
    path: str | PathLike[str] | None,
    source: str | None,
    options: Mapping[str, Any],
) -> tuple[str, compiler.Request]:
    """Return the kernel's name, and its compile request for the simulated device; types are the same on all devices."""
    arch = simulated.simulated_device().arch
    if isinstance(kernel, Kernel):
        given = [word for word, value in (("path", path), ("source", source)) if value is not None] + list(options)
        if given:
            raise ValueError(f"{name}: a Kernel has its own source and options: remove {', '.join(given)}")
        compiled = getattr(kernel.module, "compiled", None)
        if not isinstance(compiled, compiler.Compiled):
            raise TypeError(f"{name}: {kernel.name} was loaded without its source: pass its name and path= or source=")
        spelled = next((text for text, known in compiled.lowered.items() if known == kernel.mangled), kernel.name)
        return spelled, compiler.request_again(compiled, arch, (spelled, *compiled.lowered))
    if not isinstance(kernel, str):
        raise TypeError(f"{name}: pass a Kernel, or a kernel's name with path= or source=; got {type(kernel).__name__}")
    if (path is None) == (source is None):
        raise ValueError(f"{name}: pass either path= or source=, got {'neither' if path is None else 'both'}")
    label, text = f"{name.replace('::', '_')}.cu", source or ""
    if path is not None:
        file = headers.find_source(path)
        label, text = str(file), headers.read_source(file)
    names = (kernel, *options.get("names", ()))
    return kernel, compiler.request(text, **{"name": label, **options, "names": names, "arch": arch})


class KernelOp:
    """One kernel as an op, and its launches. schema: without the name. writes: the arguments that it writes to."""

    def __init__(
        self,
        name: str,
        kernel: str,
        request: compiler.Request,
        *,
        launch: Mapping[str, OfArguments],
        outputs: Mapping[str, str | Callable[..., Any]],
        computed: Mapping[str, OfArguments],
        names: Sequence[str] | None,
        strided: bool,
    ) -> None:
        self.name, self.kernel, self.strided = name, kernel, strided
        self._request = request
        compiled = cache.compiled(request)  # loads no module: some kernels can only be loaded on a GPU
        made = kernel_parameters(name, kernel, compiled, names, outputs, computed)
        self.parameters = made
        self.schema = schema_of(made)
        self.writes = tuple(parameter.name for parameter in made if parameter.role == WRITTEN)
        self._arguments = tuple(parameter.name for parameter in made if parameter.is_argument)
        self._given = tuple(parameter for parameter in made if parameter.role in (INPUT, WRITTEN))
        self._made = tuple(parameter for parameter in made if parameter.role == OUTPUT)
        self._tensors = tuple(parameter.name for parameter in made if parameter.is_tensor)
        self._dtypes = {each.name: _dtypes(each) for each in made if each.is_tensor}
        everything = tuple(parameter.name for parameter in made)
        known = tuple(parameter for parameter in everything if parameter not in computed)
        self._outputs = {each: self._output(each, rule) for each, rule in outputs.items()}
        self._computed = {each: Rule(name, f"computed[{each!r}]", rule, known) for each, rule in computed.items()}
        self._launch = {each: Rule(name, each, rule, everything) for each, rule in launch.items()}

    def _output(self, output: str, rule: str | Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
        """Return the rule for the (shape, dtype) of an output."""
        if isinstance(rule, str):
            like = rule
            given = [parameter.name for parameter in self._given]
            if like not in given:
                raise ValueError(
                    f"{self.name}: the output {output} is declared like {like!r}, which is not a tensor argument: use "
                    f"one of {', '.join(given)}"
                )
            return lambda values: (values[like].shape, values[like].dtype)
        if not callable(rule):
            raise ValueError(
                f"{self.name}: the output {output} is declared as {rule!r}: pass the name of an argument with the same "
                "shape and dtype, or a function that returns (shape, dtype)"
            )
        return Rule(self.name, f"outputs[{output!r}]", rule, self._arguments)

    # Calls ------------------------------------------------------------------------------------------------------------

    def on_gpu(self, *arguments: Any) -> Any:
        """Run the kernel on CUDA tensors."""
        values = self._bind(arguments)
        first = values[self._given[0].name]
        reader = reader_of((first,))
        device = reader.place(first)
        self._queue(device, reader.stream(device, None), values, {})
        return self._returned(values)

    def on_simulated(self, *arguments: Any) -> Any:
        """Run the kernel on CPU tensors."""
        values = self._bind(arguments)

        def work(device: Device, arrays: Sequence[Any]) -> None:
            by_name = dict(zip(self._tensors, arrays, strict=True))
            self._queue(device, device.default_stream, values, by_name)

        simulated.run([values[name] for name in self._tensors], work)
        return self._returned(values)

    def fake(self, *arguments: Any) -> Any:
        """Return outputs for tensors without memory; nothing runs."""
        return self._returned(self._allocated(arguments))

    def _allocated(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments by name, and new outputs. Raises LaunchError if a dtype does not fit its pointer."""
        values: dict[str, Any] = dict(zip(self._arguments, arguments, strict=True))
        for parameter in self._given:
            self._expect_dtype(parameter, values[parameter.name])
            if self.writes:
                library.expect_no_gradient(self.name, parameter.name, values[parameter.name])
        first = values[self._given[0].name]
        made = {}
        for parameter in self._made:
            shape, dtype = self._shape_and_dtype(parameter, values)
            made[parameter.name] = first.new_empty(shape, dtype=dtype)
            self._expect_dtype(parameter, made[parameter.name])
        return {**values, **made}

    def _expect_dtype(self, parameter: KernelParameter, tensor: Any) -> None:
        dtypes = self._dtypes[parameter.name]
        if dtypes is not None and tensor.dtype not in dtypes:
            raise parameter.refusal(self.name, tensor)

    def _shape_and_dtype(self, parameter: KernelParameter, values: Mapping[str, Any]) -> tuple[Any, Any]:
        answer = self._outputs[parameter.name](values)
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], torch.dtype):
            return answer
        raise ValueError(
            f"{self.name}: the function for the output {parameter.name} returned {answer!r}: return (shape, dtype), "
            "such as ((3, 4), torch.float32)"
        )

    def _bind(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the values of all parameters by name."""
        values = self._allocated(arguments)
        if not self.strided:
            for parameter in self._given:
                self._expect_contiguous(parameter.name, values[parameter.name])
        return {**values, **{name: rule(values) for name, rule in self._computed.items()}}

    def _expect_contiguous(self, name: str, tensor: Any) -> None:
        if not tensor.is_contiguous():
            raise LaunchError(
                f"{self.name}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}, and must be "
                f"contiguous: pass {name}.contiguous(), or define the op with strided=True and add the strides to the "
                "kernel's parameters"
            )

    def _queue(self, device: Device, stream: Stream, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Launch on `stream`; an entry of `arrays` is passed instead of the value of the same name."""
        grid, block, shared = (rule(values) for rule in self._launch.values())
        if grid == 0 or (isinstance(grid, (tuple, list)) and 0 in grid):
            return
        kernel = device.kept.get(self)
        if kernel is None:
            with device.context.relaxed():  # the first call may be within a capture
                request = replace(self._request, arch=device.arch)
                kernel = device.kept[self] = device.module_of(request)[self.kernel]
        args = tuple(self._passed(each, arrays.get(each.name, values[each.name])) for each in self.parameters)
        kernel.launch(stream, grid, block, shared, args)

    def _passed(self, parameter: KernelParameter, value: Any) -> Any:
        return strided(value) if self.strided and parameter.is_tensor else value

    def _returned(self, values: Mapping[str, Any]) -> Any:
        for name in self.writes:
            library.written(values[name])
        made = tuple(values[parameter.name] for parameter in self._made)
        return made[0] if len(made) == 1 else made or None


def _dtypes(parameter: KernelParameter) -> frozenset[Any] | None:
    """The torch dtypes that a pointer accepts; None for any."""
    if parameter.dtypes is None:
        return None
    return frozenset(getattr(torch, name) for name in parameter.dtypes if hasattr(torch, name))
