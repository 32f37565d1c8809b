"""One layer of the model: a mixer of the layer's kind, then a feed-forward half, each on a norm and a residual."""

from torch import Tensor

from prfaas_ref.model.config import GQA as GQA_KIND
from prfaas_ref.model.config import KDA as KDA_KIND
from prfaas_ref.model.config import LIGHTNING, SLIDING, HybridConfig
from prfaas_ref.model.config import MLA as MLA_KIND
from prfaas_ref.model.exact import rms_norm
from prfaas_ref.model.ffn import SwiGLU
from prfaas_ref.model.gqa import GQA
from prfaas_ref.model.kda import KDA
from prfaas_ref.model.lightning import Lightning
from prfaas_ref.model.mla import MLA
from prfaas_ref.model.moe import MixtureOfExperts
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.sliding import Sliding
from prfaas_ref.model.state import LayerState

MIXERS = {KDA_KIND: KDA, MLA_KIND: MLA, GQA_KIND: GQA, SLIDING: Sliding, LIGHTNING: Lightning}


def below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names start with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: tensor for name, tensor in weights.items() if name.startswith(prefix)}


class Layer:
    """x + mixer(norm x), then x + ffn(norm x)."""

    def __init__(self, config: HybridConfig, index: int, weights: dict[str, Tensor]) -> None:
        """weights: by the published names below `model.layers.{index}.`."""
        self.eps = config.rms_norm_eps
        self.input_norm = weights["input_layernorm.weight"].float()
        self.post_norm = weights["post_attention_layernorm.weight"].float()
        mixer = MIXERS[config.layer_kinds[index]]
        self.mixer = mixer(config, config.layers[index], below(weights, "self_attn."))
        if config.moe and index in config.moe.layers:
            self.ffn = MixtureOfExperts(config.moe, below(weights, "block_sparse_moe."), config.grid.slab)
        else:
            self.ffn = SwiGLU(*(weights[f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down")), config.grid.slab)

    def __call__(self, x: Tensor, memory: LayerState | Tensor, schedule: Schedule) -> Tensor:
        """x: [B, n, d]. memory: the layer's state or its pages, advanced in place. Returns [B, n, d]."""
        x = x + self.mixer(rms_norm(x, self.input_norm, self.eps), memory, schedule)
        return x + self.ffn(rms_norm(x, self.post_norm, self.eps).flatten(0, 1)).view_as(x)
