"""The few operations whose bits do not depend on who shares the batch.

A matrix product may give a row other bits when the number of rows changes, and vectorised `sigmoid` or `silu` differ
between a vector's body and its tail. The model is therefore written in the operations of this file, of which each
output row is a function of its input row alone (docs/exactness.md lists what was measured):

* products with a multiple of 4 rows and widths that are multiples of 16, zero padded (`Linear`, `bmm_rows`);
* pointwise functions composed of exp, log1p, sqrt, division and multiplication, which are the same at every position.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL_PRODUCT = 4096
"""Up to so many multiplications bfloat16 products take another kernel, which gives other bits."""


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def pad_to(x: Tensor, rows: int, columns: int) -> Tensor:
    """x [.., n, k] with zero rows and columns appended."""
    missing = (0, columns - x.shape[-1], 0, rows - x.shape[-2])
    return F.pad(x, missing) if any(missing) else x


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """x [.., n, k] with zero rows appended."""
    return pad_to(x, rows, x.shape[-1])


@dataclass(frozen=True)
class Linear:
    """y = x W^T for rows x [rows, in]; rows are zero padded to a multiple of `slab` (never 1, 2 or 3).

    weight: [out, in], contiguous and freshly allocated (a misaligned one changes bits). Inputs are padded to a multiple
    of 16 and outputs to one of 64 at construction, since narrow products take other kernels, and cut off again.
    """

    weight: Tensor
    out: int
    slab: int

    @classmethod
    def of(cls, weights: list[Tensor], slab: int) -> "Linear":
        """One product for several weights [out_i, in] stacked along their outputs."""
        stacked = torch.cat(weights)
        out, inputs = stacked.shape
        return cls(pad_to(stacked, round_up(out, 64), round_up(inputs, 16)).clone(), out, slab)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        padded = pad_to(x, round_up(rows, self.slab), self.weight.shape[1])
        return F.linear(padded.contiguous(), self.weight)[:rows, : self.out]


def is_regular(a: Tensor, b: Tensor) -> bool:
    """Whether rows of the product a @ b, [.., rows, inner] and [.., inner, outer], have bits of their own."""
    rows, inner, outer = a.shape[-2], b.shape[-2], b.shape[-1]
    small = a.dtype == torch.bfloat16 and rows * inner * outer <= SMALL_PRODUCT
    return not (rows % 4 or inner % 16 or outer % 16 or small)


def bmm_rows(a: Tensor, b: Tensor) -> Tensor:
    """Batched a @ b for a [.., rows, inner], b [.., inner, outer], zero padded until it is regular."""
    if not is_regular(a, b):
        rows, inner, outer = a.shape[-2], round_up(b.shape[-2], 16), round_up(b.shape[-1], 16)
        enough = SMALL_PRODUCT // (inner * outer) + 1 if a.dtype == torch.bfloat16 else 1
        a = pad_to(a, round_up(max(rows, enough), 4), inner)
        return bmm_rows(a, pad_to(b, inner, outer))[..., :rows, : b.shape[-1]]
    if a.dim() == 3:
        return torch.bmm(a, b)
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3)).unflatten(0, a.shape[:-2])


def add_bmm_rows(c: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """c + sign * a @ b, batched as in `bmm_rows`."""
    if not is_regular(a, b):
        return c + sign * bmm_rows(a, b)
    if a.dim() == 3:
        return torch.baddbmm(c, a, b, alpha=sign)
    return torch.baddbmm(*(t.flatten(0, -3) for t in (c, a, b)), alpha=sign).view_as(c)


def sigmoid(x: Tensor) -> Tensor:
    return (1 + torch.exp(-x)).reciprocal()


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32, back in x's dtype."""
    wide = x.float()
    root = torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide / root * weight).to(x.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| over the last dimension, the eps inside the root (KDA's normalisation of q and k)."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)
