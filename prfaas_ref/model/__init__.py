"""A small Kimi-Linear-style hybrid language model with explicit state.

Start with `tile.py` (why decode equals prefill), then `kda.py`, `mla.py` and `hybrid.py`.
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
    "fingerprint": "fingerprint",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import on first use: `model.config` and `model.sizes` must be importable without torch."""
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"prfaas_ref.model.{_HOME[name]}"), name)
    raise AttributeError(f"module 'prfaas_ref.model' has no attribute {name!r}")
