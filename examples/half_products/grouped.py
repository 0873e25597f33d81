"""Grouped products: the arrays and the checks of `ops.gemm_grouped`, and their times."""

from dataclasses import replace

import numpy as np
from half_products import cases, ways
from half_products.product import SAMPLED, Product, measure, progress, sampled

from cudakit.families import gemm_grouped


class GroupedProduct(Product):
    """The arrays of a cases.GroupedCase. A and the output have three axes in the masked form. Results of the sample are
    grouped products too, in the contiguous form: rows after the last offset are in no group."""

    family = gemm_grouped.FAMILY

    def __init__(self, run, case):
        super().__init__(run, "grouped", case, self._normal)

    def _normal(self, made, groups, _, n, k):
        return made.normal(self.case.held, k), made.normal(groups * k, n)

    def _arrays(self):
        made, case = self.run.made, self.case
        groups, _, n, k = case.shape
        a, b = (made.place(values, case.dtype) for values in self.values)
        out = made.empty(case.held, n, case.result)
        if case.capacity:
            a, out = a.reshape(groups, case.capacity, k), out.reshape(groups, case.capacity, n)
        return a, b.reshape(groups, k, n), {}, out

    def _sample(self):
        """Rows of every group, its first and last among them. In the masked form also the first and last rows after
        each group, which must keep their values."""
        made, case = self.run.made, self.case
        random = np.random.default_rng(1)
        most = max(2, SAMPLED // len(case.rows))
        places = [start + sampled(random, rows, most) for start, rows in zip(case.starts, case.rows, strict=True)]
        self.offsets = np.cumsum([0, *map(len, places)])
        if case.capacity:
            short = np.flatnonzero(np.array(case.rows) < case.capacity)
            places += [case.starts[short] + np.array(case.rows)[short], case.starts[short] + case.capacity - 1]
        lines, columns = np.concatenate(places), sampled(random, case.shape[2])
        a, b, *_ = self.sets[0]
        everything = np.arange(case.shape[3])
        of_b = np.stack([made.sample(b[group], everything, columns) for group in range(len(case.rows))])
        return lines, columns, made.sample(a, lines, everything), of_b

    def _exact(self):
        wide = (host.astype(np.float64) for host in self.host)
        exact = gemm_grouped.reference(*wide, self.offsets)
        return exact, self.family.allowed(exact, (*self.host, self.offsets))

    def _disagreement(self, kept, result):
        places = [place for _, place in gemm_grouped.pieces(kept, self.case.sizes)]
        return sum(self.run.made.disagreement(kept[place], result[place], self.case) for place in places)

    def row(self, way, data=""):
        row = super().row(way, data)
        row.group_rows, row.capacity = self.case.rows, self.case.capacity
        return row

    def ways(self):
        """Return cudakit's grouped product, and torch's products of its groups."""
        made = self.run.made
        found = [ways.grouped(made.call_stream, self.case, made.int32(self.case.sizes))]
        return found if made.torch is None else [*found, ways.each_group(made.torch, self.case)]

    def one(self):
        """Return one product of as many rows, with the way and the row of cudakit's call, after its check."""
        single = Product(self.run, self.table, self.case.one)
        way, row = single.compared(self.run.ways(peers=(ways.TORCH,)))[0]
        used = row.subject.variant
        idea = f"cudakit.ops.gemm, one product of {self.case.shape[1]} rows: {used}"
        row.subject = replace(self.row(way).subject, variant=ways.ONE, idea=idea)
        return single, way, row


def grouped(run):
    """The times of grouped products, of one product of as many rows, and of a product per group."""
    found = [
        case
        for dtype in run.dtypes
        for shape in run.shapes("grouped")
        for case in cases.grouped(shape, run.seed, dtype=dtype, out_dtype=run.out_dtype)
    ]
    for case in found:
        product = GroupedProduct(run, case)
        ours, *peers = ((product, way, row) for way, row in product.compared(product.ways()))
        entries = [ours, product.one(), *peers]
        measure(run, [entry for entry in entries if entry[2].ok])
        rows = [row for _, _, row in entries]
        times = [row.times.device for row in rows[:2]]
        if None not in times:
            rows[0].of_plain = times[0].median / times[1].median
        rows += product.skipped_peer()
        run.say(progress(rows))
        yield from rows
