"""A request's cache as the transport sees it: which tensors every layer ships, and where their bytes lie in the pool.

Both ends derive the same manifest from their own config. A full-attention layer ships its pages, one row per token, of
which only those travel that the receiver does not hold; a KDA layer ships its whole state.
"""

import torch
from torch import Tensor

from prfaas_ref.cache.transfer import Transfer
from prfaas_ref.model.state import HybridState
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.state_bytes import StateBytes
from prfaas_ref.transport.manifest import LayerSpec, Manifest, TensorSpec

SAFETENSORS_DTYPE = {"float32": "F32", "bfloat16": "BF16"}
LAYOUTS = {
    "S": "head,key,value", "window": "age,channel", "X": "head,row,key", "UW": "head,row,value+key", "Vn":
    "head,row,value", "k": "head,row,key", "a": "head,row,key", "D": "head,row,key", "P": "head,key", "W": "head,key",
}  # fmt: skip


def manifest(engine: Engine, n_tokens: int) -> Manifest:
    """All that a hand-off of `n_tokens` consists of."""
    config, dtype = engine.model.config, str(engine.model.dtype).removeprefix("torch.")
    state = StateBytes.after(n_tokens, config, engine.model.dtype)
    layers = []
    for i, tensors in enumerate(state.layers):
        if i in config.full_layers:
            shape = (n_tokens, config.page_width)
            specs = [TensorSpec("pages", SAFETENSORS_DTYPE[dtype], shape, "token,latent+rope", per_token=True)]
        else:
            specs = [TensorSpec(t.name, SAFETENSORS_DTYPE[t.dtype], t.shape, LAYOUTS[t.name]) for t in tensors]
        layers.append(LayerSpec(tuple(specs)))
    return Manifest(n_tokens, tuple(layers))


def layer_views(
    engine: Engine, transfer: Transfer, layer: int, have_tokens: int, n_tokens: int, now_s: float
) -> list[memoryview]:
    """The bytes of one layer of a transfer, at either end, in the manifest's order: read by sendmsg or written by
    recv_into.
    """
    config = engine.model.config
    if layer in config.full_layers:
        index = config.full_layers.index(layer)
        return engine.pool.page_views(transfer, index, have_tokens, n_tokens, now_s)
    state = StateBytes.after(n_tokens, config, engine.model.dtype)
    return engine.pool.live_views(transfer, state.offsets[layer], state.offsets[layer + 1], now_s)


def pack_live(engine: Engine, state: HybridState) -> Tensor:
    """All layers' live state of one request, as bytes."""
    layout = StateBytes.after(state.positions[0], engine.model.config, engine.model.dtype)
    return torch.cat([layout.pack(layer, memory) for layer, memory in state.layers.items()])
