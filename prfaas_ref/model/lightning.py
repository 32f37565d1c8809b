"""Lightning attention: linear attention with a constant decay per head, no delta rule, no convolution (Ring-2.5).

    S_t = lambda S_{t-1} + k_t v_t^T        o_t = S_t^T q_t        lambda = exp(-2^(-8 h / H)), h = 1 .. H

By tiles, with the state S at the tile's start, i counted from 0 in the tile:

    o_i   = lambda^{i+1} q_i S + sum_{j<=i} lambda^{i-j} (q_i . k_j) v_j
    S_end = lambda^C S + sum_j lambda^{C-1-j} k_j v_j^T

As in tile.py, row i needs the tile's rows <= i only, and decode computes the tile's next row. What a request remembers
is S [B, H, K, V] at the last tile boundary and the open tile's rows k [B, H, C, K] and v [B, H, C, V], all float32.
"""

from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, add_bmm_rows, bmm_rows, l2_norm, rms_norm, sigmoid
from prfaas_ref.model.kinds import LightningShape
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import LayerState


class Lightning:
    """One layer. `weights` maps the names below `self_attn.` to tensors."""

    @staticmethod
    def weight_shapes(shape: LightningShape, d: int) -> dict[str, tuple[int, ...]]:
        H, K, V = shape.num_heads, shape.key_dim, shape.value_dim
        return {
            "q_proj.weight": (H * K, d),
            "k_proj.weight": (H * K, d),
            "v_proj.weight": (H * V, d),
            "g_proj.weight": (H * V, d),
            "o_norm.weight": (V,),
            "o_proj.weight": (d, H * V),
        }

    def __init__(self, config: HybridConfig, shape: LightningShape, weights: dict[str, Tensor]) -> None:
        self.config, self.shape, C = config, shape, config.grid.tile
        self.into = Linear.of([weights[f"{x}_proj.weight"] for x in "qkvg"], config.grid.slab)
        self.norm, self.out = weights["o_norm.weight"].float(), Linear.of([weights["o_proj.weight"]], config.grid.slab)
        head = torch.arange(1, shape.num_heads + 1, dtype=torch.float64)
        speed = 2 ** (-8 * head / shape.num_heads)
        row = torch.arange(C, dtype=torch.float64)
        steps = row[:, None] - row
        decay = torch.exp(-speed[:, None, None] * steps.clamp(min=0)) * (steps >= 0)
        self.decay = decay.float().to(self.norm.device)  # [H, C, C], from row j to row i >= j
        self.from_start = torch.exp(-speed[:, None] * (row + 1)).float().to(self.norm.device)  # [H, C]

    def __call__(self, x: Tensor, state: LayerState, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Returns [B, n, d] and advances `state` in place."""
        B, n, _ = x.shape
        H, K, V = self.shape.num_heads, self.shape.key_dim, self.shape.value_dim
        q, k, v, g = self.into(x.flatten(0, 1)).float().split((H * K, H * K, H * V, H * V), dim=-1)
        q, k, v, g = (rearrange(t, "(b n) (h k) -> b h n k", b=B, h=H) for t in (q, k, v, g))
        q, k = l2_norm(q), l2_norm(k)
        if n == 1:
            o = self.next_row(q, k, v, state, schedule)
        else:
            C, start = self.config.grid.tile, schedule.start[0]
            edges = [start, *range((start // C + 1) * C, schedule.end, C), schedule.end]
            parts = [slice(t0 - start, t1 - start) for t0, t1 in pairwise(edges)]
            o = [self.rows(q[:, :, t], k[:, :, t], v[:, :, t], state, (start + t.start) % C) for t in parts]
            o = torch.cat(o, dim=2)
        o = (rms_norm(o, self.norm, self.config.rms_norm_eps) * sigmoid(g)).to(x.dtype)
        return self.out(rearrange(o, "b h n v -> (b n) (h v)")).view(B, n, -1)

    def rows(self, q: Tensor, k: Tensor, v: Tensor, state: LayerState, first: int) -> Tensor:
        """Rows first, first + 1, ... [1, H, n, ..] of one request's tile: their outputs [1, H, n, V]."""
        rows = slice(first, first + q.shape[2])
        state.k[:, :, rows], state.v[:, :, rows] = k, v
        return self.finish(
            q, state, self.decay[:, rows], self.from_start[:, rows], [0] if rows.stop == self.config.grid.tile else []
        )

    def next_row(self, q: Tensor, k: Tensor, v: Tensor, state: LayerState, schedule: Schedule) -> Tensor:
        """The next row [B, H, 1, ..] of each request's tile: its output [B, H, 1, V]."""
        at = schedule.row
        state.k[at.request, :, at.row], state.v[at.request, :, at.row] = k[:, :, 0], v[:, :, 0]
        decay = rearrange(self.decay[:, at.row], "h b c -> b h 1 c")
        return self.finish(q, state, decay, rearrange(self.from_start[:, at.row], "h b -> b h 1"), at.last)

    def finish(self, q: Tensor, state: LayerState, decay: Tensor, from_start: Tensor, last: list[int]) -> Tensor:
        """Outputs of rows q [B, H, n, K] whose keys and values are in the tile; folds the tiles of requests `last`."""
        inside = bmm_rows(bmm_rows(q, state.k.transpose(-1, -2)) * decay, state.v)
        o = bmm_rows(q * from_start[..., None], state.S) + inside
        if last:
            k = state.k[last] * self.decay[:, -1, :, None]
            S = self.from_start[:, -1, None, None] * state.S[last]
            state.S[last] = add_bmm_rows(S, k.transpose(-1, -2), state.v[last])
            state.k[last], state.v[last] = 0.0, 0.0
        return o
