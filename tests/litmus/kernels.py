"""A litmus test as PTX: many instances of it in one launch.

The threads of a group of blocks run one instance of the test per lane and round. Each location is an array with one
element per instance, so locations are in different cache lines. A round begins when all threads of an instance have
arrived at a counter, which is relaxed and orders nothing, then waits a random time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .program import UNSET, Instruction, Variant

HEADER = ".version 8.0\n.target sm_90\n.address_size 64"
WARP = 32
# bits of the parameter `mode`
ALIGN, DELAY, PRELOAD, STRESS = 1, 2, 4, 8
_POLLS = 3000  # the most polls of the counter of an instance
_STRESSES = 3000  # accesses per thread of a block that only loads memory


@dataclass(frozen=True)
class Layout:
    """The launch of one kernel. groups: groups of blocks; sets: groups of warps per group of blocks; rounds: instances
    per group of threads."""

    variant: Variant
    groups: int = 1
    sets: int = 1
    rounds: int = 1

    @property
    def blocks(self) -> int:
        """Blocks per group."""
        return 1 + max(place.block for place in self.variant.places)

    @property
    def warps(self) -> int:
        return 1 + max(place.warp for place in self.variant.places)

    @property
    def lanes(self) -> int:
        return 1 + max(place.lane for place in self.variant.places)

    @property
    def block(self) -> int:
        """Threads per block."""
        return WARP * self.warps * self.sets

    @property
    def per_block(self) -> int:
        """Instances per group of blocks and round."""
        return self.sets * (WARP // self.lanes)

    @property
    def instances(self) -> int:
        return self.groups * self.per_block * self.rounds

    @property
    def testers(self) -> int:
        """Blocks that run instances."""
        return self.groups * self.blocks

    @property
    def length(self) -> int:
        """Elements per location and register: a power of two."""
        return 1 << (self.instances - 1).bit_length()


def module(entries: Sequence[str]) -> str:
    return "\n".join([HEADER, *entries])


def entry(name: str, layout: Layout, order: Sequence[int], *, harness: bool = True) -> str:
    """Return a kernel (memory, registers, counters, scratch memory, odd multiplier, mode, seed). order: that of the
    threads' code: on the simulated device, lanes at lower addresses run first. harness: whether `mode` has an effect.
    """
    variant = layout.variant
    shared = [one for one in variant.locations if one in variant.shared.split()]
    if {*shared} & {*variant.final.split()}:
        raise ValueError(f"{variant.name}: the last value of a location in shared memory is not recorded")
    remote = bool(shared) and variant.cluster
    whole = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if remote else "bar.sync 0;"
    lines = [
        f".visible .entry {name}(.param .u64 pmemory, .param .u64 pregisters, .param .u64 pcounters,",
        "    .param .u64 pscratch, .param .u32 pmultiplier, .param .u32 pmode, .param .u32 pseed)",
        "{",
        ".reg .b64 %memory, %registers, %counters, %scratch, %counter, %out, %wide, %a<8>;",
        ".reg .b32 %multiplier, %mode, %seed, %cta, %thread, %lane, %warp, %block, %role, %group, %round, %instance;",
        ".reg .b32 %index, %left, %t, %u, %sink, %sm<8>, %far<8>, r<10>;",
        ".reg .pred %p, %q, %align, %delay, %preload;",
        *([f".shared .align 16 .b8 cells[{4 * layout.per_block * len(shared)}];"] if shared else []),
        "ld.param.u64 %memory, [pmemory]; ld.param.u64 %registers, [pregisters];",
        "ld.param.u64 %counters, [pcounters]; ld.param.u64 %scratch, [pscratch];",
        *(f"cvta.to.global.u64 {one}, {one};" for one in ("%memory", "%registers", "%counters", "%scratch")),
        "ld.param.u32 %multiplier, [pmultiplier]; ld.param.u32 %mode, [pmode]; ld.param.u32 %seed, [pseed];",
        "mov.u32 %cta, %ctaid.x; mov.u32 %thread, %tid.x; mov.u32 %sink, 0;",
        *([f"setp.ge.u32 %p, %cta, {layout.testers}; @%p bra STRESS;"] if harness else []),
        *_places(layout, shared, remote),
        "mov.u32 %round, 0;",
        "ROUND:",
        *_addresses(layout, shared),
    ]
    if shared or any(one.opcode in ("bar.sync", "bar.arrive") for thread in variant.threads for one in thread):
        # the last round has ended: an early arrival would count for its barriers
        lines.append(whole)
    if shared:
        lines += ["setp.ne.u32 %p, %role, 0; @%p bra READY;"]
        lines += [f"st.shared.u32 [%sm{k}], 0;" for k in range(len(shared))]
        lines += ["READY:", whole]
    lines += [f"setp.ge.u32 %p, %role, {len(variant.places)}; @%p bra DONE;"]
    if harness:
        lines += _before(layout, shared)
    lines += [f"setp.eq.u32 %p, %role, {k}; @%p bra ROLE{k};" for k in order]
    for k in order:
        lines += _role(k, layout, shared, remote)
    lines += [
        "DONE:",
        "bar.warp.sync 0xffffffff;",
        f"add.u32 %round, %round, 1; setp.lt.u32 %p, %round, {layout.rounds}; @%p bra ROUND;",
        *([whole] if remote else []),
        # keeps the loads of PRELOAD
        "setp.eq.u32 %p, %sink, 0xffffffff; @%p st.global.u32 [%scratch], %sink;",
        "ret;",
        *(_stress() if harness else []),
        "}",
    ]
    return "\n".join(lines)


def _places(layout: Layout, shared: Sequence[str], remote: bool) -> Iterator[str]:
    """Yield the lines that compute each thread's role, its instance within a round, and addresses in shared memory."""
    places = layout.variant.places
    yield f"rem.u32 %block, %cta, {layout.blocks}; div.u32 %group, %cta, {layout.blocks};"
    yield f"and.b32 %lane, %thread, {WARP - 1}; shr.u32 %warp, %thread, 5;"
    yield f"div.u32 %t, %warp, {layout.warps}; rem.u32 %warp, %warp, {layout.warps};"
    yield f"div.u32 %u, %lane, {layout.lanes}; rem.u32 %lane, %lane, {layout.lanes};"
    yield f"setp.ge.u32 %q, %u, {WARP // layout.lanes};"
    yield f"mad.lo.u32 %t, %t, {WARP // layout.lanes}, %u;"
    for k in range(len(shared)):
        yield f"mov.u32 %sm{k}, cells; mad.lo.u32 %sm{k}, %t, 4, %sm{k};"
        yield f"add.u32 %sm{k}, %sm{k}, {4 * layout.per_block * k};"
        if remote:
            yield f"mapa.shared::cluster.u32 %far{k}, %sm{k}, 0;"
    yield f"mad.lo.u32 %group, %group, {layout.per_block}, %t;"
    yield f"mad.lo.u32 %t, %block, {layout.warps}, %warp; mad.lo.u32 %t, %t, {layout.lanes}, %lane;"
    yield f"mov.u32 %role, {len(places)};"
    for k, place in enumerate(places):
        at = (place.block * layout.warps + place.warp) * layout.lanes + place.lane
        yield f"setp.eq.u32 %p, %t, {at}; @%p mov.u32 %role, {k};"
    # lanes left over
    yield f"@%q mov.u32 %role, {len(places)};"


def _addresses(layout: Layout, shared: Sequence[str]) -> Iterator[str]:
    """Yield the lines that compute the addresses of a round's instance in global memory."""
    yield f"mad.lo.u32 %instance, %round, {layout.groups * layout.per_block}, %group;"
    yield "mul.wide.u32 %wide, %instance, 4; add.u64 %counter, %counters, %wide; add.u64 %out, %registers, %wide;"
    for one in layout.variant.registers:
        yield f"mov.u32 {one}, {UNSET};"
    for k, location in enumerate(layout.variant.locations):
        if location not in shared:
            yield f"mad.lo.u32 %index, %instance, %multiplier, {129 * k}; and.b32 %index, %index, {layout.length - 1};"
            yield f"add.u32 %index, %index, {k * layout.length}; mul.wide.u32 %wide, %index, 4;"
            yield f"add.u64 %a{k}, %memory, %wide;"


def _before(layout: Layout, shared: Sequence[str]) -> Iterator[str]:
    """Yield the lines that prepare an instance as `mode` says: meet, load its memory, wait a random time."""
    for bit, flag in ((ALIGN, "%align"), (DELAY, "%delay"), (PRELOAD, "%preload")):
        yield f"and.b32 %t, %mode, {bit}; setp.ne.u32 {flag}, %t, 0;"
    yield "@!%align bra ALIGNED;"
    yield f"red.relaxed.gpu.global.add.u32 [%counter], 1; mov.u32 %left, {_POLLS};"
    yield "POLL: ld.relaxed.gpu.global.u32 %t, [%counter]; sub.u32 %left, %left, 1;"
    yield f"setp.lt.u32 %p, %t, {len(layout.variant.places)}; setp.ne.and.u32 %p, %left, 0, %p; @%p bra POLL;"
    yield "ALIGNED: @!%preload bra LOADED;"
    for k, location in enumerate(layout.variant.locations):
        if location not in shared:
            yield f"ld.weak.global.u32 %t, [%a{k}]; add.u32 %sink, %sink, %t;"
    yield "LOADED: @!%delay bra WAITED;"
    yield "mad.lo.u32 %t, %instance, 747796405, %seed; mad.lo.u32 %u, %role, 668265263, %t;"
    yield "shr.u32 %t, %u, 15; xor.b32 %t, %t, %u; mul.lo.u32 %t, %t, 0x2c1b3c6d; shr.u32 %u, %t, 12;"
    yield "xor.b32 %t, %t, %u; and.b32 %left, %t, 1023; mov.u32 %u, %clock;"
    yield "WAIT: mov.u32 %t, %clock; sub.u32 %t, %t, %u; setp.lt.u32 %p, %t, %left; @%p bra WAIT;"
    yield "WAITED:"
    if layout.lanes == 1:
        # barriers of the block need converged warps
        yield "bar.warp.sync 0xffffffff;"


def _role(k: int, layout: Layout, shared: Sequence[str], remote: bool) -> Iterator[str]:
    """Yield the lines of thread k of the test."""
    variant, place = layout.variant, layout.variant.places[k]
    yield f"ROLE{k}:"
    for number, one in enumerate(variant.threads[k]):
        users = [
            other.block == place.block and any(its.barrier == one.barrier for its in thread)
            for other, thread in zip(variant.places, variant.threads, strict=True)
        ]
        text = _line(one, variant, shared, remote and place.block != 0, WARP * layout.sets * sum(users))
        if one.guard is None:
            yield text
        else:
            register, value = one.guard
            yield f"setp.ne.u32 %p, {register}, {value}; @%p bra SKIP{k}_{number};"
            yield text
            yield f"SKIP{k}_{number}:"
    mine = {one.register for one in variant.threads[k] if one.register}
    for at, register in enumerate(variant.registers):
        if register in mine:
            yield f"st.global.u32 [%out+{4 * layout.length * at}], {register};"
    yield "bra DONE;"


def _stress() -> Iterator[str]:
    """Yield the lines of blocks that only load memory."""
    yield "STRESS:"
    yield f"mov.u32 %left, {_STRESSES}; mad.lo.u32 %u, %cta, 7919, %thread;"
    yield "MORE: mad.lo.u32 %u, %u, 1664525, 1013904223; shr.u32 %t, %u, 14; mul.wide.u32 %wide, %t, 4;"
    yield "add.u64 %wide, %scratch, %wide; and.b32 %t, %left, 1; setp.eq.u32 %p, %t, 0;"
    yield "@%p st.relaxed.gpu.global.u32 [%wide], %u; @!%p ld.relaxed.gpu.global.u32 %t, [%wide];"
    yield "sub.u32 %left, %left, 1; setp.ne.u32 %q, %left, 0; @%q bra MORE;"
    yield "ret;"


def _line(one: Instruction, variant: Variant, shared: Sequence[str], far: bool, arrivals: int) -> str:
    """Return the PTX of an instruction. far: shared memory is that of another block; arrivals: the threads that meet
    at its barrier."""
    name = one.opcode
    if name == "fence":
        scope = {"gpu": "gl"}.get(one.scope, one.scope)
        return f"membar.{scope};" if one.operation == "membar" else f"fence.{one.semantics}.{one.scope};"
    if name in ("bar.sync", "bar.arrive"):
        return f"{name} {one.barrier}, {arrivals};"
    if name == "bar.warp.sync":
        return "bar.warp.sync 0xffffffff;"
    if name.startswith("barrier.cluster"):
        return f"{name};"
    at = variant.locations.index(one.location)
    if one.location in shared:
        number = shared.index(one.location)
        space, address = ("shared::cluster", f"[%far{number}]") if far else ("shared", f"[%sm{number}]")
    else:
        space, address = "global", f"[%a{at}]"
    order = f"{one.semantics}.{one.scope}" if one.semantics not in ("weak", "volatile") else one.semantics
    if name == "ld":
        return f"ld.{order}.{space}.u32 {one.register}, {address};"
    if name == "st":
        value = one.value
        if isinstance(value, int):
            return f"mov.u32 %t, {value}; st.{order}.{space}.u32 {address}, %t;"
        return f"st.{order}.{space}.u32 {address}, {value};"
    kind = "u32" if one.operation == "add" else "b32"
    into = f"{one.register}, " if one.register else ""
    return f"{name}.{order}.{space}.{one.operation}.{kind} {into}{address}, {one.value};"
