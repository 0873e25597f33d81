"""Lane-wise PTX instructions on chosen operands: on the simulated device's arithmetic, on a GPU, and as recorded.

`data/lanewise_h200.npz` has 32 operand vectors and an H200's results for each of about 1,300 forms of instructions.
`python tests/lanewise.py` records the results again, on this machine's GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudakit.sim.ptx import parser as ptx
from cudakit.sim.values import arithmetic

RECORDED = Path(__file__).parent / "data" / "lanewise_h200.npz"
_OPERANDS = "abcdefgh"


@dataclass(frozen=True)
class Form:
    """PTX statements that read a, b, c... and write d0, d1..., and the PTX types of both."""

    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def bits(kind):
    if kind == "pred":
        return 1
    return 32 if kind.endswith("x2") else 16 if kind == "bf16" else int(kind[1:])


def register(kind):
    return kind if kind in ("pred", "f32", "f64") else f"b{bits(kind)}"


def kernel(form, version="8.6", target="sm_90a"):
    """Return a kernel (pointer in, pointer out, count) that runs a form on rows of 64-bit words."""
    lines = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        ".visible .entry form(.param .u64 pin, .param .u64 pout, .param .u64 pcount) {",
        ".reg .b64 %i, %o, %n, %t, %w; .reg .b32 %s, %m;",
        *(f".reg .{register(kind)} {_OPERANDS[k]};" for k, kind in enumerate(form.inputs)),
        *(f".reg .{register(kind)} d{k};" for k, kind in enumerate(form.outputs)),
        f".reg .{register(form.outputs[0])} x;",
        "ld.param.u64 %i, [pin]; ld.param.u64 %o, [pout]; ld.param.u64 %n, [pcount];",
        "cvta.to.global.u64 %i, %i; cvta.to.global.u64 %o, %o; shl.b64 %n, %n, 3;",
        "mov.u32 %s, %tid.x; mov.u32 %m, %ctaid.x; mad.lo.u32 %s, %m, 32, %s;",
        "cvt.u64.u32 %t, %s; shl.b64 %t, %t, 3; add.u64 %i, %i, %t; add.u64 %o, %o, %t;",
    ]
    for k, kind in enumerate(form.inputs):
        lines.append("ld.global.u64 %w, [%i]; add.u64 %i, %i, %n;")
        name = _OPERANDS[k]
        if kind == "pred":
            lines.append(f"setp.ne.u64 {name}, %w, 0;")
        elif bits(kind) == 64:
            lines.append(f"mov.b64 {name}, %w;")
        elif bits(kind) == 32:
            lines.append(f"cvt.u32.u64 %s, %w; mov.b32 {name}, %s;")
        else:
            lines.append(f"cvt.u16.u64 {name}, %w;")
    first = len(lines) + 1
    lines += [f"{statement.strip()};" for statement in form.text.split(";") if statement.strip()]
    last = len(lines)
    for k, kind in enumerate(form.outputs):
        if kind == "pred":
            lines.append(f"selp.u64 %w, 1, 0, d{k};")
        elif bits(kind) == 64:
            lines.append(f"mov.b64 %w, d{k};")
        elif bits(kind) == 32:
            lines.append(f"mov.b32 %s, d{k}; cvt.u64.u32 %w, %s;")
        else:
            lines.append(f"cvt.u64.u16 %w, d{k};")
        lines.append("st.global.u64 [%o], %w; add.u64 %o, %o, %n;")
    return "\n".join([*lines, "ret;", "}"]), range(first, last + 1)


def simulate(form, operands):
    """Return a form's results (uint64, one row per output) on its operands (arrays or numpy scalars)."""
    text, lines = kernel(form)
    values = {
        _OPERANDS[k]: np.asarray(operand).astype(arithmetic.storage(register(kind)))[()]
        for k, (kind, operand) in enumerate(zip(form.inputs, operands, strict=True))
    }
    with np.errstate(all="ignore"):
        for instruction in ptx.parse(text).functions["form"].instructions:
            if instruction.line in lines:
                step(instruction, values)
    return [values[f"d{k}"].astype(np.uint64) for k in range(len(form.outputs))]


def step(instruction, values):
    """Execute one lane-wise instruction on registers, a dict by name."""
    run = arithmetic.compile_lanewise(instruction)
    if run is None:
        raise AssertionError(f"not lane-wise: {instruction.text}")
    destinations, sources = arithmetic.flatten(instruction)
    to_types, from_types = arithmetic.operand_types(instruction)
    given = []
    for operand, kind in zip(sources, from_types, strict=True):
        if isinstance(operand, ptx.Register):
            given.append(values[operand.name])
        elif isinstance(operand, ptx.Negated):
            given.append(~values[operand.register.name])
        else:
            given.append(arithmetic.constant(operand, kind))
    results = run(*given)
    results = results if isinstance(results, tuple) else (results,)
    for destination, kind, result in zip(destinations, to_types, results, strict=True):
        if result.dtype != arithmetic.storage(kind):
            raise AssertionError(f"{instruction.text}: {result.dtype} instead of {arithmetic.storage(kind)}")
        for value in given:
            if isinstance(value, np.ndarray) and np.shares_memory(value, result):
                raise AssertionError(f"{instruction.text}: the result is an operand's memory")
        if destination is not None:
            values[destination.name] = result


def evaluate(text, inputs, outputs, *operands):
    """Run `simulate` on one statement: types as words, results as ints or lists of ints."""
    form = Form(text, tuple(inputs.split()), tuple(outputs.split()))
    results = [np.asarray(row).tolist() for row in simulate(form, [np.asarray(o, dtype=np.uint64) for o in operands])]
    return results[0] if len(results) == 1 else results


def recorded():
    """Return (form, operands, results) of every recorded form."""
    with np.load(RECORDED) as data:
        texts, inputs, outputs = data["text"].tolist(), data["inputs"].tolist(), data["outputs"].tolist()
        operands, results = data["operands"], data["results"]
    taken = given = 0
    found = []
    for text, kinds, to in zip(texts, inputs, outputs, strict=True):
        form = Form(text, tuple(kinds.split()), tuple(to.split()))
        taken, given = taken + len(form.inputs), given + len(form.outputs)
        found.append((form, operands[taken - len(form.inputs) : taken], results[given - len(form.outputs) : given]))
    return found


def on_gpu(cases):
    """Return the results of (form, operands, ...) on the first GPU."""
    from cuda.bindings import driver

    def check(result):
        code, *values = result
        if int(code):
            raise RuntimeError(f"{code}")
        return values[0] if values else None

    check(driver.cuInit(0))
    gpu = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(gpu))))
    pin, pout = check(driver.cuMemAlloc(1 << 20)), check(driver.cuMemAlloc(1 << 20))
    results = []
    for form, operands, *_ in cases:
        module = check(driver.cuModuleLoadData(kernel(form)[0].encode() + b"\0"))
        function = check(driver.cuModuleGetFunction(module, b"form"))
        operands = np.ascontiguousarray(operands, dtype=np.uint64)
        count = operands.shape[1]
        made = np.zeros((len(form.outputs), count), dtype=np.uint64)
        check(driver.cuMemcpyHtoD(pin, operands.ctypes.data, operands.nbytes))
        values = np.array([int(pin), int(pout), count], dtype=np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(3, dtype=np.uint64)
        check(driver.cuLaunchKernel(function, count // 32, 1, 1, 32, 1, 1, 0, 0, pointers.ctypes.data, 0))
        check(driver.cuMemcpyDtoH(made.ctypes.data, pout, made.nbytes))
        check(driver.cuModuleUnload(module))
        results.append(made)
    check(driver.cuMemFree(pin))
    check(driver.cuMemFree(pout))
    check(driver.cuDevicePrimaryCtxRelease(gpu))
    return results


if __name__ == "__main__":
    with np.load(RECORDED) as old:
        arrays = dict(old)
    arrays["results"] = np.concatenate(on_gpu(recorded()))
    np.savez_compressed(RECORDED, **arrays)
