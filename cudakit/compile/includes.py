"""Which headers a text names, read without running the preprocessor.

The answer may be too long, which costs a needless compile, and never too short: a directive counts whether its `#if`
holds or not, and a line that cannot be read for certain is reported as unknown. A line is read as NVRTC reads it:
continued lines are joined; blanks, vertical tabs, form feeds, carriage returns and comments may be between `#` and
the word; `%:` is a `#`. Where compilers and language standards differ (trigraphs, blanks after a line's last
backslash) both readings must name the same headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK = r"[^\x21-\x7e\n]"  # all that is not printed, and letters outside ASCII, which cost at most a needless compile
_GAP = rf"(?:{_BLANK}|/\*(?:[^*]|\*(?!/))*\*/)*"
_HEADER = r"(?:\"(?P<quoted>[^\"\n]+)\"|<(?P<angled>[^>\n]+)>)"
_DIRECTIVE = re.compile(rf"(?:#|%:){_GAP}(?P<word>include_next|include|import|embed)\b{_GAP}{_HEADER}?")
_TEST = re.compile(r"\w*has_(?:include|embed)\w*", re.IGNORECASE)
_TEST_WORDS = ("has_include", "has_embed", "HAS_INCLUDE", "HAS_EMBED")
_OPERAND = re.compile(rf"{_GAP}\({_GAP}{_HEADER}{_GAP}\)")
_ASKS_FOR_THE_MACRO = re.compile(rf"(?:\b(?:define|undef|(?:el)?ifn?def){_BLANK}+|\bdefined{_BLANK}*\(?{_BLANK}*)$")
_COMMENT = re.compile(r"[^\"'<]*//")  # the rest of the line is one; after a quote it may be text
_PIECE = re.compile(r"\b__h(?:as?_?|as_[a-z]{0,6})?\b")  # of __has_include, to be pasted together by ##
_JOINED = re.compile(r"\\\r?\n")
_PERHAPS_JOINED = re.compile(rf"\\{_BLANK}*\n|\\\r")
_VISIBLE = re.compile(r"[\x21-\x7e]")


@dataclass(frozen=True)
class Named:
    """The headers a text names, as (mark, name) with mark `"` or `<`, and the lines that cannot be read for certain."""

    headers: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def named(text: str) -> Named:
    """Every header that `text` includes or tests for."""
    if "\\" not in text and "??" not in text:
        return _read(text)
    joined = _JOINED.sub("", text)
    found = _read(joined)
    other = _PERHAPS_JOINED.sub("", text.replace("??/", "\\").replace("??=", "#"))
    if other != joined and _read(other).headers != found.headers:
        return Named((), (*found.unknown, "a line continued by ??/ or by a backslash and blanks, or ??="))
    return found


def _read(text: str) -> Named:
    """`named` for text whose continued lines are joined."""
    headers: list[tuple[str, str]] = []
    unknown: list[str] = []
    for match in _DIRECTIVE.finditer(text):
        before = _before(text, match.start())
        if _VISIBLE.search(before):
            continue  # a directive is the first thing on its line
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
    """The text before `position` on its line, from the end of the last comment in it."""
    before = text[text.rfind("\n", 0, position) + 1 : position]
    return before.rpartition("*/")[2].rpartition("\r")[2]


def _line(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else len(text)].strip()
