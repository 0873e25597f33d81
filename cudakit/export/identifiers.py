"""C names for C++ names."""

from __future__ import annotations

import re
from collections.abc import Callable

# C and C++ keywords, including later standards, and names that the launchers use
_RESERVED_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using
    virtual void volatile wchar_t while xor xor_eq linux unix NULL EOF stdin stdout stderr errno assert kernels
    stream grid block shared cluster values
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())

# names of the header's own functions and types, after the prefix
_LAUNCHER_WORDS = """
    dim dim3 driver kernels images symbol resolve open error failed unload fits load_images load file crc32 read
    launch aligned bytes h
"""
_LAUNCHERS = frozenset(_LAUNCHER_WORDS.split())

# headers that a program may include while the folder of the export is on its include path
_HEADER_WORDS = """
    assert complex ctype cuda cuda_runtime dlfcn errno fenv float inttypes iso646 limits locale malloc math memory
    pthread sched setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string
    strings tgmath threads time uchar unistd vector_types wchar wctype windows
"""
_HEADERS = frozenset(_HEADER_WORDS.split())


def is_header(stem: str) -> bool:
    """Whether `stem`.h is the name of a C, system or CUDA header."""
    return stem.lower() in _HEADERS


def identifier(name: str) -> str:
    """`name` with an underscore for characters that C does not allow: "ns::k<4, float>" is "ns_k_4_float"."""
    pointers = name.replace("*", " ptr ").replace("-", " minus ")
    made = re.sub(r"[^A-Za-z0-9]+", "_", pointers).strip("_")
    return f"k{made}" if not made or made[0].isdigit() else made


class Unique:
    """Makes names distinct: a call returns the name, with a number appended if the name was already returned. key:
    names with the same key count as equal; avoid: names that are never returned."""

    def __init__(self, key: Callable[[str], str] = str, avoid: frozenset[str] = frozenset()) -> None:
        self._key = key
        self._taken = {key(name) for name in avoid}

    def __call__(self, name: str) -> str:
        made, number = name, 1
        while self._key(made) in self._taken:
            number += 1
            made = f"{name}_{number}"
        self._taken.add(self._key(made))
        return made


def launcher_names() -> Unique:
    """Makes names for launchers and structs. They differ in more than case and never equal one of the header's own
    names."""
    return Unique(str.lower, _LAUNCHERS)


def parameter_identifiers(names: list[str]) -> list[str]:
    """C names for a function's parameters: the source's names, or arg0, arg1, ... if they are missing. A name that is a
    C keyword or is used by the launcher gets an underscore."""
    unique = Unique()
    made = []
    for number, name in enumerate(names):
        wanted = name or f"arg{number}"
        made.append(unique(f"{wanted}_" if wanted in _RESERVED else wanted))
    return made
