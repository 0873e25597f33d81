"""The tables of examples/gemm_against_cublas.py: each mode yields the rows of one table.

A further mode is a function of a `Run` that yields rows, an entry in MODES, and an entry in `tables.TABLES`.
"""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from half_products import rounds, ways
from half_products.cases import DATA, Case, normal

from cudakit import nvtx
from cudakit.compare import in_range, steps_of, within
from cudakit.errors import ContextLost, CudakitError
from cudakit.families import gemm_half
from cudakit.families.gemm_half import FAMILY
from cudakit.measure.calls import BURSTS, CALLS, LEAD
from cudakit.measure.rows import Rates, Row, Subject
from cudakit.measure.timing import Burst, Spread, host_costs, rotations
from cudakit.shapes import shape_text

SAMPLED = 64  # rows and columns of a result that are compared with float64 on the host
REST_AFTER_CALLS_S = 0.002
ACTIVATIONS = ("gelu", "gelu_tanh")
USUAL_OF_EPILOGUES = (ways.TORCH, ways.COMPILED)

# Shapes per table: on a GPU, and on the simulated device.
SHAPES = {
    "shapes": (
        [(4096,) * 3, (8192,) * 3, (4096, 11008, 4096), (16384, 1024, 4096), (8192, 8192, 512), (64, 4096, 4096)],
        [(64,) * 3, (33, 20, 17)],
    ),
    "errors": ([(1024, 1024, 4096), (1024, 1024, 65536), (4096,) * 3], [(24, 40, 100)]),
    "epilogue": ([(4096,) * 3, (8192,) * 3, (4096, 11008, 4096)], [(40, 24, 32)]),
    "calls": ([(128,) * 3, (1024,) * 3], [(16, 16, 16)]),
}


@dataclass
class ProductRow(Row):
    """A row with its table; the SM clock and the power during its measurement; the fraction of copy bandwidth; its data
    and mean absolute error, in the table of errors; and its time divided by that of the plain product of the same way,
    in the table of epilogues."""

    table: str = ""
    sm_mhz: float | None = None
    watts: float | None = None
    of_copy: float | None = None
    data: str = ""
    mean_abs_error: float | None = None
    of_plain: float | None = None


@dataclass
class Run:
    """The settings of all tables. made: the maker of arrays. timer: None on the simulated device. say: prints a line of
    progress. peers: the names of the peers; empty for each table's usual ones. copy_gbps: bandwidth of a large copy in
    this run. asked: the shapes of each table, from the command line."""

    device: Any
    made: Any
    timer: Any
    clocks: Any
    say: Any
    variant: str = "auto"
    peers: tuple = ()
    dtypes: tuple = ("bfloat16",)
    layouts: tuple = ("nn",)
    out_dtype: str = ""
    leading: tuple = (0, 0, 0)
    rounds: int = 5
    rest_s: float = 0.1
    copy_gbps: float | None = None
    asked: dict = field(default_factory=dict)

    def shapes(self, table):
        """Return the shapes of a table: those of the command line, or the usual ones."""
        return self.asked.get(table) or SHAPES[table][self.device.kind == "sim"]

    def cases(self, shapes):
        """Return a case per dtype, layout and shape."""
        return [
            Case(shape, dtype, layout, self.out_dtype, self.leading)
            for dtype in self.dtypes
            for layout in self.layouts
            for shape in shapes
        ]

    def ways(self, activations=(None,), peers=None):
        """Return cudakit and the peers, for plain products (None) or products with a bias and an activation. peers: by
        default those of the command line, or torch."""
        torch = self.made.torch
        found = [ways.ours(self.variant, self.made.call_stream, each) for each in activations]
        if torch is None:
            return found
        peers = peers or self.peers or (ways.TORCH,)
        if {ways.COMPILED, ways.TRITON} & set(peers):
            torch.compiler.reset()  # compile for the next shape as if it were the first
        if ways.TORCH in peers:
            found += [ways.by_torch(torch, each) for each in activations]
        compiled = [each for each in activations if each is not None] or activations
        for name in (ways.COMPILED, ways.TRITON):
            if name in peers:
                found += [ways.compiled(torch, name, each) for each in compiled]
        return found


class Product:
    """The arrays of one case, a sample of them on the host, and the rows of its ways."""

    def __init__(self, run, table, case, data=normal, *, bias=False, mode=None):
        self.run, self.table, self.case, self.mode = run, table, case, case.mode if mode is None else mode
        m, n, k = case.shape
        self.values = data(run.made, m, n, k)
        self.bias = run.made.place(run.made.normal(1, n), case.dtype)[0] if bias else None
        self.sets = [self._arrays()]
        random = np.random.default_rng(1)
        self.lines, self.columns = (_sampled(random, extent) for extent in (m, n))
        a, b, _ = self.sets[0]
        everything = np.arange(k)
        self.host = run.made.sample(a, self.lines, everything), run.made.sample(b, everything, self.columns)
        self.first = None  # a copy of our result

    def _arrays(self):
        made, case = self.run.made, self.case
        turned = [letter == "t" for letter in case.layout]
        a, b = (
            made.place(values, case.dtype, *each)
            for values, *each in zip(self.values, turned, case.leading, strict=False)
        )
        return a, b, made.empty(case.shape[0], case.shape[1], case.result, case.leading[2])

    def row(self, way, data=""):
        """Return the row of a way, before it is run."""
        mode = " ".join(text for text in (self.mode, way.activation, data) if text)
        name = self.run.variant if way.ours else way.name
        subject = Subject("gemm_half", name, None, self.case.shape, self.case.dtype, mode, way.idea)
        return ProductRow(subject, Rates(ceiling=ways.TORCH), table=self.table, data=data)

    def skipped_peer(self, data=""):
        """Yield a skipped row for torch if the device has no torch."""
        if self.run.made.torch is None:
            row = self.row(ways.Way(ways.TORCH, "torch on cuBLAS", None), data)
            row.skip("it needs a GPU" if self.run.device.kind == "sim" else "torch is not installed, or finds no GPU")
            yield row

    def checked(self, way, row):
        """Make the call of `way` once, and compare a sample of its result with float64. Return the result, or None if
        it is wrong or there is none."""
        a, b, out = self.sets[0]
        out.fill_(math.nan) if self.run.made.torch else out.fill(math.nan, self.run.made.stream)
        try:
            with nvtx.trace() as trace:
                result = way.bind(a, b, self.bias, out)()
            self.run.device.synchronize()
            got = self.run.made.sample(result, self.lines, self.columns)
        except ContextLost:
            raise
        except (CudakitError, TypeError, ValueError) as error:
            row.fail(f"the call failed: {error}") if way.ours else row.skip(_short(error))
            return None
        except Exception as error:  # of a peer
            if way.ours:
                raise
            row.skip(_short(error))
            return None
        if way.ours:
            _name(row, trace)
        exact, allowed = self._reference(way, got.dtype)
        row.judge(within(got, exact, allowed))
        if row.verdict.worst_at is not None:  # an index of the sample
            line, column = row.verdict.worst_at
            row.verdict.worst_at = int(self.lines[line]), int(self.columns[column])
            if not row.ok:
                row.fail(f"{row.verdict.why}; in the sample, it is {row.verdict.worst_at} of the product")
        return result if row.ok else None

    def _reference(self, way, dtype):
        """Return the float64 sample, and the error allowed before the last rounding."""
        a, b = (host.astype(np.float64) for host in self.host)
        exact = a @ b
        allowed = FAMILY.allowed(exact, self.host)
        step = steps_of(self.host[0].dtype).last * 2
        if not way.ours:  # torch lets cuBLAS round partial sums to 16 bits
            allowed = allowed + 4 * step * allowed / gemm_half.of_sum(a.shape[1])
        if way.activation is not None:
            bias = self.run.made.sample(self.bias.reshape(1, -1), np.arange(1), self.columns)
            exact = exact + bias.astype(np.float64)
            if not way.ours:  # torch may round before the activation
                allowed = allowed + step * np.abs(exact)
            # The slope of the activations is at most 1.13.
            allowed = 1.2 * allowed + 2e-6 * np.maximum(np.abs(exact), 1)
            exact = gelu(exact, way.activation)
        return in_range(exact, dtype), allowed

    def rotate(self):
        """Make so many copies of the arrays that no call finds its operands in the L2."""
        device = self.run.device
        l2, free = int(device.attribute("L2_CACHE_SIZE")), device.memory_info()[0]
        for _ in range(rotations(self.case.traffic, l2, free_bytes=free // 2) - 1):
            self.sets.append(self._arrays())

    def measure(self, rows):
        """Time the ways of `rows`, a list of (way, row) whose results were correct, in turns."""
        if self.run.timer is None or not rows:
            return
        self.rotate()
        calls = {
            number: [way.bind(a, b, self.bias, out) for a, b, out in self.sets] for number, (way, _) in enumerate(rows)
        }
        run, case = self.run, self.case
        found = rounds.in_turns(run.timer, calls, case.flops, run.rounds, run.rest_s, run.clocks)
        for (_, row), measured in zip(rows, found.values(), strict=True):
            row.timed(measured.spread, traffic=case.traffic, flops=case.flops)
            row.sm_mhz, row.watts = measured.reading(0), measured.reading(1)
            row.of_copy = row.rates.gbps / run.copy_gbps if run.copy_gbps else None
        _compare([row for _, row in rows])


def _sampled(random, extent):
    """Return sorted places along an axis: all if there are few, else the first, the last, and others."""
    if extent <= SAMPLED:
        return np.arange(extent)
    return np.sort(np.r_[0, extent - 1, 1 + random.choice(extent - 2, SAMPLED - 2, replace=False)])


def _short(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _name(row, trace):
    """Name our row after the variant that ran, which has an NVTX range."""
    for span in trace.spans:
        family, _, name = span.name.partition(".")
        found = next((one for one in FAMILY if family == FAMILY.name and one.name == name), None)
        if found is not None:
            row.subject.variant, row.subject.rung, row.subject.idea = name, FAMILY.rung(found), found.idea


def _compare(rows):
    """Set the speed of each row relative to torch's own function for the same work."""
    theirs = {row.subject.mode: row.times.device for row in rows if row.subject.variant == ways.TORCH}
    for row in rows:
        if row.subject.mode in theirs:
            row.hold_against(theirs[row.subject.mode].median)


def _progress(rows):
    """One line about the rows of a case."""
    subject = rows[0].subject
    parts = [shape_text(subject.shape), subject.dtype, subject.mode]
    figures = []
    for row in rows:
        figure = "correct" if row.ok else f"NO: {row.verdict.why}" if row.ok is False else "skipped"
        if row.times.device is not None:
            figure = f"{row.rates.tflops:.4g} TFLOP/s"
        elif row.times.call is not None:
            figure = f"{row.times.call.median:.2f} us"
        elif row.mean_abs_error is not None:
            figure = f"mean error {row.mean_abs_error:.3g}"
        name = f"{row.subject.variant} {row.subject.mode.removeprefix(subject.mode)}".strip()
        figures.append(f"{name} {figure}")
    return f"{' '.join(part for part in parts if part)}: {', '.join(figures)}"


def _take_calls(run, product, rows):
    """Measure the host's cost of the calls of `rows`, a list of (way, row), in bursts that alternate."""
    a, b, out = product.sets[0]
    found = {number: way.bind(a, b, product.bias, out) for number, (way, _) in enumerate(rows)}
    samples = {number: [] for number in found}

    def settle():
        run.device.synchronize()
        time.sleep(REST_AFTER_CALLS_S)  # equal pauses: the CPU's clock rate depends on their length

    for _ in range(run.rounds):
        bursts = {number: Burst(call, CALLS, LEAD) for number, call in found.items()}
        for number, cost in host_costs(bursts, settle, bursts=BURSTS).items():
            samples[number].append(cost.median)
    for number, (_, row) in enumerate(rows):
        row.called(Spread.of(samples[number]), "cudakit" if run.made.torch is None else "torch")


def gelu(x, kind):
    """The activation of float64 numbers, as torch.nn.functional.gelu defines it."""
    if kind == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# Tables ---------------------------------------------------------------------------------------------------------------


def products(run, table, shapes):
    """The times of plain products."""
    for case in run.cases(shapes):
        product = Product(run, table, case)
        rows, right, kept = [], [], None
        for way in run.ways():
            row = product.row(way)
            rows.append(row)
            result = product.checked(way, row)
            if result is None:
                continue
            right.append((way, row))
            if run.made.torch is not None and way.ours:
                kept = result.clone()
            elif kept is not None and (wrong := run.made.disagreement(kept, result, case)):
                rows[0].fail(f"{wrong} elements differ from those of {way.name}")
        product.measure([(way, row) for way, row in right if row.ok])
        rows += product.skipped_peer()
        run.say(_progress(rows))
        yield from rows


def drawn(run):
    """The times of drawn shapes."""
    yield from products(run, "drawn", run.asked["drawn"])


def shapes(run):
    """The times of given shapes."""
    yield from products(run, "shapes", run.shapes("shapes"))


def errors(run):
    """The errors of each kind of data, for outputs of 16 bits and of float32."""
    for case in run.cases(run.shapes("errors")):
        for name, (data, _) in DATA.items():
            for out_dtype in ("", "float32"):
                product = Product(run, "errors", replace(case, out_dtype=out_dtype), data)
                a, b, _ = product.sets[0]
                rows = []
                for way in run.ways(peers=(ways.TORCH,)):
                    row = product.row(way, name)
                    rows.append(row)
                    result = product.checked(way, row)
                    if result is None:
                        continue
                    row.mean_abs_error, row.verdict.max_abs_error, stray = run.made.errors(result, a, b)
                    if stray:
                        row.fail(f"{stray} elements are infinite or NaN and should not be, or the reverse")
                rows += product.skipped_peer(name)
                run.say(_progress(rows))
                yield from rows


def epilogue(run):
    """The times of products with a bias and an activation in one kernel, and of the plain product."""
    for case in run.cases(run.shapes("epilogue")):
        product = Product(run, "epilogue", case, bias=True)
        rows = [(way, product.row(way)) for way in run.ways((None, *ACTIVATIONS), run.peers or USUAL_OF_EPILOGUES)]
        product.measure([(way, row) for way, row in rows if product.checked(way, row) is not None])
        plain = {way.name: row.times.device for way, row in rows if way.activation is None}
        for way, row in rows:
            before = plain.get(way.name)
            if before is not None and row.times.device is not None:
                row.of_plain = row.times.device.median / before.median
        found = [row for _, row in rows]
        found += product.skipped_peer()
        run.say(_progress(found))
        yield from found


def calls(run):
    """The host's microseconds per call."""
    for case in run.cases(run.shapes("calls")):
        product = Product(run, "calls", case)
        rows = [(way, product.row(way)) for way in run.ways(peers=(ways.TORCH,))]
        right = [(way, row) for way, row in rows if product.checked(way, row) is not None]
        if run.timer is not None:
            _take_calls(run, product, right)
        found = [row for _, row in rows]
        found += product.skipped_peer()
        run.say(_progress(found))
        yield from found


#: The modes, in the order in which they run.
MODES = {"shapes": shapes, "drawn": drawn, "errors": errors, "epilogue": epilogue, "calls": calls}
