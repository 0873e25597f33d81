"""NVRTC's options: include folders, headers that an option includes, and the options that the disk cache's key
covers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# whether sources are compiled without optimisation and with variables (-G), not with line numbers only; a debugger sets
# it for its process
debug_code = False

_FOLDER = re.compile(r"(?:-I|--include-path=)=?(.*)", re.DOTALL)
_HEADER = re.compile(r"(?:--pre-include|-include)=(.*)", re.DOTALL)

# Options whose whole effect is in their text. Any other option may read or write files (--pch, --time) or change the
# folders that headers are searched in (--no-source-include), so it keeps a compile out of the cache.
_COVERED_NAMES = """
    D define-macro U undefine-macro std gpu-architecture arch dc device-c rdc relocatable-device-code dw device-w ewp
    extensible-whole-program G device-debug lineinfo generate-line-info dopt maxrregcount ftz prec-sqrt prec-div
    use_fast_math fmad extra-device-vectorization modify-stack-limit dlto dlink-time-opt gen-opt-lto optix-ir
    jump-table-density device-stack-protector builtin-move-forward builtin-initializer-list w disable-warnings Werror
    warning-as-error restrict device-as-default-execution-space default-device device-int128 device-float128 opt-info
    optimization-info Ofc Ofast-compile no-display-error-number display-error-number diag-error diag-suppress diag-warn
    err-no brief-diag brief-diagnostics no-version-ident version-ident split-compile fdevice-syntax-only minimal
    no-cache frandom-seed fmax-errors m64 machine
"""
_COVERED = frozenset(_COVERED_NAMES.split())
_PTXAS = ("Xptxas", "ptxas-options")
_PTXAS_VALUE = re.compile(r"(?!.*(?:file|optf|input|output))[\w=,. -]*")  # excludes ptxas options that name files


def split(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the user's options without include folders, and those folders, which the header scan needs too.

    An option that names a header in a second string is joined to one string. Raises ValueError if an option sets
    the architecture.
    """
    kept: list[str] = []
    folders: list[str] = []
    pending = iter(options)
    for option in pending:
        if option in ("-I", "--include-path"):
            folders.append(next(pending, ""))
        elif option in ("--pre-include", "-include"):
            kept.append(f"--pre-include={next(pending, '')}")
        elif match := _FOLDER.fullmatch(option):
            folders.append(match[1])
        elif option.startswith(("--gpu-architecture", "-arch")):
            raise ValueError(
                f'option {option!r} is not supported, as the device sets the architecture; use Device("sim:sm_80") '
                "or another GPU"
            )
        else:
            kept.append(option)
    return kept, folders


def pre_included(options: Sequence[str]) -> list[str]:
    """Return the headers that options include before the source, in order."""
    return [match[1] for option in options if (match := _HEADER.fullmatch(option))]


def not_covered(options: Sequence[str]) -> str | None:
    """Return the first option whose effect may be in files that the cache's key does not cover, or None."""
    previous = ""
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        if previous in _PTXAS:
            name, value = previous, option
            previous = ""
        elif not option.startswith("-"):
            if previous not in _COVERED:
                return option
            continue  # the value of the previous option
        else:
            previous = name if "=" not in option else ""
        if name in _PTXAS:
            if not _PTXAS_VALUE.fullmatch(value):
                return option
        elif not (name in _COVERED or re.match(r"-[DU]\w", option) or _HEADER.fullmatch(option)):
            return option
    return None


def absolute(folder: str | os.PathLike[str]) -> str:
    """Return `folder` as an absolute path; links and `..` in it are kept."""
    return os.path.join(os.getcwd(), folder) if not os.path.isabs(folder) else os.fspath(folder)
