"""What a hand-off consists of: the tensors of every layer, by name, dtype, shape and layout.

Each side derives its own Manifest from its own model config and n_tokens; they must be equal, and a refusal names the
first field that differs. Nothing is guessed from the bytes. When the receiver holds a prefix already, both sides take
the same `increment`: tensors with one row per token lose their first rows, fixed-size state stays whole.
"""

import hashlib
import json
from collections.abc import Sized
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from prfaas_ref.transport.errors import ProtocolError, Refused
from prfaas_ref.transport.frames import OFFSET_BITS

MOST_AXES = 16
MOST_LAYERS = (1 << 16) - 1  # a header has 16 bits for the layer
# The names are safetensors' own.
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """One tensor. `layout` names the order of its bytes in words both sides share, such as "token,latent+rope".

    `per_token` says that axis 0 counts tokens 0..n_tokens-1, so that a prefix of it can stay at home.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    per_token: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.name == "__metadata__":
            raise ValueError(f"a tensor cannot be named {self.name!r}")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if len(self.shape) > MOST_AXES:
            raise ValueError(f"{self.name}: {len(self.shape)} axes; at most {MOST_AXES} are possible")
        if any(type(n) is not int or n < 0 for n in self.shape) or self.n_bytes >> OFFSET_BITS:
            raise ValueError(f"{self.name}: shape {self.shape} is not possible")
        if self.per_token and not self.shape:
            raise ValueError(f"{self.name}: a tensor per token needs an axis of tokens")

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class LayerSpec:
    """The tensors of one layer, in the order in which their bytes travel."""

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for t in self.tensors:
            if t.name in seen:
                raise ValueError(f"two tensors of one layer are named {t.name!r}")
            seen.add(t.name)

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes for t in self.tensors)


@dataclass(frozen=True)
class Manifest:
    """All layers of a hand-off of tokens 0..n_tokens-1."""

    n_tokens: int
    layers: tuple[LayerSpec, ...]

    def __post_init__(self) -> None:
        if self.n_tokens < 0:
            raise ValueError(f"{self.n_tokens} tokens are not possible")
        _require_few(self.layers)
        for t in (t for layer in self.layers for t in layer.tensors if t.per_token):
            if t.shape[0] != self.n_tokens:
                raise ValueError(f"{t.name} has {t.shape[0]} rows for {self.n_tokens} tokens")

    @property
    def n_bytes(self) -> int:
        return sum(layer.n_bytes for layer in self.layers)

    def increment(self, have_tokens: int) -> "Manifest":
        """What still has to travel to a receiver that holds the first `have_tokens` tokens: fixed-size state does."""
        if not 0 <= have_tokens <= self.n_tokens:
            raise ValueError(f"a receiver cannot hold {have_tokens} of {self.n_tokens} tokens")
        rest = self.n_tokens - have_tokens
        layers = (
            LayerSpec(tuple(replace(t, shape=(rest, *t.shape[1:])) if t.per_token else t for t in layer.tensors))
            for layer in self.layers
        )
        return Manifest(rest, tuple(layers))

    def to_json(self) -> dict[str, Any]:
        layers = [
            [[t.name, t.dtype, list(t.shape), t.layout, t.per_token] for t in layer.tensors] for layer in self.layers
        ]
        return {"n_tokens": self.n_tokens, "layers": layers}

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()


def manifest_from_json(value: dict[str, Any]) -> Manifest:
    """The Manifest that a peer sent. Raises ProtocolError on what `Manifest.to_json` would not have written."""
    try:
        (n_tokens, layers) = value.pop("n_tokens"), value.pop("layers")
        if value or type(n_tokens) is not int or type(layers) is not list:
            raise ValueError("it has n_tokens and layers, and nothing else")
        _require_few(layers)
        return Manifest(n_tokens, tuple(LayerSpec(tuple(_tensor(*row) for row in rows)) for rows in layers))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"manifest: {error}") from None


def _require_few(layers: Sized) -> None:
    if len(layers) > MOST_LAYERS:
        raise ValueError(f"{len(layers)} layers; at most {MOST_LAYERS} are possible")


def _tensor(name: object, dtype: object, shape: object, layout: object, per_token: object) -> TensorSpec:
    if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(layout, str)):
        raise ValueError("a tensor's name, dtype and layout are strings")
    if not (isinstance(shape, list) and isinstance(per_token, bool)):
        raise ValueError("a tensor's shape is a list and per_token is true or false")
    return TensorSpec(name, dtype, tuple(shape), layout, per_token)


def require_equal(ours: Manifest, theirs: Manifest) -> None:
    """Raises Refused naming the first field in which the two differ."""
    _same("n_tokens", ours.n_tokens, theirs.n_tokens)
    _same("layers", len(ours.layers), len(theirs.layers))
    for i, (mine, other) in enumerate(zip(ours.layers, theirs.layers, strict=True)):
        my_names, their_names = [t.name for t in mine.tensors], [t.name for t in other.tensors]
        for name in sorted(set(my_names) ^ set(their_names)):
            ours_theirs = ("present", "absent") if name in my_names else ("absent", "present")
            raise Refused(f"layers[{i}].{name}", *ours_theirs)
        _same(f"layers[{i}].order", my_names, their_names)
        for a, b in zip(mine.tensors, other.tensors, strict=True):
            for field in ("dtype", "shape", "layout", "per_token"):
                _same(f"layers[{i}].{a.name}.{field}", getattr(a, field), getattr(b, field))


def _same(field: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise Refused(field, ours, theirs)
