"""The border to published checkpoints: a kimi_linear `config.json` becomes a `HybridConfig`, and back.

Layer lists in the file are 1-based. `value_head_dim` in `linear_attn_config` is an extension, written only where K != V.
"""

from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.model.config import KDA, MLA, HybridConfig

SAME_NAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rms_norm_eps",
)


def layer_kinds(n_layers: int, kda_layers: list[int], full_attn_layers: list[int]) -> tuple[str, ...]:
    """Kinds in order, from 1-based lists that must be disjoint and complete. Raises UserError."""
    kinds: dict[int, str] = {}
    for kind, layers in ((KDA, kda_layers), (MLA, full_attn_layers)):
        for i in layers:
            if i in kinds:
                raise UserError(f"config.json: layer {i} is listed twice in kda_layers and full_attn_layers (1-based)")
            kinds[i] = kind
    if sorted(kinds) != list(range(1, n_layers + 1)):
        missing = sorted(set(range(1, n_layers + 1)) - set(kinds)) or "none"
        extra = sorted(set(kinds) - set(range(1, n_layers + 1))) or "none"
        raise UserError(
            f"config.json: kda_layers and full_attn_layers (1-based) must cover 1..{n_layers}; "
            f"missing {missing}, out of range {extra}"
        )
    return tuple(kinds[i] for i in range(1, n_layers + 1))


def config_from_published(published: dict[str, Any]) -> HybridConfig:
    """Read a kimi_linear config. Raises UserError naming what is missing or not supported."""
    published = published.get("text_config", published)
    if published.get("model_type") != "kimi_linear":
        raise UserError(f"config.json: model_type is {published.get('model_type')!r}; only 'kimi_linear' can be run")
    linear = published.get("linear_attn_config") or {}
    needed = ("kda_layers", "full_attn_layers", "head_dim", "num_heads", "short_conv_kernel_size")
    missing = [name for name in ("num_hidden_layers", *SAME_NAME) if name not in published]
    missing += [f"linear_attn_config.{name}" for name in needed if name not in linear]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")
    try:
        return HybridConfig(
            layer_kinds=layer_kinds(published["num_hidden_layers"], linear["kda_layers"], linear["full_attn_layers"]),
            linear_num_heads=linear["num_heads"],
            linear_key_dim=linear["head_dim"],
            linear_value_dim=linear.get("value_head_dim", linear["head_dim"]),
            short_conv_kernel_size=linear["short_conv_kernel_size"],
            **{name: published[name] for name in SAME_NAME},
        )
    except ValueError as error:
        raise UserError(f"config.json: {error}") from error


def config_to_published(config: HybridConfig) -> dict[str, Any]:
    """The inverse, in the layout other readers of kimi_linear understand."""
    linear = {
        "kda_layers": [i + 1 for i in config.kda_layers],
        "full_attn_layers": [i + 1 for i in config.full_layers],
        "head_dim": config.linear_key_dim,
        "num_heads": config.linear_num_heads,
        "short_conv_kernel_size": config.short_conv_kernel_size,
    }
    if config.linear_value_dim != config.linear_key_dim:
        linear["value_head_dim"] = config.linear_value_dim
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": len(config.layer_kinds),
        "num_key_value_heads": config.num_attention_heads,
        "q_lora_rank": None,
        "mla_use_nope": True,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "linear_attn_config": linear,
        **{name: getattr(config, name) for name in SAME_NAME},
    }
