"""Load many mutants; print what breaks, and where the simulated device and ptxas disagree.

    python -m tests.mutants --count 20000 --seed 7
    python -m tests.mutants --count 2000 --ptxas

Exit status: 1 if a mutant raises anything but PtxError with its line, or takes more than 10 s; else 0.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from multiprocessing import Pool

from .bases import texts
from .changes import mutant
from .verdicts import BROKEN, LOADED, REFUSED, UNSUPPORTED, Verdict, missing_ptxas, verdict


def _text(seed: int) -> str:
    return mutant(texts(), seed)


def _class(message: str) -> str:
    """A message without its numbers and names, so that equal reasons are counted together."""
    first = re.sub(r"^(PTX line \d+|ptxas text, line \d+)[:;] ", "", message.partition("\n")[0])
    return re.sub(r"'[^']*'", "'...'", re.sub(r"%?\b[\w$.]*\d[\w$.]*", "N", first))[:100]


def _print(title: str, found: Iterable[tuple[int, str]]) -> None:
    classes: dict[str, list[int]] = defaultdict(list)
    for seed, message in found:
        classes[_class(message)].append(seed)
    print(f"{title}: {sum(map(len, classes.values()))}")
    for reason, seeds in sorted(classes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(seeds):5} {reason}  (such as {', '.join(map(str, seeds[:3]))})")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=2000, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--ptxas", action="store_true", help="compare with ptxas, from nvidia-cuda-nvcc or PATH")
    parser.add_argument("--print", action="store_true", help="only print the mutant of the seed")
    arguments = parser.parse_args(argv)
    if arguments.print:
        print(_text(arguments.seed))
        return 0
    if arguments.ptxas and missing_ptxas():
        parser.error(missing_ptxas())
    texts()
    with Pool(arguments.jobs) as pool:
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        found: list[Verdict] = pool.map(partial(verdict, _text, against=arguments.ptxas), seeds, chunksize=20)
    for kind in (LOADED, REFUSED, UNSUPPORTED):
        print(f"{kind}: {sum(ours == kind for _, ours, *_ in found)}")
    broken = [(seed, message) for seed, ours, message, _, _ in found if ours == BROKEN]
    _print("broken", broken)
    if arguments.ptxas:
        unsupported = [(s, message) for s, ours, message, accepted, _ in found if ours == UNSUPPORTED and accepted]
        accepted = [(s, said) for s, ours, _, accepted, said in found if ours == LOADED and not accepted]
        refused = [(s, message) for s, ours, message, accepted, _ in found if ours == REFUSED and accepted]
        judged = len(found) - len(unsupported)
        print(
            f"agreement with ptxas: {1 - (len(accepted) + len(refused) + len(broken)) / max(judged, 1):.4f} of {judged}"
        )
        _print("loaded, refused by ptxas", accepted)
        _print("refused, accepted by ptxas", refused)
        _print("unsupported, accepted by ptxas", unsupported)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
