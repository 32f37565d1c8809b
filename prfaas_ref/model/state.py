"""All that a request has accumulated, as plain tensors: nothing hides in a module's buffers.

(weights, tokens, state) -> (logits, state). A `HybridState` holds a batch of requests side by side; pages of full
attention live elsewhere (a pool) and are named by the page table. Live state is private to its owner and is advanced in
place; whoever wants to keep a moment of it takes a copy (`select`).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from prfaas_ref.model.config import KDA, HybridConfig
from prfaas_ref.model.tile import OpenTile


@dataclass
class KDAState:
    """One KDA layer's state for B requests.

    S [B, H, K, V] float32: the memory at the last tile boundary. tile: the rows since (see OpenTile).
    window [B, 3, channels], model dtype: the short convolution's last three inputs, before activation.
    """

    S: Tensor
    window: Tensor
    tile: OpenTile

    @classmethod
    def empty(cls, batch: int, config: HybridConfig, dtype: torch.dtype) -> "KDAState":
        H, K, V = config.linear_num_heads, config.linear_key_dim, config.linear_value_dim
        window = torch.zeros(batch, config.short_conv_kernel_size - 1, config.conv_channels, dtype=dtype)
        return cls(torch.zeros(batch, H, K, V), window, OpenTile.empty(batch, H, K, V, config.grid))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name on the wire, batch first, in wire order."""
        return {"S": self.S, "window": self.window, **self.tile.tensors()}

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> "KDAState":
        """The inverse of `tensors`."""
        rest = dict(tensors)
        return cls(rest.pop("S"), rest.pop("window"), OpenTile(**rest))


@dataclass
class HybridState:
    """B requests: how many tokens each has processed, its page table, and the state of each KDA layer (by layer index)."""

    positions: list[int]
    tables: list[list[int]]
    layers: dict[int, KDAState] = field(default_factory=dict)

    @classmethod
    def empty(cls, batch: int, config: HybridConfig, dtype: torch.dtype) -> "HybridState":
        layers = {i: KDAState.empty(batch, config, dtype) for i, kind in enumerate(config.layer_kinds) if kind == KDA}
        return cls([0] * batch, [[] for _ in range(batch)], layers)

    @property
    def batch(self) -> int:
        return len(self.positions)

    def select(self, rows: list[int]) -> "HybridState":
        """A copy of some requests' state, in the given order; pages are shared, page tables are not."""
        layers = {i: KDAState.of({n: t[rows].clone() for n, t in s.tensors().items()}) for i, s in self.layers.items()}
        return HybridState([self.positions[r] for r in rows], [list(self.tables[r]) for r in rows], layers)

    @classmethod
    def stack(cls, states: "list[HybridState]") -> "HybridState":
        """One state of several, their requests side by side (copied)."""
        layers = {}
        for i in states[0].layers:
            parts = [s.layers[i].tensors() for s in states]
            layers[i] = KDAState.of({name: torch.cat([p[name] for p in parts]) for name in parts[0]})
        return cls([p for s in states for p in s.positions], [list(t) for s in states for t in s.tables], layers)
