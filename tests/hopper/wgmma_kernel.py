"""Products of one warpgroup in PTX: descriptors, instructions and the kernel around them.

Shared memory is filled with random elements from end to end, so the layout of the matrices is what the descriptors
make of it: an implementation that reads another element computes another result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .case import Bytes
from .values import BITS, Draw, elements

ROWS = 64
STEP = 32  # bytes of K per instruction, for every type
THREADS = 128
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}


@dataclass(frozen=True)
class Layout:
    """A matrix in shared memory, of `rows` rows (M or N) and `steps` instructions' K.

    swizzle: the span in bytes, 0 for none. transposed: MN is the contiguous direction, for 16-bit types. apart: the
    order of the two strides, False for the denser one in K. ignored: LBO if the hardware ignores it.
    """

    rows: int
    steps: int
    swizzle: int
    transposed: bool = False
    apart: bool = False
    ignored: int = 1

    @property
    def groups(self) -> int:
        """The number of spans (or, without a swizzle, of 16 bytes) in the contiguous direction of a transposed one."""
        return -(-2 * self.rows // (self.swizzle or 16))

    @property
    def strides(self) -> tuple[int, int]:
        """LBO and SBO in bytes."""
        if not self.transposed:
            if self.swizzle:
                return 16 * self.ignored, 8 * self.swizzle * (2 if self.apart else 1)
            chunks = STEP // 16 * self.steps
            return (self.rows // 8 * 128, 128) if self.apart else (128, 128 * chunks)
        atom = 8 * (self.swizzle or 16)
        tall = 2 * self.steps  # groups of 8 rows of K
        along, across = (atom, self.groups * atom) if self.apart else (tall * atom, atom)
        # without a swizzle the two fields have each other's meaning
        return (along, across) if self.swizzle else (across, along)

    def start(self, step: int) -> int:
        """Return the offset of an instruction's part."""
        leading, stride = self.strides
        if self.transposed:
            return 2 * step * (stride if self.swizzle else leading)
        if not self.swizzle:
            return 2 * step * leading
        atom, within = divmod(step, self.swizzle // STEP)
        next_atom = 8 * self.swizzle if self.apart else self.rows * self.swizzle
        return atom * next_atom + within * STEP

    @property
    def size(self) -> int:
        """Bytes from the start of the matrix to its end, as a multiple of 2048."""
        leading, stride = self.strides
        if self.transposed:
            atom = 8 * (self.swizzle or 16)
            along, across = (leading, stride) if self.swizzle else (stride, leading)
            last = (self.groups - 1) * along + (2 * self.steps - 1) * across + atom
        elif self.swizzle:
            last = self.start(self.steps - 1) // (8 * self.swizzle) * 8 * self.swizzle
            last += (self.rows // 8 - 1) * stride + 8 * self.swizzle
        else:
            last = (self.rows // 8 - 1) * stride + (2 * self.steps - 1) * leading + 128
        return -(-last // 2048) * 2048

    def descriptor(self) -> int:
        """Return the descriptor without its address."""
        leading, stride = self.strides
        return (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32 | _MODES[self.swizzle] << 62

    def __str__(self) -> str:
        words = ["MN" if self.transposed else "K", str(self.swizzle) if self.swizzle else "plain"]
        return " ".join(words + ["apart"] * self.apart + [f"lbo {self.ignored}"] * (self.ignored != 1))


@dataclass(frozen=True)
class Product:
    """Chained products D = A B + D of one warpgroup. a_type, b_type, d_type: PTX types. a: None if A is in registers.
    accumulate: scale-d of the first instruction. negate: imm-scale of A and B is -1. kind: of the operands' values."""

    n: int
    a_type: str
    b_type: str
    d_type: str
    a: Layout | None
    b: Layout
    accumulate: bool = True
    negate: tuple[bool, bool] = (False, False)
    saturate: bool = False
    kind: str = "normal"

    @property
    def integer(self) -> bool:
        return self.d_type == "s32"

    @property
    def steps(self) -> int:
        return self.b.steps

    @property
    def instruction(self) -> str:
        shape = f"m64n{self.n}k{_DEPTH[self.a_type]}"
        if self.a_type == "b1":
            return f"wgmma.mma_async.sync.aligned.{shape}.s32.b1.b1.and.popc"
        types = f"{self.d_type}.{self.a_type}.{self.b_type}"
        return f"wgmma.mma_async.sync.aligned.{shape}{'.satfinite' * self.saturate}.{types}"

    def __str__(self) -> str:
        words = [self.instruction.removeprefix("wgmma.mma_async.sync.aligned."), f"{self.steps} steps"]
        words += [f"A {self.a or 'registers'}", f"B {self.b}"]
        words += ["scale-d 0"] * (not self.accumulate)
        words += [f"-{name}" for name, negated in zip("AB", self.negate, strict=True) if negated]
        return ", ".join([*words, self.kind])

    @property
    def registers(self) -> int:
        """Registers of D per thread."""
        return self.n // (4 if self.d_type == "f16" else 2)

    @property
    def a_bytes(self) -> int:
        return self.a.size if self.a else 0

    @property
    def image(self) -> int:
        """Bytes of shared memory: A, then B."""
        return self.a_bytes + self.b.size

    def inputs(self) -> Bytes:
        """Return the image of shared memory, then each thread's registers of A, then those of D."""
        draw = Draw(str(self))
        parts = [
            self._elements(self.a_type, "a", draw, self.a_bytes),
            self._elements(self.b_type, "b", draw, self.b.size),
        ]
        if self.a is None:
            parts.append(self._elements(self.a_type, "a", draw, THREADS * 16 * self.steps))
        parts.append(self._elements(self.d_type, "c", draw, THREADS * 4 * self.registers))
        return np.concatenate(parts)

    def _elements(self, kind: str, role: str, draw: Draw, size: int) -> Bytes:
        return elements(kind, self.kind, role, draw, 8 * size // BITS[kind])

    @property
    def result(self) -> int:
        """Bytes of the result: the registers of D of each thread."""
        return THREADS * 4 * self.registers

    def locate(self, byte: int) -> str:
        """Return which element of D a byte of the result belongs to."""
        thread, register = divmod(byte // 4, self.registers)
        element = 2 * register + byte % 4 // 2 if self.d_type == "f16" else register
        warp, group, place = thread // 32, thread % 32 // 4, thread % 4
        row = 16 * warp + group + 8 * (element // 2 % 2)
        return (
            f"row {row}, column {8 * (element // 4) + 2 * place + element % 2} (thread {thread}, register {register})"
        )


def _vector(count: int) -> int:
    return 4 if count % 4 == 0 else 2


def _move(name: str, pointer: str, count: int, store: bool) -> list[str]:
    """Load or store registers name0, name1..., as vectors."""
    width, lines = _vector(count), []
    for at in range(0, count, width):
        group = "{" + ", ".join(f"{name}{at + k}" for k in range(width)) + "}"
        place = f"[{pointer}+{4 * at}]"
        lines.append(
            f"st.global.v{width}.b32 {place}, {group};" if store else f"ld.global.v{width}.b32 {group}, {place};"
        )
    return lines


def _descriptor(register: str, base: int, layout: Layout, step: int) -> str:
    """Set a 64-bit register to the descriptor of an instruction's part of a matrix at `base` of the tile."""
    return (
        f"add.u32 %x, %tile, {base + layout.start(step)}; shr.u32 %x, %x, 4; and.b32 %x, %x, 0x3FFF;\n"
        f"cvt.u64.u32 {register}, %x; or.b64 {register}, {register}, {layout.descriptor():#x};"
    )


def body(product: Product) -> str:
    """Return a kernel's body (input, output): fill shared memory and the registers, multiply, store D."""
    count, image = product.registers, product.image
    a_registers = 0 if product.a else 4 * product.steps
    accumulators = "{" + ", ".join(f"%d{k}" for k in range(count)) + "}"
    lines = [
        f".shared .align 1024 .b8 tile[{image}];",
        ".reg .b64 %in, %out, %at, %w, %da, %db; .reg .b32 %t, %x, %s, %left, %v<4>; .reg .pred %more, %p;",
        f".reg .b32 %d<{count}>; .reg .b32 %tile;",
        *([f".reg .b32 %a<{a_registers}>;"] if a_registers else []),
        "ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];",
        "cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;",
        "mov.u32 %t, %tid.x; mov.u32 %tile, tile; shl.b32 %x, %t, 4; cvt.u64.u32 %w, %x;",
        f"add.u64 %at, %in, %w; add.u32 %s, %tile, %x; mov.u32 %left, {image // (16 * THREADS)};",
        "FILL:",
        "ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%at]; st.shared.v4.b32 [%s], {%v0, %v1, %v2, %v3};",
        f"add.u64 %at, %at, {16 * THREADS}; add.u32 %s, %s, {16 * THREADS}; sub.u32 %left, %left, 1;",
        "setp.ne.u32 %more, %left, 0; @%more bra FILL;",
    ]
    offset = image
    for name, registers in (("%a", a_registers), ("%d", count)):
        if registers:
            lines.append(f"mul.wide.u32 %w, %t, {4 * registers}; add.u64 %at, %in, %w; add.u64 %at, %at, {offset};")
            lines += _move(name, "%at", registers, store=False)
            offset += 4 * registers * THREADS
    lines += [
        "fence.proxy.async.shared::cta; bar.sync 0;",
        f"setp.ne.u32 %p, {int(product.accumulate)}, 0;",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(product.steps):
        lines += _multiply(product, step, accumulators)
    lines += [
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        f"mul.wide.u32 %w, %t, {4 * count}; add.u64 %out, %out, %w;",
        *_move("%d", "%out", count, store=True),
        "ret;",
    ]
    return "\n".join(lines)


def _multiply(product: Product, step: int, accumulators: str) -> list[str]:
    lines = []
    if product.a is None:
        first = "{" + ", ".join(f"%a{4 * step + k}" for k in range(4)) + "}"
    else:
        first = "%da"
        lines.append(_descriptor("%da", 0, product.a, step))
    lines.append(_descriptor("%db", product.a_bytes, product.b, step))
    if step == 1:
        lines.append("setp.ne.u32 %p, 1, 0;")
    operands = [accumulators, first, "%db", "%p"]
    if not product.integer:
        operands += [str(-1 if negated else 1) for negated in product.negate]
    if product.a_type in ("f16", "bf16"):
        layouts = (product.b,) if product.a is None else (product.a, product.b)
        operands += [str(int(layout.transposed)) for layout in layouts]
    return [*lines, f"{product.instruction} {', '.join(operands)};"]
