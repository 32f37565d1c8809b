"""S_kv from a published model's `config.json`: which layers keep KV per token, and what the others keep at all.

Knows nothing of running the model. Reads the layer lists and sizes of Kimi Linear, MiMo, Qwen, Ring, MiniMax and
their like; KV in bf16, recurrent states in fp32, convolution windows in bf16, every KV head once. Paper section 2.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.profile import KvSize

Kind = Literal["full", "window", "linear"]
KV_BYTES, STATE_BYTES = 2, 4
_KIND_NAMES: dict[str, Kind] = {"full_attention": "full", "linear_attention": "linear", "sliding_attention": "window"}


def read_kv_size(path: Path) -> KvSize:
    """S_kv of the model whose `config.json` this is. Raises UserError naming what is missing."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read model config {path}: {error}") from error
    try:
        return kv_size(config)
    except KeyError as error:
        raise UserError(f"model config {path} lacks {error.args[0]}; give bytes_per_token and fixed_mib") from error


def kv_size(config: Mapping[str, Any]) -> KvSize:
    """S_kv from a config's fields. Raises KeyError with the field that is missing, UserError for bad layer lists."""
    config = config.get("text_config", config)
    sizes: dict[Kind, Any] = {"full": _per_token, "window": _window, "linear": _linear_state}
    kinds = layer_kinds(config)
    per_layer = {kind: sizes[kind](config) for kind in set(kinds)}
    total: dict[Kind, int] = {kind: kinds.count(kind) * per_layer.get(kind, 0) for kind in sizes}
    return KvSize(total["full"], total["window"] + total["linear"])


def layer_kinds(config: Mapping[str, Any]) -> list[Kind]:
    """The kind of every layer, from whichever list or interval the config has; dense attention when it has none."""
    n = config["num_hidden_layers"]
    if linear := config.get("linear_attn_config"):
        return _from_one_based(n, linear["full_attn_layers"], linear["kda_layers"])
    if types := config.get("layer_types"):
        kinds: list[Kind] = [_KIND_NAMES.get(name, "full") for name in types]
    elif pattern := config.get("hybrid_layer_pattern"):
        kinds = ["window" if bit else "full" for bit in pattern]
    elif interval := config.get("full_attention_interval") or config.get("layer_group_size"):
        kinds = ["full" if (i + 1) % interval == 0 else "linear" for i in range(n)]
    else:
        kinds = ["full"] * n
    if len(kinds) != n:
        raise UserError(f"model config: {len(kinds)} layer kinds for num_hidden_layers {n}")
    return kinds


def _from_one_based(n: int, full: list[int], linear: list[int]) -> list[Kind]:
    """Kimi's lists count from 1; together they must name every layer once."""
    if sorted([*full, *linear]) != list(range(1, n + 1)):
        raise UserError(f"model config: full_attn_layers and kda_layers must name the layers 1 to {n}, each once")
    return ["full" if i in full else "linear" for i in range(1, n + 1)]


def _per_token(config: Mapping[str, Any]) -> int:
    if rank := config.get("kv_lora_rank"):
        return int(rank + config["qk_rope_head_dim"]) * KV_BYTES
    key_dim = _head_dim(config)
    return int(config["num_key_value_heads"] * (key_dim + config.get("v_head_dim", key_dim))) * KV_BYTES


def _window(config: Mapping[str, Any]) -> int:
    heads = config.get("swa_num_key_value_heads", config["num_key_value_heads"])
    key_dim = config.get("swa_head_dim") or _head_dim(config)
    value_dim = config.get("swa_v_head_dim") or config.get("v_head_dim", key_dim)
    return int(heads * (key_dim + value_dim) * config["sliding_window"]) * KV_BYTES


def _linear_state(config: Mapping[str, Any]) -> int:
    """A state of K x V per head, and the window of the short convolution over q, k and v where there is one."""
    if linear := config.get("linear_attn_config"):  # KDA
        width = linear["num_heads"] * linear["head_dim"]
        return _state_bytes(width * linear["head_dim"], linear["short_conv_kernel_size"], 3 * width)
    if "linear_num_value_heads" in config:  # gated delta net
        K, V, heads = config["linear_key_head_dim"], config["linear_value_head_dim"], config["linear_num_value_heads"]
        channels = 2 * config["linear_num_key_heads"] * K + heads * V
        return _state_bytes(heads * K * V, config["linear_conv_kernel_dim"], channels)
    return _state_bytes(config["num_attention_heads"] * _head_dim(config) ** 2, 1, 0)  # lightning attention


def _state_bytes(elements: int, taps: int, channels: int) -> int:
    return elements * STATE_BYTES + (taps - 1) * channels * KV_BYTES


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
