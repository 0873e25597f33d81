"""The operands that each instruction takes.

A signature is a text: the operands in order, separated by spaces; several signatures, separated by semicolons, if the
number of operands varies.

    T       a register or literal of the type T          T!      a register, no literal
    =T      a register that is written                   =T?     the same, or ``_``
    =T|p    =T, or a pair of it and a predicate or _     {T}     a vector of registers; {=T}, {T!} and {=T?} likewise
    =T|P    a pair of =T and a predicate
    p       a predicate: a register, a negated one, or a literal integer
    @       an address in the state space that the instruction names, or a generic one
    &       the address of a variable in that space
    #       a literal integer; #0..15 in this range; #4,8,16 one of these; #%32 a multiple of 32
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
    return f"{target} @; {target} @ b64"


def _store(modifiers: tuple[str, ...]) -> str:
    value = "{~$}" if is_vector(modifiers) else "~$"
    return f"@ {value}; @ {value} b64"


def _atom(modifiers: tuple[str, ...]) -> str:
    if is_vector(modifiers):
        return "{=$?} @ {$}; {=$?} @ {$} b64"
    return "=$? @ $ $; =$? @ $ $ b64" if "cas" in modifiers else "=$? @ $; =$? @ $ b64"


def _red(modifiers: tuple[str, ...]) -> str:
    return "@ {$}; @ {$} b64" if is_vector(modifiers) else "@ $; @ $ b64"


def _cp_async(modifiers: tuple[str, ...]) -> str:
    short = f"@ @ {'#16' if 'cg' in modifiers else '#4,8,16'}"
    if "L2::cache_hint" in modifiers:
        return f"{short} b64; {short} u32/p b64"
    return f"{short}; {short} #0..16/u32!/p"


def _wait(modifiers: tuple[str, ...]) -> str:
    state = "u32" if "parity" in modifiers else "b64!"
    return f"=pred @ {state}; =pred @ {state} u32"


def _cvta(modifiers: tuple[str, ...]) -> str:
    return "=u64 u64" if "to" in modifiers else "=u64 u64/&"


def _createpolicy(modifiers: tuple[str, ...]) -> str:
    if "range" in modifiers:
        return "=b64 @ u32 u32"
    return "=b64 b64" if "cvt" in modifiers else "=b64; =b64 f32"


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
    "red.async": "@ $ @",
    "st.async": lambda modifiers: "@ {$} @" if is_vector(modifiers) else "@ $ @",
    "mbarrier.init": "@ u32",
    "mbarrier.inval": "@",
    "mbarrier.arrive": "=b64? @; =b64? @ u32",
    "mbarrier.arrive_drop": "=b64? @; =b64? @ u32",
    "mbarrier.expect_tx": "@ u32",
    "mbarrier.complete_tx": "@ u32",
    "mbarrier.test_wait": _wait,
    "mbarrier.try_wait": _wait,
    "mbarrier.pending_count": "=u32 b64!",
    "cp.async.mbarrier": "@",
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
