"""The tables of examples/gemm_against_cublas.py: each mode yields the rows of one table.

A further mode is a function of a `Run` that yields rows, an entry in MODES, and an entry in `tables.TABLES`.
"""

import time
from dataclasses import replace

from half_products import ways
from half_products.cases import DATA
from half_products.grouped import grouped
from half_products.product import Product, measure, progress

from cudakit.measure.calls import BURSTS, CALLS, LEAD
from cudakit.measure.timing import Burst, Spread, host_costs

REST_AFTER_CALLS_S = 0.002
EPILOGUES = ("gelu", "gelu_tanh", ways.RESIDUAL)
USUAL_OF_EPILOGUES = (ways.TORCH, ways.COMPILED)


def _take_calls(run, product, rows):
    """Measure the host's cost of the calls of `rows`, a list of (way, row), in bursts that alternate."""
    found = {number: way.bind(*product.sets[0]) for number, (way, _) in enumerate(rows)}
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


# Tables ---------------------------------------------------------------------------------------------------------------


def products(run, table, shapes):
    """The times of plain products."""
    for case in run.cases(shapes):
        product = Product(run, table, case)
        found = product.compared(run.ways())
        measure(run, [(product, way, row) for way, row in found if row.ok])
        rows = [row for _, row in found]
        rows += product.skipped_peer()
        run.say(progress(rows))
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
                a, b, *_ = product.sets[0]
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
                run.say(progress(rows))
                yield from rows


def epilogue(run):
    """The times of products with a bias and an activation, or with a residual, in one kernel, and of the plain one."""
    for case in run.cases(run.shapes("epilogue")):
        product = Product(run, "epilogue", case, epilogues=True)
        rows = [(way, product.row(way)) for way in run.ways((None, *EPILOGUES), run.peers or USUAL_OF_EPILOGUES)]
        measure(run, [(product, way, row) for way, row in rows if product.checked(way, row) is not None])
        plain = {way.name: row.times.device for way, row in rows if way.epilogue is None}
        for way, row in rows:
            before = plain.get(way.name)
            if before is not None and row.times.device is not None:
                row.of_plain = row.times.device.median / before.median
        found = [row for _, row in rows]
        found += product.skipped_peer()
        run.say(progress(found))
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
        run.say(progress(found))
        yield from found


#: The modes, in the order in which they run.
MODES = {
    "shapes": shapes,
    "drawn": drawn,
    "errors": errors,
    "epilogue": epilogue,
    "calls": calls,
    "grouped": grouped,
}
