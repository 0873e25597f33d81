"""Find a user's family: mine.py:FAMILY, package.module:FAMILY, or the name of an installed one."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cudakit import names
from cudakit.errors import Refused
from cudakit.family.ladder import Ladder
from cudakit.tracebacks import line_in

#: The entry point group in which installed packages declare families: `histogram = "package.module:FAMILY"`.
GROUP = "cudakit.families"


def load(target: str) -> Ladder[Any]:
    """Return the family named by `mine.py:FAMILY` or `package.module:FAMILY`; without a name, the module's only family.

    Raises Refused if there is no such file, module or family, or if the import fails.
    """
    where, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = _file(where, target) if where.endswith(".py") else _module(where, target)
    families = {key: value for key, value in vars(module).items() if isinstance(value, Ladder)}
    if not name and len(families) == 1:
        return next(iter(families.values()))
    if name in families:
        return families[name]
    found = ", ".join(families) or "none"
    if not name:
        raise Refused(f"{target}: name one of its families ({found}), such as {where}:FAMILY")
    raise Refused(f"{target}: {where} has no family {name!r}; it has {found}{names.hint(name, families)}")


def is_target(text: str) -> bool:
    """Return whether a text names a family by its file or module."""
    return ":" in text or text.endswith(".py")


def installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of the families of installed packages, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def loaded(point: importlib.metadata.EntryPoint) -> Ladder[Any]:
    """Return the family of an entry point. Raise Refused if it is not a family or cannot be imported."""
    return load(point.value)


def _file(where: str, target: str) -> ModuleType:
    """Return the module of a file, imported once. It can import modules from its own folder."""
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise Refused(f"{target}: there is no file {path}")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) and Path(str(module.__file__)).resolve() == path:
            return module
    name = path.stem if path.stem not in sys.modules else f"cudakit_family_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{target}: {path} cannot be imported as a module")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _refused(target, error) from error
    return module


def _module(where: str, target: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.startswith(error.name):
            raise Refused(f"{target}: there is no module {where!r}: write FILE.py:FAMILY, or install it") from error
        raise _refused(target, error) from error
    except Exception as error:
        raise _refused(target, error) from error


def _refused(target: str, error: BaseException) -> BaseException:
    """Return Refused for an error during an import; an interrupt is returned unchanged."""
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return error
    return Refused(f"{target} cannot be imported: {type(error).__name__}: {error}{line_in(error)}")
