"""Weights by their published names: which a config needs, seeded random ones, and the digest that names them.

A model's weights are a plain dict from name to tensor, in the layout of published kimi_linear checkpoints.
"""

import hashlib
import math

import torch
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.layers import MIXERS
from prfaas_ref.model.moe import MixtureOfExperts


def weight_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model, by published name, with its shape."""
    d, ff, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    for i, kind in enumerate(config.layer_kinds):
        mixer = MIXERS[kind].weight_shapes(config.layers[i], d)
        layer = {f"self_attn.{name}": shape for name, shape in mixer.items()}
        if config.moe and i in config.moe.layers:
            experts = MixtureOfExperts.weight_shapes(config.moe, d)
            layer |= {f"block_sparse_moe.{name}": shape for name, shape in experts.items()}
        else:
            layer |= {"mlp.gate_proj.weight": (ff, d), "mlp.up_proj.weight": (ff, d), "mlp.down_proj.weight": (d, ff)}
        layer |= {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (d,), "lm_head.weight": (vocab, d)}


def stays_float32(name: str) -> bool:
    """Whether a weight is float32 whatever the model's dtype: the gates' parameters and the router."""
    return name.endswith(("A_log", "dt_bias", "e_score_correction_bias", "block_sparse_moe.gate.weight"))


def random_weights(config: HybridConfig, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Seeded weights at the usual scales; the gates are spread as in published models (steps of 0.001 to 0.1)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if "norm" in name:
            return torch.ones(shape)
        if name.endswith("A_log"):
            return torch.empty(shape).uniform_(1, 16, generator=generator).log()
        if name.endswith("dt_bias"):  # the inverse softplus of a log-uniform step
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
            return step + torch.log(-torch.expm1(-step))
        if name.endswith("e_score_correction_bias"):
            return torch.empty(shape).uniform_(-0.1, 0.1, generator=generator)
        return torch.randn(shape, generator=generator) * (1.0 if "embed" in name else shape[-1] ** -0.5)

    drawn = {name: draw(name, shape) for name, shape in weight_shapes(config).items()}
    return {name: t if stays_float32(name) else t.to(dtype) for name, t in drawn.items()}


def weights_digest(weights: dict[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.cpu().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
