"""Reading and writing checkpoints in the published layout: what is accepted, and what is refused in one clear line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prfaas_ref.errors import UserError
from prfaas_ref.model.checkpoint import load_model, save_model
from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.generation import generate
from prfaas_ref.model.published import config_from_published, config_to_published
from prfaas_ref.model.weights import weights_digest
from tests.model.shapes import CONFIGS, WIDTHS, kda, mla, model_of

PUBLISHED = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "linear_attn_config": {
        "kda_layers": [1, 2, 4],
        "full_attn_layers": [3],
        "head_dim": 32,
        "num_heads": 2,
        "short_conv_kernel_size": 4,
    },
}


def published(**changes: object) -> dict:
    return {**PUBLISHED, **changes}


def linear(**changes: object) -> dict:
    return published(linear_attn_config={**PUBLISHED["linear_attn_config"], **changes})


@pytest.mark.parametrize("name", ["toy", "toy_moe", "three heads"])
def test_a_saved_model_loads_unchanged(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert weights_digest(loaded.weights) == weights_digest(model.weights)
    assert generate(loaded, b"hello", 3) == generate(model, b"hello", 3)
    assert not list(tmp_path.glob("*.partial"))


def test_bfloat16_leaves_gates_and_router_in_float32(tmp_path: Path) -> None:
    save_model(model_of("toy_moe"), tmp_path)
    weights = load_model(tmp_path, dtype="bfloat16").weights
    wide = {name.split(".", 3)[-1] for name, tensor in weights.items() if tensor.dtype == torch.float32}
    assert wide == {
        "self_attn.A_log",
        "self_attn.dt_bias",
        "block_sparse_moe.gate.weight",
        "block_sparse_moe.gate.e_score_correction_bias",
    }


def test_extensions_are_written_only_where_they_differ() -> None:
    family = HybridConfig(("kda", "mla"), **WIDTHS, kda=kda(2, 2).__class__(2, 32, 32, 2), mla=mla(2))
    assert set(config_to_published(family)["linear_attn_config"]) == set(PUBLISHED["linear_attn_config"])
    ours = config_to_published(CONFIGS["three heads"])["linear_attn_config"]
    assert ours["value_head_dim"] == 48
    assert ours["num_value_heads"] == 3
    assert ours["gate_lower_bound"] == -5.0


def test_shards_with_an_index_other_names_for_dense_layers_and_flat_gates(tmp_path: Path) -> None:
    model = model_of("toy")
    save_model(model, tmp_path)
    whole = tmp_path / "model.safetensors"
    weights = load_file(whole)
    whole.unlink()
    weights = {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in weights.items()}
    weights = {n: t.flatten() if n.endswith("A_log") else t for n, t in weights.items()}
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_digest(load_model(tmp_path).weights) == weights_digest(model.weights)


def test_every_fault_of_the_weights_is_listed_at_once(tmp_path: Path) -> None:
    save_model(model_of("toy"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    weights["model.layers.0.self_attn.rotary.weight"] = torch.zeros(2)
    weights["lm_head.weight"] = weights["lm_head.weight"][:-1].clone()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert "model.norm.weight is missing" in str(error.value)
    assert "self_attn.rotary.weight is not expected" in str(error.value)
    assert "lm_head.weight is [256, 128], expected [257, 128]" in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (linear(kda_layers=[1, 2, 3, 4]), "layer 3 is listed twice"),
        (linear(kda_layers=[1, 2]), r"missing \[4\]"),
        (linear(kda_layers=[0, 1, 2, 4]), r"out of range \[0\]"),
        (linear(full_attn_layers=[4], kda_layers=[1, 2, 5]), r"missing \[3\], out of range \[5\]"),
        (linear(head_dim=0), "key_dim is 0; it must be positive"),
        (published(hidden_size="128"), "config.json: "),
        (published(linear_attn_config=None), "lacks linear_attn_config.head_dim"),
        (published(model_type="llama"), "model_type is 'llama'; only 'kimi_linear'"),
        (published(mla_use_nope=False), "mla_use_nope is False; only True"),
        (published(num_expert_group=8), "num_expert_group is 8; only 1"),
        (published(num_experts=4), "lacks num_experts_per_token, num_shared_experts, moe_intermediate_size"),
        ({k: v for k, v in PUBLISHED.items() if k not in ("vocab_size", "v_head_dim")}, "lacks vocab_size, v_head_dim"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_name(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_from_published(config)


def test_layer_lists_are_one_based_and_text_config_may_nest() -> None:
    config = config_from_published({"model_type": "multimodal", "text_config": PUBLISHED})
    assert config.layer_kinds == ("kda", "kda", "mla", "kda")
    assert config.moe is None


def test_the_layout_that_transformers_writes_is_read_too() -> None:
    flat = {"linear_head_dim": 32, "linear_num_heads": 2, "linear_conv_kernel_dim": 4}
    types = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    native = {k: v for k, v in PUBLISHED.items() if k != "linear_attn_config"} | flat
    assert config_from_published({**native, "layer_types": types}) == config_from_published(PUBLISHED)
    with pytest.raises(UserError, match="no layer list"):  # no default ratio is assumed
        config_from_published(native)


@pytest.mark.parametrize(("eos", "ends"), [(None, ()), (2, (2,)), ([2, 7], (2, 7))])
def test_answers_end_where_the_config_says(eos: object, ends: tuple[int, ...]) -> None:
    config = config_from_published({**PUBLISHED, "eos_token_id": eos})
    assert config.end_tokens == ends
    assert config_to_published(config)["eos_token_id"] == eos
    assert config_from_published(config_to_published(config)) == config


def test_experts_sit_where_the_config_says() -> None:
    moe = {"num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 32}
    config = published(**moe, routed_scaling_factor=2.0, first_k_dense_replace=1)
    assert config_from_published(config).moe.layers == (1, 2, 3)
    assert config_from_published({**config, "moe_layer_freq": 2}).moe.layers == (2,)
    types = ["sparse", "dense", "dense", "sparse"]
    assert config_from_published({**config, "mlp_layer_types": types}).moe.layers == (0, 3)


def test_directories_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a preset"):
        load_model(tmp_path / "none")
    with pytest.raises(UserError, match=r"no readable config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is refused, since pickle files can run code"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match="cannot be read"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="dtype 'float16' is not supported"):
        load_model("toy", dtype="float16")
