"""What a hybrid model is: one frozen config, whatever file it came from.

Knows nothing of tensors. `layer_kinds` is always the explicit list of layers; ratios and 1-based index lists are turned
into it at the border (`published.py`). A kind's name is the field that holds its shape.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from prfaas_ref.model.kinds import GQAShape, Grid, KDAShape, LayerKind, LightningShape, MLAShape, SlidingShape, positive

KDA, MLA, GQA, SLIDING, LIGHTNING = "kda", "mla", "gqa", "sliding", "lightning"
LAYER_KINDS = (KDA, MLA, GQA, SLIDING, LIGHTNING)
FULL_KINDS = (MLA, GQA)


@dataclass(frozen=True)
class MoE:
    """Mixture of experts in the layers named: each token goes to the num_experts_per_token experts of highest score."""

    layers: tuple[int, ...]
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    intermediate_size: int
    routed_scaling_factor: float = 1.0
    renormalize: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.num_experts_per_token <= self.num_experts:
            raise ValueError(f"num_experts_per_token {self.num_experts_per_token} must be 1..{self.num_experts}")
        positive(self, "intermediate_size")


@dataclass(frozen=True)
class HybridConfig:
    """Shapes of one model. Raises ValueError, naming the field, when they cannot be run exactly."""

    layer_kinds: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    kda: KDAShape | None = None
    mla: MLAShape | None = None
    gqa: GQAShape | None = None
    sliding: SlidingShape | None = None
    lightning: LightningShape | None = None
    moe: MoE | None = None
    rms_norm_eps: float = 1e-5
    end_tokens: tuple[int, ...] = ()  # an answer ends with any of them
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self) -> None:
        if not self.layer_kinds:
            raise ValueError("layer_kinds is empty; a model needs at least one layer")
        for i, kind in enumerate(self.layer_kinds):
            if kind not in LAYER_KINDS:
                raise ValueError(f"layer_kinds[{i}] is {kind!r}; known kinds are {', '.join(LAYER_KINDS)}")
            if getattr(self, kind) is None:
                raise ValueError(f"layer_kinds[{i}] is {kind!r}, but the config has no {kind} shape")
        if len({self.layer_kinds[i] for i in self.full_layers}) > 1:
            raise ValueError("mla and gqa layers in one model would need pages of two widths")
        if self.sliding and self.sliding.window % self.grid.block:
            raise ValueError(f"sliding.window {self.sliding.window} must be a multiple of block {self.grid.block}")
        if self.moe and not set(self.moe.layers) <= set(range(len(self.layer_kinds))):
            raise ValueError(f"moe.layers {self.moe.layers} must be among 0..{len(self.layer_kinds) - 1}")
        positive(self, "hidden_size", "intermediate_size", "vocab_size")

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The shape of every layer, in order."""
        return tuple(getattr(self, kind) for kind in self.layer_kinds)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Layers whose cache grows with the prompt and lives in pages."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind in FULL_KINDS)

    @property
    def fixed_layers(self) -> tuple[int, ...]:
        """Layers whose state has a fixed size."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind not in FULL_KINDS)

    @property
    def page_width(self) -> int:
        """Numbers cached per token and full-attention layer; 0 without such layers."""
        return max((self.layers[i].token_width for i in self.full_layers), default=0)


BYTES, END = 256, 256
"""The toy's vocabulary: token i is byte i, and token 256 ends an answer."""


def as_bytes(tokens: Iterable[int]) -> bytes:
    """The bytes that tokens stand for; those that end an answer stand for none."""
    return bytes(token for token in tokens if token < BYTES)


# Seven KDA layers, then one MLA layer; K != V on purpose, so that no transposed state has a legal shape.
TOY = HybridConfig(
    layer_kinds=(KDA,) * 7 + (MLA,),
    vocab_size=BYTES + 1,
    hidden_size=128,
    intermediate_size=256,
    end_tokens=(END,),
    kda=KDAShape(num_heads=2, key_dim=64, value_dim=48, num_value_heads=2),
    mla=MLAShape(num_heads=4, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
)

# Three KDA layers to one MLA layer, experts everywhere but in the first layer, two value heads to each key head.
TOY_MOE = HybridConfig(
    layer_kinds=((KDA,) * 3 + (MLA,)) * 2,
    vocab_size=BYTES + 1,
    hidden_size=128,
    intermediate_size=256,
    end_tokens=(END,),
    kda=KDAShape(num_heads=2, key_dim=32, value_dim=48, num_value_heads=4),
    mla=MLAShape(num_heads=3, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, q_lora_rank=64),
    moe=MoE(
        layers=tuple(range(1, 8)),
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=1,
        intermediate_size=64,
        routed_scaling_factor=2.446,
    ),
)

PRESETS = {"toy": TOY, "toy-random": TOY, "toy_moe": TOY_MOE}
"""Models by name. `toy` has the trained weights that ship with the package, the others seeded random ones."""
