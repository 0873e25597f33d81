"""Cases of st.async, red.async, cp.async.mbarrier.arrive and stmatrix."""

from __future__ import annotations

from collections.abc import Iterator

from .bulk_copies import DONE, SHARED_OPERATIONS, random_bytes, to_peer
from .case import Case, untouched
from .copy_kernel import THREADS, begin, by_first, dump, dumped, fill, flags, init, ready, take, wait
from .values import BITS

_TYPES = ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
_LANES = 32  # threads that send
_HALF = 1024  # bytes of each half of the tile: sources, then destinations


def _case(group: str, name: str, lines: list[str], size: int, cluster: int, given: int) -> Case:
    return Case(
        "copies",
        group,
        name,
        "\n".join([*lines, *dump(size, cluster)]),
        lambda: random_bytes(name, given),
        lambda: untouched(dumped(size, cluster)),
        THREADS,
        cluster,
        flags=flags(size, cluster),
    )


def _sending(cluster: int, step: int, total: int, statements: list[str]) -> list[str]:
    """Threads of the first warp send; %far: the destinations in the block `step` ranks further. Then wait for `total`
    bytes."""
    size = 2 * _HALF
    return [
        *begin(size),
        ".reg .b64 %b<4>; .reg .f32 %f<4>; .reg .f64 %g<4>;",
        *take(size, ranked=True),
        *init(),
        *ready(cluster),
        *to_peer(step, cluster),
        *by_first([f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {total};"], "EXPECTED"),
        f"add.u32 %far, %far, {_HALF};",
        f"setp.ge.u32 %p, %thread, {_LANES}; @%p bra SENT;",
        *statements,
        "SENT:",
        *wait(cluster),
    ]


def _register(kind: str) -> str:
    return {"f32": "%f", "f64": "%g"}.get(kind, "%v" if BITS[kind] == 32 else "%b")


def _stores() -> Iterator[Case]:
    for kind in _TYPES:
        for count in (1, 2, 4) if BITS[kind] == 32 else (1, 2):
            for cluster, step in ((2, 1), (4, 3), (2, 0)):
                bytes_ = count * BITS[kind] // 8
                names = [f"{_register(kind)}{k}" for k in range(count)]
                listed = names[0] if count == 1 else "{" + ", ".join(names) + "}"
                vector = f".v{count}" * (count > 1)
                sent = [
                    f"mul.lo.u32 %x, %thread, {bytes_}; add.u32 %s, %tile, %x; add.u32 %far, %far, %x;",
                    f"ld.shared{vector}.{kind} {listed}, [%s];",
                    f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{kind} "
                    f"[%far], {listed}, [%farbar];",
                ]
                name = f"st.async{vector}.{kind} to rank +{step} of {cluster}"
                lines = _sending(cluster, step, _LANES * bytes_, sent)
                yield _case("st.async and red.async", name, lines, 2 * _HALF, cluster, cluster * 2 * _HALF)


def _reductions() -> Iterator[Case]:
    for op, types in SHARED_OPERATIONS.items():
        for kind in types:
            # one lane per element; four elements, each the destination of eight lanes
            for elements in (_LANES, 4) if op not in ("inc", "dec") else (_LANES,):
                bytes_ = BITS[kind] // 8
                value = f"{_register(kind)}0"
                sent = [
                    f"mul.lo.u32 %x, %thread, {bytes_}; add.u32 %s, %tile, %x; ld.shared.{kind} {value}, [%s];",
                    f"and.b32 %x, %thread, {elements - 1}; mad.lo.u32 %far, %x, {bytes_}, %far;",
                    f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{kind} "
                    f"[%far], {value}, [%farbar];",
                ]
                name = f"red.async.{op}.{kind} to {elements} elements"
                lines = _sending(2, 1, _LANES * bytes_, sent)
                yield _case("st.async and red.async", name, lines, 2 * _HALF, 2, 4 * _HALF)


def _arrivals() -> Iterator[Case]:
    """cp.async whose completion arrives at an mbarrier. Without .noinc the pending count is first incremented, so each
    thread arrives once more itself."""
    for bytes_ in (4, 8, 16):
        for noinc in (True, False):
            for copies in (1, 3):
                size = THREADS * 16 * copies
                lines = [*begin(size), *fill(size), *init((THREADS,)), *ready(1)]
                lines.append("mul.lo.u32 %x, %thread, 16; add.u32 %s, %tile, %x; cvt.u64.u32 %w, %x;")
                lines.append("add.u64 %at, %in, %w;")
                for k in range(copies):
                    place = f"[%s+{16 * THREADS * k}], [%at+{16 * THREADS * k}]"
                    lines.append(f"cp.async.ca.shared.global {place}, {bytes_};")
                lines.append(f"cp.async.mbarrier.arrive{'.noinc' * noinc}.shared.b64 [%bar];")
                lines += [] if noinc else ["mbarrier.arrive.shared.b64 _, [%bar];"]
                lines += wait()
                name = f"cp.async.mbarrier.arrive{'.noinc' * noinc} after {copies} copies of {bytes_} bytes"
                yield _case("cp.async.mbarrier.arrive", name, lines, size, 1, size)


def _matrices() -> Iterator[Case]:
    """stmatrix to shared memory, which a bulk store reads."""
    for count in (1, 2, 4):
        for transposed in (False, True):
            size = 128 * count
            registers = "{" + ", ".join(f"%v{k}" for k in range(count)) + "}"
            name = f"stmatrix.x{count}{'.trans' * transposed} and a bulk store"
            lines = [
                *begin(1024),
                *fill(1024),
                "bar.sync 0; setp.ge.u32 %p, %thread, 32; @%p bra STORED;",
                "mul.wide.u32 %w, %thread, 4; add.u64 %at, %in, %w;",
                *(f"ld.global.b32 %v{k}, [%at+{128 * k}];" for k in range(count)),
                f"rem.u32 %x, %thread, {8 * count}; shl.b32 %x, %x, 4; add.u32 %s, %tile, %x;",
                f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [%s], {registers};",
                "STORED:",
                *ready(1),
                *by_first([f"cp.async.bulk.global.shared::cta.bulk_group [%out], [%tile], {size};", DONE]),
                "ret;",
            ]
            yield Case(
                "copies",
                "stmatrix",
                name,
                "\n".join(lines),
                lambda name=name: random_bytes(name, 512),  # type: ignore[misc]
                lambda size=size: untouched(size + 64),  # type: ignore[misc]
            )


def cases() -> list[Case]:
    return [case for part in (_stores(), _reductions(), _arrivals(), _matrices()) for case in part]
