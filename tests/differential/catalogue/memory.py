"""Loads, stores, address conversions, prefetches, fences and asynchronous copies, each on the lane's own memory."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, statements

TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
SCOPES = ("cta", "cluster", "gpu", "sys")
_ADDRESS = ".reg .b64 p; .reg .b32 q;"
_LOCAL = f"{_ADDRESS} .local .align 16 .b8 own[64];"
_SHARED = "mad.lo.u32 q, %tid_, 64, %tile; cvt.u64.u32 p, q; "
# the state space in an access, the statements that set the address p, the declarations
SPACES: dict[str, tuple[str, str, str]] = {
    "global": (".global", "mov.u64 p, %cell; ", _ADDRESS),
    "generic": ("", "mov.u64 p, %cell; ", _ADDRESS),
    "shared": (".shared", _SHARED, _ADDRESS),
    "shared::cta": (".shared::cta", _SHARED, _ADDRESS),
    "generic to shared": ("", f"{_SHARED}cvta.shared.u64 p, p; ", _ADDRESS),
    "local": (".local", "mov.u64 p, own; ", _LOCAL),
    "generic to local": ("", "mov.u64 p, own; cvta.local.u64 p, p; ", _LOCAL),
}
_LOAD_HINTS = (".ca", ".cg", ".cs", ".lu", ".cv", ".volatile", ".weak", ".mmio.relaxed.sys")
_LOAD_HINTS += tuple(f".{order}.{scope}" for order in ("relaxed", "acquire") for scope in SCOPES)
_STORE_HINTS = (".wb", ".cg", ".cs", ".wt", ".volatile", ".weak", ".mmio.relaxed.sys")
_STORE_HINTS += tuple(f".{order}.{scope}" for order in ("relaxed", "release") for scope in SCOPES)
_EVICT = ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")


def _size(kind: str) -> int:
    return int(kind[1:])


def _register(kind: str) -> str:
    return "b16" if _size(kind) == 8 else f"b{_size(kind)}" if kind[0] != "f" else kind


def forms() -> Iterator[Form]:
    yield from _loads()
    yield from _stores()
    yield from _constants()
    yield from _addresses()
    yield from _hints()
    yield from _copies()


def load(space: str, hints: str, kind: str, count: int = 1, into: str = "", offset: int = 0) -> Form:
    """Store 16 bytes, then load elements of them."""
    name, address, declare = SPACES[space]
    register = into or _register(kind)
    vector = f".v{count}" if count > 1 else ""
    target = "{" + ", ".join(f"d{k}" for k in range(count)) + "}" if count > 1 else "d0"
    ordered = hints.startswith((".relaxed", ".acquire", ".volatile", ".weak", ".mmio"))
    head = f"ld{hints}{name}" if ordered else f"ld{name}{hints}"
    text = f"{address}st{name}.v2.b64 [p], {{a, b}}; {head}{vector}.{kind} {target}, [p+{offset}];"
    return statements(f"ld {space}", text, "u64 u64", " ".join([register] * count), declare=declare)


def store(space: str, hints: str, kind: str, count: int = 1, offset: int = 0) -> Form:
    """Clear 16 bytes, store elements to them, and load all."""
    name, address, declare = SPACES[space]
    register = _register(kind)
    vector = f".v{count}" if count > 1 else ""
    source = "{" + ", ".join("abcd"[:count]) + "}" if count > 1 else "a"
    ordered = hints.startswith((".relaxed", ".release", ".volatile", ".weak", ".mmio"))
    head = f"st{hints}{name}" if ordered else f"st{name}{hints}"
    text = f"{address}st{name}.v2.b64 [p], {{-1, 0}}; {head}{vector}.{kind} [p+{offset}], {source}; "
    text += f"ld{name}.v2.b64 {{d0, d1}}, [p];"
    return statements(f"st {space}", text, " ".join([register] * count), "u64 u64", declare=declare)


def _loads() -> Iterator[Form]:
    for space in SPACES:
        for kind in TYPES:
            size = _size(kind) // 8
            yield load(space, "", kind, offset=size)
            for count in (2, 4):
                if size * count <= 16:
                    yield load(space, "", kind, count)
            for wider in (16, 32, 64):  # into a wider register: signed types are sign-extended
                if kind[0] != "f" and wider > _size(kind) and not (size == 1 and wider == 16):
                    yield load(space, "", kind, into=f"b{wider}", offset=size)
        yield load(space, "", "s8", 4, into="b32", offset=4)
        yield load(space, "", "s16", 2, into="b64", offset=4)
        for number, hint in enumerate(_LOAD_HINTS):
            if (".mmio" in hint and space not in ("global", "generic")) or (
                "local" in space and ("." in hint[1:] or hint in (".weak", ".volatile"))
            ):
                continue
            if "shared" in space and hint in (".ca", ".cg", ".cs", ".lu", ".cv"):
                continue
            kinds = ("u32", "s32", "b64", "f32", "u16", "f64", "s64", "b32")
            yield load(space, hint, kinds[number % len(kinds)])
            if ".mmio" not in hint:
                yield load(space, hint, "u32", 4)


def _stores() -> Iterator[Form]:
    for space in SPACES:
        for kind in TYPES:
            size = _size(kind) // 8
            yield store(space, "", kind, offset=size)
            for count in (2, 4):
                if size * count <= 16:
                    yield store(space, "", kind, count)
        for number, hint in enumerate(_STORE_HINTS):
            if (".mmio" in hint and space not in ("global", "generic")) or (
                "local" in space and ("." in hint[1:] or hint in (".weak", ".volatile"))
            ):
                continue
            if "shared" in space and hint in (".wb", ".cg", ".cs", ".wt"):
                continue
            kinds = ("u32", "f32", "b64", "s16", "u8", "f64", "s64", "b32")
            kind = "u32" if ".mmio" in hint else kinds[number % len(kinds)]
            yield store(space, hint, kind)
            if ".mmio" not in hint:
                yield store(space, hint, "u32", 4)


def _constants() -> Iterator[Form]:
    group = "ld const"
    numbers = ", ".join(str((k * 2654435761 + 0x80F1) & 0xFFFFFFFF) for k in range(64))
    table = f".const .align 16 .b32 table$[64] = {{{numbers}}};"
    address = "mov.u64 p, table$; mad.wide.u32 p, a, 16, p; "
    for kind in TYPES:
        size = _size(kind) // 8
        text = f"{address}ld.const.{kind} d0, [p+{size if size < 16 else 0}];"
        yield statements(group, text, "u32:below16", _register(kind), declare=_ADDRESS, outside=table)
        if size <= 4:
            text = f"{address}ld.const.v4.{kind} {{d0, d1, d2, d3}}, [p];"
            yield statements(
                group, text, "u32:below16", " ".join([_register(kind)] * 4), declare=_ADDRESS, outside=table
            )
    text = "ld.const.u32 d0, [table$+8]; ld.const.v2.b64 {d1, d2}, [table$+16];"
    yield statements(group, text, "u32", "u32 u64 u64", outside=table)
    text = f"{address}cvta.const.u64 p, p; ld.u32 d0, [p]; ld.v2.u16 {{d1, d2}}, [p+4];"
    yield statements(group, text, "u32:below16", "u32 u16 u16", declare=_ADDRESS, outside=table)
    # module variables with initialisers
    values = ".global .align 8 .b8 bytes$[8] = {1, 2, 3, 250, 5, 6, 7, 8}; .global .f32 real$ = 0f3FC00000;"
    values += " .global .u64 where$ = generic(bytes$);"
    text = "ld.global.b64 d0, [bytes$]; ld.global.f32 d1, [real$]; ld.global.u64 p, [where$]; ld.s8 d2, [p+3];"
    yield statements("module variables", text, "u32", "u64 f32 b32", declare=_ADDRESS, outside=values)


def _addresses() -> Iterator[Form]:
    group = "cvta and isspacep"
    spaces = ("global", "shared", "local", "const", "shared::cta", "shared::cluster", "param")
    asked = " ".join(f"isspacep.{space} d{k}, p;" for k, space in enumerate(spaces))
    outputs = " ".join(["pred"] * len(spaces))
    table = ".const .align 16 .b32 some$[4] = {1, 2, 3, 4}; .global .align 16 .b32 more$[4];"
    for text, declare in (
        ("mov.u64 p, %cell; ", _ADDRESS),
        (f"{_SHARED}cvta.shared.u64 p, p; ", _ADDRESS),
        ("mov.u64 p, own; cvta.local.u64 p, p; ", _LOCAL),
        ("mov.u64 p, some$; cvta.const.u64 p, p; ", _ADDRESS),
        ("mov.u64 p, more$; cvta.global.u64 p, p; ", _ADDRESS),
        ("cvta.global.u64 p, more$; ", _ADDRESS),
        ("cvta.const.u64 p, some$; ", _ADDRESS),
        ("cvta.local.u64 p, own; ", _LOCAL),
    ):
        yield statements(group, text + asked, "u32", outputs, declare=declare, outside=table)
    for space, (_, address, declare) in SPACES.items():
        if not space.startswith("generic to"):
            where = space.partition("::")[0].replace("generic", "global")
            text = f"{address}cvta.{where}.u64 w, p; st.u64 [w], a; cvta.to.{where}.u64 w, w; "
            text += f"ld.{where}.u64 d0, [w]; setp.eq.u64 d1, w, p;"
            yield statements(group, text, "u64", "u64 pred", declare=f"{declare} .reg .b64 w;")
    text = "mov.u64 p, more$+4; sub.u64 p, p, 4; st.volatile.global.u32 [more$+8], a; ld.volatile.global.u32 d0, [p+8];"
    yield statements(group, text, "u32:below1", "u32", declare=_ADDRESS, outside=table)


def _hints() -> Iterator[Form]:
    group = "ld global.nc and hints"
    row = "sub.u64 p, %i, %n; "  # the operand's own row, which is never written
    for kind in TYPES:
        text = f"{row}ld.global.nc.{kind} d0, [p];"
        yield statements(group, text, "u64", _register(kind), declare=_ADDRESS)
        if _size(kind) * 2 <= 64:
            text = f"{row}ld.global.nc.v2.{kind} {{d0, d1}}, [p];"
            yield statements(group, text, "u64", " ".join([_register(kind)] * 2), declare=_ADDRESS)
    for hint in (".ca", ".cg", ".cs"):
        yield statements(group, f"{row}ld.global{hint}.nc.u32 d0, [p];", "u64", "u32", declare=_ADDRESS)
    for level in ("64B", "128B", "256B"):
        for nc in ("", ".nc"):
            text = f"{row}ld.global{nc}.L2::{level}.u64 d0, [p];"
            yield statements(group, text, "u64", "u64", declare=_ADDRESS)
    for evict in _EVICT:
        for nc in ("", ".nc"):
            text = f"{row}ld.global{nc}.L1::{evict}.u64 d0, [p];"
            yield statements(group, text, "u64", "u64", declare=_ADDRESS)
        text = f"st.global.L1::{evict}.u64 [%cell], a; ld.global.u64 d0, [%cell];"
        yield statements(group, text, "u64", "u64")
    for policy in ("evict_last", "evict_normal", "evict_first", "evict_unchanged"):
        text = f"createpolicy.fractional.L2::{policy}.b64 p, 1.0; st.global.L2::cache_hint.u64 [%cell], a, p; "
        text += "ld.global.L2::cache_hint.u64 d0, [%cell], p;"
        yield statements(group, text, "u64", "u64", declare=_ADDRESS)
    yield statements(group, f"{row}ldu.global.u32 d0, [p];", "u64", "u32", declare=_ADDRESS)
    written, read = "st.global.u64 [%cell], a; ", " ld.global.u64 d0, [%cell];"
    for text in (
        "prefetch.global.L1 [%cell];",
        "prefetch.global.L2 [%cell];",
        "prefetch.L1 [%cell];",
        "prefetch.L2 [%cell];",
        "prefetchu.L1 [%cell];",
        "prefetch.global.L2::evict_last [%cell];",
        "prefetch.global.L2::evict_normal [%cell];",
        "nanosleep.u32 20;",
    ):
        yield statements("prefetch and fences", written + text + read, "u64", "u64")
    for text in (
        *(f"membar.{level};" for level in ("cta", "gl", "sys")),
        *(f"fence.{order}.{scope};" for order in ("sc", "acq_rel") for scope in SCOPES),
        *(f"fence.{scope};" for scope in SCOPES),
        "fence.proxy.alias;",
        "fence.proxy.async;",
        "fence.proxy.async.global;",
        "fence.proxy.async.shared::cta;",
    ):
        yield statements("prefetch and fences", written + text + read, "u64", "u64")


def _copies() -> Iterator[Form]:
    group = "cp.async"
    wait = "cp.async.wait_all; "
    # the operand's row, at a multiple of 16 bytes
    start = "mad.lo.u32 q, %tid_, 64, %tile; sub.u64 p, %i, %n; and.b64 p, p, -16; st.shared.v2.b64 [q], {-1, -1}; "
    end = "ld.shared.v2.b64 {d0, d1}, [q];"
    for cache, sizes in (("ca", (4, 8, 16)), ("cg", (16,))):
        for size in sizes:
            for level in ("", ".L2::64B", ".L2::128B", ".L2::256B"):
                for space in ("shared", "shared::cta"):
                    text = f"cp.async.{cache}.{space}.global{level} [q], [p], {size}; "
                    yield statements(group, start + text + wait + end, "u64", "u64 u64", declare=_ADDRESS)
            text = f"mov.u32 z, {size // 2}; cp.async.{cache}.shared.global [q], [p], {size}, z; "
            declare = f"{_ADDRESS} .reg .b32 z; .reg .pred y;"
            yield statements(group, start + text + wait + end, "u64", "u64 u64", declare=declare)
            text = f"and.b32 z, %tid_, {size}; cp.async.{cache}.shared.global [q], [p], {size}, z; "
            yield statements(group, start + text + wait + end, "u64", "u64 u64", declare=declare)
            text = f"and.b32 z, %tid_, 1; setp.eq.u32 y, z, 1; cp.async.{cache}.shared.global [q], [p], {size}, y; "
            yield statements(group, start + text + wait + end, "u64", "u64 u64", declare=declare)
    text = "cp.async.ca.shared.global [q], [p], 4; cp.async.commit_group; "
    text += "cp.async.ca.shared.global [q+8], [p+8], 8; cp.async.commit_group; cp.async.wait_group 1; "
    text += "ld.shared.u32 d2, [q]; cp.async.wait_group 0; "
    yield statements(group, start + text + end, "u64", "u64 u64 u32", declare=_ADDRESS)
    start += "st.shared.v2.b64 [q+16], {-1, -1}; "
    text = "cp.async.ca.shared.global [q], [p], 16; @y cp.async.cg.shared.global [q+16], [p], 16; "
    text += "cp.async.commit_group; cp.async.wait_group 0; ld.shared.b64 d2, [q+24]; "
    text = "and.b32 z, %tid_, 1; setp.eq.u32 y, z, 1; " + text
    yield statements(group, start + text + end, "u64", "u64 u64 u64", declare=f"{_ADDRESS} .reg .b32 z; .reg .pred y;")
