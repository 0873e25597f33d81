"""Lane-wise instructions in machine code: the results of the interpreter, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from differential.catalogue import catalogue
from differential.forms import BLOCK, Form, statements
from differential.operands import vectors
from differential.programs import form as program_form
from differential.programs import random_program
from differential.runner import Runner

from cudakit.sim.machine import engine
from cudakit.sim.values.arithmetic import BUILDERS

arithmetic = pytest.importorskip("cudakit.sim.compiled.arithmetic")
pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")


def opcodes(form: Form) -> set[str]:
    return {text.split()[0].split(".")[0] for text in form.text.split(";") if text.strip()}


# each is a kernel, which LLVM compiles in a few hundredths of a second
FORMS = [form for form in catalogue() if opcodes(form) <= arithmetic.WRITERS.keys()]
CHOSEN = random.Random(7).sample(FORMS, 60)
HALVES = [form for form in FORMS if "f16" in form.text or "e4m3" in form.text]
# the interpreter runs those that read special registers which machine code has not
SHARE = 0.95


class OneForAll(Runner):
    """Runs each form in blocks of one warp whose lanes all have the same operands: machine code then computes single
    values. The first lane stores the results."""

    def text(self, forms: Sequence[Form]) -> str:
        slot, store = f"mad.lo.u32 %slot, %m, {BLOCK}, %tid_;", "st.global.u64 [%o]"
        first = ".reg .pred %first; setp.eq.u32 %first, %tid_, 0;\n"
        text = super().text(forms).replace("// its results", first).replace(store, f"@%first {store}")
        return text.replace(slot, "mov.u32 %slot, %m;")

    def shape(self, count: int) -> tuple[int, int]:
        return count, 32


def compare(monkeypatch: pytest.MonkeyPatch, kind: type[Runner], forms: list[Form], share: float = SHARE) -> None:
    """Run forms with both engines. The results must be equal, and at least a share of the forms compiled."""
    kernels: list[engine.Engine] = []
    made = engine.Engine.__init__

    def noted(self: engine.Engine) -> None:
        made(self)
        kernels.append(self)

    monkeypatch.setattr(engine.Engine, "__init__", noted)
    operands = [vectors(form, 512) for form in forms]
    outcomes = []
    with kind("sim") as runner:
        for how in ("interpreter", "compiled"):
            monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
            outcomes.append(runner.run(forms, operands))
    different = [
        form.name
        for form, ours, theirs in zip(forms, *outcomes, strict=True)
        if ours.error != theirs.error
        or (ours.results is not None and ours.results.tobytes() != theirs.results.tobytes())
    ]
    assert not different
    compiled = sum(one.compiled_launches > 0 for one in kernels)
    assert compiled >= share * len(forms), f"{compiled} of {len(forms)} forms were compiled"


@pytest.mark.parametrize("kind", [Runner, OneForAll])
@pytest.mark.parametrize(
    "forms", [pytest.param(CHOSEN, id="chosen"), pytest.param(FORMS, id="all", marks=pytest.mark.long)]
)
def test_results_are_the_interpreters(monkeypatch, kind: type[Runner], forms: list[Form]) -> None:
    compare(monkeypatch, kind, forms)


@pytest.mark.parametrize(
    "forms",
    [
        pytest.param(random.Random(7).sample(HALVES, 20), id="chosen"),
        pytest.param(HALVES, id="all", marks=pytest.mark.long),
    ],
)
def test_processors_that_do_not_convert_halves(monkeypatch, forms: list[Form]) -> None:
    monkeypatch.setattr("cudakit.sim.compiled.launch.converts_halves", lambda: False)
    compare(monkeypatch, Runner, forms)


# LLVM's code for AVX-512 is wrong for some of these
CHOICES = [
    *(
        statements(
            "",
            f"setp.nan.{t} p, b, b; copysign.{t} x, a, b; selp.{t} d0, b, x, p;",
            f"{t} {t}",
            t,
            declare=f".reg .pred p; .reg .{t} x;",
        )
        for t in ("f32", "f64")
    ),
    statements("", "mov.b32 d0, b; @c bfi.b32 d0, a, b, 0, 16;", "b32 b32 pred", "b32"),
    statements("", "mov.b64 d0, b; @!c bfi.b64 d0, a, d0, 0, 40;", "b64 b64 pred", "b64"),
    statements("", "mov.b32 d0, a; @c lop3.b32 d0, a, b, 0xFF00FF, 0xCA;", "b32 b32 pred", "b32"),
]


def test_bits_chosen_by_a_mask_in_some_lanes(monkeypatch) -> None:
    compare(monkeypatch, Runner, CHOICES)


@pytest.mark.parametrize("count", [10, pytest.param(150, marks=pytest.mark.long)])
def test_random_programs(monkeypatch, count: int) -> None:
    forms = [program_form(random_program(seed)) for seed in range(count)]
    # others need operations of whole warps that are not compiled
    compare(monkeypatch, Runner, forms, share=0.3)


def test_all_lane_wise_instructions_of_the_catalogue_have_a_writer() -> None:
    found = {opcode for form in catalogue() for opcode in opcodes(form)}
    assert found & BUILDERS.keys() <= arithmetic.WRITERS.keys()
