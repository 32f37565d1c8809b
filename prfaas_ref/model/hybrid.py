"""The hybrid language model: one forward function, of which prefill, decode, cache hits and hand-offs are schedules.

The logits after a token prefix are a pure function of the weights and of that prefix, to the byte (docs/exactness.md).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.exact import Linear, rms_norm
from prfaas_ref.model.layers import Layer, below
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import HybridState


class HybridModel:
    """Weights, ready to run. Stateless: whatever a request accumulates is in the `HybridState` and the pages given."""

    def __init__(self, config: HybridConfig, weights: dict[str, Tensor]) -> None:
        """weights: by published name (weights.py), all of one dtype but for the float32 gates and router biases."""
        self.config, self.weights = config, weights
        self.embed = weights["model.embed_tokens.weight"]
        self.dtype, self.device = self.embed.dtype, self.embed.device
        self.layers = [Layer(config, i, below(weights, f"model.layers.{i}.")) for i in range(len(config.layer_kinds))]
        self.norm = weights["model.norm.weight"].float()
        self.head = Linear.of([weights["lm_head.weight"]], config.grid.slab)

    def new_state(self, batch: int = 1) -> HybridState:
        """The state of `batch` requests before their first token; their page tables are empty."""
        return HybridState.empty(batch, self.config, self.dtype, self.device)

    def new_pages(self, n_pages: int) -> Tensor:
        """Zeroed pages [n_pages, full layers, block, page_width]. A page must be zero when a request first gets it."""
        shape = (n_pages, len(self.config.full_layers), self.config.grid.block, self.config.page_width)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def forward(
        self,
        tokens: Tensor,
        state: HybridState,
        pages: Tensor,
        rows: Sequence[int] = (-1,),
        cuts: Sequence[int] = (),
        on_cell: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Process tokens [B, n] (int64) after what `state` holds: B == 1, or n == 1.

        Advances `state` and writes `pages` (of `new_pages`) in place; state.tables[b][j] is the page of request b's
        tokens from j * block on, and the tables must already cover the new tokens. A layer works through all tokens
        before the next one starts; `cuts` are absolute positions at which it pauses, and on_cell(layer, position) is
        called at each of them and at the end, when that layer's state is the one after `position` tokens and its pages
        up to there are final. Returns the float32 logits [B, len(rows), vocab] after the given ones of the n tokens, by
        default the last.
        """
        pieces = Schedule.pieces(state, tokens.shape[1], cuts, self.config, self.device)
        xs = list(self.embed[tokens].split([piece.n for piece in pieces], dim=1))
        for i, layer in enumerate(self.layers):
            memory = state.layers[i] if i in state.layers else pages[:, self.config.full_layers.index(i)]
            for j, piece in enumerate(pieces):
                xs[j] = layer(xs[j], memory, piece)
                if on_cell:
                    on_cell(i, piece.end)
        state.positions = [p + tokens.shape[1] for p in state.positions]
        x = rms_norm(torch.cat(xs, dim=1)[:, list(rows)], self.norm, self.config.rms_norm_eps)
        return self.head(x.flatten(0, 1)).float().view(*x.shape[:2], -1)
