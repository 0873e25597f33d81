"""Every text loads, or is refused with PtxError and its line: mutants of real PTX, and texts that broke the front end
before. ptxas, if it is installed, decides whether a text is PTX."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.bases import texts
from tests.mutants.changes import mutant
from tests.mutants.verdicts import BROKEN, LOADED, REFUSED, UNSUPPORTED, judge, load, missing_ptxas
from tests.paths import ROOT

PARTS, PART = 8, 250
HEAD = """.version 8.8
.target sm_90a
.address_size 64
.global .align 16 .b8 gbuf[64];
.visible .entry k(.param .u64 p)
{
    .reg .pred p<4>;
    .reg .b16 h<4>;
    .reg .u32 u<4>;
    .reg .b32 r<8>;
    .reg .b64 d<4>;
    .reg .f32 f<8>;
    .shared .align 16 .b8 sbuf[256];
    LINE
    ret;
}
"""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_mutant_loads_or_is_refused_with_its_line(part):
    broken = {}
    verdicts = set()
    for seed in range(part * PART, (part + 1) * PART):
        verdict, message = load(mutant(texts(), seed))
        verdicts.add(verdict)
        if verdict == BROKEN:
            broken[seed] = message
    assert not broken, f"repeat with: python -m tests.mutants --seed {min(broken)} --print"
    assert verdicts == {LOADED, REFUSED, UNSUPPORTED}, "the mutants are not alike"


def test_the_texts_that_mutants_are_made_of_load():
    verdicts = [load(text)[0] for text in texts()]
    assert set(verdicts) == {LOADED, UNSUPPORTED}
    assert verdicts.count(UNSUPPORTED) == 1, "only the textures"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (".local .b8 big[600000];", "at most 524,288"),
        (".shared .b8 big[60000];", "at most 49,152"),
        (".shared .align 12 .b8 odd[4];", "power of two, got 12"),
        (".reg .b32 r<3>;", "declared twice"),
        (".reg .b32 twice, twice;", "declared twice"),
        ("bar.sync 16;", "must be 0 to 15, got 16"),
        ("bar.sync 0, 33;", "multiple of 32"),
        ("@r1 bra L; L:", "'r1' is not a predicate"),
        ("add.u32 r1, f1, r2;", "register f1 has type .f32"),
        ("add.u32 r1, r2, %tid.x;", "must be moved to a register first"),
        ("ld.global.u32 f1, [d1];", "register of .f32, which does not fit .u32"),
        ("ld.global.u32 r1, [r2];", "addresses of this state space have 64"),
        ("ld.global.u32 r1, [sbuf];", "a variable of .shared, not of .global"),
        ("st.global.v2.b32 [d1], {u1, f1};", "registers of different types"),
        ("st.global.u32 [d1];", "takes 2 to 3 operands"),
        ("mov.b32 r1, 08;", "is not octal"),
        ("mov.b32 r1, " + "9" * 6000 + ";", "does not fit 64 bits"),
        ("mov.b32 r1, " + "(" * 20000 + "1" + ")" * 20000 + ";", "nested more than"),
        ("mov.b32 r1, {" * 3000, "expected '}'"),
        ("{" * 30000, "nested more than"),
        ("cvt r1, r2;", "needs a type"),
        ("brx.idx r1, L; L:", "no list of branch targets"),
    ],
)
def test_what_is_wrong_is_named(line, part):
    verdict, message = load(HEAD.replace("LINE", line))
    assert verdict == REFUSED
    assert message.startswith("PTX line 14: ")
    assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (".const .b8 a[40000];\n.const .b8 b[40000];", "at most 65,536"),
        (".global .f32 x = 1;", "write a float"),
        (".global .b8 x[2] = {1, 2, 3};", "more than its 2 elements"),
        (".alias one, two;", "has not been declared"),
        (".func one();\n.alias one, two;", "has not been defined"),
        (".entry k() { ret; }\n.entry k() { ret; }", "defined twice"),
        (".global .u64 p = later;\n.global .u32 later;", "not declared before"),
        (".entry k() .maxntid 0 { ret; }", "must be positive"),
        (".version 8.8", "unknown directive"),
    ],
)
def test_what_is_wrong_in_a_module_is_named(text, part):
    verdict, message = load(f".version 8.8\n.target sm_90a\n.address_size 64\n{text}\n")
    assert verdict == REFUSED
    assert part in message


@pytest.mark.parametrize(
    "opening", ["", ".version 99.0", ".version 8", ".version 8.8", ".version 8.8\n.target sm_1", ".target sm_90a"]
)
def test_a_module_begins_with_a_known_version_and_target(opening):
    assert load(f"{opening}\n.entry k() {{ ret; }}")[0] == REFUSED


@pytest.mark.parametrize(
    ("target", "version", "line", "part"),
    [
        ("sm_75", "8.0", "cp.async.wait_all;", "needs sm_80, the module is for sm_75"),
        ("sm_80", "8.0", "add.bf16 h1, h2, h3;", "needs sm_90, the module is for sm_80"),
        ("sm_89", "8.0", "barrier.cluster.arrive;", "needs sm_90"),
        ("sm_90", "8.0", "ld.mmio.relaxed.sys.global.u32 r1, [d1];", "needs PTX 8.2, the module has 8.0"),
        ("sm_90a", "7.8", "", "functions for sm_90a need .version 8.0"),
        ("sm_89", "8.0", "cp.async.bulk.commit_group;", "needs sm_90, the module is for sm_89"),
        ("sm_75", "8.0", "mbarrier.pending_count.b64 r1, d1;", "needs sm_80, the module is for sm_75"),
        ("sm_80", "8.0", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 16;", "needs sm_90"),
        ("sm_80", "8.0", "fence.proxy.async;", "needs sm_90"),
        ("sm_90", "8.0", "wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned needs sm_90a, the module is for sm_90"),
        ("sm_100a", "8.8", "wgmma.wait_group.sync.aligned 0;", "needs sm_90a, the module is for sm_100a"),
        ("sm_90", "8.8", "setmaxnreg.inc.sync.aligned.u32 40;", "needs a target with a letter, such as sm_90a"),
        ("sm_100", "8.8", "tensormap.replace.tile.rank.global.b1024.b32 [d1], 1;", "needs a target with a letter"),
        ("sm_90a", "8.2", "fence.proxy.tensormap::generic.release.gpu;", "needs PTX 8.3, the module has 8.2"),
    ],
)
def test_an_instruction_needs_its_target_and_version(target, version, line, part):
    text = HEAD.replace("LINE", line)
    assert load(text)[0] in (LOADED, UNSUPPORTED)
    verdict, message = load(text.replace("sm_90a", target).replace("8.8", version))
    assert verdict == REFUSED
    assert part in message


def test_the_command_prints_a_mutant_and_counts_verdicts():
    run = [sys.executable, "-m", "tests.mutants"]
    shown = subprocess.run([*run, "--seed", "3", "--print"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == mutant(texts(), 3) + "\n"
    counted = subprocess.run([*run, "--count", "20"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "broken: 0" in counted.stdout


def test_ptxas_agrees():
    if missing_ptxas():
        pytest.skip(missing_ptxas())
    differ = {}
    for seed in range(300):
        text = mutant(texts(), seed)
        verdict, message = load(text)
        accepted, said = judge(text)
        if verdict != UNSUPPORTED and accepted != (verdict == LOADED):
            differ[seed] = message or said
    assert len(differ) <= 9, differ
