"""The border to published checkpoints: a kimi_linear `config.json` becomes a `HybridConfig`, and back.

Reads the layout of the published repositories (`linear_attn_config`, layer lists 1-based) and the one that transformers
writes (`layer_types`, `linear_head_dim`, ...). Our extensions of `linear_attn_config` are written only where they
differ from what the family has: `value_head_dim` (K), `num_value_heads` (num_heads), `gate_lower_bound` (none).
"""

from collections.abc import Mapping
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.model.config import KDA, MLA, HybridConfig, MoE
from prfaas_ref.model.kinds import KDAShape, MLAShape

TOP = ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps")
MLA_NAMES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LINEAR = {  # in linear_attn_config: as transformers writes it
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
MOE_NAMES = ("num_experts_per_token", "num_shared_experts", "moe_intermediate_size", "routed_scaling_factor")
ONLY = {  # what a variant of the family might set otherwise, and we do not compute
    "hidden_act": ("silu",),
    "tie_word_embeddings": (False,),
    "attention_bias": (False,),
    "mla_use_nope": (True,),
    "num_expert_group": (1,),
    "moe_router_activation_func": ("sigmoid",),
}
KIND_NAMES = {"linear_attention": KDA, "full_attention": MLA}


def config_from_published(published: dict[str, Any]) -> HybridConfig:
    """Read a kimi_linear config. Raises UserError naming what is missing or not supported."""
    published = published.get("text_config") or published
    if published.get("model_type") != "kimi_linear":
        raise UserError(f"config.json: model_type is {published.get('model_type')!r}; only 'kimi_linear' can be run")
    for name, values in ONLY.items():
        if published.get(name, values[0]) not in values:
            raise UserError(f"config.json: {name} is {published[name]!r}; only {values[0]!r} is supported")
    linear = linear_fields(published)
    missing = [name for name in ("num_hidden_layers", "num_attention_heads", *TOP, *MLA_NAMES) if name not in published]
    missing += [f"linear_attn_config.{name}" for name in LINEAR if name not in linear]
    if published.get("num_experts"):
        missing += [name for name in MOE_NAMES if name not in published]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")
    try:
        return HybridConfig(
            layer_kinds=layer_kinds(published, linear),
            **{name: published[name] for name in TOP},
            kda=KDAShape(
                num_heads=linear["num_heads"],
                key_dim=linear["head_dim"],
                value_dim=linear.get("value_head_dim", linear["head_dim"]),
                num_value_heads=linear.get("num_value_heads", linear["num_heads"]),
                conv_kernel_size=linear["short_conv_kernel_size"],
                gate_lower_bound=linear.get("gate_lower_bound"),
            ),
            mla=MLAShape(
                num_heads=published["num_attention_heads"],
                **{name: published[name] for name in MLA_NAMES},
                q_lora_rank=published.get("q_lora_rank"),
            ),
            moe=moe_from_published(published) if published.get("num_experts") else None,
            end_tokens=end_tokens(published.get("eos_token_id")),
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"config.json: {error}") from error


def end_tokens(eos_token_id: int | list[int] | None) -> tuple[int, ...]:
    """The tokens that end an answer: none, one or several."""
    return () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)


def linear_fields(published: Mapping[str, Any]) -> dict[str, Any]:
    """linear_attn_config, whichever of the two layouts a config has; empty if neither."""
    theirs = {ours: published[name] for ours, name in LINEAR.items() if name in published}
    if "num_heads" not in theirs:  # the other fields' names are used by other families too
        theirs = {}
    return {**theirs, **(published.get("linear_attn_config") or {})}


def layer_kinds(published: dict[str, Any], linear: dict[str, Any]) -> tuple[str, ...]:
    """The kind of every layer. Raises ValueError unless the lists name each layer exactly once."""
    n = published["num_hidden_layers"]
    if "kda_layers" in linear and "full_attn_layers" in linear:
        return from_one_based(n, {KDA: linear["kda_layers"], MLA: linear["full_attn_layers"]})
    types = published.get("layer_types")
    if types is None:
        raise ValueError("no layer list: linear_attn_config.{kda_layers, full_attn_layers} or layer_types is needed")
    if len(types) != n or not set(types) <= set(KIND_NAMES):
        raise ValueError(f"layer_types must be {n} of {', '.join(KIND_NAMES)}; it is {types}")
    return tuple(KIND_NAMES[t] for t in types)


def from_one_based(n: int, lists: dict[str, list[int]]) -> tuple[str, ...]:
    """Kinds in order, from 1-based lists that must be disjoint and complete."""
    kinds: dict[int, str] = {}
    for kind, layers in lists.items():
        for i in layers:
            if i in kinds:
                raise ValueError(f"layer {i} is listed twice in kda_layers and full_attn_layers (1-based)")
            kinds[i] = kind
    wanted = set(range(1, n + 1))
    if set(kinds) != wanted:
        missing, extra = sorted(wanted - set(kinds)) or "none", sorted(set(kinds) - wanted) or "none"
        raise ValueError(
            f"kda_layers and full_attn_layers (1-based) must cover 1..{n}; missing {missing}, out of range {extra}"
        )
    return tuple(kinds[i] for i in range(1, n + 1))


def moe_from_published(published: dict[str, Any]) -> MoE:
    """The experts' shape, and the layers that have them: mlp_layer_types, or all from first_k_dense_replace on."""
    n, first = published["num_hidden_layers"], published.get("first_k_dense_replace", 0)
    every = published.get("moe_layer_freq", 1)
    types = published.get("mlp_layer_types") or [
        "sparse" if i >= first and i % every == 0 else "dense" for i in range(n)
    ]
    return MoE(
        layers=tuple(i for i, t in enumerate(types) if t == "sparse"),
        num_experts=published["num_experts"],
        num_experts_per_token=published["num_experts_per_token"],
        num_shared_experts=published["num_shared_experts"],
        intermediate_size=published["moe_intermediate_size"],
        routed_scaling_factor=published["routed_scaling_factor"],
        renormalize=published.get("moe_renormalize", True),
    )


def config_to_published(config: HybridConfig) -> dict[str, Any]:
    """The inverse, in the layout other readers of kimi_linear understand. Raises ValueError for kinds it has not."""
    kda, mla, n, ends = config.kda, config.mla, len(config.layer_kinds), list(config.end_tokens)
    if kda is None or mla is None or not set(config.layer_kinds) <= {KDA, MLA}:
        raise ValueError("only models of kda and mla layers have a published layout")
    linear = {
        "kda_layers": [i + 1 for i in config.fixed_layers],
        "full_attn_layers": [i + 1 for i in config.full_layers],
        "head_dim": kda.key_dim,
        "num_heads": kda.num_heads,
        "short_conv_kernel_size": kda.conv_kernel_size,
    }
    if kda.value_dim != kda.key_dim:
        linear["value_head_dim"] = kda.value_dim
    if kda.num_value_heads != kda.num_heads:
        linear["num_value_heads"] = kda.num_value_heads
    if kda.gate_lower_bound is not None:
        linear["gate_lower_bound"] = kda.gate_lower_bound
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": n,
        "num_attention_heads": mla.num_heads,
        "num_key_value_heads": mla.num_heads,
        "q_lora_rank": mla.q_lora_rank,
        **{name: getattr(mla, name) for name in MLA_NAMES},
        **{name: values[0] for name, values in ONLY.items()},
        **{name: getattr(config, name) for name in TOP},
        **dict.fromkeys(("pad_token_id", "bos_token_id")),  # other readers' defaults need a vast vocabulary
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "linear_attn_config": linear,
        "mlp_layer_types": ["sparse" if config.moe and i in config.moe.layers else "dense" for i in range(n)],
        **(moe_to_published(config.moe) if config.moe else {"num_experts": 0}),
    }


def moe_to_published(moe: MoE) -> dict[str, Any]:
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_token": moe.num_experts_per_token,
        "num_shared_experts": moe.num_shared_experts,
        "moe_intermediate_size": moe.intermediate_size,
        "routed_scaling_factor": moe.routed_scaling_factor,
        "moe_renormalize": moe.renormalize,
    }
