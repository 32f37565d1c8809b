"""What a request's cache is made of, and how many bytes: derived from the config alone, without torch.

The same specs size the pool's blocks, describe a hand-off on the wire, and answer the planner's question how much a
prompt of L tokens ships: S_kv(L) = bytes_per_token * L + fixed_bytes (paper, section 3; the open tile is ours).
"""

from dataclasses import dataclass
from math import prod

from prfaas_ref.model.config import KDA, HybridConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a layer's state, for one request."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


def fixed_state(config: HybridConfig, layer: int, dtype: str) -> tuple[StateTensor, ...]:
    """The layer's state at a tile end: whatever the prompt's length, these bytes. Empty for full attention."""
    if config.layer_kinds[layer] != KDA:
        return ()
    H, K, V = config.linear_num_heads, config.linear_key_dim, config.linear_value_dim
    return (
        StateTensor("S", "float32", (H, K, V)),
        StateTensor("window", dtype, (config.short_conv_kernel_size - 1, config.conv_channels)),
    )


def open_tile(config: HybridConfig, layer: int) -> tuple[StateTensor, ...]:
    """What a layer adds between tile ends (see `OpenTile`); at a tile end all of it is empty and nothing is shipped."""
    if config.layer_kinds[layer] != KDA:
        return ()
    H, K, V, C, c = (
        config.linear_num_heads, config.linear_key_dim, config.linear_value_dim, config.grid.tile, config.grid.sub_tile
    )  # fmt: skip
    shapes = {"X": (C, K), "UW": (C, V + K), "Vn": (C, V), "k": (c, K), "a": (c, K), "D": (c, K), "P": (K,), "W": (K,)}
    return tuple(StateTensor(name, "float32", (H, *shape)) for name, shape in shapes.items())


def live_state(config: HybridConfig, layer: int, dtype: str, n_tokens: int) -> tuple[StateTensor, ...]:
    """The layer's whole fixed-size state after `n_tokens`: with the open tile where there is one."""
    rows_open = n_tokens % config.grid.tile
    return fixed_state(config, layer, dtype) + (open_tile(config, layer) if rows_open else ())


def live_bytes(config: HybridConfig, dtype: str, n_tokens: int) -> int:
    """Bytes of all layers' live state after `n_tokens`."""
    layers = range(len(config.layer_kinds))
    return sum(t.n_bytes for i in layers for t in live_state(config, i, dtype, n_tokens))


def fixed_bytes(config: HybridConfig, dtype: str) -> int:
    """Bytes of a snapshot: the state of all layers at a block end."""
    return live_bytes(config, dtype, 0)


def bytes_per_token(config: HybridConfig, dtype: str) -> int:
    """Bytes that every token adds to the full-attention layers' cache."""
    return DTYPE_BYTES[dtype] * config.page_width * len(config.full_layers)


def block_bytes(config: HybridConfig, dtype: str) -> int:
    """Bytes of one block of the pool: one page of every full-attention layer."""
    return bytes_per_token(config, dtype) * config.grid.block
