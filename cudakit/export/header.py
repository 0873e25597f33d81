"""The C header of an export: typed launchers, and the code that loads the machine code."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib import resources

from cudakit.export import identifiers
from cudakit.export.c_types import Types
from cudakit.export.sources import Bundle, Entry, Image
from cudakit.launch.signature import Parameter

_SHOWN = 6  # maximum number of launches listed in a comment


def filled(template: str, values: dict[str, str]) -> str:
    """A template's text with each @key@ replaced by its value."""
    text = (resources.files("cudakit.export") / "templates" / template).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def fatbin_name(image: Image) -> str:
    return f"{image.stem}.fatbin"


def text(bundle: Bundle, banner: Sequence[str]) -> str:
    """The header. banner: the lines of its first comment."""
    prefix = identifiers.identifier(bundle.name)
    types = Types(prefix, identifiers.launcher_names())
    # reserve the names of the launchers, so that no struct gets one of them
    for entry in bundle.entries:
        types.unique(entry.identifier)
    launchers = [_launcher(prefix, number, entry, types) for number, entry in enumerate(bundle.entries)]
    table = [
        f'{{{one.image}, {_bool(one.cluster or one.required_cluster is not None)}, "{one.mangled}"}}'
        for one in bundle.entries
    ]
    return filled(
        "launchers.h",
        {
            "banner": comment(banner),
            "includes": types.includes,
            "images": str(len(bundle.images)),
            "kernels": str(len(bundle.entries)),
            "architectures": _rows([f'"{_codes(image)}"' for image in bundle.images]),
            "table": _rows(table),
            "built": _built(bundle),
            "files": _rows([f'"{fatbin_name(image)}"' for image in bundle.images]),
            "written": _rows([f"{{{len(one.fatbin)}, {zlib.crc32(one.fatbin):#010x}u}}" for one in bundle.images]),
            "structs": _structs(types),
            "launchers": "\n".join(launchers),
            "cplusplus": _conversions(types),
            "name": prefix,
            "NAME": prefix.upper(),
        },
    )


def comment(lines: Sequence[str]) -> str:
    """A comment of several lines in C."""
    inside = [line.replace("*/", "* /").replace("/*", "/ *").rstrip() for line in lines]
    return "/* " + "\n".join([inside[0], *(f" * {line}".rstrip() for line in inside[1:]), " */"])


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _rows(values: Sequence[str]) -> str:
    return "\n        " + ",\n        ".join(values) + ",\n    "


def _codes(image: Image) -> str:
    """The image's architectures in the loader's notation: "80 90a 80+"."""
    codes = [arch.removeprefix("sm_") for arch in image.compiled]
    return " ".join(codes + ([f"{image.jit.removeprefix('sm_')}+"] if image.jit else []))


def _built(bundle: Bundle) -> str:
    jits = sorted({image.jit for image in bundle.images if image.jit})
    later = f", and as PTX of {', '.join(jits)} for later devices" if jits else ""
    return ", ".join(bundle.architectures) + later


def _structs(types: Types) -> str:
    if not types.declared:
        return ""
    lines = ["/* Classes that are passed by value, as bytes with their size and alignment on the device. */"]
    for spelled, (name, size, alignment) in types.declared.items():
        lines.append(f"typedef struct {name} {{ /* {spelled.replace('*/', '* /')} */")
        lines.append(f"    {types.prefix.upper()}_ALIGNED({alignment}) unsigned char bytes[{size}];")
        lines.append(f"}} {name};\n")
    return "\n".join(lines) + "\n"


def _conversions(types: Types) -> str:
    """The C++ function that converts the program's class to the header's struct."""
    if not types.declared:
        return ""
    return f"""
/* The bytes of `value` as the struct To: {types.prefix}_bytes<{next(iter(types.declared.values()))[0]}>(value). */
template <class To, class From> inline To {types.prefix}_bytes(const From &value) {{
    static_assert(sizeof(To) == sizeof(From), "the struct has another size on the device");
    static_assert(alignof(From) <= alignof(To), "the struct has another alignment on the device");
    static_assert(std::is_trivially_copyable<From>::value, "a kernel's argument is copied by its bytes");
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}}
"""


# Launchers ------------------------------------------------------------------------------------------------------------


def names_of(parameters: Sequence[Parameter]) -> list[str]:
    """The names of the launcher's parameters, one per kernel parameter."""
    return identifiers.parameter_identifiers([parameter.name for parameter in parameters])


def _launcher(prefix: str, number: int, entry: Entry, types: Types) -> str:
    names = names_of(entry.parameters)
    typed = [types.of(one, align) for one, align in zip(entry.parameters, entry.alignments, strict=True)]
    arguments = [
        f"const {prefix}_kernels *kernels",
        "CUstream stream",
        f"{prefix}_dim3 grid",
        f"{prefix}_dim3 block",
        "unsigned int shared",
    ]
    arguments += [f"{prefix}_dim3 cluster"] if entry.cluster else []
    arguments += [f"{kind}{'' if kind.endswith('*') else ' '}{name}" for kind, name in zip(typed, names, strict=True)]
    values, given = "", "NULL"
    if names:
        addresses = "".join(f"        (void *)&{name},\n" for name in names)
        values = f"    void *values[] = {{\n{addresses}    }};\n"
        given = "values"
    lines = [*([entry.idea] if entry.idea else []), *_facts(entry), *_usual(entry)]
    name = f"{prefix}_{entry.identifier}"
    indent = " " * 4
    return (
        f"{comment([entry.text, *lines])}\n{_constants(name.upper(), entry)}"
        f"static inline CUresult {name}(\n{indent}{(', ' + chr(10) + indent).join(arguments)}) {{\n".replace(
            ", \n", ",\n"
        )
        + values
        + f"    return {prefix}_launch(kernels, {number}, stream, grid, block, shared, "
        f"{'&cluster' if entry.cluster else 'NULL'}, {_bool(entry.cooperative)}, {given});\n}}\n"
    )


def _facts(entry: Entry) -> list[str]:
    lines = []
    for arch, needs in entry.resources.items():
        spilled = needs.spill_stores + needs.spill_loads
        spills = f", spills {spilled} bytes" if spilled else ""
        lines.append(
            f"{arch}: {needs.registers} registers, {needs.static_shared} bytes of static shared memory{spills}"
        )
    if entry.cooperative:
        lines.append("Launched cooperatively: all blocks of the grid must fit on the device at once.")
    if entry.cluster:
        lines.append("`cluster`: blocks per cluster; 1 x 1 x 1 for none.")
    classes = [one for one in entry.parameters if one.kind in ("struct", "enum", "bits") or _pointed_class(one)]
    lines += [f"{name}: {one.text}" for one, name in _with_names(entry, classes)]
    return lines


def _usual(entry: Entry) -> list[str]:
    """The launch configurations that the kernel's family uses for its shapes, one line each."""
    lines = [
        f"{one.title}: grid {_times(one.grid)}, block {_times(one.block)}, {one.shared} bytes of dynamic shared memory"
        + (f", clusters of {_times(one.cluster)}" if one.cluster is not None else "")
        for one in entry.usual[:_SHOWN]
    ]
    return ["Usual launches:", *(f"  {line}" for line in lines)] if lines else []


def _times(extents: tuple[int, int, int]) -> str:
    return " x ".join(map(str, extents))


def _pointed_class(parameter: Parameter) -> bool:
    target = parameter.type.target
    return parameter.kind == "pointer" and target is not None and target.kind in ("struct", "enum", "function")


def _with_names(entry: Entry, chosen: Sequence[Parameter]) -> list[tuple[Parameter, str]]:
    names = names_of(entry.parameters)
    return [(one, names[one.index]) for one in chosen]


def _constants(name: str, entry: Entry) -> str:
    """Constants of a kernel: the maximum threads per block, or the block and cluster sizes that it was compiled for;
    also the block size and shared memory of its usual launches, if all of these are equal."""
    values: dict[str, int] = {}
    if entry.block is not None:
        values |= {f"{name}_BLOCK_{axis}": extent for axis, extent in zip("XYZ", entry.block, strict=True)}
    elif entry.max_threads is not None:
        values[f"{name}_MAX_THREADS"] = entry.max_threads
    blocks, shared = {one.block for one in entry.usual}, {one.shared for one in entry.usual}
    if entry.block is None and len(blocks) == 1:
        (block,) = blocks
        values |= {f"{name}_USUAL_BLOCK_{axis}": extent for axis, extent in zip("XYZ", block, strict=True)}
    if len(shared) == 1:
        values[f"{name}_USUAL_SHARED"] = shared.pop()
    if entry.required_cluster is not None:
        values |= {f"{name}_CLUSTER_{axis}": extent for axis, extent in zip("XYZ", entry.required_cluster, strict=True)}
    listed = "".join(f"    {constant} = {value},\n" for constant, value in values.items())
    return f"enum {{\n{listed}}};\n" if listed else ""
