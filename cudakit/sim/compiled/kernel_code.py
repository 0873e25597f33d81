"""The registers, constants and counted accesses of a kernel that is being written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cudakit.sim.compiled.analysis import Uniformity
from cudakit.sim.compiled.arithmetic import Unsupported
from cudakit.sim.compiled.context import conditions
from cudakit.sim.compiled.ir import Code, Module, Value
from cudakit.sim.compiled.layout import CONTEXT, LANES, SITE_BYTES, WIDTH
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.memory import round_up
from cudakit.sim.lockstep.program import Program, unread
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Operand, Special, Symbol
from cudakit.sim.values.lanewise import constant as literal_value
from cudakit.sim.values.lanewise import width

# from the bit of each lane
_LANEMASKS: dict[str, Callable[[Value], Value]] = {
    "lanemask_eq": lambda own: own,
    "lanemask_lt": lambda own: own - 1,
    "lanemask_le": lambda own: own | (own - 1),
    "lanemask_gt": lambda own: ~(own | (own - 1)),
    "lanemask_ge": lambda own: ~(own - 1),
}


@dataclass
class Counted:
    """The meaning of a place in the table of sites: requests of ``size`` bytes per lane in one state space ("shared",
    "global", "local"), or other instructions ("other"), for one site or for several with equal counts."""

    kind: str
    size: int
    sites: list[Site] = field(default_factory=list)


@dataclass(frozen=True)
class Updates:
    """An atomic: its state space ("shared", "global"), and the operation and type if its updates commute with those of
    others of the same; None if the order of the lanes decides its results."""

    space: str
    commutes: tuple[str, str] | None


@dataclass
class Group:
    """Loads of shared memory with one base, which are checked and counted together. ``rest``: the remainder of their
    offsets divided by their size."""

    place: int
    size: int
    kind: int
    rest: int
    offsets: list[int] = field(default_factory=list)
    begun: bool = False
    # set when the group is begun: the byte offsets of the lanes' bases plus the rest, and how they lie
    scratch: Value = field(init=False)
    lie: Value = field(init=False)


class KernelCode:
    """A kernel that is being written: its registers, constants and counted accesses.

    ``accesses`` and ``sites`` are the interpreter's, by the id of their instruction; ``address_of`` returns the address
    of a variable within its space; ``shared_granule`` is the number of bytes of shared memory that are checked
    together. ``counted`` are the places of the table of sites, ``found`` the sites of the accesses to global memory
    that remember an allocation, ``updates`` the atomics. ``ordered``: the order of the lanes decides the results of one
    of these; ``copies``: there are asynchronous copies.
    """

    # set while the kernel is written: its code, the vector of the current loop, pointers and words of the context, and
    # the lanes that run: their mask and number, whether no other lane is live, and whether none has anything left to do
    code: Code
    chunk: Value | None
    params: Value
    shared: Value
    site_table: Value
    caches: Value
    atomics: Value
    counts: Value
    limit: Value
    vectors: Value
    grouped: dict[int, Group]
    mask: Value
    lanes: Value
    next: Value
    alone: Value
    together: Value
    ordered: bool

    def __init__(
        self,
        module: Module,
        program: Program,
        accesses: Mapping[int, MemoryAccess],
        sites: Mapping[int, list[Site]],
        param_offsets: Mapping[str, int],
        address_of: Callable[[str], int],
        shared_granule: int,
    ) -> None:
        self.module, self.program, self.shared_granule = module, program, shared_granule
        self.accesses, self.sites, self.param_offsets, self.address_of = accesses, sites, param_offsets, address_of
        self.uniformity = Uniformity(program)
        self.counted: list[Counted] = []
        self.found: list[Site] = []
        self.updates: list[Updates] = []
        self.copies = False
        self.unread = unread(program)
        self.places: dict[str, int] = {}
        # registers that may be read before they are written, and the places of the masks of the lanes that wrote them
        unset = [name for name, slot in program.slots.items() if slot in program.unset]
        self.unset = {name: 4 * number for number, name in enumerate(sorted(unset))}
        self.unset_bytes = offset = round_up(4 * len(unset), 64)
        for name in program.function.registers:
            self.places[name] = offset
            offset += {1: 64, 16: 64, 32: 128, 64: 256}[self.bits(name)] if self.varies(name) else 64
        self.register_bytes = max(offset, 64)

    def varies(self, name: str) -> bool:
        return name in self.uniformity.varying

    def bits(self, name: str) -> int:
        kind = self.program.function.registers[name]
        bits = 1 if kind == "pred" else max(width(kind), 16)
        if bits not in (1, 16, 32, 64):
            raise Unsupported(f"registers of .{kind}")
        return bits

    def register(self, name: str) -> Value:
        return self.code.registers.at(self.places[name])

    def load(self, name: str, chunk: Value | None) -> Value:
        """A register from memory: the vector ``chunk`` of it, or the value that all lanes share."""
        bits, place = self.bits(name), self.register(name)
        if chunk is None:
            return place.load("i8").to("i1") if bits == 1 else place.load(f"i{bits}")
        if bits == 1:
            return conditions(self.code, place.load("i32") >> (chunk.to("i32") * WIDTH), WIDTH)
        return place.at(chunk * (WIDTH * bits // 8)).load(f"<{WIDTH} x i{bits}>", 16)

    def constant(self, operand: Operand | None, bits: int) -> Value:
        """An operand that is not a register."""
        code = self.code
        if isinstance(operand, Immediate):
            return code.const(f"i{bits}", int(literal_value(operand, "pred" if bits == 1 else f"b{bits}")))
        if isinstance(operand, Special):
            return self.special(operand.name)
        if isinstance(operand, Symbol):
            return code.const(f"i{bits}", self.symbol(operand.name) & ((1 << bits) - 1))
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return code.const(f"i{bits}", (self.symbol(operand.base.name) + operand.offset) & ((1 << bits) - 1))
        raise Unsupported("this operand")

    def symbol(self, name: str) -> int:
        if name in self.program.local_offsets:
            return self.program.local_offsets[name]
        try:
            return self.address_of(name)
        except KeyError:
            raise Unsupported(f"the symbol {name}") from None

    def special(self, name: str) -> Value:
        code, chunk = self.code, self.chunk
        stem, _, axis = name[1:].partition(".")
        if stem == "tid" and chunk is not None:
            return code.ids.at("xyz".index(axis) * 4 * LANES).at(chunk * (4 * WIDTH)).load(f"<{WIDTH} x i32>", 16)
        if stem == "laneid" and chunk is not None:
            return self._lane_numbers(chunk)
        if stem in _LANEMASKS and chunk is not None:
            numbers = self._lane_numbers(chunk)
            return _LANEMASKS[stem](numbers._with(1) << numbers)
        if stem == "warpid":
            return code.thread >> 5
        if stem in ("ctaid", "ntid", "nctaid"):
            return code.context.at(CONTEXT[f"{stem}_{axis}"]).load("i32")
        raise Unsupported(f"the special register {name}")

    def _lane_numbers(self, chunk: Value) -> Value:
        return self.code.lane_numbers("i32", WIDTH) + (chunk.to("i32") * WIDTH).splat(WIDTH)

    def place(self, counted: Counted) -> int:
        """The number of a new place in the table of sites."""
        self.counted.append(counted)
        return len(self.counted) - 1

    def site_pointer(self, place: int) -> Value:
        return self.site_table.at(place * SITE_BYTES)

    def access(self, instruction: Instruction) -> MemoryAccess:
        found = self.accesses.get(id(instruction))
        if found is None:
            raise Unsupported(instruction.name)
        return found
