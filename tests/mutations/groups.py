"""The tests that could detect a mutation, by its file: the most likely first."""

from __future__ import annotations

from pathlib import Path

from cudakit import ops
from tests.mutations.trees import includers

Group = tuple[str, ...]  # arguments of one run of pytest

FUZZ = "tests/ops/test_kernels.py"
# Tests of a folder of kernels or of a family's host code, in addition to fuzzing.
FOLDERS = {
    "add": ("tests/ops/test_elementwise.py",),
    "add_broadcast": ("tests/ops/test_elementwise.py",),
    "attention": ("tests/ops/test_attention.py",),
    "blur": ("tests/ops/test_blur.py",),
    "fft": ("tests/ops/test_fft.py",),
    "gemm": ("tests/ops/test_gemm.py",),
    "gemm_grouped": ("tests/ops/test_gemm_grouped.py",),
    "gemm_half": (
        "tests/ops/test_gemm_half.py",
        "tests/ops/test_gemm_epilogue.py",
        "tests/ops/test_gemm_hopper.py",
        "tests/ops/test_gemm_hopper_layouts.py",
        "tests/ops/test_gemm_hopper_calls.py",
        "tests/ops/test_gemm_hopper_choice.py",
        "tests/ops/test_gemm_half_ladder.py",
        "tests/ops/test_gemm_half_gemv.py",
    ),
    "matrix_add": ("tests/ops/test_elementwise.py",),
    "random": ("tests/ops/test_random.py",),
    "reduce": ("tests/ops/test_reduce.py",),
    "softmax": ("tests/ops/test_ops.py", "tests/ops/test_softmax_blas.py"),
    "softmax_backward": ("tests/ops/test_softmax_backward.py",),
    "softmax_modes": ("tests/ops/test_softmax_modes.py",),
    "unary": ("tests/ops/test_elementwise.py",),
    "vector_add": ("tests/ops/test_elementwise.py", "tests/ops/test_ops.py"),
}
FAR = "tests/ops/test_far_blocks.py"
TRAPS = "tests/ops/test_traps.py"
EXAMPLES = "tests/tools/test_examples.py"
STREAMED = "tests/tools/test_streamed.py"
BENCH: tuple[Group, ...] = (("tests/tools/test_bench.py",), (TRAPS,), ("tests/tools/test_calls.py",))
ROUNDING = "tests/ops/test_rounding.py"
JUDGES: tuple[Group, ...] = (
    (ROUNDING,),
    ("tests/tools/test_bench.py",), ("tests/ops/test_wrong.py",), ("tests/ops/test_reduce.py",), (TRAPS,),
)  # fmt: skip
# Files whose tests `_by_rule` does not find.
FILES: dict[str, tuple[Group, ...]] = {
    "kernels/hybrid/filter.cu": ((TRAPS,), (FAR,), (EXAMPLES, "-k", "hybrid")),
    "kernels/hybrid/fused.cu": (("tests/ops/test_hybrid.py",),),
    "kernels/ptychography/fused.cu": (
        (TRAPS,), ("tests/ops/test_reconstruction.py",), (FAR,), (EXAMPLES, "-k", "ptychography"),
    ),
    "kernels/ptychography/overlapping.cu": (
        ("tests/ops/test_reconstruction.py",), (EXAMPLES, "-k", "reconstruction"),
    ),
    "kernels/ptychography/separate.cu": ((TRAPS,), (FAR,), (EXAMPLES, "-k", "ptychography")),
    "kernels/peaks/fma.cu": ((TRAPS,), ("tests/tools/test_profiling.py",)),
    "kernels/peaks/mma.cu": ((TRAPS,), ("tests/tools/test_profiling.py",)),
    "cudakit/compare.py": JUDGES,
    "cudakit/family/bound.py": (("tests/core/test_family_results.py",),),
    "cudakit/testing/case.py": (("tests/ops/test_wrong.py",), ("tests/ops/test_elementwise.py",), (FUZZ,)),
    "cudakit/family/checks.py": (
        ("tests/ops/test_elementwise.py",), ("tests/ops/test_ops.py",), ("tests/ops/test_blur.py",),
        ("tests/ops/test_gemm.py",),
    ),
    "cudakit/commands/numbered.py": ((STREAMED,),),
    "cudakit/commands/streamed.py": (
        (STREAMED,), (TRAPS,), (EXAMPLES, "-k", "streams or batched or chunked or gemm_fft or blur_images or batch"),
        ("tests/ops/test_pipeline.py",),
    ),
    "cudakit/pipeline/report.py": ((TRAPS,), ("tests/ops/test_pipeline.py",)),
    "cudakit/libs/products.py": (("tests/ops/test_gemm.py", "-k", "b_first"), ("tests/ops/test_libs_blas.py",)),
    "cudakit/families/vector_add.py": ((ROUNDING,), ("tests/ops/test_elementwise.py",)),
    "cudakit/families/softmax_ladder.py": ((TRAPS,), ("tests/ops/test_ops.py",)),
    "cudakit/measure/regression.py": (("tests/tools/test_against.py",),),
    "cudakit/commands/ladder.py": (("tests/tools/test_cli.py",), ("tests/ops/test_gemm.py",)),
    "cudakit/commands/fuzzing.py": (("tests/tools/test_cli.py",),),
}  # fmt: skip


def groups_of(root: Path, file: str) -> tuple[Group, ...]:
    """Return the runs of pytest for a mutation in `file`, without those whose test file is missing in this tree."""
    groups = FILES.get(file) or tuple(_by_rule(root, Path(file)))
    return tuple(group for group in groups if (root / group[0].partition("::")[0]).exists())


def _by_rule(root: Path, file: Path) -> list[Group]:
    folder = file.parent.name
    if file.parts[0] == "kernels":
        return _of_kernels(root, file.as_posix())
    if folder == "testing":
        return [*_own(root, file.stem), ("tests/ops/test_wrong.py",), *_fuzzed(root, file.stem)]
    if folder == "families":
        family = file.stem.removesuffix("_host")
        return [(ROUNDING,), *_fuzzed(root, family), *((path,) for path in FOLDERS.get(family, ()))]
    return [*_own(root, file.stem), *BENCH]


def _own(root: Path, stem: str) -> list[Group]:
    return [(path.relative_to(root).as_posix(),) for path in sorted(root.glob(f"tests/*/test_{stem}.py"))]


def _fuzzed(root: Path, folder: str) -> list[Group]:
    names = [f.name for f in ops.families().values() if any(v.source.startswith(f"{folder}/") for v in f)]
    return [(FUZZ, "-k", " or ".join(f"[sim-{name}" for name in names))] if names else []


def _of_kernels(root: Path, file: str) -> list[Group]:
    sources = {name.removeprefix("kernels/") for name in includers(root, file)}
    names, folders = [], [file.split("/")[1]]
    for family in ops.families().values():
        for variant in family:
            if variant.source in sources:
                names.append(f"sim-{family.name}-{variant.name}]")
                folders.append(variant.source.partition("/")[0])
    folders = list(dict.fromkeys(folder for folder in folders if folder in FOLDERS))
    files = list(dict.fromkeys(path for folder in folders for path in FOLDERS[folder]))
    groups: list[Group] = [(FUZZ, "-k", " or ".join(names))] if names else []
    if file.startswith("kernels/common/"):
        files.sort(key=lambda path: "gemm" in path or "attention" in path)  # last: they take a minute each
        groups = [(FAR,), *groups]
    return list(dict.fromkeys([*groups, (FAR,), *((path,) for path in files)]))
