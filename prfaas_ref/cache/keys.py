"""What makes two cached prefixes the same: the namespace, the tokens, and the chain of hashes over them.

    h_0 = sha256(tagged, length-prefixed fields of the namespace)
    h_i = sha256(h_{i-1} || tokens of block i as u32 little-endian)

A key names a whole prefix, so equal keys in two processes, two clusters or two years mean the same tokens under the
same weights. Digests may still collide; the index compares the tokens themselves on every hit. Knows nothing of blocks
or tensors. Paper section 6: full-attention KV is matched per block.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

_TOKEN_BYTES = 4


class Digest(Protocol):
    def digest(self) -> bytes: ...


Hasher = Callable[[bytes], Digest]


@dataclass(frozen=True, slots=True)
class Namespace:
    """All that must be equal before one request may reuse what another has computed.

    fingerprint: the numeric fingerprint of the build and the weights. block_size: tokens in a block. tenant: a salt;
    two tenants never share. adapter: the fine-tuning adapter in use, if any.
    """

    fingerprint: str
    block_size: int
    tenant: str = ""
    adapter: str = ""
    root: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1 token, not {self.block_size}")
        fields = {
            "fingerprint": self.fingerprint,
            "block_size": str(self.block_size),
            "tenant": self.tenant,
            "adapter": self.adapter,
        }
        object.__setattr__(self, "root", hashlib.sha256(_tagged(fields)).digest())


def _tagged(fields: dict[str, str]) -> bytes:
    """Each name and value behind its own length, so that no value can be read as another field's."""
    parts = [b"prfaas prefix cache 1"]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode()
        parts.append(struct.pack("<Q", len(data)) + data)
    return b"".join(parts)


class TokenChain:
    """The tokens of one request, cut into full blocks and hashed as they come.

    `keys[i]` names the prefix that ends with full block i, `chunks[i]` is that block's tokens as bytes, and the tokens
    after the last full block wait in the tail.
    """

    __slots__ = ("_hasher", "_tail", "chunks", "keys", "namespace")

    def __init__(self, namespace: Namespace, tokens: Iterable[int] = (), hasher: Hasher = hashlib.sha256) -> None:
        self.namespace = namespace
        self.keys: list[bytes] = []
        self.chunks: list[bytes] = []
        self._tail = array("I")
        self._hasher = hasher
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.keys) * self.namespace.block_size + len(self._tail)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add `tokens`, each a number of 32 bits without sign; anything else raises ValueError and adds nothing."""
        self._tail = self._tail + as_u32(tokens)
        step = _TOKEN_BYTES * self.namespace.block_size
        packed = _little_endian(self._tail)
        key = self.keys[-1] if self.keys else self.namespace.root
        end = len(packed) - len(packed) % step
        for start in range(0, end, step):
            chunk = packed[start : start + step]
            key = self._hasher(key + chunk).digest()
            self.keys.append(key)
            self.chunks.append(chunk)
        self._tail = self._tail[end // _TOKEN_BYTES :]


def chain_keys(namespace: Namespace, tokens: Iterable[int], hasher: Hasher = hashlib.sha256) -> list[bytes]:
    """The key of every full block of `tokens`, first block first."""
    return TokenChain(namespace, tokens, hasher).keys


def as_u32(tokens: Iterable[int]) -> "array[int]":
    try:
        return array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a token id must be an integer in [0, 2**32): {error}") from None


def _little_endian(tokens: "array[int]") -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()
