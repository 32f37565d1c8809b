"""Prefill-as-a-Service in pure PyTorch: prefill in one cluster, decode in another, equal to the last bit.

The package's front door is lazy: importing `prfaas_ref` costs nothing until a name is used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "load_model": "prfaas_ref.model",
    "save_model": "prfaas_ref.model",
    "generate": "prfaas_ref.model",
    "first_logits": "prfaas_ref.model",
    "HybridConfig": "prfaas_ref.model",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'prfaas_ref' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
