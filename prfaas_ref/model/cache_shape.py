"""The layers of any published model as far as its cache goes: read from its `config.json`, without torch.

Knows the layer lists and sizes of the hybrid families of the paper's Table 3 and of plain dense models: a wider circle
than can be run. What cannot be sized is refused, naming the fields that are missing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.model.config import GQA, KDA, LIGHTNING, MLA, SLIDING
from prfaas_ref.model.kinds import (
    GDNShape,
    GQAShape,
    Grid,
    KDAShape,
    LayerKind,
    LightningShape,
    MLAShape,
    SlidingShape,
)
from prfaas_ref.model.published import from_one_based, linear_fields

PUBLISHED = ("kimi-linear-48b", "mimo-v2-flash", "qwen3.5-397b", "ring-2.5-1t", "minimax-m2.5", "qwen3-235b")
"""The models of the paper's Table 3; their configs ship with the package, cut down to the facts used here."""

FOLDER = Path(__file__).parent / "published_configs"
GDN = "gdn"
KIND_NAMES = {"full_attention": "full", "linear_attention": "linear", "sliding_attention": SLIDING}
DENSE_TYPES = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "minimax_m2", "gemma", "phi3",
    "deepseek_v2", "deepseek_v3", "kimi_k2",
}  # fmt: skip
LAYER_LISTS = "linear_attn_config, layer_types, hybrid_layer_pattern, full_attention_interval or layer_group_size"


@dataclass(frozen=True)
class CacheShape:
    """What `model.sizes` needs: the shape of every layer, in order, and the names of their kinds."""

    name: str
    layer_kinds: tuple[str, ...]
    layers: tuple[LayerKind, ...]
    grid: Grid = field(default_factory=Grid)


def read_cache_shape(name_or_file: str) -> CacheShape:
    """A published model by name, or a user's config.json. Raises UserError."""
    path = FOLDER / f"{name_or_file}.json" if name_or_file in PUBLISHED else Path(name_or_file)
    if path.suffix != ".json":
        raise UserError(f"no model {name_or_file!r}; known are {', '.join(PUBLISHED)}, or give a config.json's path")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds a {type(config).__name__}, not an object")
    try:
        return cache_shape(name_or_file, config.get("text_config") or config)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {error}") from error


def cache_shape(name: str, config: Mapping[str, Any]) -> CacheShape:
    """The shape from a config's fields. Raises ValueError naming what is missing or contradicts itself."""
    general = layer_list(config)
    full = MLA if config.get("kv_lora_rank") else GQA
    kinds = tuple({"full": full, "linear": linear_kind(config)}.get(kind, kind) for kind in general)
    shapes = {kind: SHAPES[kind](config) for kind in sorted(set(kinds))}
    return CacheShape(name, kinds, tuple(shapes[kind] for kind in kinds))


def layer_list(config: Mapping[str, Any]) -> list[str]:
    """Every layer as "full", "linear" or "sliding", from whichever list the config has."""
    (n,) = need(config, "num_hidden_layers")
    linear = config.get("linear_attn_config") or {}
    if "kda_layers" in linear:
        kda_layers, full_layers = need_any(linear, "kda_layers", "full_attn_layers")
        return list(from_one_based(n, {"linear": kda_layers, "full": full_layers}))
    if types := config.get("layer_types"):
        if unknown := sorted(set(types) - set(KIND_NAMES)):
            raise ValueError(f"layer_types has {', '.join(unknown)}; known are {', '.join(KIND_NAMES)}")
        kinds = [KIND_NAMES[t] for t in types]
    elif pattern := config.get("hybrid_layer_pattern"):
        kinds = [SLIDING if window else "full" for window in pattern]
    elif every := config.get("full_attention_interval"):
        kinds = ["linear" if (i + 1) % every else "full" for i in range(n)]
    elif every := config.get("layer_group_size"):  # of the Ling family: a last group that is not whole is all full
        kinds = ["linear" if (i + 1) % every and i < n // every * every else "full" for i in range(n)]
    elif config.get("model_type") in DENSE_TYPES:
        kinds = ["full"] * n
    else:
        raise ValueError(f"model_type {config.get('model_type')!r} is not known, and there is no {LAYER_LISTS}")
    if len(kinds) != n:
        raise ValueError(f"the layer list has {len(kinds)} layers, but num_hidden_layers is {n}")
    return kinds


def linear_kind(config: Mapping[str, Any]) -> str:
    if linear_fields(config) or "short_conv_kernel_size" in config:
        return KDA
    return GDN if "linear_num_value_heads" in config else LIGHTNING


def need(config: Mapping[str, Any], *names: str) -> list[int]:
    """The values of fields. Raises ValueError naming all that are missing."""
    return [int(value) for value in need_any(config, *names)]


def need_any(config: Mapping[str, Any], *names: str) -> list[Any]:
    """As `need`, for fields of any kind."""
    if missing := [name for name in names if config.get(name) is None]:
        raise ValueError(f"the cache cannot be sized without {', '.join(missing)}")
    return [config[name] for name in names]


def kda(config: Mapping[str, Any]) -> KDAShape:
    linear = linear_fields(config) or {
        "num_heads": config.get("num_attention_heads"),
        "head_dim": config.get("head_dim"),
        "short_conv_kernel_size": config.get("short_conv_kernel_size"),
    }
    heads, dim, taps = need(linear, "num_heads", "head_dim", "short_conv_kernel_size")
    return KDAShape(heads, dim, linear.get("value_head_dim", dim), linear.get("num_value_heads", heads), taps)


def gdn(config: Mapping[str, Any]) -> GDNShape:
    heads, value_heads = need(config, "linear_num_key_heads", "linear_num_value_heads")
    K, V, taps = need(config, "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
    return GDNShape(heads, K, V, value_heads, taps)


def lightning(config: Mapping[str, Any]) -> LightningShape:
    heads, dim = need(config, "num_attention_heads", "head_dim")
    return LightningShape(heads, dim, dim)


def mla(config: Mapping[str, Any]) -> MLAShape:
    """The query side has no part in the cache, so its dims may be missing."""
    heads, rank, rope = need(config, "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim")
    return MLAShape(heads, rank, config.get("qk_nope_head_dim", 128), rope, config.get("v_head_dim", 128))


def gqa(config: Mapping[str, Any]) -> GQAShape:
    return GQAShape(*attention_sizes(config, ""))


def sliding(config: Mapping[str, Any]) -> SlidingShape:
    (window,) = need(config, "sliding_window")
    return SlidingShape(*attention_sizes(config, "swa_"), window=window)


def attention_sizes(config: Mapping[str, Any], prefix: str) -> list[int]:
    """Heads, key heads, key and value dims; a field with the prefix wins, and dims have the usual defaults."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    fields = {name: config.get(prefix + name) or config.get(name) for name in names}
    if not fields["head_dim"]:
        hidden, heads = need(config, "hidden_size", "num_attention_heads")
        fields["head_dim"] = hidden // heads
    return need({**fields, "v_head_dim": fields["v_head_dim"] or fields["head_dim"]}, *names)


SHAPES = {KDA: kda, GDN: gdn, LIGHTNING: lightning, MLA: mla, GQA: gqa, SLIDING: sliding}
