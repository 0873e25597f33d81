"""Lane-wise instructions in machine code: the results of the interpreter, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from differential.catalogue import catalogue
from differential.forms import Form
from differential.operands import vectors
from differential.runner import Runner

from cudakit.sim.machine import engine

arithmetic = pytest.importorskip("cudakit.sim.compiled.arithmetic")
pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

# each is a kernel, which LLVM compiles in about 0.1 s
FORMS = [form for form in catalogue() if form.name.split(".")[0].split()[0] in arithmetic.WRITERS]
CHOSEN = random.Random(7).sample(FORMS, 60)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner("sim") as made:
        yield made


@pytest.mark.parametrize(
    "forms", [pytest.param(CHOSEN, id="chosen"), pytest.param(FORMS, id="all", marks=pytest.mark.long)]
)
def test_results_are_the_interpreters(monkeypatch, runner: Runner, forms: list[Form]) -> None:
    kernels: list[engine.Engine] = []
    made = engine.Engine.__init__

    def noted(self: engine.Engine) -> None:
        made(self)
        kernels.append(self)

    monkeypatch.setattr(engine.Engine, "__init__", noted)
    operands = [vectors(form, 512) for form in forms]
    outcomes = []
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
    assert compiled >= len(forms) // 6, f"{compiled} of {len(forms)} forms were compiled"
