"""The functions of cudakit.ops as torch operators, on CPU tensors: opcheck, values, gradients, compile, errors."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import pytest
import torch_installed

torch = torch_installed.require()

import cudakit  # noqa: E402
import cudakit.torch  # noqa: E402
from cudakit import GradientError  # noqa: E402

OPS = torch.ops.cudakit


def random(*shape, dtype=torch.float32, grad=False, seed=0):
    draws = torch.float32 if not dtype.is_complex else dtype
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=draws).to(dtype)
    return made.requires_grad_(grad)


def grown(*shape, **options):
    return random(*shape, grad=True, **options)


COMPLEX = torch.complex64
HEADS = (1, 2, 9, 8)
ENDS_OF_GROUPS = torch.tensor([0, 4, 4, 9], dtype=torch.int32)

# Each op, with tensors that record gradients if the op has one: (name, arguments, options).
CALLS = [
    ("add", lambda: (grown(3, 1, 5), grown(4, 1)), {}),
    ("add", lambda: (grown(4, 6).T, grown(6, 4)), {}),
    ("add_broadcast", lambda: (grown(3, 4, 5), grown(3, 4), grown(3)), {}),
    ("argmax", lambda: (random(5, 33), 1), {}),
    ("argmax", lambda: (random(5, 33),), {}),
    ("attention", lambda: tuple(random(*HEADS, seed=k) for k in range(3)), {"causal": True}),
    ("attention", lambda: (*(random(*HEADS, seed=k) for k in range(3)), torch.tensor([[6, 4]], dtype=torch.int32)), {}),
    ("blur", lambda: (grown(9, 12),), {}),
    ("blur", lambda: (random(2, 9, 12),), {"border": "clamp"}),
    ("cast", lambda: (grown(40), torch.bfloat16), {}),
    ("cast", lambda: (random(40), torch.int32), {}),
    ("fft", lambda: (grown(3, 20, dtype=COMPLEX),), {}),
    ("fft", lambda: (grown(2, 6, 10, dtype=COMPLEX), 2), {"norm": "forward"}),
    ("fill", lambda: (random(5, 7).T, 2.5), {}),
    ("gemm", lambda: (grown(7, 9), grown(9, 5)), {"alpha": 0.5}),
    ("gemm", lambda: (grown(7, 9), grown(3, 9, 5), grown(3, 7, 5)), {"alpha": 0.5, "beta": 2.0}),
    ("gemm", lambda: (grown(3, 7, 9), grown(5, 9).T), {}),
    ("gemm", lambda: (grown(8, 16, dtype=torch.bfloat16), grown(16, 8, dtype=torch.bfloat16)), {}),
    (
        "gemm",
        lambda: (grown(8, 16, dtype=torch.float16), grown(16, 8, dtype=torch.float16)),
        {"dtype": torch.float32},
    ),
    (
        "gemm_grouped",
        lambda: (*(random(*shape, dtype=torch.float16) for shape in ((9, 16), (3, 16, 8))), ENDS_OF_GROUPS),
        {"alpha": 0.5, "activation": "relu", "dtype": torch.float32},
    ),
    ("ifft", lambda: (grown(20, 3, dtype=COMPLEX).T,), {}),
    ("ifft", lambda: (grown(2, 6, 10, dtype=COMPLEX), 2), {"norm": "ortho"}),
    ("irfft", lambda: (grown(3, 11, dtype=COMPLEX),), {}),
    ("irfft", lambda: (grown(2, 6, 11, dtype=COMPLEX), 2, 21), {"norm": "ortho"}),
    ("matrix_add", lambda: (grown(5, 7), grown(5, 7, seed=1)), {}),
    ("max", lambda: (random(5, 33), 0), {}),
    ("normal", lambda: (random(33),), {"seed": 5}),
    ("rfft", lambda: (grown(3, 20),), {}),
    ("rfft", lambda: (grown(2, 6, 21), 2), {"norm": "forward"}),
    ("rfft", lambda: (random(3, 20, dtype=torch.float16),), {}),
    ("scale", lambda: (grown(5, 7), 1.5), {}),
    ("softmax", lambda: (grown(5, 33),), {}),
    ("softmax", lambda: (grown(33), random(33)), {"scale": 0.5}),
    ("softmax", lambda: (grown(5, 33), random(5, 1) * random(33) > 0), {"log": True, "scale": 0.5}),
    ("softmax", lambda: (grown(5, 33, dtype=torch.float16),), {"log": True}),
    ("softmax_backward", lambda: (random(5, 33), torch.softmax(random(5, 33), -1)), {"scale": 0.5}),
    ("sum", lambda: (grown(5, 33),), {}),
    ("sum", lambda: (grown(5, 33), -1), {}),
    ("sum", lambda: (grown(33), 0), {}),
    ("threshold", lambda: (random(5, 7), 0.1), {}),
    ("uniform", lambda: (random(33),), {"seed": 5, "offset": 3}),
]


def test_every_op_is_in_the_calls():
    assert {name for name, _, _ in CALLS} == {*cudakit.ops.__all__} - {"call_of", "families"}


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
def test_opcheck(name, arguments, options):
    """torch's own checks: schema, fake kernel, autograd registration, and the compiled op with changing shapes."""
    torch.library.opcheck(getattr(OPS, name).default, arguments(), options)


# Values ---------------------------------------------------------------------------------------------------------------


def softmax(x, mask=None, *, log=False, scale=1.0):
    scores = x.float() * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return (torch.log_softmax if log else torch.softmax)(scores, -1).to(x.dtype)


def softmax_backward(grad, y, *, scale):
    return scale * y * (grad - (grad * y).sum(-1, keepdim=True))


def gemm(a, b, c=None, *, alpha=1.0, beta=0.0, dtype=None):
    product = alpha * (a.float() @ b.float())
    return (product + beta * c.float() if c is not None else product).to(dtype or a.dtype)


def gemm_grouped(a, b, offsets, *, alpha, activation, dtype):
    parts = zip(offsets[:-1], offsets[1:], b, strict=True)
    return torch.cat([torch.relu(alpha * a[first:end].float() @ one.float()) for first, end, one in parts]).to(dtype)


def add_broadcast(volume, plane, line):
    return volume + plane[:, :, None] + line[:, None, None]


def blur(images, *, border="zero"):
    modes = {"zero": "constant", "clamp": "replicate"}
    weights = torch.outer(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 1.0]))[None, None] / 16
    planes = images.reshape(-1, 1, *images.shape[-2:])
    padded = torch.nn.functional.pad(planes, (1, 1, 1, 1), mode=modes[border])
    return torch.nn.functional.conv2d(padded, weights).reshape(images.shape)


def attention(q, k, v, lengths=None, *, causal=False):
    queries, keys = (q.shape[2], k.shape[2]) if lengths is None else lengths[0].tolist()
    attend = torch.nn.functional.scaled_dot_product_attention
    seen = attend(q[:, :, :queries], k[:, :, :keys], v[:, :, :keys], is_causal=causal)
    return torch.nn.functional.pad(seen, (0, 0, 0, q.shape[2] - queries))


def transform(function):
    def call(x, axes=1, n=None, *, norm="backward"):
        extents = {"s": (*x.shape[x.dim() - axes : -1], n)} if n else {}
        half = x.dtype == torch.float16
        made = function(x.float() if half else x, dim=tuple(range(-axes, 0)), norm=norm, **extents)
        return torch.view_as_real(made).half() if half else made

    return call


THEIRS = {
    "add": torch.add,
    "add_broadcast": add_broadcast,
    "argmax": torch.argmax,
    "attention": attention,
    "blur": blur,
    "cast": lambda x, to: x.round().to(to) if to == torch.int32 else x.to(to),
    "fft": transform(torch.fft.fftn),
    "gemm": gemm,
    "gemm_grouped": gemm_grouped,
    "ifft": transform(torch.fft.ifftn),
    "irfft": transform(torch.fft.irfftn),
    "matrix_add": torch.add,
    "max": torch.amax,
    "rfft": transform(torch.fft.rfftn),
    "scale": torch.mul,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "sum": torch.sum,
    "threshold": lambda x, limit: torch.where(x < limit, 0.0, x),
}
TOLERANCE = {torch.float32: 1e-5, COMPLEX: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def close(ours, theirs, tolerance=None):
    tolerance = tolerance or TOLERANCE.get(theirs.dtype, 0)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "arguments", "options"), [call for call in CALLS if call[0] in THEIRS])
def test_values_are_torchs(name, arguments, options):
    given = arguments()
    close(getattr(OPS, name)(*given, **options), THEIRS[name](*given, **options))


def test_writes():
    x = torch.zeros(4, 6)
    OPS.fill(x[:, 1:3], 7)
    assert x.sum() == 7 * 8
    assert (x[:, 1:3] == 7).all()
    OPS.uniform(x, seed=3)
    y = torch.empty(6, 2)
    OPS.uniform(y, seed=3)
    assert torch.equal(y.flatten(), x.flatten()[:12])
    assert 0 <= x.min() < x.max() < 1


def test_views_of_one_storage_that_overlap():
    x = random(50)
    torch.testing.assert_close(OPS.add(x[1:], x[:-1]), x[1:] + x[:-1])
    torch.testing.assert_close(OPS.add(x[5:9], x[7:11]), x[5:9] + x[7:11])
    array = x.numpy()
    one, other = (torch.from_numpy(part) for part in (array[1:], array[:-1]))  # separate storages over the same memory
    torch.testing.assert_close(OPS.add(one, other), x[1:] + x[:-1])


def test_empty_tensors():
    assert OPS.softmax(torch.empty(0, 5)).shape == (0, 5)
    assert OPS.sum(torch.empty(0, 5), 0).tolist() == [0] * 5


def test_threads():
    """Several threads call an op on views of one storage."""
    x = random(4, 40)
    results = [None] * 4

    def work(k):
        results[k] = OPS.add(x[k, k:], x[k, : 40 - k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        torch.testing.assert_close(results[k], x[k, k:] + x[k, : 40 - k])


# Gradients ------------------------------------------------------------------------------------------------------------

WITH_GRADIENT = [call for call in CALLS if any(x.requires_grad for x in call[1]() if isinstance(x, torch.Tensor))]


@pytest.mark.parametrize(("name", "arguments", "options"), WITH_GRADIENT)
def test_gradients_are_torchs(name, arguments, options):
    given = arguments()
    inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    ours, theirs = getattr(OPS, name)(*given, **options), THEIRS[name](*given, **options)
    grad = random(*ours.shape, dtype=ours.dtype, seed=9)
    found, expected = (torch.autograd.grad(y, inputs, grad) for y in (ours, theirs))
    for x, one, other in zip(inputs, found, expected, strict=True):
        assert one.dtype == x.dtype
        close(one, other)


@pytest.mark.parametrize("wanted", range(3))
def test_gradient_of_one_operand_of_a_product(wanted):
    operands = [random(7, 9), random(3, 9, 5), random(3, 7, 5)]
    operands[wanted].requires_grad_()
    ours, theirs = (f(*operands, alpha=0.5, beta=2.0) for f in (OPS.gemm, gemm))
    grad = random(3, 7, 5, seed=9)
    close(*(torch.autograd.grad(y, operands[wanted], grad)[0] for y in (ours, theirs)))


def test_the_gradient_of_a_c_that_is_not_read_is_zero():
    c = grown(3, 3)
    product = OPS.gemm(random(3, 3), random(3, 3), c)
    assert torch.autograd.grad(product, c, torch.full((3, 3), math.inf))[0].eq(0).all()


def test_gradients_of_gradients():
    a, b = grown(4, 5), grown(5, 3)

    def twice(product):
        (first,) = torch.autograd.grad(product(a, b).square().sum(), a, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (a, b))

    for ours, theirs in zip(twice(OPS.gemm), twice(torch.matmul), strict=True):
        close(ours, theirs, 1e-4)


def test_a_small_network_learns_as_in_torch():
    def losses(gemm, add, scale):
        torch.manual_seed(1)
        weight, bias = grown(6, 4), grown(4)
        x, wanted = random(10, 6), random(10, 4)
        optimizer, values = torch.optim.SGD([weight, bias], lr=0.05), []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (scale(torch.tanh(add(gemm(x, weight), bias)), 2.0) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    ours, theirs = losses(OPS.gemm, OPS.add, OPS.scale), losses(torch.matmul, torch.add, torch.mul)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[-1] < ours[0]


WITHOUT_GRADIENT = [
    ("attention", lambda: tuple(grown(*HEADS, seed=k) for k in range(3)), {}),
    ("blur", lambda: (grown(9, 12),), {"border": "clamp"}),
    (
        "gemm_grouped",
        lambda: (*(grown(*shape, dtype=torch.float16) for shape in ((9, 16), (3, 16, 8))), ENDS_OF_GROUPS),
        {},
    ),
    ("max", lambda: (grown(5, 7),), {}),
    ("softmax", lambda: (random(5, 7), grown(7)), {}),
    ("softmax_backward", lambda: (grown(5, 7), random(5, 7)), {}),
    ("threshold", lambda: (grown(5, 7), 0.1), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), WITHOUT_GRADIENT)
def test_no_gradient_is_an_error_where_one_is_needed(name, arguments, options):
    result = getattr(OPS, name)(*arguments(), **options)
    assert result.requires_grad
    with pytest.raises(GradientError, match=rf"cudakit::{name} has no gradient.*: call it under torch.no_grad\(\)"):
        result.sum().backward()


def test_a_write_to_a_tensor_that_records_gradients_is_refused():
    x = grown(5) * 2
    with pytest.raises(GradientError, match=r"fill writes to its arguments.* x records gradients: pass x.detach\(\)"):
        OPS.fill(x, 1.0)
    with torch.no_grad():
        OPS.fill(x, 1.0)
    assert x.eq(1).all()


def test_autograd_sees_a_write():
    x = random(5)
    y = grown(5) * x
    OPS.fill(x, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode():
    with torch.inference_mode():
        x = torch.ones(5)
        OPS.fill(x, 2.0)
        assert OPS.sum(x) == 10


# torch.compile --------------------------------------------------------------------------------------------------------


def step(x, weight, bias):
    hidden = torch.relu(OPS.add(OPS.gemm(x, weight), bias)) + 1
    return OPS.sum(OPS.scale(hidden, 0.5), 1)


def their_step(x, weight, bias):
    return ((torch.relu(x @ weight + bias) + 1) * 0.5).sum(1)


@pytest.fixture
def compiled():
    """torch.compile of a whole function, with torch's own compiler if a C++ compiler is found."""
    from torch._inductor import cpp_builder, exc

    torch._dynamo.reset()
    try:
        cpp_builder.get_cpp_compiler()
        backend = {"backend": "inductor"}
    except exc.InvalidCxxCompiler:
        backend = {"backend": "aot_eager"}
    return lambda function, **options: torch.compile(function, fullgraph=True, **backend, **options)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_gradients(compiled, dynamic):
    function = compiled(step, dynamic=dynamic)
    for rows in (4, 9):
        given = random(rows, 16), grown(16, 8), grown(8)
        ours, theirs = function(*given), their_step(*given)
        close(ours, theirs)
        found, expected = (torch.autograd.grad(y.sum(), given[1:]) for y in (ours, theirs))
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_compiled_writes(compiled):
    def written(x):
        y = x * 2
        OPS.fill(y[1:3], 7.0)
        return y + 1

    assert compiled(written)(torch.ones(4)).tolist() == [3, 8, 8, 3]


def test_compiled_without_a_gradient(compiled):
    """torch.compile traces the backward pass too; its error is raised only if the backward pass runs."""
    result = compiled(lambda x: OPS.max(x * 2, 1))(grown(5, 7))
    assert result.shape == (5,)
    with pytest.raises(GradientError, match="cudakit::max has no gradient"):
        result.sum().backward()


# Errors and devices ---------------------------------------------------------------------------------------------------


def test_refusals_are_those_of_the_ops():
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(4,\) do not broadcast: counted from"):
        OPS.add(random(3), random(4))
    with pytest.raises(ValueError, match="A's columns, 4, are not B's rows, 5"):
        OPS.gemm(random(3, 4), random(5, 6))
    with pytest.raises(ValueError, match=r"beta is 1.0, but there is nothing to add"):
        OPS.gemm(random(3, 4), random(4, 6), beta=1.0)
    with pytest.raises(ValueError, match="softmax has no variant 'none'"):
        OPS.softmax(random(3, 4), variant="none")
    with pytest.raises(ValueError, match="max of no elements"):
        OPS.max(torch.empty(0))
    with pytest.raises(ValueError, match="float64"):
        OPS.softmax(random(3, 4, dtype=torch.float64))


def test_a_device_of_the_users():
    with pytest.raises(TypeError, match="pass a simulated Device"):
        cudakit.torch.set_simulated_device("sim")
    with cudakit.Device("sim:sm_75", fresh=True) as device:
        cudakit.torch.set_simulated_device(device)
        try:
            assert cudakit.torch.simulated_device() is device
            with pytest.raises(cudakit.UnsupportedVariant, match="sm_80 or later, the device is sm_75"):
                OPS.softmax(random(3, 4), log=True)
            close(OPS.softmax(random(3, 4)), torch.softmax(random(3, 4), -1))
        finally:
            cudakit.torch.set_simulated_device(None)
    close(OPS.softmax(random(3, 4), log=True), torch.log_softmax(random(3, 4), -1))


def test_cudakit_does_not_import_torch():
    program = "import sys, cudakit, cudakit.ops; cudakit.Device('sim'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_wrap_of_a_tensor_that_records_gradients(sim):
    with pytest.raises(GradientError, match=r"got a Parameter of shape \(2, 3\).*\.detach\(\).*cudakit\.torch"):
        sim.wrap(torch.nn.Parameter(torch.ones(2, 3)))
    assert sim.wrap(torch.ones(2, 3)).shape == (2, 3)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
def test_opcheck_on_the_gpu(gpu, name, arguments, options):
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    on_gpu = [x.detach().cuda().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
              for x in arguments()]  # fmt: skip
    torch.library.opcheck(getattr(OPS, name).default, tuple(on_gpu), options)
    if name in THEIRS:
        close(getattr(OPS, name)(*on_gpu, **options).cpu(), THEIRS[name](*arguments(), **options))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_on_the_gpu(gpu, mode):
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    torch._dynamo.reset()
    function = torch.compile(step, fullgraph=True, mode=mode)
    for seed in range(4):
        x = random(64, 32, seed=seed)
        given = [x.cuda(), *(y.detach().cuda().requires_grad_() for y in (grown(32, 16), grown(16)))]
        ours, theirs = function(*given), their_step(*given)
        close(ours, theirs, 1e-4)
        found, expected = (torch.autograd.grad(y.sum(), given[1:]) for y in (ours, theirs))
        for one, other in zip(found, expected, strict=True):
            close(one, other, 1e-4)
