"""The headers that a text names, found without running the preprocessor.

The list may be too long, which only costs a needless compile, but never too short: a directive counts whether its `#if`
holds or not, and a line that cannot be read with certainty is reported as unknown. Lines are read as NVRTC reads them:
continued lines are joined; blanks, vertical tabs, form feeds, carriage returns and comments may be between `#` and the
word; `%:` is a `#`. If compilers and language standards differ (trigraphs, blanks after a line's last backslash), both
readings must name the same headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK = r"[^\x21-\x7e\n]"  # everything not printable, and non-ASCII letters, which cost at most a needless compile
_GAP = rf"(?:{_BLANK}|/\*(?:[^*]|\*(?!/))*\*/)*"
_HEADER = r"(?:\"(?P<quoted>[^\"\n]+)\"|<(?P<angled>[^>\n]+)>)"
_DIRECTIVE = re.compile(rf"(?:#|%:){_GAP}(?P<word>include_next|include|import|embed)\b{_GAP}{_HEADER}?")
_TEST = re.compile(r"\w*has_(?:include|embed)\w*", re.IGNORECASE)
_TEST_WORDS = ("has_include", "has_embed", "HAS_INCLUDE", "HAS_EMBED")
_OPERAND = re.compile(rf"{_GAP}\({_GAP}{_HEADER}{_GAP}\)")
_ASKS_FOR_THE_MACRO = re.compile(rf"(?:\b(?:define|undef|(?:el)?ifn?def){_BLANK}+|\bdefined{_BLANK}*\(?{_BLANK}*)$")
_COMMENT = re.compile(r"[^\"'<]*//")  # the rest of the line is a comment; after a quote it may be text
_PIECE = re.compile(r"\b__h(?:as?_?|as_[a-z]{0,6})?\b")  # a part of __has_include, which ## could complete
_JOINED = re.compile(r"\\\r?\n")
_PERHAPS_JOINED = re.compile(rf"\\{_BLANK}*\n|\\\r")
_VISIBLE = re.compile(r"[\x21-\x7e]")


@dataclass(frozen=True)
class Named:
    """The headers that a text names, as (mark, name) with mark `"` or `<`, and the lines with unknown headers."""

    headers: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def named(text: str) -> Named:
    """Return every header that `text` includes or tests for."""
    if "\\" not in text and "??" not in text:
        return _read(text)
    joined = _JOINED.sub("", text)
    found = _read(joined)
    other = _PERHAPS_JOINED.sub("", text.replace("??/", "\\").replace("??=", "#"))
    if other != joined and _read(other).headers != found.headers:
        return Named((), (*found.unknown, "a line continued by ??/ or by a backslash and blanks, or ??="))
    return found


def _read(text: str) -> Named:
    """Call `named` on text whose continued lines are joined."""
    headers: list[tuple[str, str]] = []
    unknown: list[str] = []
    for match in _DIRECTIVE.finditer(text):
        before = _before(text, match.start())
        if _VISIBLE.search(before):
            continue  # a directive must be first on its line
        header = match["quoted"] or match["angled"]
        if header and match["word"] == "include":
            headers.append(('"' if match["quoted"] else "<", header))
        else:
            unknown.append(_line(text, match.start()))
    if any(word in text for word in _TEST_WORDS):
        for match in _TEST.finditer(text):
            before = _before(text, match.start())
            if _COMMENT.match(before) or _ASKS_FOR_THE_MACRO.search(before):
                continue
            operand = _OPERAND.match(text, match.end())
            if operand is None:
                unknown.append(_line(text, match.start()))
            else:
                headers.append(('"' if operand["quoted"] else "<", operand["quoted"] or operand["angled"]))
    if "__h" in text:
        unknown += [_line(text, match.start()) for match in _PIECE.finditer(text)]
    return Named(tuple(headers), tuple(unknown))


def _before(text: str, position: int) -> str:
    """Return the text before `position` on its line, from the end of the last comment in it."""
    before = text[text.rfind("\n", 0, position) + 1 : position]
    return before.rpartition("*/")[2].rpartition("\r")[2]


def _line(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else len(text)].strip()
