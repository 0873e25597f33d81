"""The command that repeats the same problems, and the name of a family for commands."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cudakit import ops

if TYPE_CHECKING:
    from cudakit.family import Ladder


def reference(family: Ladder[Any]) -> str:
    """Return the name of a family for commands: "softmax", "mine.py:FAMILY", or "package.module:FAMILY" if the file is
    not below the working directory.

    It is the family's own name if no module has the family as a variable.
    """
    if ops.families().get(family.name) is family:
        return family.name
    found = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is family and getattr(module, "__file__", None)
    ]
    if not found:
        return family.name
    # prefer the module that declares it to tests that import it
    module, name = min(found, key=lambda one: os.path.basename(str(one[0].__file__)).startswith(("test_", "conftest")))
    path = os.path.relpath(str(module.__file__))
    return f"{module.__name__ if path.startswith(os.pardir) else path}:{name}"


def command(
    family: Ladder[Any],
    device: str,
    *,
    examples: int,
    seed: int,
    elements: int,
    variants: Sequence[str] = (),
    checks: Collection[str] | None = None,
) -> str:
    """Return the command line that repeats the same problems."""
    words = ["cudakit", "fuzz", reference(family), "--device", device, "--examples", str(examples)]
    words += ["--seed", str(seed), "--elements", str(elements)]
    if variants:
        words += ["--variants", ",".join(variants)]
    if checks is not None:
        words += ["--checks", ",".join(sorted(checks))]
    return shlex.join(words)
