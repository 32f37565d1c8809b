"""The bytes of the pool: equal blocks in one tensor, seen as attention pages, as a flat vector, or as memoryviews.

A block holds one page of every full-attention layer, [n_full_layers, block_size, page_width]. A snapshot or a
hand-off's live state is a byte vector laid over as many whole blocks as it needs, so attention blocks are never
inflated to its size. Knows nothing of who owns a block. Paper section 6: separate groups allocate from one shared pool.
"""

from collections.abc import Sequence

import torch

_ALIGNMENT_BYTES = 64  # a cache line, and the vector width that fast kernels ask for


class BlockPool:
    """num_blocks rows of block_bytes, each row 64-byte aligned, in one uint8 tensor.

    n_full_layers, block_size, page_width and dtype describe the attention pages that a row starts with.
    """

    def __init__(
        self, num_blocks: int, n_full_layers: int, block_size: int, page_width: int, dtype: torch.dtype
    ) -> None:
        self.page_shape = (n_full_layers, block_size, page_width)
        self.dtype = dtype
        self.row_bytes = page_width * dtype.itemsize  # one token of one layer
        self.layer_bytes = block_size * self.row_bytes
        page_bytes = max(1, n_full_layers * self.layer_bytes)
        self.block_bytes = -(-page_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.storage = torch.zeros(num_blocks, self.block_bytes, dtype=torch.uint8)
        if self.storage.data_ptr() % _ALIGNMENT_BYTES:
            raise RuntimeError("torch returned unaligned memory")
        self.pages = self.storage[:, : n_full_layers * self.layer_bytes].view(dtype).view(num_blocks, *self.page_shape)
        self._bytes = self.storage.view(-1).numpy().data

    def blocks_for(self, num_bytes: int) -> int:
        """How many blocks a byte vector takes."""
        return -(-num_bytes // self.block_bytes)

    def zero(self, ids: Sequence[int]) -> None:
        """Clear blocks. Done when they are allocated, so that nothing of a former life is ever read, NaN included."""
        self.storage[list(ids)] = 0

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, one to one."""
        self.storage[list(targets)] = self.storage[list(sources)]

    def write(self, ids: Sequence[int], data: torch.Tensor) -> None:
        """Lay the bytes of `data` (any dtype) over `ids` in order. Raises ValueError if they are too few."""
        flat = data.contiguous().view(-1).view(torch.uint8)
        self._check_fits(ids, flat.numel())
        for start, block in zip(range(0, flat.numel(), self.block_bytes), ids, strict=False):
            part = flat[start : start + self.block_bytes]
            self.storage[block, : part.numel()] = part

    def read(self, ids: Sequence[int], num_bytes: int) -> torch.Tensor:
        """A copy of the first `num_bytes` laid over `ids`: uint8, [num_bytes]."""
        self._check_fits(ids, num_bytes)
        return self.storage[list(ids)].view(-1)[:num_bytes].clone()

    def segments(self, ids: Sequence[int], start: int, stop: int) -> list[memoryview]:
        """Writable views of bytes [start, stop) of the vector laid over `ids`, for sendmsg and recv_into."""
        self._check_fits(ids, stop)
        spans = []
        for position in range(start // self.block_bytes, self.blocks_for(stop)):
            first, base = ids[position] * self.block_bytes, position * self.block_bytes
            spans.append((first + max(0, start - base), first + min(self.block_bytes, stop - base)))
        return [self._bytes[first:last] for first, last in _joined(spans)]

    def page_segments(self, ids: Sequence[int], layer: int, first_token: int, last_token: int) -> list[memoryview]:
        """Writable views of one layer's rows of tokens [first_token, last_token), `ids` being the block table."""
        block_size = self.page_shape[1]
        self._check_fits(ids, -(-last_token // block_size) * self.block_bytes)
        spans = []
        for position in range(first_token // block_size, -(-last_token // block_size)):
            page = ids[position] * self.block_bytes + layer * self.layer_bytes
            first = max(0, first_token - position * block_size)
            last = min(block_size, last_token - position * block_size)
            spans.append((page + first * self.row_bytes, page + last * self.row_bytes))
        return [self._bytes[first:last] for first, last in _joined(spans)]

    def _check_fits(self, ids: Sequence[int], num_bytes: int) -> None:
        if num_bytes > len(ids) * self.block_bytes:
            raise ValueError(f"{num_bytes} bytes do not fit {len(ids)} blocks of {self.block_bytes}")


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring byte ranges as one."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        elif last > first:
            joined.append((first, last))
    return joined
