"""Rules: for each kind of report an id, a sentence that explains it, and the usual fix. SARIF shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """kind: the kind of the reports. summary: their meaning in a sentence. advice: the usual fix."""

    kind: str
    summary: str
    advice: str

    @property
    def id(self) -> str:
        """The kind in lower case, joined by hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.kind.lower()).strip("-")

    @property
    def name(self) -> str:
        """The kind in CamelCase."""
        return "".join(part[0].upper() + part[1:] for part in re.findall(r"[A-Za-z0-9]+", self.kind))


_RULES = (
    Rule(
        "out of bounds",
        "An access outside of an allocation.",
        "Compare the index with the array's extent before the access, and compute indices above 2^31 in 64 bits. The "
        "report names the nearest allocation and the distance to it.",
    ),
    Rule(
        "misaligned",
        "An access at an address that is not a multiple of its size.",
        "Vector loads and stores (float4) need addresses that are multiples of their size: check the row stride and "
        "the first element's offset, or fall back to narrower accesses.",
    ),
    Rule(
        "use after free",
        "An access to memory that was freed.",
        "Keep the array alive until the stream has finished with it: wait for the stream, or call "
        "array.used_on(stream).",
    ),
    Rule("double free", "Memory was freed twice.", "Free each allocation once, by its only owner."),
    Rule(
        "write to constant memory",
        "A kernel stored to constant memory.",
        "Constant memory is read-only in kernels: write it from the host, or use global memory.",
    ),
    Rule(
        "uninitialised read",
        "A kernel read memory or a local variable that was never written.",
        "Initialise the memory (device.zeros, or a store by the kernel) or the variable, or skip elements that no "
        "thread has written.",
    ),
    Rule(
        "shared memory race",
        "Two threads access the same shared memory without synchronisation, and at least one of them writes.",
        "Put __syncthreads() between the two accesses (__syncwarp() within a warp), or use atomics.",
    ),
    Rule(
        "global memory race",
        "Threads of different blocks access the same global memory without synchronisation, and at least one writes.",
        "Use atomics, a flag with release and acquire order, or two launches.",
    ),
    Rule(
        "benign race",
        "A race that cannot change a result: threads store the same value, or an atomicCAS confirms a plain load.",
        'Use an atomic or volatile access, or leave "benign" out of checks=.',
    ),
    Rule(
        "read before cp.async wait",
        "A cp.async result was used before the wait.",
        "Wait for the copy (__pipeline_wait_prior, cp.async.wait_group), then call __syncthreads() before other "
        "threads read the data.",
    ),
    Rule(
        "divergent barrier",
        "Some threads of a block did not reach the barrier at which the others wait.",
        "Move __syncthreads() out of branches and loops whose condition differs between threads, and do not return "
        "before it.",
    ),
    Rule(
        "lanes missing from a warp operation",
        "The mask of a shuffle, vote or warp barrier includes inactive lanes.",
        "Move the call out of the branch, or pass the mask of the lanes that take part, computed before the branch "
        "with __ballot_sync.",
    ),
    Rule(
        "wrong member mask",
        "The mask of a shuffle, vote or warp barrier leaves out the executing lane, or differs between its lanes.",
        "Pass the same mask in all lanes that it includes, and only lanes that execute the call: the result of "
        "__ballot_sync before a branch, or of __activemask() in it.",
    ),
    Rule(
        "read-only load of stored memory",
        "A kernel loaded memory through the read-only cache that the same launch has stored to.",
        "Use a plain load: no __ldg(), and no const __restrict__ for memory that the kernel also writes.",
    ),
    Rule(
        "endless loop",
        "A loop never ends, or used up the launch's limit of iterations; its threads still store or pass barriers.",
        "Check that each iteration changes the loop's condition. If the kernel only takes long, raise the limit: "
        'cudakit.Device("sim", step_limit=...).',
    ),
    Rule(
        "deadlock",
        "All threads that have not ended wait for each other.",
        "Check that every wait ends: all threads reach each barrier, and each lock is released on every path.",
    ),
    Rule(
        "hang",
        "A loop repeats without any change of state, so it never ends.",
        "Check that another thread stores the value for which the loop waits, and that the loop reads it again: use an "
        "atomic or volatile load.",
    ),
    Rule(
        "wgmma register used before the wait",
        "An accumulator of an asynchronous matrix product, or a register of its A, was used while the product is in "
        "flight.",
        "Commit the product's group, and wait for it with wgmma.wait_group, before you use the registers.",
    ),
    Rule(
        "missing wgmma.fence",
        "A warpgroup's first matrix product, or one after an access to its registers, has no wgmma.fence before it.",
        "Execute wgmma.fence.sync.aligned after the last access to the accumulators and to A, and before the product.",
    ),
    Rule(
        "missing wgmma.commit_group",
        "A warpgroup waits for matrix products that it has not committed.",
        "Execute wgmma.commit_group.sync.aligned after the products: wgmma.wait_group waits only for groups.",
    ),
    Rule(
        "divergent wgmma",
        "The four warps of a warpgroup do not execute the same matrix products with the same operands.",
        "Let all 128 threads execute the same wgmma instructions, with descriptors that do not depend on the thread.",
    ),
    Rule(
        "invalid matrix descriptor",
        "A descriptor of a matrix in shared memory contradicts itself.",
        "Align the matrix to the pattern of its swizzle (1024, 512 or 256 bytes), and encode addresses and offsets in "
        "units of 16 bytes.",
    ),
    Rule(
        "divergent setmaxnreg",
        "The four warps of a warpgroup do not execute the same setmaxnreg instructions.",
        "Execute setmaxnreg in all 128 threads of a warpgroup, with one number of registers.",
    ),
    Rule(
        "registers never available",
        "A setmaxnreg waits for more registers than the block has.",
        "Request fewer registers: the sum over all warps must not exceed those at launch, which the launch bounds "
        "determine.",
    ),
    Rule("trap", "The kernel called __trap().", "See the condition that guards the call in the source line."),
    Rule(
        "assertion",
        "An assert() in a kernel failed.",
        "See the condition in the message.",
    ),
    Rule(
        "invalid function pointer",
        "A kernel calls a pointer that is null, or not the address of a function with these parameters.",
        "Set the pointer to a __device__ function of the same type, in device code of the same module.",
    ),
    Rule(
        "stack overflow",
        "A thread needs more stack than its limit.",
        'Recurse less deeply, or raise the limit: device.set_limit("STACK_SIZE", bytes).',
    ),
    Rule(
        "race between streams",
        "Two streams use the same memory without synchronisation, and at least one of them writes.",
        "Order the streams with an event: other.wait(stream.record()).",
    ),
    Rule(
        "access before griddepcontrol.wait",
        "A programmatic dependent launch accesses memory of its predecessor, which may still run, before it waits.",
        "Call cudaGridDependencySynchronize() (griddepcontrol.wait) first, in the same thread or in one that it "
        "synchronises with afterwards.",
    ),
    Rule(
        "race on pinned memory",
        "The host and a stream may use the same pinned memory at the same time.",
        "Wait for the stream, or for an event recorded on it, before the host uses the buffer.",
    ),
    Rule(
        "source changed in flight",
        "The source of an asynchronous copy changed before the copy ran.",
        "Wait for the copy before you write to its source.",
    ),
    Rule(
        "destination changed in flight",
        "The destination of an asynchronous copy was written before the copy ran.",
        "Wait for the copy before you write to its destination.",
    ),
    Rule(
        "result read in flight",
        "The host read the destination of an asynchronous copy before the copy ran.",
        "Wait for the stream before you read the destination.",
    ),
    Rule(
        "freed while in use",
        "Memory was freed while queued work uses it.",
        "Free it on the stream of that work, or call array.used_on(stream).",
    ),
    Rule(
        "used before its allocation",
        "A stream uses memory before another stream's queued allocation of it has run.",
        "Let the stream wait for an event that is recorded after the allocation.",
    ),
    Rule(
        "leak",
        "An array, stream or other resource was not closed before its device.",
        "Close it, drop the last reference to it, or use a with block. A leak fails a check only if --checks names "
        "leaks.",
    ),
    Rule(
        "wrong result",
        "A result differs from the reference by more than the rounding error allowed.",
        "Run the command in the report, which repeats the smallest failing problem, and look at the element it names.",
    ),
    Rule(
        "unstable result",
        "A problem failed and then passed: the result is not deterministic.",
        "Look for a race or an uninitialised read.",
    ),
    Rule(
        "too few problems",
        "A variant does not support most of the drawn problems, so it was hardly checked.",
        'Declare which problems the variant supports, such as problems="aligned", or let it support more.',
    ),
    Rule("compile error", "The source does not compile.", "See the compiler's message."),
    Rule("compile warning", "The compiler warns about this line.", "See the compiler's message."),
    Rule(
        "refused launch",
        "A launch was rejected before it ran: an argument has the wrong type or value, or a limit is exceeded.",
        "See the message: it names the parameter or the limit, the value passed and the value needed.",
    ),
    Rule(
        "out of memory",
        "The device does not have enough free memory.",
        "Free arrays that are no longer needed, or process the data in chunks.",
    ),
    Rule(
        "failed script",
        "The script that launches the kernels raised an exception or exited with a status other than 0.",
        "See the message.",
    ),
    Rule(
        "read before mbarrier wait",
        "Shared memory was read before the asynchronous copy into it was complete.",
        "Wait for the phase of the copy's mbarrier (mbarrier.try_wait in a loop) in each thread that reads, or in one "
        "thread before a barrier of all.",
    ),
    Rule(
        "access before bulk wait",
        "Global memory was accessed while a bulk store or reduction may still have to write it.",
        "Wait first, in the thread that started it: cp.async.bulk.wait_group, without .read; then let other threads "
        "wait for that thread.",
    ),
    Rule(
        "global memory overwritten in flight",
        "Global memory was overwritten while a bulk load may still have to read it.",
        "Wait for the load's mbarrier first, in the thread that writes, or in one that it waits for.",
    ),
    Rule(
        "shared memory overwritten in flight",
        "Shared memory was overwritten while a bulk copy or a wgmma may still have to read it.",
        "Wait first, in the thread that started it: cp.async.bulk.wait_group.read, or wgmma.wait_group; then let the "
        "threads that write wait for that thread.",
    ),
    Rule(
        "missing proxy fence",
        "An asynchronous copy or a wgmma reads what threads have stored, without a fence between the proxies.",
        "Execute fence.proxy.async in each thread that stores, after its stores and before the barrier.",
    ),
    Rule(
        "mbarrier not initialised",
        "An mbarrier was used before its initialisation was visible to the thread or to the copy.",
        "After mbarrier.init: fence.mbarrier_init.release.cluster in that thread, then __syncthreads(), or a barrier "
        "of the cluster if other blocks use it.",
    ),
    Rule(
        "mbarrier initialised again",
        "An mbarrier in use was initialised again.",
        "Initialise it once and use its phases, or call mbarrier.inval first.",
    ),
    Rule(
        "mbarrier overwritten",
        "The memory of an mbarrier was stored to while it was in use.",
        "Check the index of the store; call mbarrier.inval before the memory is used for something else.",
    ),
    Rule("mbarrier in use", "An mbarrier was invalidated in use.", "Wait for its phase in all threads first."),
    Rule(
        "mbarrier count",
        "More arrivals than an mbarrier expects in a phase, or a count that it cannot have.",
        "Initialise it with the number of arrivals per phase, and let as many threads arrive: one per warp, or all.",
    ),
    Rule("mbarrier parity", "A wait for a parity that is neither 0 nor 1.", "Wait for phase & 1."),
    Rule(
        "mbarrier bytes differ",
        "A phase expects other bytes than those of the copies that complete on its mbarrier.",
        "Expect the bytes of all copies of the phase, of whole boxes also if they overhang the tensor.",
    ),
    Rule(
        "mbarrier phase missed",
        "A thread waits for a phase that is over, as is the next one, so its parity means a later phase.",
        "Let no phase complete before every thread has waited for the one before it: let the consumers arrive.",
    ),
    Rule(
        "mbarrier transaction overflow",
        "The transaction count of an mbarrier exceeds its range of 2^20 - 1 bytes.",
        "Expect the bytes of each copy as it starts, and let phases complete in between.",
    ),
    Rule(
        "wrong mbarrier",
        "An asynchronous store completes on an mbarrier in another block than its destination.",
        "Map both addresses to the same block (mapa).",
    ),
    Rule(
        "invalid tensor map",
        "A copy uses bytes that are not a tensor map, or a map that breaks a rule.",
        "Pass a cudakit.TensorMap for a parameter const __grid_constant__ CUtensorMap, with as many dimensions as the "
        "instruction has.",
    ),
    Rule(
        "tensor map in the wrong memory",
        "A tensor map in local or shared memory.",
        "Declare the parameter as const __grid_constant__ CUtensorMap, and take its address without a copy.",
    ),
    Rule(
        "tensor map changed without a fence",
        "A copy uses a tensor map that the kernel has changed, without a fence for tensor maps in between.",
        "Release with fence.proxy.tensormap::generic.release after the change, and acquire the map before the copy.",
    ),
    Rule(
        "tensor coordinates",
        "The coordinates of a tensor copy are ones that hardware refuses, or those of a box outside of the tensor.",
        "Coordinates count elements, dimension 0 first. Begin at multiples of 16 bytes along dimension 0, and store "
        "only at coordinates of at least 0.",
    ),
    Rule(
        "bulk copy size", "A bulk copy of bytes that are not a multiple of 16.", "Round the size up, or copy the rest."
    ),
)

_BY_KIND = {rule.kind: rule for rule in _RULES}


def rule(kind: str) -> Rule:
    """The rule of a kind of report; a generic one if the kind has no rule of its own."""
    return _BY_KIND.get(kind) or Rule(kind, f"{kind[:1].upper()}{kind[1:]}.", "See the report.")
