"""Small models that hide nothing: K != V, few and odd head counts, a vocabulary of 257, widths that divide nothing."""

from functools import cache

import torch
from torch import Tensor

from prfaas_ref.model.config import TOY, TOY_MOE, HybridConfig, MoE
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.kinds import GQAShape, KDAShape, LightningShape, MLAShape, SlidingShape
from prfaas_ref.model.state import HybridState
from prfaas_ref.model.weights import random_weights

WIDTHS = {"vocab_size": 257, "hidden_size": 96, "intermediate_size": 80}


def mla(num_heads: int) -> MLAShape:
    return MLAShape(num_heads, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32)


def kda(num_heads: int, num_value_heads: int, bound: float | None = None) -> KDAShape:
    return KDAShape(num_heads, 32, 48, num_value_heads, gate_lower_bound=bound)


GQA = GQAShape(6, 2, head_dim=48, v_head_dim=32, rope_dim=16)
SLIDING = SlidingShape(3, 1, head_dim=48, v_head_dim=32, rope_dim=32, window=64)
LIGHTNING = LightningShape(3, key_dim=32, value_dim=16)
CONFIGS = {
    "toy": TOY,
    "toy_moe": TOY_MOE,
    "one head": HybridConfig(("kda", "mla"), **WIDTHS, kda=kda(1, 1), mla=mla(1)),
    "two heads": HybridConfig(("mla", "kda"), **WIDTHS, kda=kda(2, 2), mla=mla(2)),
    "three heads": HybridConfig(("kda", "mla", "kda"), **WIDTHS, kda=kda(1, 3, -5.0), mla=mla(3)),
    "five heads": HybridConfig(("kda", "mla"), **WIDTHS, kda=kda(5, 5), mla=mla(5)),
    "windows": HybridConfig(("sliding", "gqa", "sliding"), **WIDTHS, gqa=GQA, sliding=SLIDING),
    "lightning": HybridConfig(("lightning", "lightning", "mla"), **WIDTHS, lightning=LIGHTNING, mla=mla(3)),
    "odd widths": HybridConfig(
        ("kda", "mla", "lightning", "sliding"),
        vocab_size=131,
        hidden_size=50,
        intermediate_size=44,
        kda=KDAShape(2, 20, 28, 4),
        mla=MLAShape(3, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, q_lora_rank=18),
        lightning=LightningShape(3, 10, 22),
        sliding=SlidingShape(2, 1, head_dim=18, v_head_dim=6, rope_dim=10, window=128),
        moe=MoE((1, 2), 5, 2, 1, 36),
    ),
    "no pages": HybridConfig(("kda", "lightning"), **WIDTHS, kda=kda(1, 2), lightning=LIGHTNING),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@cache
def model_of(name: str, dtype: str = "float32") -> HybridModel:
    return HybridModel(CONFIGS[name], random_weights(CONFIGS[name], DTYPES[dtype], seed=1))


def tokens_of(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 131, (1, n), generator=torch.Generator().manual_seed(seed))


def request(model: HybridModel, n_tokens: int) -> tuple[HybridState, Tensor]:
    """A fresh state with pages for n_tokens."""
    n_pages = -(-n_tokens // model.config.grid.block)
    state = model.new_state()
    state.tables[0] = list(range(n_pages))
    return state, model.new_pages(n_pages)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit: -0.0 is not 0.0, and NaN is itself."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def same_state(a: HybridState, b: HybridState) -> bool:
    return a.positions == b.positions and all(
        same(t, b.layers[i].tensors()[name]) for i, s in a.layers.items() for name, t in s.tensors().items()
    )
