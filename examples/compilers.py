"""Vector add and row softmax in CUDA C++, Triton and cuTile, checked and compared by the same code.

Each is compiled ahead of time into a module like any other (`cudakit.frontends`), so all are launched, checked and
timed alike. The table shows the compilers' results: registers per thread, shared memory per block, machine instructions
(SASS, counted in the cubin without padding NOPs). The simulated device runs PTX and also counts executed instructions;
cuTile emits only machine code, so there it is compiled but not run.

A Triton program or a cuTile tile holds a whole row of the softmax: rows too long for one block are unsupported.

    python examples/compilers.py
    python examples/compilers.py --shapes 4096,16777216,8192x8192 --json -
"""

import argparse
import dataclasses
import math
import sys

from cudakit.commands import cli, ladder
from cudakit.errors import CompileError, CudakitError, Refused
from cudakit.families.softmax import FAMILY as SOFTMAX
from cudakit.families.vector_add import FAMILY as VECTOR_ADD
from cudakit.family import Family, Launch, Variant, ceil_div
from cudakit.frontends import cubin, cutile, triton
from cudakit.measure.bench import Bench
from cudakit.measure.rows import BenchReport, Row
from cudakit.shapes import shape_text
from cudakit.show import outputs

try:
    import triton.language as tl
    from triton import jit
except ImportError:
    tl = None
try:
    import cuda.tile as ct
except ImportError:
    ct = None

BLOCK = 1024  # elements per program of the vector add
TILES = (1024, 16)
WIDEST_ROW = 32768  # columns: one row fills half of a multiprocessor's registers

if tl is not None:

    @jit
    def add_triton(a, b, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        tl.store(out + i, tl.load(a + i, mask=inside) + tl.load(b + i, mask=inside), mask=inside)

    @jit
    def softmax_triton(x, out, x_row, out_row, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)  # row * stride can exceed 2^31
        i = tl.arange(0, BLOCK)
        inside = i < columns
        values = tl.load(x + row * x_row + i, mask=inside, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_row + i, powers / tl.sum(powers, axis=0), mask=inside)


if ct is not None:

    @ct.kernel
    def add_cutile(a, b, out, TILE: ct.Constant[int]):
        i = ct.bid(0)
        total = ct.load(a, index=(i,), shape=(TILE,)) + ct.load(b, index=(i,), shape=(TILE,))
        ct.store(out, index=(i,), tile=total)

    @ct.kernel
    def softmax_cutile(x, out, TILE: ct.Constant[int]):
        row = ct.bid(0)
        values = ct.load(x, index=(row, 0), shape=(1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
        powers = ct.exp(values - ct.max(values, 1, keepdims=True))
        ct.store(out, index=(row, 0), tile=powers / ct.sum(powers, 1, keepdims=True))


@dataclasses.dataclass(eq=False)
class Compared(Family):
    """A family whose variants come from several compilers. built: maps a launch's entry to its Way and the frontend's
    result. used: maps a variant to the kernel, the launch and the frontend's result (or None) of its last problem."""

    built: dict = dataclasses.field(default_factory=dict)
    used: dict = dataclasses.field(default_factory=dict)

    def kernel(self, device, variant, launch):
        _, made = self.built.get(launch.entry, (None, None))
        kernel = super().kernel(device, variant, launch) if made is None else made.kernel
        self.used[variant.name] = kernel, launch, made
        return kernel

    def call_of(self, one, inputs, out, stream=None, **options):
        return None  # cudakit has no function for these kernels

    def keywords(self, launch, kernel, problem, inputs, output, scratch):
        """Return the launch's keywords; a frontend's kernel gets its arguments from those of the Python function."""
        if launch.entry not in self.built:
            return super().keywords(launch, kernel, problem, inputs, output, scratch)
        way, made = self.built[launch.entry]
        return launch.keywords(made.arguments(way.arguments(problem, inputs, output)))


@dataclasses.dataclass
class CompiledRow(Row):
    """A row with its compiler's registers per thread, shared bytes per block and number of SASS instructions."""

    code: dict | None = None


def read(machine_code, symbol, shared):
    found = cubin.kernels(machine_code)[symbol]
    return {"registers": found.registers, "shared": shared, "sass_instructions": found.instructions}


def said(code):
    return f"{code['registers']} registers, {code['shared']} B shared, {code['sass_instructions']} SASS instructions"


def power_of_two(count):
    return 1 << max(count - 1, 0).bit_length()


def multiple(kind, *values):
    """A Triton type with the divisibility hint that Triton's JIT compiler also adds if all values allow it."""
    return f"{kind}:16" if all(value % 16 == 0 for value in values) else kind


class Way:
    """One compiler's version of a family; `launch` is its variant's function.

    A subclass defines what is compiled for a problem (kernel, signature, constants, options), the grid, the arguments
    of the Python function, and why a problem is unsupported (or None).
    """

    compiler, package = triton, (tl, "Triton", "triton")
    built = None  # the family's dictionary

    def __init__(self, device):
        self.device = device

    def refusal(self, problem):
        return None

    def compiled(self, problem):
        kernel, signature, constants, options = self.build(problem)
        return self.compiler.build(self.device.arch, kernel, signature, constants, **options)

    def launch(self, problem):
        module, name, extra = self.package
        if module is None:
            return f"{name} is not installed: pip install 'cudakit[{extra}]'"
        reason = self.refusal(problem)
        if reason is not None:
            return reason
        try:
            made = self.compiled(problem)
        except CompileError:
            raise
        except CudakitError as error:  # cuTile without its assembler
            return str(error)
        if self.compiler is cutile and self.device.kind == "sim":
            code = read(made.cubin, made.launch["symbol"], made.launch["shared"])
            return f"machine code runs only on a GPU; compiled for {self.device.arch}: {said(code)}"
        made = self.compiler.load(self.device, made)
        entry = f"{made.compiled.launch['compiler']} {made.name} {id(made.compiled)}"
        self.built[entry] = self, made
        return Launch(self.grid(problem), made.block, shared=made.shared, entry=entry)


class AddInTriton(Way):
    name, idea = "triton", f"Triton, programs of {BLOCK}"

    def build(self, problem):
        array = "fp32:16" if problem.aligned else "fp32"
        count = multiple("i64" if problem.n >= 2**31 else "i32", problem.n)
        signature = {"a": f"*k{array}", "b": f"*k{array}", "out": f"*{array}", "n": count}
        return add_triton, signature, {"BLOCK": BLOCK}, {}

    def grid(self, problem):
        return ceil_div(problem.n, BLOCK)

    def arguments(self, problem, inputs, output):
        return (*inputs, output, problem.n)


class AddInCutile(Way):
    compiler, package = cutile, (ct, "cuTile", "tile")

    def __init__(self, device, tile):
        super().__init__(device)
        self.tile, self.name, self.idea = tile, f"cutile_{tile}", f"cuTile, tiles of {tile}"

    def refusal(self, problem):
        return None if problem.n < 2**31 else "cuTile has 32-bit extents: fewer than 2^31 elements"

    def build(self, problem):
        array = "float32[::1]:16" if problem.aligned else "float32[::1]"
        signature = dict.fromkeys(("a", "b", "out"), array)
        return add_cutile, signature, {"TILE": self.tile}, {"divisible_by": math.gcd(problem.n, 16)}

    def grid(self, problem):
        return ceil_div(problem.n, self.tile)

    def arguments(self, problem, inputs, output):
        return [array.reshape(problem.n) for array in (*inputs, output)]


class SoftmaxInTriton(Way):
    name, idea = "triton", "Triton, one program per row"

    def refusal(self, problem):
        if problem.cols <= WIDEST_ROW:
            return None
        return f"a block holds one whole row: at most {WIDEST_ROW:,} columns, not {problem.cols:,}"

    def build(self, problem):
        block = power_of_two(problem.cols)
        signature = {
            "x": "*kfp32:16" if problem.x_alignment == 16 else "*kfp32",
            "out": "*fp32:16" if problem.y_alignment == 16 else "*fp32",
            "x_row": multiple("i64", problem.x_strides[0]),
            "out_row": multiple("i64", problem.y_strides[0]),
            "columns": multiple("i32", problem.cols),
        }
        return softmax_triton, signature, {"BLOCK": block}, {"num_warps": min(max(block // 256, 4), 16)}

    def grid(self, problem):
        return problem.rows

    def arguments(self, problem, inputs, output):
        return (*inputs, output, problem.x_strides[0], problem.y_strides[0], problem.cols)


class SoftmaxInCutile(SoftmaxInTriton):
    compiler, package = cutile, (ct, "cuTile", "tile")
    name, idea = "cutile", "cuTile, one tile per row"

    def build(self, problem):
        aligned = problem.x_alignment == problem.y_alignment == 16 and problem.cols % 4 == 0
        rows = "float32[:, ::1]:16" if aligned else "float32[:, ::1]"
        signature = {"x": rows, "out": rows}
        return (
            softmax_cutile,
            signature,
            {"TILE": power_of_two(problem.cols)},
            {"divisible_by": math.gcd(problem.cols, 16)},
        )

    def arguments(self, problem, inputs, output):
        return (*inputs, output)


def best(family, device):
    """The family's best variant for each problem: the CUDA C++ baseline for the other compilers."""

    def launches(problem):
        best = family.pick("auto", problem, device.arch)
        return tuple(
            dataclasses.replace(launch, source=launch.source or best.source, entry=launch.entry or best.entry)
            for launch in best.launches(problem)
        )

    return Variant("cuda", launches, family.variants[0].source, "CUDA C++, our best variant")


def compared(family, device, ways):
    """`family` with its best variant, followed by the other compilers' versions."""
    built = {}
    variants = [best(family, device)]
    for way in ways:
        way.built = built
        variants.append(Variant(way.name, way.launch, "", way.idea, since="sm_80"))
    fields = {field.name: getattr(family, field.name) for field in dataclasses.fields(Family) if field.init}
    return Compared(**{**fields, "variants": tuple(variants)}, built=built)


def measure(device, bench, shape):
    """The rows of one shape, with each compiler's results."""
    if len(shape) == 1:
        ways = [AddInTriton(device), *(AddInCutile(device, tile) for tile in TILES)]
        family = compared(VECTOR_ADD, device, ways)
    else:
        family = compared(SOFTMAX, device, [SoftmaxInTriton(device), SoftmaxInCutile(device)])
    found = bench.run(family, [shape])
    rows = []
    for row in found.rows:
        code = None
        if row.launch is not None:
            kernel, launch, made = family.used[row.subject.variant]
            code = read(kernel.module.cubin, kernel.mangled, kernel.static_shared + launch.shared)
            row.subject.idea = f"{row.subject.idea}; {said(code)}"
            if made is not None:  # the number of threads is in the compiled code, not in the launch
                row.launch |= {"block": made.code.threads, "occupancy": made.occupancy}
        parts = {part.name: getattr(row, part.name) for part in dataclasses.fields(row)}
        rows.append(CompiledRow(**parts, code=code))
    return dataclasses.replace(found, rows=rows)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        on_gpu = device.kind == "gpu"
        shapes = arguments.shapes or ([(1 << 12,), (1 << 26,), (8192, 8192)] if on_gpu else [(1 << 12,), (12, 1000)])
        for shape in shapes:
            if len(shape) > 2 or 0 in shape:
                raise Refused(f"{shape_text(shape)}: write ELEMENTS for a vector add, ROWSxCOLUMNS for a softmax")
        report = BenchReport(device.info())
        bench = Bench(device, once=cli.under_profiler())
        for shape in shapes:
            progress.print(f"{shape_text(shape)} ...")
            report.merge(measure(device, bench, shape))
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--shapes", type=cli.parse_shapes, metavar="S,...", help="4096 is a vector add, 8192x8192 a softmax of rows"
    )
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
