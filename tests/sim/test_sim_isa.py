"""Ordinary CUDA C++ runs on the simulated device: complete kernels, compared with numpy."""

from __future__ import annotations

import ctypes
import math
import random
import re
import struct
import sys
from functools import lru_cache

import numpy as np
import pytest
from simdevice import CheckedDevice

from cudakit import Device
from cudakit.sim.instructions.printf import formatted
from cudakit.sim.lockstep.report import KernelFault

LANGUAGE = r"""
typedef unsigned long long u64;
struct S { int a; double b; char c[13]; short d; };
struct Big { float v[64]; };
__device__ __noinline__ S make(S s, int k) { s.a += k; s.b *= 2; s.c[k % 13] = k; s.d = -s.d; return s; }
__device__ __noinline__ Big shifted(Big b, int i) { b.v[i % 64] += 1; return b; }
__device__ __noinline__ float4 four(float x) { return make_float4(x, x + 1, x + 2, x + 3); }
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ __noinline__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__device__ int counter() { static int count = 5; return atomicAdd(&count, 1); }

__global__ void structs(S* s, Big* b, float4* f) {
    int i = threadIdx.x;
    s[i] = make(s[i], i);
    b[i] = shifted(b[i], i + 60);
    f[i] = four(i);
}
__global__ void by_value(S s, Big b, int n, S* o) {
    o[threadIdx.x] = s;
    o[threadIdx.x].b = b.v[n + threadIdx.x];
}
__global__ void recursion(int* o) { o[threadIdx.x] = fib(threadIdx.x % 10) + even(threadIdx.x) * 100; }
__global__ void function_static(int* o) { atomicAdd(o, counter()); }
__global__ void local_array(int* o, int n) {
    int a[32];
    for (int i = 0; i < 32; i++) a[i] = i * i;
    for (int i = 0; i < n; i++) a[(a[i & 31] + i) & 31] += i;
    o[threadIdx.x] = a[(n + threadIdx.x) & 31];
}
template <class F> __device__ int applied(F f, int x) { return f(x); }
__global__ void lambdas(int* o) {
    int k = o[threadIdx.x];
    auto times = [=](int x) { return x * k; };
    auto add = [&](int x) { k += x; return k; };
    auto add_float = [&](float x) { k += x; return k; };
    o[threadIdx.x] = applied(times, threadIdx.x) + add(2) + add_float(3.7f);
}
__global__ void switched(int* o) {
    int i = threadIdx.x;
    switch (o[i]) {
        case 0: o[i] = 3; break;
        case 1: o[i] = 4; break;
        case 2: o[i] = 5;
        case 3: o[i] += 6; break;
        case 4: o[i] = 7; break;
        case 5: o[i] *= 8; break;
        case 6: o[i] = (int)(100 * sinf(o[i])); break;
        default: o[i] = 10;
    }
}

__constant__ int table[4] = {1, 2, 3, 4};
__device__ int numbers[3] = {7, 8, 9};
__device__ int* pointers[2] = {numbers, numbers + 2};
__constant__ int* constant_pointer = &numbers[1];
__device__ const char* names[2] = {"one", "two"};
__device__ double doubles[2] = {1.5, -2};
__device__ float4 vector4 = {1, 2, 3, 4};
struct Node { int a; const int* p; short s; };
__device__ Node nodes[2] = {{1, numbers, 3}, {4, table + 1, 6}};
__device__ __align__(64) char letters[5] = {'a'};
__device__ bool flag = true;
__device__ long long negative = -5;
__global__ void initialised(long long* o) {
    int i = threadIdx.x;
    o[0] = table[i & 3]; o[1] = *pointers[1]; o[2] = *constant_pointer; o[3] = names[1][1]; o[4] = doubles[1] * 2;
    o[5] = vector4.z; o[6] = *nodes[1].p; o[7] = nodes[0].p[2]; o[8] = nodes[1].s; o[9] = letters[0] + letters[1];
    o[10] = flag; o[11] = negative; o[12] = (u64)letters % 64;
}

__global__ void heap(int* o, int** kept) {
    int n = threadIdx.x + 1;
    int* p = (int*)malloc(4 * n);
    for (int i = 0; i < n; i++) p[i] = i;
    int s = 0;
    for (int i = 0; i < n; i++) s += p[i];
    free(p);
    S* made = new S();
    int* list = new int[4];
    list[n & 3] = n;
    o[threadIdx.x] = s + made->a + list[n & 3];
    delete made;
    delete[] list;
    free(nullptr);
    if (threadIdx.x == 0) { *kept = new int(42); o[32] = malloc(1 << 30) == nullptr; }
}
__global__ void heap_later(int* o, int** kept) { o[0] = **kept; delete *kept; }
__global__ void heap_twice(int* o) { int* p = (int*)malloc(16); *p = 1; o[0] = *p; free(p); free(p); }
__global__ void heap_inside(int* o) { int* p = (int*)malloc(16); *p = 1; o[0] = *p; free(p + 1); }
__global__ void heap_foreign(int* o) { free(o); }
__global__ void heap_beyond(int* o) { int* p = (int*)malloc(16); o[0] = p[4 + o[1]]; free(p); }
__global__ void heap_after(int* o) { int* p = (int*)malloc(16); *p = 3; free(p); o[0] = *(volatile int*)p; }

__global__ void prints(int n, double d, const char* null) {
    printf("%d %i %u %x %X %o %c %s|", n, n, n, n, n, n, 65, "text");
    printf("%f %e %E %g %G %a %A %.3a %.3a %12.1a|", d, d, d, d, d, d, 1.5, 0.0, d, -1.97);
    printf("%p %p %%|%5d|%-5d|%05d|%+d|% d|%#x|%#o|", (void*)16, null, n, n, 7, n, n, 255, 8);
    printf("%.3f|%10.3e|%*d|%.*f|%-*d|%.5d|%10s|%.2s|%-8sx|", d, d, 8, n, 2, d, 6, n, 42, "right", "cut", "left");
    printf("%lld %llu %hd %hhd %hu %ld %zu %+u %#x %5c|\n", -(1LL << 40), 1ULL << 63, 70000, 300, 70000, 5L, sizeof(n),
           3, 0, 'z');
}
__global__ void asserts(int n) { assert(n > 0 && "positive"); }
__global__ void traps(int n) { if (n == 3) __trap(); }
__global__ void breaks(int n) { if (threadIdx.x == n) __brkpt(); }
__global__ void timing(u64* o) {
    u64 a = clock64(), g, h;
    unsigned c = clock();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g));
    __nanosleep(100);
    while (clock64() - a < 10000) {}
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(h));
    o[0] = clock64() - a >= 10000; o[1] = h > g; o[2] = clock() != c;
}
__global__ void spaces(int* o) {
    __shared__ int s[4];
    int l = threadIdx.x;
    int* p = threadIdx.x % 3 == 0 ? s + 1 : threadIdx.x % 3 == 1 ? &l : o + 128;
    if (threadIdx.x == 0) s[1] = 0;
    __syncthreads();
    atomicAdd(threadIdx.x % 3 == 1 ? o + 129 : p, 1);
    if (threadIdx.x % 3 == 1) *p = -7;
    int kinds = __isShared(p) + 2 * __isGlobal(p) + 4 * __isLocal(p) + 8 * __isConstant(table) + 16 * __isGlobal(table);
    o[threadIdx.x] = kinds + 100 * (l == -7);
    __syncthreads();
    if (threadIdx.x == 0) o[130] = s[1];
}
__global__ void grid_constant(const __grid_constant__ S s, int* o) {
    const S* p = &s;
    o[threadIdx.x] = p->a + p->c[threadIdx.x % 13];
}
extern __shared__ double dynamic[];
__global__ void dynamic_shared(double* o) {
    dynamic[threadIdx.x] = o[threadIdx.x];
    __syncthreads();
    o[threadIdx.x] = dynamic[blockDim.x - 1 - threadIdx.x];
}
__global__ void __launch_bounds__(128, 4) wide_integers(long long* l, u64* q) {
    int i = threadIdx.x;
    l[i] = l[i] / (l[i + 32] | 1) + l[i] % (l[i + 32] | 1) + __mul64hi(l[i], l[i + 32]) + __clzll(l[i])
        + __popcll(l[i]);
    q[i] = q[i] / (q[i + 32] | 1) + q[i] % (q[i + 32] | 1) + __umul64hi(q[i], q[i + 32]);
    __int128 a = (__int128)l[i + 32] * l[i + 64];
    l[i + 64] = (long long)(a >> 64) + (long long)(a / (l[i + 32] | 1));
}
"""
OPTIONS = {"optimised": ("--device-int128",), "debug": ("--device-int128", "-G")}


@lru_cache
def language(kind):
    return CheckedDevice(LANGUAGE, name="language.cu", options=OPTIONS[kind])


@pytest.fixture(params=list(OPTIONS))
def device(request):
    """The same kernels compiled normally, and for a debugger: all variables in local memory, and extra sections."""
    return language(request.param)


S = np.dtype([("a", "i4"), ("b", "f8"), ("c", "i1", 13), ("d", "i2")], align=True)


def structs(count):
    rng = np.random.default_rng(5)
    out = np.zeros(count, S)
    out["a"], out["b"] = rng.integers(-1000, 1000, count), rng.standard_normal(count)
    out["c"], out["d"] = rng.integers(-100, 100, (count, 13)), rng.integers(-100, 100, count)
    return out


def test_structs_by_value_and_returned(device):
    s, big, four = structs(32), np.random.default_rng(6).random((32, 64), np.float32), np.zeros((32, 4), np.float32)
    want, lanes, shifted = s.copy(), np.arange(32), big.copy()
    want["a"] += lanes.astype(np.int32)
    want["b"] *= 2
    want["c"][lanes, lanes % 13] = lanes
    want["d"] *= -1
    shifted[lanes, (lanes + 60) % 64] += 1
    device.launch("structs", 1, 32, s, big, four)
    assert all((s[name] == want[name]).all() for name in S.names)
    assert (big == shifted).all()
    assert (four == lanes[:, None] + np.arange(4)).all()


def test_structs_as_kernel_parameters(device):
    s, big, out = structs(1), np.arange(64, dtype=np.float32), np.zeros(16, S)
    device.launch("by_value", 1, 16, s.tobytes(), big.tobytes(), 40, out)
    assert (out["b"] == np.arange(40, 56)).all()
    assert (out["a"] == s["a"]).all()
    assert (out["c"] == s["c"]).all()
    sums = np.zeros(16, np.int32)
    device.launch("grid_constant", 1, 16, s.tobytes(), sums)
    assert (sums == s["a"][0] + s["c"][0][np.arange(16) % 13]).all()


def test_recursion_and_function_statics(device):
    out = np.zeros(32, np.int32)
    device.launch("recursion", 1, 32, out)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    assert out.tolist() == [fib[i % 10] + 100 * (i % 2 == 0) for i in range(32)]
    total = np.zeros(1, np.int32)
    device.launch("function_static", 2, 32, total)
    start = getattr(device, "counted", 5)
    device.counted = start + 64
    assert total[0] == sum(range(start, start + 64))


def test_local_arrays_lambdas_and_switches(device):
    out = np.zeros(32, np.int32)
    device.launch("local_array", 1, 32, out, 45)
    a = [i * i for i in range(32)]
    for i in range(45):
        a[(a[i & 31] + i) & 31] += i
    assert out.tolist() == [a[(45 + t) & 31] for t in range(32)]
    values = np.arange(-5, 27, dtype=np.int32)
    out = values.copy()
    device.launch("lambdas", 1, 32, out)
    assert (
        out == np.arange(32) * values + (values + 2) + np.trunc((values + 2).astype(np.float32) + np.float32(3.7))
    ).all()
    out = np.arange(32, dtype=np.int32) % 9
    want = {0: 3, 1: 4, 2: 11, 3: 9, 4: 7, 5: 40, 6: int(100 * math.sin(6)), 7: 10, 8: 10}
    wanted = [want[v] for v in out.tolist()]
    device.launch("switched", 1, 32, out)
    assert out.tolist() == wanted


def test_initialised_variables_hold_their_values_and_addresses(device):
    out = np.zeros(13, np.int64)
    device.launch("initialised", 1, 1, out)
    assert out.tolist() == [1, 9, 8, ord("w"), -4, 3, 2, 9, 6, ord("a"), 1, -5, 0]


def test_the_device_heap(device):
    out, kept = np.zeros(33, np.int32), np.zeros(1, np.uint64)
    device.launch("heap", 1, 32, out, kept)
    n = np.arange(1, 33)
    assert (out[:32] == n * (n - 1) // 2 + n).all()
    assert out[32] == 1  # more than the heap's size: returns a null pointer
    live = [a for a in device.space.allocations() if a.kind == "heap"]
    assert [a.address for a in live] == kept.tolist()
    device.launch("heap_later", 1, 1, out, kept)
    assert out[0] == 42
    assert not any(a.kind == "heap" for a in device.space.allocations())


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("heap_twice", "double free"),
        ("heap_inside", "invalid free"),
        ("heap_foreign", "invalid free"),
        ("heap_beyond", "out of bounds"),
        ("heap_after", "use after free"),
    ],
)
def test_mistakes_with_the_heap_are_reported(device, kernel, kind):
    with pytest.raises(KernelFault) as caught:
        device.launch(kernel, 1, 1, np.zeros(2, np.int32))
    assert caught.value.report.kind == kind
    assert ("malloc() in the kernel at" in str(caught.value.report)) == (kernel != "heap_foreign")
    assert "language.cu" in str(caught.value.report)


def test_printf_formats_as_c_does(device):
    device.printed.clear()
    device.launch("prints", 1, 1, -7, 3.14159265, 0)
    wanted = (
        "-7 -7 4294967289 fffffff9 FFFFFFF9 37777777771 A text|"
        "3.141593 3.141593e+00 3.141593E+00 3.14159 3.14159 0x1.921fb53c8d4f1p+1 0X1.8P+0 "
        "0x0.000p+0 0x1.922p+1    -0x2.0p+0|"
        "0x10 (nil) %|   -7|-7   |00007|-7|-7|0xff|010|"
        "3.142| 3.142e+00|      -7|3.14|-7    |00042|     right|cu|left    x|"
        "-1099511627776 9223372036854775808 4464 44 4464 5 4 3 0     z|\n"
    )
    d = 3.14159265
    assert "".join(device.printed) == wanted.replace("0x1.921fb53c8d4f1p+1", d.hex())


PRINTS = r"""
__device__ const char in_global[] = "global";
__constant__ char in_constant[] = "constant";
__global__ void strings(const char* given) {
    char own[8]; __shared__ char both[8];
    for (int i = 0; i < 8; i++) { own[i] = i < 5 ? 'a' + i + threadIdx.x : 0; both[i] = i < 6 ? 'z' - i : 0; }
    printf("%s %s %s %s %s %s|", "text", in_global, in_constant, own, both, given);
}
__global__ void results(int* out, const char* null) {
    out[0] = printf("none|");
    out[1] = printf("%d %f %s|", 1, 2.0, "three");
    out[2] = printf("%*.*f %%|", 9, 2, 2.0);
    out[3] = printf(null);
}
__global__ void odd(int n) { printf("%n %k %y %5! %d %", n); }
__global__ void many() {
    printf("%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d %d %5.1f %%|",
           1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4.0);
}
__global__ void beyond(const char* p) { printf("%s", p); }
"""


@pytest.fixture(scope="module")
def prints():
    return CheckedDevice(PRINTS, name="prints.cu")


def printed(device, *launch):
    device.printed.clear()
    device.launch(*launch, checks=frozenset())
    return "".join(device.printed)


def test_printf_reads_strings_of_every_state_space(prints):
    given = np.frombuffer(b"given\0", np.uint8).copy()
    text = printed(prints, "strings", 1, 2, given)
    assert text == "".join(f"text global constant {own} zyxwvu given|" for own in ("abcde", "bcdef"))


def test_printf_returns_the_number_of_its_arguments(prints):
    out = np.zeros(4, np.int32)
    assert printed(prints, "results", 1, 1, out, 0) == "none|1 2.000000 three|     2.00 %|"
    assert out.tolist() == [0, 3, 3, -2]


def test_printf_prints_unknown_conversions_as_they_are(prints):
    assert printed(prints, "odd", 1, 1, 7) == "%n %k %y %5! 7 %"


def test_printf_has_at_most_32_arguments(prints):
    assert printed(prints, "many", 1, 1) == "12345678901234567890123456789012 %d %5.1f %|"


def test_printf_of_a_string_without_an_end_is_reported(prints):
    with pytest.raises(KernelFault, match=r"printf or assert reads 1 byte") as caught:
        prints.launch("beyond", 1, 1, np.full(16, 65, np.uint8))
    assert caught.value.report.kind == "out of bounds"


@pytest.mark.skipif(sys.platform == "win32", reason="its C library prints some numbers in another way")
def test_printf_converts_numbers_as_the_c_library_does():
    library, drawn, buffer = ctypes.CDLL(None), random.Random(11), ctypes.create_string_buffer(1000)
    integers = (0, 1, -1, 7, 255, 70000, -(1 << 31), (1 << 31) - 1, -(1 << 63), (1 << 63) - 1)
    floats = (0.0, -0.0, 1.0, -1.5, 3.14159, 1e-7, 123456789.0, 1e300, 5e-324, math.inf, -math.inf, 0.1)
    for _ in range(3000):
        flags = "".join(flag for flag in "-+ #0" if drawn.random() < 0.25)
        width = drawn.choice(("", "", "1", "9", "24", "*"))
        digits = drawn.choice(("", "", ".", ".0", ".1", ".7", ".*"))
        kind, length = drawn.choice("diouxXeEfFgGaAc"), ""
        if kind in "diouxX":
            length = drawn.choice(("", "hh", "h", "l", "ll", "z"))
        if kind == "c":
            flags, digits = flags.replace("0", "").replace("#", ""), ""
        spec = f"<%{flags}{width}{digits}{length}{kind}>"
        # glibc fills %0*f of a negative width with zeros on the right
        stars = [drawn.randint(0 if kind in "eEfFgGaA" else -12, 12) for _ in range(spec.count("*"))]
        if kind in "eEfFgGaA":
            value = drawn.choice(floats)
            argument, last = ctypes.c_double(value), struct.pack("<d", value)
        else:
            value = drawn.choice(integers) if kind != "c" else drawn.randint(33, 126)
            bits = 64 if length in ("l", "ll", "z") else 32
            value &= (1 << bits) - 1
            argument, last = ctypes.c_uint64(value), value.to_bytes(bits // 8, "little")
        size = library.snprintf(buffer, 1000, spec.encode(), *map(ctypes.c_int, stars), argument)
        data = b"".join(struct.pack("<i", star) for star in stars)
        data += bytes(-len(data) % len(last)) + last
        text, count = formatted(spec, 0, lambda at, size, data=data: data[at : at + size], str)
        assert text == buffer.raw[:size].decode(), (spec, stars, value)
        assert count == len(stars) + 1


def test_assert_and_trap(device):
    device.launch("asserts", 1, 32, 1)
    with pytest.raises(KernelFault) as caught:
        device.launch("asserts", (1, 2, 3), (4, 2, 2), -1)
    wanted = r"language.cu:\d+: void asserts\(int\): block: \[0,0,0\], thread: \[0,0,0\] Assertion `n > 0 && "
    assert re.search(wanted + r'"positive"` failed\.', str(caught.value))
    device.launch("traps", 1, 1, 2)
    with pytest.raises(KernelFault, match="the kernel stopped itself"):
        device.launch("traps", 1, 1, 3)


def test_a_breakpoint_stops_the_kernel(device):
    device.launch("breaks", 1, 32, 32)
    with pytest.raises(KernelFault, match=r"breakpoint \(__brkpt\(\)\), and no debugger") as caught:
        device.launch("breaks", 1, 32, 3)
    report = caught.value.report
    assert (report.kind, report.thread, report.instruction) == ("trap", (3, 0, 0), "brkpt;")


def test_clocks_run(device):
    out = np.zeros(3, np.uint64)
    device.launch("timing", 1, 1, out)
    assert out.tolist() == [1, 1, 1]


CLOCKS = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<9>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [n];
    mov.u64 %rd2, %clock64;
    add.u32 %r2, %r1, 1;
    add.u32 %r2, %r2, 1;
    mov.u64 %rd3, %clock64;
again:
    nanosleep.u32 1000;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra again;
    mov.u64 %rd4, %globaltimer;
    mov.u32 %r3, %clock;
    mov.u32 %r4, %clock_hi;
    cvt.u64.u32 %rd5, %r3;
    st.global.v2.u64 [%rd1], {%rd2, %rd3};
    st.global.v2.u64 [%rd1+16], {%rd4, %rd5};
    st.global.u32 [%rd1+32], %r4;
    ret;
}
"""


@pytest.mark.parametrize("warps", [1, 4])
def test_clocks_count_the_instructions_of_the_warps(warps):
    device = CheckedDevice(CLOCKS, ptx=True)
    out = np.zeros(5, np.uint64)
    device.launch("k", 1, 32 * warps, out, 10, checks=frozenset())
    first, second, timer, low, high = out.tolist()
    # the instructions from one read to the next, the second read included
    assert (second - first, timer - second, low - timer) == (3 * warps, 41 * warps, warps)
    assert high == 0


def test_two_loops_that_wait_for_the_clock_end():
    device = CheckedDevice(
        """__global__ void k(long long* out) {
            long long start = clock64();
            if (threadIdx.x < 32) { while (clock64() - start < 30000000) {} }
            else { while (clock64() - start < 30000000) __nanosleep(100); }
            out[threadIdx.x] = clock64() - start;
        }""",
        name="waits.cu",
    )
    out = np.zeros(64, np.int64)
    device.launch("k", 1, 64, out)
    assert (out >= 30000000).all()


def test_clocks_increase_from_block_to_block_and_in_loops():
    device = CheckedDevice(
        """__global__ void k(unsigned long long* out) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            for (int k = 0; k < 4; k++) {
                out[4 * i + k] = clock64();
                if (threadIdx.x % 3 == 1) out[4 * i + k] += 0 * clock64();
            }
        }""",
        name="clocks.cu",
    )
    out = np.zeros((40, 4), np.uint64)
    device.launch("k", 5, 8, out)
    assert (np.diff(out.astype(np.int64), axis=1) > 0).all()


def test_state_spaces_of_generic_pointers(device):
    out = np.zeros(131, np.int32)
    device.launch("spaces", 1, 96, out)
    # bit 0 shared, 1 global, 2 local; table is constant (8) and not global (16)
    assert out[:96].tolist() == [[9, 112, 10][i % 3] for i in range(96)]
    assert out[128:].tolist() == [32, 32, 32]


def test_dynamic_shared_memory(device):
    values = np.random.default_rng(3).random(64)
    out = values.copy()
    device.launch("dynamic_shared", 1, 64, out, shared=64 * 8)
    assert (out == values[::-1]).all()


def test_wide_integer_division_and_128_bits(device):
    rng = np.random.default_rng(4)
    signed = rng.integers(-(1 << 62), 1 << 62, 96)
    unsigned = rng.integers(0, 1 << 63, 64, np.uint64)
    unsigned[32:48] >>= np.uint64(40)
    out, got = signed.copy(), unsigned.copy()
    device.launch("wide_integers", 1, 32, out, got)

    def cut(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    def wrap(value):
        return (value + (1 << 63)) % (1 << 64) - (1 << 63)

    for i in range(32):
        a, b, c = (int(signed[i + k]) for k in (0, 32, 64))
        quotient = cut(a, b | 1)
        bits = a % (1 << 64)
        want = quotient + (a - quotient * (b | 1)) + (a * b >> 64) + (64 - bits.bit_length()) + bin(bits).count("1")
        assert int(out[i]) == wrap(want)
        assert int(out[i + 64]) == wrap((b * c >> 64) + cut(b * c, b | 1))
        x, y = int(unsigned[i]), int(unsigned[i + 32])
        assert int(got[i]) == (x // (y | 1) + x % (y | 1) + (x * y >> 64)) % (1 << 64)


# Warps, barriers, atomics and memory, in C++ and in PTX ---------------------------------------------------------------

MACHINE = r"""
typedef unsigned long long u64;
extern "C" { __constant__ unsigned lookup_table[4] = {10, 20, 30, 40}; }
__global__ void warps(int* o, const int* in, u64* q) {
    int i = threadIdx.x, v = in[i], *r = o + i * 20, p;
    r[0] = __shfl_sync(~0u, v, 3); r[1] = __shfl_up_sync(~0u, v, 1); r[2] = __shfl_down_sync(~0u, v, 1, 8);
    r[3] = __shfl_xor_sync(~0u, v, 4, 16); r[4] = __all_sync(~0u, v < 90); r[5] = __any_sync(~0u, v == in[7]);
    r[6] = __ballot_sync(~0u, v & 1); r[7] = __match_any_sync(~0u, v & 3); r[8] = __match_all_sync(~0u, 5, &p) + p;
    r[9] = __reduce_add_sync(~0u, v); r[10] = __reduce_max_sync(~0u, v - 50);
    r[11] = __reduce_min_sync(~0u, (unsigned)v);
    r[12] = __reduce_xor_sync(~0u, v); r[13] = __uni_sync(~0u, i < 99); q[i] = __shfl_sync(~0u, q[i] * 3, 31 - i);
    if (i & 1) { r[14] = __activemask(); r[15] = __shfl_sync(0xaaaaaaaa, v, 5); }
    unsigned leader; int chosen;
    asm volatile("{ .reg .pred p; elect.sync %0|p, -1; selp.s32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen));
    r[16] = leader; r[17] = chosen;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(p)); r[18] = p;
    __syncwarp();
}
__global__ void barriers(int* o, const int* in) {
    int i = threadIdx.x;
    int a = __syncthreads_count(in[i] > 50), b = __syncthreads_and(in[i] < 90), c = __syncthreads_or(in[i] == 1000), d;
    asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 50; barrier.cta.red.popc.aligned.u32 %0, 6, 64, p; }"
        : "=r"(d) : "r"(in[i]));
    asm volatile("barrier.sync 3, 64;\nbar.sync %0, %1;\nbarrier.cta.sync.aligned 5;" :: "r"(4), "r"(64));
    if (i < 32) asm volatile("bar.arrive 2, 64;"); else asm volatile("bar.sync 2, 64;");
    o[i] = a + 100 * b + 1000 * c + 10000 * d;
}
__global__ void atoms(int* i, unsigned* u, u64* q, float* f, double* d, long long* l, unsigned short* h) {
    atomicAdd(i, 1); atomicSub(i + 1, 2); atomicMin(i + 2, -(int)threadIdx.x); atomicMax(i + 3, threadIdx.x);
    atomicAnd(i + 4, ~(1 << (threadIdx.x & 15))); atomicOr(i + 5, 1 << (threadIdx.x & 15));
    atomicXor(i + 6, threadIdx.x);
    atomicInc(u, 9); atomicDec(u + 1, 9); atomicAdd_block(u + 2, 3); atomicAdd_system(u + 3, 4);
    atomicAdd(q, 1ull << 33); atomicMax(q + 1, (u64)threadIdx.x << 40); atomicMin(l, -(long long)threadIdx.x << 40);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
    u[8 + threadIdx.x] = atomicExch(u + 4, threadIdx.x);
    q[8 + threadIdx.x] = atomicCAS(q + 2, threadIdx.x, threadIdx.x + 1);
    unsigned short old = atomicCAS(h, (unsigned short)5, (unsigned short)threadIdx.x);
    h[8 + threadIdx.x] = old;
    atomicAdd((float2*)(f + 2), make_float2(1, 2));
    float4 r = atomicAdd((float4*)(f + 4), make_float4(1, 2, 3, 4));
    f[8 + threadIdx.x] = r.z;
}
__global__ void vectors(unsigned* h, unsigned* g, u64* w, unsigned bf) {
    asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %1};" :: "l"(h), "r"(0x40003C00) : "memory");
    asm volatile("red.global.max.noftz.v4.bf16x2 [%0], {%1, %1, %2, %2};" :: "l"(g),
        "r"(bf + (threadIdx.x << 7)), "r"(bf) : "memory");
    asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(g + 4), "r"(0x3F803F80) : "memory");
    u64 lo, hi;
    asm volatile("{ .reg .b128 d, c, n; mov.b128 c, {%2, %3}; mov.b128 n, {%4, %3}; atom.global.cas.b128 d, [%5], c, n;"
        " mov.b128 {%0, %1}, d; }" : "=l"(lo), "=l"(hi)
        : "l"((u64)threadIdx.x), "l"(7ull), "l"((u64)threadIdx.x + 1), "l"(w) : "memory");
    w[4 + 2 * threadIdx.x] = lo; w[5 + 2 * threadIdx.x] = hi;
    asm volatile("{ .reg .b128 d, n; mov.b128 n, {%1, %1}; atom.global.exch.b128 d, [%2], n; mov.b128 {%0, _}, d; }"
        : "=l"(lo) : "l"((u64)threadIdx.x), "l"(w + 2) : "memory");
    w[80 + threadIdx.x] = lo;
}
__global__ void memory(unsigned* o, unsigned* g, const unsigned* __restrict__ k) {
    __shared__ __align__(32) unsigned s[64];
    unsigned a, b, c, d, i = threadIdx.x, at = (unsigned)__cvta_generic_to_shared(s);
    u64 policy, wide;
    s[i] = i; s[i + 32] = 100 + i;
    __syncthreads();
    unsigned* r = o + 16 * i;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, _, %2}, [%3+16];"
        : "=r"(a), "=r"(b), "=r"(c) : "l"(k + 4 * (i & 3)));
    r[0] = a; r[1] = b; r[2] = c;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+128];" : "=r"(a), "=r"(b) : "r"(at + 8 * (i & 7)));
    r[3] = a; r[4] = b;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 0.5;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(a) : "l"(k + i), "l"(policy));
    r[5] = a;
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.u32 [%0], %1, %2;"
        :: "l"(r + 6), "r"(a + 1), "l"(policy) : "memory");
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(wide) : "l"(k + 2 * (i & 7)));
    r[7] = wide >> 32;
    asm volatile("ld.mmio.relaxed.sys.global.u32 %0, [%1];" : "=r"(a) : "l"(k + 3));
    asm volatile("st.release.cta.global.u32 [%0], %1;" :: "l"(r + 8), "r"(a) : "memory");
    asm volatile("{ .reg .b128 x, y; ld.global.b128 x, [%1]; mov.b128 y, x; st.shared.b128 [%0], y; }"
        :: "r"(at + 16 * (i & 7)), "l"(k + 4 * (i & 7)) : "memory");
    __syncthreads();
    r[9] = s[i];
    asm volatile("prefetch.global.L2 [%0];\nprefetchu.L1 [%0];\n"
        "applypriority.global.L2::evict_normal [%0], 128;" :: "l"(k));
    asm volatile("ld.global.s8 %0, [%1];" : "=r"(a) : "l"((const char*)k + i));
    asm volatile("ld.const.u32 %0, [lookup_table+8];" : "=r"(b));
    asm volatile("{ .reg .u64 a; mov.u64 a, lookup_table; cvta.const.u64 a, a; ld.u32 %0, [a+4]; }" : "=r"(c));
    asm volatile("{ .shared .align 4 .b8 buffer[16]; .reg .u32 a; mov.u32 a, buffer+4; st.shared.u32 [a], 55;"
        " bar.warp.sync -1;"
        " ld.shared.u32 %0, [buffer+4]; }" : "=r"(d));
    r[10] = a; r[11] = b; r[12] = c; r[13] = d;
    asm volatile("ld.volatile.global.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(k + 2 * (i & 3)));
    r[14] = a + b;
    r[15] = 0;
    if (i == 0) asm volatile("discard.global.L2 [%0], 128;" :: "l"(g) : "memory");
    asm volatile("membar.cta;\nmembar.gl;\nmembar.sys;\nfence.sc.sys;\nfence.acq_rel.cluster;\nfence.proxy.async;\n"
        "nanosleep.u32 20;\npmevent 1;\ngriddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}
__global__ void simd(unsigned* o, const unsigned* a, const unsigned* b) {
    int i = threadIdx.x;
    unsigned* r = o + 10 * i;
    r[0] = __vabsdiffu4(a[i], b[i]); r[1] = __vsadu4(a[i], b[i]); r[2] = __vabsdiffs2(a[i], b[i]);
    r[3] = __vaddus4(a[i], b[i]); r[4] = __vcmpgtu4(a[i], b[i]); r[5] = __vmaxs2(a[i], b[i]);
    r[6] = __vsads4(a[i], b[i]);
    asm("vset4.s32.s32.lt.add %0, %1, %2, %3;" : "=r"(r[7]) : "r"(a[i]), "r"(b[i]), "r"(1000));
    asm("vadd4.u32.u32.u32.sat %0, %1, %2, %3;" : "=r"(r[8]) : "r"(a[i]), "r"(b[i]), "r"(0));
    asm("vsub2.s32.s32.s32.sat %0, %1, %2, %3;" : "=r"(r[9]) : "r"(a[i]), "r"(b[i]), "r"(0));
}
"""


@pytest.fixture(scope="module")
def machine():
    return CheckedDevice(MACHINE, name="machine.cu")


def signed(value):
    return (int(value) + (1 << 31)) % (1 << 32) - (1 << 31)


def test_warp_operations(machine):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 80, 32).astype(np.int32)
    out, wide = np.zeros((32, 20), np.int32), rng.integers(0, 1 << 60, 32, np.uint64)
    before = wide.copy()
    machine.launch("warps", 1, 32, out, values, wide)
    lane = np.arange(32)
    assert (out[:, 0] == values[3]).all()
    assert (out[:, 1] == values[np.maximum(lane - 1, 0)]).all()
    assert (out[:, 2] == values[np.where(lane % 8 == 7, lane, lane + 1)]).all()
    assert (out[:, 3] == values[lane ^ 4]).all()
    assert (out[:, 4] == 1).all()
    assert (out[:, 5] == 1).all()
    assert (out[:, 6] == signed(sum(1 << int(k) for k in np.flatnonzero(values & 1)))).all()
    assert out[:, 7].tolist() == [signed(sum(1 << k for k in range(32) if values[k] % 4 == v % 4)) for v in values]
    assert (out[:, 8] == 0).all()  # all ones, plus one
    assert (out[:, 9] == values.sum()).all()
    assert (out[:, 10] == values.max() - 50).all()
    assert (out[:, 11] == values.min()).all()
    assert (out[:, 12] == np.bitwise_xor.reduce(values)).all()
    assert (out[:, 13] == 1).all()
    assert (wide == (before * np.uint64(3))[::-1]).all()
    assert (out[1::2, 14] == signed(0xAAAAAAAA)).all()
    assert (out[1::2, 15] == values[5]).all()
    assert (out[:, 16] == 0).all()
    assert out[:, 17].tolist() == [1] + [0] * 31
    assert out[:, 18].tolist() == [signed((1 << k) - 1) for k in range(32)]


def test_barriers_of_every_form(machine):
    values = np.random.default_rng(1).integers(0, 100, 64).astype(np.int32)
    out = np.zeros(64, np.int32)
    machine.launch("barriers", 1, 64, out, values)
    over = int((values > 50).sum())
    assert (out == over + 100 * bool((values < 90).all()) + 10000 * over).all()


def test_atomics_of_every_operation(machine):
    i, u, q = np.zeros(8, np.int32), np.zeros(72, np.uint32), np.zeros(72, np.uint64)
    i[4] = -1
    f, d, words, h = np.zeros(72, np.float32), np.zeros(1), np.zeros(1, np.int64), np.zeros(72, np.uint16)
    h[0] = 5
    machine.launch("atoms", 1, 64, i, u, q, f, d, words, h)
    assert i[:7].tolist() == [64, -128, -63, 63, ~0xFFFF, 0xFFFF, 0]
    assert u[:4].tolist() == [64 % 10, (-64) % 10, 192, 256]
    assert sorted([*u[8:].tolist(), int(u[4])]) == sorted([0, *range(64)])
    assert q[:3].tolist() == [64 << 33, 63 << 40, 64]
    assert q[8:].tolist() == list(range(64))
    assert words[0] == -(63 << 40)
    assert f[:8].tolist() == [32, 0, 64, 128, 64, 128, 192, 256]
    assert sorted(f[8:].tolist()) == [3 * k for k in range(64)]
    assert d[0] == 16
    assert h[0] == 0
    assert h[8:].tolist() == [5, *[0] * 63]


def test_vector_and_wide_atomics(machine):
    h, g, w = np.zeros(2, np.uint32), np.zeros(8, np.uint32), np.zeros(112, np.uint64)
    w[1] = 7
    machine.launch("vectors", 1, 32, h, g, w, 0x3F803F80)
    assert h.view(np.float16).tolist() == [32, 64, 32, 64]
    best = 0x3F803F80 + (31 << 7)
    assert g[:4].tolist() == [best, best, 0x3F803F80, 0x3F803F80]
    assert g[4] == 0x42004200  # 32 in bf16
    assert w[:2].tolist() == [32, 7]
    assert w[4:68].reshape(32, 2).tolist() == [[k, 7] for k in range(32)]
    assert w[2:4].tolist() == [31, 31]
    assert w[80:].tolist() == [0, *range(31)]
    with pytest.raises(KernelFault) as caught:
        machine.launch("vectors", 1, 32, h, g, w.view(np.uint8)[8:].copy().view(np.uint64), 0)
    assert caught.value.report.kind == "out of bounds"


def test_loads_and_stores_of_every_kind(machine):
    k = np.random.default_rng(2).integers(0, 1 << 32, 64, np.uint32)
    out, gone = np.zeros((32, 16), np.uint32), np.ones(32, np.uint32)
    machine.launch("memory", 1, 32, out, gone, k)
    i = np.arange(32)
    shared = np.concatenate((i, i + 100))
    assert (out[:, :3] == k[(4 + 4 * (i & 3))[:, None] + [0, 1, 3]]).all()
    assert (out[:, 3:5] == shared[(32 + 2 * (i & 7))[:, None] + [0, 1]]).all()
    assert (out[:, 5] == k[:32]).all()
    assert (out[:, 6] == k[:32] + np.uint32(1)).all()
    assert (out[:, 7] == k[2 * (i & 7) + 1]).all()
    assert (out[:, 8] == k[3]).all()
    assert (out[:, 9] == k[:32]).all()
    assert (out[:, 10].view(np.int32) == k.view(np.int8)[:32]).all()
    assert (out[:, 11:14] == [30, 20, 55]).all()
    assert (out[:, 14] == k[2 * (i & 3)] + k[2 * (i & 3) + 1]).all()
    assert (gone == 0xFFFFFFFF).all()


def test_simd_video_instructions(machine):
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 1 << 32, 32, np.uint32) for _ in range(2))
    a[0], b[0], a[1], b[1] = 0, 0xFFFFFFFF, 0x80007FFF, 0x7FFF8000
    out = np.zeros((32, 10), np.uint32)
    machine.launch("simd", 1, 32, out, a, b)
    x, y = (v.view(np.uint8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    sx, sy = (v.view(np.int8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    hx, hy = (v.view(np.int16).reshape(-1, 2).astype(np.int64) for v in (a, b))

    def pack(parts, dtype):
        return np.ascontiguousarray(parts.astype(dtype)).view(np.uint32)[:, 0]

    assert (out[:, 0] == pack(np.abs(x - y), np.uint8)).all()
    assert (out[:, 1] == np.abs(x - y).sum(axis=1)).all()
    assert (out[:, 2] == pack(np.abs(hx - hy), np.uint16)).all()
    assert (out[:, 3] == pack(np.minimum(x + y, 255), np.uint8)).all()
    assert (out[:, 4] == pack((x > y) * 255, np.uint8)).all()
    assert (out[:, 5] == pack(np.maximum(hx, hy), np.int16)).all()
    assert (out[:, 6] == np.abs(sx - sy).sum(axis=1)).all()
    assert (out[:, 7] == 1000 + (sx < sy).sum(axis=1)).all()
    assert (out[:, 8] == pack(np.minimum(x + y, 255), np.uint8)).all()
    assert (out[:, 9] == pack(np.clip(hx - hy, -(1 << 15), (1 << 15) - 1), np.int16)).all()


REDUX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<8>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd2, %r1, 16, %rd1;
    ld.global.f32 %f1, [%rd2];
    redux.sync.max.f32 %f2, %f1, -1;
    redux.sync.min.abs.f32 %f3, %f1, -1;
    redux.sync.max.NaN.f32 %f4, %f1, -1;
    redux.sync.max.abs.NaN.f32 %f5, %f1, -1;
    st.global.v4.f32 [%rd2], {%f2, %f3, %f4, %f5};
    ret;
}
"""


def test_float_reductions_of_a_warp():
    """redux of .f32, an instruction of sm_100."""
    device = CheckedDevice(REDUX, ptx=True)
    values = np.random.default_rng(12).standard_normal(32).astype(np.float32)
    out = np.zeros((32, 4), np.float32)
    out[:, 0] = values
    device.launch("k", 1, 32, out)
    assert (out == [values.max(), np.abs(values).min(), values.max(), np.abs(values).max()]).all()
    out[:, 0] = values
    out[5, 0] = np.nan
    device.launch("k", 1, 32, out)
    others = np.delete(values, 5)
    assert (out[:, :2] == [others.max(), np.abs(others).min()]).all()
    assert np.isnan(out[:, 2:]).all()


CARRY = """.version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd2, %r1, 8, %rd1;
    setp.lt.u32 %p1, %r1, 40;
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
    and.b32 %r4, %r1, 1;
    sub.u32 %r5, 0, %r4;
    add.cc.u32 %r5, %r5, 1;
    @%p1 bra near;
    addc.u32 %r2, 100, 0;
    bra.uni done;
near:
    addc.u32 %r2, 0, 0;
done:
    sub.u32 %r5, 0, %r4;
    add.cc.u32 %r5, %r5, 1;
    @%p1 addc.u32 %r3, 0, 0;
    st.global.v2.u32 [%rd2], {%r2, %r3};
    ret;
}
"""


def test_the_carry_flag_survives_branches_and_guards():
    out = np.zeros((64, 2), np.uint32)
    CheckedDevice(CARRY, ptx=True).launch("k", 1, 64, out)
    lane = np.arange(64)
    carry = lane & 1
    assert (out[:, 0] == np.where(lane < 40, carry, 100 + carry)).all()
    assert (out[:, 1] == np.where(lane < 40, carry, 0)).all()


def test_what_kernels_leave_on_the_heap_is_the_contexts():
    source = """
    __global__ void take(int** p, int n) { *p = (int*)malloc(n); if (*p) **p = 7; }
    __global__ void give(int** p, int* o) { o[0] = **p; free(*p); }
    """
    with Device("sim", fresh=True) as device:
        module = device.compile(source=source, name="heap.cu")
        pointer, out = device.zeros(1, np.uint64), device.zeros(1, np.int32)
        module["take"].launch(device.default_stream, grid=1, block=1, args=(pointer, 4 << 20))
        first = pointer.numpy()[0]
        module["take"].launch(device.default_stream, grid=1, block=1, args=(pointer, 5 << 20))
        assert pointer.numpy()[0] == 0  # the heap has 8 MiB
        pointer.copy_from(np.array([first], np.uint64))
        module["give"].launch(device.default_stream, grid=1, block=1, args=(pointer, out))
        assert out.numpy()[0] == 7
        module["take"].launch(device.default_stream, grid=1, block=1, args=(pointer, 5 << 20))
        assert pointer.numpy()[0] != 0
        driver = device.context.driver
        assert any("memory of the device heap" in str(line) for line in driver.simAlive())
    assert any("memory of the device heap" in str(line) for line in driver.simLeaks())
