"""Instructions that PTX has and the simulated device does not execute, by group, with the reason and what to do.

Whatever is in no group and has no builder is refused as well, with less to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudakit.sim.ptx.ir import Instruction

_BULK = "the bulk-asynchronous group is not there yet"
_VIDEO = "scalar video instructions are emulated by every GPU since sm_50: write the arithmetic in C++"
TEXTURES = "textures and surfaces are not simulated: read and write arrays through pointers"


@dataclass(frozen=True)
class Group:
    """Instructions refused for one reason. ``opcodes`` of which those count that have one of ``modifiers`` (all of
    them where there are none); ``example`` is one instruction as PTX writes it."""

    name: str
    opcodes: tuple[str, ...]
    modifiers: tuple[str, ...]
    reason: str
    example: str

    def holds(self, instruction: Instruction) -> bool:
        if instruction.opcode not in self.opcodes:
            return False
        return not self.modifiers or any(m.split("::")[0] in self.modifiers for m in instruction.modifiers)


GROUPS = (
    Group(
        "mbarrier",
        ("mbarrier",),
        (),
        f"mbarrier objects: {_BULK}; use __syncthreads(), cooperative groups or cuda::pipeline without a barrier",
        "mbarrier.init.shared.b64 [%rd1], 1;",
    ),
    Group(
        "cp.async.mbarrier",
        ("cp",),
        ("mbarrier",),
        f"mbarrier objects: {_BULK}; wait for cp.async with its groups",
        "cp.async.mbarrier.arrive.shared.b64 [%rd1];",
    ),
    Group(
        "fence.mbarrier_init",
        ("fence",),
        ("mbarrier_init",),
        f"mbarrier objects: {_BULK}",
        "fence.mbarrier_init.release.cluster;",
    ),
    Group(
        "bulk copies",
        ("cp",),
        ("bulk", "reduce"),
        f"bulk copies and tensor copies: {_BULK}; use cp.async of 4, 8 or 16 bytes, or loads and stores",
        "cp.async.bulk.commit_group;",
    ),
    Group(
        "tensor maps",
        ("tensormap", "prefetch", "fence"),
        ("tensormap", "replace", "cp_fenceproxy"),
        f"tensor maps: {_BULK}; compute addresses and use loads and stores",
        "prefetch.tensormap [%rd1];",
    ),
    Group(
        "st.async",
        ("st", "red"),
        ("async",),
        f"asynchronous stores complete on an mbarrier: {_BULK}; use plain stores and barrier.cluster",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%rd1], %r1, [%rd2];",
    ),
    Group(
        "st.bulk",
        ("st",),
        ("bulk",),
        f"bulk stores: {_BULK}; use a loop of stores",
        "st.bulk.weak.shared::cta [%rd1], 64, 0;",
    ),
    Group(
        "cluster launch control",
        ("clusterlaunchcontrol",),
        (),
        f"cluster launch control completes on an mbarrier: {_BULK}; loop over the work with gridDim",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%rd1], [%rd2];",
    ),
    Group(
        "wgmma",
        ("wgmma",),
        (),
        "warpgroup matrix products are not there yet: use mma.sync or wmma",
        "wgmma.fence.sync.aligned;",
    ),
    Group(
        "tcgen05",
        ("tcgen05",),
        (),
        "fifth-generation tensor cores and tensor memory are not there yet: use mma.sync or wmma",
        "tcgen05.fence::before_thread_sync;",
    ),
    Group(
        "sparse mma",
        ("mma",),
        ("sp",),
        "sparse matrix products are not there yet: use the dense mma.sync",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%f1,%f1,%f1,%f1}, {%r1,%r1}, {%r1,%r1}, {%f1,%f1,%f1,%f1}, %r1, 0x0;",
    ),
    Group(
        "multimem",
        ("multimem",),
        (),
        "multicast memory of several GPUs is not simulated: reduce over copies of the data",
        "multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;",
    ),
    Group(
        "textures",
        ("tex", "tld4", "txq", "istypep"),
        (),
        TEXTURES,
        "tex.1d.v4.f32.s32 {%f1,%f1,%f1,%f1}, [%rd1, {%r1}];",
    ),
    Group(
        "surfaces",
        ("suld", "sust", "sured", "suq"),
        (),
        TEXTURES,
        "suld.b.1d.b32.trap %r1, [%rd1, {%r1}];",
    ),
    Group(
        "video, scalar",
        ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
        (),
        _VIDEO,
        "vadd.s32.s32.s32 %r1, %r1, %r1;",
    ),
)


def unsupported(instruction: Instruction) -> str | None:
    """Why an instruction is not executed, None where its group is."""
    for group in GROUPS:
        if group.holds(instruction):
            return group.reason
    return None
