"""A request's fixed-size state as one flat run of bytes: how a snapshot lies in the pool, and a hand-off on the wire.

The order is model.sizes.live_state's, layer after layer; nothing is aligned or compressed, so that equal states are
equal bytes. Full-attention layers take no room here, since their pages live in blocks of their own.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.sizes import StateTensor, live_state
from prfaas_ref.model.state import HybridState, LayerState


@dataclass(frozen=True)
class StateBytes:
    """The layout after `n_tokens`: layer i's tensors lie at offsets[i] to offsets[i + 1]."""

    n_tokens: int
    layers: tuple[tuple[StateTensor, ...], ...]
    offsets: tuple[int, ...]

    @classmethod
    def after(cls, n_tokens: int, config: HybridConfig, dtype: torch.dtype) -> "StateBytes":
        name = str(dtype).removeprefix("torch.")
        layers = tuple(live_state(config, i, name, n_tokens) for i in range(len(config.layer_kinds)))
        sizes = (sum(t.n_bytes for t in layer) for layer in layers)
        return cls(n_tokens, layers, tuple(accumulate(sizes, initial=0)))

    @property
    def n_bytes(self) -> int:
        return self.offsets[-1]

    def pack(self, layer: int, state: LayerState, request: int = 0) -> Tensor:
        """One layer's state of one request of a batch, as bytes [n], copied."""
        tensors = state.tensors()
        parts = [tensors[t.name][request].contiguous().reshape(-1).view(torch.uint8) for t in self.layers[layer]]
        return torch.cat(parts)

    def unpack(self, data: Tensor, model: HybridModel) -> HybridState:
        """The state of one request from bytes [n_bytes], copied; its page table is still empty."""
        state = model.new_state()
        state.positions = [self.n_tokens]
        for i, memory in state.layers.items():
            offset, tensors = self.offsets[i], memory.tensors()
            for t in self.layers[i]:
                tensors[t.name].view(torch.uint8).reshape(-1).copy_(data[offset : offset + t.n_bytes])
                offset += t.n_bytes
        return state
