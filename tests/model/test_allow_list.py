"""Only operations whose bits do not depend on the neighbours: a model may call what is listed here, and nothing else.

The list is what docs/exactness.md rests on. A new operation fails this test until somebody has measured it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prfaas_ref.model.exact import SMALL_PRODUCT
from tests.model.shapes import CONFIGS, DTYPES, model_of, request, tokens_of

# Move or make numbers without computing any.
MOVES = {
    "alias", "arange", "cat", "chunk", "clone", "contiguous", "copy_", "detach_", "empty", "expand", "fill_",
    "flatten", "full", "gather", "index", "index_put_", "item", "lift_fresh", "mT", "masked_fill_", "new_ones",
    "new_zeros", "nonzero_numpy", "ones", "pad", "permute", "repeat_interleave", "reshape", "select", "slice",
    "split", "split_with_sizes", "stack", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as",
    "zeros", "zeros_like",
}  # fmt: skip
# Exact in any order, or on integers and truth values.
EXACT = {
    "__or__",
    "abs",
    "amax",
    "clamp",
    "eq",
    "floor_divide",
    "gt",
    "le",
    "lt",
    "max",
    "min",
    "neg",
    "remainder",
    "sort",
}
# The same at every position of a tensor, whatever its length. (cos and sin: the float64 table of rope.py.)
POINTWISE = {"add", "div", "exp", "exp_", "log1p", "mul", "mul_", "reciprocal", "sqrt", "sub", "sub_", "cos", "sin"}
# Over the last dimension only.
ROW_SUMS = {"mean", "sum"}
# One row to an index: nothing is added up out of order.
ROW_ADDS = {"index_add_"}


def check_product(rows: int, inner: int, outer: int, dtype: torch.dtype) -> None:
    assert rows % 4 == 0, f"{rows} rows"
    assert inner % 16 == 0, f"inner width {inner}"
    assert outer % 16 == 0, f"outer width {outer}"
    assert dtype == torch.float32 or rows * inner * outer > SMALL_PRODUCT, f"{rows} x {inner} x {outer} is small"


class AllowList(TorchDispatchMode):
    """Fails on any operation that is not listed, and on a listed one of a shape that is not."""

    def __torch_dispatch__(self, op: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = op.__name__.split(".")[0], kwargs or {}
        if name == "linear":
            x, weight = args
            assert weight.is_contiguous()
            assert weight.data_ptr() % 64 == 0, "a misaligned weight changes bits"
            check_product(x.shape[0], x.shape[1], weight.shape[0], x.dtype)
        elif name in ("bmm", "baddbmm"):
            a, b = args[-2:]
            check_product(a.shape[1], a.shape[2], b.shape[2], a.dtype)
        elif name in ROW_SUMS:
            assert list(args[1]) == [-1]
            assert args[0].stride(-1) == 1
        elif name in ROW_ADDS:
            assert len(args[2].unique()) == len(args[2])
        else:
            assert name in MOVES | EXACT | POINTWISE, f"{op} is not on the list"
        return op(*args, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_models_call_only_what_is_listed(name: str, dtype: str) -> None:
    model = model_of(name, dtype)
    with torch.inference_mode():
        (state, pages), tokens = request(model, 160), tokens_of(160)
        with AllowList():
            for first, last in ((0, 107), *((t, t + 1) for t in range(107, 113)), (113, 160)):
                model.forward(tokens[:, first:last], state, pages)


@pytest.mark.parametrize(
    "computation",
    [
        lambda x: torch.sigmoid(x),
        lambda x: torch.nn.functional.silu(x),
        lambda x: torch.softmax(x, dim=-1),
        lambda x: x.sum(0),
        lambda x: x @ x,
        lambda x: torch.nn.functional.linear(x[:3], x),
        lambda x: torch.bmm(x[None, :, :5], x[None, :5]),
        lambda x: torch.nn.functional.linear(x, torch.zeros(1 + 16 * 16)[1:].view(16, 16)),
    ],
)
def test_the_list_refuses_what_is_not_exact(computation: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(16, 16)
    with torch.inference_mode(), AllowList(), pytest.raises(AssertionError):
        computation(x)
