"""Multi-head latent attention without positions (NoPE), absorbed, over pages (Kimi Linear; DeepSeek-V2, section 2.1).

Per token one latent c (kv_lora_rank, normed) and one key shared by all heads (qk_rope_head_dim; never rotated here) are
cached: `page_width` numbers, whatever the number of heads. Absorbed means that heads come to the cache instead of the
cache being blown up to heads: q_nope W_UK meets c directly, and W_UV is applied to the attended latent.

The softmax is exact under any paging: a maximum has no order, so every score is taken against the row's true maximum, and
the sums over pages are added left to right in the order of the tokens. Pages come from `pages` [page, 64, page_width].
"""

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, bmm_rows, rms_norm
from prfaas_ref.model.schedule import Schedule


class MLA:
    """One layer. `weights` maps the published names below `self_attn.` to tensors."""

    def __init__(self, config: HybridConfig, weights: dict[str, Tensor]) -> None:
        self.config, slab = config, config.grid.slab
        self.into = Linear.of([weights["q_proj.weight"], weights["kv_a_proj_with_mqa.weight"]], slab)
        self.latent_norm = weights["kv_a_layernorm.weight"].float()
        up = rearrange(weights["kv_b_proj.weight"], "(h e) r -> h e r", h=config.num_attention_heads)
        up_k, up_v = up.split((config.qk_nope_head_dim, config.v_head_dim), dim=1)
        self.up_k, self.up_v = up_k.clone(), rearrange(up_v, "h v r -> h r v").clone()  # [H, nope, r], [H, r, v]
        self.out = Linear.of([weights["o_proj.weight"]], slab)
        self.scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5

    def __call__(self, x: Tensor, pages: Tensor, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Writes the new tokens' rows into their pages, then attends. Returns [B, n, d]."""
        (B, n, _), config = x.shape, self.config
        H, nope, rope, latent = (
            config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
        )  # fmt: skip
        q, c, k_shared = self.into(x.flatten(0, 1)).split((H * (nope + rope), latent, rope), dim=-1)
        c = torch.cat((rms_norm(c, self.latent_norm, config.rms_norm_eps), k_shared), dim=-1)
        self.write(c.view(B, n, -1), pages, schedule)
        q, q_shared = rearrange(q, "m (h e) -> h m e", h=H).split((nope, rope), dim=-1)
        q = torch.cat((self.per_head(q, self.up_k), q_shared), dim=-1)
        q = rearrange((q.float() * self.scale).to(x.dtype), "h (b n) e -> b n h e", b=B)
        o = self.attend(q, pages, schedule)
        o = self.per_head(rearrange(o, "b n h r -> h (b n) r"), self.up_v)
        return self.out(rearrange(o, "h m v -> m (h v)")).view(B, n, -1)

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [H, rows, e] @ weight [H, e, f], rows padded to the slab."""
        rows = x.shape[1]
        return torch.bmm(F.pad(x, (0, 0, 0, -rows % self.config.grid.slab)), weight)[:, :rows]

    def write(self, rows: Tensor, pages: Tensor, schedule: Schedule) -> None:
        """Store rows [B, n, page_width] at their absolute positions."""
        block = self.config.grid.block
        for table, start, new in zip(schedule.tables, schedule.start, rows, strict=True):
            where = torch.arange(start, start + schedule.n)
            pages[table[where // block], where % block] = new

    def attend(self, q: Tensor, pages: Tensor, schedule: Schedule) -> Tensor:
        """Queries [B, n, H, page_width], scaled, over everything up to themselves. Returns [B, n, H, kv_lora_rank]."""
        block, n = self.config.grid.block, schedule.n
        if n == 1:
            return self.attend_page(q, pages, schedule.tables, torch.tensor(schedule.start)[:, None])
        o, start = [], schedule.start[0]
        position = torch.arange(start, start + n)
        edges = [start, *range((start // block + 1) * block, start + n, block), start + n]
        for p0, p1 in zip(edges, edges[1:], strict=False):  # the queries of one page at a time
            rows = slice(p0 - start, p1 - start)
            o.append(self.attend_page(q[:, rows], pages, schedule.tables[:, : -(-p1 // block)], position[None, rows]))
        return torch.cat(o, dim=1)

    def attend_page(self, q: Tensor, pages: Tensor, tables: Tensor, position: Tensor) -> Tensor:
        """q: [B, n, H, e] at absolute positions [B, n]; tables: [B, P]. One fixed-shape product per (request, page)."""
        B, n, H, _ = q.shape
        P, block = tables.shape[1], self.config.grid.block
        kv = pages[tables]  # [B, P, block, e]
        rows = rearrange(q, "b n h e -> b 1 (n h) e").expand(-1, P, -1, -1)
        scores = bmm_rows(rows, kv.transpose(-1, -2)).float()
        hidden = torch.arange(P * block).view(1, P, 1, block) > position.repeat_interleave(H, dim=1)[:, None, :, None]
        scores = torch.where(hidden, -torch.inf, scores)
        p = torch.exp(scores - scores.amax(dim=(1, 3), keepdim=True))
        l, o = p.sum(-1), bmm_rows(p.to(q.dtype), kv[..., : self.config.kv_lora_rank]).float()
        total, out = torch.zeros_like(l[:, 0]), torch.zeros_like(o[:, 0])
        for page in range(P):  # from +0 no sum is ever -0, so the exact zeros of hidden pages change no bit
            total, out = total + l[:, page], out + o[:, page]
        return (out / total[..., None]).to(q.dtype).view(B, n, H, -1)
