"""The pytest plugin in a user's project: a family's fuzz tests, the shared device, the marker."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys

import pytest

import cudakit
from cudakit import __main__ as command_line
from cudakit import pytest_plugin
from cudakit.commands import cli, fuzzing
from cudakit.family import Family
from cudakit.testing import cases, drawing, kernel_test

pytest_plugins = ["pytester"]

KERNELS = """
__global__ void right(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
__global__ void beside(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i <= n) c[i] = i < n ? a[i] + b[i] : 0.0f;
}
__global__ void wrong(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = i < 30 ? a[i] + b[i] : 12345.0f;
}
__global__ void races(const float* a, const float* b, float* c, long long n) {
    __shared__ long long seen[64];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    seen[threadIdx.x] = i;
    if (i < n) c[i] = seen[threadIdx.x ^ 32] < 0 ? 0.0f : a[i] + b[i];
}
"""

FAMILY = """
from cudakit.family import Family, Launch, ceil_div

FAMILY = Family("mine", reference=lambda a, b: a + b, inputs={"a": "float32[n]", "b": "float32[n]"}, shapes=((64,),))


def launch(p):
    return Launch(ceil_div(p.n, 64), 64, args=(p.a, p.b, p.out, p.n))


for name in ("right", "beside", "wrong", "races"):
    FAMILY.variant("mine.cu", entry=name, name=name)(launch)
"""


@pytest.fixture
def project(pytester):
    """Run pytest with the plugin in an empty folder with a family of four kernels, three of them wrong."""
    pytester.makefile(".cu", mine=KERNELS)
    pytester.makepyfile(mine=FAMILY)

    def run(test, *flags):
        pytester.makepyfile(test_mine=test)
        return pytester.runpytest_inprocess("-p", "cudakit.pytest_plugin", "-p", "no:cacheprovider", *flags)

    return run


def section(output, title):
    """Return pytest's output about one test."""
    found = re.search(rf"^_+ {re.escape(title)} _+$\n(.*?)(?=^_+ .* _+$|^=+ )", output, re.MULTILINE | re.DOTALL)
    assert found is not None, output
    return found[1]


def test_the_tests_of_a_family_show_the_smallest_problem_the_line_and_the_command(project, monkeypatch):
    result = project("""
        from cudakit.testing import kernel_test
        from mine import FAMILY

        test_mine = kernel_test(FAMILY, elements=64)
    """, "--cudakit-device=sim", "-v")  # fmt: skip
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*test_mine[[]right] PASSED*"])
    output = result.stdout.str()
    beside, wrong, races = (section(output, f"test_mine[{name}]") for name in ("beside", "wrong", "races"))

    assert "0 bytes past the end of the array of 4 bytes" in beside
    assert "beside on a float32[1], b float32[1], out float32[1]" in beside
    assert "mine.cu:7\n      if (i <= n) c[i]" in beside
    assert "kernel beside, block (0, 0, 0), thread (1, 0, 0)" in beside
    assert "passed as parameter 2 (`c`)" in beside

    assert "wrong on a float32[31]" in wrong
    assert "element (30,) is 12345.0" in wrong

    assert "data race" in races
    assert "if (i < n) c[i] = seen[threadIdx.x ^ 32] < 0" in races
    for shown in (beside, wrong, races):
        assert "hypothesis" not in shown
        assert "cudakit/" not in shown

    # the command draws the same problems
    words = shlex.split(re.search(r"replay: cudakit (.*)", wrong)[1])
    arguments = command_line.build_parser().parse_args(words)
    assert arguments.family == "mine.py:FAMILY"
    assert arguments.variants == ["wrong"]
    assert f"mine/wrong: wrong result at mine.cu:11, seed {arguments.seed}" in wrong
    found = fuzzing.run(
        arguments.device,
        cli.family(arguments.family),
        arguments.variants,
        arguments.examples,
        arguments.seed,
        arguments.elements,
    )
    assert found.failure in wrong
    assert found.replay.split()[2:] == words[1:]


@pytest.mark.gpu
def test_on_a_gpu_a_write_beside_the_output_is_found_by_the_guards(project, gpu):
    result = project("""
        from cudakit.testing import kernel_test
        from mine import FAMILY

        test_mine = kernel_test(FAMILY, ["right", "beside"], elements=200)
    """, "--cudakit-device=both", "-v")  # fmt: skip
    result.assert_outcomes(passed=2, failed=2)
    assert "beside wrote outside its output" in section(result.stdout.str(), "test_mine[gpu-beside]")
    assert "out of bounds at mine.cu:7" in section(result.stdout.str(), "test_mine[sim-beside]")


def test_a_seed_stands_for_the_same_problems_however_many_are_drawn():
    def first(seed, count):
        return [repr(drawn.case) for drawn in itertools.islice(drawing.problems(cases("vector_add", 100), seed), count)]

    many = first(3, 60)
    assert len(many) == 60
    assert first(3, 20) == many[:20]
    assert first(4, 20) != many[:20]


def test_a_fault_costs_one_test_and_is_shown_at_its_line(project):
    result = project("""
        from pathlib import Path

        import pytest

        MINE = Path(__file__).with_name("mine.cu")

        def launch(device, n):
            x = device.zeros(10)
            device.compile(MINE)["right"].launch(device.default_stream, 1, 32, args=(x, x, x, n))

        def test_fault(cuda_device):
            launch(cuda_device, 11)
            cuda_device.synchronize()

        def test_after(cuda_device):
            launch(cuda_device, 10)

        def test_not_waited_for(cuda_device):
            launch(cuda_device, 11)

        def test_refused(cuda_device):
            launch(cuda_device, 10.5)

        def test_closed(cuda_device):
            cuda_device.close()

        def test_last(cuda_device):
            launch(cuda_device, 10)
            assert cuda_device.kind == "sim"
    """, "--cudakit-device=sim")  # fmt: skip
    result.assert_outcomes(passed=4, failed=2, errors=1)
    output = result.stdout.str()
    fault, refused = section(output, "test_fault"), section(output, "test_refused")
    assert ">       cuda_device.synchronize()\nE       cudakit.errors.DeviceFault" in fault
    assert "if (i < n) c[i] = a[i] + b[i];" in fault
    assert "parameter 3 (`n`) is long long, got float 10.5" in refused
    queued = section(output, "ERROR at teardown of test_not_waited_for")
    assert "work that the test did not wait for failed" in queued
    assert "global load of 4 bytes" in queued
    assert "cudakit/device.py" not in output


def test_devices_checks_examples_and_the_marker(project, monkeypatch):
    monkeypatch.delenv("CUDAKIT_DEVICE", raising=False)
    test = """
        import pytest
        from cudakit.testing import kernel_test
        from mine import FAMILY

        test_mine = kernel_test(FAMILY, ["races"], elements=60)

        @pytest.mark.cuda_gpu
        def test_gpu():
            pass

        def test_seed(pytestconfig, cuda_device):
            assert pytestconfig.getoption("cudakit_seed") == 5
            assert cuda_device.context.driver.checks == frozenset(("init", "barrier"))
    """
    flags = ("--cudakit-checks=init,barrier", "--cudakit-examples=25", "--cudakit-seed=5", "-rs")
    result = project(test, "--cudakit-device=sim:sm_80", *flags)
    result.assert_outcomes(passed=2, skipped=1)  # the race check is off
    result.stdout.fnmatch_lines(["*needs a GPU, and the requested device is sim:sm_80"])


def test_both_devices(project, monkeypatch):
    monkeypatch.setattr(pytest_plugin, "why_no_gpu", lambda: "there is none")
    result = project("""
        import pytest

        def test_one(cuda_device):
            assert cuda_device.kind == "sim"

        @pytest.mark.cuda_gpu
        def test_gpu(cuda_device):
            pass
    """, "--cudakit-device=both", "-v", "-rs")  # fmt: skip
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*test_one[[]sim] PASSED*", "*test_one[[]gpu] SKIPPED*", "*test_gpu[[]gpu] SKIPPED*"])
    result.stdout.fnmatch_lines(["*no GPU: there is none"])


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--cudakit-device=cpu", "'cpu' is not a device: use auto, sim, gpu, both"),
        ("--cudakit-examples=0", "'0' is not a count"),
        ("--cudakit-seed=-1", "'-1' is not a seed"),
    ],
)
def test_an_option_that_is_none_is_refused(project, flag, says):
    result = project("", flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()


def test_a_check_that_there_is_not_is_named(project):
    result = project("def test_one(cuda_device): pass", "--cudakit-device=sim", "--cudakit-checks=rase")
    result.assert_outcomes(errors=1)
    assert "--cudakit-checks: unknown checks ['rase']; use barrier, benign" in result.stdout.str()


def test_a_gpu_that_is_asked_for_and_is_not_there_is_an_error(project):
    result = project("def test_one(cuda_device): pass", "--cudakit-device=gpu:63")
    result.assert_outcomes(errors=1)
    assert re.search(r"^--cudakit-device: '?gpu:63'? was requested, but the", result.stdout.str(), re.MULTILINE)
    assert "fixture_result" not in result.stdout.str()


def test_a_variant_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="rihgt"):
        kernel_test(cudakit.ops.families()["vector_add"], ["rihgt"])


def test_nothing_is_imported_until_a_test_uses_it(tmp_path):
    """The plugin is loaded in every project of an environment with cudakit, even if its tests do not use it."""
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n")
    script = """
import sys, pytest
without = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:zarr"]
assert pytest.main(["-p", "cudakit.pytest_plugin", *without]) == 0
heavy = ("numpy", "hypothesis", "cuda", "torch")
print([name for name in sys.modules if name.partition(".")[0] in heavy or name.startswith("cudakit.")])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "['cudakit.tracebacks', 'cudakit.pytest_plugin']"


def test_a_family_without_variants_is_not_a_test_that_is_skipped():
    family = Family("nothing", reference=lambda x: x, inputs={"x": "float32[n]"})
    with pytest.raises(ValueError, match="family nothing has no variants to test"):
        kernel_test(family)
