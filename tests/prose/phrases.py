"""The phrases that the check of our English looks for, each with what to write instead, a sample that it finds, and
its exceptions: expressions that are right although the pattern finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .texts import Paragraph

_UNIT = (
    r"(?:element|row|column|thread|lane|warp|block|grid|launch|kernel|call|copy|load|store|word|byte|tile|chunk|image|"
    r"matrix|line|file|instruction|request|sector|step|variant|rung|shape|argument|parameter|run|test|case|second|"
    r"multiprocessor|SM|stage|pass|point|page|problem|item|node|array|value|product|family|stream|barrier|cycle|entry)"
)
_NO_COUNT = (
    "of|in|for|to|by|on|at|from|is|are|has|have|as|with|within|per|and|or|than|after|into|over|between|if|that|which|"
    "gets|without|through|before|like|but|across|inside|needs|takes|reads|writes"
)
_COUNT = r"(?:one|two|three|four|six|eight|ten|half|\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True)
class Phrase:
    """A pattern, and how to write it plainly. `allowed`: expressions within which the pattern may occur."""

    name: str
    pattern: str
    instead: str
    sample: str
    allowed: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("page", "table", "docstring", "comment", "message")

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Each occurrence in `text` that is not within an exception."""
        right = [span.span() for allowed in self.allowed for span in re.finditer(allowed, text)]
        for match in re.finditer(self.pattern, text):
            if not any(start <= match.start() and match.end() <= end for start, end in right):
                yield match


PHRASES = (
    Phrase(
        "where for if",
        r"\b[Ww]here\b",
        "if, when, unless; `where` is for places",
        "None where it has no owner.",
        (
            r"(?i)\b(?:lines?|places?|points?|files?|folders?|pages?|positions?|spots?|rooms?|address|offsets?|columns?|"
            r"rows?|sections?|loops?|room) where\b",
            r"(?i)\b(?:from|shows?|sees?|seen|know|knows|finds?|look|says|say|and|or|of|to|is|ask|choose|"
            r"names?|reports?) where\b",
            r"np\.where|numpy\.where|torch\.where|`[^`]*where[^`]*`",
            r"Where (?:would|do|does|is|are|to)\b|^Where [^.]*$",
        ),
    ),
    Phrase(
        "a for per",
        rf"\b(?:{_COUNT} (?:\w+ )?(?!(?:{_NO_COUNT}) )\w+ |"
        r"(?:bytes|threads|microseconds|us|ns|ms|times|sectors|cycles|FLOP|flops|instructions|"
        rf"requests) )an? {_UNIT}\b",
        "per",
        "8 bytes an element",
        (r"(?i)one of (?:\w+ )?an? ", r"times a (?:matrix|value|product)"),
    ),
    Phrase(
        "a for per, twice",
        rf"\b[Aa]n? \w+ an? {_UNIT}\b",
        "one ... per ...",
        "a bar a rung",
    ),
    Phrase(
        "nobody, somebody",
        r"(?i)\b(?:nobody|somebody|no one|someone|anybody)\b",
        "name it: unused, another thread",
        "memory that nobody has",
    ),
    Phrase(
        "tells", r"\b(?:tells?|told|telling)\b", "reports, returns, says, distinguishes", "The plan tells the size."
    ),
    Phrase("behind", r"\b[Bb]ehind\b", "after, past the end of", "the bytes behind the array"),
    Phrase(
        "opens with what",
        r"(?:^|(?<=[.!] ))What(?:ever)?\b(?![^.]*\?)",
        "a noun or a verb",
        "What the pool holds is kept.",
        kinds=("page", "docstring", "comment", "message"),
    ),
    Phrase(
        "opens with where, who",
        r"(?:^|(?<=[.!] ))(?:Where|Who|Nothing|None of)\b(?![^.]*\?)",
        "if ...; the subject first",
        "Where it is open, it waits.",
        (r"^Where [^.]*$",),
        kinds=("page", "docstring", "comment"),
    ),
    Phrase(
        "opens with of, by the",
        r"(?:^|(?<=[.!] ))(?:Of|By the)\b(?! course)",
        "the subject first",
        "Of two it is the first.",
    ),
    Phrase("held against", r"\b(?:held|holds?) against\b", "compared with", "it is held against its reference"),
    Phrase("all right", r"\b[Aa]ll right\b", "passed, correct", "all right"),
    Phrase(
        "right for correct",
        r"\b(?:is|are|was|were|be|stays?|gives? the|results?|not|both) right\b",
        "correct",
        "the result is right",
        (r"(?:\w+ )?right (?:of|edge|side|half|hand|operand|shift|to the)",),
    ),
    Phrase("but for", r"\b(?:but|save) for\b", "except, without, unless", "all but for one"),
    Phrase(
        "is no",
        r"(?<![Tt]here )\b(?:is|are|was|were|be) no\b"
        r"(?! (?:longer|more|less|better|worse|need|room|later|earlier|slower|faster|larger|"
        r"smaller|wider|deeper|other)\b)",
        "is not a, is not",
        "it is no array",
        (r"(?i)\bthere (?:is|are|was|were|may be|must be|can be) no\b",),
    ),
    Phrase("has none", r"\b(?:has|have|had) none\b", "has no ..., does not", "a copy has none"),
    Phrase(
        "stands",
        r"\b[Ss]tands?\b|\bstood\b|\bstanding\b",
        "is",
        "what stands there",
        (
            r"stand-ins?\b",
            r"stands? for\b",
        ),
    ),
    Phrase(
        "lies",
        r"\b(?:lies?|lain|lay) (?:in|at|on|before|within|there|here|between|below|above|outside|next)\b",
        "is",
        "it lies in memory",
    ),
    Phrase(
        "comes by",
        r"\b(?:come|comes|came) (?:by|forward|of|along|to be|round)\b",
        "is measured, makes progress",
        "come by",
    ),
    Phrase("anew", r"\b[Aa]new\b", "again", "written anew", (r"--anew",)),
    Phrase("as it stands", r"\bas (?:it stands|they stand)\b", "unchanged", "left as it stands"),
    Phrase("says so", r"\b(?:says?|said) so\b", "reports it", "a row says so"),
    Phrase("is to be", r"\b(?:is|are|was) to be \w+(?:ed|en|t)\b", "must be, should be", "is to be divided"),
    Phrase("asked of", r"\b(?:asked|wanted|said|told) of\b", "requested from, applied to", "is asked of it"),
    Phrase(
        "goes by",
        r"\b(?:go|goes|went) (?:by|for|with) (?:the|its|their|what)\b",
        "depends on, uses",
        "it goes by the shape",
    ),
    Phrase(
        "archaisms",
        r"(?i)\b(?:thence|whence|hence|wherein|thereof|whereof|in its midst|lest|ere|nought|rubbish|of its kind|"
        r"for want of|come what may|in vain|therein|hither|herein)\b",
        "plain English",
        "whence it came",
    ),
    Phrase("accuses", r"\b[Aa]ccus(?:e|es|ed|ing)\b", "reports, false positive", "a twin that is accused"),
    Phrase("wants", r"\b[Ww]ants?\b(?! to\b)", "needs, requires", "plots want a package", (r"[Yy]ou want\b",)),
    Phrase("gives", r"\b(?:[Gg]ives?|[Gg]ave|[Gg]iving)\b(?! up\b)", "returns, raises, produces", "it gives the size"),
    Phrase(
        "which that",
        r"\b(?:that|which) (?:nothing|none)\b",
        "reword: name what does not happen",
        "bytes that nothing reads",
    ),
    Phrase("of whose", r"\bof whose\b", "reword: two sentences", "an array of whose bytes"),
)


@dataclass(frozen=True)
class Finding:
    """One occurrence of a phrase."""

    phrase: Phrase
    path: str
    line: int
    excerpt: str


def findings(paragraph: Paragraph) -> Iterator[Finding]:
    """The phrases of the list that a paragraph has; code in backticks is not read."""
    text = re.sub(r"`[^`]*`", lambda code: "`" + "_" * (len(code[0]) - 2) + "`", paragraph.text)
    for phrase in PHRASES:
        if paragraph.kind in phrase.kinds:
            for match in phrase.found(text):
                excerpt = paragraph.text[max(0, match.start() - 40) : match.end() + 40]
                yield Finding(phrase, paragraph.path, paragraph.line(match.start()), excerpt)
