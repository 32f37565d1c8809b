"""A layer on the wire is one safetensors image: the length of a JSON header, the header, the tensors' bytes.

Both ends derive the header from the same LayerSpec, so it is compared and never believed; a captured layer opens with
the safetensors library. `Image` maps a byte range of that image to the pages that hold it, without copying.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from prfaas_ref.transport.manifest import LayerSpec, TensorSpec


def image_header(layer: LayerSpec) -> bytes:
    """What stands before the tensors' bytes. Padded with blanks so that they begin at a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {t.name: t.layout for t in layer.tensors}}
    begin = 0
    for t in layer.tensors:
        entries[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (begin, begin + t.n_bytes)}
        begin += t.n_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def parse_image(image: memoryview) -> tuple[LayerSpec, memoryview]:
    """The tensors of a .safetensors file, and their bytes. Raises ValueError when it is not exactly one.

    Stricter than the library: a name that is there twice is refused, and no byte may belong to no tensor.
    """
    size = int.from_bytes(image[:8], "little")
    if len(image) < 8 or size > len(image) - 8:
        raise ValueError("it does not open with the length of a header")
    entries = json.loads(bytes(image[8 : 8 + size]).decode(), object_pairs_hook=_unique)
    body, layouts = image[8 + size :], entries.pop("__metadata__", {})
    tensors, end = [], 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        spec = TensorSpec(name, entry["dtype"], tuple(entry["shape"]), layouts.get(name, "unnamed"))
        if entry["data_offsets"] != [end, end + spec.n_bytes]:
            raise ValueError(f"{name}: its offsets are {entry['data_offsets']}, its bytes {end}..{end + spec.n_bytes}")
        end += spec.n_bytes
        tensors.append(spec)
    if end != len(body):
        raise ValueError(f"its tensors end at {end}, its bytes at {len(body)}")
    return LayerSpec(tuple(tensors)), body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return fields


def flat(view: memoryview) -> memoryview:
    """The view's bytes in memory order. Raises ValueError when they do not lie in one piece: no copy is made here."""
    if not view.c_contiguous:
        raise ValueError(f"a view of shape {view.shape} and strides {view.strides} is not contiguous; pass one that is")
    return view.cast("B") if view.nbytes else memoryview(b"")


class Image:
    """A logical byte string over several views: gathered when sent, scattered when received."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = [piece for view in views if (piece := flat(view))]
        self._ends = list(accumulate(map(len, self._views)))
        self.n_bytes = self._ends[-1] if self._ends else 0

    def views(self, offset: int, length: int) -> list[memoryview]:
        """The pieces that hold bytes [offset, offset + length), in order."""
        if not 0 <= offset <= offset + length <= self.n_bytes:
            raise ValueError(f"bytes {offset}..{offset + length} of an image of {self.n_bytes}")
        pieces, i = [], bisect_right(self._ends, offset)
        while length:
            view = self._views[i]
            start = offset - (self._ends[i] - len(view))
            piece = view[start : start + length]
            pieces.append(piece)
            offset, length, i = offset + len(piece), length - len(piece), i + 1
        return pieces
