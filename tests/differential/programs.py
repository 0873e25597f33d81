"""Random programs: straight-line code with data flowing between registers, guards, divergent branches, bounded loops.

A program draws its instructions from the catalogue, from all forms whose operands are in its registers. Excluded are
approximate instructions, memory, and float arithmetic without a rounding mode, which PTX allows a compiler to fuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from .catalogue import catalogue
from .forms import Form, register, statements
from .operands import Draw

# the number of registers per type; the first ones hold operands
_POOL = {"b16": 4, "b32": 6, "b64": 4, "f32": 4, "f64": 3, "pred": 4}
_LETTER = {"b16": "h", "b32": "r", "b64": "w", "f32": "x", "f64": "y", "pred": "p"}
_INPUTS = ("u32", "u32", "u64", "f32", "f32", "f64", "f16", "s32")
_GROUPS = (
    "integer arithmetic", "carry chains", "bits and shifts", "bytes and dot products", "integer comparison",
    "moves and selection", "f32 arithmetic", "f64 arithmetic", "tests and signs of floats", "float comparison",
    "f16 arithmetic", "bf16 arithmetic", "half comparison", "cvt between integers", "cvt of small formats",
    "cvt between integers and floats", "cvt between floats",
)  # fmt: skip
_WARP = ("shfl", "vote and activemask", "redux", "match")
# Driver 580's compiler miscompiles these when combined with other instructions: with a false guard, set converts the
# old value of its destination, and testp writes its destination; after a loop, set.f32.f32 returns the integer 1
# instead of 1.0; in a loop, a setp with two destinations that reads one of them computes a wrong second one.
_MISCOMPILED = re.compile(r"(set|testp)\.|setp\.\w+\.(and|or|xor)\..*\|")
# The compiler folds these into operands, or removes them if both operands are equal, which changes the bits of a NaN
# result; PTX leaves these bits unspecified.
_FOLDED = re.compile(r"(min|max|neg|abs|copysign)[\w.]*\.b?f(16|32|64)")
_NARROW = re.compile(r"fns\.")  # valid only for some operands
_FUSES = re.compile(r"(add|sub|mul)(\.ftz|\.sat)*\.(f16|bf16|f32|f64)")


@dataclass(frozen=True)
class Step:
    """An instruction with its guard; several statements if a carry passes between them."""

    text: str


@dataclass(frozen=True)
class Branch:
    """Steps that lanes skip if a condition holds for them: a predicate such as "p0", or its negation "!p0"."""

    condition: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Loop:
    """Steps that run one to eight times: the low three bits of a register plus one."""

    register: str
    body: tuple[Node, ...]


Node = Step | Branch | Loop
Program = tuple[Node, ...]


@cache
def _drawable() -> tuple[tuple[Form, ...], tuple[Form, ...]]:
    """Return the forms of one lane, and the forms of all lanes of a warp."""
    known = set(_POOL)
    alone, together = [], []
    for form in catalogue():
        if form.declare or form.outside or form.bound or not {register(k) for k in form.inputs + form.outputs} <= known:
            continue
        if len(form.outputs) > 4 or any(kind.match(form.text) for kind in (_MISCOMPILED, _FOLDED, _NARROW)):
            continue
        if form.group in _GROUPS and not _FUSES.match(form.text) and form.text.count(";") <= 3:
            alone.append(form)
        elif form.group in _WARP and form.text.endswith("0xffffffff;") and form.text.count(";") == 1:
            together.append(form)
    return tuple(alone), tuple(together)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.draw = Draw(f"program {seed}")

    def below(self, bound: int) -> int:
        return int(self.draw.below(bound, 1)[0])

    def one(self, kind: str) -> str:
        return f"{_LETTER[kind]}{self.below(_POOL[kind])}"

    def pick(self, forms: Sequence[Form]) -> Form:
        # groups differ much in size: choose a group first
        groups: dict[str, list[Form]] = {}
        for form in forms:
            groups.setdefault(form.group, []).append(form)
        names = list(groups)
        group = groups[names[self.below(len(names))]]
        return group[self.below(len(group))]

    def step(self, forms: Sequence[Form], guards: bool) -> Step:
        form = self.pick(forms)
        names = {"abcdefgh"[k]: self.one(register(kind)) for k, kind in enumerate(form.inputs)}
        for k, kind in enumerate(form.outputs):
            made = self.one(register(kind))
            while made in list(names.values())[len(form.inputs) :]:  # results must be different registers
                made = self.one(register(kind))
            names[f"d{k}"] = made
        text = re.sub(r"(?<![\w.%])(d\d|[a-h])(?!\w)", lambda match: names[match[1]], form.text)
        if guards and form.text.count(";") == 1 and self.below(4) == 0:
            text = f"@{'!' if self.below(2) else ''}{self.one('pred')} {text}"
        return Step(text)

    def nodes(self, count: int, depth: int) -> Iterator[Node]:
        alone, together = _drawable()
        while count > 0:
            what = self.below(12)
            if depth < 2 and count >= 4 and what == 0:
                size = 2 + self.below(count - 3)
                yield Branch(("!" if self.below(2) else "") + self.one("pred"), tuple(self.nodes(size, depth + 1)))
            elif depth < 2 and count >= 4 and what == 1:
                size = 2 + self.below(min(count - 3, 6))
                yield Loop(self.one("b32"), tuple(self.nodes(size, depth + 1)))
            elif depth == 0 and what == 2:
                size = 1
                yield self.step(together, guards=False)
            else:
                size = 1
                yield self.step(alone, guards=True)
            count -= size


def random_program(seed: int) -> Program:
    """Return a program of 10 to 40 instructions."""
    writer = _Writer(seed)
    return tuple(writer.nodes(10 + writer.below(31), 0))


def size(program: Sequence[Node]) -> int:
    """Return the number of instructions."""
    return sum(1 if isinstance(node, Step) else size(node.body) for node in program)


def text(program: Sequence[Node]) -> str:
    """Return the statements of a program, with labels and loop counters."""
    number = iter(range(1000))
    lines: list[str] = []

    def write(nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Step):
                lines.append(node.text)
                continue
            k = next(number)
            if isinstance(node, Branch):
                lines.append(f"@{node.condition} bra L{k};")
                write(node.body)
                lines.append(f"L{k}:")
            else:
                lines.append(f"and.b32 n{k}, {node.register}, 7; L{k}:")
                write(node.body)
                lines.append(f"setp.ne.u32 q{k}, n{k}, 0; sub.u32 n{k}, n{k}, 1; @q{k} bra L{k};")

    write(program)
    return " ".join(lines)


def form(program: Sequence[Node], name: str = "random programs") -> Form:
    """Return the form of a program: operands go to the first registers, and every register is a result."""
    places = dict.fromkeys(_POOL, 0)
    head = []
    for letter, kind in zip("abcdefgh", _INPUTS, strict=True):
        held = register(kind)
        move = held if held[0] == "f" else f"b{held[1:]}"
        head.append(f"mov.{move} {_LETTER[held]}{places[held]}, {letter};")
        places[held] += 1
    fill: dict[str, Callable[[int], str]] = {
        "b16": lambda k: f"mov.b16 h{k}, {0x3C00 + 77 * k};",
        "b32": lambda k: f"shf.l.wrap.b32 r{k}, a, b, {3 * k};",
        "b64": lambda k: f"mul.wide.u32 w{k}, b, {k + 3};",
        "f32": lambda k: f"mov.f32 x{k}, 0f{0x3F000000 + 0x123456 * k:08X};",
        "f64": lambda k: f"mov.f64 y{k}, 0d{0x3FF0000000000000 + 0x123456789AB * k:016X};",
        "pred": lambda k: f"and.b32 r5, a, {1 << k}; setp.ne.u32 p{k}, r5, 0;",
    }
    order = ("pred", "b16", "b32", "b64", "f32", "f64")
    for kind in order:
        head += [fill[kind](k) for k in range(places[kind], _POOL[kind])]
    registers = [(kind, f"{_LETTER[kind]}{k}") for kind in order for k in range(_POOL[kind])]
    tail = [f"mov.{kind} d{number}, {name};" for number, (kind, name) in enumerate(registers)]
    declare = " ".join(
        f".reg .{kind} {', '.join(f'{_LETTER[kind]}{k}' for k in range(count))};" for kind, count in _POOL.items()
    )
    body = text(program)
    loops = sorted({int(n) for n in re.findall(r"\bL(\d+):", body)})
    if loops:
        declare += f" .reg .b32 {', '.join(f'n{k}' for k in loops)}; .reg .pred {', '.join(f'q{k}' for k in loops)};"
    whole = " ".join([*head, body, *tail])
    outputs = " ".join(kind for kind, _ in registers)
    return statements(name, whole, " ".join(_INPUTS), outputs, declare=declare)
