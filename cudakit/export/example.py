"""The C++ example of an export: it launches the kernels of its samples and checks their results."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from cudakit.export import header, identifiers
from cudakit.export.c_types import Types
from cudakit.export.samples import Buffer, Call, Map, Place, Sample
from cudakit.export.sources import Bundle

_NUMBERS = {
    "float16": "Half", "bfloat16": "Bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip
_SUFFIXES = {"int": "", "unsigned int": "u", "long long": "ll", "unsigned long long": "ull"}
_CODES = {
    "char": "b", "signed char": "b", "unsigned char": "B", "short": "h", "unsigned short": "H", "int": "i",
    "unsigned int": "I", "long long": "q", "unsigned long long": "Q", "int8_t": "b", "uint8_t": "B", "int16_t": "h",
    "uint16_t": "H", "int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q",
}  # fmt: skip


class Data:
    """The data file of the example: byte strings without duplicates, each at a multiple of 8 bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._size = 0

    def add(self, content: bytes) -> int:
        """Add `content` and return its offset in the file."""
        if content not in self._known:
            padded = content + bytes(-len(content) % 8)
            self._known[content] = self._size
            self._parts.append(padded)
            self._size += len(padded)
        return self._known[content]

    def content(self) -> bytes:
        return b"".join(self._parts)


def text(
    bundle: Bundle, banner: Sequence[str], samples: Sequence[Sample], reasons: Mapping[int, str]
) -> tuple[str, bytes]:
    """The program and its data file. reasons: why an entry has no sample, by the entry's number."""
    prefix = identifiers.identifier(bundle.name)
    data = Data()
    functions = [_function(bundle, prefix, number, sample, data) for number, sample in enumerate(samples)]
    if any(isinstance(value, Map) for sample in samples for call in sample.calls for value in call.arguments):
        functions.insert(0, header.filled("tensor_map.cpp", {"NAME": prefix.upper()}))
    calls = [f"    sample_{number}(session);" for number in range(len(samples))]
    calls += [
        f"    std::printf({_quoted(f'not run  {bundle.entries[number].name}: {reason}' + chr(10))});"
        for number, reason in reasons.items()
    ]
    written = header.filled(
        "example.cpp",
        {
            "banner": header.comment(banner),
            "samples": "".join(functions),
            "calls": "\n".join(calls) + "\n",
            "name": prefix,
            "NAME": prefix.upper(),
        },
    )
    return written, data.content()


def _quoted(text: str) -> str:
    """A C string literal for printf."""
    plain = text.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + plain.replace("\n", "\\n").replace("??", "?") + '"'


def _function(bundle: Bundle, prefix: str, number: int, sample: Sample, data: Data) -> str:
    title = sample.title.replace("\n", " ")
    names = _names(sample)
    lines = [f"// {title}", f"void sample_{number}(Session &session) {{"]
    for buffer, name in zip(sample.buffers, names, strict=True):
        lines.append(f"    const Buffer {name}(session, {data.add(buffer.before)}, {len(buffer.before)});")
    types = Types(prefix, identifiers.launcher_names())
    for entry in bundle.entries:
        types.unique(entry.identifier)
    for entry in bundle.entries:
        for one, align in zip(entry.parameters, entry.alignments, strict=True):
            types.of(one, align)
    for call in sample.calls:
        lines += _call(bundle, prefix, call, names, types)
    lines.append('    session.check(session.driver.synchronize(), "cuCtxSynchronize");')
    checks = [_check(buffer, name, data) for buffer, name in zip(sample.buffers, names, strict=True)]
    ok = " && ".join(check for check in checks if check) or "true"
    lines += [f"    session.finish({ok}, {_quoted(title).replace('%%', '%')});", "}", "", ""]
    return "\n".join(lines)


def _names(sample: Sample) -> list[str]:
    unique = identifiers.Unique()
    return [unique(f"{identifiers.identifier(buffer.name)}_array") for buffer in sample.buffers]


def _call(bundle: Bundle, prefix: str, call: Call, names: Sequence[str], types: Types) -> list[str]:
    entry = bundle.entries[call.entry]
    arguments = ["&session.kernels", "nullptr", _dim(prefix, call.grid), _dim(prefix, call.block), f"{call.shared}u"]
    arguments += [_dim(prefix, call.cluster)] if entry.cluster else []
    for parameter, align, value in zip(entry.parameters, entry.alignments, call.arguments, strict=True):
        kind = types.of(parameter, align)
        if isinstance(value, Place):
            how = "at" if kind.endswith("*") else "address"
            arguments.append(f"{names[value.buffer]}.{how}<{kind}>({value.offset})")
        elif isinstance(value, Map):
            arguments.append(_map(value, names))
        else:
            arguments.append(_literal(kind, value))
    joined = ", ".join(arguments)
    return [
        f"    if (!session.launched({prefix}_{entry.identifier}({joined}), {_quoted(entry.name).replace('%%', '%')}))",
        "        return;",
    ]


def _map(value: Map, names: Sequence[str]) -> str:
    address = f"{names[value.place.buffer]}.at<void *>({value.place.offset})"
    lists = [f"{{{', '.join(map(str, one))}}}" for one in (value.dims, value.strides, value.box, value.element_strides)]
    return f"tensor_map({', '.join(['session', address, str(value.data_type), *lists, *map(str, value.modes)])})"


def _dim(prefix: str, extents: tuple[int, int, int]) -> str:
    return f"{prefix}_dim({', '.join(f'{extent}u' for extent in extents)})"


def _literal(kind: str, value: bytes) -> str:
    """A C++ literal for the bytes of a value."""
    if kind.endswith("*") and not any(value):
        return "nullptr"
    if kind == "bool":
        return "true" if any(value) else "false"
    if kind in ("float", "double"):
        (number,) = struct.unpack("f" if kind == "float" else "d", value)
        if math.isfinite(number):
            return f"{np.float32(number)!s}f" if kind == "float" else repr(number)
    elif kind in _CODES:
        (whole,) = struct.unpack(_CODES[kind], value)
        if abs(whole) < 2**31:
            return f"{whole}{_SUFFIXES[kind]}" if kind in _SUFFIXES else f"static_cast<{kind}>({whole})"
    return f"from_bytes<{kind}>({{{', '.join(map(str, value))}}})"


def _check(buffer: Buffer, name: str, data: Data) -> str:
    if buffer.expected is None or buffer.tolerance is None:
        return ""
    if buffer.dtype not in _NUMBERS:
        return f"equal(session, {name}, {data.add(buffer.expected.tobytes())})"
    pairs = np.stack([buffer.expected.astype(np.float64), buffer.tolerance], axis=-1)
    place = data.add(pairs.tobytes())
    return f"close<{_NUMBERS[buffer.dtype]}>(session, {name}, {place}, {len(buffer.expected)})"
