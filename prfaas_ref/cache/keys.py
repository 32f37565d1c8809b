"""What makes two cached prefixes the same: the namespace, the tokens, and the chain of hashes over them.

    h_0 = sha256(tagged, length-prefixed fields of the namespace)
    h_i = sha256(h_{i-1} || tokens of block i as u32 little-endian)

A key names a whole prefix, so equal keys in two processes or two clusters mean the same tokens under the same weights.
Keys are how caches talk about prefixes; a local hit never rests on a digest, but walks the tokens themselves (`tree`).
Knows nothing of blocks or tensors. Paper section 6: full-attention KV is matched per block.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

_TOKEN_BYTES = 4


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

    def __hash__(self) -> int:
        return hash(self.root)


def _tagged(fields: dict[str, str]) -> bytes:
    """Each name and value behind its own length, so that no value can be read as another field's."""
    parts = [b"prfaas prefix cache 1"]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode()
        parts.append(struct.pack("<Q", len(data)) + data)
    return b"".join(parts)


def next_key(parent_key: bytes, tokens: bytes) -> bytes:
    """h_i of a block whose tokens, as u32 little-endian, follow the prefix that `parent_key` names."""
    return hashlib.sha256(parent_key + tokens).digest()


def chain_keys(namespace: Namespace, tokens: Iterable[int]) -> list[bytes]:
    """The key of every full block of `tokens`, first block first."""
    key, keys = namespace.root, []
    for block in TokenBlocks(namespace.block_size, tokens).full:
        key = next_key(key, block)
        keys.append(key)
    return keys


class TokenBlocks:
    """The tokens of one request: `full` has the bytes of each full block, and the rest waits in the tail."""

    __slots__ = ("_tail", "block_size", "full")

    def __init__(self, block_size: int, tokens: Iterable[int] = ()) -> None:
        self.block_size = block_size
        self.full: list[bytes] = []
        self._tail = array("I")
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.full) * self.block_size + len(self._tail)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add `tokens`, each a number of 32 bits without sign; anything else raises ValueError and adds nothing."""
        waiting = self._tail + as_u32(tokens)
        end = len(waiting) - len(waiting) % self.block_size
        packed, step = _little_endian(waiting), _TOKEN_BYTES * self.block_size
        self.full += [packed[start : start + step] for start in range(0, end * _TOKEN_BYTES, step)]
        self._tail = waiting[end:]


def as_u32(tokens: Iterable[int]) -> "array[int]":
    try:
        return array("I", iter(tokens) if isinstance(tokens, bytes | bytearray) else tokens)  # of bytes each is a token
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a token id must be an integer in [0, 2**32): {error}") from None


def _little_endian(tokens: "array[int]") -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()
