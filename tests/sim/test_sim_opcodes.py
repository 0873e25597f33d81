"""The table of opcodes compared with the builders: one row per builder, one builder per row, and properties that agree
with the builders."""

from __future__ import annotations

import re

import pytest
from differential import forms
from differential.catalogue import catalogue

from cudakit.sim.instructions import (
    async_copies,
    async_stores,
    atomics,
    bulk_copies,
    clusters,
    hints,
    loads,
    lowering,
    matrix,
    mbarriers,
    stack,
    tensor,
    tensor_copies,
    tensormaps,
    warp,
    warpgroup,
)
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.program import BARRIER, WAIT, writes_of
from cudakit.sim.machine import loading
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.mix import CLASSES
from cudakit.sim.ptx.opcodes import BY_TYPE, LOAD, ROWS, STORE, UNKNOWN, name_of, row_of
from cudakit.sim.ptx.signatures import SIGNATURES
from cudakit.sim.values import arithmetic

BUILDERS = set(lowering.BUILDERS)
LANEWISE = set(arithmetic.BUILDERS)
ROW = {name: row for row in ROWS for name in row.names.split()}
EACH = pytest.mark.parametrize(("name", "row"), ROW.items(), ids=ROW)

COMPLETION = "mbarrier::complete_tx::bytes"
# one instruction for each name that is missing in the catalogue of forms
LINES = {
    "alloca": "alloca.u64 %rd1, %rd2, 16;",
    "stacksave": "stacksave.u64 %rd1;",
    "stackrestore": "stackrestore.u64 %rd1;",
    "applypriority": "applypriority.global.L2::evict_normal [%rd1], 128;",
    "brkpt": "brkpt;",
    "discard": "discard.global.L2 [%rd1], 128;",
    "exit": "exit;",
    "getctarank": "getctarank.shared::cluster.u32 %r1, %r2;",
    "griddepcontrol": "griddepcontrol.wait;",
    "mapa": "mapa.shared::cluster.u32 %r1, %r2, %r3;",
    "mov.v2": "mov.v2.b32 {%r1, %r2}, {%r2, %r1};",
    "mov.v4": "mov.v4.u32 {%r1, %r2, %r3, %r4}, {%r5, 6, %r7, %r8};",
    "pmevent": "pmevent 1;",
    "ret": "ret;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 96;",
    "trap": "trap;",
    "wgmma.mma_async": "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
    "{%r1, %r2, %r3, %r4}, %rd1, %rd2, 1, 1, 1, 0, 0;",
    "wgmma.fence": "wgmma.fence.sync.aligned;",
    "wgmma.commit_group": "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group": "wgmma.wait_group.sync.aligned 0;",
    "mbarrier.init": "mbarrier.init.shared.b64 [buffer], 1;",
    "mbarrier.inval": "mbarrier.inval.shared.b64 [buffer];",
    "mbarrier.arrive": "mbarrier.arrive.shared.b64 %rd1, [buffer];",
    "mbarrier.arrive_drop": "mbarrier.arrive_drop.shared.b64 %rd1, [buffer];",
    "mbarrier.expect_tx": "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [buffer], 16;",
    "mbarrier.complete_tx": "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [buffer], 16;",
    "mbarrier.test_wait": "mbarrier.test_wait.shared.b64 %p1, [buffer], %rd1;",
    "mbarrier.try_wait": "mbarrier.try_wait.parity.shared.b64 %p1, [buffer], 0;",
    "mbarrier.pending_count": "mbarrier.pending_count.b64 %r1, %rd1;",
    "fence.mbarrier_init": "fence.mbarrier_init.release.cluster;",
    "cp.async.mbarrier": "cp.async.mbarrier.arrive.shared.b64 [buffer];",
    "cp.async.bulk": f"cp.async.bulk.shared::cta.global.{COMPLETION} [buffer], [%rd1], 16, [buffer+16];",
    "cp.async.bulk.commit_group": "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group": "cp.async.bulk.wait_group 0;",
    "cp.async.bulk.prefetch": "cp.async.bulk.prefetch.L2.global [%rd1], 16;",
    "cp.reduce": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [buffer], 16;",
    "cp.async.bulk.tensor": "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r1}], [buffer];",
    "cp.reduce.async.bulk.tensor": "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group "
    "[%rd1, {%r1}], [buffer];",
    "cp.async.bulk.prefetch.tensor": "cp.async.bulk.prefetch.tensor.1d.L2.global [%rd1, {%r1}];",
    "st.async": f"st.async.shared::cluster.{COMPLETION}.u32 [%r1], %r2, [%r3];",
    "red.async": f"red.async.relaxed.cluster.shared::cluster.{COMPLETION}.inc.u32 [%r1], %r2, [%r3];",
    "tensormap.replace": "tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 1;",
    "tensormap.cp_fenceproxy": "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
    "[%rd1], [buffer], 128;",
    "fence.tensormap": "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    "prefetch.tensormap": "prefetch.tensormap [%rd1];",
} | {
    f"v{name}{count}": f"v{name}{count}.{'lt.' if name == 'set' else 'u32.'}u32.u32 %r1, %r2, %r3, %r4;"
    for name in ("add", "sub", "absdiff", "min", "max", "set")
    for count in (2, 4)
}
HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<4>;
    .shared .align 16 .b8 buffer[256];
    LINE
    ret;
}
"""


def instruction(name: str) -> Instruction:
    opcode, *modifiers = name.split(".")
    return Instruction(opcode, tuple(modifiers), ())


def test_names_are_there_once():
    names = [name for row in ROWS for name in row.names.split()]
    assert len(names) == len(set(names))
    assert row_of(instruction("nonsense.u32")) is UNKNOWN
    assert name_of(instruction("nonsense.u32")) == ""


@EACH
def test_no_row_above_hides_a_name(name, row):
    assert name_of(instruction(name)) == name
    assert row_of(instruction(name + ".nonsense")) is row
    assert row_of(instruction(name + "::nonsense")) is row or "." not in name


@EACH
def test_a_row_has_a_builder_or_ends_a_block_or_says_why_it_is_refused(name, row):
    opcode = name.partition(".")[0]
    if row.refusal is not None:
        assert name not in BUILDERS | LANEWISE
        assert row.refusal.reason
        assert row.ends is None
    else:
        assert (row.ends is not None) != bool({name, opcode} & (BUILDERS | LANEWISE))


@EACH
def test_what_is_executed_has_its_operands_checked(name, row):
    """By a signature, by the form of a lane-wise instruction, or in the parser; others have no operands."""
    opcode = name.partition(".")[0]
    known = {name, opcode} & {*SIGNATURES}
    if row.refusal is None and not known:
        assert opcode in LANEWISE or opcode == "call" or row.bounds == (0, 0)
    if known and row.refusal is None and opcode != "mov":
        signature = SIGNATURES.get(name) or SIGNATURES[opcode]
        text = signature(tuple(name.split(".")[1:])) if callable(signature) else signature
        assert all(row.counts(len(part.split())) for part in text.split(";"))


def test_a_builder_has_a_row_and_a_name_one_builder():
    assert set(ROW) >= BUILDERS | LANEWISE
    families = (async_copies, async_stores, atomics, bulk_copies, clusters, hints, loads, matrix, mbarriers, stack)
    families += (tensor, tensor_copies, tensormaps, warp, warpgroup)
    assert sum(len(family.BUILDERS) for family in families) == len(BUILDERS)


@EACH
def test_the_facts_of_a_row_fit_together(name, row):
    least, most = row.bounds
    assert 0 <= least <= most
    assert row.mix in (*CLASSES, BY_TYPE, LOAD, STORE)
    assert row.cost >= 0
    if row.forms is not None:
        re.compile(row.forms)
    if row.refusal is None:
        assert most < 10, "an instruction that is executed has its operands counted"
        assert row.writes <= least
    if row.mask is not None:
        assert row.writes <= row.mask < least
        assert not row.whole_warp
    memory = row.memory
    if memory is not None:
        places = [place for place in (memory.reads, memory.writes) if place is not None]
        assert places
        assert all(row.writes <= place < least for place in places)
    if row.mix in (LOAD, STORE) and row.refusal is None:
        assert memory is not None
        assert (memory.reads is not None, memory.writes is not None) == (row.mix == LOAD, row.mix == STORE)


def examples() -> dict[str, str]:
    """Return one module for each supported name."""
    found = {}
    for form in catalogue():
        for statement in re.split(r"[;{}]\s*", form.text):
            words = re.sub(r"^@!?\S+\s*", "", statement.strip()).split()
            name = name_of(instruction(words[0])) if words else ""
            if name and name not in found:
                found[name] = forms.module([form])
    return found | {name: HEAD.replace("LINE", line) for name, line in LINES.items()}


EXAMPLES = examples()


@pytest.mark.parametrize("name", [name for name, row in ROW.items() if row.refusal is None])
def test_an_executed_instruction_writes_the_operands_of_its_row(name):
    module = loading.LoadedModule(EXAMPLES[name], AddressSpace())
    found = 0
    for program in module.programs.values():
        for block in program.blocks:
            # a guarded instruction has its own function, and the instruction that ends a block is not among its lines
            inside = [i for i in block.instructions if i.guard is None and row_of(i).ends is None]
            written = {program.slots[register.name] for i in inside for register in writes_of(i)}
            stored = {int(slot) for line in block.lines for slot in re.findall(r"\br\[(\d+)\] = ", line)}
            assert {slot for slot in stored if program.slot_kinds[slot] != "param"} == written
            if block.kind == BARRIER:
                written = [program.slots[register.name] for register in writes_of(block.instructions[-1])]
                assert written == ([block.barrier.slot] if block.barrier.slot >= 0 else [])
            if block.kind == WAIT:
                written = [program.slots[register.name] for register in writes_of(block.instructions[-1])]
                assert written == [block.wait.slot]
            found += sum(name_of(i) == name for i in block.instructions)
    assert found
    module.close()
