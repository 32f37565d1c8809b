"""`prfaas kv` and the sizes of published models, against the table that was derived by hand from their configs."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from prfaas_ref.commands import kv
from prfaas_ref.errors import UserError
from prfaas_ref.model.cache_shape import FOLDER, PUBLISHED, read_cache_shape

# bytes per token, fixed MiB, MiB at 1K / 8K / 32K / 128K
TABLE = {
    "kimi-linear-48b": ("8064", "41.41", "49.3", "104.4", "293.4", "1049.4"),
    "mimo-v2-flash": ("23040", "24.38", "46.9", "204.4", "744.4", "2904.4"),
    "qwen3.5-397b": ("30720", "183.16", "213.2", "423.2", "1143.2", "4023.2"),
    "ring-2.5-1t": ("11520", "280.00", "291.2", "370.0", "640.0", "1720.0"),
    "minimax-m2.5": ("253952", "0.00", "248.0", "1984.0", "7936.0", "31744.0"),
    "qwen3-235b": ("192512", "0.00", "188.0", "1504.0", "6016.0", "24064.0"),
}
LAYERS = {
    "kimi-linear-48b": {"kda": 20, "mla": 7},
    "mimo-v2-flash": {"gqa": 9, "sliding": 39},
    "qwen3.5-397b": {"gdn": 45, "gqa": 15},
    "ring-2.5-1t": {"lightning": 70, "mla": 10},
    "minimax-m2.5": {"gqa": 62},
    "qwen3-235b": {"gqa": 94},
}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = argparse.ArgumentParser()
    kv.add_arguments(parser)
    assert kv.run(parser.parse_args(words)) == 0
    return capsys.readouterr().out


def test_all_six_equal_the_table_to_the_printed_digits(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(run(capsys, "--json"))["models"]
    assert [m["name"] for m in models] == list(TABLE)
    for model in models:
        per_token, fixed, *mib = TABLE[model["name"]]
        assert str(model["bytes_per_token"]) == per_token
        assert f"{model['fixed_mib']:.2f}" == fixed
        assert [f"{model['mib'][n]:.1f}" for n in ("1024", "8192", "32768", "131072")] == mib
        assert {part["kind"]: part["count"] for part in model["layers"]} == LAYERS[model["name"]]
        assert sum(part["bytes_per_token"] for part in model["layers"]) == model["bytes_per_token"]
    text = run(capsys)
    assert all(f"{float(n):,.1f}" in text for row in TABLE.values() for n in row[2:])


def test_throughput_and_the_share_of_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tokens", "32768", "--prefill-s", "2", "--json")
    (model,) = json.loads(run(capsys, "kimi-linear-48b", *words, "--link-gbps", "10"))["models"]
    assert model["phi_kv_gbps"] == pytest.approx((8064 * 32768 + 41.41 * 2**20) * 8 / 2 / 1e9, rel=1e-3)
    assert model["link_share"] == pytest.approx(model["phi_kv_gbps"] / 10)
    assert model["prefill_can_leave"]
    (dense,) = json.loads(run(capsys, "qwen3-235b", *words, "--link-gbps", "10"))["models"]
    assert not dense["prefill_can_leave"]
    assert "must stay" in run(capsys, "qwen3-235b", "--prefill-s", "2", "--link-gbps", "10")
    with pytest.raises(UserError, match="needs --prefill-s"):
        run(capsys, "--link-gbps", "10")


def write(folder: Path, config: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_a_users_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}
    file = write(tmp_path, {**dense, "hidden_size": 512})
    assert json.loads(run(capsys, file, "--json"))["models"][0]["bytes_per_token"] == 2 * 2 * (64 + 64) * 2
    mixed = {**dense, "head_dim": 64, "sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"]}
    file = write(tmp_path, {**mixed, "model_type": "new"})
    (model,) = json.loads(run(capsys, file, "--json"))["models"]
    assert model["bytes_per_token"] == 2 * 128 * 2
    assert model["fixed_mib"] == 256 * 2 * 128 * 2 / 2**20


def test_both_layouts_of_kimi_linear_have_one_size(tmp_path: Path) -> None:
    published = json.loads((FOLDER / "kimi-linear-48b.json").read_text())
    linear = published.pop("linear_attn_config")
    n = published["num_hidden_layers"]
    kinds = ["linear_attention" if i + 1 in linear["kda_layers"] else "full_attention" for i in range(n)]
    flat = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "layer_types": kinds}
    shape, named = read_cache_shape(write(tmp_path, published | flat)), read_cache_shape("kimi-linear-48b")
    assert (shape.layer_kinds, shape.layers) == (named.layer_kinds, named.layers)


def test_a_last_group_that_is_not_whole_has_full_attention_only(tmp_path: Path) -> None:
    ring = json.loads((FOLDER / "ring-2.5-1t.json").read_text())
    shape = read_cache_shape(write(tmp_path, ring | {"num_hidden_layers": 18}))
    assert shape.layer_kinds == (*(("lightning",) * 7 + ("mla",)) * 2, "mla", "mla")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 2, "linear_attn_config": {"kda_layers": [1]}}, "without full_attn_layers"),
        ({"model_type": "mamba"}, "cannot be sized without num_hidden_layers"),
        ({"model_type": "mamba", "num_hidden_layers": 2}, "'mamba' is not known, and there is no linear_attn_config"),
        ({"model_type": "llama", "num_hidden_layers": 2}, "without hidden_size, num_attention_heads"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"]}, "has 1 layers, but num_hidden_layers is 2"),
        ({"num_hidden_layers": 1, "layer_types": ["moe"]}, "layer_types has moe"),
        (["x"], "holds a list"),
    ],
)
def test_what_cannot_be_sized_is_refused_by_name(config: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_cache_shape(write(tmp_path, config))


def test_missing_names_and_files() -> None:
    with pytest.raises(UserError, match="no model 'gpt'; known are kimi-linear-48b"):
        read_cache_shape("gpt")
    with pytest.raises(UserError, match="cannot read"):
        read_cache_shape("none.json")
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PUBLISHED)


def test_it_starts_without_torch() -> None:
    code = "import sys; import prfaas_ref.commands.kv; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
