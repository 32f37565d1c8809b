"""A second tier in files: what the pool evicts is kept in a directory, found again by its key, and outlives the
process.

One safetensors file per prefix block or snapshot, named for the key of its prefix. A file is written beside its place,
synced and renamed, so it is whole or not there; what is torn, foreign or of other tokens is a miss, never an error and
never a wrong hit. The directory has a size, and the least recently used files go first. Coming back, a block takes the
way of a hand-off: it is received, acknowledged and committed.
"""

import contextlib
import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from prfaas_ref.cache.entries import Leaf, Snapshot
from prfaas_ref.cache.keys import Namespace, TokenBlocks, next_key
from prfaas_ref.cache.pool import HybridCachePool
from prfaas_ref.cache.tree import OutOfBlocks

KV, STATE = "kv", "state"
FORMAT = "prfaas host tier 1"
UNFINISHED = ".part"


class HostTier:
    """Files of a directory, `capacity_bytes` of them at most. Not for two processes at once."""

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for unfinished in directory.glob(f"*{UNFINISHED}"):
            unfinished.unlink()
        self.directory = directory
        self.capacity_bytes = capacity_bytes
        found = [(path.stat(), path.name) for path in directory.glob("*.safetensors")]
        ordered = sorted(found, key=lambda item: item[0].st_mtime_ns)
        self._sizes: OrderedDict[str, int] = OrderedDict((name, stat.st_size) for stat, name in ordered)
        self._make_room(0)

    @property
    def held_bytes(self) -> int:
        return sum(self._sizes.values())

    def put(self, kind: str, key: bytes, tokens: bytes, data: torch.Tensor) -> None:
        """Keep `data` (uint8) of the prefix `key`, which ends with `tokens`. Larger than the tier: not kept."""
        name = _name(kind, key)
        content = save({"bytes": data.contiguous()}, metadata=_label(kind, key, tokens, data))
        if name in self._sizes or len(content) > self.capacity_bytes:
            return
        self._make_room(len(content))
        _write_atomically(self.directory / name, content)
        self._sizes[name] = len(content)

    def get(self, kind: str, key: bytes, tokens: bytes) -> torch.Tensor | None:
        """What was kept of this prefix (uint8), or None."""
        name = _name(kind, key)
        data = _read(self.directory / name, kind, key, tokens)
        if data is None:
            self._drop(name)
            return None
        self._sizes[name] = self._sizes.pop(name, 0) or (self.directory / name).stat().st_size
        os.utime(self.directory / name)
        return data

    def _make_room(self, num_bytes: int) -> None:
        while self._sizes and self.held_bytes + num_bytes > self.capacity_bytes:
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        """Forget a file: the oldest, or one that is not what its name says, so that it may be written anew."""
        self._sizes.pop(name, None)
        with contextlib.suppress(OSError):
            (self.directory / name).unlink()


class Spill:
    """A CacheListener that keeps what a pool evicts, as far as the disk takes it; `pool` is set once it exists."""

    def __init__(self, tier: HostTier) -> None:
        self.tier = tier
        self.pool: HybridCachePool | None = None

    def stored(self, entry: Leaf) -> None: ...

    def removed(self, entry: Leaf) -> None:
        if self.pool:
            with contextlib.suppress(OSError):  # the copy is lost, the pool is not
                self._keep(self.pool, entry)

    def _keep(self, pool: HybridCachePool, entry: Leaf) -> None:
        if isinstance(entry, Snapshot):
            data = pool.blocks.read(entry.ids, pool.snapshot_bytes)
            self.tier.put(STATE, entry.block.key, entry.block.tokens, data)
        else:
            self.tier.put(KV, entry.key, entry.tokens, pool.blocks.storage[entry.block_id])


def promote(pool: HybridCachePool, tier: HostTier, namespace: Namespace, tokens: Sequence[int]) -> int:
    """Bring back from files what makes this prompt's hit longer, before `allocate`. Returns the usable tokens now."""
    match = pool.index.match_prefix(namespace, tokens)
    block_size = namespace.block_size
    blocks = TokenBlocks(block_size, tokens[: (len(tokens) - 1) // block_size * block_size]).full
    keys, pages = _stored_chain(tier, namespace, blocks, match.kv_tokens // block_size)
    for depth in range(match.kv_tokens // block_size + len(pages), match.usable_tokens // block_size, -1):
        state = tier.get(STATE, keys[depth - 1], blocks[depth - 1])
        if state is not None or not pool.index.state_blocks:
            _bring_back(pool, namespace, tokens[: depth * block_size], pages, state)
            break
    return pool.index.match_prefix(namespace, tokens).usable_tokens


def _stored_chain(
    tier: HostTier, namespace: Namespace, blocks: list[bytes], cached: int
) -> tuple[list[bytes], dict[int, torch.Tensor]]:
    """Keys of the prompt's blocks, and the pages in files that continue the `cached` first ones without a gap."""
    keys: list[bytes] = []
    pages: dict[int, torch.Tensor] = {}
    key = namespace.root
    for position, tokens in enumerate(blocks):
        key = next_key(key, tokens)
        page = tier.get(KV, key, tokens) if position >= cached else None
        if position >= cached and page is None:
            break
        keys.append(key)
        if page is not None:
            pages[position] = page
    return keys, pages


def _bring_back(
    pool: HybridCachePool,
    namespace: Namespace,
    tokens: Sequence[int],
    pages: dict[int, torch.Tensor],
    state: torch.Tensor | None,
) -> None:
    """Receive pages and state into the pool as if from another worker. Without room nothing happens."""
    try:
        transfer = pool.open_receive(namespace, tokens, live_state_bytes=0)
    except OutOfBlocks:
        return
    alloc = transfer.alloc
    assert alloc is not None
    for position in range(len(alloc.path), len(alloc.block_table)):
        pool.blocks.write([alloc.block_table[position]], pages[position])
    pool.index.transfers.ack(transfer)
    pool.index.commit(alloc, len(tokens))
    if state is not None:
        pool.checkpoint(alloc, len(tokens), state)
    pool.index.free(alloc)


def _name(kind: str, key: bytes) -> str:
    return f"{key.hex()}.{kind}.safetensors"


def _label(kind: str, key: bytes, tokens: bytes, data: torch.Tensor) -> dict[str, str]:
    """All that a file must say of itself to be believed."""
    digest = hashlib.sha256(data.numpy().data).hexdigest()
    return {"format": FORMAT, "kind": kind, "key": key.hex(), "tokens": tokens.hex(), "sha256": digest}


def _read(path: Path, kind: str, key: bytes, tokens: bytes) -> torch.Tensor | None:
    """A file's bytes, if they are of this prefix and whole."""
    try:
        with safe_open(path, framework="pt") as file:
            data: torch.Tensor = file.get_tensor("bytes").clone()
            label = file.metadata()
    except (OSError, SafetensorError):
        return None
    return data if data.dtype == torch.uint8 and label == _label(kind, key, tokens, data) else None


def _write_atomically(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
