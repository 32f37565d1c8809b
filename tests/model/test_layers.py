"""Every layer kind, and the experts, against a naive float64 version written from its definition."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from prfaas_ref.model.config import HybridConfig, MoE
from prfaas_ref.model.kinds import LightningShape
from prfaas_ref.model.layers import MIXERS
from prfaas_ref.model.moe import MixtureOfExperts
from prfaas_ref.model.recurrence import kda_recurrence
from prfaas_ref.model.rope import Rope
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import LayerState
from tests.model.shapes import GQA, LIGHTNING, SLIDING, WIDTHS, kda, mla, same

T, D = 150, WIDTHS["hidden_size"]
SHAPES = {
    "kda, grouped value heads": ("kda", kda(2, 6)),
    "kda, bounded gate": ("kda", kda(3, 3, -5.0)),
    "mla": ("mla", mla(3)),
    "mla, low-rank q": ("mla", type(mla(1))(5, 48, 16, 16, 32, q_lora_rank=32)),
    "grouped queries": ("gqa", GQA),
    "window": ("sliding", SLIDING),
    "lightning": ("lightning", LIGHTNING),
}


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        x = torch.randn(shape, generator=g)
        return 1 + 0.2 * x if "norm" in name else x if name in ("A_log", "dt_bias") else x * shape[-1] ** -0.5

    return {name: draw(name, shape) for name, shape in shapes.items()}


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
    """q, k, v: [T, heads, width]."""
    scores = torch.einsum("thd,shd->hts", q, k) * scale
    distance = torch.arange(T)[:, None] - torch.arange(T)
    hidden = (distance < 0) | (distance >= (window or T))
    return torch.einsum("hts,shd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def naive_kda(x: Tensor, w: dict[str, Tensor], shape) -> Tensor:
    H, HV, K, V = shape.num_heads, shape.num_value_heads, shape.key_dim, shape.value_dim

    def conv(name: str) -> Tensor:
        y = F.pad((x @ w[f"{name}_proj.weight"].T).T, (3, 0))
        return F.silu(F.conv1d(y, w[f"{name}_conv1d.weight"], groups=len(y))).T

    q, k = (F.normalize(conv(n).view(T, H, K), dim=-1).repeat_interleave(HV // H, 1) for n in "qk")
    f = (x @ w["f_a_proj.weight"].T @ w["f_b_proj.weight"].T + w["dt_bias"]).view(T, HV, K)
    speed = w["A_log"].view(HV, 1).exp()
    g = -speed * F.softplus(f) if shape.gate_lower_bound is None else shape.gate_lower_bound * (speed * f).sigmoid()
    beta = (x @ w["b_proj.weight"].T).sigmoid()
    S = torch.zeros(1, HV, K, V)
    o, _ = kda_recurrence(*(t[None] for t in (q * K**-0.5, k, conv("v").view(T, HV, V), g, beta)), S)
    gate = (x @ w["g_a_proj.weight"].T @ w["g_b_proj.weight"].T).view(T, HV, V).sigmoid()
    return (rms(o[0], w["o_norm.weight"], 1e-5) * gate).flatten(1) @ w["o_proj.weight"].T


def naive_mla(x: Tensor, w: dict[str, Tensor], shape) -> Tensor:
    H, nope, rope, r, v_dim = (
        shape.num_heads,
        shape.qk_nope_head_dim,
        shape.qk_rope_head_dim,
        shape.kv_lora_rank,
        shape.v_head_dim,
    )
    if shape.q_lora_rank:
        q = rms(x @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"], 1e-6) @ w["q_b_proj.weight"].T
    else:
        q = x @ w["q_proj.weight"].T
    c, shared = (x @ w["kv_a_proj_with_mqa.weight"].T).split((r, rope), -1)
    kv = (rms(c, w["kv_a_layernorm.weight"], 1e-6) @ w["kv_b_proj.weight"].T).view(T, H, nope + v_dim)
    k = torch.cat((kv[..., :nope], shared[:, None].expand(-1, H, -1)), -1)
    o = softmax_attention(q.view(T, H, nope + rope), k, kv[..., nope:], (nope + rope) ** -0.5)
    return o.flatten(1) @ w["o_proj.weight"].T


def rotate(x: Tensor, dim: int, theta: float) -> Tensor:
    """Pairs (i, i + dim / 2) as complex numbers, turned."""
    half = dim // 2
    angle = torch.arange(T, dtype=torch.float64)[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(x[..., :half], x[..., half:dim]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((turned.real, turned.imag, x[..., dim:]), -1)


def naive_gqa(x: Tensor, w: dict[str, Tensor], shape) -> Tensor:
    H, G, e = shape.num_heads, shape.num_kv_heads, shape.head_dim
    q, k = ((x @ w[f"{n}_proj.weight"].T).view(T, -1, e) for n in "qk")
    q, k = (rotate(t, shape.rope_dim, shape.rope_theta) for t in (q, k))
    v = (x @ w["v_proj.weight"].T).view(T, G, -1)
    k, v = (t.repeat_interleave(H // G, 1) for t in (k, v))
    return softmax_attention(q, k, v, e**-0.5, getattr(shape, "window", None)).flatten(1) @ w["o_proj.weight"].T


def naive_lightning(x: Tensor, w: dict[str, Tensor], shape: LightningShape) -> Tensor:
    H = shape.num_heads
    q, k, v, g = ((x @ w[f"{n}_proj.weight"].T).view(T, H, -1) for n in "qkvg")
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    decay = torch.tensor([math.exp(-(2 ** (-8 * h / H))) for h in range(1, H + 1)], dtype=torch.float64)
    S, o = torch.zeros(H, shape.key_dim, shape.value_dim, dtype=torch.float64), []
    for t in range(T):
        S = decay[:, None, None] * S + k[t, :, :, None] * v[t, :, None]
        o.append(torch.einsum("hkv,hk->hv", S, q[t]))
    return (rms(torch.stack(o), w["o_norm.weight"], 1e-5) * g.sigmoid()).flatten(1) @ w["o_proj.weight"].T


NAIVE = {"kda": naive_kda, "mla": naive_mla, "gqa": naive_gqa, "sliding": naive_gqa, "lightning": naive_lightning}


@pytest.mark.parametrize("name", SHAPES)
def test_a_layer_computes_its_definition(name: str) -> None:
    kind, shape = SHAPES[name]
    config = HybridConfig((kind,), **WIDTHS, **{kind: shape})
    weights = random_weights(MIXERS[kind].weight_shapes(shape, D), seed=1)
    x = torch.randn(1, T, D, generator=torch.Generator().manual_seed(2))
    cpu = torch.device("cpu")
    memory = LayerState.empty(1, shape, config.grid, torch.float32, cpu)
    pages = torch.zeros(3, 64, config.page_width)
    schedule = Schedule.of([0], T, [[2, 0, 1]], config, cpu)
    with torch.inference_mode():
        o = MIXERS[kind](config, shape, weights)(x, pages if kind in ("mla", "gqa") else memory, schedule)[0]
    expected = NAIVE[kind](x[0].double(), {n: t.double() for n, t in weights.items()}, shape)
    torch.testing.assert_close(o.double(), expected, atol=5e-5, rtol=0)
    assert expected.std() > 0.05


MOE = MoE(layers=(0,), num_experts=6, num_experts_per_token=3, num_shared_experts=2, intermediate_size=48)


@pytest.mark.parametrize(("renormalize", "scale", "shared"), [(True, 2.5, 2), (False, 1.0, 0)])
def test_experts_compute_their_definition(renormalize: bool, scale: float, shared: int) -> None:
    moe = MoE((0,), 6, 3, shared, 48, routed_scaling_factor=scale, renormalize=renormalize)
    w = random_weights(MixtureOfExperts.weight_shapes(moe, D), seed=3)
    x = torch.randn(40, D, generator=torch.Generator().manual_seed(4))
    y = MixtureOfExperts(moe, w, slab=8)(x)
    w, x = {n: t.double() for n, t in w.items()}, x.double()

    def swiglu(x: Tensor, gate: str, up: str, down: str) -> Tensor:
        return (F.silu(x @ w[f"{gate}.weight"].T) * (x @ w[f"{up}.weight"].T)) @ w[f"{down}.weight"].T

    scores = (x @ w["gate.weight"].T).sigmoid()
    for row in range(len(x)):
        chosen = sorted(range(6), key=lambda e: -(scores[row, e] + w["gate.e_score_correction_bias"][e]))[:3]
        total = sum(scores[row, e] for e in chosen) if renormalize else 1.0
        expected = sum(
            scale * scores[row, e] / total * swiglu(x[row], *(f"experts.{e}.w{i}" for i in (1, 3, 2))) for e in chosen
        )
        if shared:
            expected = expected + swiglu(x[row], *(f"shared_experts.{n}_proj" for n in ("gate", "up", "down")))
        torch.testing.assert_close(y[row].double(), expected, atol=2e-5, rtol=0)


def test_the_bias_chooses_but_does_not_weigh_and_ties_go_to_the_lowest_expert() -> None:
    w = random_weights(MixtureOfExperts.weight_shapes(MOE, D), seed=3)
    w["gate.weight"] = torch.zeros_like(w["gate.weight"])  # every expert has the score 1/2
    w["gate.e_score_correction_bias"] = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    chosen, weight = MixtureOfExperts(MOE, w, slab=8).route(torch.randn(5, D))
    assert chosen.tolist() == [[0, 2, 5]] * 5
    torch.testing.assert_close(weight, torch.full((5, 3), 1 / 3))


def test_rows_of_an_expert_do_not_depend_on_who_else_is_routed_there() -> None:
    layer = MixtureOfExperts(MOE, random_weights(MixtureOfExperts.weight_shapes(MOE, D), seed=3), slab=8)
    x = torch.randn(37, D, generator=torch.Generator().manual_seed(4))
    expected = layer(x)
    for n in (1, 2, 5, 20):
        assert same(layer(x[:n]), expected[:n])
    x[3] = torch.nan
    assert same(layer(x)[4:], expected[4:])


def test_a_position_has_one_angle_however_far_the_table_reaches() -> None:
    x, position = torch.randn(1, 1, 2, 48), torch.tensor([[70]])
    short, long = Rope(32, 1e4, 64), Rope(32, 1e4, 64)
    long(x, torch.tensor([[5000]]))
    assert same(short(x, position), long(x, position))
    assert same(short(x, position)[..., 32:], x[..., 32:])
