"""`cudakit export`: the header and the example build and run, the folder loads without a compiler, and existing files
are safe.

The example runs with a driver of the tests (tests/data/export/libcuda.c), whose device memory is host memory,
and on a GPU if there is one.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit import __main__ as command_line
from cudakit import shipped
from cudakit.compile import compiler, headers
from cudakit.errors import CudakitError, Refused
from cudakit.export import sources, trial, writing

SCALE = """\
// SPDX-License-Identifier: MIT
#include "factor.cuh"
// x, y: (n,)
__global__ void __launch_bounds__(256) scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * factor * x[i];
}
"""

KINDS = """\
#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
struct Range { int low; double high; };
enum Color { red, green };
namespace ns {
template <class T, int N>
__global__ void many(const T* x, T* y, Range range, Color color, float4 v, __half h, bool flag, char c,
                     const float4* vs, const __half* hs, float** table, long n, int grid, const Range& r) {
    if (threadIdx.x == 0 && n > 0) y[0] = x[0] * N + range.low + v.x;
}
}
extern "C" __global__ void plain(const float* __restrict__ x, float* y, unsigned n, size_t m, void* out) {
    y[0] = x[0] + n + m;
}
__global__ void overloaded(int* p) { *p = 1; }
__global__ void overloaded(float* p) { *p = 1; }
__global__ void load(int* p) { *p = 2; }
__global__ void nothing() {}
__global__ void everyone(int* p) { cg::this_grid().sync(); if (threadIdx.x == 0) *p = 1; }
__global__ void group(int* p) { cg::this_cluster().sync(); if (threadIdx.x == 0) *p = 1; }
__global__ void __cluster_dims__(2, 1, 1) pairs(int* p) { if (threadIdx.x == 0) *p = 1; }
__global__ void wild(int** p) { **p = 1; }
"""


def export(*arguments):
    return command_line.main(["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "scale.cu").write_text(SCALE)
    (folder / "factor.cuh").write_text("#define FACTOR 1\n")
    (folder / "kinds.cu").write_text(KINDS)
    return folder


@pytest.fixture(scope="module")
def scaled(project):
    """The export of scale.cu for two architectures."""
    folder = project / "scaled"
    assert export(project / "scale.cu", "-o", folder) == 0
    return folder


@pytest.fixture(scope="module")
def kinds(project):
    """The export of kernels with every kind of parameter."""
    folder = project / "kinds"
    assert export(project / "kinds.cu", "--names", "ns::many<float, 2>", "--arch", "sm_90", "-o", folder) == 0
    return folder


def built(folder, compiler_name, standard, source, target, *flags):
    """Compile a program of an export with the documented compiler flags."""
    if shutil.which(compiler_name) is None:
        pytest.skip(f"{compiler_name} is not installed")
    includes = [f"-I{place}" for place in headers.cuda_directories()]
    command = [compiler_name, f"-std={standard}", "-Wall", "-Wextra", "-Werror", *includes, *flags, "-o", str(target)]
    done = subprocess.run([*command, str(source), "-ldl"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def program(scaled, tmp_path_factory):
    return built(scaled, "g++", "c++17", "example.cpp", tmp_path_factory.mktemp("program") / "example")


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    """The folder of a libcuda.so.1 that runs on the host."""
    folder = tmp_path_factory.mktemp("driver")
    built(folder, "gcc", "c11", ROOT / "tests/data/export/libcuda.c", "libcuda.so.1", "-shared", "-fPIC", "-Wno-unused")
    return folder


def run(program, folder, driver=None, **environment):
    environment = {**os.environ, **environment} | ({"LD_LIBRARY_PATH": str(driver)} if driver else {})
    return subprocess.run([program, str(folder)], capture_output=True, text=True, env=environment, timeout=60)


# The program ----------------------------------------------------------------------------------------------------------


def test_without_a_driver_the_example_ends_with_a_sentence(program, scaled):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("a driver is installed")
    done = run(program, scaled)
    assert done.returncode == 1
    assert done.stderr.startswith("example: no NVIDIA driver: libcuda.so.1")
    assert done.stdout == ""


def test_the_example_launches_the_kernel_and_checks_its_result(program, scaled, fake_driver):
    done = run(program, scaled, fake_driver)
    assert done.returncode == 0, done.stderr
    assert "a fake GPU: 1 correct, 0 wrong, 0 skipped" in done.stdout
    assert "_Z5scalePKfPffi: grid 1x1x1 block 32x1x1 shared 0" in done.stderr
    done = run(program, scaled, fake_driver, FAKE_WRONG="1")
    assert done.returncode == 1
    assert re.search(r"element 0 is .*, and should be .*\nWRONG", done.stdout)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"FAKE_CAPABILITY": "75"},
            "capability 7.5: scale was exported for sm_80, sm_90a, and as PTX of sm_80",
        ),
        ({"FAKE_FAIL": "cuInit"}, "cuInit: error 1, invalid argument"),
        ({"FAKE_FAIL": "cuModuleLoadData"}, "cuModuleLoadData: error 1, invalid argument"),
        ({"FAKE_FAIL": "cuLaunchKernelEx"}, "scale: invalid argument"),
        ({"FAKE_FAIL": "cuCtxSynchronize"}, "cuCtxSynchronize: invalid argument"),
    ],
)
def test_the_example_reports_each_error(program, scaled, fake_driver, environment, said):
    done = run(program, scaled, fake_driver, **environment)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize("capability", ["80", "89", "90", "100", "120"])
def test_an_image_fits_its_own_architecture_and_its_ptx_later_ones(program, scaled, fake_driver, capability):
    assert run(program, scaled, fake_driver, FAKE_CAPABILITY=capability).returncode == 0


def test_an_image_of_another_export_is_refused(program, scaled, fake_driver, tmp_path):
    for name in ("scale.fatbin", "example.data"):
        shutil.copy(scaled / name, tmp_path)
    image = bytearray((tmp_path / "scale.fatbin").read_bytes())
    image[-1] ^= 1
    (tmp_path / "scale.fatbin").write_bytes(image)
    assert "scale.fatbin was not written together with scale.h" in run(program, tmp_path, fake_driver).stderr
    (tmp_path / "scale.fatbin").unlink()
    assert "scale.fatbin cannot be opened" in run(program, tmp_path, fake_driver).stderr


C_PROGRAM = """
#include <assert.h>
#include "scale.h"
int main(void) {
    scale_kernels kernels;
    const scale_dim3 one = scale_dim(1, 1, 1), four = scale_dim(4, 1, 1), none = scale_dim(0, 1, 1);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    CUcontext context = (CUcontext)x;
    CUresult(CUDAAPI * set_current)(CUcontext);
    assert(FITS);
    memset(&kernels, 0, sizeof kernels);
    assert(scale_scale(&kernels, NULL, one, four, 0, x, y, 2, 4) == CUDA_ERROR_NOT_INITIALIZED);
    assert(scale_load(&kernels, "FOLDER") == CUDA_ERROR_INVALID_CONTEXT);
    assert(strstr(kernels.message, "no context is current") != NULL);
    void *symbol = SCALE_SYMBOL(kernels.driver.library, cuCtxSetCurrent);
    memcpy(&set_current, &symbol, sizeof symbol);
    assert(set_current(context) == CUDA_SUCCESS);
    assert(scale_load(&kernels, "FOLDER/elsewhere") == CUDA_ERROR_FILE_NOT_FOUND);
    assert(scale_load(&kernels, "FOLDER") == CUDA_SUCCESS);
    assert(SCALE_SCALE_MAX_THREADS == 256);
    assert(scale_scale(&kernels, NULL, one, four, 0, x, y, 2, 4) == CUDA_SUCCESS);
    assert(y[0] == 2 && y[3] == 8);
    assert(scale_scale(&kernels, NULL, none, four, 0, x, y, 2, 4) == CUDA_ERROR_INVALID_VALUE);
    assert(scale_unload(&kernels) == CUDA_SUCCESS && scale_unload(&kernels) == CUDA_SUCCESS);
    assert(scale_scale(&kernels, NULL, one, four, 0, x, y, 2, 4) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    return 0;
}
"""


# Architectures of the export, the device's compute capability, and whether the driver finds code for it; + is PTX.
FITS = [
    ("80", (8, 0), True), ("80", (8, 9), True), ("86", (8, 0), False), ("80", (9, 0), False), ("90", (8, 9), False),
    ("90a", (9, 0), True), ("90a", (9, 1), False), ("90a", (10, 0), False), ("100f", (10, 3), True),
    ("100f", (12, 0), False), ("80+", (12, 0), True), ("90+", (8, 9), False), ("75 90a 75+", (8, 0), True),
    ("120", (12, 1), True),
]  # fmt: skip


@pytest.mark.parametrize(("codes", "capability", "fits"), FITS)
def test_python_chooses_images_as_c_does(codes, capability, fits):
    machine = [f"sm_{code}" for code in codes.split() if not code.endswith("+")]
    ptx = [f"sm_{code[:-1]}" for code in codes.split() if code.endswith("+")]
    found = [shipped.runs_on(arch, capability) for arch in machine]
    assert any([*found, *(shipped.compiles_for(arch, capability) for arch in ptx)]) == fits


def test_a_program_in_c_loads_launches_and_gets_each_error(scaled, fake_driver, tmp_path):
    source = tmp_path / "program.c"
    said = [f'scale_fits("{codes}", {major}, {minor}) == {str(fits).lower()}' for codes, (major, minor), fits in FITS]
    source.write_text(C_PROGRAM.replace("FOLDER", str(scaled)).replace("FITS", " && ".join(said)))
    program = built(scaled, "gcc", "c11", source, tmp_path / "program", f"-I{scaled}")
    done = run(program, scaled, fake_driver)
    assert done.returncode == 0, done.stderr


HALVES = """
#define main example_main
#include "example.cpp"
#undef main
int main() {
    for (int bits = 0; bits < 65536; bits++) {
        const double numbers[] = {static_cast<double>(Half{static_cast<std::uint16_t>(bits)}),
                                  static_cast<double>(Bfloat16{static_cast<std::uint16_t>(bits)})};
        std::fwrite(numbers, sizeof numbers, 1, stdout);
    }
}
"""


def test_the_example_reads_numbers_of_16_bits(scaled, tmp_path):
    (tmp_path / "halves.cpp").write_text(HALVES)
    program = built(tmp_path, "g++", "c++17", "halves.cpp", tmp_path / "halves", f"-I{scaled}")
    found = np.frombuffer(subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout).reshape(-1, 2)
    bits = np.arange(65536, dtype=np.uint16)
    np.testing.assert_array_equal(found[:, 0], bits.view(np.float16).astype(np.float64))
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    np.testing.assert_array_equal(found[:, 1], wide)


# The header -----------------------------------------------------------------------------------------------------------


def launcher(header, name):
    """Return a launcher's parameters, without those that all launchers have."""
    match = re.search(rf"static inline CUresult {name}\((.*?)\) \{{", header, re.DOTALL)
    assert match is not None, name
    return [" ".join(one.split()) for one in match[1].split(",")][5:]


def test_launchers_have_the_types_and_names_of_the_kernels(kinds):
    header = (kinds / "kinds.h").read_text()
    assert launcher(header, "kinds_ns_many_float_2") == [
        "const float *x",
        "float *y",
        "kinds_Range range",
        "int32_t color",
        "float4 v",
        "kinds_half h",
        "bool flag",
        "char c",
        "const float4 *vs",
        "const struct __half *hs",
        "float **table",
        "int64_t n",
        "int grid_",
        "const void *r",
    ]
    assert launcher(header, "kinds_plain") == [
        "const float *x",
        "float *y",
        "unsigned int n",
        "uint64_t m",
        "void *out",
    ]
    assert launcher(header, "kinds_overloaded_int_ptr") == ["int *p"]
    assert launcher(header, "kinds_overloaded_float_ptr") == ["float *p"]
    assert launcher(header, "kinds_load_2") == ["int *p"]  # kinds_load is the name of the header's own function
    assert launcher(header, "kinds_nothing") == []
    assert launcher(header, "kinds_group") == ["kinds_dim3 cluster", "int *p"]
    assert "    KINDS_PAIRS_CLUSTER_X = 2,\n" in header
    assert re.search(r"KINDS_ALIGNED\(8\) unsigned char bytes\[16\];\n\} kinds_Range;", header)


def test_a_kernel_made_for_one_block_has_its_size_as_constants(project):
    (project / "fixed.cu").write_text("__global__ void __block_size__((16, 2, 1)) fixed(int* p) { *p = 1; }\n")
    assert export(project / "fixed.cu", "--arch", "sm_90", "-o", project / "fixed") == 0  # not for the simulated device
    header = (project / "fixed" / "fixed.h").read_text()
    assert "    FIXED_FIXED_BLOCK_X = 16,\n    FIXED_FIXED_BLOCK_Y = 2,\n    FIXED_FIXED_BLOCK_Z = 1,\n" in header
    assert "not run  fixed: " in (project / "fixed" / "example.cpp").read_text()


USE_OF_KINDS = """
#include "kinds.h"
struct Range { int low; double high; };
int main() {
    kinds_kernels kernels{};
    const Range range{1, 2.0};
    return kinds_ns_many_float_2(&kernels, nullptr, kinds_dim(1, 1, 1), kinds_dim(1, 1, 1), 0, nullptr, nullptr,
                                 kinds_bytes<kinds_Range>(range), 0, float4{0, 0, 0, 0}, kinds_half{}, true, 'c',
                                 nullptr, nullptr, nullptr, 1, 1, &range) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1;
}
"""


def test_the_header_of_every_kind_of_parameter_builds_in_both_languages(kinds, tmp_path):
    (tmp_path / "use.cpp").write_text(USE_OF_KINDS)
    program = built(kinds, "g++", "c++17", tmp_path / "use.cpp", tmp_path / "use", f"-I{kinds}")
    assert subprocess.run([program]).returncode == 0
    (tmp_path / "use.c").write_text('#include "kinds.h"\nint main(void) { return 0; }\n')
    built(kinds, "gcc", "c11", tmp_path / "use.c", tmp_path / "use", f"-I{kinds}")


def test_clusters_and_cooperative_grids_are_launched_as_such(kinds, fake_driver, tmp_path):
    program = built(kinds, "g++", "c++17", "example.cpp", tmp_path / "example")
    said = run(program, kinds, fake_driver)
    assert "_Z5groupPi: grid 1x1x1 block 32x1x1 shared 0 cluster 1\n" in said.stderr
    assert "_Z8everyonePi: grid 1x1x1 block 32x1x1 shared 0 cooperative 1\n" in said.stderr
    assert "_Z5pairsPi: grid 2x1x1 block 32x1x1 shared 0\n" in said.stderr
    assert "not run  wild: " in said.stdout  # its pointers are guessed, and the simulated device reports the access
    assert "_Z4wildPPi" not in said.stderr


def test_the_header_says_what_it_was_made_of(scaled, project):
    header = (scaled / "scale.h").read_text()
    version = re.escape(cudakit.__version__)
    assert re.match(rf"/\* scale\.h: launchers of kernels, written by cudakit {version}\.\n", header)
    assert re.search(r"scale\.cu: sha256 [0-9a-f]{64}\n \*   SPDX-License-Identifier: MIT\n", header)
    assert re.search(r"includes factor\.cuh: sha256 [0-9a-f]{64}\n", header)
    assert f"NVRTC {compiler.nvrtc_label()} for sm_80, sm_90a: --std=c++17" in header
    written = b"".join(path.read_bytes() for path in scaled.iterdir())
    assert str(project).encode() not in written
    assert str(ROOT).encode() not in written


# The folder -----------------------------------------------------------------------------------------------------------


def test_the_same_sources_elsewhere_make_the_same_bytes(project, scaled, tmp_path):
    for name in ("scale.cu", "factor.cuh"):
        shutil.copy(project / name, tmp_path)
    assert export(tmp_path / "scale.cu", "-o", tmp_path / "out") == 0
    names = sorted(path.name for path in scaled.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert all((scaled / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in names)


def test_files_that_export_did_not_write_are_kept(project, tmp_path, capsys):
    (tmp_path / "example.cpp").write_text("mine")
    arguments = (project / "scale.cu", "--no-trial", "-o", tmp_path)
    assert export(*arguments) == 2
    assert "has example.cpp, which export did not write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["example.cpp"]
    assert export(*arguments, "--force") == 0
    assert (tmp_path / "example.cpp").read_text() != "mine"
    assert export(*arguments) == 0  # files of an earlier export are replaced
    (tmp_path / "example.cpp").write_text("changed")
    (tmp_path / "notes.txt").write_text("mine")
    assert export(*arguments) == 2
    assert "example.cpp" in capsys.readouterr().err
    (tmp_path / "example.cpp").unlink()
    assert export(*arguments, "--arch", "sm_90", "--no-ptx") == 0  # files that this export does not write are removed
    assert {path.suffix for path in tmp_path.iterdir()} == {".h", ".cpp", ".data", ".fatbin", ".json", ".txt"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("scale.cu", "--arch", "90"), "'90' is not an architecture"),
        (("scale.cu", "--arch", ","), "--arch names no architecture"),
        (("scale.cu", "--name", "++"), "cannot be a prefix of C functions"),
        (("scale.cu", "--name", "string"), "string.h is a header of C"),
        (("template.cu",), "has no kernels: name a template's instances"),
        (("scale.cu", "-o", "scale.cu"), "is a file: name a folder"),
        (("nowhere.cu",), "kernel file 'nowhere.cu' not found"),
    ],
)
def test_what_cannot_be_exported_is_refused(project, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(project)
    Path("template.cu").write_text("template <int N> __global__ void k(int* p) { *p = N; }\n")
    flags = () if "-o" in arguments else ("-o", "refused")
    assert export(*arguments, *flags, "--no-trial") == 2
    assert said in capsys.readouterr().err
    assert not Path("refused").exists()


def test_without_nvfatbin_the_command_says_what_to_install(project, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvfatbin", None)
    monkeypatch.delattr("cuda.bindings.nvfatbin", raising=False)
    assert export(project / "scale.cu", "-o", project / "none") == 2
    assert "nvFatbin cannot be loaded (" in (said := capsys.readouterr().err)
    assert "pip install nvidia-nvfatbin" in said


def test_a_kernel_is_left_out_for_architectures_before_its_first(project):
    wanted = (sources.Wanted("load"), sources.Wanted("group", since="sm_90", idea="in clusters"))
    text = 'extern "C" __global__ void load(int* p) { *p = 1; }\n#if __CUDA_ARCH__ >= 900\n' + (
        '#include <cooperative_groups.h>\nextern "C" __global__ void group(int* p) {'
        " cooperative_groups::this_cluster().sync(); *p = 1; }\n#endif\n"
    )
    (project / "later.cu").write_text(text)
    bundle = sources.build("later", [sources.Source(project / "later.cu", wanted)], ["sm_90a", "sm_80"])
    assert bundle.architectures == ("sm_80", "sm_90a")
    assert [list(entry.resources) for entry in bundle.entries] == [["sm_80", "sm_90a"], ["sm_90a"]]
    samples, reasons = trial.run(bundle)
    files = writing.contents(bundle, "1.0", samples, reasons)
    assert b"in clusters" in files["later.h"]
    only = [sources.Source(project / "later.cu", wanted[1:])]
    with pytest.raises(Refused, match=r"no kernel for sm_80: group needs sm_90 or later"):
        sources.build("later", only, ["sm_80"])
    with pytest.raises(Refused, match=r"has no kernel 'lode'; it has: load"):
        sources.build("later", [sources.Source(project / "later.cu", (sources.Wanted("lode"),))], ["sm_80"])


# Families -------------------------------------------------------------------------------------------------------------

TRANSPOSE_CU = """\
template <int TILE>
__global__ void tiled(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x] = x[row * cols + col];
    __syncthreads();
    const int to_row = blockIdx.x * TILE + threadIdx.y, to_col = blockIdx.y * TILE + threadIdx.x;
    if (to_row < cols && to_col < rows) out[to_row * rows + to_col] = tile[threadIdx.x][threadIdx.y] + WRONG;
}
extern "C" __global__ void naive(const float* x, float* out, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col < cols) out[col * rows + row] = x[row * cols + col];
}
"""

TRANSPOSE_PY = """\
from cudakit import Family, Launch, ceil_div

FAMILY = Family(
    "transpose",
    reference=lambda x: x.T,
    inputs={"x": "float32[rows, cols]"},
    outputs={"out": "float32[cols, rows]"},
    shapes=((33, 37), (16, 16)),
)


@FAMILY.variant("transpose.cu")
def naive(p):
    \"\"\"one thread per element\"\"\"
    return Launch((ceil_div(p.cols, 32), p.rows), 32, defines={"WRONG": 0})


@FAMILY.variant("transpose.cu", tune={"tile": (8, 16)})
def tiled(p, tile=16):
    \"\"\"a tile in shared memory\"\"\"
    grid = (ceil_div(p.cols, tile), ceil_div(p.rows, tile))
    return Launch(grid, (tile, tile), entry=f"tiled<{tile}>", defines={"WRONG": 0})
"""


@pytest.fixture
def transpose(tmp_path, monkeypatch):
    """A user's family in its own folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("transpose.cu").write_text(TRANSPOSE_CU)
    Path("transpose.py").write_text(TRANSPOSE_PY)
    return tmp_path


def test_a_family_is_exported_with_its_usual_launches(transpose, fake_driver, capsys):
    target = f"{transpose / 'transpose.py'}:FAMILY"
    with warnings.catch_warnings():
        warnings.simplefilter("error", cudakit.LeakWarning)
        assert export(target, "--arch", "sm_80", "-o", "out") == 0
    assert "transpose_tiled_16: tiled<16>(const float*, float*, int, int)" in capsys.readouterr().out
    header = Path("out/transpose.h").read_text()
    assert launcher(header, "transpose_naive") == ["const float *x", "float *out", "int rows", "int cols"]
    assert re.search(
        r"/\* naive\(const float\*, float\*, int, int\)\n \* naive -DWRONG=0: one thread per element\n", header
    )
    usual = "33x37 float32: grid 3 x 3 x 1, block 16 x 16 x 1, 0 bytes of dynamic shared memory"
    assert usual in header
    assert "TRANSPOSE_TILED_16_USUAL_BLOCK_Y = 16," in header
    program = built(transpose / "out", "g++", "c++17", "example.cpp", transpose / "example")
    done = run(program, transpose / "out", fake_driver)
    assert "tiled<16>" not in done.stderr
    assert re.search(r"_Z5tiledILi16EEvPKfPfii: grid 1x1x1 block 16x16x1 shared 0\n", done.stderr)
    assert "WRONG    transpose/tiled 16x16 float32" in done.stdout  # the test's driver runs only the kernel scale
    with cudakit.Device("sim:sm_80", fresh=True) as device, cudakit.load("out", device) as kernels:
        x = device.array(np.arange(6, dtype=np.float32).reshape(2, 3))
        out = device.empty((3, 2))
        kernels["tiled<16>"].launch(device.default_stream, grid=1, block=(16, 16), args=(x, out, 2, 3))
        np.testing.assert_array_equal(out.numpy(), x.numpy().T)


def test_a_wrong_variant_is_not_exported_and_its_line_is_named(transpose, capsys):
    before, _, after = TRANSPOSE_PY.rpartition("0}")
    Path("wrong.py").write_text(f"{before}1}}{after}")
    assert export("wrong.py:FAMILY", "-o", "out") == 1
    said = capsys.readouterr().err
    assert "tiled is wrong on 16x16 float32: " in said
    assert re.search(r"last stored by kernel tiled, block .*\n(.*\n)*?  at .*transpose\.cu:8\n", said)
    assert "NOTHING EXPORTED" in said
    assert not Path("out").exists()
    assert export("wrong.py:FAMILY", "--variants", "naive", "-o", "out") == 0
    Path("transpose.cu").write_text(TRANSPOSE_CU.replace("to_row < cols && ", ""))
    assert export("transpose.py:FAMILY", "-o", "out2") == 1
    said = capsys.readouterr().err
    assert re.search(r"^transpose/tiled 33x37 float32: uninitialised read: shared load(.|\n)*transpose\.cu:8\n", said)


PAIR_CU = """\
__global__ void pair(const int* x, int* low, int* high, int n) {
    if (threadIdx.x < n) low[threadIdx.x] = x[threadIdx.x] & 15;
    if (threadIdx.x < n) high[threadIdx.x] = x[threadIdx.x] >> SHIFT;
}
"""

PAIR_PY = """\
from cudakit.family import Family, Launch

FAMILY = Family("pair", reference=lambda x: (x & 15, x >> 4), inputs={"x": "int32[n]"},
                outputs={"low": "int32[n]", "high": "int32[n]"}, shapes=((9,),))


@FAMILY.variant("pair.cu")
def pair(p):
    return Launch(1, 32, defines={"SHIFT": 4})
"""


def test_of_several_outputs_the_wrong_one_is_traced(transpose, fake_driver, capsys):
    Path("pair.cu").write_text(PAIR_CU)
    Path("pair.py").write_text(PAIR_PY)
    assert export("pair.py:FAMILY", "--arch", "sm_90", "-o", "out") == 0
    program = built(transpose / "out", "g++", "c++17", "example.cpp", transpose / "example")
    assert "the result differs" in run(program, transpose / "out", fake_driver).stdout
    Path("shifted.py").write_text(PAIR_PY.replace('"SHIFT": 4', '"SHIFT": 5'))
    capsys.readouterr()
    assert export("shifted.py:FAMILY", "--arch", "sm_90", "-o", "out2") == 1
    assert re.search(r"output high: element (.|\n)* at .*pair\.cu:3\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("transpose.py:FAMILY", "--variants", "tild"), "transpose has no variant 'tild'"),
        (("transpose.py:FAMILY", "--names", "tiled<8>"), "--names, --define, --no-fmad and --option need a .cu file"),
        (("transpose.cu", "--variants", "naive"), "--variants needs a family"),
        (("transpos",), "there is no family 'transpos'"),
        (("softmax", "--variants", "split_row", "--arch", "sm_80"), "split_row: it needs sm_90 or later"),
    ],
)
def test_a_family_that_cannot_be_exported_is_refused(transpose, capsys, arguments, said):
    assert export(*arguments, "-o", "refused") == 2
    assert said in capsys.readouterr().err
    assert not Path("refused").exists()


def test_variants_of_our_own_are_exported_with_clusters_and_scratch_memory(tmp_path, fake_driver):
    """Several launches with shared scratch memory, with clusters whose size the launch sets."""
    variants = "split_row,two_launches"
    assert export("softmax", "--variants", variants, "--arch", "sm_90a", "-o", tmp_path) == 0
    program = built(tmp_path, "g++", "c++17", "example.cpp", tmp_path / "example")
    said = run(program, tmp_path, fake_driver).stderr
    assert re.search(r"split_row.*: grid \d+x1x1 block \d+x1x1 shared 0 cluster 2\n", said)
    assert re.search(r"chunk_sums.*\n.*chunk_scale", said)


def test_the_example_encodes_the_tensor_maps_of_a_family(tmp_path, fake_driver):
    """The simulated device's own encoding means nothing to a GPU."""
    (tmp_path / "mapped.cu").write_text(
        "#include <cuda.h>\n__global__ void mapped(const __grid_constant__ CUtensorMap x, float* out) {\n"
        "    out[threadIdx.x] = 1.0f;\n}\n"
    )
    (tmp_path / "mapped.py").write_text(
        "import numpy as np\n"
        "from cudakit import Family, Launch, TensorMapSlot\n\n"
        "FAMILY = Family(\n"
        '    "mapped", reference=lambda x: np.ones(32), inputs={"x": "float32[rows, cols]"},\n'
        '    outputs={"out": "float32[32]"}, shapes=((24, 64),),\n'
        ")\n\n\n"
        '@FAMILY.variant("mapped.cu", since="sm_90")\n'
        "def mapped(p):\n"
        '    return Launch(1, 32, (TensorMapSlot(p.x, (8, 16), swizzle="64B"), p.out))\n'
    )
    folder = tmp_path / "out"
    assert export(f"{tmp_path / 'mapped.py'}:FAMILY", "--arch", "sm_90a", "-o", folder) == 0
    program = built(folder, "g++", "c++17", "example.cpp", tmp_path / "example", "-Wno-psabi")
    said = run(program, folder, fake_driver).stderr
    assert "map: type 7 rank 2 dims 64 24 stride 256 box 16 8 modes 0 2 0 0\n" in said
    failed = run(program, folder, fake_driver, FAKE_FAIL="cuTensorMapEncodeTiled")
    assert failed.returncode == 1
    assert "cuTensorMapEncodeTiled: " in failed.stderr


# Loading --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_compiler(monkeypatch):
    def compiled(request):
        raise AssertionError(f"{request.name} was compiled")

    monkeypatch.setattr(compiler, "compile", compiled)
    monkeypatch.setenv("CUDAKIT_COMPILE", "never")


def check_scale(device, kernel):
    x = device.array(np.arange(100, dtype=np.float32))
    y = device.zeros(100)
    kernel.launch(device.default_stream, grid=1, block=128, args=(x, y, 2.0, 100))
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(100, dtype=np.float32))
    with pytest.raises(cudakit.LaunchError, match=r"parameter 0 \(`x`\) is const float\*"):
        kernel.launch(device.default_stream, grid=1, block=128, args=(device.zeros(100, "float64"), y, 2.0, 100))


def test_a_folder_loads_without_a_compiler(scaled, project, no_compiler):
    with cudakit.Device("sim", fresh=True) as device:
        kernels = cudakit.load(scaled, device)
        assert list(kernels) == ["scale"]
        assert kernels.manifest.architectures == ("sm_80", "sm_90a")
        kernel = kernels["scale"]
        assert kernel.signature == "scale(const float*, float*, float, int)"
        assert [one.name for one in kernel.parameters] == ["x", "y", "factor", "n"]
        assert kernel.registers > 0
        assert kernel.max_threads == 256
        check_scale(device, kernel)
        with pytest.raises(cudakit.UnknownName, match=r"scale has no kernel 'scales'; it has: scale"):
            kernels["scales"]
        kernels.close()
    with cudakit.Device("sim:sm_80", fresh=True) as device:
        check_scale(device, cudakit.load(scaled / "scale.json", device)["scale"])


def test_loaded_kernels_have_the_types_of_the_original(kinds, project):
    names = ["ns::many<float, 2>"]
    with cudakit.Device("sim", fresh=True) as device:
        original = device.compile(project / "kinds.cu", names=names)
        loaded = cudakit.load(kinds, device)
        assert loaded["ns::many<float,2>"].signature == original[names[0]].signature
        for kernel in original.kernels:
            (same,) = [one for one in loaded.values() if one.mangled == kernel.mangled]
            assert [(one.text, one.name, one.size) for one in same.parameters] == [
                (one.text, one.name, one.size) for one in kernel.parameters
            ]
            assert same.required_cluster == kernel.required_cluster


@pytest.mark.parametrize(
    ("spec", "target"), [("sim", "sm_90a"), ("sim:sm_90", "sm_80"), ("sim:sm_100", "sm_80"), ("sim:sm_80", "sm_80")]
)
def test_a_simulated_device_loads_the_code_for_its_own_architecture(scaled, spec, target):
    with cudakit.Device(spec, fresh=True) as device:
        assert [f".target {target}\n" in module.ptx for module in cudakit.load(scaled, device).modules] == [True]


def test_a_tensor_map_is_that_of_cuda_h(project):
    (project / "map.cu").write_text(
        "#include <cuda.h>\n__global__ void k(const __grid_constant__ CUtensorMap map, long* x) { *x = map.opaque[0]; }"
    )
    assert export(project / "map.cu", "--no-trial", "-o", project / "mapped") == 0
    header = (project / "mapped" / "map.h").read_text()
    assert "    CUtensorMap map,\n" in header
    assert "typedef struct CUtensorMap" not in header


def test_what_cannot_be_loaded_says_why(scaled, project, tmp_path):
    machine_code = tmp_path / "code"
    assert export(project / "scale.cu", "--no-ptx", "--no-trial", "-o", machine_code) == 0
    with cudakit.Device("sim", fresh=True) as device:
        with pytest.raises(CudakitError, match=r"exported without PTX, and sim:sm_90a runs only PTX"):
            cudakit.load(machine_code, device)
        with pytest.raises(Refused, match=r"has no export: write one with cudakit export"):
            cudakit.load(tmp_path, device)
        broken = tmp_path / "broken"
        shutil.copytree(scaled, broken)
        (broken / "scale.sm_90a.ptx").write_text("")
        with pytest.raises(Refused, match=r"scale.sm_90a.ptx is not the file that was exported"):
            cudakit.load(broken, device)["scale"]
        manifest = json.loads((broken / "scale.json").read_text())
        del manifest["images"]
        (broken / "scale.json").write_text(json.dumps(manifest, indent=1))
        with pytest.raises(Refused, match=r"not the manifest of an export \(KeyError: 'images'\)"):
            cudakit.load(broken, device)
    with (
        cudakit.Device("sim:sm_75", fresh=True) as device,
        pytest.raises(CudakitError, match=r"exported for sm_80, sm_90a, and .* is sm_75: .* --arch sm_80,sm_90a,sm_75"),
    ):
        cudakit.load(scaled, device)


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_the_examples_run_on_a_gpu(gpu, program, scaled, kinds, tmp_path):
    done = run(program, scaled)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 correct, 0 wrong, 0 skipped" in done.stdout
    if gpu.context.compute_capability >= (9, 0):
        done = run(built(kinds, "g++", "c++17", "example.cpp", tmp_path / "example"), kinds)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "variants"),
    [("softmax", "registers,split_row,two_launches"), ("attention", "flash"), ("sum", ""), ("vector_add", "")],
)
def test_the_example_of_a_family_runs_on_a_gpu(gpu, tmp_path, family, variants):
    assert export(family, *(["--variants", variants] if variants else []), "--arch", gpu.arch, "-o", tmp_path) == 0
    done = run(built(tmp_path, "g++", "c++17", "example.cpp", tmp_path / "example"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 wrong, 0 skipped" in done.stdout


@pytest.mark.gpu
def test_a_folder_loads_on_a_gpu_without_a_compiler(gpu, scaled, no_compiler):
    with cudakit.load(scaled, gpu) as kernels:
        check_scale(gpu, kernels["scale"])
