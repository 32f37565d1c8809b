"""Sliding-window attention: grouped queries that see the last `window` tokens, so that the cache has a fixed size.

What a request remembers is `kv` [B, window, row_width]: the last `window` tokens' keys and values, the newest last,
zeros before the first token. To compute, they are laid out on the same 64-token grid as pages are, whatever the
position, so that a token meets its keys in the same products by prefill and by decode.
"""

import torch
from torch import Tensor

from prfaas_ref.model.attention import attention
from prfaas_ref.model.gqa import GQA
from prfaas_ref.model.kinds import SlidingShape
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import LayerState


class Sliding(GQA):
    """One layer. Weights as in `GQA`."""

    shape: SlidingShape

    def __call__(self, x: Tensor, state: LayerState, schedule: Schedule) -> Tensor:
        """x: [B, n, d], normed. Returns [B, n, d] and advances `state` in place."""
        q, rows = self.project(x, schedule)
        rows = torch.cat((state.kv, rows), dim=1)
        state.kv = rows[:, -self.shape.window :].clone()
        pages, first = self.on_grid(rows, schedule)
        k, v = self.keys_values(pages)
        return self.merge(attention(q, k, v, schedule, first, self.shape.window))

    def on_grid(self, rows: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """Rows [B, window + n, width], of which the last is the newest token's, as aligned pages [B, P, 64, width].

        Returns the pages, zero where there is no row, and the position [B] of their first row (negative at the start).
        """
        block, window = self.config.grid.block, self.shape.window
        offset = schedule.position[:, 0] % block  # of the first new token in its page
        P = window // block + max(-(-(s % block + schedule.n) // block) for s in schedule.start)
        pages = rows.new_zeros(rows.shape[0], P * block, rows.shape[2])
        request = torch.arange(rows.shape[0], device=rows.device)[:, None]
        pages[request, offset[:, None] + torch.arange(rows.shape[1], device=rows.device)] = rows
        return pages.view(rows.shape[0], P, block, -1), schedule.position[:, 0] - offset - window
