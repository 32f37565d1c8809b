"""Sizes of the six published models against the figures derived by hand from their public configs."""

import json

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.model_config import kv_size, layer_kinds, read_kv_size
from prfaas_ref.scheduler.paper_data import MODEL_BYTES

MIB = 2**20
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
CONFIGS = {
    "Kimi Linear": {
        "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "linear_attn_config": {
            "full_attn_layers": KIMI_FULL, "kda_layers": [i for i in range(1, 28) if i not in KIMI_FULL],
            "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
        },
    },
    "MiMo-V2-Flash": {
        "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
        "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
        "sliding_window": 128, "hybrid_layer_pattern": [0] * 9 + [1] * 39,
    },
    "Qwen3.5-397B": {
        "text_config": {
            "num_hidden_layers": 60, "full_attention_interval": 4, "num_attention_heads": 32,
            "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        }
    },
    "Ring-2.5-1T": {
        "num_hidden_layers": 80, "layer_group_size": 8, "num_attention_heads": 64, "head_dim": 128,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    },
    "MiniMax-M2.5": {
        "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
    },
    "Qwen3-235B": {
        "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    },
}  # fmt: skip
TABLE = {
    "Kimi Linear": (8064, 41.41),
    "MiMo-V2-Flash": (23_040, 24.38),
    "Qwen3.5-397B": (30_720, 183.16),
    "Ring-2.5-1T": (11_520, 280.0),
    "MiniMax-M2.5": (253_952, 0),
    "Qwen3-235B": (192_512, 0),
}


@pytest.mark.parametrize("model", TABLE)
def test_published_models(model):
    size = kv_size(CONFIGS[model])
    per_token, fixed_mib = TABLE[model]
    assert size.bytes_per_token == per_token
    assert size.fixed_bytes / MIB == pytest.approx(fixed_mib, abs=0.006)
    assert MODEL_BYTES[model] == size


def test_layer_types_are_read_and_counted():
    config = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "sliding_attention", "full_attention"]}
    assert layer_kinds(config) == ["linear", "window", "full"]
    with pytest.raises(UserError, match="3 layer kinds"):
        layer_kinds({**config, "num_hidden_layers": 4})


@pytest.mark.parametrize(("full", "linear"), [([4], [1, 2, 3, 4]), ([4], [1, 2]), ([0], [1, 2, 3])])
def test_one_based_lists_name_every_layer_once(full, linear):
    with pytest.raises(UserError, match="each once"):
        layer_kinds({"num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": full, "kda_layers": linear}})


def test_a_file_that_lacks_a_field_or_is_none(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(UserError, match="cannot read"):
        read_kv_size(path)
    path.write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}))
    with pytest.raises(UserError, match="lacks num_key_value_heads"):
        read_kv_size(path)
