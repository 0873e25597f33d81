"""Parts of the kernels that test copies, in PTX.

A kernel has a tile of shared memory, then mbarriers. Registers: %tile, %bar: their addresses in the shared window;
%in, %out: of input and output in global memory; %thread, %rank (of the block in its cluster), %first (thread 0), %flag:
1 if a wait was given up. A kernel ends with the tile and the flag in the output, at the block's own part of it.
"""

from __future__ import annotations

THREADS = 128
TRAILER = 16  # bytes after the tile in the output: the flag
_POLLS = 200  # the most polls of a wait: the GPU does not hang if the bytes do not arrive
_BARRIERS = 64  # bytes of shared memory for mbarriers


def begin(tile: int, maps: int = 0) -> list[str]:
    """Declare registers and shared memory, and read the parameters."""
    return [
        f".shared .align 1024 .b8 tile[{tile + _BARRIERS}];",
        ".reg .b64 %in, %out, %at, %w, %policy, %wide<4>;",
        ".reg .b32 %thread, %rank, %tile, %bar, %x, %y, %s, %flag, %n, %far, %farbar, %peer, %v<8>;",
        ".reg .pred %p, %q, %first; .reg .b16 %mask;",
        *([f".reg .b64 %map<{maps}>;"] if maps else []),
        "ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];",
        "cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;",
        *(f"mov.b64 %map{k}, pmap{k}; cvta.param.u64 %map{k}, %map{k};" for k in range(maps)),
        f"mov.u32 %thread, %tid.x; mov.u32 %tile, tile; add.u32 %bar, %tile, {tile}; mov.u32 %flag, 0;",
        "mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %first, %thread, 0;",
    ]


def loop(label: str, size: int, step: int, statements: list[str]) -> list[str]:
    """Repeat statements for %x from `step` times the thread's number, below `size`; %w has %x as 64 bits."""
    return [
        f"mul.lo.u32 %x, %thread, {step};",
        f"{label}: setp.ge.u32 %p, %x, {size}; @%p bra {label}_END;",
        "cvt.u64.u32 %w, %x;",
        *statements,
        f"add.u32 %x, %x, {step * THREADS}; bra {label};",
        f"{label}_END:",
    ]


def fill(size: int) -> list[str]:
    """Fill the tile with bytes that show which of them a copy has written."""
    word = "0xA5A5A5A5"
    return [
        f"mov.b32 %v0, {word};",
        *loop("FILL", size, 16, ["add.u32 %s, %tile, %x; st.shared.v4.b32 [%s], {%v0, %v0, %v0, %v0};"]),
    ]


def take(size: int, ranked: bool = False) -> list[str]:
    """Load the first bytes of the input to the tile. ranked: each block of a cluster has its own part of the input."""
    vector = "{%v0, %v1, %v2, %v3}"
    return [
        "mov.b64 %at, %in;",
        *([f"mul.wide.u32 %w, %rank, {size}; add.u64 %at, %at, %w;"] if ranked else []),
        *loop(
            "TAKE",
            size,
            16,
            [
                "add.u64 %wide0, %at, %w; add.u32 %s, %tile, %x;",
                f"ld.global.v4.b32 {vector}, [%wide0]; st.shared.v4.b32 [%s], {vector};",
            ],
        ),
    ]


def init(counts: tuple[int, ...] = (1,)) -> list[str]:
    """Initialise mbarriers, by thread 0."""
    return [
        "@!%first bra INITIALISED;",
        *(f"mbarrier.init.shared.b64 [%bar+{8 * k}], {count};" for k, count in enumerate(counts)),
        "INITIALISED:",
    ]


def ready(cluster: int) -> list[str]:
    """Make the mbarriers visible, and generic stores visible to asynchronous copies, in all blocks of the cluster."""
    lines = ["fence.mbarrier_init.release.cluster; fence.proxy.async;"]
    return lines + (["bar.sync 0;"] if cluster == 1 else together())


def together() -> list[str]:
    return ["barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"]


def by_first(statements: list[str], label: str = "ISSUED") -> list[str]:
    """Statements that thread 0 runs."""
    return [f"@!%first bra {label};", *statements, f"{label}:"]


def wait(cluster: int = 1) -> list[str]:
    """Wait for the first phase of the mbarrier; give up after a number of polls. cluster: blocks that may send."""
    label, scope = "WAIT", ".acquire.cluster" if cluster > 1 else ""
    return [
        "mov.u32 %n, 0;",
        f"{label}: mbarrier.try_wait.parity{scope}.shared::cta.b64 %p, [%bar], 0; @%p bra {label}_END;",
        f"add.u32 %n, %n, 1; setp.lt.u32 %q, %n, {_POLLS}; @%q bra {label}; mov.u32 %flag, 1;",
        f"{label}_END:",
    ]


def dump(size: int, cluster: int) -> list[str]:
    """Store the tile and the flag to the block's part of the output."""
    vector = "{%v0, %v1, %v2, %v3}"
    return [
        *(together() if cluster > 1 else ["bar.sync 0;"]),
        f"mul.wide.u32 %wide1, %rank, {size + TRAILER}; add.u64 %out, %out, %wide1;",
        *loop(
            "DUMP",
            size,
            16,
            [
                "add.u64 %wide0, %out, %w; add.u32 %s, %tile, %x;",
                f"ld.shared.v4.b32 {vector}, [%s]; st.global.v4.b32 [%wide0], {vector};",
            ],
        ),
        f"@%first st.global.v4.b32 [%out+{size}], {{%flag, %flag, %flag, %flag}};",
        "ret;",
    ]


def dumped(size: int, cluster: int = 1) -> int:
    """Return the bytes of output of `dump`."""
    return cluster * (size + TRAILER)


def flags(size: int, cluster: int = 1) -> tuple[int, ...]:
    """Return the offsets of each block's flag in the output of `dump`."""
    return tuple(rank * (size + TRAILER) + size for rank in range(cluster))


def rounded(size: int, to: int = 128) -> int:
    return -(-size // to) * to
