"""Advice for common compile errors: one sentence each, which names the line, header or option to change."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudakit.compile import headers
from cudakit.compile.diagnostics import Diagnostic

_MOST = 3  # sentences per error; later errors often follow from the first

DEFAULT_DEVICE = 'options=("-default-device",)'
_FROM_PYTHON = "allocate, copy and launch from Python (device.array, kernel.launch)"
_RUNTIME_IS_OF_THE_HOST = f"is host code, but NVRTC compiles only device code: {_FROM_PYTHON}"
_MAIN_IS_OF_THE_HOST = f"Delete main: it is host code, but NVRTC compiles only device code; {_FROM_PYTHON}"
_MAIN = re.compile(r"^[\w ]*\bmain\s*\(", re.MULTILINE)

# Headers ------------------------------------------------------------------------------------------------------------

_BUILT_IN = {
    "stdio": "printf is built in",
    "assert": "assert is built in",
    "math": "sqrtf, expf, pow and similar are built in",
    "stdlib": "malloc, free and abs are built in",
    "string": "memcpy and memset are built in",
    "stddef": "size_t is built in",
    "stdbool": "bool is built in",
    "time": "clock() is built in",
}
_HOST_NAMES = """
    condition_variable deque filesystem forward_list fstream future iomanip ios iostream istream list locale map memory
    mutex ostream queue random regex set sstream stack stdexcept string system_error thread unordered_map unordered_set
    valarray vector omp.h pthread.h unistd.h sys/time.h windows.h
"""
_OF_THE_HOST = frozenset(_HOST_NAMES.split())
_STREAMS = ("fstream", "iomanip", "ios", "iostream", "istream", "ostream", "sstream")
_LIBRARIES = re.compile(
    r"cublas\w*\.h|cufft\w*\.h|cusparse\w*\.h|cusolver\w*\.h|curand\.h|cudnn\w*\.h|nccl\.h|nvtx3/.*|nvToolsExt\.h|"
    r"helper_\w+\.h|driver_types\.h|cuda_profiler_api\.h|torch/.*|ATen/.*|c10/.*|pybind11/.*|Python\.h"
)
_RUNTIME = frozenset({"cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h"})
_OF_LIBRARIES = {
    "cutlass": f"CUTLASS's headers need {DEFAULT_DEVICE}",
    "cute": f"CUTLASS's headers need {DEFAULT_DEVICE}",
    "cub": "Include only the CUB headers that you use, such as <cub/block/block_reduce.cuh>: others are host code",
    "thrust": "Thrust is host code: in a kernel use CUB's primitives, such as <cub/block/block_reduce.cuh>",
}
_FOLDERS = (
    "Add the header's folder to include=...: only the file's folder, the include=... folders, kernels/common and "
    f"CUDA's own are searched. Install CUDA's with {headers.INSTALL}"
)

# Names --------------------------------------------------------------------------------------------------------------

_FLOATS = "cuda/std/cfloat"
_LIMITS = "Use cuda::std::numeric_limits<float>::max() or another of its members, and include <cuda/std/limits>"

# Patterns of names, each with the header to include.
_NEEDS = [
    (r"u?int(_least|_fast)?(8|16|32|64)_t|u?int(ptr|max)_t|U?INT(8|16|32|64)_(MAX|MIN)|SIZE_MAX", "cuda/std/cstdint"),
    (r"(FLT|DBL)_(MAX|MIN|EPSILON|DIG|MANT_DIG)", _FLOATS),
    (r"U?(CHAR|SHRT|INT|LONG|LLONG)_(MAX|MIN)|CHAR_BIT", "cuda/std/climits"),
    (r"INFINITY|NAN", "cuda/std/cmath"),
    (r"offsetof", "cuda/std/cstddef"),
    (r"CUDART_\w+", "math_constants.h"),
    (r"(__)?half2?|__(float|double|int|uint|short)2half\w*|__half\w*|__h(add|sub|mul|fma|max|min)2?|h(sqrt|exp|log)2?",
     "cuda_fp16.h"),
    (r"(__)?nv_bfloat16\w*|__(float|double)2bfloat16\w*|__bfloat16\w*", "cuda_bf16.h"),
    (r"__nv_fp8\w*", "cuda_fp8.h"),
    (r"cu(Float|Double)?Complex|make_cu(Float|Double)?Complex|cuC(real|imag|add|mul)f?", "cuComplex.h"),
]  # fmt: skip
_INSTEAD = {
    "M_PI": "Use CUDART_PI (double) or CUDART_PI_F (float) instead of M_PI, and include <math_constants.h>",
    "uint": "Use unsigned int instead of uint",
    "uchar": "Use unsigned char instead of uchar",
    "ushort": "Use unsigned short instead of ushort",
    "ulong": "Use unsigned long instead of ulong",
    "exit": "exit is a host function: return from the kernel, or stop it with __trap()",
    "abort": "abort is a host function: stop the kernel with __trap()",
    "fprintf": "fprintf is a host function: use printf, which is built in",
    "puts": "puts is a host function: use printf, which is built in",
    "rand": "rand is a host function: use the generators of <curand_kernel.h> (pip install nvidia-curand)",
    "_global_": "Write __global__, with two underscores on each side",
}
_SHUFFLES = re.compile(r"__(shfl(_up|_down|_xor)?|any|all|ballot)")
_RUNTIME_NAME = re.compile(r"cuda[A-Z]\w*|cu(blas|fft|sparse|dnn)?[A-Z]\w*")
_CURAND = re.compile(r"curand\w*")
_KNOWN = """
    threadIdx blockIdx blockDim gridDim warpSize __syncthreads __syncwarp __threadfence __global__ __device__
    __shared__ __constant__ __restrict__ __launch_bounds__ __shfl_sync __shfl_up_sync __shfl_down_sync
    __shfl_xor_sync __ballot_sync __any_sync __all_sync __activemask atomicAdd atomicSub atomicMax atomicMin
    atomicExch atomicCAS atomicAnd atomicOr atomicXor printf float4 float2 int4 int2 make_float4 make_float2 make_int4
"""

# The header in cuda/std of each std name that is common in kernels.
STD = {
    name: header
    for header, names in {
        "algorithm": "max min clamp fill copy lower_bound upper_bound",
        "array": "array",
        "bit": "bit_cast popcount countl_zero countr_zero",
        "cmath": "abs sqrt exp log pow sin cos tan tanh fabs floor ceil round fmin fmax isnan isinf isfinite",
        "complex": "complex",
        "cstddef": "size_t ptrdiff_t byte nullptr_t",
        "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t intptr_t",
        "functional": "plus multiplies minus less greater",
        "limits": "numeric_limits",
        "numeric": "accumulate",
        "optional": "optional",
        "span": "span",
        "tuple": "tuple make_tuple tie",
        "type_traits": "is_same is_same_v enable_if enable_if_t conditional conditional_t decay_t remove_cv_t "
        "is_integral_v is_floating_point_v integral_constant",
        "utility": "swap move forward pair make_pair index_sequence make_index_sequence declval",
        "atomic": "atomic atomic_ref",
    }.items()
    for name in names.split()
}
_STD_OF_THE_HOST = {"cout": "printf", "cerr": "printf", "endl": "printf", "string": "", "vector": "", "map": ""}

# Namespaces that a single header declares, with the advice, or with a pattern of the header's name.
_NAMESPACES = [
    (re.compile(r"\bcooperative_groups\b"), "Add #include <cooperative_groups.h>"),
    (re.compile(r"\b(nvcuda|wmma)\b"), "Add #include <mma.h>"),
    (re.compile(r"\bcub::"), "Include the CUB header that you use, such as <cub/block/block_reduce.cuh>"),
    (re.compile(r"\bcuda::(barrier|atomic|atomic_ref|pipeline|ptx|annotated_ptr|latch|semaphore)\b"), "cuda/{}"),
    (re.compile(r"\bcuda::std::(\w+)"), "cuda/std/{}"),
]


@dataclass(frozen=True)
class About:
    """Advice that starts with a name; names with the same `after` share a sentence. after: "needs ..." or "is ..."."""

    name: str
    after: str


def of(found: Sequence[Diagnostic], name: str, source: str) -> list[str]:
    """Return sentences, without a full stop, about the errors in `found` of the source `name`; most important first."""
    sentences: dict[str, list[str]] = {}  # the rest of each sentence, with the names that start it
    texts: dict[str, Rest] = {name: source.splitlines()}
    for one in found:
        if not one.is_error:
            continue
        if one.file not in texts:
            texts[one.file] = _users_header(one.file)
        rest = texts[one.file]
        rest = rest[one.line - 1 :] if rest is not None else None
        line = rest[0] if rest else ""
        for pattern, rule in _RULES:
            if match := pattern.search(one.message):
                if said := rule(match, one, line, rest):
                    about = said if isinstance(said, About) else About("", said)
                    names = sentences.setdefault(about.after, [])
                    names += [about.name] if about.name not in names else []
                break
    if any("open source file" in one.message for one in found) and _MAIN.search(source):
        sentences[_MAIN_IS_OF_THE_HOST] = [""]  # NVRTC stops at a missing header, before it reaches main
    if any(_FROM_PYTHON in after and not names[0] for after, names in sentences.items()):
        sentences.pop(_RUNTIME_IS_OF_THE_HOST, None)
    return [_sentence(names, after) for after, names in sentences.items()][:_MOST]


def _users_header(file: str) -> Rest:
    """Return the lines of a header that the user can change; None if it is CUDA's or another library's."""
    if _library(file) or any(file.startswith(os.path.join(place, "")) for place in headers.cuda_directories()):
        return None
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None


def _library(file: str) -> str:
    """Return the folder of the library in _OF_LIBRARIES that a header is in, or ""."""
    folders = Path(file).parts[:-1]
    return next((name for name in _OF_LIBRARIES if name in folders), "")


def _sentence(names: Sequence[str], after: str) -> str:
    if len(names) > 1:
        verb, _, rest = after.partition(" ")
        after = f"{ {'needs': 'need', 'is': 'are'}[verb] } {rest}"
    return f"{', '.join(names)} {after}" if names[0] else after


Said = str | About  # a sentence; "" if there is no advice
Rest = Sequence[str] | None  # the file's lines from the error's line on; None if it is a library's header


def _there(header: str, name: str = "") -> bool:
    """Return whether the installed CUDA headers have `header` and it declares `name`; older ones lack some."""
    for place in headers.cuda_directories():
        with contextlib.suppress(OSError):
            return name in Path(place, header).read_text(encoding="utf-8", errors="replace")
    return False


def _missing(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> Said:
    header = match[1]
    if rest is None:
        return _OF_LIBRARIES.get(_library(one.file), _FOLDERS)
    stem = header.removesuffix(".h") if header.endswith(".h") else header.removeprefix("c")
    own = "cuda/std/" + (f"c{stem}" if header.endswith(".h") else header)
    has_own = "/" not in header and _there(own)
    if header in _OF_THE_HOST:
        more = "printf is built in" if header in _STREAMS else "kernels take pointers and sizes instead"
        return f"Delete #include <{header}>: it is a host header; {more}"
    if stem in _BUILT_IN and header != stem:
        instead = f". Or include <{own}> instead, whose names are in cuda::std" if has_own else ""
        return f"Delete #include <{header}>: {_BUILT_IN[stem]}{instead}"
    if has_own:
        return (
            f"Include <{own}> instead of <{header}>, whose names are then in cuda::std: "
            "NVRTC does not have the host's standard headers"
        )
    if header == "curand_kernel.h":
        return f"Install <{header}> with pip install nvidia-curand"
    if header in _RUNTIME:
        return (
            f"Delete #include <{header}>: device code does not need it. "
            "Or install it with pip install nvidia-cuda-runtime nvidia-cuda-crt"
        )
    if header.startswith(("cutlass/", "cute/")):
        return f"Add the folder of CUTLASS's headers to include=..., and compile with {DEFAULT_DEVICE}"
    if _LIBRARIES.fullmatch(header):
        libs = "; cudakit.libs has cuBLAS and cuFFT" if header.startswith(("cublas", "cufft")) else ""
        return f"Delete #include <{header}>: it is a host header{libs}"
    return _FOLDERS


def _undefined(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> Said:
    name = match[1]
    if rest is None:
        return ""  # an error within a library's header
    for names, header in _NEEDS:
        if re.fullmatch(names, name) and _there(header):
            return About(name, f"needs #include <{header}>") if header != _FLOATS or _there(_FLOATS, name) else _LIMITS
    if name in ("def", "import"):
        return "This is Python, but NVRTC compiles CUDA C++"
    if name in _INSTEAD:
        return _INSTEAD[name]
    if _SHUFFLES.fullmatch(name):
        return (
            f"{name} was removed with Volta: use {name}_sync, whose first argument is the lane mask (0xffffffff: all)"
        )
    if _CURAND.fullmatch(name):
        return About(name, "needs #include <curand_kernel.h> (pip install nvidia-curand)")
    if _RUNTIME_NAME.fullmatch(name):
        return About(name, _RUNTIME_IS_OF_THE_HOST)
    close = difflib.get_close_matches(name, _KNOWN.split(), n=1, cutoff=0.8)
    return f"Did you mean {close[0]}?" if close else ""


def _not_in_std(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> Said:
    space, name = match[1], match[2]
    if rest is None:
        return _host_function(match, one, line, rest)
    header = STD.get(name)
    if header and _there(f"cuda/std/{header}"):
        if space == "std":
            return f"Use cuda::std::{name} instead of std::{name}, and include <cuda/std/{header}>"
        return About(f"cuda::std::{name}", f"needs #include <cuda/std/{header}>")
    if space == "std" and name in _STD_OF_THE_HOST:
        used = _STD_OF_THE_HOST[name]
        more = f"use {used}, which is built in" if used else "kernels take pointers and sizes instead"
        return About(f"std::{name}", f"is host code: {more}")
    return ""


def _host_function(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    if rest is None:
        return _OF_LIBRARIES.get(_library(one.file), "")
    if _MAIN.search(line):
        return _MAIN_IS_OF_THE_HOST
    if re.search(r"<<<|\bcuda[A-Z]\w*\s*\(|\bstd::(vector|string|map|cout|cerr)\b", _body(rest)):
        return f"Delete the function that launches kernels or uses host libraries: it is host code; {_FROM_PYTHON}"
    return f"Mark functions that kernels call with __device__, or compile with {DEFAULT_DEVICE}"


def _body(lines: Sequence[str]) -> str:
    """Return the text of the function that starts `lines`, up to its closing brace."""
    text = "\n".join(lines)
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "}" and depth <= 0:
            return text[:at]
    return text


def _host_variable(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    if rest is None:
        return ""
    if re.search(r"\btexture\s*<", line):
        return "Pass the kernel a cudaTextureObject_t: texture references were removed in CUDA 12"
    if wrong := re.match(r"\s*(_?global_?)\s+void\b", line):
        return _INSTEAD["_global_"] + f", instead of {wrong[1]}"
    if re.match(r"\s*dim3\b", line):
        return "Delete the dim3: grid and block are arguments of the launch, kernel.launch(stream, grid=..., block=...)"
    if re.match(r"\s*(def|import|from|class|@\w+)\b[^;{]*$", line):
        return "This is Python, but NVRTC compiles CUDA C++"
    if "__global__" in line:
        return ""  # a consequence of an unknown parameter type
    return "Mark variables that kernels use with __device__, __constant__ or constexpr"


def _shared_array(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    if "__shared__" not in line or "extern" in line:
        return ""
    return (
        "The size of a __shared__ array must be a constant; if it is known only at launch, "
        "declare extern __shared__ float s[]; and launch with shared=BYTES"
    )


def _namespace(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    for pattern, header in _NAMESPACES:
        if used := pattern.search(line):
            if "{}" not in header:
                return header
            name = STD.get(used[1], "") if "std" in header else used[1].removesuffix("_ref")
            return f"Add #include <{header.format(name)}>" if name else ""
    return ""


def _device_launch(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    return "Launch the kernel from Python: kernels cannot launch kernels here, as CUDA's device runtime is not linked"


def _c_linkage(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    name = match[1]
    return (
        f'Rename {name}, or delete its extern "C", which is not needed: another function, perhaps a CUDA built-in, '
        'has that name, and extern "C" does not allow overloads'
    )


def _cub(match: re.Match[str], one: Diagnostic, line: str, rest: Rest) -> str:
    return "Include only the headers that you use instead of <cub/cub.cuh>, such as <cub/block/block_reduce.cuh>"


_RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str], Diagnostic, str, Rest], Said]]] = [
    (re.compile(r'(?:could not|cannot) open source file "([^"]+)"'), _missing),
    (re.compile(r'identifier "([^"]+)" is undefined'), _undefined),
    (re.compile(r'namespace "(std|cuda::std)[\w:]*" has no member (?:class )?"([^"]+)"'), _not_in_std),
    (re.compile(r"function without execution space annotations"), _host_function),
    (re.compile(r"variable without memory space annotations"), _host_variable),
    (re.compile(r"incomplete type \"[^\"]*\[\]\" is not allowed|expression must have a constant value"), _shared_array),
    (re.compile(r"name must be a namespace name|name followed by \"::\" must be"), _namespace),
    (re.compile(r"device-side kernel launch could not be processed"), _device_launch),
    (re.compile(r'more than one instance of overloaded function "([^"]+)" has "C" linkage'), _c_linkage),
    (re.compile(r"Including <cub/cub\.cuh> is not supported"), _cub),
]
