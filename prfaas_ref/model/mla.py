"""Multi-head latent attention without positions (NoPE), absorbed, over pages (Kimi Linear; DeepSeek-V2, section 2.1).

Per token one latent c (kv_lora_rank, normed) and one key shared by all heads (qk_rope_head_dim; never rotated here) are
cached: `token_width` numbers, whatever the number of heads. Absorbed means that heads come to the cache instead of the
cache being blown up to heads: q_nope W_UK meets c directly, and W_UV is applied to the attended latent.
"""

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.attention import attention, write_rows
from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, bmm_rows, pad_rows, rms_norm, round_up
from prfaas_ref.model.kinds import MLAShape
from prfaas_ref.model.schedule import Schedule


class MLA:
    """One layer. `weights` maps the published names below `self_attn.` to tensors."""

    @staticmethod
    def weight_shapes(shape: MLAShape, d: int) -> dict[str, tuple[int, ...]]:
        """Names of the weights and their shapes, [out, in], for hidden size d."""
        H, rank = shape.num_heads, shape.q_lora_rank
        q_out = H * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
        q_low = {"q_a_proj.weight": (rank, d), "q_a_layernorm.weight": (rank,), "q_b_proj.weight": (q_out, rank)}
        return {
            **({"q_proj.weight": (q_out, d)} if rank is None else q_low),
            "kv_a_proj_with_mqa.weight": (shape.token_width, d),
            "kv_a_layernorm.weight": (shape.kv_lora_rank,),
            "kv_b_proj.weight": (H * (shape.qk_nope_head_dim + shape.v_head_dim), shape.kv_lora_rank),
            "o_proj.weight": (d, H * shape.v_head_dim),
        }

    def __init__(self, config: HybridConfig, shape: MLAShape, weights: dict[str, Tensor]) -> None:
        self.shape, slab = shape, config.grid.slab
        low_rank = shape.q_lora_rank is not None
        q_into = weights["q_a_proj.weight" if low_rank else "q_proj.weight"]
        self.into = Linear.of([q_into, weights["kv_a_proj_with_mqa.weight"]], slab)
        self.widths = (q_into.shape[0], shape.kv_lora_rank, shape.qk_rope_head_dim)
        self.q_norm = weights["q_a_layernorm.weight"].float() if low_rank else None
        self.q_up = Linear.of([weights["q_b_proj.weight"]], slab) if low_rank else None
        self.latent_norm = weights["kv_a_layernorm.weight"].float()
        up = rearrange(weights["kv_b_proj.weight"], "(h e) r -> h e r", h=shape.num_heads)
        up_k, up_v = up.split((shape.qk_nope_head_dim, shape.v_head_dim), dim=1)
        self.up_k, self.up_v = up_k.clone(), rearrange(up_v, "h v r -> h r v").contiguous()  # [H, nope, r], [H, r, v]
        self.out = Linear.of([weights["o_proj.weight"]], slab)
        self.slab, self.scale = slab, (shape.qk_nope_head_dim + shape.qk_rope_head_dim) ** -0.5

    def __call__(self, x: Tensor, pages: Tensor, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed; pages: [n_pages, block, token_width], this layer's.

        Writes the new tokens' rows into their pages, then attends. Returns [B, n, d].
        """
        B, n, _ = x.shape
        q, c, k_shared = self.into(x.flatten(0, 1)).split(self.widths, dim=-1)
        c = torch.cat((rms_norm(c, self.latent_norm, self.shape.latent_norm_eps), k_shared), dim=-1)
        write_rows(pages, c.view(B, n, -1), schedule)
        kv = rearrange(pages[schedule.tables], "b p t e -> b p 1 t e")
        o = attention(self.queries(q, B), kv, kv[..., : self.shape.kv_lora_rank], schedule)
        o = self.per_head(rearrange(o, "b n 1 h r -> h (b n) r"), self.up_v)
        return self.out(rearrange(o, "h m v -> m (h v)")).view(B, n, -1)

    def queries(self, q: Tensor, B: int) -> Tensor:
        """Absorbed and scaled queries [B, n, 1, H, token_width] from their projection [rows, ..]."""
        if self.q_up is not None:
            q = self.q_up(rms_norm(q, self.q_norm, self.shape.latent_norm_eps))
        q = rearrange(q, "m (h e) -> h m e", h=self.shape.num_heads)
        nope, shared = q.split((self.shape.qk_nope_head_dim, self.shape.qk_rope_head_dim), dim=-1)
        q = torch.cat((self.per_head(nope, self.up_k), shared), dim=-1)
        return rearrange((q.float() * self.scale).to(q.dtype), "h (b n) e -> b n 1 h e", b=B)

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [H, rows, e] @ weight [H, e, f], rows padded to the slab."""
        return bmm_rows(pad_rows(x, round_up(x.shape[1], self.slab)), weight)[:, : x.shape[1]]
