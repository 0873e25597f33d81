"""Fuzz tests of a family for pytest: `test_mine = kernel_test(FAMILY)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.testing import replay
from cudakit.testing.coverage import LEAST, Coverage
from cudakit.testing.search import ELEMENTS, Workbench, Wrong, explained, random_seed, search
from cudakit.testing.strategies import cases_of

if TYPE_CHECKING:
    import pytest

    from cudakit.device import Device
    from cudakit.family import Ladder, Variant
    from cudakit.reports import Report


def kernel_test(
    family: Ladder[Any],
    variants: Sequence[str] | None = None,
    *,
    examples: int | None = None,
    elements: int | None = None,
) -> Callable[..., None]:
    """A test function for pytest, one test per variant of `family`, named after it.

        test_mine = kernel_test(FAMILY)

    Each runs its variant on drawn problems until `examples` different ones ran, on the device of the fixture
    `cuda_device`, and compares each result with the reference. It fails on the first that is wrong, writes beside its
    arrays or, on the simulated device, fails a check; the message shows the smallest such problem, the `.cu` line or
    the wrong element, and the command that repeats it. It fails too if fewer than 20 different problems ran, or if the
    variant refused more than half of them.

    variants: names, all if None. examples: at least 20; `--cudakit-examples` unless given. elements: the most of a
    problem; 4,000 on the simulated device and 20,000 on a GPU unless given. `--cudakit-seed` draws other problems.
    Raises ValueError for a name that is not a variant's, and if there is no variant.
    """
    import pytest

    chosen = list(family.variants) if variants is None else [family[name] for name in variants]
    if not chosen:  # pytest would skip a test of no parameters
        raise ValueError(f"kernel_test of family {family.name} tests no variant: declare one first, or name one")

    @pytest.mark.parametrize("variant", chosen, ids=[variant.name for variant in chosen])
    def test_kernel(cuda_device: Device, pytestconfig: pytest.Config, variant: Variant[Any]) -> None:
        seed = pytestconfig.getoption("cudakit_seed")
        seed = random_seed() if seed == "random" else seed
        most = elements or ELEMENTS[cuda_device.kind]
        wanted = max(LEAST, examples or pytestconfig.getoption("cudakit_examples"))
        again = replay.command(
            family,
            cuda_device.context.spec,
            examples=wanted,
            seed=seed,
            elements=most,
            variants=[variant.name],
            checks=pytestconfig.getoption("cudakit_checks") if cuda_device.kind == "sim" else None,
        )
        problems, coverage = cases_of(family, variant, most), Coverage()
        what = "too few problems"
        with Workbench(cuda_device, owned=False) as bench:
            try:
                search(bench, family, variant, problems, coverage, examples=wanted, seed=seed)
                why = coverage.shortfall()
            except Wrong as wrong:
                why, found = explained(bench, family, wrong)
                what = _headline(found)
        if why is not None:
            pytest.fail(
                f"{family.name}/{variant.name}: {what}, seed {seed}\n{why}\nrepeat it with: {again}", pytrace=False
            )

    made: Callable[..., None] = test_kernel
    made.__doc__ = f"Each variant of {family.name} on drawn problems, against the reference."
    return made


def _headline(found: Sequence[Report]) -> str:
    """The line of pytest's summary about a failure, such as "out of bounds at mine.cu:7"."""
    if not found:
        return "failed"
    place = f" at {os.path.basename(found[0].file)}:{found[0].line}" if found[0].file and found[0].line else ""
    return f"{found[0].kind}{place}"
