"""The differentiable path is the served function to a tolerance, and its hand-written gradients are autograd's."""

import pytest
import torch
from torch.nn import functional as F

from prfaas_ref.model import training
from prfaas_ref.model.checkpoint import load_model


@pytest.fixture(autouse=True)
def with_gradients():
    """Serving switches them off for the whole process."""
    with torch.enable_grad():
        yield


def served_logits(model, tokens):
    state, pages = model.new_state(), model.new_pages(2)
    state.tables[0] = [1, 0]
    with torch.inference_mode():
        return model.forward(tokens[None], state, pages, rows=range(len(tokens)))[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.2)])
def test_training_and_serving_compute_one_function(dtype, tolerance):
    model = load_model("toy-random")
    tokens = torch.randint(0, 257, (3, 96), generator=torch.Generator().manual_seed(1))
    ours = training.logits(model.weights, tokens, model.config, dtype).float().view(3, 96, -1)
    for row, alone in zip(ours, tokens, strict=True):
        torch.testing.assert_close(row, served_logits(model, alone), atol=tolerance, rtol=0)


def test_gates_far_below_the_clamp_give_finite_logits_and_gradients():
    model = load_model("toy-random")
    weights = {name: tensor.clone().requires_grad_() for name, tensor in model.weights.items()}
    for name, tensor in weights.items():
        if name.endswith("dt_bias"):
            tensor.data += 40.0  # some gates are now exp(-600)
    out = training.logits(weights, torch.arange(64)[None], model.config, torch.float32)
    for gradient in torch.autograd.grad(out.square().mean(), list(weights.values())):
        assert torch.isfinite(gradient).all()


def test_gradient_of_the_convolution():
    x, taps = torch.randn(32, 6, requires_grad=True), torch.randn(6, 4, requires_grad=True)

    def plain(x, taps):
        padded = F.pad(x.view(2, 16, 6), (0, 0, 3, 0))
        return sum(padded[:, j : j + 16] * taps[:, j] for j in range(4)).flatten(0, 1)

    compare(lambda x, taps: training.Convolve.apply(x, taps, 16), plain, x, taps)


def test_gradient_of_the_solve():
    L = (0.3 * torch.randn(3, 16, 16)).tril(-1).requires_grad_()
    rhs = torch.randn(3, 16, 5, requires_grad=True)

    def plain(L, rhs):
        return torch.linalg.solve_triangular(L.tril(-1) + torch.eye(16), rhs, upper=False, unitriangular=True)

    compare(training.Solve.apply, plain, L, rhs)


def test_gradient_of_the_walk():
    U, W, k_end = torch.randn(4, 3, 16, 5), 0.1 * torch.randn(4, 3, 16, 7), 0.1 * torch.randn(4, 3, 16, 7)
    inputs = [t.requires_grad_() for t in (U, W, k_end, torch.rand(4, 3, 7))]

    def plain(U, W, k_end, end):
        S, written, states = torch.zeros(3, 7, 5), [], []
        for n in range(4):
            states.append(S)
            written.append(U[n] - W[n] @ S)
            S = end[n][:, :, None] * S + k_end[n].transpose(1, 2) @ written[n]
        return torch.stack(written), torch.stack(states)

    compare(training.Walk.apply, plain, *inputs)


def compare(ours, plain, *inputs):
    """Values and gradients of two functions."""
    values = [f(*inputs) for f in (ours, plain)]
    values = [v if isinstance(v, tuple) else (v,) for v in values]
    torch.testing.assert_close(*values, atol=1e-5, rtol=1e-5)
    weights = [torch.randn_like(v) for v in values[0]]
    torch.testing.assert_close(*(torch.autograd.grad(v, inputs, weights) for v in values), atol=1e-4, rtol=1e-4)
