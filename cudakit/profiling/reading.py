"""Read a report of ncu (.ncu-rep) with ncu's own Python reader: one `ProfiledLaunch` per kernel launch."""

from __future__ import annotations

import glob
import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudakit import nvtx
from cudakit.profiling.runner import ProfilerError, find_ncu


@dataclass(frozen=True)
class ProfiledLaunch:
    """One profiled kernel launch.

    kernel: the function's name without template arguments; `demangled` is the complete name.
    ranges: the NVTX ranges of cudakit's domain around the launch, outermost first.
    grid, block: (x, y, z), in blocks and in threads. metrics: ncu's metrics, in base units (ns, bytes, percent).
    facts: ncu's text values (the device's name, the cache configuration).
    """

    kernel: str
    ranges: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: Mapping[str, float]
    facts: Mapping[str, str] = field(default_factory=dict)
    demangled: str = ""


def read_report(path: str | os.PathLike[str], *, domain: str = nvtx.DOMAIN) -> list[ProfiledLaunch]:
    """Return all launches of a report, in order.

    Args:
        path: The .ncu-rep file.
        domain: The NVTX domain whose ranges are kept.

    Raises:
        ProfilerError: If the file does not exist or cannot be read, or ncu's reader is not found. The reader is
            installed with Nsight Compute, in extras/python; no package index has it.
    """
    if not Path(path).is_file():
        raise ProfilerError(f"there is no report {path}")
    reader = _reader()
    try:
        context = reader.load_report(str(path))
    except Exception as error:  # the reader's own exceptions have no common base
        raise ProfilerError(f"{path} cannot be read as a report of ncu: {error}") from error
    if context is None:
        raise ProfilerError(f"{path} cannot be read as a report of ncu: it is empty or of a newer ncu")
    return [_launch(action, reader, domain) for action in _actions(context)]


def find_reader(ncu: str | None) -> Path | None:
    """Return the folder of ncu_report.py next to `ncu`, or None. A toolkit's bin/ncu is a script, and its reader is in
    another folder of the toolkit."""
    roots = []
    if ncu is not None:
        real = Path(os.path.realpath(ncu))
        roots += [real.parent, *list(real.parents)[1:4]]
        roots += [
            Path(folder) for folder in sorted(glob.glob(str(real.parent.parent / "nsight-compute*")), reverse=True)
        ]
    roots += [Path(folder) for folder in sorted(glob.glob("/opt/nvidia/nsight-compute/*"), reverse=True)]
    folders = (root / "extras" / "python" for root in roots)
    return next((folder for folder in folders if (folder / "ncu_report.py").is_file()), None)


def _reader() -> Any:
    try:
        return importlib.import_module("ncu_report")  # on PYTHONPATH, or already imported
    except ImportError:
        pass
    folder = find_reader(find_ncu())
    if folder is None:
        raise ProfilerError(
            "reading a report needs ncu_report, which comes with Nsight Compute in extras/python; it was not found "
            "next to ncu. Add its folder to PYTHONPATH, or install Nsight Compute"
        )
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("ncu_report")
    except ImportError as error:
        raise ProfilerError(f"ncu's report reader in {folder} does not load here: {error}") from error
    finally:
        sys.path.remove(str(folder))


def _actions(context: Any) -> Iterator[Any]:
    for number in range(context.num_ranges()):
        actions = context.range_by_idx(number)
        for index in range(actions.num_actions()):
            yield actions.action_by_idx(index)


def _launch(action: Any, reader: Any, domain: str) -> ProfiledLaunch:
    metrics, facts = {}, {}
    for name in action.metric_names():
        value = action.metric_by_name(name).value()
        if isinstance(value, str):
            facts[name] = value
        elif isinstance(value, (int, float)) and math.isfinite(value):
            metrics[name] = value
    return ProfiledLaunch(
        kernel=action.name(),
        ranges=_ranges(action.nvtx_state(), domain),
        grid=_extents(metrics, "launch__grid_dim"),
        block=_extents(metrics, "launch__block_dim"),
        metrics=metrics,
        facts=facts,
        demangled=action.name(reader.IAction.NameBase_DEMANGLED),
    )


def _ranges(state: Any, domain: str) -> tuple[str, ...]:
    if state is None:
        return ()
    domains: Sequence[Any] = [state.domain_by_id(number) for number in state.domains()]
    return tuple(name for one in domains if one.name() == domain for name in one.push_pop_ranges())


def _extents(metrics: Mapping[str, float], name: str) -> tuple[int, int, int]:
    x, y, z = (int(metrics.get(f"{name}_{axis}", 1)) for axis in "xyz")
    return x, y, z
