"""Full attention with grouped queries: the kind of dense models, and of the full layers of Qwen3.5 or MiMo-V2-Flash.

Per token the keys and values of all key heads are cached in pages, keys already rotated by their position.
"""

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.attention import attention, write_rows
from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear
from prfaas_ref.model.kinds import GQAShape
from prfaas_ref.model.rope import Rope
from prfaas_ref.model.schedule import Schedule


class GQA:
    """One layer. `weights` maps the names below `self_attn.` to tensors."""

    @staticmethod
    def weight_shapes(shape: GQAShape, d: int) -> dict[str, tuple[int, ...]]:
        return {
            "q_proj.weight": (shape.num_heads * shape.head_dim, d),
            "k_proj.weight": (shape.num_kv_heads * shape.head_dim, d),
            "v_proj.weight": (shape.num_kv_heads * shape.v_head_dim, d),
            "o_proj.weight": (d, shape.num_heads * shape.v_head_dim),
        }

    def __init__(self, config: HybridConfig, shape: GQAShape, weights: dict[str, Tensor]) -> None:
        self.config, self.shape = config, shape
        self.into = Linear.of([weights[f"{x}_proj.weight"] for x in "qkv"], config.grid.slab)
        self.out = Linear.of([weights["o_proj.weight"]], config.grid.slab)
        self.rope = Rope(shape.rope_dim, shape.rope_theta, config.grid.block)

    def __call__(self, x: Tensor, pages: Tensor, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Writes the new tokens' rows into their pages, then attends. Returns [B, n, d]."""
        q, rows = self.project(x, schedule)
        write_rows(pages, rows, schedule)
        k, v = self.keys_values(pages[schedule.tables])
        return self.merge(attention(q, k, v, schedule))

    def project(self, x: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """Queries [B, n, G, h, e], scaled, and the new tokens' rows to cache, [B, n, row_width]: keys, then values."""
        G, e = self.shape.num_kv_heads, self.shape.head_dim
        qk_width = (self.shape.num_heads + G) * e
        qkv = self.into(x.flatten(0, 1)).view(*x.shape[:2], -1)
        qk, v = qkv.split((qk_width, qkv.shape[-1] - qk_width), dim=-1)
        qk = self.rope(rearrange(qk, "b n (h e) -> b n h e", e=e), schedule.position)
        q, k = qk.split((self.shape.num_heads, G), dim=2)
        q = rearrange((q.float() * e**-0.5).to(x.dtype), "b n (g h) e -> b n g h e", g=G)
        return q, torch.cat((k.flatten(2), v), dim=-1)

    def keys_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Cached rows [B, P, 64, row_width] as keys [B, P, G, 64, e] and values [B, P, G, 64, f]."""
        G = self.shape.num_kv_heads
        k, v = rows.split((G * self.shape.head_dim, G * self.shape.v_head_dim), dim=-1)
        return tuple(rearrange(t, "b p t (g e) -> b p g t e", g=G) for t in (k, v))

    def merge(self, o: Tensor) -> Tensor:
        """The layer's output [B, n, d] from the heads' [B, n, G, h, f]."""
        return self.out(rearrange(o, "b n g h f -> (b n) (g h f)")).view(*o.shape[:2], -1)
