"""The operands that each instruction takes.

A signature is a text: the operands in order, separated by spaces; several signatures, separated by semicolons, if the
number of operands varies.

    T       a register or literal of the type T          T!      a register, no literal
    =T      a register that is written                   =T?     the same, or ``_``
    =T|p    =T, or a pair of it and a predicate or _     {T}     a vector of registers; {=T}, {T!} and {=T?} likewise
    =T|P    a pair of =T and a predicate
    p       a predicate: a register, a negated one, or a literal integer
    @       an address in the state space that the instruction names, or a generic one
    @shared an address in shared memory; @generic: a generic one of shared memory
    M3      a tensor map and 3 coordinates: [map, {x, y, z}]
    &       the address of a variable in that space
    #       a literal integer; #0..15 in this range; #4,8,16 one of these; #%32 a multiple of 32; #0..64%16 both
    ~T      a register that may be wider than T
    L       a label
    A/B     an operand of either kind

The type ``$`` is that of the instruction, its last modifier that is a type. Lane-wise instructions have no signature
here: their forms (sim/values) contain the types of all operands.
"""

from __future__ import annotations

from collections.abc import Callable

_MMA_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "s32", "e4m3", "e5m2", "s8", "u8", "s4", "u4", "b1")
# registers of an element type in fragments of matrices, for mma; wmma
_FRAGMENTS = {"f16": "f16x2", "bf16": "bf16x2", "tf32": "tf32", "f32": "f32", "f64": "f64", "s32": "s32"}


def _matrices(modifiers: tuple[str, ...], roles: str) -> tuple[str, ...]:
    """The register types of the fragments ``roles`` (a to d) of mma or wmma.mma."""
    kinds = [m for m in modifiers if m in _MMA_TYPES]
    if len(kinds) == 2:
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4:
        return ("b32",) * len(roles)
    by_role = dict(zip("dabc", kinds, strict=True))
    return tuple(_FRAGMENTS.get(by_role[role], "b32") for role in roles)


def _mma(modifiers: tuple[str, ...]) -> str:
    d, a, b, c = _matrices(modifiers, "dabc")
    return f"{{={d}?}} {{{a}}} {{{b}}} {{{c}}}"


def _wmma_mma(modifiers: tuple[str, ...]) -> str:
    d, a, b, c = _matrices(modifiers, "dabc")
    return f"{{={d}}} {{{a}!}} {{{b}!}} {{{c}!}}"


def _wmma_fragment(modifiers: tuple[str, ...]) -> str:
    return next((_FRAGMENTS.get(m, "b32") for m in reversed(modifiers) if m in _MMA_TYPES), "b32")


def _wmma_load(modifiers: tuple[str, ...]) -> str:
    kind = _wmma_fragment(modifiers)
    return f"{{={kind}}} @; {{={kind}}} @ u32"


def _wmma_store(modifiers: tuple[str, ...]) -> str:
    kind = _wmma_fragment(modifiers)
    return f"@ {{{kind}!}}; @ {{{kind}!}} u32"


def is_vector(modifiers: tuple[str, ...]) -> bool:
    return bool({"v2", "v4", "v8"} & {*modifiers})


def _load(modifiers: tuple[str, ...]) -> str:
    target = "{=~$?}" if is_vector(modifiers) else "=~$"
    return f"{target} @; {target} @ u64"


def _store(modifiers: tuple[str, ...]) -> str:
    value = "{~$}" if is_vector(modifiers) else "~$"
    return f"@ {value}; @ {value} u64"


def _atom(modifiers: tuple[str, ...]) -> str:
    if is_vector(modifiers):
        return "{=$?} @ {$}; {=$?} @ {$} u64"
    return "=$? @ $ $; =$? @ $ $ u64" if "cas" in modifiers else "=$? @ $; =$? @ $ u64"


def _red(modifiers: tuple[str, ...]) -> str:
    return "@ {$}; @ {$} u64" if is_vector(modifiers) else "@ $; @ $ u64"


def _cp_async(modifiers: tuple[str, ...]) -> str:
    short = f"@ @ {'#16' if 'cg' in modifiers else '#4,8,16'}"
    if "L2::cache_hint" in modifiers:
        return f"{short} u64; {short} u32/p u64"
    return f"{short}; {short} #0..16/u32!/p"


def _barrier(modifiers: tuple[str, ...]) -> str:
    """The address of an mbarrier."""
    return "@shared" if any(modifier.startswith("shared") for modifier in modifiers) else "@generic"


def _init(modifiers: tuple[str, ...]) -> str:
    return f"{_barrier(modifiers)} #1..1048575/u32!"


def _arrive(modifiers: tuple[str, ...]) -> str:
    short = f"=u64? {_barrier(modifiers)}"
    if "expect_tx" in modifiers:
        return f"{short} u32"
    counted = f"{short} {_POSITIVE}/u32!"
    return counted if "noComplete" in modifiers else f"{short}; {counted}"


def _transaction(modifiers: tuple[str, ...]) -> str:
    return f"{_barrier(modifiers)} u32"


def _test_wait(modifiers: tuple[str, ...]) -> str:
    state = "#0,1/u32!" if "parity" in modifiers else "u64"
    return f"=pred {_barrier(modifiers)} {state}"


def _try_wait(modifiers: tuple[str, ...]) -> str:
    short = _test_wait(modifiers)
    return f"{short}; {short} u32"


def _tail(modifiers: tuple[str, ...]) -> str:
    """The last operands of an asynchronous copy: its mbarrier, the blocks of a multicast, and a cache policy."""
    names = ("mbarrier::complete_tx::bytes", "multicast::cluster", "L2::cache_hint")
    kinds = zip(names, ("@shared", "#0..65535/u16!", "u64"), strict=True)
    return "".join(f" {kind}" for name, kind in kinds if name in modifiers)


def _bulk(modifiers: tuple[str, ...]) -> str:
    return f"@ @ {_BYTES}{_tail(modifiers)}"


def _bulk_prefetch(modifiers: tuple[str, ...]) -> str:
    return f"@ {_BYTES}{_tail(modifiers)}"


def _box(modifiers: tuple[str, ...]) -> str:
    if {"tile::gather4", "tile::scatter4"} & {*modifiers}:
        return "M5"
    return next((f"M{m[0]}" for m in modifiers if m in ("1d", "2d", "3d", "4d", "5d")), "M1")


def _tensor(modifiers: tuple[str, ...]) -> str:
    spaces = [m for m in modifiers if m == "global" or m.startswith("shared")]
    both = f"{_box(modifiers)} @" if spaces[:1] == ["global"] else f"@ {_box(modifiers)}"
    return both + _tail(modifiers)


def _tensor_prefetch(modifiers: tuple[str, ...]) -> str:
    return _box(modifiers) + _tail(modifiers)


def _async_store(modifiers: tuple[str, ...]) -> str:
    return "@ {$} @shared" if is_vector(modifiers) else "@ $/{$} @shared"


# the values of fields of a tensor map that only a literal replaces
_FIELD_VALUES = {"elemtype": "#0..12", "interleave_layout": "#0..2", "swizzle_mode": "#0..3", "fill_mode": "#0,1"}


def _replace(modifiers: tuple[str, ...]) -> str:
    literal = next((_FIELD_VALUES[m] for m in modifiers if m in _FIELD_VALUES), "")
    if literal:
        return f"@ {literal}"
    if "global_stride" in modifiers:
        return "@ #0..4 $"
    return "@ #0..4 u32" if {"box_dim", "global_dim", "element_stride"} & {*modifiers} else "@ $"


def _map_fence(modifiers: tuple[str, ...]) -> str:
    return "@ #128" if "acquire" in modifiers else " "


def _cvta(modifiers: tuple[str, ...]) -> str:
    return "=u64 u64" if "to" in modifiers else "=u64 u64/&"


def _createpolicy(modifiers: tuple[str, ...]) -> str:
    if "range" in modifiers:
        return "=u64 @ u32 u32"
    return "=u64 u64" if "cvt" in modifiers else "=u64; =u64 f32"


def _vote(modifiers: tuple[str, ...]) -> str:
    return "=b32 p u32" if "ballot" in modifiers else "=pred p u32"


def _match(modifiers: tuple[str, ...]) -> str:
    return "=u32?|p $ u32" if "all" in modifiers else "=u32 $ u32"


def _redux(modifiers: tuple[str, ...]) -> str:
    return "=f32 f32 u32" if "f32" in modifiers else "=u32 u32 u32"


def _wgmma(modifiers: tuple[str, ...]) -> str:
    kinds = [m for m in modifiers if m in _MMA_TYPES]
    d = _FRAGMENTS.get(kinds[0], "b32") if kinds else "b32"
    factor = kinds[1] if len(kinds) > 1 else ""
    if factor in ("s8", "u8", "b1"):
        return f"{{={d}}} b64/{{b32}} b64 p"
    if factor in ("f16", "bf16"):
        signs = "#-1,1 #-1,1"
        return f"{{={d}}} b64 b64 p {signs} #0,1 #0,1; {{={d}}} {{f16x2}} b64 p {signs} #0,1"
    return f"{{={d}}} b64/{{f16x2}} b64 p #-1,1 #-1,1"


# bytes of a bulk copy, and the number of an mbarrier's arrivals
_BYTES = "#0..1048560%16/u32!"
_POSITIVE = "#1..18446744073709551615"
_BARRIER = "#0..15/u32!"
_THREADS = "#%32/u32!"

SIGNATURES: dict[str, str | Callable[[tuple[str, ...]], str]] = {
    "ld": _load,
    "ldu": lambda modifiers: _load(modifiers).partition(";")[0],
    "st": _store,
    "mov": "",
    "cvta": _cvta,
    "isspacep": "=pred u64/u32",
    "mapa": "=$ $/& u32",
    "getctarank": "=u32 $/&",
    "atom": _atom,
    "red": _red,
    "red.async": "@ $ @shared",
    "st.async": _async_store,
    "tensormap.replace": _replace,
    "tensormap.cp_fenceproxy": "@ @ #128",
    "fence.tensormap": _map_fence,
    "mbarrier.init": _init,
    "mbarrier.inval": _barrier,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive_drop": _arrive,
    "mbarrier.expect_tx": _transaction,
    "mbarrier.complete_tx": _transaction,
    "mbarrier.test_wait": _test_wait,
    "mbarrier.try_wait": _try_wait,
    "mbarrier.pending_count": "=u32 u64",
    # without .shared: a generic address if it has 64 bits, otherwise one in shared memory
    "cp.async.mbarrier": "@shared",
    "cp.async.bulk": _bulk,
    "cp.reduce": _bulk,
    "cp.async.bulk.prefetch": _bulk_prefetch,
    "cp.async.bulk.tensor": _tensor,
    "cp.reduce.async.bulk.tensor": _tensor,
    "cp.async.bulk.prefetch.tensor": _tensor_prefetch,
    "cp.async.bulk.wait_group": "#",
    "prefetch": "@",
    "prefetchu": "@",
    "discard": "@ #128",
    "applypriority": "@ #128",
    "createpolicy": _createpolicy,
    "cp.async": _cp_async,
    "cp.async.wait_group": "#",
    "bra": "L",
    "brx": "u32! L",
    "alloca": "=$ $; =$ $ #",
    "stacksave": "=$",
    "stackrestore": "$!",
    "nanosleep": "u32",
    "pmevent": lambda modifiers: "#" if "mask" in modifiers else "#0..15",
    "setmaxnreg": "#24,32,40,48,56,64,72,80,88,96,104,112,120,128,136,144,152,160,168,176,184,192,200,208,216,224,232,"
    "240,248,256",
    "bar.warp": "u32",
    "bar": f"{_BARRIER}; {_BARRIER} {_THREADS}",
    "barrier.cluster": " ",
    "barrier": f"{_BARRIER}; {_BARRIER} {_THREADS}",
    "bar.arrive": f"{_BARRIER} {_THREADS}",
    "barrier.arrive": f"{_BARRIER} {_THREADS}",
    "bar.red": f"=$ {_BARRIER} p; =$ {_BARRIER} {_THREADS} p",
    "barrier.red": f"=$ {_BARRIER} p; =$ {_BARRIER} {_THREADS} p",
    "activemask": "=b32",
    "shfl.sync": "=b32|p b32 u32/b32 u32 u32",
    "vote.sync": _vote,
    "match.sync": _match,
    "redux.sync": _redux,
    "elect.sync": "=u32?|P u32",
    "ldmatrix": "{=b32?} @",
    "stmatrix": "@ {b32}",
    "movmatrix": "=b32 b32!",
    "wmma.load": _wmma_load,
    "wmma.store": _wmma_store,
    "wmma.mma": _wmma_mma,
    "mma": _mma,
    "wgmma.mma_async": _wgmma,
    "wgmma.wait_group": "#0..4294967295",
}
"""The signature of each name in the table of opcodes, or a function from its modifiers to it."""
