"""The tables of examples/gemm_against_cublas.py, from its JSON: one line per case."""

import math

from half_products.cases import DATA
from half_products.ways import COMPILED, ONE, TORCH, TRITON

from cudakit.shapes import shape_text
from cudakit.show import markdown, terminal
from cudakit.show.digits import NOTHING, number
from cudakit.show.tables import by_shape, device_line

LIBRARY = "cuBLAS"


class Line:
    """The rows of one case: ours, and the peers' by name."""

    def __init__(self, rows):
        self.rows = rows
        self.ours = next(row for row in rows if not row["variant"].startswith("peer:"))
        self.peers = {row["variant"]: row for row in rows if row["variant"].startswith("peer:")}

    def peer(self, name):
        return self.peers.get(name, {})

    @property
    def case(self):
        parts = (shape_text(self.ours["shape"]), self.ours["dtype"], self.ours["mode"])
        return " ".join(part for part in parts if part)

    @property
    def verdict(self):
        wrong = [f"{row['variant']}: {row['why']}" for row in self.rows if row["ok"] is False]
        if wrong:
            return f"NO: {'; '.join(wrong)}"
        skipped = [f"{row['variant']}: {row['skipped']}" for row in self.rows if row["skipped"]]
        return f"skipped: {'; '.join(skipped)}" if self.ours["skipped"] else "yes"


def _median(row, key="time_ms"):
    return (row.get(key) or {}).get("median")


def _over(one, other):
    """The quotient of two numbers, as text."""
    return NOTHING if one is None or not other else f"{one / other:.3f}"


def _percent(value):
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _meanwhile(line, peers=(TORCH,)):
    """The SM clock and the power of ours and of the peers."""
    cells = []
    for key in ("sm_mhz", "watts"):
        read = [row.get(key) for row in (line.ours, *map(line.peer, peers))]
        texts = [NOTHING if value is None else f"{value:.0f}" for value in read]
        cells.append(" / ".join(texts) if any(read) else NOTHING)
    return cells


def product_table(lines):
    peers = [name for name in (COMPILED, TRITON) if any(name in line.peers for line in lines)]
    headings = ["product", "TFLOP/s", LIBRARY, f"of {LIBRARY}", "GB/s", "of copy"]
    headings += [name.removeprefix("peer:") for name in peers]
    headings += ["variant", f"MHz, ours / {LIBRARY}", "W", "correct"]
    return headings, [
        [
            line.case, number(line.ours["tflops"]), number(line.peer(TORCH).get("tflops")),
            NOTHING if ratio(line) is None else f"{ratio(line):.3f}", number(line.ours["gbps"]),
            _percent(line.ours["of_copy"]), *(number(line.peer(name).get("tflops")) for name in peers),
            line.ours["variant"], *_meanwhile(line), line.verdict,
        ]
        for line in lines
    ]  # fmt: skip


def error_table(lines):
    headings = ["product", "mean error", LIBRARY, f"of {LIBRARY}", "largest error", LIBRARY, f"of {LIBRARY}", "correct"]
    cells = []
    for line in lines:
        parts = [line.case]
        for key in ("mean_abs_error", "max_abs_error"):
            ours, theirs = line.ours[key], line.peer(TORCH).get(key)
            parts += [number(ours), number(theirs), _over(ours, theirs)]
        cells.append([*parts, line.verdict])
    return headings, cells


def epilogue_table(lines):
    peers = [name for name in (COMPILED, TRITON) if any(name in line.peers for line in lines)]
    headings = ["product", "ms", "TFLOP/s", "of plain", "torch, ms", "torch / ours"]
    for name in peers:
        short = name.removeprefix("peer:")
        headings += [f"{short}, ms", f"{short} / ours"]
    headings += ["variant", f"MHz, ours / {LIBRARY}", "W", "correct"]
    cells = []
    for line in lines:
        ours = _median(line.ours)
        parts = [line.case, number(ours, 4), number(line.ours["tflops"]), number(line.ours["of_plain"], 4)]
        for name in (TORCH, *peers):
            theirs = _median(line.peer(name))
            parts += [number(theirs, 4), _over(theirs, ours)]
        cells.append([*parts, line.ours["variant"], *_meanwhile(line), line.verdict])
    return headings, cells


def grouped_table(lines):
    headings = ["product", "ms", "TFLOP/s", "one product, ms", "ours / one", f"{LIBRARY} per group, ms"]
    headings += [f"{LIBRARY} / ours", "variant", f"MHz, ours / one / {LIBRARY}", "W", "correct"]
    cells = []
    for line in lines:
        ours, one, theirs = (_median(row) for row in (line.ours, line.peer(ONE), line.peer(TORCH)))
        parts = [line.case, number(ours, 4), number(line.ours["tflops"]), number(one, 4)]
        parts += [NOTHING if line.ours["of_plain"] is None else f"{line.ours['of_plain']:.3f}"]
        parts += [number(theirs, 4), _over(theirs, ours), line.ours["variant"]]
        cells.append([*parts, *_meanwhile(line, (ONE, TORCH)), line.verdict])
    return headings, cells


def call_table(lines):
    headings = ["call", "us per call", "torch.mm(out=)", "above torch", "variant", "correct"]
    cells = []
    for line in lines:
        ours, theirs = _median(line.ours, "call_us"), _median(line.peer(TORCH), "call_us")
        above = NOTHING if None in (ours, theirs) else f"{ours - theirs:+.2f}"
        cells.append([line.case, number(ours), number(theirs), above, line.ours["variant"], line.verdict])
    return headings, cells


#: The title of each table, and the function that makes its headings and cells.
TABLES = {
    "shapes": ("16-bit products", product_table),
    "drawn": ("16-bit products, drawn shapes", product_table),
    "errors": ("errors against float64", error_table),
    "epilogue": ("products with an epilogue", epilogue_table),
    "calls": ("host time per call", call_table),
    "grouped": ("grouped products", grouped_table),
}


def ratio(line):
    """Our speed divided by cuBLAS's; None if one was not timed."""
    return None if line.ours["tflops"] is None else line.ours["of_ceiling"]


def lines_of(result):
    """Return the lines of each table that the report has."""
    found = {}
    for name in TABLES:
        rows = [row for row in result["rows"] if row["table"] == name]
        if rows:
            found[name] = [Line(group) for group in by_shape(rows).values()]
    return found


def summaries(result):
    """Return the geometric mean and the least of our speed divided by cuBLAS's, per table of products, and the largest
    time of grouped products divided by that of one product."""
    found = {}
    for name, lines in lines_of(result).items():
        if TABLES[name][1] not in (product_table, grouped_table):
            continue
        ratios = {line.case: ratio(line) for line in lines if ratio(line)}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = min(ratios, key=ratios.__getitem__)
            found[name] = {
                "count": len(ratios), "geometric_mean": mean, "least": ratios[worst], "least_at": worst,
            }  # fmt: skip
        of_one = {line.case: line.ours["of_plain"] for line in lines if name == "grouped" and line.ours["of_plain"]}
        if of_one:
            most = max(of_one, key=of_one.__getitem__)
            found.setdefault(name, {}).update(most_of_one=of_one[most], most_of_one_at=most)
    return found


def notes_of(result, name):
    """The lines under a table."""
    if name == "errors":
        return [
            *(f"{kind}: {text}" for kind, (_, text) in DATA.items()),
            "torch lets cuBLAS add partial sums of 16 bits",
        ]
    notes = _group_notes(lines_of(result)[name]) if name == "grouped" else []
    found = result["summaries"].get(name, {})
    if "most_of_one" in found:
        notes.append(f"ours / one product: at most {found['most_of_one']:.3f}, at {found['most_of_one_at']}")
    if "least" in found:
        notes.append(
            f"of {LIBRARY}: geometric mean {found['geometric_mean']:.3f} of {found['count']}, "
            f"least {found['least']:.3f} at {found['least_at']}"
        )
    return notes


def _group_notes(lines):
    """The rows per group of each shape, and the memory of the masked forms."""
    notes = {}  # without the repetitions of further dtypes
    for row in (line.ours for line in lines):
        rows, capacity = ", ".join(map(str, row["group_rows"])), row["capacity"]
        text = f"memory for {capacity} rows per group" if capacity else f"{rows} rows"
        notes[f"{shape_text(row['shape'])} {row['mode']}: {text}"] = None
    return list(notes)


def last_lines(result):
    """The lines after all tables."""
    if result["device"]["kind"] == "sim":
        return ["results were checked; times are measured only on a GPU", device_line(result)]
    copy = result["ceilings"].get("copy_large")
    settings = result["settings"]
    return [
        *([f"copy of {copy['bytes'] / 2**30:.0f} GiB: {number(copy['gbps'])} GB/s"] if copy else []),
        f"medians of {settings['rounds']} rounds in turns, {settings['budget_ms']:g} ms each after a rest of "
        f"{settings['rest_ms']:g} ms; SM clock and power: {result['clocks']}",
        device_line(result) + (f", torch {result['torch']}" if result["torch"] else ""),
    ]


def show(result, console):
    """Print every table."""
    for name, lines in lines_of(result).items():
        title, table = TABLES[name]
        headings, cells = table(lines)
        notes = terminal.Notes()
        columns = []
        for heading, texts in zip(headings, zip(*cells, strict=True), strict=True):
            if heading == "correct":
                texts = [notes.verdict(text) for text in texts]
            words = heading in ("product", "call", "variant", "correct")
            leave = 3 if heading == "W" else 2 if heading.startswith("MHz") else 0
            columns.append(terminal.Column(heading, texts, leave, words))
        terminal.show_table(console, title, columns, notes=[*notes.lines(), *notes_of(result, name)])
        terminal.show_text(console, "")
    for reason in dict.fromkeys(
        f"{row['variant']}: skipped: {row['skipped']}" for row in result["rows"] if row["skipped"]
    ):
        terminal.show_text(console, reason)
    for line in last_lines(result):
        terminal.show_text(console, line)


def as_markdown(result):
    """Return every table in Markdown."""
    parts = []
    for name, lines in lines_of(result).items():
        title, table = TABLES[name]
        parts += [f"**{title}**", "", *markdown.table(*table(lines)), ""]
        parts += [*(f"- {note}" for note in notes_of(result, name)), ""]
    return "\n".join([*parts, *last_lines(result)])
