"""The few operations whose bits do not depend on who shares the batch.

A matrix product may give a row other bits when the number of rows changes, and vectorised `sigmoid` or `silu` differ
between a vector's body and its tail. The model is therefore written in the operations of this file, of which each
output row is a function of its input row alone (docs/exactness.md lists what was measured):

* products whose row count is a multiple of 4, zero padded (`Linear`, `bmm_rows`);
* pointwise functions composed of exp, log1p, sqrt, division and multiplication, which are the same at every position.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Linear:
    """y = x W^T for rows x [rows, in]; rows are zero padded to a multiple of `slab` (numerics rule: never 1, 2 or 3).

    weight: [out, in], contiguous and freshly allocated (a misaligned one changes bits). Outputs are padded to a
    multiple of 64 at construction and cut off again, since narrow products take other kernels.
    """

    weight: Tensor
    out: int
    slab: int

    @classmethod
    def of(cls, weights: list[Tensor], slab: int) -> "Linear":
        """One product for several weights [out_i, in] stacked along their outputs."""
        stacked = torch.cat(weights)
        out = stacked.shape[0]
        return cls(F.pad(stacked, (0, 0, 0, round_up(out, 64) - out)).clone(), out, slab)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        padded = round_up(rows, self.slab)
        y = F.linear(F.pad(x, (0, 0, 0, padded - rows)) if padded > rows else x.contiguous(), self.weight)
        return y[:rows, : self.out]


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """x [.., n, k] with zero rows appended, up to `rows`."""
    missing = rows - x.shape[-2]
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def bmm_rows(a: Tensor, b: Tensor) -> Tensor:
    """Batched a @ b for a [.., rows, k], b [.., k, n]; rows are zero padded to a multiple of 4."""
    rows = a.shape[-2]
    if rows % 4:
        return bmm_rows(pad_rows(a, round_up(rows, 4)), b)[..., :rows, :]
    if a.dim() == 3:
        return torch.bmm(a, b)
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3)).unflatten(0, a.shape[:-2])


def add_bmm_rows(c: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """c + sign * a @ b, batched, for a [.., rows, k] with a multiple of 4 rows."""
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
