"""The torch schema of a kernel: parameter names from its source, types from its compiled signature."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from cudakit.compile.compiler import Compiled
from cudakit.errors import LaunchError
from cudakit.launch.arguments import pointer_dtypes
from cudakit.launch.cxx import Type
from cudakit.launch.parameter_names import parameter_names
from cudakit.launch.signature import parameters, ptx_entries

INPUT, WRITTEN, OUTPUT, NUMBER, COMPUTED = "input", "written", "output", "number", "computed"

_NUMBERS = {"int": "SymInt", "enum": "SymInt", "float": "float", "bool": "bool"}


@dataclass(frozen=True)
class KernelParameter:
    """One parameter of a kernel and what it is in its op.

    role: INPUT (a tensor that is read), WRITTEN (a tensor that is an argument and is written to), OUTPUT (a tensor that
    the op makes), NUMBER (an argument), COMPUTED (a number made of the arguments). dtypes: the names of a tensor's
    dtypes; None for any.
    """

    name: str
    type: Type
    role: str
    dtypes: tuple[str, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.role in (INPUT, WRITTEN, OUTPUT)

    @property
    def is_argument(self) -> bool:
        """Whether the op's callers give it."""
        return self.role in (INPUT, WRITTEN, NUMBER)

    def refusal(self, op: str, tensor: Any) -> LaunchError:
        """The error for a tensor of a dtype that the pointer does not take."""
        dtypes = [name for name in self.dtypes or () if name != "void"]
        advice = f"convert it with .to(torch.{dtypes[0]})" if self.role != OUTPUT else "declare it of that one"
        return LaunchError(
            f"{op}: {self.name} is a tensor of {str(tensor.dtype).removeprefix('torch.')}, and the kernel's parameter "
            f"{self.type.text} {self.name} takes {' or '.join(dtypes)}: {advice}, or change the kernel"
        )


def kernel_parameters(
    op: str,
    kernel: str,
    compiled: Compiled,
    names: Sequence[str] | None,
    outputs: Collection[str],
    computed: Collection[str],
) -> tuple[KernelParameter, ...]:
    """The parameters of a compiled kernel and what each is in `op`. Raises ValueError for what no schema can say.

    names: theirs, unless they are to be read from the source. outputs, computed: the names of those that are not
    arguments.
    """
    mangled = compiled.lowered[kernel]
    entry = ptx_entries(compiled.ptx)[mangled]
    types = [parameter.type for parameter in parameters(mangled, [(0, each.size) for each in entry], entry)]
    listed = ", ".join(kind.text for kind in types)
    if names is None:
        names = parameter_names(compiled.source, kernel, len(types))
        if "" in names:
            raise ValueError(
                f"{op}: the names of the parameters of {kernel}({listed}) were not found in {compiled.name}: give them "
                "in order, parameters=(...)"
            )
    if len(names) != len(types) or len(set(names)) != len(names):
        raise ValueError(
            f"{op}: parameters={tuple(names)} must be {len(types)} different names, one for each of {kernel}({listed})"
        )
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{op}: a parameter is called {name!r}, which Python does not take: give parameters=(...)")
    for what, given in (("outputs", outputs), ("computed", computed)):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"{op}: {what} has {', '.join(unknown)}, not a parameter of {kernel}: these are {', '.join(names)}"
            )
    made = tuple(_parameter(op, *each, outputs, computed) for each in zip(names, types, strict=True))
    if not any(parameter.role in (INPUT, WRITTEN) for parameter in made):
        raise ValueError(f"{op}: {kernel}({listed}) has no tensor among its arguments, so no device to run on")
    return made


def _parameter(
    op: str, name: str, kind: Type, outputs: Collection[str], computed: Collection[str]
) -> KernelParameter:  # fmt: skip
    if kind.kind == "pointer" and kind.target is not None:
        if name in computed:
            raise ValueError(f"{op}: {name} is {kind.text}, and only numbers are computed: declare it in outputs")
        const = kind.target.const
        if name in outputs and const:
            raise ValueError(f"{op}: {name} is declared as an output, and the kernel only reads it ({kind.text})")
        role = OUTPUT if name in outputs else INPUT if const else WRITTEN
        return KernelParameter(name, kind, role, pointer_dtypes(kind.target))
    if name in outputs:
        raise ValueError(f"{op}: {name} is declared as an output, and is {kind.text}, not a pointer")
    if kind.kind == "bits":
        raise ValueError(f'{op}: the type of {name} is not known; define the kernel without extern "C"')
    if kind.kind not in _NUMBERS:
        raise ValueError(
            f"{op}: {name} is {kind.text}, which torch's schemas lack: pass its parts, or an array of them"
        )
    return KernelParameter(name, kind, COMPUTED if name in computed else NUMBER)


def schema_of(made: Sequence[KernelParameter]) -> str:
    """The schema, without the op's name: "(Tensor x, Tensor(a!) y, SymInt n) -> Tensor"."""
    arguments, aliases = [], 0
    for parameter in made:
        if parameter.role == NUMBER:
            arguments.append(f"{_NUMBERS[parameter.type.kind]} {parameter.name}")
        elif parameter.role == INPUT:
            arguments.append(f"Tensor {parameter.name}")
        elif parameter.role == WRITTEN:
            arguments.append(f"Tensor(a{aliases}!) {parameter.name}")
            aliases += 1
    outputs = sum(parameter.role == OUTPUT for parameter in made)
    returned = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    return f"({', '.join(arguments)}) -> {returned}"
