"""The feed-forward half of a layer: SwiGLU."""

from torch import Tensor

from prfaas_ref.model.exact import Linear, silu


class SwiGLU:
    """down(silu(gate x) * up x)."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor, slab: int) -> None:
        """gate, up: [width, d]. down: [d, width]. slab: row counts are padded to a multiple of it."""
        self.into, self.down = Linear.of([gate, up], slab), Linear.of([down], slab)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, d], normed. Returns [rows, d]."""
        gate, up = self.into(x).float().chunk(2, dim=-1)
        return self.down((silu(gate) * up).to(x.dtype))
