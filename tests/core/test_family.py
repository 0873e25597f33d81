"""Declarations of users: errors found when a family is made, dtypes read from kernels, and calls on arrays."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import Family, Launch, ceil_div
from cudakit.errors import LaunchError, Refused, UnsupportedVariant
from cudakit.family import CPP, SCRATCH, find

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define I int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
struct Line { float a; int b; };
__global__ void copied(const float* x, float* out, int n) { I; out[i] = x[i]; }
__global__ void parts(const float* x, float* fraction, int* whole, int n) {
    I; whole[i] = (int)x[i]; fraction[i] = x[i] - (int)x[i];
}
__global__ void raised(float* x, int n) { I; x[i] += 1.0f; }
__global__ void counted(const unsigned char* x, unsigned* out, int n) { I; atomicAdd(&out[x[i]], 1u); }
__global__ void scaled(const float* x, float* out, int n, float a, bool negative) {
    I; out[i] = negative ? -a * x[i] : a * x[i];
}
__global__ void line(const float* x, float* out, int n, Line p) { I; out[i] = p.a * x[i] + p.b; }
__global__ void conjugated(const float2* x, float2* out, int n) { I; out[i] = make_float2(x[i].x, -x[i].y); }
__global__ void sorted_by(const float* key, const long long* n_of, float* out, int n) { I; out[i] = key[i] + n_of[i]; }
extern "C" __global__ void plain(const double* __restrict__ x, double* out, int n) { I; out[i] = 2 * x[i]; }
template <class T> __global__ void twice(const T* x, T* out, int n) { I; out[i] = T(2.0f * float(x[i])); }
__global__ void blocks(const float* x, float* sums, int n) {
    I; if (threadIdx.x) return;
    float sum = 0;
    for (int j = i; j < n && j < i + (int)blockDim.x; ++j) sum += x[j];
    sums[blockIdx.x] = sum;
}
__global__ void total(const float* sums, float* out, int n) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += sums[j];
    *out = sum;
}
#ifdef FACTOR
__global__ void multiplied(const float* x, float* out, int n) { I; out[i] = x[i] * FACTOR; }
#endif
"""
LINE = np.dtype([("a", "f4"), ("b", "i4")])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("family") / "kernels.cu"
    file.write_text(SOURCE)
    return str(file)


@pytest.fixture(scope="module")
def device() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as device:
        yield device


def usual(p: Any, **others: Any) -> Launch:
    return Launch(ceil_div(p.n, 128), 128, **others)


Make = Callable[..., Family[Any]]


@pytest.fixture(scope="module")
def make(source: str) -> Make:
    """A family of one variant: make(entry, reference, **fields)."""

    def made(
        entry: str, reference: Any, launch: Callable[..., Any] = usual, *, name: str = "mine", **fields: Any
    ) -> Family[Any]:
        fields.setdefault("inputs", {"x": "float32[n]"})
        family: Family[Any] = Family(name, reference=reference, **fields)

        def first(p: Any) -> Any:
            return launch(p)

        family.variant(source, entry=entry)(first)
        return family

    return made


# Errors ---------------------------------------------------------------------------------------------------------------

X = {"x": "float32[n]"}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no reference": ({"reference": None}, "its reference is None: pass a function"),
    "more inputs than arrays": (
        {"inputs": {"x": "float32[n]", "y": "float32[n]"}},
        r"takes 1 array \(x\), inputs= declares 2 arrays \(x, y\)",
    ),
    "another order": (
        {"reference": lambda a, b: a - b, "inputs": {"b": "float32[n]", "a": "float32[n]"}},
        "inputs= has the order b, a, its reference a, b",
    ),
    "an array named like its extent": (
        {"reference": lambda n: n, "inputs": {"n": "float32[n]"}},
        "'n' is used twice among arrays, extents",
    ),
    "an input named like the output": (
        {"reference": lambda out: out, "inputs": {"out": "float32[n]"}},
        "'out' is used twice",
    ),
    "an option named like an extent": ({"reference": lambda x, *, n=1: x, "inputs": X}, "'n' is used twice"),
    "a name of every problem": (
        {"reference": lambda x: x, "inputs": {"x": "float32[dims]"}},
        "'dims' is a reserved name",
    ),
    "a dtype that does not exist": ({"inputs": {"x": "flot32[n]"}}, "flot32 is not a dtype"),
    "dtypes as a text": ({"dtypes": "float32"}, r"needs a tuple, such as \('float32',\)"),
    "dtypes that do not exist": ({"dtypes": ("float33",)}, "'float33', which is not a dtype"),
    "an extent of no input": ({"inputs": X, "outputs": {"out": "float32[m]"}}, "'m' of output out .* there are n"),
    "an option without a default": ({"reference": lambda x, *, a: x}, "a is keyword-only and has no default"),
    "arrays without names": ({"reference": lambda *x: x[0]}, r"takes \*x: name each array"),
    "no array": ({"reference": lambda: 0}, "has no array parameters: declare inputs="),
    "an option that is unknown": (
        {"reference": lambda x, *, scale=1.0: x, "options": {"scala": (1.0,)}},
        r"options= has 'scala', which its reference does not have \(scale\)\. Did you mean 'scale'",
    ),
    "an option without values": ({"reference": lambda x, *, a=1.0: x, "options": {"a": ()}}, "needs a sequence"),
    "an option's values as a text": ({"reference": lambda x, *, a="": x, "options": {"a": "one"}}, "needs a sequence"),
    "a mode of an unknown option": ({"modes": {"": {}, "fast": {"fast": True}}}, "modes= has 'fast'"),
    "no mode": ({"modes": {}}, "modes= is empty"),
    "shapes of other axes": ({"inputs": X, "shapes": ((4, 4),)}, r"has 4x4, needed are 1 extents \(n\)"),
    "a shape that is not one": ({"shapes": (1.5,)}, "1.5, which is not a shape"),
    "one shape": ({"shapes": 100}, "shapes=100 is not a sequence"),
    "shapes of an unknown device": ({"shapes": {"cpu": (4,)}}, "'cpu'; kinds are gpu, sim"),
    "no usual shapes": ({"inputs": {"x": "float32[a, b, c, d]"}}, "declare shapes="),
    "an initial value that is a text": ({"initial": "zero"}, "initial='zero' is not a number"),
    "in place of no input": ({"in_place": "y"}, "in_place='y' is not one of its inputs"),
    "in place with outputs": ({"inputs": X, "in_place": "x", "outputs": {"y": "float32[n]"}}, "leave outputs= out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_as_the_family_is_made(mistake: str) -> None:
    fields, text = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=f"^family mine: .*{text}"):
        Family("mine", **{"reference": lambda x: x, **fields})


def test_mistakes_of_a_variant() -> None:
    family: Family[Any] = Family("mine", reference=lambda x: x)
    family.variant("a.cu", name="one")(usual)
    with pytest.raises(ValueError, match="family mine already has a variant 'one': pass another name="):
        family.variant("a.cu", name="one")(usual)
    with pytest.raises(TypeError, match="tune= needs a keyword tile= with a default"):
        family.variant("a.cu", name="two", tune={"tile": (1, 2)})(usual)
    with pytest.raises(ValueError, match="default tile=3 is not among its values"):
        family.variant("a.cu", name="two", tune={"tile": (1, 2)})(lambda p, tile=3: usual(p))
    words = family.variant("a.cu", name="two", tune={"how": ("rows", "columns"), "tile": ((8, 16), (16, 8))})
    made = words(lambda p, how="rows", tile=(8, 16): usual(p))
    assert made.configured(how="columns", tile=(16, 8)).usual == {"how": "columns", "tile": (16, 8)}


def test_options_of_numpy_functions_are_not_the_familys() -> None:
    """Options are the reference's keyword-only parameters, except those of ufuncs, numpy's functions and partials."""
    for reference in (np.exp, np.cumsum, functools.partial(np.sum, axis=0)):
        assert Family("mine", reference=reference, inputs={"x": "float32[n]"}).option_defaults == {}
    assert tuple(Family("mine", reference=np.add).specs) == ("a", "b")
    with_option = functools.partial(lambda x, *, scale=1.0: scale * x, scale=3.0)
    assert Family("mine", reference=with_option).option_defaults == {"scale": 3.0}


def test_the_reference_gets_the_options_that_the_kernel_gets(make: Make, device: cudakit.Device) -> None:
    """The first value of an option is its default for both, whatever the reference's own default is."""
    family = make(
        "scaled", lambda x, *, a=5.0, negative=False: -a * x if negative else a * x, options={"a": (2.0, 3.0)}
    )
    report = cudakit.bench(family, device, shapes=[100])
    assert report.ok, [row.verdict.why for row in report.rows]


def test_a_family_reads_as_its_name_and_variants(make: Make) -> None:
    assert repr(make("copied", lambda x: x)) == "<Family mine: first>"


# Dtypes ---------------------------------------------------------------------------------------------------------------


def call(family: Family[Any], device: cudakit.Device, *hosts: np.ndarray[Any, Any], **options: Any) -> Any:
    made = family(*(device.array(host) for host in hosts), **options)
    results = tuple(array.numpy() for array in made) if isinstance(made, tuple) else made.numpy()
    verdict = family.judge(results, hosts, **options)
    assert verdict.ok, verdict.why
    return results


def numbers(count: int = 200) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32)


def test_dtypes_of_a_template_follow_the_inputs(make: Make, device: cudakit.Device) -> None:
    family = make(
        "twice",
        lambda x: 2 * x,
        lambda p: usual(p, entry=f"twice<{CPP[p.x.dtype.name]}>"),
        inputs=None,
        dtypes=("float32", "float16", "bfloat16"),
    )
    for dtype in family.dtypes:
        (host,) = family.inputs_for((100,), dtype, np.random.default_rng(0))
        assert call(family, device, host).dtype.name == dtype
    with pytest.raises(ValueError, match="mine takes x of float32 or float16 or bfloat16, got float64"):
        family(device.zeros((4,), np.float64))


def test_the_dtype_of_an_output_is_read_from_any_kernel(make: Make, device: cudakit.Device) -> None:
    """The kernel may be of a later launch, have no mangled name, or store pairs of floats for a complex result."""

    def two(p: Any) -> tuple[Launch, ...]:
        count = ceil_div(p.n, 128)
        return (
            Launch(count, 128, (p.x, SCRATCH, p.n), scratch=4 * count),
            Launch(1, 1, (SCRATCH, p.out, count), entry="total"),
        )

    assert call(make("blocks", lambda x: x.sum(), two), device, numbers(1000)).dtype == np.float32
    doubled = make("plain", lambda x: 2 * x, inputs=None)
    assert doubled.usual_dtypes == ("float64",)
    assert call(doubled, device, numbers().astype(np.float64)).dtype == np.float64
    conjugated = make("conjugated", np.conj, inputs={"x": "complex64[n]"})
    assert call(conjugated, device, numbers().view(np.complex64)).dtype == np.complex64


def test_a_dtype_that_no_kernel_shows_is_asked_for(make: Make, device: cudakit.Device) -> None:
    family = make("copied", lambda x: (x, x))
    with pytest.raises(Refused, match=r'family mine: the dtype of out1 .* declare outputs=\{"out1": "float32\[n\]"\}'):
        family(device.zeros((4,)))
    with pytest.raises(Refused, match=r"family mine: .* no variant supports .* \(first: not today\)"):
        make("copied", lambda x: x, lambda p: "not today")(device.zeros((4,)))
    empty: Family[Any] = Family("mine", reference=lambda x: x, inputs=X)
    with pytest.raises(Refused, match=r"family mine has no variants: add one with @FAMILY.variant"):
        empty(device.zeros((4,)))


def test_an_array_may_have_the_name_of_a_property(make: Make, device: cudakit.Device) -> None:
    """A key, as of a sort; and an array n beside the count of elements, which is then p.key.shape[0]."""
    family = make(
        "sorted_by",
        lambda key, n_of: key + n_of,
        inputs={"key": "float32[k]", "n_of": "int64[k]"},
        launch=lambda p: Launch(ceil_div(p.k, 128), 128, (p.key, p.n_of, p.out, p.k)),
    )
    call(family, device, numbers(), np.arange(200))


# Launches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (lambda p: "", r"variant first returns '' for mine of x float32\[4\], out float32\[4\]: return a Launch"),
        (lambda p: None, "variant first returns None"),
        (lambda p: (1, 128), r"variant first returns \(1, 128\)"),
        (lambda p: Launch(p.rows, 1), r"no 'rows'; it has x, out, n.*test_family.py:\d+\)"),
        (lambda p: Launch(1 // 0, 1), r"variant first fails for .*ZeroDivisionError: .*test_family.py:\d+\)"),
        (lambda p: usual(p, args=(p.x, p.out)), "takes 3 arguments"),
        (lambda p: Launch(0, 128), r"mine/first: the grid is 0 for .*declare initial=0"),
    ],
)
def test_what_a_launch_function_does_wrong(
    make: Make, device: cudakit.Device, launch: Callable[..., Any], text: str
) -> None:
    family = make("copied", lambda x: x, launch, outputs={"out": "float32[n]"})
    with pytest.raises(LaunchError, match=text):
        family(device.zeros((4,)))


@pytest.mark.parametrize("programmatic", [True, False])
def test_a_programmatic_launch_whose_kernel_does_not_wait_is_reported(
    make: Make, device: cudakit.Device, programmatic: bool
) -> None:
    """It reads the result of the launch before it, which may still run. An ordinary launch starts after that."""

    def two(p: Any) -> tuple[Launch, ...]:
        count = ceil_div(p.n, 128)
        return (
            Launch(count, 128, (p.x, SCRATCH, p.n), scratch=4 * count),
            Launch(1, 1, (SCRATCH, p.out, count), entry="total", programmatic=programmatic),
        )

    family = make("blocks", lambda x: x.sum(), two)
    if not programmatic:
        call(family, device, numbers(1000))
        return
    with (
        cudakit.Device("sim", fresh=True) as other,
        pytest.raises(cudakit.CudaError, match=r"access before griddepcontrol\.wait: kernel total .* as kernel blocks"),
    ):
        call(family, other, numbers(1000))


def test_a_list_of_launches_is_taken_as_a_tuple(make: Make, device: cudakit.Device) -> None:
    call(make("copied", lambda x: x, lambda p: [usual(p)]), device, numbers())


def test_scratch_memory_has_the_type_of_its_parameter(make: Make, device: cudakit.Device) -> None:
    """By name too; of any count of bytes."""

    def two(p: Any) -> tuple[Launch, ...]:
        return (
            Launch(1, 128, (p.x, SCRATCH, p.n), scratch=5),
            Launch(1, 1, (SCRATCH, p.out, 1), entry="total"),
        )

    family = make("blocks", lambda x: x.sum(), two)
    for _ in range(3):
        call(family, device, numbers(100))


def test_a_parameter_without_an_argument_is_named_with_those_there_are(make: Make, device: cudakit.Device) -> None:
    family = make("scaled", lambda x, a=2.0: a * x)
    with pytest.raises(
        LaunchError, match=r"parameter 3 \(`a`\) has no argument: .* of family mine .*\(it has x, out, n"
    ):
        family(device.zeros((4,)))


def test_a_file_that_is_missing_is_expected_beside_the_declaration(device: cudakit.Device) -> None:
    family: Family[Any] = Family("mine", reference=lambda x: x, inputs=X)
    family.variant("missing.cu")(usual)
    with pytest.raises(FileNotFoundError, match=str(Path(__file__).parent / "missing.cu")):
        family(device.zeros((4,)))


def test_defines_are_part_of_a_kernel(make: Make, device: cudakit.Device) -> None:
    for factor in (3, 4):
        family = make(
            "multiplied",
            lambda x, *, _factor=factor: _factor * x,
            lambda p, _factor=factor: usual(p, args=(p.x, p.out, p.n), defines={"FACTOR": _factor}),
        )
        call(family, device, numbers())


# Calls ----------------------------------------------------------------------------------------------------------------


def test_several_outputs_are_returned_and_written(make: Make, device: cudakit.Device) -> None:
    family = make("parts", lambda x: (x - np.trunc(x), np.trunc(x).astype(np.int32)))
    host = numbers()
    fraction, whole = call(family, device, host)
    assert (fraction.dtype, whole.dtype) == (np.float32, np.int32)
    x = device.array(host)
    given = (device.empty((200,)), device.empty((200,), np.int32))
    for out in (given, list(given), given):
        assert family(x, out=out) == given
        np.testing.assert_array_equal(given[0].numpy(), fraction)
    with pytest.raises(ValueError, match="mine has 2 outputs, got 1"):
        family(x, out=given[0])
    with pytest.raises(ValueError, match="the output of mine's out1 overlaps out0"):
        family(x, out=(given[0], given[0].view(np.int32)))


def test_later_calls_do_not_look_at_the_rules_again(
    make: Make, device: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with options, of structs and numbers, and with initial values; no reference is run."""
    pick = Family.pick
    seen: list[str] = []
    monkeypatch.setattr(Family, "pick", lambda family, *rest: seen.append(family.name) or pick(family, *rest))
    x, codes = device.array(numbers()), device.array(np.zeros(50, np.uint8))
    scaled = make("scaled", lambda x, *, a=1.0, negative=False: -a * x if negative else a * x, name="scaled")
    point = np.array((3.0, 1), LINE)[()]
    line = make("line", lambda x, *, p=point: p["a"] * x + p["b"], name="line")
    counts = make(
        "counted", lambda x: np.bincount(x, minlength=256), inputs={"x": "uint8[n]"}, initial=0, name="counts"
    )
    other = np.array((-1.0, 0), LINE)[()]
    for _ in range(3):
        np.testing.assert_array_equal(scaled(x, a=2.0, negative=True).numpy(), -2 * numbers())
        np.testing.assert_array_equal(scaled(x, a=0.5).numpy(), numbers() / 2)
        assert line(x, p=point).numpy()[0] == np.float32(3) * numbers()[0] + 1
        np.testing.assert_array_equal(line(x, p=other).numpy(), -numbers())
        assert counts(codes).numpy()[0] == 50
    assert sorted(seen) == ["counts", "line", "line", "scaled", "scaled"]


def test_shapes_of_outputs_are_found_once(make: Make, device: cudakit.Device) -> None:
    """A family of several outputs is resolved at each call, but its reference is not run at each."""
    runs = []

    def reference(x: Any) -> Any:
        runs.append(x.shape)
        return x - np.trunc(x), np.trunc(x)

    family = make("parts", reference)
    x = device.array(numbers())
    family(x)
    before = len(runs)
    for _ in range(3):
        family(x)
    assert len(runs) == before


def test_an_output_that_is_given_is_added_to(make: Make, device: cudakit.Device) -> None:
    family = make("counted", lambda x: np.bincount(x, minlength=256), inputs={"x": "uint8[n]"}, initial=0)
    codes, out = device.array(np.full(10, 7, np.uint8)), device.zeros((256,), np.uint32)
    assert [int(family(codes, out=out).numpy()[7]) for _ in range(3)] == [10, 20, 30]
    assert family(device.empty((0,), np.uint8)).numpy().sum() == 0


def test_work_in_place(make: Make, device: cudakit.Device) -> None:
    family = make("raised", lambda x: x + 1, in_place="x")
    x = device.array(numbers())
    assert family(x) is x
    assert family(x, out=x) is x
    np.testing.assert_allclose(x.numpy(), numbers() + 2, rtol=1e-6)
    with pytest.raises(ValueError, match="mine works in place: its output is x itself"):
        family(x, out=device.empty((200,)))


WRONG_CALLS: dict[str, tuple[Callable[[Any, cudakit.Device], Any], type[Exception], str]] = {
    "numpy": (lambda f, d: f(np.ones(4, np.float32)), TypeError, "copy it there with device.array"),
    "none": (lambda f, d: f(), ValueError, r"mine takes 1 array \(x\) by position, got 0"),
    "two": (lambda f, d: f(d.zeros((4,)), d.zeros((4,))), ValueError, "got 2"),
    "dtype": (lambda f, d: f(d.zeros((4,), np.int32)), ValueError, "mine takes x of float32, got int32"),
    "axes": (lambda f, d: f(d.zeros((2, 2))), ValueError, r"mine: x is declared as float32\[n\], with 1 axes"),
    "strides": (lambda f, d: f(d.zeros((8,))[::2]), ValueError, "mine takes contiguous arrays, x has strides"),
    "option": (lambda f, d: f(d.zeros((4,)), scale=2), TypeError, "mine has no option 'scale'; it has none"),
    "variant": (lambda f, d: f(d.zeros((4,)), variant="frist"), ValueError, "no variant 'frist'.*mean 'first'"),
    "no variant": (lambda f, d: f(d.zeros((4,)), variant=None), ValueError, "no variant None; it has auto, first"),
    "out's shape": (lambda f, d: f(d.zeros((4,)), out=d.zeros((5,))), ValueError, r"float32\[4\], .* float32\[5\]"),
    "out's dtype": (lambda f, d: f(d.zeros((4,)), out=d.zeros((4,), np.int32)), ValueError, "int32"),
    "out's library": (lambda f, d: f(d.zeros((4,)), out=np.zeros(4)), TypeError, "numpy.ndarray is not an array"),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_call_that_is_refused(make: Make, device: cudakit.Device, wrong: str) -> None:
    use, kind, text = WRONG_CALLS[wrong]
    with pytest.raises(kind, match=text):
        use(make("copied", lambda x: x), device)


def test_a_problem_that_a_variant_does_not_take(make: Make, device: cudakit.Device) -> None:
    family = make("copied", lambda x: x, lambda p: "an even count only" if p.n % 2 else usual(p))
    with pytest.raises(UnsupportedVariant, match=r"mine.*float32\[5\].*: first: an even count only"):
        family(device.zeros((5,)))


def test_a_tensor_on_the_cpu_is_told_where_to_go(make: Make) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ValueError, match=r"is on cpu: move it to a GPU with \.cuda\(\), or copy it to a device"):
        make("copied", lambda x: x)(torch.zeros(4))


# Finding --------------------------------------------------------------------------------------------------------------

FILES = {
    "syntax.py": ("def broken(:\n", r"SyntaxError.*syntax\.py"),
    "imports.py": ("import no_such_module_here\n", r"No module named 'no_such_module_here' \(.*imports\.py:1\)"),
    "raises.py": ("x = 1\nraise RuntimeError('no GPU today')\n", r"RuntimeError: no GPU today \(.*raises\.py:2\)"),
    "leaves.py": ("import sys\nsys.exit('bye')\n", r"SystemExit: bye"),
    "mistake.py": ("import cudakit\nF = cudakit.Family('f', reference=None)\n", r"family f: .*mistake\.py:2\)"),
    "nothing.py": ("x = 1\n", "name one of its families .none."),
    "several.py": (
        "import cudakit\nA = cudakit.Family('a', reference=abs)\nB = cudakit.Family('b', reference=abs)\n",
        r"name one of its families \(A, B\)",
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_without_one_family_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    text, message = FILES[file]
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(Refused, match=message):
        find.load(str(tmp_path / file))


def test_a_family_is_found_by_file_and_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_families.py").write_text(
        "import cudakit\nA = cudakit.Family('a', reference=lambda x: x)\n"
        "B, not_one = cudakit.Family('b', reference=A.reference), 3\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    for where in (str(tmp_path / "found_families.py"), "found_families.py", "found_families"):
        assert find.load(f"{where}:B").name == "b"
    for name, text in (("C", r"no family 'C'; it has A, B"), ("not_one", "no family 'not_one'")):
        with pytest.raises(Refused, match=text):
            find.load(f"found_families.py:{name}")
    for target in ("missing.py:A", "no_module_here:A", f"{os.sep}nowhere{os.sep}a.py"):
        with pytest.raises(Refused, match="there is no"):
            find.load(target)
