"""A request's cache as the transport sees it: which tensors every layer ships, and where their bytes lie in the pool.

Both ends derive the same manifest from their own config. A full-attention layer ships its pages, one row per token, of
which only those travel that the receiver does not hold; a KDA layer ships its whole state.
"""

from prfaas_ref.cache.transfer import Transfer
from prfaas_ref.model.config import GQA, MLA
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.state_bytes import StateBytes
from prfaas_ref.transport.manifest import LayerSpec, Manifest, TensorSpec

SAFETENSORS_DTYPE = {"float32": "F32", "bfloat16": "BF16"}
LAYOUTS = {
    "S": "head,key,value", "window": "age,channel",
    "X": "head,row,key", "UW": "head,row,value+key", "P": "head,key",
    "k": "head,row,key", "v": "head,row,value", "kv": "slot,key+value",
}  # fmt: skip
PAGE_LAYOUTS = {MLA: "token,latent+shared_key", GQA: "token,key+value"}
"""The order of each tensor's bytes, by its name (model.kinds) or layer kind: a peer with another is refused by name."""


def manifest(engine: Engine, n_tokens: int) -> Manifest:
    """All that a hand-off of `n_tokens` consists of."""
    config, dtype = engine.model.config, str(engine.model.dtype).removeprefix("torch.")
    state = StateBytes.after(n_tokens, config, engine.model.dtype)
    layers = []
    for i, tensors in enumerate(state.layers):
        if i in config.full_layers:
            shape = (n_tokens, config.page_width)
            layout = PAGE_LAYOUTS[config.layer_kinds[i]]
            specs = [TensorSpec("pages", SAFETENSORS_DTYPE[dtype], shape, layout, per_token=True)]
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
