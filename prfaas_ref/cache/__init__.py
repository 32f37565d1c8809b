"""The hybrid prefix-cache pool of one worker, and the global manager over all of them (paper section 6).

Read `keys` (what makes two prefixes the same), `entries` (the tree), `index` (a request's life), `transfer` (a
hand-off's), `blocks` and `pool` (the bytes). `index` and all it imports are free of torch. This front door is lazy for
that reason.
"""

import importlib
from typing import Any

_HOME = {
    "Allocation": "allocation",
    "BlockPool": "blocks",
    "CacheReporter": "report",
    "GlobalKVCacheManager": "manager",
    "HybridCacheIndex": "index",
    "HybridCachePool": "pool",
    "LeaseExpired": "transfer",
    "Namespace": "keys",
    "OutOfBlocks": "tree",
    "PrefixMatch": "allocation",
    "SnapshotPolicy": "snapshot_policy",
    "Transfer": "transfer",
    "WorkerName": "report",
    "chain_keys": "keys",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
