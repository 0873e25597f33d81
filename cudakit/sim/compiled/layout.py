"""The memory that machine code and Python share: words of 8 bytes, by name."""

from __future__ import annotations

from cudakit.sim.lockstep.memory import round_up

LANES = 32
# lanes of the vectors in which arithmetic is done; a warp is CHUNKS of them
WIDTH = 8
CHUNKS = LANES // WIDTH


def _numbered(*names: str) -> dict[str, int]:
    return {name: 8 * number for number, name in enumerate(names)}


# the state of a launch; offsets in bytes
CONTEXT = _numbered(
    *(
        "params",
        "shared",
        "shared_limit",
        "shared_bytes",
        "shared_cells",
        "shared_shift",
        "global_shift",
        "writes",
        "reads",
    ),
    # the time: increases at each barrier; the time before the block's last barrier; the times of the last accesses
    *("now", "floor", "last_write", "last_read", "full", "looks"),
    # loads of shared memory that are not in the table of reads, the chunks of shared memory that they are in, as bits,
    # and the binary logarithm of a chunk's bytes
    *("pending", "pending_count", "pending_chunks", "chunk_shift"),
    *("ctaid_x", "ctaid_y", "ctaid_z", "nctaid_x", "nctaid_y", "nctaid_z", "ntid_x", "ntid_y", "ntid_z", "block"),
    *("warps", "registers", "register_bytes", "states", "start_states", "thread_ids", "unset_bytes"),
    *("sites", "counts", "caches", "patterns", "find", "count_pattern", "step_limit", "counting", "checked", "init"),
    "exited",
    # whether a warp has jumped backwards as often as makes the interpreter's fragments yield, and whether one has with
    # other lanes of its warp elsewhere
    *("tired", "parted"),
    # a barrier that reduces a predicate of all threads: how, the place of the result's register, the threads for which
    # the predicate is true, and all threads
    *("reduction", "reduced", "votes", "voters"),
    # the table of atomics, and the barriers that the block has passed
    *("atomics", "phase"),
    # the copies to shared memory that have not been waited for, and their number in the block
    *("copies", "flying"),
    # local memory and the lanes that have written it (local_memory.py), the bytes of a thread, and these rounded up
    *("local", "local_written", "local_limit", "local_stride"),
)
# after them, a number per lane: by how much to shift a mask so that the lane's bit becomes the sign
SHIFTS = round_up(8 * len(CONTEXT), 64)
CONTEXT_BYTES = SHIFTS + 4 * LANES
# per site: how often, by how many lanes; and the cost: sectors or wavefronts, the least possible, the worst; of atomics
# the lanes at the most contended address, and the most of them
SITE = _numbered("requests", "lanes", "cost", "ideal", "worst", "depth", "deepest")
SITE_BYTES = 64
# per global access: the allocation that it found last. `flags`: whether its accesses need checks
CACHE = _numbered("base", "low", "high", "writes", "reads", "undefined", "shift", "flags")
CACHE_BYTES = 64
# per atomic: the bytes that it has accessed, and the barriers that its block had passed before, plus 1
ATOMIC = _numbered("low", "high", "phase")
ATOMIC_BYTES = 32
# per warp: the place of each lane in the program (32 numbers of 4 bytes), the time of its last bar.warp.sync, its
# backward jumps, the groups of copies that it has committed, and its copies that have not been waited for
SYNCED, JUMPS, COMMITTED, COPIES = 128, 136, 144, 152
STATE_BYTES = 192
# places that are not blocks of the program
EXITED, WAITING, DEFERRED = 0x7FFFFFFF, 0x40000000, 0x20000000
# loads of shared memory of which the next barrier decides whether they matter
PENDING = {"time": 0, "mask": 8, "thread": 12, "offsets": 16, "count": 24, "bases": 64}
PENDING_BYTES, PENDING_MOST = 192, 4096
# copies to shared memory that have not been waited for, per warp: their group, lanes, granules per lane and offsets
COPY = {"group": 0, "mask": 8, "count": 12, "offsets": 64}
COPY_BYTES, COPIES_MOST = 192, 256
# patterns of shared requests and their wavefronts
PATTERN = {"mask": 0, "kind": 4, "passes": 8, "fewest": 12, "worst": 16, "offsets": 64}
PATTERN_BYTES, PATTERNS = 192, 256
# A word of a table of shared accesses is time << 16 | several << 14 | thread, a word of a table of global accesses
# (block + 1) << 34 | time << 12 | several << 10 | thread. `several` of reads: 0 one thread, 1 threads of one warp
# (global: of one block), 2 others; of writes: 0 a store, 1 to 3 atomics by as many.
TIME, SEVERAL, THREAD = 16, 14, (1 << 14) - 1
# in a word of a table of shared accesses: a copy will write there that has not been waited for
IN_FLIGHT = 1 << 62
BLOCK, GLOBAL_TIME, GLOBAL_SEVERAL, GLOBAL_THREAD = 34, 12, 10, (1 << 10) - 1
MOST_TIME = (1 << (BLOCK - GLOBAL_TIME)) - 1
# what an access does
LOADS, STORES, UPDATES = 0, 1, 2
# the results of functions that can fail: the interpreter must run the launch
FINE, BAIL = 0, -1
# the reductions of a barrier, and the form of the result's register: bits per lane or one byte, numbers or one number
COUNT, EVERY, ANYONE = 1, 2, 3
PER_LANE = 4
# the order of the offsets of a shared access in each vector of WIDTH lanes
ANYHOW, EQUAL, IN_A_ROW = 0, 1, 2
