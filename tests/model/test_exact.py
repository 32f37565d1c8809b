"""The measured property of torch's products that the contract rests on: a row's bits are its own business.

The inputs cancel (x = [a, -a] against w = [b, b], permuted), so that any other order of a sum shows.
"""

import pytest
import torch
from torch import Tensor

from prfaas_ref.model.exact import Linear, bmm_rows, l2_norm, rms_norm, sigmoid, silu, softplus
from tests.model.shapes import DTYPES, same

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 31, 64, 100, 129)


def cancelling(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [rows, width] and w [40, width] whose products are sums of near-opposite numbers."""
    g = torch.Generator().manual_seed(width)
    a, b = torch.randn(rows, width // 2, generator=g), torch.randn(40, width // 2, generator=g)
    order = torch.randperm(width, generator=g)
    noise = 1e-3 * torch.randn(rows, width, generator=g)
    return (torch.cat((a, -a), 1)[:, order] + noise).to(dtype), torch.cat((b, b), 1)[:, order].to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("width", [16, 48, 96, 256])
@pytest.mark.parametrize("threads", [1, 2])
def test_linear_rows_do_not_depend_on_their_number(dtype: torch.dtype, width: int, threads: int) -> None:
    x, w = cancelling(129, width, dtype)
    linear = Linear.of([w], slab=8)
    torch.set_num_threads(1)
    expected = linear(x)
    torch.set_num_threads(threads)
    for n in ROWS:
        assert same(linear(x[:n]), expected[:n])
        assert same(linear(x[-n:].flip(0)).flip(0), expected[-n:])
    torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [1, 2])
def test_batched_products_do_not_depend_on_rows_or_batch(threads: int) -> None:
    x, w = cancelling(128, 64, torch.float32)
    a, b = x.view(2, 64, 64), torch.stack((w[:32], w[8:])).transpose(1, 2)
    expected = bmm_rows(a, b)
    torch.set_num_threads(threads)
    for n in ROWS[:12]:
        assert same(bmm_rows(a[:, :n], b), expected[:, :n])
        assert same(bmm_rows(a[1:, :n], b[1:]), expected[1:, :n])
    torch.set_num_threads(1)


def test_neighbours_that_are_not_numbers_stay_alone() -> None:
    x, w = cancelling(16, 48, torch.float32)
    linear = Linear.of([w], slab=8)
    expected = linear(x)
    x[3], x[9] = torch.nan, torch.inf
    good = [i for i in range(16) if i not in (3, 9)]
    assert same(linear(x)[good], expected[good])


@pytest.mark.parametrize("f", [sigmoid, silu, softplus, lambda x: l2_norm(x[:, None])[:, 0]])
def test_pointwise_functions_do_not_depend_on_the_position(f) -> None:
    x = torch.randn(1003, generator=torch.Generator().manual_seed(0)) * 5
    expected = f(x)
    for start in range(1, 40, 3):
        assert same(f(x[start:]), expected[start:])
        assert same(f(x[start : start + 1]), expected[start : start + 1])


def test_functions_agree_with_the_library() -> None:
    x = torch.linspace(-90, 90, 1001)
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x))
    torch.testing.assert_close(silu(x), torch.nn.functional.silu(x))
    torch.testing.assert_close(softplus(x), torch.nn.functional.softplus(x))
    rows, weight = x[:1000].view(10, 100), torch.rand(100)
    torch.testing.assert_close(rms_norm(rows, weight, 1e-5), torch.nn.functional.rms_norm(rows, (100,), weight, 1e-5))


def test_a_misaligned_weight_is_realigned() -> None:
    """A view into a memory-mapped file may start anywhere; the model's own copy does not."""
    x, w = cancelling(3, 64, torch.float32)
    storage = torch.zeros(w.numel() + 1)
    misaligned = storage[1:].view_as(w).copy_(w)
    assert misaligned.data_ptr() % 64
    assert same(Linear.of([misaligned], 8)(x), Linear.of([w], 8)(x))
    assert Linear.of([misaligned], 8).weight.data_ptr() % 64 == 0
