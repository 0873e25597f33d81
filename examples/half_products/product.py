"""The arrays of a product, the checks of its results, and its times."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from half_products import rounds, ways
from half_products.cases import Case, normal

from cudakit import nvtx
from cudakit.compare import in_range, steps_of, within
from cudakit.errors import ContextLost, CudakitError
from cudakit.families import gemm_epilogue, gemm_half
from cudakit.families.gemm_half import FAMILY
from cudakit.measure.rows import Rates, Row, Subject
from cudakit.measure.timing import rotations
from cudakit.shapes import shape_text

SAMPLED = 64  # rows and columns of a result that are compared with float64 on the host

# Shapes per table: on a GPU, and on the simulated device.
SHAPES = {
    "shapes": (
        [(4096,) * 3, (8192,) * 3, (4096, 11008, 4096), (16384, 1024, 4096), (8192, 8192, 512), (64, 4096, 4096)],
        [(64,) * 3, (33, 20, 17)],
    ),
    "errors": ([(1024, 1024, 4096), (1024, 1024, 65536), (4096,) * 3], [(24, 40, 100)]),
    "epilogue": ([(4096,) * 3, (8192,) * 3, (4096, 11008, 4096)], [(40, 24, 32)]),
    "calls": ([(128,) * 3, (1024,) * 3], [(16, 16, 16)]),
    "grouped": ([(8, 16384, 4096, 7168)], [(3, 96, 40, 32)]),
}


@dataclass
class ProductRow(Row):
    """A row with its table; the SM clock and the power during its measurement; the fraction of copy bandwidth; its data
    and mean absolute error, in the table of errors; its time divided by that of the plain product: of the same way, in
    the table of epilogues, or of one product of as many rows, in that of grouped products; and there the rows per group
    and, for the masked form, those that each group has memory for."""

    table: str = ""
    sm_mhz: float | None = None
    watts: float | None = None
    of_copy: float | None = None
    data: str = ""
    mean_abs_error: float | None = None
    of_plain: float | None = None
    group_rows: tuple = ()
    capacity: int = 0


@dataclass
class Run:
    """The settings of all tables. made: the maker of arrays. timer: None on the simulated device. say: prints a line of
    progress. peers: the names of the peers; empty for each table's usual ones. copy_gbps: bandwidth of a large copy in
    this run. seed: of the rows per group. asked: the shapes of each table, from the command line."""

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
    seed: int = 0
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

    def ways(self, epilogues=(None,), peers=None):
        """Return cudakit and the peers, for plain products (None) or products with an epilogue. peers: by default those
        of the command line, or torch."""
        torch = self.made.torch
        found = [ways.ours(self.variant, self.made.call_stream, each) for each in epilogues]
        if torch is None:
            return found
        peers = peers or self.peers or (ways.TORCH,)
        if {ways.COMPILED, ways.TRITON} & set(peers):
            torch.compiler.reset()  # compile for the next shape as if it were the first
        if ways.TORCH in peers:
            found += [ways.by_torch(torch, each) for each in epilogues]
        compiled = [each for each in epilogues if each is not None] or epilogues
        for name in (ways.COMPILED, ways.TRITON):
            if name in peers:
                found += [ways.compiled(torch, name, each) for each in compiled]
        return found


class Product:
    """The arrays of one case, a sample of them on the host, and the rows of its ways. epilogues: whether there are a
    bias and a residual."""

    family = FAMILY

    def __init__(self, run, table, case, data=normal, *, epilogues=False, mode=None):
        self.run, self.table, self.case, self.mode = run, table, case, case.mode if mode is None else mode
        self.values = data(run.made, *case.shape)
        self.added = {}
        if epilogues:
            m, n, _ = case.shape
            self.added = {"bias": run.made.normal(1, n), ways.RESIDUAL: run.made.normal(m, n)}
        self.sets = [self._arrays()]
        self.lines, self.columns, *self.host = self._sample()

    def _arrays(self):
        made, case = self.run.made, self.case
        turned = [letter == "t" for letter in case.layout]
        a, b = (
            made.place(values, case.dtype, *each)
            for values, *each in zip(self.values, turned, case.leading, strict=False)
        )
        kinds = {"bias": case.dtype, ways.RESIDUAL: case.result}
        added = {name: made.place(values, kinds[name]) for name, values in self.added.items()}
        if "bias" in added:
            added["bias"] = added["bias"][0]
        return a, b, added, made.empty(case.shape[0], case.shape[1], case.result, case.leading[2])

    def _sample(self):
        """Return the places of some rows and columns of the result, and the rows of A and columns of B."""
        m, n, k = self.case.shape
        random = np.random.default_rng(1)
        lines, columns = (sampled(random, extent) for extent in (m, n))
        a, b, *_ = self.sets[0]
        everything = np.arange(k)
        return lines, columns, self.run.made.sample(a, lines, everything), self.run.made.sample(b, everything, columns)

    def row(self, way, data=""):
        """Return the row of a way, before it is run."""
        mode = " ".join(text for text in (self.mode, way.epilogue, data) if text)
        name = self.run.variant if way.ours else way.name
        subject = Subject(self.family.name, name, None, self.case.shape, self.case.dtype, mode, way.idea)
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
        *_, out = self.sets[0]
        out.fill_(math.nan) if self.run.made.torch else out.fill(math.nan, self.run.made.stream)
        try:
            with nvtx.trace() as trace:
                result = way.bind(*self.sets[0])()
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
            _name(row, trace, self.family)
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
        exact, allowed = self._exact()
        step = steps_of(self.host[0].dtype).last * 2
        if not way.ours:  # torch lets cuBLAS round partial sums to 16 bits
            allowed = allowed + 4 * step * allowed / gemm_half.of_sum(self.case.shape[-1])
        if way.epilogue is not None:
            name = ways.array_of(way.epilogue)
            activation = "" if way.epilogue == ways.RESIDUAL else way.epilogue
            added = {name: self._sample_of_added(name)}
            if activation and not way.ours:  # torch may round before the activation
                allowed = allowed + step * np.abs(exact + added[name])
            allowed = gemm_epilogue.rounding(exact, allowed, **added, dtype=dtype, activation=activation)
            exact = gemm_epilogue.applied(exact, **added, activation=activation)
        return in_range(exact, dtype), allowed

    def _sample_of_added(self, name):
        """Return a sample of the bias or of the residual in float64, for the sampled rows and columns."""
        array = self.sets[0][2][name]
        if name == "bias":
            array = array.reshape(1, -1)
        lines = self.lines if name == ways.RESIDUAL else np.arange(1)
        return self.run.made.sample(array, lines, self.columns).astype(np.float64)

    def _exact(self):
        """Return the sample in float64, and the rounding error of its sums."""
        a, b = (host.astype(np.float64) for host in self.host)
        exact = a @ b
        return exact, self.family.allowed(exact, self.host)

    def compared(self, found):
        """Check each way of `found`, ours first. All elements of our result are compared with those of the peers.
        Return (way, row) of each."""
        rows, kept = [], None
        for way in found:
            row = self.row(way)
            rows.append((way, row))
            result = self.checked(way, row)
            if result is None:
                continue
            if self.run.made.torch is not None and way.ours:
                kept = result.clone()
            elif kept is not None and (wrong := self._disagreement(kept, result)):
                rows[0][1].fail(f"{wrong} elements differ from those of {way.name}")
        return rows

    def _disagreement(self, kept, result):
        return self.run.made.disagreement(kept, result, self.case)

    def rotate(self):
        """Make so many copies of the arrays that no call finds its operands in the L2."""
        device = self.run.device
        l2, free = int(device.attribute("L2_CACHE_SIZE")), device.memory_info()[0]
        for _ in range(rotations(self.case.traffic, l2, free_bytes=free // 2) - 1):
            self.sets.append(self._arrays())

    def calls(self, way):
        """Return the calls of a way, one per copy of the arrays."""
        return [way.bind(*arrays) for arrays in self.sets]

    def traffic(self, way):
        """Return the bytes that a way reads and writes, each once, without a bias."""
        return self.case.traffic + (self.case.output_bytes if way.epilogue == ways.RESIDUAL else 0)


def measure(run, entries):
    """Time `entries` in turns: (product, way, row) whose results were correct, with the same number of operations."""
    if run.timer is None or not entries:
        return
    for product in dict.fromkeys(product for product, _, _ in entries):
        product.rotate()
    calls = {number: product.calls(way) for number, (product, way, _) in enumerate(entries)}
    found = rounds.in_turns(run.timer, calls, entries[0][0].case.flops, run.rounds, run.rest_s, run.clocks)
    for (product, way, row), measured in zip(entries, found.values(), strict=True):
        row.timed(measured.spread, traffic=product.traffic(way), flops=product.case.flops)
        row.sm_mhz, row.watts = measured.reading(0), measured.reading(1)
        row.of_copy = row.rates.gbps / run.copy_gbps if run.copy_gbps else None
    _compare([row for _, _, row in entries])


def sampled(random, extent, count=SAMPLED):
    """Return sorted places along an axis: all if there are few, else the first, the last, and others."""
    if extent <= count:
        return np.arange(extent)
    return np.sort(np.r_[0, extent - 1, 1 + random.choice(extent - 2, count - 2, replace=False)])


def _short(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _name(row, trace, of):
    """Name our row after the variant that ran, which has an NVTX range."""
    for span in trace.spans:
        family, _, name = span.name.partition(".")
        found = next((one for one in of if family == of.name and one.name == name), None)
        if found is not None:
            row.subject.variant, row.subject.rung, row.subject.idea = name, of.rung(found), found.idea


def _compare(rows):
    """Set the speed of each row relative to torch's own function for the same work."""
    theirs = {row.subject.mode: row.times.device for row in rows if row.subject.variant == ways.TORCH}
    for row in rows:
        if row.subject.mode in theirs:
            row.hold_against(theirs[row.subject.mode].median)


def progress(rows):
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
