"""Calls by function pointers and virtual functions: their results, their reports, and the rules of ptxas for them."""

import numpy as np
import pytest

from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.ptx.ir import PtxError
from tests.simdevice import CheckedDevice, SimDevice

POINTERS = r"""
typedef float (*Op)(float, int);
typedef int (*Walk)(int, const int*);
__device__ float times(float x, int k) { return x * k; }
__device__ float plus(float x, int k) { return x + k; }
__device__ float loops(float x, int k) { for (int i = 0; i < k; ++i) x = x * x - 1; return x; }
__device__ float one(float x) { return x; }
__device__ Op table[] = {times, plus, loops};
__constant__ Op fixed[] = {plus, times, times};
__global__ void other() {}

extern "C" __global__ void pick(float* x, const int* which) {
    __shared__ Op shared[3];
    if (threadIdx.x < 3) shared[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float first = shared[which[i]](x[i], 3);
    x[i] = first + fixed[which[i]](1.0f, 2) + __shfl_xor_sync(0xffffffffu, first, 1);
}
extern "C" __global__ void address(Op* out, int which) { *out = which ? times : plus; }
extern "C" __global__ void argument(float* x, Op op) {
    x[threadIdx.x] = op(x[threadIdx.x], 3);  // called
}
extern "C" __global__ void wrong(float* x, int zero) {
    float (*f)(float) = one;
    Op op = zero ? times : (Op)f;
    x[threadIdx.x] = op(x[threadIdx.x], 3);  // wrong
}

__device__ int leaf(int i, const int* next) { return i; }
__device__ int follow(int i, const int* next);
__device__ Walk walks[] = {leaf, follow};
__device__ __noinline__ int follow(int i, const int* next) {
    return walks[next[i] >= 0](next[i] >= 0 ? next[i] : i, next) + 1;  // recursion
}
extern "C" __global__ void walk(int* out, const int* next) { out[threadIdx.x] = follow(threadIdx.x, next); }
"""


@pytest.fixture(scope="module")
def device():
    return CheckedDevice(POINTERS, name="pointers.cu")


def line_of(mark):
    return next(n for n, text in enumerate(POINTERS.splitlines(), 1) if text.endswith(f"// {mark}"))


def expected(x, which):
    looped = x.copy()
    for _ in range(3):
        looped = looped * looped - np.float32(1)
    first = np.choose(which, [x * 3, x + 3, looped])
    return first + np.choose(which, [3, 2, 2]) + first.reshape(-1, 2)[:, ::-1].ravel()


def test_each_lane_calls_its_own_function_from_tables_in_global_constant_and_shared_memory(device):
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, 128).astype(np.float32)
    which = rng.integers(0, 3, 128, dtype=np.int32)
    got = x.copy()
    device.launch("pick", 2, 64, got, which)
    np.testing.assert_array_equal(got, expected(x, which))


def test_the_instructions_of_a_divergent_call_are_those_of_each_function_once_per_warp(device):
    def counted(which):
        return device.launch("pick", 1, 32, np.ones(32, np.float32), np.broadcast_to(np.int32(which), 32).copy())

    one, two, both = counted(0), counted(1), counted(np.arange(32) % 2)
    assert one.divergent_branches == two.divergent_branches
    assert both.divergent_branches == one.divergent_branches + 2
    # each of the two calls runs both functions once; they are equally long, of n instructions
    extra = both.instructions - one.instructions
    assert extra == both.instructions - two.instructions
    assert extra % 2 == 0
    assert 4 <= extra // 2 <= 8
    assert both.mix["control"] - one.mix["control"] == 2  # the second function's return
    assert both.mix["warp"] == one.mix["warp"]


def test_a_pointer_that_one_kernel_stored_is_an_argument_of_another(device):
    for which, function in ((1, np.multiply), (0, np.add)):
        pointer, x = np.zeros(1, np.uint64), np.arange(40, dtype=np.float32)
        device.launch("address", 1, 1, pointer, which)
        device.launch("argument", 1, 40, x, int(pointer[0]))
        np.testing.assert_array_equal(x, function(np.arange(40), 3))


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        (0, "call of a null function pointer"),
        (1, "call of 0x1, which is not the address of a function of this module"),
        ("data", "which is not the address of a function of this module"),
        ("middle", "which is not the address of a function of this module"),
    ],
)
def test_a_call_of_what_is_not_a_function_is_reported_at_its_line(device, pointer, words):
    x, known = np.zeros(8, np.float32), np.zeros(1, np.uint64)
    device.launch("address", 1, 1, known, 0)
    value = {"middle": int(known[0]) + 4, "data": device.upload(x).address}.get(pointer, pointer)
    with pytest.raises(KernelFault) as caught:
        device.launch("argument", 1, 8, x, value)
    report = caught.value.report
    assert (report.kind, report.line, report.lanes) == ("invalid function pointer", line_of("called"), 8)
    assert words in report.detail


def test_a_call_of_a_function_with_other_parameters_names_it(device):
    x = np.ones(8, np.float32)
    device.launch("wrong", 1, 8, x, 1)
    np.testing.assert_array_equal(x, 3)
    with pytest.raises(KernelFault) as caught:
        device.launch("wrong", 1, 8, x, 0)
    assert (caught.value.report.kind, caught.value.report.line) == ("invalid function pointer", line_of("wrong"))
    assert caught.value.report.detail == (
        "call of one, which is a function with parameters of 4 bytes and a result of 4 bytes, called as one with "
        "parameters of 4 and 4 bytes and a result of 4 bytes"
    )


def test_recursion_through_pointers_uses_the_stack_up_to_its_limit(device):
    out, chain = np.zeros(64, np.int32), np.arange(-1, 63, dtype=np.int32)
    device.launch("walk", 1, 64, out, chain)
    # lane i follows i links and the last call adds one
    np.testing.assert_array_equal(out, np.arange(64) + 1)
    with pytest.raises(KernelFault, match=r"stack overflow: the call of follow at depth \d+") as caught:
        device.launch("walk", 1, 2, out, np.array([1, 0], np.int32))
    assert caught.value.report.line == line_of("recursion")


VIRTUAL = r"""
struct Shape {
    virtual __device__ float area(float scale) const = 0;
    virtual __device__ ~Shape() {}
};
struct Square : Shape {
    float a;
    __device__ Square(float a) : a(a) {}
    __device__ float area(float scale) const override { return scale * a * a; }
};
struct Circle : Shape {
    float r;
    __device__ Circle(float r) : r(r) {}
    __device__ float area(float scale) const override { return scale * 3 * r * r; }
};
struct Sum : Shape {
    Shape *left, *right;
    __device__ Sum(Shape* left, Shape* right) : left(left), right(right) {}
    __device__ float area(float scale) const override { return left->area(scale) + right->area(scale); }
    __device__ ~Sum() override { delete left; delete right; }
};
extern "C" __global__ void make(Shape** shapes) {
    const float t = threadIdx.x;
    Shape* made = nullptr;
    switch (threadIdx.x % 3) {
    case 0: made = new Square(t); break;
    case 1: made = new Circle(t); break;
    default: made = new Sum(new Sum(new Square(t), new Circle(1)), new Square(2));
    }
    shapes[threadIdx.x] = made;
}
extern "C" __global__ void areas(Shape** shapes, float* x) {
    x[threadIdx.x] = shapes[threadIdx.x]->area(2);  // area
}
extern "C" __global__ void remove(Shape** shapes) { delete shapes[threadIdx.x]; }

struct Function {  // like std::function
    float (*run)(const void*, float);
    char bytes[16];
    template <class F> __device__ Function(F f) {
        new (bytes) F(f);
        run = [](const void* self, float x) { return (*static_cast<const F*>(self))(x); };
    }
    __device__ float operator()(float x) const { return run(bytes, x); }
};
__device__ __noinline__ float twice(const Function& f, float x) { return f(f(x)); }
extern "C" __global__ void erased(float* x, float a, int n) {
    const int i = threadIdx.x;
    x[i] = i < n ? twice(Function([a, i](float v) { return v * a + i; }), x[i])
                 : twice(Function([](float v) { return v - 1; }), x[i]);
}
"""


def test_objects_that_one_kernel_constructs_are_used_by_another():
    device = CheckedDevice(VIRTUAL)
    shapes, x = np.zeros(48, np.uint64), np.zeros(48, np.float32)
    device.launch("make", 1, 48, shapes)
    device.launch("areas", 1, 48, shapes, x)
    t = np.arange(48.0)
    np.testing.assert_array_equal(x, np.choose(np.arange(48) % 3, [2 * t * t, 6 * t * t, 2 * t * t + 14]))
    device.launch("remove", 1, 48, shapes)
    with pytest.raises(KernelFault, match="use after free"):
        device.launch("areas", 1, 48, shapes, x)


def test_an_erased_type_calls_the_lambda_that_it_holds():
    device = CheckedDevice(VIRTUAL)
    x, i = np.ones(32, np.float32), np.arange(32)
    device.launch("erased", 1, 32, x, 2.0, 20)
    np.testing.assert_array_equal(x, np.where(i < 20, 4 + 3 * i, -1))


# the functions of each PTX text below, and a kernel that stores the result of its LINE
PTX = """.version 8.8
.target sm_90a
.address_size 64
.func (.param .b32 r) f(.param .b32 a) {
    .reg .b32 %r1; ld.param.b32 %r1, [a]; add.s32 %r1, %r1, 1; st.param.b32 [r], %r1; ret;
}
.func (.param .b32 r) g(.param .b32 a) {
    .reg .b32 %r1; ld.param.b32 %r1, [a]; add.s32 %r1, %r1, 2; st.param.b32 [r], %r1; ret;
}
.func (.param .b64 r) wide(.param .b64 a) {
    .reg .b64 %r1; ld.param.b64 %r1, [a]; st.param.b64 [r], %r1; ret;
}
.func (.reg .b32 rr) inreg(.reg .b32 ra) { mov.b32 rr, ra; ret; }
.global .u64 table[2] = {f, g};
.global .u64 data[2] = {1, 2};
.visible .entry k(.param .u64 p) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f64 %fd<2>;
    .param .b32 a; .param .b32 b; .param .b64 c; .param .align 4 .b8 bytes[4];
    ld.param.u64 %rd3, [p]; mov.u64 %rd1, g; mov.b32 %r1, 5; st.param.b32 [a], %r1;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _);
    list: .calltargets f, g;
    only: .calltargets f;
    mixed: .calltargets f, wide;
    regs: .callprototype (.reg .b32 _) _ (.reg .b32 _);
LINE
    st.u32 [%rd3], %r2; ret;
}
"""
LOADED = "call (b), %rd1, (a), {}; ld.param.b32 %r2, [b];"


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (LOADED.format("proto"), 7),
        (LOADED.format("list"), 7),
        (LOADED.format("table"), 7),
        ("call.uni (%r2), %rd1, (%r1), proto;", 7),
        ("call (%r2), %rd1, (8), proto;", 10),
        ("call (%r2), %rd1, (%r1), regs;", 7),
        ("mov.u64 %rd1, inreg; call (%r2), %rd1, (%r1), regs;", 5),
        ("ld.global.u64 %rd1, [table]; call (%r2), %rd1, (%r1), proto;", 6),
        ("mov.u32 %r2, 1; setp.eq.u32 %p1, %r1, 4; @%p1 call (%r2), %rd1, (%r1), proto;", 1),
    ],
)
def test_each_form_of_an_indirect_call(line, result):
    out = np.zeros(1, np.int32)
    SimDevice(PTX.replace("LINE", line), ptx=True).launch("k", 1, 1, out)
    assert out[0] == result


def test_a_function_that_the_call_does_not_list_is_reported():
    device = SimDevice(PTX.replace("LINE", LOADED.format("only")), ptx=True)
    with pytest.raises(KernelFault, match="call of g, which is not in the list of the call's targets"):
        device.launch("k", 1, 1, np.zeros(1, np.int32))


def test_a_pointer_without_a_value_is_reported():
    line = "mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 4; @%p1 mov.u64 %rd2, f; call (%r2), %rd2, (%r1), proto;"
    device = CheckedDevice(PTX.replace("LINE", line).replace("st.u32", "red.add.u32"), ptx=True)
    out = np.zeros(1, np.int32)
    device.launch("k", 1, 4, out)
    assert out[0] == 4 * 6
    with pytest.raises(KernelFault, match=r"uninitialised read: .*the result is called as a function") as caught:
        device.launch("k", 1, 6, out)
    assert caught.value.report.lanes == 2


def test_a_kernel_is_not_a_function_to_call():
    device = SimDevice(PTX.replace("LINE", "mov.u64 %rd1, k; " + LOADED.format("proto")), ptx=True)
    with pytest.raises(KernelFault, match="call of k, which is a kernel"):
        device.launch("k", 1, 1, np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("call (b), %rd1, (a);", r"needs a \.callprototype, \.calltargets or a table of functions"),
        ("call (b), %rd1, (a), data;", r"needs a \.callprototype, \.calltargets or a table of functions"),
        ("call (b), %rd1, (a), f;", r"needs a \.callprototype, \.calltargets or a table of functions"),
        ("call (b), %rd1, (a), later; later: .callprototype _;", "'later' is not declared|needs a"),
        ("call (b), f, (a), proto;", "address in a register of 64 bits"),
        ("call (b), %fd1, (a), proto;", "address in a register of 64 bits"),
        ("call (b), %p1, (a), proto;", "address in a register of 64 bits"),
        ("call (b), %rd1, (), proto;", "proto has 1 arguments, got 0"),
        ("call (b), %rd1, (a, a), proto;", "proto has 1 arguments, got 2"),
        ("call %rd1, (a), proto;", "proto has 1 results, got 0"),
        ("call (c), %rd1, (a), proto;", r"result 1 of proto is \.b64, the parameter is \.b32"),
        ("call (b), %rd1, (bytes), proto;", r"argument 1 of proto is \.b8\[4\], the parameter is \.b32"),
        ("call (b), %rd1, (a), mixed;", "targets 'f' and 'wide' have different parameters"),
        ("call (c), %rd1, (c), list;", r"result 1 of f is \.b64"),
        ("two: .callprototype (.param .b32 _, .param .b32 _) _;", "returns them in registers"),
        ("t: .calltargets data;", "'data' is not a function"),
        ("mov.u64 %rd1, f+4;", "the address of a function, which has no offset"),
        ("cvta.global.u64 %rd1, f;", "operand 2 must be a register"),
        ("ld.global.u32 %r1, [f];", r"is a variable of \.func"),
        (".global .u64 x = generic(f);", "unknown|initial value|function"),
    ],
)
def test_what_ptxas_refuses_is_refused_with_its_line(line, words):
    with pytest.raises(PtxError, match=words) as caught:
        SimDevice(PTX.replace("LINE", line), ptx=True)
    assert caught.value.line == PTX.splitlines().index("LINE") + 1
