"""The order of an instruction's modifiers, as ptxas reads them: the words that belong to the opcode come first, such as
``async.bulk.tensor`` in cp.async.bulk.tensor, and most of the others may be in any order. The rest of the package reads
them as the PTX manual writes them, the type last."""

from __future__ import annotations

from functools import lru_cache

from cudakit.sim.ptx.types import bits_of

# the words that belong to an opcode, in all their sequences
_WORDS = {
    "mbarrier": "init inval arrive arrive.expect_tx arrive_drop arrive_drop.expect_tx expect_tx complete_tx test_wait "
    "test_wait.parity try_wait try_wait.parity pending_count",
    "cp": "async async.commit_group async.wait_group async.wait_all async.mbarrier.arrive async.bulk async.bulk.tensor "
    "async.bulk.prefetch async.bulk.prefetch.tensor async.bulk.commit_group async.bulk.wait_group reduce.async.bulk "
    "reduce.async.bulk.tensor",
    "st": "async bulk",
    "red": "async",
    "tensormap": "replace cp_fenceproxy",
    "fence": "proxy",
    "membar": "proxy",
    "barrier": "arrive sync red cta.arrive cta.sync cta.red cluster.arrive cluster.wait",
    "createpolicy": "fractional range cvt",
    "setmaxnreg": "inc dec",
}
_SEQUENCES = {opcode: {tuple(text.split(".")) for text in words.split()} for opcode, words in _WORDS.items()}
_MEMBERS = {opcode: {word for words in sequences for word in words} for opcode, sequences in _SEQUENCES.items()}
# instructions with one type
_TYPED = {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier", "tensormap", "createpolicy", "mapa", "getctarank"}
_TYPED |= {"ldmatrix", "stmatrix"}
# all modifiers, in the manual's order
_FENCE = (
    *("proxy", "mbarrier_init", "alias", "async", "async::generic", "tensormap::generic"),
    *("global", "shared::cta", "shared::cluster", "sc", "acq_rel", "acquire", "release"),
    *("sync_restrict::shared::cta", "sync_restrict::shared::cluster", "cta", "cluster", "gpu", "sys"),
)
_RANKS = {"fence": _FENCE, "setmaxnreg": ("inc", "dec", "sync", "aligned", "u32")}


@lru_cache(maxsize=4096)
def in_order(opcode: str, modifiers: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The modifiers in the manual's order, and the reason why they are not an instruction's; "" if they may be."""
    words = tuple(modifier for modifier in modifiers if modifier in _MEMBERS.get(opcode, ()))
    first = modifiers[: len(words)]
    if words and first not in _SEQUENCES[opcode]:
        name = ".".join((opcode, *modifiers))
        return modifiers, f"{name}: .{'.'.join(words)} must follow {opcode} in the order of the PTX manual"
    ranks = _RANKS.get(opcode, ())
    if ranks and all(modifier in ranks for modifier in modifiers):
        return (*first, *sorted(modifiers[len(first) :], key=ranks.index)), ""
    if opcode in _TYPED and modifiers and not bits_of(modifiers[-1]):
        types = tuple(modifier for modifier in modifiers if bits_of(modifier))
        if len(types) == 1:
            return (*(modifier for modifier in modifiers if not bits_of(modifier)), *types), ""
    return modifiers, ""
