"""Errors that tests once missed, or that are common in published kernels, as mutations."""

from __future__ import annotations

from pathlib import Path

from tests.mutations.draw import Mutation, mutation

# file, old text, new text, the error. The old text occurs in the file exactly once.
NAMED: tuple[tuple[str, str, str, str], ...] = (
    ("kernels/softmax/01_thread_per_row.cu", "x += row * x_row;", "x += static_cast<int>(row * x_row);",
     "row * stride in 32 bits"),
    ("kernels/softmax/03_serial_block.cu", "y += blockIdx.x * y_row;", "y += static_cast<int>(blockIdx.x * y_row);",
     "row * stride in 32 bits"),
    ("kernels/gemm/02_naive.cu", "tile.batch * a_batch + row * a_row;",
     "tile.batch * a_batch + static_cast<int>(row * a_row);", "row * stride in 32 bits"),
    ("kernels/add_broadcast/01_slow_axis.cu", "out[x * o_x + y * o_y + z * o_z]",
     "out[static_cast<int>(x * o_x + y * o_y + z * o_z)]", "an index product in 32 bits"),
    ("kernels/common/places.cuh", "return i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;",
     "return static_cast<int>(i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3);", "an index product in 32 bits"),
    ("kernels/common/numbers.cuh", "return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;",
     "return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);", "a thread's number in 32 bits"),
    ("cudakit/families/softmax_ladder.py", "problem.cols > 14080", "problem.cols >= 14080", "blocks at 14,080"),
    ("cudakit/families/softmax_ladder.py", "1024 if problem.cols > 14080 else 512", "512",
     "512 threads past 14,080"),
    ("kernels/hybrid/filter.cu", "x < cut ? 0.0f : x", "x > cut ? x : 0.0f", "the other comparison"),
    ("kernels/ptychography/fused.cu", "r > 0.0f ? make_float2(f * z.x, f * z.y) : make_float2(m, 0.0f)",
     "make_float2(f * z.x, f * z.y)", "an amplitude of 0 divides by 0"),
    ("kernels/ptychography/separate.cu", "r > 0.0f ? make_float2(z.x / r, z.y / r) : make_float2(1.0f, 0.0f)",
     "make_float2(z.x / r, z.y / r)", "an amplitude of 0 divides by 0"),
    ("cudakit/measure/case.py", "array.copy_from(pinned, case.stream)", "pass", "end to end without the copies in"),
    ("cudakit/measure/case.py", "array.copy_to(host, case.stream)", "pass",
     "end to end without the copy out"),
    ("cudakit/measure/timing.py", "launches[turn % len(launches)]()", "launches[0]()", "inputs do not rotate"),
    ("cudakit/measure/timing.py", "return max(1, min(count, most))", "return 1", "inputs do not rotate"),
    ("cudakit/measure/case.py", "for arrays in self.sets]", "for arrays in self.sets[:1]]", "inputs do not rotate"),
    ("cudakit/pipeline/report.py", "max(self.bounds.values(), default=None)", "min(self.bounds.values(), default=None)",
     "the bound of the fastest stage"),
    ("cudakit/commands/numbered.py", "while math.gcd(period, chunk * units) > 1:", "while period < 1:",
     "items repeat with a period that divides chunks"),
    ("cudakit/libs/products.py", "swapped = result.operation == TRANSPOSED", "swapped = False",
     "A before B"),
    ("cudakit/families/vector_add.py", "rounding=0.0,",
     "rounding=lambda exact, a, b: 5e-4 * abs(exact),", "a sum rounded to float16 passes"),
    ("cudakit/families/softmax_host.py", "return U * (24 + cols / 2**15)", "return U * (24 + 16 * cols)",
     "a lost element of a long row passes"),
    ("cudakit/families/softmax_host.py", "np.where(exact > 0, exact * relative, 0.0)", "top * relative",
     "errors by the row's peak"),
    ("cudakit/families/reduce.py", "return of_tree(lines)", "return 100 * of_tree(lines)",
     "lost terms of a long sum pass"),
    ("cudakit/compare.py", "lambda exact, limit: limit)", "lambda exact, limit: limit.max())",
     "an element by another's bound"),
    ("kernels/add_broadcast/04_dense.cu", "if (first + k < n) out[first + k] = each[k];",
     "if (first + k + 1 < n) out[first + k] = each[k];", "the last store of dense is lost"),
    ("kernels/unary/02_vectors.cu", "mapped.at[j] = map(taken.at[j]);", "mapped.at[j] = map(taken.at[PER - 1 - j]);",
     "the lanes of cast reversed"),
    ("kernels/fft/turns.cuh", "return {c, -s};", "return {c, s};", "the sign of a quarter of the twiddle factors"),
    ("kernels/fft/passes.cuh", "if constexpr (PASS > 0 && (!LAST || REUSED)) group.sync();", "",
     "no barrier between loads and stores of a pass"),
    ("kernels/fft/06_rows.cu", "inside = inner < inner_rows;", "inside = true;", "rows past the batch's end"),
    ("kernels/fft/06_rows.cu", "return array + outer * strides.outer + inner * strides.inner;",
     "return array + static_cast<int>(outer * strides.outer + inner * strides.inner);", "row * stride in 32 bits"),
    ("kernels/fft/05_registers.cu", "const bool upper = threadIdx.x & L;", "const bool upper = false;",
     "a shuffle in which all lanes send the upper register"),
    ("cudakit/families/fft_host.py", "3 * U * (math.log2(length) + 1)", "3e4 * U * (math.log2(length) + 1)",
     "one wrong twiddle factor passes"),
)  # fmt: skip


def mutations(root: Path) -> tuple[list[Mutation], list[str]]:
    """Return the named errors, and a message for each whose old text does not occur in its file exactly once."""
    found, missing = [], []
    for file, old, new, error in NAMED:
        text = (root / file).read_text(encoding="utf-8") if (root / file).is_file() else ""
        if text.count(old) != 1:
            missing.append(f"{file} has {old!r} {text.count(old)} times, not once: update the mutation ({error})")
        else:
            found.append(mutation(file, text, text.index(old), old, new, error))
    return found, missing
