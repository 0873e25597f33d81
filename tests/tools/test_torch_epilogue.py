"""The fused epilogue of cudakit::gemm in torch, on CPU tensors: opcheck, values, gradients, errors."""

from __future__ import annotations

import pytest
import torch_installed

torch = torch_installed.require()

import cudakit.torch  # noqa: E402, F401  registers the ops

gemm = torch.ops.cudakit.gemm
HALF, FLOAT = torch.float16, torch.float32


def grown(*shape, dtype=HALF, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def theirs(a, b, c=None, bias=None, residual=None, *, alpha=1.0, beta=0.0, activation=None, scale=1.0, dtype=None):
    value = alpha * (a.float() @ b.float())
    value = value if c is None else value + beta * c.float()
    value = value if bias is None else value + bias.float()
    functional = torch.nn.functional
    value = {
        None: lambda x: x,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }[activation](value)
    value = scale * value if residual is None else scale * value + residual.float()
    return value.to(dtype or a.dtype)


def operands(*, bias=(24,), of_bias=HALF, c=False, residual=True, batch=()):
    a, b = grown(*batch, 8, 16), grown(16, 24, seed=1)
    return (
        a,
        b,
        grown(*batch, 8, 24, seed=2) if c else None,
        None if bias is None else grown(*bias, dtype=of_bias, seed=3),
        grown(*batch, 8, 24, seed=4) if residual else None,
    )


PLAIN = [
    (operands(), {}),
    (operands(residual=False, of_bias=FLOAT), {"scale": 0.5}),
    (operands(bias=(8, 1)), {"alpha": 2.0, "scale": -0.5}),
    (operands(bias=(3, 1, 24), batch=(3,)), {}),
    (operands(bias=None), {"scale": 0.25}),
]
ACTIVATED = [(operands(c=True), {"activation": name, "beta": 0.5}) for name in ("relu", "gelu", "gelu_tanh", "silu")]


@pytest.mark.parametrize(("given", "options"), PLAIN + ACTIVATED[1:2])
def test_opcheck(given, options):
    torch.library.opcheck(gemm.default, given, options)


@pytest.mark.parametrize(("given", "options"), PLAIN + ACTIVATED)
def test_values_are_torchs(given, options):
    torch.testing.assert_close(gemm(*given, **options), theirs(*given, **options), rtol=2e-3, atol=2e-3)
    wide = {**options, "dtype": FLOAT}
    given = (*given[:2], None, given[3], None)
    wide.pop("beta", None)
    torch.testing.assert_close(gemm(*given, **wide), theirs(*given, **wide), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("given", "options"), PLAIN + ACTIVATED)
def test_gradients_are_torchs(given, options):
    inputs = [x for x in given if x is not None]
    ours, other = gemm(*given, **options), theirs(*given, **options)
    grad = grown(*ours.shape, seed=9).detach()
    found, expected = (torch.autograd.grad(y, inputs, grad) for y in (ours, other))
    for x, one, reference in zip(inputs, found, expected, strict=True):
        assert one.dtype == x.dtype
        torch.testing.assert_close(one, reference, rtol=4e-3, atol=4e-3)


def test_gradient_of_a_c_that_is_not_read_is_zero():
    a, b, c, bias, _ = operands(c=True, residual=False)
    y = gemm(a, b, c, bias, activation="silu")
    assert torch.autograd.grad(y, c, torch.full_like(y, torch.inf))[0].eq(0).all()


def test_unsupported_operands_are_refused():
    a, b = torch.ones(4, 8), torch.ones(8, 4)
    with pytest.raises(ValueError, match="a product of float32 has no bias, activation, residual or scale"):
        gemm(a, b, activation="relu")
    with pytest.raises(ValueError, match="does not broadcast"):
        gemm(a.half(), b.half(), None, torch.ones(5))
