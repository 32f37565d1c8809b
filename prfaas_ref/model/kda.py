"""Kimi Delta Attention as a layer: projections, short convolution, gates, the tiles, gated norm (Kimi Linear, section 3).

Rows come as [B, n, d]: n tokens of one request, or one token of each of B. All it remembers is its `KDAState`.
"""

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, l2_norm, rms_norm, sigmoid, silu, softplus
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import KDAState
from prfaas_ref.model.tile import RowIndex, next_row, tile_rows


class KDA:
    """One layer. `weights` maps the published names below `self_attn.` to tensors."""

    def __init__(self, config: HybridConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        H, K, V = config.linear_num_heads, config.linear_key_dim, config.linear_value_dim
        linear = lambda *names: Linear.of([weights[f"{name}.weight"] for name in names], config.grid.slab)  # noqa: E731
        self.into = linear("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")
        self.widths = (config.conv_channels, K, V, H)
        self.f_b, self.g_b, self.out = linear("f_b_proj"), linear("g_b_proj"), linear("o_proj")
        taps = torch.cat([weights[f"{x}_conv1d.weight"] for x in "qkv"])  # [channels, 1, taps], as published
        self.taps = rearrange(taps.float(), "c 1 tap -> tap c").contiguous()
        self.decay = torch.exp(weights["A_log"].float().reshape(H, 1))
        self.dt_bias = weights["dt_bias"].float().reshape(H, K)
        self.norm = weights["o_norm.weight"].float()

    def __call__(self, x: Tensor, state: KDAState, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Returns [B, n, d] and advances `state` in place."""
        B, n, _ = x.shape
        per_head = dict(pattern="(b n) (h k) -> b n h k", b=B, h=self.config.linear_num_heads)
        conv_in, f, g, b = self.into(x.flatten(0, 1)).split(self.widths, dim=-1)
        q, k, v = self.convolve(conv_in.reshape(B, n, -1), state)
        # The gate in log space is g = -exp(A_log) softplus(f + dt_bias); a = exp(g) is the decay of one step.
        a = torch.exp(-self.decay * softplus(rearrange(self.f_b(f).float(), **per_head) + self.dt_bias))
        beta = sigmoid(b.float()).view(B, n, -1)
        o = self.delta_rule(q, k, v, a, beta, state, schedule)
        gate = sigmoid(rearrange(self.g_b(g).float(), **per_head))
        o = (rms_norm(o, self.norm, self.config.rms_norm_eps) * gate).to(x.dtype)
        return self.out(rearrange(o, "b n h v -> (b n) (h v)")).view(B, n, -1)

    def convolve(self, x: Tensor, state: KDAState) -> tuple[Tensor, Tensor, Tensor]:
        """The causal convolution of 4 taps and silu: q, k [B, n, H, K] of unit length, q scaled by K^-0.5, v [B, n, H, V]."""
        n, H, K = x.shape[1], self.config.linear_num_heads, self.config.linear_key_dim
        x = torch.cat((state.window, x), dim=1)
        state.window = x[:, n:].clone()
        x = x.float()
        y = self.taps[0] * x[:, :n]
        for j in range(1, len(self.taps)):  # four products, added in a fixed order, the oldest input first
            y = y + self.taps[j] * x[:, j : j + n]
        q, k, v = silu(y).split((H * K, H * K, y.shape[-1] - 2 * H * K), dim=-1)
        q, k, v = (rearrange(part, "b n (h k) -> b n h k", h=H) for part in (q, k, v))
        return l2_norm(q) * K**-0.5, l2_norm(k), v

    def delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: KDAState, schedule: Schedule
    ) -> Tensor:
        """The n tokens [B, n, H, ..] in order: rows until the open tile is full, then whole tiles, then rows again."""
        n, grid = schedule.n, self.config.grid
        inputs = (q, k, v, a, beta)
        if n == 1:
            return next_row(*(x[:, 0] for x in inputs), state.S, state.tile, schedule.row, grid)[:, None]
        head = min(n, -schedule.start[0] % grid.tile)
        whole = head + (n - head) // grid.tile * grid.tile

        def by_rows(t0: int, t1: int) -> list[Tensor]:
            at = RowIndex.every(grid)
            rows = [(t, at[(schedule.start[0] + t) % grid.tile]) for t in range(t0, t1)]
            return [next_row(*(x[:, t] for x in inputs), state.S, state.tile, row, grid)[:, None] for t, row in rows]

        o = by_rows(0, head)
        if whole > head:
            tiles = (rearrange(x[0, head:whole], "(n c) h ... -> n h c ...", c=grid.tile) for x in inputs)
            rows, state.S[0] = tile_rows(*tiles, state.S[0], grid)
            o.append(rearrange(rows, "n h c v -> 1 (n c) h v"))
        return torch.cat(o + by_rows(whole, n), dim=1)
