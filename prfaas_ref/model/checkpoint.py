"""Load and save models: a preset by name with seeded weights, or a directory with config.json and safetensors files."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prfaas_ref.errors import UserError
from prfaas_ref.model.config import PRESETS, HybridConfig
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.published import config_from_published, config_to_published
from prfaas_ref.model.weights import random_weights, weight_shapes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALWAYS_FLOAT32 = ("A_log", "dt_bias")


def load_model(name_or_dir: str | Path, dtype: str | torch.dtype = "float32", seed: int = 0) -> HybridModel:
    """A model ready to run. Raises UserError for an unknown name, a directory without config, or unfit weights.

    name_or_dir: a preset ("toy": weights drawn from `seed`), or a directory in the kimi_linear checkpoint layout.
    """
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise UserError(f"dtype {dtype!r} is not supported; choose {' or '.join(DTYPES)}")
        dtype = DTYPES[dtype]
    if str(name_or_dir) in PRESETS:
        config = PRESETS[str(name_or_dir)]
        return HybridModel(config, random_weights(config, dtype, seed))
    directory = Path(name_or_dir)
    if not directory.is_dir():
        raise UserError(f"model {str(name_or_dir)!r} is neither a preset ({', '.join(PRESETS)}) nor a directory")
    config = read_config(directory)
    return HybridModel(config, fit(config, read_weights(directory), dtype))


def save_model(model: HybridModel, directory: str | Path) -> None:
    """Write config.json and model.safetensors, each atomically, in the published layout."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "model.safetensors.partial"
    save_file({name: t.contiguous() for name, t in model.weights.items()}, partial, metadata={"format": "pt"})
    partial.replace(directory / "model.safetensors")
    partial = directory / "config.json.partial"
    partial.write_text(json.dumps(config_to_published(model.config), indent=2) + "\n")
    partial.replace(directory / "config.json")


def read_config(directory: Path) -> HybridConfig:
    path = directory / "config.json"
    try:
        return config_from_published(json.loads(path.read_text()))
    except OSError as error:
        raise UserError(f"no readable config.json in {directory}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of model.safetensors, or of the shards that its index names."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        files = sorted({directory / Path(f).name for f in json.loads(index.read_text())["weight_map"].values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UserError(f"no .safetensors file in {directory}; pickle checkpoints (.bin, .pt) are not read")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error
    return weights


def fit(config: HybridConfig, weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Check every name and shape against the config, and convert. Raises one UserError that lists all faults."""
    expected, faults, fitted = weight_shapes(config), [], {}
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights:
            faults.append(f"{name} is missing")
        elif name not in expected:
            faults.append(f"{name} is not expected")
        elif tuple(weights[name].shape) not in (expected[name], tuple(s for s in expected[name] if s > 1)):
            faults.append(f"{name} is {list(weights[name].shape)}, expected {list(expected[name])}")
        else:
            wanted = torch.float32 if name.endswith(ALWAYS_FLOAT32) else dtype
            fitted[name] = weights[name].reshape(expected[name]).to(wanted).clone()
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise UserError(f"the weights do not fit config.json: {shown}")
    return fitted
