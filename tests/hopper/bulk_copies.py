"""Cases of cp.async.bulk and cp.reduce.async.bulk: all directions, multicast, every operation and type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .case import Bytes, Case, untouched
from .copy_kernel import THREADS, begin, by_first, dump, dumped, fill, flags, init, ready, rounded, take, wait
from .values import BITS, FLOATS, Draw, elements

_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
_REMOTE = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
_SIZES = (16, 32, 48, 64, 112, 128, 144, 256, 528, 1024, 2032, 4096)
DONE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"

GLOBAL_OPERATIONS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
}
SHARED_OPERATIONS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
}


def random_bytes(name: str, size: int) -> Bytes:
    return Draw(name).bytes(size)


def kinds(kind: str, op: str) -> tuple[str, ...]:
    """Return the kinds of values for a reduction."""
    if kind in FLOATS:
        return ("normal", "special", "subnormal", "any")
    return ("small", "any") if op in ("inc", "dec") else ("any",)


def _copies(name: str, lines: list[str], size: int, cluster: int = 1, given: int = 0) -> Case:
    """Return a case whose result is the tile of each block."""
    return Case(
        "copies",
        "cp.async.bulk",
        name,
        "\n".join([*lines, *dump(size, cluster)]),
        lambda: random_bytes(name, given or 8192),
        lambda: untouched(dumped(size, cluster)),
        THREADS,
        cluster,
        flags=flags(size, cluster),
    )


def _expect(size: int) -> str:
    return f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {size};"


def _loads() -> Iterator[Case]:
    """Global to shared memory."""
    for number, size in enumerate(_SIZES):
        source, target = 16 * (number * 5 % 9), 16 * (number * 7 % 8)
        tile = rounded(target + size + 32)
        begun = [*begin(tile), *fill(tile), *init(), *ready(1)]
        for how in ("expected before", "expected after", "cache hint"):
            hint, policy = ("", "")
            if how == "cache hint":
                hint, policy = ".L2::cache_hint", ", %policy"
            copy = f"{_LOAD}{hint} [%s], [%at], {size}, [%bar]{policy};"
            issue = [f"add.u32 %s, %tile, {target}; add.u64 %at, %in, {source};"]
            if policy:
                issue.append("createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;")
            issue += [copy, _expect(size)] if how == "expected after" else [_expect(size), copy]
            name = f"bulk load of {size} bytes from {source} to {target}, {how}"
            yield _copies(name, [*begun, *by_first(issue), *wait()], tile)
    for parts in ((16, 16), (64, 128, 16), (1024, 16, 2048, 512)):
        tile = rounded(sum(parts) + 32 * len(parts))
        issue, at = [_expect(sum(parts))], 0
        for part in parts:
            issue.append(f"add.u32 %s, %tile, {at}; add.u64 %at, %in, {3 * at};")
            issue.append(f"{_LOAD} [%s], [%at], {part}, [%bar];")
            at += part + 32
        lines = [*begin(tile), *fill(tile), *init(), *ready(1), *by_first(issue), *wait()]
        yield _copies(f"bulk loads of {parts} bytes on one mbarrier", lines, tile, given=3 * at + 64)
    issue = ["cp.async.bulk.prefetch.L2.global [%in], 1024;", _expect(1024), f"{_LOAD} [%tile], [%in], 1024, [%bar];"]
    lines = [*begin(1024), *fill(1024), *init(), *ready(1), *by_first(issue), *wait()]
    yield _copies("bulk load of 1024 bytes after a prefetch", lines, 1024)


def stored(
    family: tuple[str, str], size: int, issue: list[str], given: Bytes | None, output: Bytes | None, total: int
) -> Case:
    """Return a case that fills the tile from the input and copies it to the output, which is its result."""
    group, name = family
    lines = [*begin(size), *take(size), *ready(1), *by_first(issue), "ret;"]
    return Case(
        "copies",
        group,
        name,
        "\n".join(lines),
        lambda: random_bytes(name, size) if given is None else given,
        lambda: untouched(total) if output is None else output,
    )


def _stores() -> Iterator[Case]:
    """Shared memory to global memory."""
    for number, size in enumerate(_SIZES):
        source, target = 16 * (number * 3 % 7), 16 * (number * 5 % 11)
        place = f"add.u32 %s, %tile, {source}; add.u64 %at, %out, {target};"
        tile = rounded(source + size)
        for how in ("", "cache hint", "read"):
            hint, policy, made = "", "", ""
            if how == "cache hint":
                hint, policy = ".L2::cache_hint", ", %policy"
                made = "createpolicy.fractional.L2::evict_last.b64 %policy, 0.5;"
            reuse = ""
            if how == "read":  # the tile may be overwritten once it was read
                reuse = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; st.shared.b32 [%s], 0;"
            issue = [place, made, f"{_STORE}{hint} [%at], [%s], {size}{policy};", reuse, DONE]
            name = f"bulk store of {size} bytes from {source} to {target} {how}".rstrip()
            yield stored(("cp.async.bulk", name), tile, issue, None, None, target + size + 64)
    for groups in (2, 3, 5):
        issue = []
        for k in range(groups):
            issue += [f"add.u32 %s, %tile, {256 * k}; add.u64 %at, %out, {320 * k};"]
            issue += [f"{_STORE} [%at], [%s], 256; cp.async.bulk.commit_group;"]
        issue += [f"cp.async.bulk.wait_group {groups - 1}; cp.async.bulk.wait_group.read 1;", DONE]
        name = f"bulk stores in {groups} groups"
        yield stored(("cp.async.bulk", name), 256 * groups, issue, None, None, 320 * groups)


def to_peer(step: int, cluster: int) -> list[str]:
    """Set %far and %farbar to the tile and the mbarrier of the block `step` ranks further."""
    return [
        f"add.u32 %peer, %rank, {step}; rem.u32 %peer, %peer, {cluster};",
        "mapa.shared::cluster.u32 %far, %tile, %peer; mapa.shared::cluster.u32 %farbar, %bar, %peer;",
    ]


def _between_blocks() -> Iterator[Case]:
    """Shared memory to that of a block of the cluster: the first half of the tile to another's second half."""
    for number, size in enumerate((16, 48, 128, 400, 1024, 2048)):
        for cluster, step in ((2, 1), (2, 0), (4, 1), (4, 3)):
            half = rounded(size + 32)
            issue = [_expect(size), f"add.u32 %far, %far, {half + 16 * (number % 3)};"]
            issue.append(f"{_REMOTE} [%far], [%tile], {size}, [%farbar];")
            lines = [*begin(2 * half), *fill(2 * half), "bar.sync 0;", *take(half, ranked=True), *init()]
            lines += [*ready(cluster), *to_peer(step, cluster), *by_first(issue), *wait(cluster)]
            name = f"bulk copy of {size} bytes to rank +{step} of {cluster}"
            yield _copies(name, lines, 2 * half, cluster, given=cluster * half)


def _multicasts() -> Iterator[Case]:
    """Global memory to the same place in several blocks."""
    for cluster, mask, issuer in (
        (2, 1, 0), (2, 2, 0), (2, 3, 0), (2, 3, 1), (2, 1, 1), (4, 15, 0), (4, 10, 0), (4, 6, 3), (4, 8, 1), (4, 15, 2),
    ):  # fmt: skip
        for size in (16, 512, 2048):
            lines = [*begin(2048), *fill(2048), *init(), *ready(cluster)]
            receives = f"mov.u32 %x, {mask}; shr.u32 %x, %x, %rank; and.b32 %x, %x, 1; setp.eq.u32 %p, %x, 0;"
            lines += [receives, "@%p bra SENT;", *by_first([_expect(size)], "EXPECTED"), "SENT:"]
            lines += [f"mov.b16 %mask, {mask}; setp.ne.u32 %q, %rank, {issuer}; @%q bra OTHERS;"]
            lines += by_first([f"{_LOAD}.multicast::cluster [%tile], [%in], {size}, [%bar], %mask;"])
            lines += ["OTHERS:", receives, "@%p bra NOTHING;", *wait(cluster), "NOTHING:"]
            name = f"bulk multicast of {size} bytes by rank {issuer} of {cluster} to {mask:#b}"
            yield _copies(name, lines, 2048, cluster)


def _reductions() -> Iterator[Case]:
    """Shared memory to global memory, with each operation and type."""
    for op, types in GLOBAL_OPERATIONS.items():
        for kind in types:
            for values in kinds(kind, op):
                size = 1024
                noftz = ".noftz" if kind in ("f16", "bf16") and op == "add" else ""
                issue = [
                    f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{kind} [%out], [%tile], {size};"
                ]
                name = f"bulk reduction {op}.{kind} to global memory, {values}"
                given, made = (drawn(f"{name} {k}", kind, values, size) for k in range(2))
                yield stored(("cp.reduce.async.bulk", name), size, [*issue, DONE], given, made, size)


def drawn(name: str, kind: str, values: str, size: int) -> Bytes:
    """Return elements of a type and kind; half of them for "special" are moderate numbers."""
    return elements(kind, values, "c", Draw(name), 8 * size // BITS[kind])


def _shared_reductions() -> Iterator[Case]:
    """Shared memory to that of another block: the first half of the tile to the second half."""
    for op, types in SHARED_OPERATIONS.items():
        for kind in types:
            for cluster, step in ((2, 1), (2, 0)):
                half = 512
                issue = [_expect(half), f"add.u32 %far, %far, {half};"]
                issue.append(
                    f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind} "
                    f"[%far], [%tile], {half}, [%farbar];"
                )
                lines = [*begin(2 * half), *take(2 * half, ranked=True), *init()]
                lines += [*ready(cluster), *to_peer(step, cluster), *by_first(issue), *wait(cluster)]
                name = f"bulk reduction {op}.{kind} to rank +{step} of {cluster}"
                case = _copies(name, lines, 2 * half, cluster, given=cluster * 2 * half)
                yield case


def cases() -> list[Case]:
    made: Sequence[Iterator[Case]] = (
        _loads(), _stores(), _between_blocks(), _multicasts(), _reductions(), _shared_reductions()
    )  # fmt: skip
    return [case for part in made for case in part]
