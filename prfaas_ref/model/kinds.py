"""The kinds of layers: the shapes of each, and what a request must remember in it. Plain numbers, without torch.

A full-attention kind caches `token_width` numbers for every token, in pages. A fixed-size kind keeps `fixed_state`
whatever the prompt's length, and `open_state` beside it while a tile is unfinished; the specs are the wire layout of a
hand-off, in order. What a kind computes is in the file of its name (kda.py, mla.py, ...).

Letters, here and everywhere: H heads, K key dim, V value dim, C rows of a tile.
"""

from dataclasses import dataclass
from math import prod
from typing import Protocol

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Grid:
    """The numeric grid. It decides which bits come out, so it is part of every fingerprint.

    block: tokens per page of attention, per block of the pool, per chunk of prefill. tile: rows whose mutual influence
    a linear layer solves at once. slab: row counts of matrix products are padded to a multiple of this.
    """

    block: int = 64
    tile: int = 16
    slab: int = 8

    def __post_init__(self) -> None:
        if self.tile <= 0 or self.tile % 16 or self.block % self.tile:
            raise ValueError(f"grid: tile {self.tile} must be a multiple of 16 and divide block {self.block}")
        if self.slab < 8 or self.slab % 4:
            raise ValueError(f"grid: slab {self.slab} must be a multiple of 4, and at least 8")


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a layer's state, for one request. empty: what all of it holds before the first token."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    empty: float = 0.0

    @property
    def n_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


class LayerKind(Protocol):
    """What the sizes of every kind come from."""

    @property
    def token_width(self) -> int:
        """Numbers cached per token, in the model's dtype; 0 for a kind of fixed size."""

    def fixed_state(self, dtype: str) -> tuple[StateTensor, ...]:
        """The state at a tile end. dtype: the model's. Empty for full attention."""

    def open_state(self, grid: Grid) -> tuple[StateTensor, ...]:
        """What is added between tile ends; nothing of it is shipped at a tile end."""


class Paged:
    """A full-attention kind: all that it remembers is in pages."""

    def fixed_state(self, dtype: str) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return ()

    def open_state(self, grid: Grid) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return ()


def positive(shape: object, *names: str) -> None:
    """Raise ValueError unless these fields are positive (or None)."""
    for name in names:
        value = getattr(shape, name)
        if value is not None and value <= 0:
            raise ValueError(f"{type(shape).__name__}.{name} is {value}; it must be positive")


def grouped(kind: object, many: str, few: str) -> None:
    """Raise ValueError unless the heads counted by `many` split evenly over those counted by `few`."""
    n, m = getattr(kind, many), getattr(kind, few)
    if n <= 0 or m <= 0 or n % m:
        raise ValueError(f"{type(kind).__name__}.{many} is {n}; it must be a positive multiple of {few}, {m}")


@dataclass(frozen=True)
class KDAShape:
    """Kimi Delta Attention: num_heads keys of K, num_value_heads values of V (a multiple; each has its own gates).

    gate_lower_bound: None for the gate -exp(A_log) softplus(f), else the bound of the sigmoid variant, such as -5.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    num_value_heads: int
    conv_kernel_size: int = 4
    gate_lower_bound: float | None = None
    token_width = 0

    def __post_init__(self) -> None:
        positive(self, "key_dim", "value_dim")
        grouped(self, "num_value_heads", "num_heads")
        if self.conv_kernel_size < 2:
            raise ValueError(f"KDAShape.conv_kernel_size is {self.conv_kernel_size}; it must be at least 2")
        if self.gate_lower_bound is not None and not self.gate_lower_bound < 0:
            raise ValueError(f"KDAShape.gate_lower_bound is {self.gate_lower_bound}; it must be below 0")

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v of all heads side by side."""
        return 2 * self.num_heads * self.key_dim + self.num_value_heads * self.value_dim

    def fixed_state(self, dtype: str) -> tuple[StateTensor, ...]:
        return (
            StateTensor("S", "float32", (self.num_value_heads, self.key_dim, self.value_dim)),
            StateTensor("window", dtype, (self.conv_kernel_size - 1, self.conv_channels)),
        )

    def open_state(self, grid: Grid) -> tuple[StateTensor, ...]:
        H, K, V, C = self.num_value_heads, self.key_dim, self.value_dim, grid.tile
        return (
            StateTensor("X", "float32", (H, C, K)),
            StateTensor("UW", "float32", (H, C, V + K)),
            StateTensor("P", "float32", (H, K), empty=1.0),
        )


@dataclass(frozen=True)
class GDNShape(KDAShape):
    """Gated DeltaNet (Qwen3.5): one decay per head, the same state as KDA. Known for its size only."""

    def open_state(self, grid: Grid) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class LightningShape:
    """Lightning attention: a constant decay per head, no delta rule, no convolution."""

    num_heads: int
    key_dim: int
    value_dim: int
    token_width = 0

    def __post_init__(self) -> None:
        positive(self, "key_dim", "value_dim")

    def fixed_state(self, dtype: str) -> tuple[StateTensor, ...]:  # noqa: ARG002 (float32 whatever the model's)
        return (StateTensor("S", "float32", (self.num_heads, self.key_dim, self.value_dim)),)

    def open_state(self, grid: Grid) -> tuple[StateTensor, ...]:
        H, K, V, C = self.num_heads, self.key_dim, self.value_dim, grid.tile
        return StateTensor("k", "float32", (H, C, K)), StateTensor("v", "float32", (H, C, V))


@dataclass(frozen=True)
class MLAShape(Paged):
    """Multi-head latent attention: per token one latent of kv_lora_rank and one key of qk_rope_head_dim for all."""

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    latent_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        positive(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")

    @property
    def token_width(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class GQAShape(Paged):
    """Full attention with grouped queries. rope_dim: how many dims of q and k are rotated by position; 0 for none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    rope_dim: int = 0
    rope_theta: float = 1e4

    def __post_init__(self) -> None:
        positive(self, "head_dim", "v_head_dim")
        grouped(self, "num_heads", "num_kv_heads")
        if self.rope_dim % 2 or not 0 <= self.rope_dim <= self.head_dim:
            raise ValueError(f"rope_dim is {self.rope_dim}; it must be even and at most head_dim, {self.head_dim}")

    @property
    def row_width(self) -> int:
        """Numbers of one token's keys and values."""
        return self.num_kv_heads * (self.head_dim + self.v_head_dim)

    @property
    def token_width(self) -> int:
        return self.row_width


@dataclass(frozen=True)
class SlidingShape(GQAShape):
    """Grouped-query attention to the last `window` tokens, the newest included: a cache of fixed size."""

    window: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window <= 0:
            raise ValueError(f"SlidingShape.window is {self.window}; it must be positive")

    @property
    def token_width(self) -> int:
        return 0

    def fixed_state(self, dtype: str) -> tuple[StateTensor, ...]:
        return (StateTensor("kv", dtype, (self.window, self.row_width)),)
