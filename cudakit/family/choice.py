"""The variant and configuration that tuning saved for a call, which "auto" uses if there is one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit import tuned
from cudakit.errors import CompileError
from cudakit.family.declaration import Variant, several
from cudakit.tuned import Choice, Situation

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.family.ladder import Ladder


def situation_of(
    family: Ladder[Any], device: Device, inputs: Sequence[Any], output: Any, options: Mapping[str, Any]
) -> Situation:
    """Return the key of a saved choice: the family, the chip, the shapes and dtypes of all arrays, and the options that
    are not at their defaults. An option in `scalars` is included by its kind only."""
    usual = {name: values[0] for name, values in family.option_values().items()}
    known = []
    for name, value in sorted(options.items()):
        scalar = family.scalars.get(name)
        if scalar is not None:
            kind = scalar.kind(value) if scalar.kind is not None else None
            known += [f"{name} {kind}"] if kind else []
        elif value is not None and not (name in usual and _same(value, usual[name])):
            known.append(f"{name}={value!r}")
    arrays = tuple((tuple(int(n) for n in array.shape), array.dtype.name) for array in (*inputs, *several(output)))
    return Situation(family.name, tuned.chip_of(device), arrays, ", ".join(known))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


def fingerprint_of(one: Variant[Any], problem: Any, arch: str) -> str:
    """Return the digest of all sources that a variant's launches for a problem are compiled from (see
    `tuned.fingerprint`)."""
    sources = sorted({one.entry_of(launch)[0] for launch in one.launches(problem)} or {one.source})
    return hashlib.sha256(" ".join(tuned.fingerprint(source, arch) for source in sources).encode()).hexdigest()


def tuned_variant(
    family: Ladder[Any],
    device: Device,
    inputs: Sequence[Any],
    output: Any,
    options: Mapping[str, Any],
    problem: Any,
) -> Variant[Any] | None:
    """Return the variant with the configuration that tuning saved for these arrays, or None.

    If a family has no `choose` of its own and there is no choice for these shapes, the choice for the nearest shapes is
    used. A choice is ignored if its sources or the compiler have changed, if the declaration no longer has its variant
    or values, or if it does not support the problem.
    """
    if not tuned.has_any(family.name):
        return None
    situation = situation_of(family, device, inputs, output, options)
    for choice in tuned.choices(situation, nearby=family.choose is None):
        one = configured(family, choice)
        if one is None or one.refusal(problem, device.arch) is not None:
            continue
        try:
            if fingerprint_of(one, problem, device.arch) == choice.fingerprint:
                return one
        except (OSError, CompileError):
            continue  # its source was deleted, or is not text
    return None


def configured(family: Ladder[Any], choice: Choice) -> Variant[Any] | None:
    """Return the variant of a choice with its configuration; None if the declaration does not have it."""
    one = next((one for one in family.variants if one.name == choice.variant), None)
    if one is None or set(choice.configuration) - set(one.tune):
        return None
    values = {}
    for name, kept in choice.configuration.items():
        matching = [value for value in one.tune[name] if repr(tuned.plain(value)) == repr(kept)]
        if not matching:
            return None
        values[name] = matching[0]
    return one.configured(**values)
