"""The same weights computed the usual way, without the contract: the negative control, and the yardstick of its cost.

`prefill` is one call with whatever the library offers: a triangular solve, SDPA, F.conv1d, built-in activations, decays
divided by each other. `with_recurrent_decode` keeps all of the model but KDA's decode, which becomes the plain
recurrence. Both are the same function in exact arithmetic, and give other bits.
"""

from copy import copy

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from prfaas_ref.model.ffn import SwiGLU
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.kda import KDA
from prfaas_ref.model.mla import MLA
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import LayerState
from prfaas_ref.model.tile import fold


class RecurrentKDA(KDA):
    """KDA that decodes by the recurrence, token by token."""

    def delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: LayerState, schedule: Schedule
    ) -> Tensor:
        if schedule.n > 1:
            return super().delta_rule(q, k, v, a, beta, state, schedule)
        (B, _, H, K), V = q.shape, v.shape[-1]
        S = (state.S * a[:, 0, :, :, None]).view(B * H, K, V)
        q, k, v = (rearrange(x, "b 1 h k -> (b h) 1 k") for x in (q, k, v))
        u = beta.reshape(B * H, 1, 1) * (v - torch.bmm(k, S))
        S = torch.baddbmm(S, k.transpose(1, 2), u)
        state.S = S.view(B, H, K, V)
        return torch.bmm(q, S).view(B, 1, H, V)


def with_recurrent_decode(model: HybridModel) -> HybridModel:
    """The same model, of which only KDA's decode is the plain recurrence (from a tile end on)."""
    other = copy(model)
    other.layers = [copy(layer) for layer in model.layers]
    for layer in other.layers:
        if isinstance(layer.mixer, KDA):
            layer.mixer = copy(layer.mixer)
            layer.mixer.__class__ = RecurrentKDA
    return other


def prefill(model: HybridModel, tokens: Tensor) -> Tensor:
    """Logits [vocab] after tokens [n], in one call. For models of kda, mla and dense layers."""
    eps = model.config.rms_norm_eps
    x = model.embed[tokens]
    for layer in model.layers:
        mixer = {KDA: kda, MLA: mla}[type(layer.mixer)]
        x = x + mixer(layer.mixer, F.rms_norm(x, x.shape[-1:], layer.input_norm.to(x.dtype), eps))
        x = x + swiglu(layer.ffn, F.rms_norm(x, x.shape[-1:], layer.post_norm.to(x.dtype), eps))
    last = F.rms_norm(x[-1:], x.shape[-1:], model.norm.to(x.dtype), eps)
    return F.linear(last, model.head.weight)[0, : model.head.out].float()


def swiglu(ffn: SwiGLU, x: Tensor) -> Tensor:
    gate, up = F.linear(x, ffn.into.weight)[:, : ffn.into.out].chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, ffn.down.weight)[:, : ffn.down.out]


def mla(layer: MLA, x: Tensor) -> Tensor:
    """Keys and values blown up to heads, then SDPA."""
    shape = layer.shape
    q, c, k_shared = F.linear(x, layer.into.weight)[:, : layer.into.out].split(layer.widths, dim=-1)
    if layer.q_up is not None:
        q = F.linear(F.rms_norm(q, q.shape[-1:], layer.q_norm.to(x.dtype), shape.latent_norm_eps), layer.q_up.weight)
    c = F.rms_norm(c, c.shape[-1:], layer.latent_norm.to(x.dtype), shape.latent_norm_eps)
    q = rearrange(
        q[:, : layer.up_k.shape[0] * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)],
        "t (h e) -> h t e",
        h=shape.num_heads,
    )
    k = torch.einsum("tr,her->hte", c, layer.up_k)
    k = torch.cat((k, k_shared.expand(shape.num_heads, -1, -1)), dim=-1)
    v = torch.einsum("tr,hrv->htv", c, layer.up_v)
    o = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=layer.scale)[0]
    return F.linear(rearrange(o, "h t v -> t (h v)"), layer.out.weight)[:, : layer.out.out]


def kda(layer: KDA, x: Tensor) -> Tensor:
    """Chunks of 16 with a library solve; decays from cumulative sums, inaccurate where gates are strong."""
    shape, C = layer.shape, layer.config.grid.tile
    conv_in, f, g, b = F.linear(x, layer.into.weight)[:, : layer.into.out].split(layer.widths, dim=-1)
    y = F.conv1d(F.pad(conv_in.t().float(), (len(layer.taps) - 1, 0)), layer.taps.t()[:, None], groups=conv_in.shape[1])
    qk, v = F.silu(y).t().split((2 * shape.num_heads * shape.key_dim, shape.num_value_heads * shape.value_dim), dim=-1)
    qk = F.normalize(rearrange(qk, "t (h k) -> t h k", k=shape.key_dim), dim=-1)
    q, k = qk.repeat_interleave(shape.num_value_heads // shape.num_heads, dim=1).chunk(2, dim=1)
    v = rearrange(v, "t (h v) -> t h v", h=shape.num_value_heads)
    f = F.linear(f, layer.f_b.weight)[:, : layer.f_b.out].float()
    g_log = layer.gate_scale * F.softplus(rearrange(f, "t (h k) -> t h k", k=shape.key_dim) + layer.dt_bias)
    q, k, v, g_log, beta = (
        rearrange(F.pad(t, (0, 0, 0, 0, 0, -len(x) % C)), "(n c) h k -> n h c k", c=C)
        for t in (q * shape.key_dim**-0.5, k, v, g_log, torch.sigmoid(b.float())[..., None])
    )
    o = chunked_delta_rule(q, k, v, g_log.cumsum(2), beta)
    o = rearrange(o, "n h c v -> (n c) h v")[: len(x)]
    gate = torch.sigmoid(F.linear(g, layer.g_b.weight)[:, : layer.g_b.out].float()).view_as(o)
    o = F.rms_norm(o, o.shape[-1:], layer.norm, layer.config.rms_norm_eps) * gate
    return F.linear(o.flatten(1).to(x.dtype), layer.out.weight)[:, : layer.out.out]


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, G: Tensor, beta: Tensor) -> Tensor:
    """q, k: [N, H, C, K], v: [N, H, C, V], G: cumulative log decays [N, H, C, K], beta: [N, H, C, 1]: outputs."""
    middle = G[..., G.shape[2] // 2, None, :]
    down, up = torch.exp((G - middle).clamp(max=80)), torch.exp((middle - G).clamp(max=80))
    A = (beta * (k * down) @ (k * up).mT).tril(-1)
    R = ((q * down) @ (k * up).mT).tril()
    start = torch.exp(G)
    rhs = torch.cat((beta * v, beta * k * start), dim=-1)
    UW = torch.linalg.solve_triangular(A, rhs, upper=False, unitriangular=True)
    U, W = UW.split((v.shape[-1], k.shape[-1]), dim=-1)
    P = start[..., -1, :, None]
    X = k * torch.exp(G[..., -1:, :] - G)
    starts = [k.new_zeros(k.shape[1], k.shape[3], v.shape[3])]
    for chunk in zip(X, U, W, P, strict=True):
        starts.append(fold(starts[-1], *chunk))
    S = torch.stack(starts[:-1])
    return (q * start - R @ W) @ S + R @ U
