"""Shrinks a program that differs: fewer instructions, then one lane's operands, then fewer bits of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .forms import BLOCK
from .operands import Words
from .programs import Branch, Node, Program, Step

Differs = Callable[[Program, Words], bool]


def smaller(program: Program) -> Iterator[Program]:
    """Yield smaller programs: without a run of nodes (long runs first), with a branch or loop replaced by its body, and
    with one node made smaller."""
    count = len(program)
    length = count
    while length:
        for start in range(0, count - length + 1, max(length // 2, 1)):
            yield program[:start] + program[start + length :]
        length //= 2
    for at, node in enumerate(program):
        if isinstance(node, Step):
            if node.text.startswith("@"):
                yield (*program[:at], Step(node.text.partition(" ")[2]), *program[at + 1 :])
            continue
        yield (*program[:at], *node.body, *program[at + 1 :])
        for body in smaller(node.body):
            changed: Node = (
                Branch(node.condition, body) if isinstance(node, Branch) else type(node)(node.register, body)
            )
            yield (*program[:at], changed, *program[at + 1 :])


def shrink_program(program: Program, operands: Words, differs: Differs) -> Program:
    """Return a program from which no part can be removed without losing the difference."""
    found = True
    while found:
        found = False
        for candidate in smaller(program):
            if differs(candidate, operands):
                program, found = candidate, True
                break
    return program


def shrink_operands(program: Program, operands: Words, wrong: int, differs: Differs) -> Words:
    """Return operands with which the difference remains: one lane's operands in all lanes, with each bit cleared that
    is not needed, from the top bit down. If one lane's operands are not enough, return those of its block."""
    same = np.repeat(operands[:, wrong : wrong + 1], BLOCK, axis=1)
    if not differs(program, same):  # needs several lanes
        start = wrong // BLOCK * BLOCK
        return operands[:, start : start + BLOCK]
    for row in range(len(same)):
        value = int(same[row, 0])
        for replacement in (0, 1, value & 0xFF, value & 0xFFFF, value & 0xFFFFFFFF):
            simpler = same.copy()
            simpler[row] = replacement
            if replacement < value and differs(program, simpler):
                same, value = simpler, replacement
                break
        for bit in reversed(range(value.bit_length())):
            if value >> bit & 1:
                simpler = same.copy()
                simpler[row] = value & ~(1 << bit)
                if differs(program, simpler):
                    same, value = simpler, value & ~(1 << bit)
    return same


def shrink(program: Program, operands: Words, wrong: int, differs: Differs) -> tuple[Program, Words]:
    """Return the minimal program and operands. differs: returns whether a program differs. wrong: a lane in which it
    differs."""
    program = shrink_program(program, operands, differs)
    return program, shrink_operands(program, operands, wrong, differs)
