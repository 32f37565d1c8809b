"""What a request's cache is made of, and how many bytes: derived from the layers' shapes alone, without torch.

The same specs size the pool's blocks, describe a hand-off on the wire, and answer the planner's question how much a
prompt of L tokens ships: S_kv(L) = bytes_per_token * L + fixed_bytes (paper, section 3). The open tile is ours, and
apart from the paper's S_kv: it is there between tile ends only.
"""

from typing import Protocol

from prfaas_ref.model.kinds import DTYPE_BYTES, Grid, LayerKind, StateTensor

__all__ = ["DTYPE_BYTES", "StateTensor", "block_bytes", "bytes_per_token", "fixed_bytes", "live_bytes", "live_state"]


class Layered(Protocol):
    """A HybridConfig, or anything else that lists the shapes of its layers."""

    @property
    def layers(self) -> tuple[LayerKind, ...]: ...

    @property
    def grid(self) -> Grid: ...


def live_state(config: Layered, layer: int, dtype: str, n_tokens: int) -> tuple[StateTensor, ...]:
    """The layer's whole fixed-size state after `n_tokens`: with the open tile where there is one. Empty for pages."""
    kind = config.layers[layer]
    return kind.fixed_state(dtype) + (kind.open_state(config.grid) if n_tokens % config.grid.tile else ())


def live_bytes(config: Layered, dtype: str, n_tokens: int) -> int:
    """Bytes of all layers' live state after `n_tokens`."""
    layers = range(len(config.layers))
    return sum(t.n_bytes for i in layers for t in live_state(config, i, dtype, n_tokens))


def fixed_bytes(config: Layered, dtype: str) -> int:
    """Bytes of a snapshot: the state of all layers at a block end."""
    return live_bytes(config, dtype, 0)


def bytes_per_token(config: Layered, dtype: str) -> int:
    """Bytes that every token adds to the full-attention layers' cache."""
    return DTYPE_BYTES[dtype] * sum(layer.token_width for layer in config.layers)


def block_bytes(config: Layered, dtype: str) -> int:
    """Bytes of one block of the pool: one page of every full-attention layer."""
    return bytes_per_token(config, dtype) * config.grid.block
