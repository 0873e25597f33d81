"""Values loaded from memory that was never written: reported at the load's line once they are used, not if they are
discarded. Each kernel discards the value if ``uses`` is 0, and uses it otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit

SOURCE = r"""
#define CELLS __shared__ int s[64]; const int t = threadIdx.x; if (t < 31) s[t] = x[t]; __syncthreads();
extern "C" __global__ void selected(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = t < 31 + uses ? v : -1;
}
extern "C" __global__ void masked(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = (v & (t < 31 + uses ? -1 : 0)) - (t == 31);
}
extern "C" __global__ void compared(const int* x, int* y, int uses) {
    CELLS
    const bool low = *(volatile int*)&s[t] < 100;  // READ
    const bool here = t < 31 + uses;
    y[t] = (here & low) ? x[t] : -1;
}
extern "C" __global__ void branched(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = -1;
    if (t < 31 + uses) y[t] = v;
}
extern "C" __global__ void decided(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = -1;
    if (t < 31 + uses && v < 100) atomicAdd(&y[t], x[t] + 1);
}
extern "C" __global__ void printed(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = t < 31 ? x[t] : -1;
    if (t >= 30 && t < 31 + uses) printf("%d\n", v);
}
extern "C" __global__ void addressed(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = -1;
    if (t < 31 + uses) y[t] = x[v & 31];
}
extern "C" __global__ void added(const int* x, int* y, int uses) {
    CELLS
    const int v = *(volatile int*)&s[t];  // READ
    y[t] = -1;
    if (t < 31 + uses) atomicAdd(&y[t], v + 1);
}
// through shared memory, to another thread
extern "C" __global__ void passed(const int* x, int* y, int uses) {
    CELLS
    __shared__ int other[64];
    other[63 - t] = s[t] ^ 5;  // READ
    __syncthreads();
    const int v = ((volatile int*)other)[63 - t] ^ 5;
    y[t] = t < 31 + uses ? v : -1;
}
extern "C" __global__ void shuffled(const int* x, int* y, int uses) {
    CELLS
    const int v = __shfl_xor_sync(~0u, s[t ^ 1], 1);  // READ
    y[t] = t < 31 + uses ? v : -1;
}
// through local memory
extern "C" __global__ void kept(const int* x, int* y, int uses) {
    CELLS
    int local[8];
    for (int i = 0; i < 8; ++i) local[i] = ((volatile int*)s)[t];  // READ
    const int v = local[x[t] & 7];
    y[t] = t < 31 + uses ? v : -1;
}
// the bytes of a word are put together
extern "C" __global__ void packed(const int* x, int* y, int uses) {
    __shared__ unsigned char s[128];
    const int t = threadIdx.x;
    if (t < 31) for (int i = 0; i < 4; ++i) s[4 * t + i] = x[t] >> (8 * i);
    __syncthreads();
    int v = 0;
    for (int i = 0; i < 4; ++i) v |= ((volatile unsigned char*)s)[4 * t + i] << (8 * i);  // READ
    y[t] = t < 31 + uses ? v : -1;
}
// global memory: only the first 31 elements of y have a value
extern "C" __global__ void global(const int* x, int* y, int uses) {
    const int t = threadIdx.x;
    if (t < 31) y[t] = x[t];
    __syncthreads();
    const int v = *(volatile int*)&y[t];  // READ
    y[t] = t < 31 + uses ? v : -1;
}
extern "C" __global__ void predicated(const int* x, int* y, int uses) {
    CELLS
    int v = -1;
    asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 40; @p ld.shared.b32 %0, [%2]; }"  // READ
                 : "+r"(v) : "r"(t), "r"((unsigned)__cvta_generic_to_shared(&s[t])));
    y[t] = t < 31 + uses ? v : -1;
}
extern "C" __global__ void combined(const int* x, int* y, int uses) {
    CELLS
    int v;
    asm volatile("{ .reg .pred p, q; .reg .b32 z; setp.lt.s32 p, %1, %3; ld.shared.b32 z, [%2];\n"  // READ
                 "setp.lt.and.s32 q, z, 100, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(v) : "r"(t), "r"((unsigned)__cvta_generic_to_shared(&s[t])), "r"(31 + uses));
    y[t] = v ? x[t] : -1;
}
"""
NAMES = [line.split("void ")[1].split("(")[0] for line in SOURCE.splitlines() if "__global__" in line]


def run(name, uses):
    x = np.arange(32, dtype=np.int32)
    with cudakit.Device("sim", fresh=True) as device:
        kernel = device.compile(source=SOURCE, name="loads.cu")[name]
        y = device.empty(32, np.int32)
        kernel.launch(device.default_stream, grid=1, block=32, args=(device.array(x), y, uses))
        device.synchronize()
        return y.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_discarded_is_not_reported(name):
    assert run(name, 0).tolist() == [*range(31), -1]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_used_is_reported_at_its_load(name):
    lines = SOURCE.splitlines()
    start = next(number for number, text in enumerate(lines) if f"void {name}(" in text)
    line = next(number for number, text in enumerate(lines[start:], start + 1) if "// READ" in text)
    with pytest.raises(cudakit.DeviceFault) as caught:
        run(name, 1)
    report = caught.value.report
    assert report.kind == "uninitialised read"
    assert report.places[0].line == line
    assert report.address is not None
