"""Changes of PTX texts, drawn from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(
    r'"[^"\n]*"|0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?|%?[\w$]+|::|\s+|.', re.DOTALL
)
_TYPES = ["pred", *(f"{letter}{bits}" for letter in "bsuf" for bits in (8, 16, 32, 64)), "b128"]
_TYPES += ["f16x2", "bf16", "bf16x2", "tf32", "e4m3x2", "u16x2", "f32x2", "b1", "texref"]
_MODIFIERS = [
    *("sat", "cc", "rn", "rz", "ftz", "approx", "full", "lo", "hi", "wide", "global", "shared", "local", "const"),
    *("param", "v2", "v4", "v8", "volatile", "relaxed", "acquire", "release", "gpu", "cta", "sys", "sync", "aligned"),
    *("uni", "nc", "ca", "cg", "lt", "eq", "num", "ltu", "and", "or", "add", "exch", "cas", "idx", "all", "ballot"),
    *("row", "col", "m16n8k16", "x4", "trans", "to", "shared::cta", "shared::cluster", "L2::cache_hint", "relu"),
]
_NUMBERS = ["0", "1", "-1", "3", "7", "31", "32", "255", "4096", "65536", "-2147483648", "4294967295", "4294967296"]
_NUMBERS += ["18446744073709551615", "18446744073709551616", "9" * 40, "0x", "0xFFFFFFFFFFFFFFFFU", "08", "1e400"]
_NUMBERS += [
    "1.0",
    "0f3F800000",
    "0d3FF0000000000000",
    "0f7FC00000",
    "1/0",
    "1<<64",
    "(1",
    "WARP_SZ",
    "-0",
    "~5",
    "4.4",
]
_OPERANDS = ["%p1", "%r1", "%rd1", "%f1", "%fd1", "%rs1", "%tid.x", "%clock64", "%laneid", "_", "{%r1, %r2}", "{}"]
_OPERANDS += ["%r1|%p1", "!%p1", "[%rd1]", "[%rd1+4]", "[0]", "missing", "%missing", "%tid", "%r1+4", "{%r1, {%r2}}"]
_OPERANDS += [
    "[%rd1, {%r1}]",
    "%cc.cf",
    "%r999999999999999999999",
    "%envreg99",
    "generic(buffer)",
    "buffer",
    "buffer+4",
]
_JUNK = ["?", "\\", "\0", "é", "µ", "\u2028", '"', "/*", "//", "#", "'", "`", "\x7f", "\U0001f600", "٣", "²"]
_STATEMENTS = [
    ".reg .b32 %r<5>;",
    ".reg .f64 %r1;",
    ".local .b8 big[600000];",
    ".shared .b8 more[60000];",
    ".shared .align 3 .b8 odd[4];",
    ".global .u32 inside = 1;",
    ".loc 1 2;",
    ".pragma 5;",
    "bra nowhere;",
    "bar.sync 16;",
    "call nothing;",
    "ret",
    "L: L: ret;",
    "nonsense.u32 %r1, %r2;",
    ".reg .v2 .f32 pair;",
    "@%r1 ret;",
    ".const .b8 bank[70000];",
    ".entry inner() { ret; }",
]
_DIRECTIVES = [
    ".version 99.9",
    ".version 3",
    ".target sm_10",
    ".target sm_90",
    ".target compute_90",
    ".address_size 32",
    ".maxntid 0",
    ".maxntid 1,2,3,4",
    ".reqntid 99999",
    ".const .b8 bank[70000];",
    ".global .align 4 .b8 data[8] = {1, 2, 3, 4, 5, 6, 7, 8, 9};",
    ".global .u64 pointer = missing;",
    ".alias one, two;",
    ".func lonely;",
    ".visible .entry k() { ret; }",
    ".extern .func (.param .b32 r) other (.param .b64 p);",
    ".global .f32 pi = 3;",
    ".global .b8 huge[9999999999999];",
    ".shared .align 16 .b8 fixed[100];",
    '.file 1 "x"',
    ".section .debug_str { .b8 1 }",
]


def tokens_of(text: str) -> list[str]:
    """The tokens of a text, and the space between them; joined, they are the text."""
    return _TOKEN.findall(text)


def mutant(texts: Sequence[str], seed: int) -> str:
    """The mutant of this number: one of the texts with one change, sometimes with two or three."""
    draw = random.Random(seed)
    text = texts[draw.randrange(len(texts))]
    for _ in range(draw.choice((1, 1, 1, 1, 1, 2, 3))):
        text = draw.choice(_CHANGES)(text, draw)
    return text


Change = Callable[[str, random.Random], str]


def _at(draw: random.Random, places: Sequence[int]) -> int:
    return places[draw.randrange(len(places))] if places else -1


def _tokens(text: str, draw: random.Random) -> str:
    """Delete, duplicate or swap tokens."""
    parts = tokens_of(text)
    places = [n for n, part in enumerate(parts) if not part.isspace()]
    at, other = _at(draw, places), _at(draw, places)
    if at < 0:
        return text
    kind = draw.randrange(4)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts.insert(at, parts[at] + draw.choice(("", " ")))
    elif kind == 2:
        parts[at], parts[other] = parts[other], parts[at]
    else:
        near = places[min(places.index(at) + 1, len(places) - 1)]
        parts[at], parts[near] = parts[near], parts[at]
    return "".join(parts)


def _replaced(text: str, draw: random.Random, found: Callable[[str], bool], make: Callable[[str], str]) -> str:
    """Replace one of the tokens for which ``found`` is true."""
    parts = tokens_of(text)
    at = _at(draw, [n for n, part in enumerate(parts) if found(part)])
    if at >= 0:
        parts[at] = make(parts[at])
    return "".join(parts)


def _number(text: str, draw: random.Random) -> str:
    return _replaced(text, draw, lambda part: part[0].isdigit(), lambda part: draw.choice(_NUMBERS))


def _is_register(part: str) -> bool:
    return part[0] == "%" and len(part) > 1


def _register(text: str, draw: random.Random) -> str:
    names = sorted({part for part in tokens_of(text) if _is_register(part)})
    known = draw.random() < 0.6
    return _replaced(text, draw, _is_register, lambda part: draw.choice(names if known and names else _OPERANDS))


def _operand(text: str, draw: random.Random) -> str:
    """Replace a whole operand, or add or remove one."""
    lines = text.split("\n")
    at = _at(draw, [n for n, line in enumerate(lines) if re.match(r"\s*(@!?\S+\s+)?[a-z]\S*\s+\S.*;", line)])
    if at < 0:
        return text
    head, _, tail = lines[at].strip().partition(" ")
    if head[0] == "@":
        more, _, tail = tail.strip().partition(" ")
        head = f"{head} {more}"
    operands = re.split(r",\s*(?![^{\[(]*[}\])])", tail.partition(";")[0])
    place, kind = draw.randrange(len(operands)), draw.randrange(5)
    if kind < 3:
        operands[place] = draw.choice((draw.choice(_OPERANDS), draw.choice(_NUMBERS), draw.choice(operands)))
    elif kind == 3:
        del operands[place]
    else:
        operands.insert(place, draw.choice(operands + _OPERANDS))
    lines[at] = f"{head} {', '.join(operands)};"
    return "\n".join(lines)


def _type(text: str, draw: random.Random) -> str:
    """Change a type or a modifier into another one."""
    parts = tokens_of(text)
    after = [n for n in range(1, len(parts)) if parts[n - 1] in (".", "::") and (parts[n][0].isalpha())]
    at = _at(draw, after)
    if at < 0:
        return text
    if parts[at] in _TYPES or draw.random() < 0.2:
        parts[at] = draw.choice(_TYPES)
    else:
        parts[at] = draw.choice((draw.choice(_MODIFIERS), parts[_at(draw, after)]))
    return "".join(parts)


def _modifier(text: str, draw: random.Random) -> str:
    """Add or remove a modifier of an instruction."""
    spots = list(re.finditer(r"(?m)(?<=[\w:])\.[a-zA-Z][\w:]*", text))
    if not spots:
        return text
    spot = draw.choice(spots)
    if draw.random() < 0.5:
        return text[: spot.start()] + text[spot.end() :]
    return text[: spot.start()] + "." + draw.choice(_MODIFIERS + _TYPES) + text[spot.start() :]


def _opcode(text: str, draw: random.Random) -> str:
    """Replace the opcode of an instruction by that of another one."""
    spots = list(re.finditer(r"(?m)(?<=^)\s*[a-z][a-z0-9_]*(?=[. ;])|(?<=; )[a-z][a-z0-9_]*(?=[. ;])", text))
    if len(spots) < 2:
        return text
    spot, other = draw.choice(spots), draw.choice(spots)
    return text[: spot.start()] + other.group() + text[spot.end() :]


def _punctuation(text: str, draw: random.Random) -> str:
    def other(part: str) -> str:
        return draw.choice(("", "", "", draw.choice("{}[]();,:@!|<>+-*=")))

    return _replaced(text, draw, lambda part: part in "{}[]();,:@!|<>+-", other)


def _line(text: str, draw: random.Random) -> str:
    """Delete, duplicate or move a line: declarations, labels and instructions."""
    lines = text.split("\n")
    at = _at(draw, [n for n, line in enumerate(lines) if line.strip()])
    if at < 0:
        return text
    kind = draw.randrange(4)
    line = lines[at]
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, line)
    elif kind == 2:
        del lines[at]
        lines.insert(draw.randrange(len(lines) + 1), line)
    else:
        lines.insert(draw.randrange(len(lines) + 1), line)
    return "\n".join(lines)


def _statement(text: str, draw: random.Random) -> str:
    """Add a line: a wrong statement, a guard, or a directive of the module."""
    lines = text.split("\n")
    if draw.random() < 0.5:
        inside = [n for n, line in enumerate(lines) if line.rstrip().endswith(";")]
        lines.insert(_at(draw, inside) + 1, draw.choice(_STATEMENTS))
    else:
        lines.insert(draw.choice((0, 3, len(lines), draw.randrange(len(lines) + 1))), draw.choice(_DIRECTIVES))
    return "\n".join(lines)


def _guard(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    at = _at(draw, [n for n, line in enumerate(lines) if re.match(r"\s*[a-z]\S*.*;", line)])
    if at >= 0:
        lines[at] = draw.choice(("@%p1 ", "@!%p1 ", "@%r1 ", "@%tid.x ", "@missing ", "@1 ", "@")) + lines[at].strip()
    return "\n".join(lines)


def _nested(text: str, draw: random.Random) -> str:
    """Deep nesting and long names."""
    depth = draw.choice((50, 400, 5000, 20000))
    kind = draw.randrange(7)
    if kind == 0:
        return _replaced(text, draw, lambda part: part == ";", lambda part: ";" + "{" * depth + "}" * depth)
    if kind == 1:
        return _replaced(text, draw, lambda part: part[0].isdigit(), lambda part: "(" * depth + part + ")" * depth)
    if kind == 2:
        return _replaced(text, draw, lambda part: part[0].isdigit(), lambda part: "-~" * depth + part)
    if kind == 3:
        return _replaced(text, draw, _is_register, lambda part: "{" * depth + part + "}" * depth)
    if kind == 4:
        return _replaced(text, draw, lambda part: part[0] == "." or part.isalpha(), lambda part: part + "x" * depth)
    if kind == 5:
        return text + f"\n.global .u32 deep = {'{' * depth}1{'}' * depth};\n"
    return _replaced(text, draw, lambda part: part[0].isdigit(), lambda part: part + "+1" * depth)


def _bytes(text: str, draw: random.Random) -> str:
    """Add characters that are not PTX, or cut the text."""
    at = draw.randrange(len(text) + 1)
    if draw.random() < 0.25:
        return text[:at]
    return text[:at] + draw.choice(_JUNK) + text[at:]


# most changes leave texts that can be parsed, so that types and forms are tested
_CHANGES: list[Change] = [_register, _operand, _type] * 4 + [_modifier, _opcode, _number, _line, _statement] * 2
_CHANGES += [_tokens, _punctuation, _guard, _nested, _bytes]
