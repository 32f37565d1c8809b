"""The Kimi-Linear family of hybrid language models, with explicit state: prefill and decode give the same bytes.

    recurrence.py   Kimi Delta Attention by its definition
    tile.py         why decode equals prefill: both compute rows of the same tile   (start here)
    exact.py        the products and functions whose bits do not depend on the neighbours
    kda.py mla.py gqa.py sliding.py lightning.py     one layer kind each; ffn.py moe.py   the other half of a layer
    hybrid.py       the model: one forward function; generation.py   prefill, then token by token
    kinds.py config.py sizes.py                      shapes and bytes, without torch
    campaign.py     tries to falsify all of it
"""

from typing import Any

_HOME = {
    "HybridConfig": "config",
    "PRESETS": "config",
    "HybridModel": "hybrid",
    "HybridState": "state",
    "Generation": "generation",
    "current_state": "tile",
    "first_logits": "generation",
    "generate": "generation",
    "prefill": "generation",
    "load_model": "checkpoint",
    "save_model": "checkpoint",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import on first use: `model.config` and `model.sizes` must be importable without torch."""
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"prfaas_ref.model.{_HOME[name]}"), name)
    raise AttributeError(f"module 'prfaas_ref.model' has no attribute {name!r}")
