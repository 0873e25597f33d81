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
    """Return a pytest function with one test per variant of a family, named after the variant.

        test_mine = kernel_test(FAMILY)

    Each test runs its variant on drawn problems until `examples` different ones ran, on the device of the fixture
    `cuda_device`, and compares each result with the reference. It fails on the first problem with a wrong result, an
    out-of-bounds write or, on the simulated device, a failed check. The message shows the smallest such problem, the
    `.cu` line or the wrong element, and the command that repeats it. The test also fails if fewer than 20 different
    problems ran, or if the variant does not support more than half of them. `--cudakit-seed` draws other problems.

    Args:
        family: The family.
        variants: Names of variants; None for all.
        examples: Different problems per variant, at least 20; by default `--cudakit-examples`.
        elements: The most elements of a problem; by default 4,000 on the simulated device and 20,000 on a GPU.

    Returns:
        The test function.

    Raises:
        ValueError: If a name is not a variant's, or if there are no variants.
    """
    import pytest

    chosen = list(family.variants) if variants is None else [family[name] for name in variants]
    if not chosen:  # pytest would skip a test without parameters
        raise ValueError(f"kernel_test of family {family.name} has no variants to test: declare one first, or name one")

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
            pytest.fail(f"{family.name}/{variant.name}: {what}, seed {seed}\n{why}\nreplay: {again}", pytrace=False)

    made: Callable[..., None] = test_kernel
    made.__doc__ = f"Compare each variant of {family.name} with the reference on drawn problems."
    return made


def _headline(found: Sequence[Report]) -> str:
    """Return the line about a failure for pytest's summary, such as "out of bounds at mine.cu:7"."""
    if not found:
        return "failed"
    place = f" at {os.path.basename(found[0].file)}:{found[0].line}" if found[0].file and found[0].line else ""
    return f"{found[0].kind}{place}"
