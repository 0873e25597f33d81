"""The variables, types and functions of a kernel compiled with -G, from the DWARF in its PTX.

NVRTC writes DWARF 2 as sections of numbers and labels. Addresses are labels of instructions, and the places of
variables are PTX registers (DW_OP_regx with the register's name as the number: the bytes "%r1") or offsets from
variables of the PTX module (DW_OP_addr). This module assembles the sections, with an address of its own for each
instruction and each variable, and pyelftools reads them.

Source: NVIDIA's PTX ISA, section "Debugging Directives"; the encoding of registers is that of NVRTC 13.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.die import DIE
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
from elftools.dwarf.locationlists import LocationEntry, LocationExpr, LocationParser

from cudakit.debugger.types import (
    NAMED,
    VOID,
    Alias,
    Base,
    CType,
    Enum,
    Member,
    Pointer,
    Struct,
    array_of,
    pointed,
)
from cudakit.sim.ptx.ir import Instruction, PtxFunction, PtxModule, Register

# an instruction's address is its function's, plus this step per instruction; those of variables are above all functions
_FUNCTION, _STEP, _VARIABLE = 1 << 32, 16, 1 << 56
_NUMBERS = re.compile(r"\.b(8|16|32|64)\s+([^\n]*)|([\w$.]+):")
_SECTIONS = ("info", "abbrev", "loc", "str", "ranges")
# those that NVRTC does not write
_ABSENT = (
    *("aranges", "frame", "line", "pubtypes", "pubnames", "addr", "str_offsets", "line_str", "loclists"),
    *("rnglists", "sup", "types"),
)
# DW_ATE_*
_KINDS = {2: "bool", 4: "float", 5: "signed", 6: "char", 7: "unsigned", 8: "unsigned char"}


@dataclass(frozen=True)
class InRegister:
    """A variable in a PTX register."""

    name: str


@dataclass(frozen=True)
class InMemory:
    """A variable at an offset from a variable of the PTX, such as the thread's local memory or a global."""

    symbol: str
    offset: int


@dataclass(frozen=True)
class Constant:
    """A variable with a value that is known at compile time."""

    value: int


Place = InRegister | InMemory | Constant


@dataclass
class DebugVariable:
    """A C++ variable: its places, each for a range of instructions (None: all)."""

    name: str
    type: CType
    line: int = 0
    parameter: bool = False
    places: list[tuple[tuple[int, int] | None, Place]] = field(default_factory=list)

    def at(self, number: int) -> Place | None:
        """Its place before instruction `number` of the function; None if it is nowhere there."""
        for scope, place in self.places:
            if scope is None or scope[0] <= number < scope[1]:
                return place
        return None

    def registers(self) -> set[str]:
        """The names of the registers that it may be in."""
        return {place.name for _, place in self.places if isinstance(place, InRegister)}


@dataclass
class Scope:
    """A block of a function in braces: the instructions that it spans (None: all), its variables, and inner blocks."""

    span: tuple[int, int] | None
    variables: list[DebugVariable] = field(default_factory=list)
    inner: list[Scope] = field(default_factory=list)

    def around(self, number: int) -> Iterator[Scope]:
        """The scopes that contain an instruction, the innermost first."""
        for scope in self.inner:
            if scope.span is None or scope.span[0] <= number < scope.span[1]:
                yield from scope.around(number)
        yield self

    def all_variables(self) -> Iterator[DebugVariable]:
        """Its variables, and those of the inner blocks."""
        yield from self.variables
        for scope in self.inner:
            yield from scope.all_variables()


@dataclass
class DebugFunction:
    """A function: its C++ name, such as "scale<float, 4>", its scope and the type that it returns."""

    name: str
    scope: Scope
    returns: CType
    line: int = 0


class DebugInfo:
    """The debug information of a module. `functions` are by mangled name; `variables` are the module's own."""

    def __init__(self, module: PtxModule) -> None:
        self._functions = module.functions
        self._names = list(module.functions)
        self._symbols: list[str] = []
        self._labels = _labels_of(module)
        self.functions: dict[str, DebugFunction] = {}
        self.variables: dict[str, DebugVariable] = {}
        self.types: dict[str, CType] = dict(NAMED)
        self._known: dict[int, CType] = {}
        sections = self._assembled(module.sections)
        if "info" in sections and "abbrev" in sections:
            self._read(sections)

    # ---- the sections as bytes ----

    def _assembled(self, texts: Mapping[str, str]) -> dict[str, bytes]:
        """The sections' bytes. Labels of a section are its offsets, those of instructions and variables addresses."""
        inside: dict[str, int] = {}
        parsed: dict[str, list[tuple[int, str]]] = {}
        for name in _SECTIONS:
            offset, items = 0, []
            for match in _NUMBERS.finditer(texts.get(f".debug_{name}", "")):
                if match[3] is not None:
                    inside[match[3]] = offset
                    continue
                size = int(match[1]) // 8
                for text in match[2].split(","):
                    items.append((size, text.strip()))
                    offset += size
            if items:
                parsed[name] = items
        return {
            name: b"".join((self._number(t, inside) & ((1 << 8 * n) - 1)).to_bytes(n, "little") for n, t in items)
            for name, items in parsed.items()
        }

    def _number(self, text: str, inside: Mapping[str, int]) -> int:
        try:
            return int(text, 0)
        except ValueError:
            pass
        label, _, more = text.partition("+")
        offset = int(more, 0) if more else 0
        if label.startswith(".debug_"):
            return offset
        if label in inside:
            return inside[label] + offset
        if label in self._labels:
            return self._labels[label] + offset
        if label not in self._symbols:
            self._symbols.append(label)
        return _VARIABLE + self._symbols.index(label) * _FUNCTION + offset

    def _instruction(self, address: int) -> tuple[str, int]:
        """The function and the number of the instruction at an address."""
        return self._names[address // _FUNCTION - 1], address % _FUNCTION // _STEP

    # ---- reading ----

    def _read(self, sections: Mapping[str, bytes]) -> None:
        described: dict[str, Any] = {
            f"debug_{name}_sec": DebugSectionDescriptor(io.BytesIO(data), f".debug_{name}", 0, len(data), 0)
            for name, data in sections.items()
        }
        described.update({f"debug_{name}_sec": None for name in (*_ABSENT, *_SECTIONS) if name not in sections})
        info = DWARFInfo(
            config=DwarfConfig(little_endian=True, machine_arch="", default_address_size=8),
            eh_frame_sec=None,
            gnu_debugaltlink_sec=None,
            **described,
        )
        for unit in info.iter_CUs():
            self._locations = LocationParser(info.location_lists()) if "loc" in sections else None
            self._expressions = DWARFExprParser(unit.structs)
            top = unit.get_top_DIE()
            for die in top.iter_children():
                self._declare(unit, die)

    def _declare(self, unit: CompileUnit, die: DIE) -> None:
        if die.tag == "DW_TAG_subprogram":
            self._function(unit, die)
        elif die.tag == "DW_TAG_variable":
            variable = self._variable(unit, die)
            if variable is not None:
                self.variables[_text(die, "DW_AT_MIPS_linkage_name") or variable.name] = variable
        elif die.tag in ("DW_TAG_namespace", "DW_TAG_module"):
            for child in die.iter_children():
                self._declare(unit, child)
        elif die.tag in _NAMED_TYPES and (name := _text(die, "DW_AT_name")):
            self.types.setdefault(name, self._type_at(die))

    def _function(self, unit: CompileUnit, die: DIE) -> None:
        name = _text(die, "DW_AT_MIPS_linkage_name") or _text(die, "DW_AT_name")
        if "DW_AT_low_pc" not in die.attributes:
            return
        linkage, _ = self._instruction(die.attributes["DW_AT_low_pc"].value)
        scope = self._scope(unit, die)
        _place_bools(self._functions[linkage], scope)
        plain = re.sub(r",(?! )", ", ", _text(die, "DW_AT_name") or name)
        self.functions[linkage] = DebugFunction(plain, scope, self._type(die), _int(die, "DW_AT_decl_line"))

    def _scope(self, unit: CompileUnit, die: DIE) -> Scope:
        span = None
        if "DW_AT_low_pc" in die.attributes and "DW_AT_high_pc" in die.attributes:
            low, high = (die.attributes[f"DW_AT_{end}_pc"].value for end in ("low", "high"))
            if die.attributes["DW_AT_high_pc"].form != "DW_FORM_addr":
                high += low
            span = (low % _FUNCTION // _STEP, high % _FUNCTION // _STEP)
        scope = Scope(span)
        for child in die.iter_children():
            if child.tag == "DW_TAG_lexical_block":
                scope.inner.append(self._scope(unit, child))
            elif child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                variable = self._variable(unit, child)
                if variable is not None:
                    scope.variables.append(variable)
            elif child.tag in _NAMED_TYPES and (name := _text(child, "DW_AT_name")):
                self.types.setdefault(name, self._type_at(child))
        return scope

    def _variable(self, unit: CompileUnit, die: DIE) -> DebugVariable | None:
        name = _text(die, "DW_AT_name")
        if not name:
            return None
        name = "::".join(_nested(name)) or name
        parameter = die.tag == "DW_TAG_formal_parameter"
        found = DebugVariable(name, self._type(die), _int(die, "DW_AT_decl_line"), parameter)
        if "DW_AT_const_value" in die.attributes:
            found.places.append((None, Constant(_int(die, "DW_AT_const_value"))))
        elif "DW_AT_location" in die.attributes and self._locations is not None:
            where = self._locations.parse_from_attribute(die.attributes["DW_AT_location"], unit["version"], die)
            for entry in [where] if isinstance(where, LocationExpr) else where or ():
                if not isinstance(entry, (LocationExpr, LocationEntry)):
                    continue
                span = None
                if isinstance(entry, LocationEntry):
                    span = (entry.begin_offset % _FUNCTION // _STEP, entry.end_offset % _FUNCTION // _STEP)
                place = self._place(entry.loc_expr)
                if place is not None:
                    found.places.append((span, place))
        elif "DW_AT_location" in die.attributes:
            place = self._place(die.attributes["DW_AT_location"].value)
            if place is not None:
                found.places.append((None, place))
        return found

    def _place(self, expression: Any) -> Place | None:
        address: int | None = None
        for op in self._expressions.parse_expr(expression):
            if op.op_name == "DW_OP_regx":
                number = op.args[0]
                return InRegister(number.to_bytes((number.bit_length() + 7) // 8, "big").decode("ascii", "replace"))
            if op.op_name == "DW_OP_addr":
                address = op.args[0]
            elif op.op_name == "DW_OP_plus_uconst" and address is not None:
                address += op.args[0]
            elif op.op_name not in ("DW_OP_stack_value", "DW_OP_xderef"):
                return None
        if address is None or address < _VARIABLE:
            return None
        number, offset = divmod(address - _VARIABLE, _FUNCTION)
        return InMemory(self._symbols[number], offset)

    # ---- types ----

    def _type(self, die: DIE) -> CType:
        """The type that an entry refers to."""
        if "DW_AT_type" not in die.attributes:
            return VOID
        return self._type_at(die.get_DIE_from_attribute("DW_AT_type"))

    def _type_at(self, die: DIE) -> CType:
        known = self._known.get(die.offset)
        if known is not None:
            return known
        name, size = _text(die, "DW_AT_name"), _int(die, "DW_AT_byte_size")
        tag = die.tag
        found: CType
        if tag == "DW_TAG_base_type":
            found = Base(name, size, _KINDS.get(_int(die, "DW_AT_encoding"), "unsigned"))
        elif tag in ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type"):
            found = pointer = Pointer("", 8, tag != "DW_TAG_pointer_type")
            self._known[die.offset] = pointer
            pointer.target = self._type(die)
            pointer.name = pointed(pointer.target.name, "&" if pointer.reference else "*")
        elif tag in ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"):
            found = structure = Struct(_readable(name) or "{...}", size)
            self._known[die.offset] = structure
            structure.members = [m for child in die.iter_children() if (m := self._member(child)) is not None]
        elif tag == "DW_TAG_enumeration_type":
            children = [c for c in die.iter_children() if c.tag == "DW_TAG_enumerator"]
            values = [_int(c, "DW_AT_const_value") for c in children]
            labels = [_enumerator(_text(c, "DW_AT_name"), name) for c in children]
            signed = min(values, default=0) < 0 or max(values, default=0) < 1 << max(8 * size - 1, 1)
            found = Enum("::".join(_nested(name)) or name, size, dict(zip(values, labels, strict=True)), signed)
        elif tag == "DW_TAG_array_type":
            found = self._array(die)
        elif tag == "DW_TAG_subroutine_type":
            found = CType("a function", 0)
        elif tag in ("DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type"):
            target = self._type(die)
            word = tag.removeprefix("DW_TAG_").removesuffix("_type")
            after = isinstance(target.plain, Pointer)
            found = Alias(f"{target.name} {word}" if after else f"{word} {target.name}", target.size, target)
        elif tag in ("DW_TAG_typedef", "DW_TAG_imported_declaration"):
            target = self._type(die)
            found = Alias(name, target.size, target)
        else:
            found = VOID if tag == "DW_TAG_unspecified_type" else CType(name or str(tag), size)
        self._known[die.offset] = found
        return found

    def _array(self, die: DIE) -> CType:
        found = self._type(die)
        ranges = [child for child in die.iter_children() if child.tag == "DW_TAG_subrange_type"]
        for one in reversed(ranges):
            bound = _int(one, "DW_AT_count") or _int(one, "DW_AT_upper_bound", -1) + 1
            found = array_of(found, bound)
        return found

    def _member(self, die: DIE) -> Member | None:
        if die.tag not in ("DW_TAG_member", "DW_TAG_inheritance") or "DW_AT_external" in die.attributes:
            return None
        where = die.attributes.get("DW_AT_data_member_location")
        offset = 0
        if where is not None:
            offset = where.value
            if not isinstance(offset, int):
                offset = next((op.args[0] for op in self._expressions.parse_expr(offset) if op.args), 0)
        kind = self._type(die)
        bits = _int(die, "DW_AT_bit_size")
        shift = 0
        if bits and "DW_AT_bit_offset" in die.attributes:
            # counted from the most significant bit of the storage unit
            shift = 8 * (_int(die, "DW_AT_byte_size") or kind.size) - _int(die, "DW_AT_bit_offset") - bits
        name = "" if die.tag == "DW_TAG_inheritance" else _text(die, "DW_AT_name")
        return Member(name, kind, offset, bits, shift)

    @cached_property
    def named_functions(self) -> dict[str, list[str]]:
        """The mangled names of the functions, by their C++ names without template arguments."""
        found: dict[str, list[str]] = {}
        for linkage, function in self.functions.items():
            found.setdefault(function.name.split("<")[0], []).append(linkage)
        return found


def _place_bools(function: PtxFunction, scope: Scope) -> None:
    """Place the bool variables for which NVRTC names no register, or only one that it copies the bool to later: in the
    register that the comparison on the line of their declaration writes, if nothing else writes it."""
    for variable in scope.variables:
        plain = variable.type.plain
        if variable.parameter or not isinstance(plain, Base) or plain.kind != "bool":
            continue
        results = [
            (number, one.operands[0].name)
            for number, one in enumerate(function.instructions)
            if one.location is not None
            and one.location.line == variable.line
            and one.opcode in ("setp", "selp")
            and isinstance(one.operands[0], Register)
        ]
        if not results or len(_writers(function, results[-1][1])) != 1:
            continue
        number, name = results[-1]
        copies = all(
            one.opcode == "selp" and _names_register(one.operands[3], name)
            for register in variable.registers()
            for one in _writers(function, register)
        )
        if not variable.places or (len(variable.places) == 1 and variable.registers() and copies):
            variable.places = [((number + 1, len(function.instructions)), InRegister(name))]
    for inner in scope.inner:
        _place_bools(function, inner)


def _writers(function: PtxFunction, name: str) -> list[Instruction]:
    """The instructions that write a register, as their first operand."""
    return [one for one in function.instructions if one.operands and _names_register(one.operands[0], name)]


def _names_register(operand: object, name: str) -> bool:
    return isinstance(operand, Register) and operand.name == name


_NAMED_TYPES = (
    "DW_TAG_base_type",
    "DW_TAG_structure_type",
    "DW_TAG_class_type",
    "DW_TAG_union_type",
    "DW_TAG_enumeration_type",
    "DW_TAG_typedef",
)


def _labels_of(module: PtxModule) -> dict[str, int]:
    """The addresses of the labels of all functions; a name in an inner scope of PTX ends with # and a number."""
    labels: dict[str, int] = {}
    for number, (name, function) in enumerate(module.functions.items()):
        start = address_of(number, 0)
        for label, place in function.labels.items():
            labels.setdefault(label.split("#")[0], start + place * _STEP)
        labels.setdefault(name, start)
    return labels


def address_of(function: int, instruction: int) -> int:
    """The address that stands for an instruction of a module's function, both by number."""
    return (function + 1) * _FUNCTION + instruction * _STEP


def _text(die: DIE, attribute: str) -> str:
    found = die.attributes.get(attribute)
    if found is None:
        return ""
    value: Any = found.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _int(die: DIE, attribute: str, default: int = 0) -> int:
    found = die.attributes.get(attribute)
    return int(found.value) if found is not None and isinstance(found.value, int) else default


def _enumerator(mangled: str, enum: str) -> str:
    """An enumerator's name: NVRTC mangles those of scoped enumerations ("_ZN5Color3redE" is Color::red)."""
    parts = _nested(mangled)
    return "::".join(parts) if parts else mangled


def _nested(mangled: str) -> list[str]:
    """The names of a nested name in the Itanium ABI's encoding; empty if it is not a plain one."""
    text = mangled.removeprefix("_ZN").removesuffix("E") if mangled.startswith("_ZN") else ""
    parts = []
    while match := re.match(r"(\d+)", text):
        size, start = int(match[1]), match.end()
        parts.append(text[start : start + size])
        text = text[start + size :]
    return [] if text else parts


def _readable(name: str) -> str:
    """The name of a structure; a lambda's is mangled."""
    return "lambda" if re.match(r"_Z.*Ul.*E\d*_$", name) else name


def instruction_numbers(function: PtxFunction) -> dict[int, int]:
    """The numbers of a function's instructions, by their ids."""
    return {id(instruction): number for number, instruction in enumerate(function.instructions)}
