"""500 command lines with invalid values: each prints a sentence on stderr and exits with 2 (or 1), never with a
traceback or 0."""

from __future__ import annotations

import json
import os
import random
import sys

import pytest
from paths import ROOT

from cudakit import __main__ as command_line

# Texts that no option accepts as a number, shape, device, architecture, name or file.
NUMBERS = ["", "x", "1.5", "nan", "-1", "0", "1e9", "9" * 5000, "0x10", "\u0663x"]
SECONDS = ["", "x", "nan", "0", "-1", "-inf"]
SHAPES = [
    "", "x", "0x", "-3", "nan", "1e3", "8,", ",", "8x8x8x8x", "9" * 30, "4611686018427387904x4", "4611686018427387904",
    "1000000x1000000x1000000", "9223372036854775807", "99999999999999",
]  # fmt: skip
NAMES = ["", ",", "nothing", "\n", "\u00e9" * 50, "a b", "../..", "peer:", "\udcff"]
DEVICES = ["", "gpu:99", "sim:sm_1", "sim:9", "tpu", "gpu:-1", "gpu:99999999999999999999", "\u00e9", "sim:sm_90a:8"]
ARCHES = ["", ",", "sm_", "90", "sm_1", "sm_999", "sm_90a,sm_90z", "\u00e9", "-1"]
DEFINES = ["=1", "", "1X", "A B", "=", "-", "A\n", "A;=1"]
TEMPLATES = ["", "fill<", "nothing", ";", "fill<1>;", "\u00e9", "-1"]
OUTPUTS = ["", "absent/out.json", ".", "/dev/full", "x" * 300 + ".json", "page.md/out.json"]
PICTURES = ["", "absent/out.png", ".", "out.xyz", "-", "x" * 300 + ".png", "page.md/out.png"]
FILES = ["", "absent", ".", "/dev/null/x", "x" * 300, "latin1", "bytes", "\udcff"]
REPORTS = [*FILES, "empty", "deep.json", "list.json", "page.md", *(f"wrong{number}.json" for number in range(12))]

# Per command: valid arguments, and invalid values for each option.
COMMANDS = {
    ("info",): {"--json": OUTPUTS},
    ("compile", "good.cu"): {
        0: [*FILES, "empty", "deep.json", "wrong0.json"],
        "--arch": ARCHES, "--define": DEFINES, "--names": TEMPLATES, "--ptx": OUTPUTS, "--cubin": OUTPUTS,
    },
    ("check", "good.cu", "--arch", "sm_90a"): {
        0: [*FILES, "empty", "deep.json"],
        "--arch": ARCHES, "--define": DEFINES, "--names": TEMPLATES, "--json": OUTPUTS, "--annotate": OUTPUTS,
        "--examples": NUMBERS[:5], "--seconds": SECONDS, "--seed": NUMBERS[:4], "--checks": ["rice", "race,rice"],
        "--run": [*FILES, "deep.json", "good.cu", "nothing.py"],
    },
    ("bench", "vector_add", "--device", "sim", "--shapes", "8", "--variants", "vector_add", "--quiet"): {
        0: [*NAMES, "x.py:FAMILY", "absent.py:", ":", "os:path"],
        "--device": DEVICES, "--shapes": SHAPES, "--variants": NAMES, "--dtypes": NAMES, "--modes": NAMES[2:],
        "--json": OUTPUTS, "--plot": PICTURES, "--against": REPORTS,
    },
    ("fuzz", "vector_add", "--device", "sim", "--examples", "1", "--variants", "vector_add"): {
        0: NAMES, "--device": DEVICES, "--variants": NAMES, "--examples": NUMBERS, "--elements": NUMBERS,
        "--seed": NUMBERS[:4],
    },
    ("tune", "vector_add", "--device", "sim", "--shapes", "8", "--variants", "vector_add", "--quiet", "--dry-run"): {
        0: [*NAMES, "x.py:FAMILY", "absent.py:", ":", "os:path"],
        "--device": DEVICES, "--shapes": SHAPES, "--variants": NAMES, "--dtypes": NAMES, "--modes": NAMES[2:],
        "--json": OUTPUTS, "--budget": SECONDS, "--search": NAMES, "--threads": NUMBERS[:5], "--seed": NUMBERS[:4],
    },
    ("profile", "--import", "profile.json", "--output", "profiled", "--quiet"): {
        "--import": REPORTS, "--output": ["absent/out", "page.md/out", "x" * 300], "--json": OUTPUTS,
        "--plot": PICTURES, "--ceilings": REPORTS[1:], "--set": NAMES,
    },
    ("export", "good.cu", "-o", "exported", "--no-trial"): {
        0: [*FILES, "empty", "deep.json"],
        "--arch": ARCHES, "--define": DEFINES, "--names": TEMPLATES, "--name": ["", "++", "string"],
        "--output": ["page.md", "page.md/out", "/dev/null", "x" * 300],
    },
    ("draw", "bench.json", "--plot", "drawn.svg"): {
        0: REPORTS, "--plot": PICTURES, "--kind": NAMES, "--shape": SHAPES, "--variants": NAMES,
    },
    ("fill", "page.md"): {0: [*FILES, "empty", "deep.json", "marks.md", "list.json"]},
}  # fmt: skip
ROW = {"family": "vector_add", "variant": "vector_add", "rung": 1, "shape": [8], "dtype": "float32", "ok": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with valid and invalid files."""
    made = tmp_path_factory.mktemp("nonsense")
    (made / "good.cu").write_text("__global__ void good(float* y) { y[threadIdx.x] = 1; }\n")
    (made / "latin1").write_bytes("__global__ void f(float* y) {} // \u00e9\n".encode("latin-1"))
    (made / "bytes").write_bytes(bytes(range(256)))
    (made / "empty").write_text("")
    (made / "nothing.py").write_text("")
    (made / "deep.json").write_text("[" * 100_000)
    (made / "list.json").write_text("[1, 2]")
    bench = json.loads((ROOT / "tests" / "tools" / "rows.json").read_text())
    (made / "bench.json").write_text(json.dumps(bench))
    (made / "page.md").write_text("<!-- summary bench.json -->\n<!-- end -->\n")
    marks = "".join(
        f"<!-- {mark} wrong{n}.json -->\n<!-- end -->\n" for n in range(12) for mark in ("tables", "profile")
    )
    (made / "marks.md").write_text(marks)
    head = {"device": {"name": "x", "kind": "gpu"}, "date": "", "ceilings": {}}
    for number, wrong in enumerate([
        {}, {"rows": None}, {"rows": [None]}, {"rows": "text"}, {**head, "rows": []}, {**head, "rows": [{}]},
        {**head, "rows": [{**ROW, "shape": 3}]}, {**head, "rows": [{**ROW, "family": []}]},
        {**head, "device": None, "rows": [ROW]}, {**head, "ceilings": 3, "rows": [{**ROW, "time_ms": "x"}]},
        {"rows": {"a": 1}, "ncu": 1}, {**head, "ncu": "", "command": 1, "rows": [{"kernel": 1, "sentence": None}]},
    ]):  # fmt: skip
        (made / f"wrong{number}.json").write_text(json.dumps(wrong))
    profile = next(path for path in sorted((ROOT / "profiles").rglob("*.json")) if '"ncu": ' in path.read_text())
    (made / "profile.json").write_text(profile.read_text())
    return made


def calls(count, seed=16):
    """Draw a command line with one to three invalid values."""
    draw = random.Random(seed)
    for _ in range(count):
        base, options = draw.choice(list(COMMANDS.items()))
        command, *rest = base
        positional, flags = (rest[:1], rest[1:]) if 0 in options else ([], rest)
        for option in draw.sample(list(options), min(len(options), draw.choice((1, 1, 2, 3)))):
            value = draw.choice(options[option])
            if option == 0:
                positional = [value]
            else:
                flags = [*flags, f"{option}={value}"]
        odd = draw.random()
        if odd < 0.03:
            flags = [*flags, draw.choice(["--nothing", "-", "--", "--json", "-x=1", "\u00e9"])]
        yield [command, *positional, *flags]


def outcome(arguments, capsys):
    try:
        status = command_line.main(arguments)
    except SystemExit as ended:  # raised by argparse
        status = ended.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("part", range(10))
def test_nonsense_is_refused_with_a_sentence(capsys, folder, monkeypatch, part):
    monkeypatch.chdir(folder)
    for arguments in list(calls(500))[part::10]:
        status, out, err = outcome(arguments, capsys)
        assert status in (1, 2), arguments
        assert status == 2 or arguments[0] in ("check", "fill"), arguments
        assert err.strip() or status == 1, arguments
        assert "Traceback" not in out + err, arguments


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["info", "--json", "-"]], ids=" ".join)
@pytest.mark.parametrize("stream", ["full disk", "closed pipe"])
def test_output_that_cannot_be_written_is_refused(capsys, monkeypatch, stream, arguments):
    if stream == "full disk" and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with broken_pipe() if stream == "closed pipe" else open("/dev/full", "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        status, _, err = outcome(arguments, capsys)
    assert status == 2
    assert err.startswith("error: the output could not be written: ")


def test_a_closed_stdout_is_no_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert outcome(["info"], capsys)[0] == 0
    sys.stdout.close()
