"""The kinds of reports as rules of an analysis: an id, one sentence, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """kind: that of the reports. summary: what such a report means. advice: how the cause is usually fixed."""

    kind: str
    summary: str
    advice: str

    @property
    def id(self) -> str:
        """The kind in lower case, joined by hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.kind.lower()).strip("-")

    @property
    def name(self) -> str:
        """The kind in CamelCase."""
        return "".join(part[0].upper() + part[1:] for part in re.findall(r"[A-Za-z0-9]+", self.kind))


_SHARED = "Put __syncthreads() between the two accesses (__syncwarp() within a warp), or use atomics."

_RULES = (
    Rule(
        "out of bounds",
        "An access outside of the memory it was meant for.",
        "Guard the access with the array's extent, and compute indices past 2^31 in 64 bits. The report names "
        "the nearest allocation and the distance to it.",
    ),
    Rule(
        "misaligned",
        "An access at an address that is not a multiple of its size.",
        "Vector loads and stores (float4) need addresses that are multiples of their size: check the row stride and "
        "the first element's offset, or fall back to narrower accesses.",
    ),
    Rule(
        "use after free",
        "An access to memory that was freed.",
        "Keep the array alive until the stream has finished with it: wait for the stream, or call "
        "array.used_on(stream).",
    ),
    Rule("double free", "Memory was freed twice.", "Free each allocation once, by its only owner."),
    Rule(
        "write to constant memory",
        "A kernel stored to constant memory.",
        "Constant memory is read-only in kernels: write it from the host, or use global memory.",
    ),
    Rule(
        "uninitialised read",
        "A kernel read memory in which no value was ever stored.",
        "Initialise the memory (device.zeros, a store by the kernel), or do not read elements that no thread wrote.",
    ),
    Rule("shared memory race", "Two threads access one place of shared memory in no defined order.", _SHARED),
    Rule(
        "global memory race",
        "Threads of different blocks access one place of global memory in no defined order.",
        "Use atomics, a fence and a flag with release and acquire order, or two launches.",
    ),
    Rule(
        "read before cp.async wait",
        "The result of an asynchronous copy was used before the wait.",
        "Wait for the copy (__pipeline_wait_prior, cp.async.wait_group) and synchronise the block before reading.",
    ),
    Rule(
        "divergent barrier",
        "Some threads of a block did not reach the barrier that the others wait at.",
        "Move __syncthreads() out of branches and loops whose condition differs between threads; do not return "
        "before it.",
    ),
    Rule(
        "lanes missing from a warp operation",
        "A shuffle, vote or warp barrier names lanes that do not take part.",
        "Call it with all lanes of the mask active, or compute the mask before the branch.",
    ),
    Rule(
        "deadlock",
        "Threads wait for each other, and none can go on.",
        "Check that every waiting thread is released: barriers that all reach, locks that are unlocked on every path.",
    ),
    Rule(
        "hang",
        "A loop repeats and can never end.",
        "The value that the loop waits for is never stored, or is not read again: use an atomic or volatile load.",
    ),
    Rule("trap", "The kernel stopped itself with __trap().", "The kernel detected an error: see the line's condition."),
    Rule(
        "assertion",
        "An assert() in a kernel failed.",
        "See the condition in the message.",
    ),
    Rule(
        "stack overflow",
        "A thread needs more stack than there is.",
        'Recurse less deeply, or raise the limit: device.set_limit("STACK_SIZE", bytes).',
    ),
    Rule(
        "race between streams",
        "Two streams use the same memory in no defined order, and one of them writes.",
        "Order them with an event: other.wait(stream.record()).",
    ),
    Rule(
        "race on pinned memory",
        "The host and a stream use the same pinned memory at the same time.",
        "Wait for the stream or the event before the host touches the buffer.",
    ),
    Rule(
        "source changed in flight",
        "The source of an asynchronous copy changed before the copy ran.",
        "Wait for the copy before the buffer is used again.",
    ),
    Rule(
        "destination changed in flight",
        "The destination of an asynchronous copy was written before the copy ran.",
        "Wait for the copy before the buffer is used.",
    ),
    Rule(
        "result read in flight",
        "The host read the result of an asynchronous copy before the copy ran.",
        "Wait for the stream before reading.",
    ),
    Rule(
        "freed while in use",
        "Memory was freed while queued work still uses it.",
        "Free it after the work, on the same stream, or call array.used_on(stream).",
    ),
    Rule(
        "used before its allocation",
        "A stream uses memory that another stream's queued allocation has not made yet.",
        "Have the stream wait for an event recorded after the allocation.",
    ),
    Rule(
        "leak",
        "Something was still alive when its device was closed.",
        "Close it, drop the last reference, or use a with block. Leaks fail a check only if --checks names leaks.",
    ),
    Rule(
        "wrong result",
        "A kernel's result differs from the reference by more than rounding allows.",
        "Repeat the smallest failing problem with the command in the report, and look at the element it names.",
    ),
    Rule(
        "unstable result",
        "A problem failed once and then passed, so the result is not deterministic.",
        "Look for a race, or for memory that is read before it is written.",
    ),
    Rule(
        "too few problems",
        "A variant refused so many problems that it was hardly checked.",
        "Name the kind of problems that the variant takes, or let it take more.",
    ),
    Rule("compile error", "The source does not compile.", "See the compiler's message."),
    Rule("compile warning", "The compiler warns about this line.", "See the compiler's message."),
    Rule(
        "refused launch",
        "A launch was refused before anything ran: an argument or a limit is wrong.",
        "The message names the parameter or the limit, and both sides.",
    ),
    Rule("out of memory", "The device has too little memory left.", "Free unneeded arrays, or work in chunks."),
    Rule("failed script", "The script that launches the kernels failed.", "See the exception in the message."),
)

_BY_KIND = {rule.kind: rule for rule in _RULES}


def rule(kind: str) -> Rule:
    """The rule of a kind of reports; a plain one for a kind without advice of its own."""
    return _BY_KIND.get(kind) or Rule(kind, f"{kind[:1].upper()}{kind[1:]}.", "See the report.")
