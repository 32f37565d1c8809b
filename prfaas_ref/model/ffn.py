"""The feed-forward half of a layer: SwiGLU."""

from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, silu


class SwiGLU:
    """down(silu(gate x) * up x). `weights` maps the published names below `mlp.` to tensors."""

    def __init__(self, config: HybridConfig, weights: dict[str, Tensor]) -> None:
        self.into = Linear.of([weights["gate_proj.weight"], weights["up_proj.weight"]], config.grid.slab)
        self.down = Linear.of([weights["down_proj.weight"]], config.grid.slab)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, d], normed. Returns [rows, d]."""
        gate, up = self.into(x).float().chunk(2, dim=-1)
        return self.down((silu(gate) * up).to(x.dtype))
