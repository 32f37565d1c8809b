"""What a hybrid model is: one frozen config, whatever file it came from.

Knows nothing of tensors. `layer_kinds` is always the explicit list of layers; ratios and 1-based index lists are turned
into it at the border (`published.py`). Names follow the published kimi_linear config where it has one.
"""

from dataclasses import dataclass, field

KDA, MLA = "kda", "mla"
LAYER_KINDS = (KDA, MLA)


@dataclass(frozen=True)
class Grid:
    """The numeric grid. It decides which bits come out, so it is part of every fingerprint.

    block: tokens per page of attention, per block of the pool, per chunk of prefill. tile: rows whose mutual influence
    KDA solves at once. sub_tile: rows whose decays are multiplied out pairwise. slab: row counts of matrix products are
    padded to a multiple of this.
    """

    block: int = 64
    tile: int = 16
    sub_tile: int = 4
    slab: int = 8

    def __post_init__(self) -> None:
        if self.block % self.tile or self.tile % self.sub_tile:
            raise ValueError(f"grid: block {self.block}, tile {self.tile} and sub_tile {self.sub_tile} must nest")
        if self.slab % 4 or self.sub_tile % 4 or self.slab <= 0:
            raise ValueError(f"grid: slab {self.slab} and sub_tile {self.sub_tile} must be multiples of 4")


@dataclass(frozen=True)
class HybridConfig:
    """Shapes of one model. Raises ValueError, naming the field, when they cannot be run exactly."""

    layer_kinds: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    # KDA (linear attention): H heads with keys of K and values of V
    linear_num_heads: int
    linear_key_dim: int
    linear_value_dim: int
    short_conv_kernel_size: int
    # MLA (full attention): per token one latent of kv_lora_rank and one shared key of qk_rope_head_dim are cached
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float = 1e-5
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self) -> None:
        for i, kind in enumerate(self.layer_kinds):
            if kind not in LAYER_KINDS:
                raise ValueError(f"layer_kinds[{i}] is {kind!r}; known kinds are {', '.join(LAYER_KINDS)}")
        if not self.layer_kinds:
            raise ValueError("layer_kinds is empty; a model needs at least one layer")
        if self.short_conv_kernel_size != 4:
            raise ValueError(f"short_conv_kernel_size is {self.short_conv_kernel_size}; only 4 taps are implemented")
        # Products over or into a dimension that is not a multiple of 16 change bits with the row count.
        sixteens = ("hidden_size", "intermediate_size", "linear_key_dim", "linear_value_dim")
        for name in (*sixteens, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            if getattr(self, name) <= 0 or getattr(self, name) % 16:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a positive multiple of 16")

    @property
    def kda_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == KDA)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Layers whose cache grows with the prompt and lives in pages."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == MLA)

    @property
    def page_width(self) -> int:
        """Numbers cached per token and full-attention layer: the normed latent and the shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v of all heads side by side."""
        return self.linear_num_heads * (2 * self.linear_key_dim + self.linear_value_dim)


BYTES, END = 256, 256
"""The toy's vocabulary: token i is byte i, and token 256 ends an answer."""

PRESETS = {
    # Seven KDA layers, then one MLA layer; K != V on purpose, so that no transposed state has a legal shape.
    "toy": HybridConfig(
        layer_kinds=(KDA,) * 7 + (MLA,),
        vocab_size=BYTES + 1,
        hidden_size=128,
        intermediate_size=256,
        linear_num_heads=4,
        linear_key_dim=32,
        linear_value_dim=48,
        short_conv_kernel_size=4,
        num_attention_heads=4,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
    ),
}
