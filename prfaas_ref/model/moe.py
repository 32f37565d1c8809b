"""Mixture of experts with the family's router: float32 sigmoid scores, a bias for the choice only, a shared expert.

    s = sigmoid(W x)          the experts of the num_experts_per_token largest s + bias are chosen, the lowest on ties
    y = scale * sum_e (s_e / sum of the chosen s) expert_e(x) + shared(x)

How many rows an expert gets depends on the whole batch, so its products are slabs like all others (exact.py), and a
token's sum runs in the order of the experts: routing then changes no bit of anybody else's.
"""

import torch
from torch import Tensor

from prfaas_ref.model.config import MoE
from prfaas_ref.model.exact import Linear, sigmoid
from prfaas_ref.model.ffn import SwiGLU


class MixtureOfExperts:
    """One layer. `weights` maps the published names below `block_sparse_moe.` to tensors."""

    @staticmethod
    def weight_shapes(moe: MoE, d: int) -> dict[str, tuple[int, ...]]:
        width, shared = moe.intermediate_size, moe.intermediate_size * moe.num_shared_experts
        shapes = {"gate.weight": (moe.num_experts, d), "gate.e_score_correction_bias": (moe.num_experts,)}
        for e in range(moe.num_experts):
            shapes |= {f"experts.{e}.w1.weight": (width, d), f"experts.{e}.w3.weight": (width, d)}
            shapes |= {f"experts.{e}.w2.weight": (d, width)}
        if shared:
            shapes |= {f"shared_experts.{x}_proj.weight": (shared, d) for x in ("gate", "up")}
            shapes |= {"shared_experts.down_proj.weight": (d, shared)}
        return shapes

    def __init__(self, moe: MoE, weights: dict[str, Tensor], slab: int) -> None:
        self.moe = moe
        self.router = Linear.of([weights["gate.weight"].float()], slab)
        self.bias = weights["gate.e_score_correction_bias"].float()
        names = [[f"experts.{e}.{w}.weight" for w in ("w1", "w3", "w2")] for e in range(moe.num_experts)]
        self.experts = [SwiGLU(*(weights[name] for name in three), slab) for three in names]
        shared = [f"shared_experts.{x}_proj.weight" for x in ("gate", "up", "down")]
        self.shared = SwiGLU(*(weights[name] for name in shared), slab) if moe.num_shared_experts else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, d], normed. Returns [rows, d]."""
        chosen, weight = self.route(x)
        y = torch.zeros_like(x, dtype=torch.float32)
        for e, expert in enumerate(self.experts):
            rows, place = (chosen == e).nonzero(as_tuple=True)
            if len(rows):
                y.index_add_(0, rows, weight[rows, place, None] * expert(x[rows]).float())
        if self.shared is not None:
            y = y + self.shared(x).float()
        return y.to(x.dtype)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's experts in ascending order, and their weights: [rows, num_experts_per_token] both."""
        scores = sigmoid(self.router(x.float()))
        ranked = (scores + self.bias).sort(dim=-1, descending=True, stable=True).indices
        chosen = ranked[:, : self.moe.num_experts_per_token].sort(dim=-1).values
        weight = scores.gather(1, chosen)
        if self.moe.renormalize:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return chosen, weight * self.moe.routed_scaling_factor
