"""The command line of the check: `python -m tests.prose --help`."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

from .phrases import PHRASES, findings
from .texts import Paragraph, paragraphs, tracked

ROOT = Path(__file__).resolve().parents[2]
SHORTEST = 5  # words of a sentence that is worth drawing


def read(places: list[str]) -> list[Paragraph]:
    """Every paragraph of the tracked files below `places`, in the order of their paths."""
    return [part for name in tracked(ROOT, places) for part in paragraphs(name, (ROOT / name).read_text("utf-8"))]


def draw(texts: list[Paragraph], number: int, seed: int) -> list[str]:
    """`number` sentences, each with its place; the same for the same tree and seed."""
    sentences = sorted(
        {
            (text.path, text.line(offset), sentence)
            for text in texts
            if text.kind != "table"
            for offset, sentence in text.sentences()
            if len(sentence.split()) >= SHORTEST
        }
    )
    return [f"{path}:{line}: {sentence}" for path, line, sentence in random.Random(seed).sample(sentences, number)]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Check the English of texts and code.")
    parser.add_argument("places", nargs="*", help="files and folders (default: all that git tracks)")
    parser.add_argument("--count", action="store_true", help="only the number of findings per phrase")
    parser.add_argument("--draw", type=int, metavar="N", help="print N sentences drawn at random, and check nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    chosen = parser.parse_args(arguments)
    texts = read(chosen.places)
    if not texts:
        parser.error(f"no text in {' '.join(chosen.places) or ROOT}: name files or folders that git tracks")
    if chosen.draw:
        print(*draw(texts, chosen.draw, chosen.seed), sep="\n")
        return 0
    found = [finding for text in texts for finding in findings(text)]
    if not chosen.count:
        for one in found:
            print(f"{one.path}:{one.line}: {one.phrase.name} ({one.phrase.instead}): ...{one.excerpt}...")
    counts = Counter(one.phrase.name for one in found)
    for phrase in PHRASES:
        if counts[phrase.name] or chosen.count:
            print(f"{counts[phrase.name]:6} {phrase.name}")
    print(f"{len(found):6} findings in {sum(1 for text in texts for _ in text.sentences())} sentences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
