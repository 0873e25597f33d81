"""Machine code for operations between the lanes of a warp: member masks, shuffles, matches and reductions."""

from __future__ import annotations

from cudakit.sim.compiled.context import I32, I64, conditions
from cudakit.sim.compiled.ir import Module, Value, element
from cudakit.sim.compiled.layout import BAIL, FINE, LANES

# the reductions of redux.sync, by the number that machine code knows them by
REDUCTIONS = ("add", "and", "or", "xor", "umin", "umax", "smin", "smax")


def _members(module: Module) -> None:
    """The lanes of the member masks of the active lanes, ``masks``, as bits. 0 if a lane is not in its own mask, or if
    the masks of two active lanes overlap and differ, as the interpreter would report."""
    with module.function("members", "i32", masks="ptr", mask="i32") as c:
        masks = c.masks.load(I32, 4)
        all_, left = c.variable("i32", 0), c.variable("i32", 0)
        left.value = c.mask
        own = (masks >> c.lane_numbers("i32", LANES)) & 1
        with c.if_(((own.ne(0).bits("i32") ^ -1) & c.mask).ne(0), rare=True):
            c.return_(0)
        with c.while_(lambda: left.value.ne(0)):
            one = masks[c.first_bit(left.value)]
            same = masks.eq(one.splat(LANES)).bits("i32")
            with c.if_((one & c.mask & ~same).ne(0), rare=True):
                c.return_(0)
            all_.value = all_.value | one
            left.value = left.value & ~same
        c.return_(all_.value)


def _shuffle(module: Module) -> None:
    """shfl.sync by all active lanes. ``mode``: 0 up, 1 down, 2 bfly, 3 idx; ``lane_of``, ``control``: the operands
    b and c per lane. ``masks``: the member masks per lane, or null if each includes all active lanes. ``found``:
    receives the bits of the lanes whose source is in range. BAIL if a lane reads a lane that does not take part."""
    arguments = {
        "mode": "i32",
        "source": "ptr",
        "lane_of": "ptr",
        "control": "ptr",
        "masks": "ptr",
        "out": "ptr",
        "mask": "i32",
        "found": "ptr",
    }
    with module.function("shuffle", "i32", context="ptr", **arguments) as c:
        lane = c.lane_numbers("i32", LANES)
        distance, control = c.lane_of.load(I32, 4) & 31, c.control.load(I32, 4)
        clamp, segment = control & 31, (control >> 8) & 31
        least = lane & segment
        most = least | (clamp & ~segment)
        other, inside = c.variable(I32, 0), c.variable(f"<{LANES} x i1>", 0)

        def up() -> None:
            other.value = lane - distance
            inside.value = other.value.is_("sge", most)

        def others() -> None:
            towards = c.mode.eq(2).select(lane ^ distance, least | (distance & ~segment))
            other.value = c.mode.eq(1).select(lane + distance, towards)
            inside.value = other.value.is_("sle", most)

        c.either(c.mode.eq(0), up, others)
        source = inside.value.select(other.value, lane)
        members = c.variable(I32, 0)
        members.value = c.mask.splat(LANES)
        with c.if_(c.masks.ne(None)):
            members.value = members.value & c.masks.load(I32, 4)
        present = ((members.value >> source) & 1).ne(0).bits("i32")
        with c.if_((c.mask & ~present).ne(0), rare=True):
            c.return_(BAIL)
        places = c.let(f"<{LANES} x ptr>", f"getelementptr i32, {c.source}, {source.to(I64)}")
        c.out.mix(conditions(c, c.mask, LANES), c.gather(I32, places), 4)
        c.found.store(inside.value.bits("i32"))
        c.return_(FINE)


def _match(module: Module) -> None:
    """match.sync by all active lanes, of values of 32 or 64 bits (``wide``). ``every``: match.all. Returns the bits of
    the lanes whose members all have their value."""
    arguments = {"values": "ptr", "masks": "ptr", "out": "ptr", "mask": "i32", "wide": "i1", "every": "i1"}
    with module.function("match", "i32", **arguments) as c:
        agreed, same = c.variable("i32", 0), c.variable("i32", 0)
        with c.each_bit(c.mask) as lane:
            place = lane.to("i64")

            def compare(kind: str, place: Value = place) -> None:
                own = c.values.at(place * (8 if kind == I64 else 4)).load(element(kind))
                same.value = c.values.load(kind, 4).eq(own.splat(LANES)).bits("i32")

            c.either(c.wide, lambda: compare(I64), lambda: compare(I32))
            members = c.masks.at(place * 4).load("i32") & c.mask
            bits = same.value & members
            all_ = bits.eq(members)
            c.out.at(place * 4).store((c.every & ~all_).select(0, bits))
            agreed.value = agreed.value | (all_.to("i32") << lane)
        c.return_(agreed.value)


def _reduction(module: Module) -> None:
    """redux.sync by all active lanes, of integers. ``operation``: its number in REDUCTIONS."""
    arguments = {"operation": "i32", "values": "ptr", "masks": "ptr", "out": "ptr", "mask": "i32"}
    with module.function("reduction", "void", **arguments) as c:
        result, left = c.variable("i32", 0), c.variable("i32", 0)
        masks = c.masks.load(I32, 4)
        left.value = c.mask
        with c.while_(lambda: left.value.ne(0)):
            first = c.first_bit(left.value)
            members = masks[first] & c.mask
            result.value = c.values.at(first.to("i64") * 4).load("i32")
            with c.each_bit(members & ~(c.const("i32", 1) << first)) as lane:
                one, other = result.value, c.values.at(lane.to("i64") * 4).load("i32")
                found = [one + other, one & other, one | other, one ^ other]
                for condition in ("ult", "ugt", "slt", "sgt"):
                    found.append(one.is_(condition, other).select(one, other))
                value = found[0]
                for number, choice in enumerate(found[1:], 1):
                    value = c.operation.eq(number).select(choice, value)
                result.value = value
            with c.each_bit(members) as lane:
                c.out.at(lane.to("i64") * 4).store(result.value)
            left.value = left.value & ~members
        c.return_()


FUNCTIONS = (_members, _shuffle, _match, _reduction)
