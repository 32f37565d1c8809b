"""The model as a differentiable function of its weights, for training: whole sequences, no state, no exact bits.

It is the function of `HybridModel` to a tolerance (tests/toy), for KDA and MLA layers with SwiGLU, written for speed on
a CPU: matrix products in the dtype asked for, the rest in float32. The sequences of a batch lie end to end in rows
[M = B * T], T a multiple of the tile; only the convolution, the walk of the state and attention look across rows.
Serving uses nothing of it.

The tile equations are those of tile.py. For speed the decays are kept here as running sums G of the log gates, and all
scores of a tile come from one product: (k_i exp(G_i - G_mid)) . (k_j exp(G_mid - G_j)). That would overflow for gates
far below exp(-8), so they are clamped there: a memory multiplied by exp(-8) is forgotten anyway.

Letters: M rows, Z tiles x heads, C rows of a tile, K key dim, V value dim.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from prfaas_ref.model.config import KDA, MLA, HybridConfig
from prfaas_ref.model.kinds import KDAShape, MLAShape
from prfaas_ref.model.layers import below

Weights = dict[str, Tensor]
LOWEST_LOG_GATE = -8.0


def logits(weights: Weights, tokens: Tensor, config: HybridConfig, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Next-token logits [B * T, vocab] for tokens [B, T] (int64), the products taken in `dtype`."""
    T, eps = tokens.shape[1], config.rms_norm_eps
    x = F.embedding(tokens.flatten(), weights["model.embed_tokens.weight"])
    for i, kind in enumerate(config.layer_kinds):
        w = below(weights, f"model.layers.{i}.")
        mixer = {KDA: kda, MLA: mla}[kind]
        h = norm(x, w["input_layernorm.weight"], eps).to(dtype)
        x = x + mixer(h, below(w, "self_attn."), config.layers[i], config, T)
        h = norm(x, w["post_attention_layernorm.weight"], eps).to(dtype)
        x = x + swiglu(h, below(w, "mlp."))
    return linear(norm(x, weights["model.norm.weight"], eps).to(dtype), weights["lm_head.weight"])


def linear(x: Tensor, *weights: Tensor) -> Tensor:
    """One product, in x's dtype, for several weights stacked along their outputs."""
    return F.linear(x, torch.cat(weights).to(x.dtype))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def swiglu(h: Tensor, w: Weights) -> Tensor:
    gate, up = linear(h, w["gate_proj.weight"], w["up_proj.weight"]).float().chunk(2, dim=-1)
    return linear((F.silu(gate) * up).to(h.dtype), w["down_proj.weight"])


# KDA ------------------------------------------------------------------------------------------------------------------


def kda(h: Tensor, w: Weights, shape: KDAShape, config: HybridConfig, T: int) -> Tensor:
    """One KDA layer without its residual, with as many value heads as heads. h: [M, d], normed."""
    H, K, V, C = shape.num_heads, shape.key_dim, shape.value_dim, config.grid.tile
    into = linear(h, *(w[f"{x}_proj.weight"] for x in ("q", "k", "v", "f_a", "g_a", "b")))
    conv_in, f, g, b = into.split((shape.conv_channels, K, V, H), dim=-1)
    taps = torch.cat([w[f"{x}_conv1d.weight"] for x in "qkv"]).squeeze(1)
    convolved = F.silu(Convolve.apply(conv_in, taps, T))
    log_gates = -torch.exp(w["A_log"].reshape(H, 1)) * F.softplus(
        (linear(f, w["f_b_proj.weight"]).float() + w["dt_bias"]).view(-1, H, K)
    )
    tile = Tile.of(convolved, log_gates.clamp(min=LOWEST_LOG_GATE), torch.sigmoid(b.float()), C)
    U, W = Solve.apply(tile.L, tile.rhs).split((V, K), dim=-1)
    by_time = lambda t: rearrange(t, "(b n h) ... -> n (b h) ...", n=T // C, h=H).contiguous()  # noqa: E731
    Vn, S = Walk.apply(*(by_time(t) for t in (U, W, tile.k_end, tile.end)))
    Vn, S = (rearrange(t, "n (b h) ... -> (b n h) ...", h=H) for t in (Vn, S))
    o = rearrange(torch.bmm(tile.q, S) + torch.bmm(tile.A_q, Vn), "(n h) c v -> (n c) h v", h=H)
    o = norm(o, w["o_norm.weight"], config.rms_norm_eps).flatten(1)
    return linear((o * torch.sigmoid(linear(g, w["g_b_proj.weight"]).float())).to(h.dtype), w["o_proj.weight"])


class Tile(NamedTuple):
    """What every tile's solution is made of (tile.py has the equations).

    L [Z, C, C]: beta_i A_ij below the diagonal. A_q [Z, C, C]: scores of the queries. rhs [Z, C, V+K]: beta [v | k
    decayed from the start]. q [Z, C, K]: decayed from the start. k_end [Z, C, K]: decayed to the end. end [Z, K]: the
    decay of the whole tile.
    """

    L: Tensor
    A_q: Tensor
    rhs: Tensor
    q: Tensor
    k_end: Tensor
    end: Tensor

    @classmethod
    def of(cls, convolved: Tensor, log_gates: Tensor, beta: Tensor, C: int) -> "Tile":
        """convolved: [M, H * (2K + V)], log_gates: [M, H, K], beta: [M, H]."""
        H, K = log_gates.shape[1:]
        tiles = lambda t: rearrange(t, "(n c) (h e) -> (n h) c e", c=C, h=H)  # noqa: E731
        q, k, v = (tiles(t) for t in convolved.split((H * K, H * K, convolved.shape[1] - 2 * H * K), dim=-1))
        q, k, beta = unit(q) * K**-0.5, unit(k), tiles(beta)
        G = torch.matmul(torch.ones(C, C).tril(), tiles(log_gates.flatten(1)))
        middle, end = G[:, C // 2 - 1, None], G[:, -1:]
        from_middle, from_start = torch.exp(G - middle), torch.exp(G)
        kq = torch.cat((k * from_middle, q * from_middle), dim=1)
        A_k, A_q = torch.bmm(kq, (k * torch.exp(middle - G)).transpose(1, 2)).chunk(2, dim=1)
        rhs = torch.cat((beta * v, beta * k * from_start), dim=-1)
        L = A_k.tril(-1) * beta  # masked first: above the diagonal the scores may be infinite
        return cls(L, A_q.tril(), rhs, q * from_start, k * torch.exp(end - G), torch.exp(end[:, 0]))


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class Convolve(torch.autograd.Function):
    """The causal convolution over each sequence: rows x [M, channels], taps [channels, 4], the oldest input first."""

    @staticmethod
    def forward(ctx, x: Tensor, taps: Tensor, T: int) -> Tensor:
        ctx.dtype, n_taps = x.dtype, taps.shape[1]
        x = F.pad(x.view(-1, T, x.shape[-1]).float(), (0, 0, n_taps - 1, 0))
        y = x[:, :T] * taps[:, 0]
        for j in range(1, n_taps):
            y.addcmul_(x[:, j : j + T], taps[:, j].contiguous())
        ctx.save_for_backward(x, taps)
        return y.flatten(0, 1)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, taps = ctx.saved_tensors
        dy = dy.view(x.shape[0], -1, x.shape[-1])
        T, n_taps, dx, d_taps = dy.shape[1], taps.shape[1], torch.zeros_like(x), torch.empty_like(taps)
        for j in range(n_taps):
            dx[:, j : j + T].addcmul_(dy, taps[:, j].contiguous())
            d_taps[:, j] = (dy * x[:, j : j + T]).sum((0, 1))
        return dx[:, n_taps - 1 :].flatten(0, 1).to(ctx.dtype), d_taps, None


class Solve(torch.autograd.Function):
    """X of (I + L) X = rhs, L [Z, C, C] strictly lower; the inverse is (I - L)(I + L^2)(I + L^4)(I + L^8) at C = 16."""

    @staticmethod
    def forward(ctx, L: Tensor, rhs: Tensor) -> Tensor:
        inverse, power, reach = torch.eye(L.shape[-1]) - L, L, 2
        while reach < L.shape[-1]:
            power = torch.bmm(power, power)
            inverse = torch.baddbmm(inverse, inverse, power)
            reach *= 2
        X = torch.bmm(inverse, rhs)
        ctx.save_for_backward(inverse, X)
        return X

    @staticmethod
    def backward(ctx, dX: Tensor) -> tuple[Tensor, Tensor]:
        inverse, X = ctx.saved_tensors
        d_rhs = torch.bmm(inverse.transpose(1, 2), dX)
        return -torch.bmm(d_rhs, X.transpose(1, 2)).tril(-1), d_rhs


class Walk(torch.autograd.Function):
    """The state through the tiles: Vn = U - W S, then S = end S + k_end^T Vn. All [n, B * H, ..], time first.

    Returns the written values Vn, and S [n, B * H, K, V] before each tile.
    """

    @staticmethod
    def forward(ctx, U: Tensor, W: Tensor, k_end: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        Vn, S = torch.empty_like(U), U.new_zeros(*end.shape, U.shape[-1])
        for n in range(len(U)):
            torch.baddbmm(U[n], W[n], S[n], alpha=-1, out=Vn[n])
            if n + 1 < len(U):
                torch.baddbmm(end[n, :, :, None] * S[n], k_end[n].transpose(1, 2), Vn[n], out=S[n + 1])
        ctx.save_for_backward(W, k_end, end, Vn, S)
        return Vn, S

    @staticmethod
    def backward(ctx, dVn: Tensor, dS: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        W, k_end, end, Vn, S = ctx.saved_tensors
        dU, after = torch.empty_like(Vn), torch.zeros_like(S)  # after[n]: the gradient of the state that tile n leaves
        for n in reversed(range(len(W))):
            torch.baddbmm(dVn[n], k_end[n], after[n], out=dU[n])
            if n:
                kept = dS[n] + end[n, :, :, None] * after[n]
                torch.baddbmm(kept, W[n].transpose(1, 2), dU[n], alpha=-1, out=after[n - 1])
        flat = lambda t: t.flatten(0, 1)  # noqa: E731
        dW = -torch.bmm(flat(dU), flat(S).transpose(1, 2)).view_as(W)
        d_k_end = torch.bmm(flat(Vn), flat(after).transpose(1, 2)).view_as(k_end)
        return dU, dW, d_k_end, (after * S).sum(-1)


# MLA ------------------------------------------------------------------------------------------------------------------


def mla(h: Tensor, w: Weights, shape: MLAShape, _config: HybridConfig, T: int) -> Tensor:
    """One MLA layer without its residual: not absorbed, the cache blown up to heads. h: [M, d], normed."""
    H, nope, rope, v_dim = shape.num_heads, shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim
    into = linear(h, w["q_proj.weight"], w["kv_a_proj_with_mqa.weight"])
    q, c, k_shared = into.split((H * (nope + rope), shape.kv_lora_rank, rope), dim=-1)
    c = norm(c.float(), w["kv_a_layernorm.weight"], shape.latent_norm_eps).to(h.dtype)
    heads = lambda t: rearrange(t, "(b t) (h e) -> b h t e", t=T, h=H)  # noqa: E731
    k, v = heads(linear(c, w["kv_b_proj.weight"])).split((nope, v_dim), dim=-1)
    k_shared = rearrange(k_shared, "(b t) e -> b 1 t e", t=T).expand(-1, H, -1, -1)
    v = F.pad(v, (0, nope + rope - v_dim))  # the fast kernel wants keys and values of one width
    o = F.scaled_dot_product_attention(heads(q), torch.cat((k, k_shared), dim=-1), v, is_causal=True)[..., :v_dim]
    return linear(rearrange(o, "b h t v -> (b t) (h v)"), w["o_proj.weight"])
