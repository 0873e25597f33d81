"""The torch schema of a kernel: parameter names are read from its source, types from its compiled signature."""

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
    """One parameter of a kernel and its role in the op.

    role: INPUT (a tensor that is read), WRITTEN (a tensor argument that is written to), OUTPUT (a tensor that the op
    allocates), NUMBER (an argument), COMPUTED (a number computed from the arguments). dtypes: the names of the dtypes
    that a tensor may have; None for any.
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
        """Whether it is an argument of the op."""
        return self.role in (INPUT, WRITTEN, NUMBER)

    def refusal(self, op: str, tensor: Any) -> LaunchError:
        """Return the error for a tensor whose dtype does not fit the pointer."""
        dtypes = [name for name in self.dtypes or () if name != "void"]
        advice = f"convert it with .to(torch.{dtypes[0]})" if self.role != OUTPUT else "declare it with that dtype"
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
    """Return the parameters of a compiled kernel with their roles in `op`. Raises ValueError if no schema fits.

    names: the parameters' names; None to read them from the source. outputs, computed: the names of the parameters that
    are not arguments.
    """
    mangled = compiled.lowered[kernel]
    entry = ptx_entries(compiled.ptx)[mangled]
    types = [parameter.type for parameter in parameters(mangled, [(0, each.size) for each in entry], entry)]
    listed = ", ".join(kind.text for kind in types)
    if names is None:
        names = parameter_names(compiled.source, kernel, len(types))
        if "" in names:
            raise ValueError(
                f"{op}: the names of the parameters of {kernel}({listed}) were not found in {compiled.name}: pass them "
                "in order as parameters=(...)"
            )
    if len(names) != len(types) or len(set(names)) != len(names):
        raise ValueError(
            f"{op}: parameters must be {len(types)} different names, one per parameter of {kernel}({listed}), got "
            f"{tuple(names)}"
        )
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(
                f"{op}: a parameter is called {name!r}, not a Python name: pass other names as parameters=(...)"
            )
    for what, given in (("outputs", outputs), ("computed", computed)):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"{op}: {what} has {', '.join(unknown)}, not a parameter of {kernel}, which has {', '.join(names)}"
            )
    made = tuple(_parameter(op, *each, outputs, computed) for each in zip(names, types, strict=True))
    if not any(parameter.role in (INPUT, WRITTEN) for parameter in made):
        raise ValueError(f"{op}: {kernel}({listed}) has no tensor among its arguments: at least one is needed")
    return made


def _parameter(
    op: str, name: str, kind: Type, outputs: Collection[str], computed: Collection[str]
) -> KernelParameter:  # fmt: skip
    if kind.kind == "pointer" and kind.target is not None:
        if name in computed:
            raise ValueError(f"{op}: {name} is {kind.text}, and only numbers can be computed: declare it in outputs")
        const = kind.target.const
        if name in outputs and const:
            raise ValueError(
                f"{op}: {name} is declared as an output, but the kernel only reads it ({kind.text}): remove it from "
                "outputs, or remove the const"
            )
        role = OUTPUT if name in outputs else INPUT if const else WRITTEN
        return KernelParameter(name, kind, role, pointer_dtypes(kind.target))
    if name in outputs:
        raise ValueError(f"{op}: {name} is declared as an output, but it is {kind.text}, not a pointer")
    if kind.kind == "bits":
        raise ValueError(f'{op}: the type of {name} is unknown: define the kernel without extern "C"')
    if kind.kind not in _NUMBERS:
        raise ValueError(
            f"{op}: {name} is {kind.text}, which torch's schemas do not support: pass its parts, or an array of them"
        )
    return KernelParameter(name, kind, COMPUTED if name in computed else NUMBER)


def schema_of(made: Sequence[KernelParameter]) -> str:
    """Return the schema without the op's name: "(Tensor x, Tensor(a!) y, SymInt n) -> Tensor"."""
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
