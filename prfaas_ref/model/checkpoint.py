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
from prfaas_ref.model.weights import random_weights, stays_float32, weight_shapes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


SHIPPED = {"toy": Path(__file__).parent.parent / "weights"}
"""Presets whose weights are files of this package."""


def load_model(
    name_or_dir: str | Path, dtype: str | torch.dtype = "float32", seed: int = 0, device: str = "cpu"
) -> HybridModel:
    """A model ready to run. Raises UserError for an unknown name, a directory without config, or unfit weights.

    name_or_dir: "toy", whose trained weights ship with the package; another preset, with weights drawn from `seed`; or
    a directory in the kimi_linear checkpoint layout.
    """
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise UserError(f"dtype {dtype!r} is not supported; choose {' or '.join(DTYPES)}")
        dtype = DTYPES[dtype]
    directory = SHIPPED.get(str(name_or_dir), Path(name_or_dir))
    if str(name_or_dir) in PRESETS.keys() - SHIPPED.keys():
        config = PRESETS[str(name_or_dir)]
        weights = random_weights(config, dtype, seed)
    elif directory.is_dir():
        config = read_config(directory)
        weights = fit(config, read_weights(directory), dtype)
    else:
        raise UserError(f"model {str(name_or_dir)!r} is neither a preset ({', '.join(PRESETS)}) nor a directory")
    return HybridModel(config, {name: tensor.to(device) for name, tensor in weights.items()})


def save_model(model: HybridModel, directory: str | Path) -> None:
    """Write config.json and model.safetensors, each atomically, in the published layout."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "model.safetensors.partial"
    weights = {name: tensor.cpu().contiguous() for name, tensor in model.weights.items()}
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(directory / "model.safetensors")
    partial = directory / "config.json.partial"
    partial.write_text(json.dumps(config_to_published(model.config), indent=2) + "\n")
    partial.replace(directory / "config.json")


def read_config(directory: Path) -> HybridConfig:
    """The config of a checkpoint directory. Raises UserError."""
    published = read_json(directory / "config.json")
    if not isinstance(published, dict):
        raise UserError(f"{directory / 'config.json'} holds {type(published).__name__}, not an object")
    return config_from_published(published)


def read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"no readable {path.name} in {path.parent}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of the shards that model.safetensors.index.json names, or else of the .safetensors files there."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = getattr(read_json(index), "get", lambda _: None)("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
            raise UserError(f"{index} has no weight_map from tensor to file names")
        files = sorted({directory / Path(f).name for f in weight_map.values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickles = sorted(f.name for f in directory.iterdir() if f.suffix in PICKLES)
        found = f"; {', '.join(pickles)} is refused, since pickle files can run code" if pickles else ""
        raise UserError(f"no .safetensors file in {directory}{found}")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            shard = load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error
        if twice := sorted(weights.keys() & shard.keys()):
            raise UserError(f"{file} repeats {twice[0]}, which another shard has too")
        weights |= shard
    return weights


def fit(config: HybridConfig, weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Check every name and shape against the config, and convert. Raises one UserError that lists all faults.

    The dense layers' `mlp.*` may be called `block_sparse_moe.*`, and dimensions of 1 may be left out. Every tensor is
    copied: a view of a memory-mapped file may be misaligned, and a misaligned operand changes bits.
    """
    expected, faults, fitted = weight_shapes(config), [], {}
    given = {}
    for name, tensor in weights.items():
        dense = name.replace(".block_sparse_moe.", ".mlp.")
        given[dense if dense in expected else name] = tensor
    for name in sorted(expected.keys() | given.keys()):
        if name not in given:
            faults.append(f"{name} is missing")
        elif name not in expected:
            faults.append(f"{name} is not expected")
        elif squeezed(given[name].shape) != squeezed(expected[name]):
            faults.append(f"{name} is {list(given[name].shape)}, expected {list(expected[name])}")
        else:
            wanted = torch.float32 if stays_float32(name) else dtype
            fitted[name] = given[name].reshape(expected[name]).to(wanted).clone()
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise UserError(f"the weights do not fit config.json: {shown}")
    return fitted


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n > 1)
