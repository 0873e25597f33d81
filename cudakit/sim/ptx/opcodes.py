"""The opcode table: one row per PTX opcode, or per variant of one that differs by a modifier.

To add an instruction, add a row here and a builder under the same name (``BUILDERS`` of its module in
sim/instructions, or ``builds`` in sim/values for lane-wise arithmetic). Everything else is read from the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from cudakit.sim.ptx.ir import Instruction

# classes of instructions (see mix.py) that also depend on the type, or on the state space
BY_TYPE, LOAD, STORE = "by type", "load", "store"
# more than the cost of any branch worth predicating: a long sequence, a call or a trap
LONG = 100
ANY = (0, 99)
_SPACES = frozenset(("global", "shared", "shared::cta", "shared::cluster", "local", "const"))
_SPACES |= {"param", "param::entry", "param::func"}

_UNI = r"(uni)?"
_FENCE = (
    r"((sc|acq_rel|acquire|release)\.)?(cta|cluster|gpu|sys)"
    r"|acquire\.sync_restrict::shared::cluster\.cluster|release\.sync_restrict::shared::cta\.cluster"
    r"|proxy\.(alias|async|async\.global|async\.shared::cta|async\.shared::cluster)"
    r"|proxy\.async::generic\.acquire\.sync_restrict::shared::cluster\.cluster"
    r"|proxy\.async::generic\.release\.sync_restrict::shared::cta\.cluster"
)
_MEMBAR = r"cta|gl|sys|proxy\.(alias|async)"

_LATER = "needs sm_100 or later and is not simulated yet"
TEXTURES = "textures and surfaces are not simulated: read and write arrays through pointers"


class Flow(Enum):
    """How an instruction ends a basic block."""

    JUMP = "jump"
    SWITCH = "switch"
    CALL = "call"
    RETURN = "return"
    EXIT = "exit"
    BARRIER = "barrier of the block"
    CLUSTER = "barrier of the cluster"
    WAIT = "wait for an asynchronous copy or arrival"
    REGISTERS = "change of a warp's number of registers"


@dataclass(frozen=True)
class Addresses:
    """Memory accesses of an instruction. ``reads`` and ``writes``: the number of the operand with the address; None if
    the instruction does not read (or write) memory. ``granule``: bytes of the smallest unit; 0: the size of the type.
    ``space``: the state space if the instruction does not name one; "" for a generic address."""

    reads: int | None = None
    writes: int | None = None
    granule: int = 0
    space: str = ""


@dataclass(frozen=True)
class Refusal:
    """The reason why an instruction is unsupported, with an alternative, and one such instruction."""

    reason: str
    example: str
    # whether ptxas accepts the instruction for the simulated architectures
    valid: bool = True


@dataclass(frozen=True)
class Opcode:
    """The properties of opcodes, except their arithmetic.

    ``names``: opcodes, or opcodes with modifiers (``bar.red``: bar with .red among its modifiers, or .red::anything),
    separated by spaces. The first row that matches an instruction is used, so variants come before the plain opcode.
    ``mix``: the class in the instruction mix, or ``BY_TYPE``, ``LOAD``, ``STORE``.
    """

    names: str
    mix: str = "other"
    # number of operands: exact, or (fewest, most)
    operands: int | tuple[int, int] = ANY
    # number of operands that the instruction writes; they come first; ``updates``: it reads them, too
    writes: int = 1
    updates: bool = False
    # pattern of all modifiers, if it determines which are allowed and in which order; otherwise the builder reads them
    # with ``Modifiers``
    forms: str | None = None
    # how the instruction ends a basic block, if it does
    ends: Flow | None = None
    # a loop that contains the instruction may wait for writes of other lanes
    spins: bool = False
    # the operand with the mask of lanes that wait for each other; ``whole_warp``: all lanes of the warp do
    mask: int | None = None
    whole_warp: bool = False
    memory: Addresses | None = None
    # ptxas does not move accesses to shared memory across this instruction (nor across the end of a block)
    stops: bool = False
    # approximate number of machine instructions; ``cost64``: for 64-bit integers. ptxas avoids several predicated
    # stores
    cost: int = 1
    cost64: int | None = None
    # reads the carry flag
    carries: bool = False
    refusal: Refusal | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most operands."""
        return (self.operands, self.operands) if isinstance(self.operands, int) else self.operands

    def counts(self, operands: int) -> bool:
        """Whether an instruction may have this number of operands."""
        least, most = self.bounds
        return least <= operands <= most

    @property
    def stops_merging(self) -> bool:
        return self.stops or self.ends is not None


def _refused(names: str, reason: str, example: str, mix: str = "other", valid: bool = True) -> Opcode:
    return Opcode(names, mix, refusal=Refusal(reason, example, valid))


ROWS = (
    # ---- arithmetic ----
    Opcode("add sub", BY_TYPE, 3, cost64=2),
    Opcode("mul", BY_TYPE, 3, cost64=4),
    Opcode("mad", BY_TYPE, 4, cost64=4),
    Opcode("fma", BY_TYPE, 4),
    Opcode("div.approx div.full", BY_TYPE, 3),
    Opcode("div rem", BY_TYPE, 3, cost=LONG),
    Opcode("min max", BY_TYPE, (3, 4)),
    Opcode("neg abs", BY_TYPE, 2),
    Opcode("rcp.approx sqrt.approx", "special", 2),
    Opcode("rcp sqrt", "special", 2, cost=LONG),
    Opcode("rsqrt sin cos ex2 lg2 tanh", "special", 2),
    # integers only; with the carry flag
    Opcode("mul24", "integer", 3),
    Opcode("mad24 sad dp2a dp4a", "integer", 4),
    Opcode("addc subc", "integer", 3, carries=True),
    Opcode("madc", "integer", 4, carries=True),
    # SIMD within a register
    Opcode("vadd2 vadd4 vsub2 vsub4 vabsdiff2 vabsdiff4 vmin2 vmin4 vmax2 vmax4 vset2 vset4", "integer", 4),
    # ---- bits ----
    Opcode("and or xor", "integer", 3, cost64=2),
    Opcode("shl shr", "integer", 3, cost64=2),
    Opcode("not cnot brev popc clz bfind", "integer", 2),
    Opcode("bmsk szext", "integer", 3),
    Opcode("shf bfe fns prmt", "integer", 4),
    Opcode("bfi", "integer", 5),
    Opcode("lop3", "integer", (5, 6)),
    # ---- comparison and selection ----
    Opcode("setp set", BY_TYPE, (3, 4)),
    Opcode("selp", BY_TYPE, 4, cost64=2),
    Opcode("slct", BY_TYPE, 4),
    Opcode("copysign", BY_TYPE, 3),
    Opcode("testp", BY_TYPE, 2),
    # ---- conversion, moves and addresses ----
    Opcode("cvt", "conversion", (2, 4)),
    Opcode("mov.v2 mov.v4", "move", 2, cost=0),
    Opcode("mov cvta", "move", 2, cost=0),
    Opcode("mapa", "move", 3),
    Opcode("getctarank", "move", 2),
    Opcode("isspacep", "integer", 2),
    # ---- loads and stores ----
    _refused(
        "st.async.mmio red.async.mmio",
        f".mmio.release of asynchronous stores {_LATER}: use st.release or red.release",
        "st.async.mmio.release.sys.global.u32 [%rd1], %r1;",
        STORE,
    ),
    Opcode("st.async", STORE, 3, writes=0, memory=Addresses(writes=0, granule=4, space="shared::cluster"), stops=True),
    _refused("st.bulk", f"st.bulk {_LATER}: use a loop of stores", "st.bulk.weak.shared::cta [%rd1], 64, 0;", STORE),
    Opcode("ld.volatile", LOAD, (2, 3), memory=Addresses(reads=1), spins=True, stops=True),
    Opcode("ld.relaxed ld.acquire", LOAD, (2, 3), memory=Addresses(reads=1), spins=True),
    Opcode("ld", LOAD, (2, 3), memory=Addresses(reads=1)),
    Opcode("ldu", LOAD, 2, memory=Addresses(reads=1)),
    Opcode("st.volatile", STORE, (2, 3), writes=0, memory=Addresses(writes=0), cost=2, stops=True),
    Opcode("st", STORE, (2, 3), writes=0, memory=Addresses(writes=0), cost=2),
    # ---- atomics ----
    Opcode("atom", "atomic", (3, 5), memory=Addresses(reads=1, writes=1), spins=True, stops=True),
    Opcode("red.async", "atomic", 3, writes=0, memory=Addresses(writes=0, space="shared::cluster"), stops=True),
    Opcode("red", "atomic", (2, 3), writes=0, memory=Addresses(reads=0, writes=0), stops=True),
    # ---- tensor maps ----
    _refused(
        "tensormap.replace.swizzle_atomicity",
        f".swizzle_atomicity {_LATER}: copy with one of the swizzles of sm_90",
        "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd1], 1;",
    ),
    Opcode("tensormap.replace", "other", (2, 3), writes=0, memory=Addresses(reads=0, writes=0, granule=4), stops=True),
    Opcode(
        "tensormap.cp_fenceproxy",
        "other",
        3,
        writes=0,
        whole_warp=True,
        memory=Addresses(reads=1, writes=0, granule=4),
        stops=True,
    ),
    Opcode("fence.tensormap", "fence", (0, 2), writes=0, stops=True),
    Opcode("prefetch.tensormap", "other", 1, writes=0),
    # ---- caches: no data is moved ----
    Opcode("prefetch prefetchu", "other", 1, writes=0),
    Opcode("discard", "other", 2, writes=0, memory=Addresses(writes=0, granule=4)),
    Opcode("applypriority", "other", 2, writes=0),
    Opcode("createpolicy", "other", (1, 4)),
    # ---- copies to shared memory ----
    Opcode("cp.async.bulk.commit_group", "async_copy", 0, writes=0, forms=r"async\.bulk\.commit_group", stops=True),
    Opcode(
        "cp.async.bulk.wait_group", "async_copy", 1, writes=0, forms=r"async\.bulk\.wait_group(\.read)?", stops=True
    ),
    _refused(
        "cp.async.bulk.tensor.im2col cp.async.bulk.tensor.im2col_no_offs",
        "tensor copies in im2col mode are not simulated: copy boxes with .tile",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%rd1], [%rd1, {%r1,%r1,%r1}], [%rd1], {%h1};",
        "async_copy",
    ),
    _refused(
        "cp.async.bulk.tensor.cta_group",
        f".cta_group {_LATER}: complete the copy on an mbarrier of its destination",
        "cp.async.bulk.tensor.1d.cta_group::1.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%rd1], [%rd1, {%r1}], [%rd1];",
        "async_copy",
    ),
    _refused(
        "cp.async.bulk.cp_mask",
        f".cp_mask {_LATER}: copy the bytes that are masked with stores",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%rd1], 16, %h1;",
        "async_copy",
    ),
    _refused(
        "cp.ignore_oob",
        "copies that leave out bytes at their ends are not simulated yet: copy multiples of 16 bytes",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [%r1], [%rd1], %r1, %r1, %r1, [%r1];",
        "async_copy",
    ),
    Opcode("cp.async.bulk.prefetch.tensor", "other", (1, 2), writes=0),
    Opcode("cp.async.bulk.prefetch", "other", (2, 3), writes=0),
    Opcode(
        "cp.reduce.async.bulk.tensor cp.async.bulk.tensor",
        "async_copy",
        (2, 6),
        writes=0,
        memory=Addresses(reads=1, writes=0, granule=4),
        stops=True,
    ),
    Opcode("cp.reduce", "async_copy", (3, 5), writes=0, memory=Addresses(reads=1, writes=0, granule=1), stops=True),
    Opcode("cp.async.bulk", "async_copy", (3, 6), writes=0, memory=Addresses(reads=1, writes=0, granule=4), stops=True),
    Opcode("cp.async.mbarrier", "barrier", 1, writes=0, stops=True),
    Opcode("cp.async.commit_group", "async_copy", 0, writes=0, forms=r"async\.commit_group", stops=True),
    Opcode("cp.async.wait_all", "async_copy", 0, writes=0, forms=r"async\.wait_all", stops=True),
    Opcode("cp.async.wait_group", "async_copy", 1, writes=0, forms=r"async\.wait_group", stops=True),
    Opcode("cp.async", "async_copy", (3, 5), writes=0, memory=Addresses(reads=1, writes=0, granule=4), stops=True),
    # ---- fences ----
    Opcode("fence.mbarrier_init", "fence", 0, writes=0, forms=r"mbarrier_init\.release\.cluster", stops=True),
    Opcode("fence", "fence", 0, writes=0, forms=_FENCE, spins=True, stops=True),
    Opcode("membar", "fence", 0, writes=0, forms=_MEMBAR, spins=True, stops=True),
    # ---- control flow ----
    Opcode("bra", "control", 1, writes=0, forms=_UNI, ends=Flow.JUMP, cost=0),
    Opcode("brx", "control", 2, writes=0, forms=r"idx(\.uni)?", ends=Flow.SWITCH),
    # returns, callee, parameters, prototype
    Opcode("call", "control", (3, 4), writes=0, forms=_UNI, ends=Flow.CALL),
    Opcode("ret", "control", 0, writes=0, forms=_UNI, ends=Flow.RETURN),
    Opcode("exit", "control", 0, writes=0, forms="", ends=Flow.EXIT),
    Opcode("trap", "control", 0, writes=0, forms="", cost=LONG),
    Opcode("brkpt", "control", 0, writes=0, forms=""),
    # ---- memory of variable size on the stack ----
    Opcode("alloca", operands=(2, 3), forms="u32|u64"),
    Opcode("stacksave", operands=1, forms="u32|u64"),
    Opcode("stackrestore", operands=1, writes=0, forms="u32|u64"),
    # timing only
    Opcode("nanosleep", "control", 1, writes=0, forms="u32", spins=True),
    Opcode("pmevent", "control", 1, writes=0, forms="(mask)?"),
    Opcode("griddepcontrol", "control", 0, writes=0, forms="launch_dependents|wait"),
    Opcode(
        "setmaxnreg",
        "control",
        1,
        writes=0,
        forms=r"(inc|dec)\.sync\.aligned\.u32",
        ends=Flow.REGISTERS,
        whole_warp=True,
    ),
    # ---- barriers ----
    Opcode("bar.warp", "warp", 1, writes=0, forms=r"warp\.sync", mask=0, stops=True),
    Opcode("barrier.cluster", "barrier", 0, writes=0, ends=Flow.CLUSTER),
    Opcode("bar.red barrier.red", "barrier", (3, 4), ends=Flow.BARRIER),
    Opcode("bar.arrive barrier.arrive", "barrier", 2, writes=0, ends=Flow.BARRIER),
    Opcode("bar barrier", "barrier", (1, 2), writes=0, ends=Flow.BARRIER),
    _refused(
        "mbarrier.layout mbarrier.phase_type",
        "layouts and phase types of mbarriers are not simulated yet: leave them out",
        "mbarrier.init.layout::v0.shared.b64 [%r1], 1;",
        "barrier",
    ),
    Opcode("mbarrier.init", "barrier", 2, writes=0, stops=True),
    Opcode("mbarrier.inval", "barrier", 1, writes=0, stops=True),
    Opcode("mbarrier.arrive mbarrier.arrive_drop", "barrier", (2, 3), stops=True),
    Opcode("mbarrier.expect_tx mbarrier.complete_tx", "barrier", 2, writes=0, stops=True),
    Opcode("mbarrier.test_wait", "barrier", 3, spins=True, stops=True),
    Opcode("mbarrier.try_wait", "barrier", (3, 4), ends=Flow.WAIT, spins=True),
    Opcode("mbarrier.pending_count", "barrier", 2),
    _refused(
        "clusterlaunchcontrol",
        f"cluster launch control {_LATER}: loop over the work with gridDim",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%rd1], [%rd2];",
    ),
    # ---- communication between the lanes of a warp ----
    Opcode("activemask", "warp", 1),
    Opcode("shfl.sync", "warp", 5, mask=4),
    Opcode("vote.sync match.sync redux.sync", "warp", 3, mask=2),
    Opcode("elect.sync", "warp", 2, mask=1),
    _refused(
        "shfl vote match redux elect",
        "only the .sync forms are supported since sm_70",
        "shfl.up.b32 %r1, %r1, 1, 0;",
        "warp",
        valid=False,
    ),
    # ---- matrices ----
    Opcode("ldmatrix", LOAD, 2, whole_warp=True, memory=Addresses(reads=1, granule=4, space="shared"), stops=True),
    Opcode(
        "stmatrix",
        STORE,
        2,
        writes=0,
        whole_warp=True,
        memory=Addresses(writes=0, granule=4, space="shared"),
        stops=True,
    ),
    Opcode("movmatrix", "tensor", 2, whole_warp=True),
    Opcode(
        "wmma.load",
        LOAD,
        (2, 3),
        forms=r"load\..*",
        whole_warp=True,
        memory=Addresses(reads=1, granule=1),
        stops=True,
    ),
    Opcode(
        "wmma.store",
        STORE,
        (2, 3),
        writes=0,
        forms=r"store\..*",
        whole_warp=True,
        memory=Addresses(writes=0, granule=1),
        stops=True,
    ),
    Opcode("wmma.mma", "tensor", 4, forms=r"mma\..*", whole_warp=True, stops=True),
    _refused(
        "mma.sp",
        "sparse matrix products are not simulated yet: use the dense mma.sync",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%f1,%f1,%f1,%f1}, {%r1,%r1}, {%r1,%r1}, {%f1,%f1,%f1,%f1}, %r1, 0x0;",
        "tensor",
    ),
    _refused(
        "mma.kind mma.block_scale mma.scale_vec",
        "block-scaled products and .kind need sm_100 or later and are not simulated yet",
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 "
        "{%f1,%f1,%f1,%f1}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f1,%f1,%f1,%f1};",
        "tensor",
    ),
    Opcode("mma", "tensor", 4, whole_warp=True),
    # ---- matrices of a warpgroup ----
    _refused(
        "wgmma.mma_async.sp",
        "sparse matrix products are not simulated yet: use the dense wgmma.mma_async",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1,%f1,%f1,%f1}, %rd1, %rd2, %r1, 0, %p1, 1, 1, 0, 0;",
        "tensor",
    ),
    Opcode("wgmma.mma_async", "tensor", (4, 8), updates=True, whole_warp=True, stops=True),
    Opcode("wgmma.fence", "fence", 0, writes=0, forms=r"fence\.sync\.aligned", whole_warp=True, stops=True),
    Opcode("wgmma.commit_group", "fence", 0, writes=0, forms=r"commit_group\.sync\.aligned", whole_warp=True),
    Opcode("wgmma.wait_group", "fence", 1, writes=0, forms=r"wait_group\.sync\.aligned", whole_warp=True, stops=True),
    _refused(
        "tcgen05",
        "fifth-generation tensor cores and tensor memory are not simulated yet: use mma.sync or wmma",
        "tcgen05.fence::before_thread_sync;",
    ),
    # ---- several GPUs, textures, video ----
    _refused(
        "multimem",
        "multicast memory of several GPUs is not simulated: reduce over copies of the data",
        "multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;",
    ),
    _refused("tex tld4 txq istypep", TEXTURES, "tex.1d.v4.f32.s32 {%f1,%f1,%f1,%f1}, [%rd1, {%r1}];"),
    _refused("suld sust sured suq", TEXTURES, "suld.b.1d.b32.trap %r1, [%rd1, {%r1}];"),
    _refused(
        "vadd vsub vabsdiff vmin vmax vshl vshr vmad vset",
        "scalar video instructions are emulated on all GPUs since sm_50: write the arithmetic in C++",
        "vadd.s32.s32.s32 %r1, %r1, %r1;",
    ),
)
UNKNOWN = Opcode("")
"""The row of an instruction that the table lacks; it is unsupported."""

# by opcode: (name, its modifiers, row), in the table's order
_NAMED: dict[str, list[tuple[str, frozenset[str], Opcode]]] = {}
for _row in ROWS:
    for _name in _row.names.split():
        _opcode, *_modifiers = _name.split(".")
        _NAMED.setdefault(_opcode, []).append((_name, frozenset(_modifiers), _row))


@lru_cache(maxsize=4096)
def _find(opcode: str, modifiers: tuple[str, ...]) -> tuple[str, Opcode]:
    stems = {modifier.partition("::")[0] for modifier in modifiers}
    for name, needed, row in _NAMED.get(opcode, ()):
        if needed <= stems:
            return name, row
    return "", UNKNOWN


def row_of(instruction: Instruction) -> Opcode:
    """The row of an instruction; ``UNKNOWN`` if the table lacks it."""
    return _find(instruction.opcode, instruction.modifiers)[1]


def name_of(instruction: Instruction) -> str:
    """An instruction's name in the table ("ld", "bar.red"); "" if the table lacks it."""
    return _find(instruction.opcode, instruction.modifiers)[0]


def carry_of(instruction: Instruction) -> tuple[bool, bool]:
    """Whether an instruction reads the carry flag, and whether it writes it."""
    return row_of(instruction).carries, "cc" in instruction.modifiers


def spaces_of(instruction: Instruction) -> tuple[str, ...]:
    """The state spaces that an instruction names, the destination's first; if it names none, its row's space."""
    found = tuple(modifier for modifier in instruction.modifiers if modifier in _SPACES)
    memory = row_of(instruction).memory
    return found or ((memory.space,) if memory is not None and memory.space else ())
