"""Weights by their published names: which a config needs, seeded random ones, and the digest that names them.

A model's weights are a plain dict from name to tensor, in the layout of published kimi_linear checkpoints.
"""

import hashlib
import math

import torch
from torch import Tensor

from prfaas_ref.model.config import KDA, HybridConfig


def kda_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    d, H, K, V = config.hidden_size, config.linear_num_heads, config.linear_key_dim, config.linear_value_dim
    taps = config.short_conv_kernel_size
    return {
        "q_proj.weight": (H * K, d),
        "k_proj.weight": (H * K, d),
        "v_proj.weight": (H * V, d),
        "q_conv1d.weight": (H * K, 1, taps),
        "k_conv1d.weight": (H * K, 1, taps),
        "v_conv1d.weight": (H * V, 1, taps),
        "A_log": (1, 1, H, 1),
        "f_a_proj.weight": (K, d),
        "f_b_proj.weight": (H * K, K),
        "dt_bias": (H * K,),
        "b_proj.weight": (H, d),
        "g_a_proj.weight": (V, d),
        "g_b_proj.weight": (H * V, V),
        "o_norm.weight": (V,),
        "o_proj.weight": (d, H * V),
    }


def mla_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    d, H, latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return {
        "q_proj.weight": (H * (config.qk_nope_head_dim + config.qk_rope_head_dim), d),
        "kv_a_proj_with_mqa.weight": (config.page_width, d),
        "kv_a_layernorm.weight": (latent,),
        "kv_b_proj.weight": (H * (config.qk_nope_head_dim + config.v_head_dim), latent),
        "o_proj.weight": (d, H * config.v_head_dim),
    }


def weight_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model, by published name, with its shape."""
    d, ff, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    for i, kind in enumerate(config.layer_kinds):
        mixer = kda_shapes(config) if kind == KDA else mla_shapes(config)
        mlp = {"gate_proj.weight": (ff, d), "up_proj.weight": (ff, d), "down_proj.weight": (d, ff)}
        layer = {f"self_attn.{name}": shape for name, shape in mixer.items()}
        layer |= {f"mlp.{name}": shape for name, shape in mlp.items()}
        layer |= {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (d,), "lm_head.weight": (vocab, d)}


def random_weights(config: HybridConfig, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Seeded weights at the usual scales, the gates spread as published models initialise them (steps of 0.001 to 0.1)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if "norm" in name:
            return torch.ones(shape, dtype=dtype)
        if name.endswith("A_log"):
            return torch.empty(shape).uniform_(1, 16, generator=generator).log()
        if name.endswith("dt_bias"):  # the inverse softplus of a log-uniform step
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
            return step + torch.log(-torch.expm1(-step))
        scale = 1.0 if "embed" in name else shape[-1] ** -0.5
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    return {name: draw(name, shape) for name, shape in weight_shapes(config).items()}


def weights_digest(weights: dict[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
