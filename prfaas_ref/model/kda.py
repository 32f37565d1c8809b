"""Kimi Delta Attention as a layer: projections, short convolution, gates, tiles, gated norm (Kimi Linear, section 3).

Rows come as [B, n, d]: n tokens of one request, or one token of each of B. All it remembers is its state: S
[B, H, K, V] float32, the memory at the last tile boundary; X, UW and P, the open tile's rows (tile.py); and `window`
[B, taps - 1, channels], the short convolution's last inputs, before activation.
"""

from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, l2_norm, rms_norm, sigmoid, silu, softplus
from prfaas_ref.model.kinds import KDAShape
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import LayerState
from prfaas_ref.model.tile import empty_tiles, next_row, tile_rows

TILES_AT_ONCE = 32
"""Tiles whose rows prefill computes together: enough to keep the machine busy, few enough to stay in its caches."""


class KDA:
    """One layer. `weights` maps the published names below `self_attn.` to tensors."""

    @staticmethod
    def weight_shapes(shape: KDAShape, d: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights. K, not V, is the rank of the decay gate, and V that of the output gate."""
        K, V, HK, HV = shape.key_dim, shape.value_dim, shape.num_heads, shape.num_value_heads
        taps = shape.conv_kernel_size
        return {
            "q_proj.weight": (HK * K, d),
            "k_proj.weight": (HK * K, d),
            "v_proj.weight": (HV * V, d),
            "q_conv1d.weight": (HK * K, 1, taps),
            "k_conv1d.weight": (HK * K, 1, taps),
            "v_conv1d.weight": (HV * V, 1, taps),
            "A_log": (1, 1, HV, 1),
            "f_a_proj.weight": (K, d),
            "f_b_proj.weight": (HV * K, K),
            "dt_bias": (HV * K,),
            "b_proj.weight": (HV, d),
            "g_a_proj.weight": (V, d),
            "g_b_proj.weight": (HV * V, V),
            "o_norm.weight": (V,),
            "o_proj.weight": (d, HV * V),
        }

    def __init__(self, config: HybridConfig, shape: KDAShape, weights: dict[str, Tensor]) -> None:
        self.config, self.shape = config, shape
        linear = lambda *names: Linear.of([weights[f"{name}.weight"] for name in names], config.grid.slab)  # noqa: E731
        self.into = linear("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")
        self.widths = (shape.conv_channels, shape.key_dim, shape.value_dim, shape.num_value_heads)
        self.f_b, self.g_b, self.out = linear("f_b_proj"), linear("g_b_proj"), linear("o_proj")
        taps = torch.cat([weights[f"{x}_conv1d.weight"] for x in "qkv"])  # [channels, 1, taps], as published
        self.taps = rearrange(taps.float(), "c 1 tap -> tap c").contiguous()
        speed = torch.exp(weights["A_log"].float().reshape(shape.num_value_heads, 1))
        self.gate_scale = -speed if shape.gate_lower_bound is None else speed  # see `decay`
        self.dt_bias = weights["dt_bias"].float().reshape(shape.num_value_heads, shape.key_dim)
        self.norm = weights["o_norm.weight"].float()

    def __call__(self, x: Tensor, state: LayerState, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Returns [B, n, d] and advances `state` in place."""
        B, n, _ = x.shape
        conv_in, f, g, b = self.into(x.flatten(0, 1)).split(self.widths, dim=-1)
        q, k, v = self.convolve(conv_in.reshape(B, n, -1), state)
        a = self.decay(self.f_b(f)).view(B, n, -1, self.shape.key_dim)
        beta = sigmoid(b.float()).view(B, n, -1)
        o = self.delta_rule(q, k, v, a, beta, state, schedule)
        gate = sigmoid(self.g_b(g).float()).view_as(o)
        o = (rms_norm(o, self.norm, self.config.rms_norm_eps) * gate).to(x.dtype)
        return self.out(rearrange(o, "b n h v -> (b n) (h v)")).view(B, n, -1)

    def decay(self, f: Tensor) -> Tensor:
        """a = exp(g) [rows, H, K], what one step leaves of each key channel, from the gate's input f [rows, H K].

        g = -exp(A_log) softplus(f + dt_bias), or bound * sigmoid(exp(A_log) (f + dt_bias)) where there is a bound.
        """
        f = rearrange(f.float(), "m (h k) -> m h k", k=self.shape.key_dim) + self.dt_bias
        if self.shape.gate_lower_bound is None:
            return torch.exp(self.gate_scale * softplus(f))
        return torch.exp(self.shape.gate_lower_bound * sigmoid(self.gate_scale * f))

    def convolve(self, x: Tensor, state: LayerState) -> tuple[Tensor, Tensor, Tensor]:
        """The causal short convolution and silu of x [B, n, channels].

        Returns q, k [B, n, H, K] of unit length, q scaled by K^-0.5, and v [B, n, H, V], for the H value heads.
        """
        n, K, HK, HV = x.shape[1], self.shape.key_dim, self.shape.num_heads, self.shape.num_value_heads
        x = torch.cat((state.window, x), dim=1)
        state.window = x[:, n:].clone()
        x = x.float()
        y = self.taps[0] * x[:, :n]
        for j in range(1, len(self.taps)):  # added in a fixed order, the oldest input first
            y = y + self.taps[j] * x[:, j : j + n]
        qk, v = silu(y).split((2 * HK * K, y.shape[-1] - 2 * HK * K), dim=-1)
        qk = l2_norm(rearrange(qk, "b n (h k) -> b n h k", k=K))
        if HV > HK:  # each key head serves HV / HK consecutive value heads
            qk = qk.repeat_interleave(HV // HK, dim=2)
        q, k = qk.chunk(2, dim=2)
        return q * K**-0.5, k, rearrange(v, "b n (h v) -> b n h v", h=HV)

    def delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: LayerState, schedule: Schedule
    ) -> Tensor:
        """q, k, a: [B, n, H, K], v: [B, n, H, V], beta: [B, n, H]; n or B is 1. The tokens' outputs [B, n, H, V]: one
        row of each request's tile, or the tiles of one request in order."""
        inputs, C = (q, k, v, a, beta), self.config.grid.tile
        if schedule.n == 1:
            return next_row(*(x[:, 0] for x in inputs), state, schedule.row)[:, None]
        outputs = []
        for t0, t1 in pairwise(tile_edges(schedule.start[0], schedule.end, C)):
            rows = slice(t0 - schedule.start[0], t1 - schedule.start[0])
            N = max(1, (t1 - t0) // C)
            tiles = empty_tiles(N, state) if t0 % C == 0 else state
            parts = (rearrange(x[0, rows], "(N n) h ... -> N h n ...", N=N) for x in inputs)
            o, S = tile_rows(*parts, state.S[0], tiles, t0 % C)
            tiles = tiles if t1 % C else empty_tiles(1, state)
            state.S, state.X, state.UW, state.P = S[None], tiles.X, tiles.UW, tiles.P
            outputs.append(rearrange(o, "N h n v -> 1 (N n) h v"))
        return torch.cat(outputs, dim=1)


def tile_edges(start: int, end: int, C: int) -> list[int]:
    """Positions from start to end at which to cut: the outermost tile ends, and every TILES_AT_ONCE tiles between."""
    first, last = -(-start // C) * C, end // C * C
    inner = {*range(first, last, C * TILES_AT_ONCE), last}
    return [start, *sorted(t for t in inner if start < t < end), end]
