"""Matrix products in PTX on chosen tiles: their layout in registers, runs on any device, and an H200's results.

`data/tensor_h200.npz` has, for every form of mma.sync and wmma, operand tiles of several kinds (cancelling sums,
subnormal, sparse, special numbers...), an H200's results, and the positions of a fragment's elements in its wmma
registers. `python tests/tensorforms.py` records them again, on this machine's GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "data" / "tensor_h200.npz"
BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
BITS |= {"s4": 4, "u4": 4, "b1": 1}

# Layouts of mma.sync fragments, from the figures of the PTX ISA (Matrix Fragments for mma): the row and column of the
# first element of each register of lane 0, by shape and bits per element.
_A = {
    ((8, 8, 16), 8): [(0, 0)],
    ((8, 8, 32), 4): [(0, 0)],
    ((8, 8, 128), 1): [(0, 0)],
    ((8, 8, 4), 64): [(0, 0)],
    ((16, 8, 4), 32): [(0, 0), (8, 0)],
    ((16, 8, 4), 64): [(0, 0), (8, 0)],
    ((16, 8, 8), 16): [(0, 0), (8, 0)],
    ((16, 8, 16), 8): [(0, 0), (8, 0)],
    ((16, 8, 32), 4): [(0, 0), (8, 0)],
    ((16, 8, 128), 1): [(0, 0), (8, 0)],
    ((16, 8, 8), 32): [(0, 0), (8, 0), (0, 4), (8, 4)],
    ((16, 8, 8), 64): [(0, 0), (8, 0), (0, 4), (8, 4)],
    ((16, 8, 16), 16): [(0, 0), (8, 0), (0, 8), (8, 8)],
    ((16, 8, 32), 8): [(0, 0), (8, 0), (0, 16), (8, 16)],
    ((16, 8, 64), 4): [(0, 0), (8, 0), (0, 32), (8, 32)],
    ((16, 8, 256), 1): [(0, 0), (8, 0), (0, 128), (8, 128)],
    ((16, 8, 16), 64): [(0, 0), (8, 0), (0, 4), (8, 4), (0, 8), (8, 8), (0, 12), (8, 12)],
}
# for B, whose registers all begin in column 0: the rows
_B = {
    ((8, 8, 16), 8): [0],
    ((8, 8, 32), 4): [0],
    ((8, 8, 128), 1): [0],
    ((8, 8, 4), 64): [0],
    ((16, 8, 4), 32): [0],
    ((16, 8, 4), 64): [0],
    ((16, 8, 8), 16): [0],
    ((16, 8, 16), 8): [0],
    ((16, 8, 32), 4): [0],
    ((16, 8, 128), 1): [0],
    ((16, 8, 8), 32): [0, 4],
    ((16, 8, 8), 64): [0, 4],
    ((16, 8, 16), 16): [0, 8],
    ((16, 8, 32), 8): [0, 16],
    ((16, 8, 64), 4): [0, 32],
    ((16, 8, 256), 1): [0, 128],
    ((16, 8, 16), 64): [0, 4, 8, 12],
}
# for C and D, which are 8 columns wide: by rows and bits
_C = {
    (8, 32): [(0, 0), (0, 1)],
    (8, 64): [(0, 0), (0, 1)],
    (16, 16): [(0, 0), (8, 0)],
    (16, 32): [(0, 0), (0, 1), (8, 0), (8, 1)],
    (16, 64): [(0, 0), (0, 1), (8, 0), (8, 1)],
}


@dataclass(frozen=True)
class Form:
    """A product by its name, such as "m16n8k16.row.col.f32.f16.f16.f32"; names of wmma begin with "wmma "."""

    name: str

    @cached_property
    def words(self):
        return self.name.removeprefix("wmma ").split(".")

    @property
    def is_wmma(self):
        return self.name.startswith("wmma ")

    @cached_property
    def shape(self):
        return tuple(int(number) for number in re.findall(r"\d+", self.words[0]))

    @cached_property
    def types(self):
        """The types of A, B, C and D."""
        kinds = [word for word in self.words[1:] if word in BITS]
        if len(kinds) == 2:
            kinds = [kinds[0], "f16", "f16", kinds[1]]
        return (*kinds[1:], kinds[0])

    @property
    def quads(self):
        """The number of products per instruction: m8n8k4 of f16 computes one for each pair of quads."""
        return 4 if self.shape == (8, 8, 4) and self.types[0] == "f16" else 1

    @property
    def layouts(self):
        return ("row", "col") if self.is_wmma else tuple(self.words[1:3])

    @property
    def width(self):
        """Return the bits of a register."""
        return 64 if self.types[0] == "f64" else 32

    def sizes(self, tiles=1):
        """Return the shapes of A, B, C and D for a number of tiles."""
        m, n, k = self.shape
        count = tiles * self.quads
        return (count, m, k), (count, k, n), (count, m, n), (count, m, n)

    def dtypes(self):
        return tuple(np.dtype(f"u{max(BITS[kind] // 8, 1)}") for kind in self.types)

    def places(self, role):
        """Return row and column, (registers, 32 lanes, elements), of the elements in the registers of A, B, C or D; for
        quads also the number of the product."""
        kind = self.types["abcd".index(role)]
        bits, per = BITS[kind], self.width // BITS[kind]
        if self.quads > 1:
            return self._quad_places(role, per)
        starts = {"a": _A, "b": _B}.get(role, _C)[(self.shape if role in "ab" else self.shape[0], bits)]
        starts = [(start, 0) for start in starts] if role == "b" else starts
        lane, element = np.meshgrid(np.arange(32), np.arange(per), indexing="ij")
        group, thread = lane // 4, lane % 4
        step = thread * (2 if role in "cd" else per) + element
        rows, columns = (step, group) if role == "b" else (group, step)
        return np.array([rows + r for r, _ in starts]), np.array([columns + c for _, c in starts]), 0

    def _quad_places(self, role, per):
        count = (4 if role in "ab" else 8) // per
        register, lane, element = np.meshgrid(np.arange(count), np.arange(32), np.arange(per), indexing="ij")
        i = register * per + element
        quad, half = lane % 16 // 4, 4 * (lane // 16)
        if role == "a":
            row, column = (lane % 4 + half, i) if self.layouts[0] == "row" else (i + half, lane % 4)
        elif role == "b":
            row, column = (lane % 4, i + half) if self.layouts[1] == "row" else (i, lane % 4 + half)
        elif per == 2:
            row, column = lane % 4 + half, i
        else:
            row, column = (lane & 1) + (i & 2) + half, (i & 4) + (lane & 2) + (i & 1)
        return row, column, quad

    def pack(self, role, tiles):
        """Return tiles of bit patterns as registers, (instructions, registers, 32)."""
        rows, columns, quad = self.places(role)
        bits = BITS[self.types["abcd".index(role)]]
        elements = tiles.reshape(-1, self.quads, *tiles.shape[1:])[:, quad, rows, columns].astype(np.uint64)
        shifts = np.arange(elements.shape[-1], dtype=np.uint64) * np.uint64(bits)
        return np.bitwise_or.reduce(elements << shifts, axis=-1).astype(f"u{self.width // 8}")

    def unpack(self, registers):
        rows, columns, quad = self.places("d")
        bits, per = BITS[self.types[3]], rows.shape[-1]
        shifts = np.arange(per, dtype=np.uint64) * np.uint64(bits)
        elements = registers.astype(np.uint64)[..., None] >> shifts & np.uint64((1 << bits) - 1)
        found = np.zeros((len(registers), self.quads, *self.sizes()[3][1:]), self.dtypes()[3])
        found[:, quad, rows, columns] = elements.astype(found.dtype)
        return found.reshape(-1, *found.shape[2:])


def register(kind):
    return kind if kind in ("f32", "f64") else "b32"


def kernel(form):
    """Return a kernel (pointer to operands, pointer to results): each warp loads its registers, multiplies, stores."""
    counts = [len(form.places(role)[0]) for role in "abcd"]
    width, bytes_ = form.width, form.width // 8
    lines = [
        ".version 8.7\n.target sm_90a\n.address_size 64",
        ".visible .entry form(.param .u64 pin, .param .u64 pout) {",
        ".reg .b64 %i, %o, %t; .reg .b32 %x, %y;",
        *(f".reg .{register(t)} %{r}<{n}>;" for t, r, n in zip(form.types, "abcd", counts, strict=True)),
        "ld.param.u64 %i, [pin]; ld.param.u64 %o, [pout];",
        "cvta.to.global.u64 %i, %i; cvta.to.global.u64 %o, %o; mov.u32 %y, %tid.x;",
    ]
    for pointer, count in (("%i", sum(counts[:3])), ("%o", counts[3])):
        lines.append(f"mov.u32 %x, %ctaid.x; mad.lo.u32 %x, %x, {32 * count}, %y;")
        lines.append(f"mul.wide.u32 %t, %x, {bytes_}; add.u64 {pointer}, {pointer}, %t;")
    names = [f"%{role}{k}" for role, count in zip("abc", counts, strict=False) for k in range(count)]
    lines += [f"ld.global.b{width} {name}, [%i+{32 * bytes_ * k}];" for k, name in enumerate(names)]
    lists = ["{" + ", ".join(f"%{r}{k}" for k in range(counts["abcd".index(r)])) + "}" for r in "dabc"]
    lines.append(f"mma.sync.aligned.{form.name} {', '.join(lists)};")
    lines += [f"st.global.b{width} [%o+{32 * bytes_ * k}], %d{k};" for k in range(counts[3])]
    return "\n".join([*lines, "ret;\n}\n"])


def fragment_registers(role, kind, shape):
    """Return the number of registers of a wmma fragment."""
    m, n, k = shape
    if kind == "f16" and role in "ab":
        return 8
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    return rows * columns * BITS[kind] // 32 // max(BITS[kind], 32)


def wmma_kernel(form, layouts=("row", "col", "row", "row")):
    """Return a kernel (pointers to A, B, C, D): each warp loads its matrices in these layouts, multiplies, stores."""
    shape, types = form.words[0], form.types
    m, n, k = form.shape
    counts = [fragment_registers(r, t, form.shape) for r, t in zip("abcd", types, strict=True)]
    lines = [
        ".version 8.7\n.target sm_90a\n.address_size 64",
        ".visible .entry form(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {",
        ".reg .b64 %a, %b, %c, %d, %t; .reg .b32 %x; mov.u32 %x, %ctaid.x;",
    ]
    lists = []
    for r, kind, count, layout, (rows, columns) in zip(
        "abcd", types, counts, layouts, ((m, k), (k, n), (m, n), (m, n)), strict=True
    ):
        lists.append("{" + ", ".join(f"%r{r}{i}" for i in range(count)) + "}")
        lines.append(
            f".reg .{register(kind)} %r{r}<{count}>; ld.param.u64 %{r}, [p{r}]; cvta.to.global.u64 %{r}, %{r};"
        )
        lines.append(f"mul.wide.u32 %t, %x, {rows * columns * BITS[kind] // 8}; add.u64 %{r}, %{r}, %t;")
        if r != "d":
            # C is read without a stride: the default is the width of the matrix
            stride = "" if r == "c" else f", {columns if layout == 'row' else rows}"
            lines.append(f"wmma.load.{r}.sync.aligned.{layout}.{shape}.global.{kind} {lists[-1]}, [%{r}]{stride};")
    combine = [word for word in form.words if word in ("xor", "and", "popc")]
    rest = [word for word in form.words[1:] if word not in combine]
    name = ".".join(
        ["mma", *combine, "sync.aligned", *layouts[:2], shape, *(["rn"] if types[0] == "f64" else []), *rest]
    )
    lines.append(f"wmma.{name} {', '.join([lists[3], *lists[:3]])};")
    stride = n if layouts[3] == "row" else m
    lines.append(f"wmma.store.d.sync.aligned.{layouts[3]}.{shape}.global.{types[3]} [%d], {lists[3]}, {stride};")
    return "\n".join([*lines, "ret;\n}\n"])


def fragment_kernel(role, kind, shape, layout, stride):
    """Return a kernel (pointer to a matrix, pointer to registers) that stores a wmma fragment's registers."""
    count, bytes_ = fragment_registers(role, kind, shape), 8 if kind == "f64" else 4
    name = "m{}n{}k{}".format(*shape)
    registers = "{" + ", ".join(f"%r{k}" for k in range(count)) + "}"
    lines = [
        ".version 8.7\n.target sm_90a\n.address_size 64",
        ".visible .entry form(.param .u64 pin, .param .u64 pout) {",
        f".reg .b64 %i, %o, %t; .reg .b32 %x; .reg .{register(kind)} %r<{count}>;",
        "ld.param.u64 %i, [pin]; ld.param.u64 %o, [pout];",
        "cvta.to.global.u64 %i, %i; cvta.to.global.u64 %o, %o;",
        f"mov.u32 %x, %tid.x; mul.wide.u32 %t, %x, {bytes_}; add.u64 %o, %o, %t;",
        f"wmma.load.{role}.sync.aligned.{layout}.{name}.global.{kind} {registers}, [%i], {stride};",
        *(f"st.global.b{8 * bytes_} [%o+{32 * bytes_ * k}], %r{k};" for k in range(count)),
    ]
    return "\n".join([*lines, "ret;\n}\n"])


def memory(kind, tiles, layout):
    """Return tiles of bit patterns as bytes in memory."""
    flat = np.ascontiguousarray(tiles if layout == "row" else tiles.swapaxes(1, 2)).reshape(len(tiles), -1)
    per = 8 // BITS[kind]
    if per <= 1:
        return flat.view(np.uint8)
    shifts = (np.arange(per) * BITS[kind]).astype(np.uint8)
    return np.bitwise_or.reduce(flat.reshape(len(flat), -1, per) << shifts, axis=-1).astype(np.uint8)


# ---- running ----


class Machine:
    """A device accessed through its driver: the module of cuda.bindings, or a simulated driver."""

    def __init__(self, api):
        self.api = api
        self._check(api.cuInit(0))
        self.device = self._check(api.cuDeviceGet(0))
        self._check(api.cuCtxSetCurrent(self._check(api.cuDevicePrimaryCtxRetain(self.device))))

    def close(self):
        self._check(self.api.cuDevicePrimaryCtxRelease(self.device))

    def _check(self, result):
        code, *values = result
        if int(code):
            raise RuntimeError(f"{code}")
        return values[0] if values else None

    def launch(self, text, grid, *arrays):
        """Run a kernel from its PTX with one warp per block; the last array is changed in place."""
        api = self.api
        module = self._check(api.cuModuleLoadData(text.encode() + b"\0"))
        function = self._check(api.cuModuleGetFunction(module, b"form"))
        pointers = []
        for array in arrays:
            pointers.append(self._check(api.cuMemAlloc(array.nbytes)))
            self._check(api.cuMemcpyHtoD(pointers[-1], array.ctypes.data, array.nbytes))
        values = np.array([int(pointer) for pointer in pointers], np.uint64)
        params = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
        self._check(api.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, 0, params.ctypes.data, 0))
        self._check(api.cuMemcpyDtoH(arrays[-1].ctypes.data, pointers[-1], arrays[-1].nbytes))
        for pointer in pointers:
            self._check(api.cuMemFree(pointer))
        self._check(api.cuModuleUnload(module))
        return arrays[-1]

    def multiply(self, form, a, b, c, layouts=("row", "col", "row", "row")):
        """Return D of a form for tiles of bit patterns; ``layouts`` are those of wmma's matrices in memory."""
        grid = len(a) // form.quads
        if not form.is_wmma:
            registers = [form.pack(role, tiles) for role, tiles in zip("abc", (a, b, c), strict=True)]
            operands = np.ascontiguousarray(np.concatenate(registers, axis=1))
            made = np.zeros((grid, len(form.places("d")[0]), 32), operands.dtype)
            return form.unpack(self.launch(kernel(form), grid, operands, made))
        given = [
            np.ascontiguousarray(memory(kind, tiles, layout))
            for kind, tiles, layout in zip(form.types, (a, b, c), layouts, strict=False)
        ]
        m, n, _ = form.shape
        made = np.zeros((grid, m, n) if layouts[3] == "row" else (grid, n, m), form.dtypes()[3])
        self.launch(wmma_kernel(form, layouts), grid, *given, made)
        return made if layouts[3] == "row" else made.swapaxes(1, 2)

    def fragment(self, role, kind, shape, layout):
        """Return the position in the matrix of each register, lane and element of a wmma fragment."""
        m, n, k = shape
        rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
        bits, places = BITS[kind], np.arange(rows * columns, dtype=np.uint64).reshape(1, rows, columns)
        count, width = fragment_registers(role, kind, shape), 64 if kind == "f64" else 32
        found = np.zeros((count, 32, width // bits), np.uint64)
        # a position has more bits than a short element: load a few bits of it at a time
        for shift in range(0, 10, bits):
            part = (places >> np.uint64(shift) & np.uint64((1 << min(bits, 10)) - 1)).astype(f"u{max(bits // 8, 1)}")
            text = fragment_kernel(role, kind, shape, layout, columns if layout == "row" else rows)
            registers = np.zeros((count, 32), f"u{width // 8}")
            self.launch(text, 1, memory(kind, part, layout), registers)
            shifts = np.arange(width // bits, dtype=np.uint64) * np.uint64(bits)
            elements = registers.astype(np.uint64)[..., None] >> shifts & np.uint64((1 << min(bits, 10)) - 1)
            found |= elements << np.uint64(shift)
        return found


# ---- recordings ----


def recorded():
    """Return (form, kind of operands, A, B, C, D) of every recorded case, as tiles of bit patterns."""
    with np.load(RECORDED) as data:
        cases, operands, results = data["cases"].tolist(), data["operands"], data["results"]
    taken = given = 0
    found = []
    for case in cases:
        name, what = case.rsplit(" ", 1)
        form = Form(name)
        tiles = []
        for shape, dtype in zip(form.sizes()[:3], form.dtypes()[:3], strict=True):
            size = int(np.prod(shape)) * dtype.itemsize
            tiles.append(operands[taken : taken + size].view(dtype).reshape(shape))
            taken += size
        shape, dtype = form.sizes()[3], form.dtypes()[3]
        size = int(np.prod(shape)) * dtype.itemsize
        found.append((form, what, *tiles, results[given : given + size].view(dtype).reshape(shape)))
        given += size
    return found


def fragments():
    """Return ((shape, role, type), positions) of every recorded wmma fragment."""
    with np.load(RECORDED) as data:
        names, places = data["fragments"].tolist(), data["places"]
    at, found = 0, []
    for name in names:
        shape, role, kind = name.split("/")
        shape = tuple(int(number) for number in re.findall(r"\d+", shape))
        size = (fragment_registers(role, kind, shape), 32, max(BITS[kind], 32) // BITS[kind])
        found.append(((shape, role, kind), places[at : at + int(np.prod(size))].reshape(size)))
        at += int(np.prod(size))
    return found


def multiplied(machine, cases):
    """Return ``machine``'s results for cases; all cases of one form are one launch."""
    groups = {}
    for number, (form, _, *tiles) in enumerate(cases):
        groups.setdefault(form, []).append((number, tiles))
    results = [None] * len(cases)
    for form, members in groups.items():
        made = machine.multiply(form, *(np.concatenate([tiles[k] for _, tiles in members]) for k in range(3)))
        for place, (number, _) in enumerate(members):
            results[number] = made[place * form.quads : (place + 1) * form.quads]
    return results


if __name__ == "__main__":
    from cuda.bindings import driver

    gpu = Machine(driver)
    with np.load(RECORDED) as old:
        arrays = dict(old)
    arrays["results"] = np.concatenate(
        [np.ascontiguousarray(d).view(np.uint8).ravel() for d in multiplied(gpu, recorded())]
    )
    arrays["places"] = np.concatenate(
        [
            gpu.fragment(role, kind, shape, "col" if role == "b" else "row").astype(np.uint16).ravel()
            for (shape, role, kind), _ in fragments()
        ]
    )
    np.savez_compressed(RECORDED, **arrays)
