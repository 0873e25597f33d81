"""Every function of cuda::ptx that sm_90a has, read from the comments of CCCL's generated headers, and kernels that
call each of them once per variant."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# the architecture whose functions are called
NUMBER, TARGET = 90, "90a"

_COMMENT = re.compile(r"/\*\n(//.*?)\*/(.*?)(?=/\*\n//|\Z)", re.S)
_VERSIONS = re.compile(r"PTX\s+ISA\s+([\d-]+)((?:,\s*SM_\w+)*)")
_VARIANTS = re.compile(r"// \.(\w+)\s*= \{ ([^}]*) \}")
_DECLARATION = re.compile(
    r"(?:template\s*<(?P<parameters>.*?)>\s*)?"
    r"__device__ (?P<result>.*?)(?P<name>\w+)\((?P<args>.*)\);"
)
_TYPES = {
    "B8": "unsigned char",
    "B16": "unsigned short",
    "B32": "unsigned",
    "B64": "unsigned long long",
    "B128": "int4",
    "S32": "int",
    "S64": "long long",
    "U32": "unsigned",
    "U64": "unsigned long long",
}
# the enumerators whose names are not those of the modifiers
_ENUMERATORS = {
    "and": "and_op",
    "or": "or_op",
    "xor": "xor_op",
    "shared::cta": "shared",
    "shared::cluster": "cluster",
    "layout::v0": "v0",
    "layout::v1": "v1",
}


class Form(NamedTuple):
    """A call of one function: `name` in cuda::ptx, the first PTX `version` that has it (86 is 8.6), its declaration's
    `result`, and C++ expressions as arguments."""

    header: str
    name: str
    version: int
    result: str
    declarations: tuple[str, ...]
    arguments: tuple[str, ...]

    def kernel(self, number: int) -> str:
        """The form's kernel, form_NUMBER, which stores the function's result."""
        call = f"ptx::{self.name}({', '.join(self.arguments)})"
        body = f"{call};" if self.result == "void" else f"keep(global, {call});"
        lines = "".join(f"    {line}\n" for line in (*self.declarations, body))
        return f'extern "C" __global__ void form_{number}(char* global, unsigned n) {{\n{SHARED}{lines}}}\n'


SHARED = "    alignas(128) __shared__ char shared[1024];\n"
PROLOGUE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/ptx>
#include <cuda/std/cstdint>

namespace ptx = cuda::ptx;
using namespace cuda::std;

// A value that the compiler does not know: ptxas fails for constants in some of the instructions.
template <typename T>
__device__ T unknown(unsigned n) {
    return T(n);
}
template <>
__device__ int4 unknown<int4>(unsigned n) {
    return make_int4(n, n, n, n);
}

template <typename T>
__device__ void keep(char* to, T value) {
    *reinterpret_cast<T*>(to) = value;
}
"""


def source(forms: list[Form]) -> str:
    """A source with a kernel per form."""
    return PROLOGUE + "\n".join(form.kernel(number) for number, form in enumerate(forms))


def forms_of(header: Path) -> list[Form]:
    """The forms of a generated header that sm_90a has. Raises ValueError for a declaration that it cannot read."""
    found: list[Form] = []
    for comment, body in _COMMENT.findall(header.read_text(encoding="utf-8")):
        versions = _VERSIONS.search(comment)
        text = " ".join(re.sub(r"^//.*$", "", comment, flags=re.M).split())
        declaration = _DECLARATION.search(text)
        if versions is None or declaration is None:
            raise ValueError(f"{header.name}: cannot read the declaration in the comment\n{comment}")
        if _has(versions[2]):
            found += _calls(header.name, int(versions[1][:2]), declaration, _variants(comment), body)
    return found


def _has(architectures: str) -> bool:
    """Whether sm_90a is among a comment's architectures; all if it names none."""
    names = re.findall(r"SM_(\d+)([af]?)", architectures)
    return not names or any(
        number + letter == TARGET or (not letter and int(number) <= NUMBER) for number, letter in names
    )


def _variants(comment: str) -> dict[str, list[str]]:
    return {name: re.findall(r"\.([\w:]+)", values) for name, values in _VARIANTS.findall(comment)}


def _calls(
    header: str, version: int, declaration: re.Match[str], variants: dict[str, list[str]], body: str
) -> Iterator[Form]:
    parameters = declaration["parameters"] or ""
    choices = [
        [(name, f"ptx::dot_{kind}::{_ENUMERATORS.get(value, value)}") for value in variants[kind]]
        for kind, name in re.findall(r"cuda::ptx::dot_(\w+) (\w+)", parameters)
    ]
    if "typename Type" in parameters:
        choices.append([("Type", _type_of(value)) for value in variants["type"]])
    for number in re.findall(r"int (\w+)", parameters):
        choices.append([(number, _number(declaration["name"]))])
    for chosen in itertools.product(*choices):
        names = {**_TYPES, **dict(chosen)}
        declarations, arguments = [], []
        for place, parameter in enumerate(filter(None, map(str.strip, declaration["args"].split(",")))):
            line, argument = _argument(parameter, f"a{place}", body, names)
            declarations += line
            arguments.append(argument)
        result = declaration["result"].strip()
        yield Form(header, declaration["name"], version, result, tuple(declarations), tuple(arguments))


def _type_of(variant: str) -> str:
    """int64_t for s64, uint32_t for b32 and u32."""
    return f"{'' if variant[0] == 's' else 'u'}int{variant[1:]}_t"


def _number(function: str) -> str:
    """A value of an immediate operand that the function allows."""
    if "fence" in function:
        return "128"
    return {"setmaxnreg_inc": "240", "setmaxnreg_dec": "40"}.get(function, "1")


def _argument(parameter: str, variable: str, body: str, names: dict[str, str]) -> tuple[list[str], str]:
    """The declaration, if any, and the expression of an argument."""
    parameter = parameter.partition("=")[0].strip()
    array = re.fullmatch(r"(?:const )?(\w+) \(&\w+\)\[(\d)\]", parameter)
    if array:
        kind = names.get(array[1], array[1])
        return [f"{kind} {variable}[{array[2]}] = {{unknown<{kind}>(n)}};"], variable
    kind = parameter
    for name, value in names.items():
        kind = re.sub(rf"\b{name}\b", value, kind)
    if "cuda::ptx::" in kind:
        return [], re.sub(r"(_t(?:<[^>]*>)?)(?: \w+)?$", r"\1{}", kind).replace("cuda::ptx", "ptx")
    pointer = re.fullmatch(r"(?:const )?([\w ]+)\* ?(\w+)", kind)
    if pointer:
        # ptxas crashes if the address of a shared variable is used as one in global memory
        in_global = f"__as_ptr_gmem(__{pointer[2]})" in body or pointer[2] == "tensorMap"
        return [], f"reinterpret_cast<{pointer[1]}*>({'global' if in_global else 'shared'})"
    reference = re.fullmatch(r"(\w+)& \w+", kind)
    if reference:
        return [f"{reference[1]} {variable} = unknown<{reference[1]}>(n);"], variable
    kind = re.sub(r"^const |&? \w+$", "", kind)
    return [f"{kind} {variable} = unknown<{kind}>(n);"], variable
