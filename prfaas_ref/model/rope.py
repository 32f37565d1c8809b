"""Rotary positions: the angle of a position is the same number in whatever batch it is looked up.

The table is made page by page in float64 and rounded to float32, so that no entry depends on how much of it exists.
"""

import torch
from torch import Tensor


class Rope:
    """Rotates the first `dim` numbers of every head, pair (i, i + dim / 2) by position * theta^(-2 i / dim)."""

    def __init__(self, dim: int, theta: float, block: int) -> None:
        self.dim, self.block = dim, block
        self.frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.table = torch.zeros(0, dim)

    def grow(self, positions: int) -> None:
        """Let the table [position, cos | sin] cover that many positions."""
        pages = [self.table]
        for start in range(len(self.table), positions, self.block):
            angle = torch.arange(start, start + self.block, dtype=torch.float64)[:, None] * self.frequency
            pages.append(torch.cat((angle.cos(), angle.sin()), dim=-1).float())
        self.table = torch.cat(pages)

    def __call__(self, x: Tensor, position: Tensor) -> Tensor:
        """x: [B, n, heads, width] at position [B, n]; back in x's dtype."""
        if not self.dim:
            return x
        if (last := int(position.max())) >= len(self.table):
            self.grow(max(last + 1, 2 * len(self.table)))
        cos, sin = self.table.to(x.device)[position][:, :, None].chunk(2, dim=-1)
        low, high, rest = x.float().split((self.dim // 2, self.dim // 2, x.shape[-1] - self.dim), dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1).to(x.dtype)
