"""The check of an instruction's operands against its signature, before it is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from cudakit.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    PtxError,
    Register,
    Special,
    Symbol,
    Vector,
)
from cudakit.sim.ptx.opcodes import name_of, row_of, spaces_of
from cudakit.sim.ptx.signatures import SIGNATURES, is_vector
from cudakit.sim.ptx.types import bits_of, fits, fits_wider, literal_fits, vector_type


def check_operands(instruction: Instruction, space_of: Callable[[str], str]) -> None:
    """Raise PtxError if the operands do not fit the instruction. ``space_of`` returns the state space of a symbol,
    "func" for a function and "" for an unknown one."""
    name = name_of(instruction)
    if name not in SIGNATURES and instruction.opcode not in SIGNATURES:
        return
    shapes = tuple([_shape(operand, space_of) for operand in instruction.operands])
    wrong = _wrong(name, instruction.opcode, instruction.modifiers, shapes)
    if wrong:
        raise PtxError(f"{instruction.name}: {wrong}")


def name_space(instruction: Instruction, space_of: Callable[[str], str]) -> None:
    """Add the state space to a generic access of a variable by its name: that of the variable."""
    memory = row_of(instruction).memory
    if memory is None or not instruction.modifiers or spaces_of(instruction):
        return
    for place in {memory.reads, memory.writes}:
        operand = instruction.operands[place] if place is not None and place < len(instruction.operands) else None
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            space = space_of(operand.base.name)
            if space in ("global", "shared", "local"):
                *first, last = instruction.modifiers
                instruction.modifiers = (*first, space, last)


# An operand's shape: its kind, then its properties.
_Shape = tuple[object, ...]


def _shape(operand: Operand | None, space_of: Callable[[str], str]) -> _Shape:
    if isinstance(operand, Register):
        return ("register", operand.type)
    if isinstance(operand, Immediate):
        return ("literal", operand.type, operand.bits)
    if isinstance(operand, Address):
        base = operand.base
        return ("address", *(_shape(base, space_of) if base is not None else ("absolute",)), operand.offset == 0)
    if isinstance(operand, Vector):
        return ("vector", tuple(_shape(element, space_of) for element in operand.elements))
    if isinstance(operand, Symbol):
        return ("symbol", space_of(operand.name))
    if isinstance(operand, Pair):
        return ("pair", operand.first and operand.first.type, operand.second and operand.second.type)
    if isinstance(operand, Negated):
        return ("negated",)
    if isinstance(operand, Special):
        return ("special", operand.name)
    if isinstance(operand, tuple):
        return ("map", *(_shape(part, space_of) for part in operand))
    return ("label",) if isinstance(operand, Label) else ("sink",) if operand is None else ("other",)


@lru_cache(maxsize=8192)
def _wrong(name: str, opcode: str, modifiers: tuple[str, ...], shapes: tuple[_Shape, ...]) -> str:
    """The reason why operands do not fit an instruction; "" if they fit."""
    instruction = Instruction(opcode, modifiers, ())
    text = SIGNATURES.get(name) or SIGNATURES[opcode]
    if callable(text):
        text = text(modifiers)
    kind = next((m for m in reversed(modifiers) if bits_of(m)), "")
    if opcode == "mov":
        return "" if is_vector(modifiers) else _wrong_move(kind, shapes)
    counts = []
    for signature in text.split(";"):
        slots = signature.split()
        counts.append(len(slots))
        if len(slots) == len(shapes):
            break
    else:
        return f"it takes {' or '.join(map(str, sorted({*counts})))} operands, got {len(shapes)}"
    spaces = spaces_of(instruction)
    if "param" in (space.partition("::")[0] for space in spaces) and _ORDERS & {*modifiers}:
        return "parameters have no memory order"
    place = 0
    for number, (slot, shape) in enumerate(zip(slots, shapes, strict=True), 1):
        space = spaces[min(place, len(spaces) - 1)].partition("::")[0] if spaces else ""
        # an mbarrier is always in shared memory
        place += slot == "@" or slot[0] == "M"
        wrongs = [_mismatch(part, shape, space) for part in slot.replace("$", kind or "b32").split("/")]
        if all(wrongs):
            return f"operand {number} {wrongs[0]}"
    return ""


def _mismatch(slot: str, shape: _Shape, space: str) -> str:
    if slot[0] == "@":
        return _wrong_address(shape, slot[1:] or space)
    if slot[0] == "M":
        return _wrong_map(int(slot[1:]), shape)
    if slot == "&":
        return _wrong_symbol(shape, space)
    if slot[0] == "#":
        return _wrong_literal(slot[1:], shape)
    if slot == "p":
        literal = shape[0] == "literal" and shape[1] not in _FLOATS
        return "" if literal or shape[0] == "negated" or shape == ("register", "pred") else "must be a predicate"
    if slot == "L":
        return "" if shape[0] == "label" else "must be a label"
    if slot[0] == "{":
        return _wrong_vector(slot[1:-1], shape)
    return _wrong_value(slot, shape)


def _wrong_symbol(shape: _Shape, space: str) -> str:
    """The reason why an operand is not the address of a variable, with or without an offset."""
    # [name] is an address without an offset
    sum_ = shape[:2] == ("address", "symbol") and not shape[3]
    found = shape[2] if sum_ else shape[1] if shape[0] == "symbol" else ""
    return "" if found and found == (space or "shared") else f"must be a register or a variable of .{space}"


def _wrong_move(kind: str, shapes: tuple[_Shape, ...]) -> str:
    """mov also takes special registers and addresses of variables, and packs and unpacks vectors."""
    target, source = shapes
    if kind == "b128" or not kind:
        return ""
    vectors = [shape for shape in shapes if shape[0] == "vector"]
    if vectors:
        return _wrong_packing(kind, target, source)
    wrong = _wrong_value(f"={kind}", target)
    if wrong:
        return f"operand 1 {wrong}"
    if source[0] == "special":
        return (
            "" if special_fits(str(source[1]), kind) else f"operand 2 is a special register that does not fit .{kind}"
        )
    if source[0] == "symbol" or (source[:2] == ("address", "symbol") and not source[3]):
        space = str(source[1] if source[0] == "symbol" else source[2])
        if space == "func" and source[0] == "address":
            return "operand 2 is the address of a function, which has no offset"
        whole = bits_of(kind) == 64 or space in ("shared", "local", "param")
        return "" if whole and kind[0] in "bus" else f"operand 2 is an address, which does not fit .{kind}"
    if source[:2] == ("address", "register") and not source[3]:
        source = source[1:3]
    if kind == "pred":
        wrong = _mismatch("p", source, "")
    else:
        wrong = _wrong_value(kind, source)
    return f"operand 2 {wrong}" if wrong else ""


def _wrong_packing(kind: str, target: _Shape, source: _Shape) -> str:
    vector, scalar = (target, source) if target[0] == "vector" else (source, target)
    if scalar[0] == "vector":
        return "either operand may be a vector, not both"
    if kind[0] != "b":
        return f"a vector is packed into .b{bits_of(kind)}, not .{kind}"
    elements = _elements(vector)
    if len(elements) not in (1, 2, 4, 8):
        return f"no vector has {len(elements)} elements"
    written = "=" if vector is target else ""
    wrong = _wrong_vector(f"{written}b{bits_of(kind) // len(elements)}{'?' if written else ''}", vector)
    if wrong:
        return f"the vector {wrong}"
    wrong = _wrong_value(f"{'' if written else '='}{kind}", scalar)
    return f"the other operand {wrong}" if wrong else ""


def special_fits(name: str, kind: str) -> bool:
    """Whether a special register can be an operand of an integer type."""
    if "explicit_cluster" in name:
        return kind == "pred"
    wide = name.endswith("64") or name in ("%globaltimer", "%gridid", "%current_graph_exec")
    return kind[0] in "bus" and bits_of(kind) in ((64,) if wide else (16, 32))


_FLOATS = ("f32", "f64")
_ORDERS = frozenset(("volatile", "relaxed", "acquire", "release"))
_MATCH = re.compile(r"(=?)(~?)([\w]+)([!?]?)(\|[pP])?")


def _wrong_value(slot: str, shape: _Shape) -> str:
    match = _MATCH.fullmatch(slot)
    assert match is not None, slot
    written, wider, kind, mark, pair = match.groups()
    if pair and shape[0] == "pair":
        first, second = shape[1], shape[2]
        if first is None and mark != "?":
            return "must be a register, not _"
        if second != "pred" and (second is not None or pair == "|P"):
            return "must have a predicate after |"
        shape = ("register", first) if first is not None else ("sink",)
    if shape[0] == "sink":
        return "" if mark == "?" else "cannot be _"
    if shape[0] == "vector" and shape[1] == (("register", "b64"),) * 2 and (kind == "b128" or wider):
        # registers of 128 bits are pairs of 64; the builder refuses them if they are not simulated here
        return ""
    if shape[0] == "vector" and wider and len(elements := _elements(shape)) == 1:
        # loads and stores also take one register in braces
        shape = elements[0]
    if shape[0] == "literal" and not written and mark != "!":
        return "" if literal_fits(str(shape[1]), kind) else f"is a literal that does not fit .{kind}"
    if shape[0] != "register":
        return f"must be a register of .{kind}"
    holds = fits_wider if wider else fits
    return "" if holds(str(shape[1]), kind) else f"is a register of .{shape[1]}, which does not fit .{kind}"


def _elements(vector: _Shape) -> tuple[_Shape, ...]:
    found = vector[1]
    assert isinstance(found, tuple)
    return found


def _wrong_vector(slot: str, shape: _Shape) -> str:
    if shape[0] == "sink" and slot[-1] == "?" and slot[0] == "=":
        return ""
    if shape[0] != "vector":
        return "must be a vector in braces"
    elements = _elements(shape)
    match = _MATCH.fullmatch(slot)
    assert match is not None, slot
    written, wider, kind, mark, _ = match.groups()
    types = [str(element[1]) for element in elements if element[0] == "register"]
    if types:
        joined = vector_type(types)
        if not joined:
            return "is a vector of registers of different types"
        if not vector_type(_element_types(elements, bits_of(types[0]))):
            return "is a vector of integers and floats"
        if not (fits_wider if wider else fits)(joined, kind):
            return f"is a vector of .{joined}, which does not fit .{kind}"
    elif written:
        return "must contain a register"
    elif len({element[1] in _FLOATS for element in elements if element[0] == "literal"}) > 1:
        return "is a vector of integers and floats"
    for element in elements:
        if element[0] == "register" or (element[0] == "sink" and mark == "?"):
            continue
        wrong = _wrong_value(f"{written}{wider}{kind}{mark}", element)
        if wrong:
            return f"has an element that {wrong}"
    return ""


def _element_types(elements: tuple[_Shape, ...], bits: int) -> list[str]:
    """The types of the registers in a vector, and of its literals in ``bits`` bits."""
    found = []
    for element in elements:
        if element[0] == "register":
            found.append(str(element[1]))
        elif element[0] == "literal":
            found.append(f"{'f' if element[1] in _FLOATS else 's'}{bits}")
    return found


def _wrong_literal(allowed: str, shape: _Shape) -> str:
    if shape[0] != "literal" or shape[1] in _FLOATS:
        return "must be a literal integer"
    value = shape[2]
    assert isinstance(value, int)
    allowed, _, factor = allowed.partition("%")
    if factor and value % int(factor):
        return f"must be a multiple of {factor}, got {value}"
    if ".." in allowed:
        low, high = map(int, allowed.split(".."))
        return "" if low <= value <= high else f"must be {low} to {high}, got {value}"
    if allowed and str(value) not in allowed.split(","):
        return f"must be {allowed.replace(',', ' or ')}, got {value}"
    return ""


def _wrong_map(rank: int, shape: _Shape) -> str:
    """The reason why an operand is not [map, {coordinates}]."""
    if shape[0] != "map" or len(shape) != 3:
        return f"must be a tensor map and its coordinates, such as [%rd1, {{{', '.join('xyzwv'[:rank])}}}]"
    at, coordinates = shape[1:]
    assert isinstance(at, tuple)
    assert isinstance(coordinates, tuple)
    if not at[-1]:
        return "has a tensor map with an offset: add it to the register"
    wrong = _wrong_address(at, "global")
    if wrong:
        return f"has a tensor map that {wrong}"
    count = len(_elements(coordinates)) if coordinates[0] == "vector" else 0
    if count != rank:
        return f"must have {rank} coordinates in braces, got {count}"
    wrong = _wrong_vector("s32", coordinates)
    return f"has coordinates: it {wrong}" if wrong else ""


def _wrong_address(shape: _Shape, space: str) -> str:
    if shape[0] != "address":
        return "must be an address in brackets"
    base, detail = shape[1], shape[2] if len(shape) > 2 else ""
    if base == "absolute":
        return "" if space == "local" else "is a constant address, which only .local has"
    if base == "symbol":
        allowed = {"": ("global", "shared", "local"), "generic": ("shared",)}.get(space, (space,))
        if detail in allowed:
            return ""
        return f"is a variable of .{detail}, not of .{allowed[0]}" if detail else "is not a variable"
    if base != "register":
        return "must have a register or a variable as its base"
    bits = bits_of(str(detail))
    if str(detail)[0] not in "bus" or bits < 32:
        return f"has a base of .{detail}: addresses are integers of 32 or 64 bits"
    if bits == 32 and space not in ("shared", "local", "const", "param"):
        return "has a base of 32 bits: addresses of this state space have 64"
    return ""
