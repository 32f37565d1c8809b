"""All that a request has accumulated, as plain tensors: nothing hides in a module's buffers.

(weights, tokens, state) -> (logits, state). A `HybridState` holds a batch of requests side by side; pages of full
attention live elsewhere (a pool) and are named by the page table. Live state is private to its owner and is advanced in
place; whoever wants to keep a moment of it takes a copy (`select`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.kinds import Grid, LayerKind


class LayerState(SimpleNamespace):
    """One fixed-size layer's state for B requests: its kind's tensors (kinds.py), [B, ...] each, by wire names."""

    @classmethod
    def empty(cls, batch: int, kind: LayerKind, grid: Grid, dtype: torch.dtype, device: torch.device) -> "LayerState":
        """The state before the first token."""
        specs = (*kind.fixed_state(str(dtype).removeprefix("torch.")), *kind.open_state(grid))
        return cls(
            **{
                t.name: torch.full((batch, *t.shape), t.empty, dtype=getattr(torch, t.dtype), device=device)
                for t in specs
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name on the wire, batch first, in wire order."""
        return vars(self)

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> "LayerState":
        """The inverse of `tensors`."""
        return cls(**tensors)


@dataclass
class HybridState:
    """B requests: tokens each has processed, its page table, and the state of each fixed-size layer, by index."""

    positions: list[int]
    tables: list[list[int]]
    layers: dict[int, LayerState] = field(default_factory=dict)

    @classmethod
    def empty(cls, batch: int, config: HybridConfig, dtype: torch.dtype, device: torch.device) -> "HybridState":
        kinds = {i: config.layers[i] for i in config.fixed_layers}
        layers = {i: LayerState.empty(batch, kind, config.grid, dtype, device) for i, kind in kinds.items()}
        return cls([0] * batch, [[] for _ in range(batch)], layers)

    @property
    def batch(self) -> int:
        return len(self.positions)

    def select(self, rows: Sequence[int]) -> "HybridState":
        """A copy of some requests' state, in the given order; pages are shared, page tables are not."""
        rows = list(rows)
        layers = {i: LayerState.of({n: t[rows] for n, t in s.tensors().items()}) for i, s in self.layers.items()}
        return HybridState([self.positions[r] for r in rows], [list(self.tables[r]) for r in rows], layers)

    @classmethod
    def stack(cls, states: "Sequence[HybridState]") -> "HybridState":
        """One state of several, their requests side by side (copied)."""
        layers = {}
        for i in states[0].layers:
            parts = [s.layers[i].tensors() for s in states]
            layers[i] = LayerState.of({name: torch.cat([p[name] for p in parts]) for name in parts[0]})
        return cls([p for s in states for p in s.positions], [list(t) for s in states for t in s.tables], layers)
