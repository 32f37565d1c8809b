"""Which tokens one call of a layer computes: n more tokens of one request, or one more token of each of B requests.

Both are schedules of the same function, so the split is a matter of speed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.state import HybridState
from prfaas_ref.model.tile import RowIndex


@dataclass(frozen=True)
class Schedule:
    """start: tokens already processed, per request. n: tokens to process. position: theirs, [B, n], int64.

    tables: page ids [B, pages], int64; a shorter table is filled up with its own first page (masked, and finite
    whenever the request is). row: where the first of the n tokens stands in its tile.
    """

    start: tuple[int, ...]
    n: int
    position: Tensor
    tables: Tensor
    row: RowIndex

    @classmethod
    def of(
        cls, start: Sequence[int], n: int, tables: list[list[int]], config: HybridConfig, device: torch.device
    ) -> "Schedule":
        """The next n tokens of requests at positions `start`. Raises ValueError where a page table is too short."""
        if n > 1 and len(start) > 1:
            raise ValueError(f"a pass takes n tokens of one request or one token of many, not {n} of {len(start)}")
        need = [-(-(p + n) // config.grid.block) if config.full_layers else 0 for p in start]
        for request, (table, pages) in enumerate(zip(tables, need, strict=True)):
            if len(table) < pages:
                raise ValueError(f"request {request} needs {pages} pages for its next {n} tokens and has {len(table)}")
        filled = [t[:pages] + t[:1] * (max(need) - pages) for t, pages in zip(tables, need, strict=True)]
        position = torch.tensor(start, device=device)[:, None] + torch.arange(n, device=device)
        row = RowIndex.of([p % config.grid.tile for p in start], config.grid.tile, device)
        return cls(tuple(start), n, position, torch.tensor(filled, dtype=torch.int64, device=device), row)

    @classmethod
    def pieces(
        cls, state: HybridState, n: int, cuts: Sequence[int], config: HybridConfig, device: torch.device
    ) -> "list[Schedule]":
        """The next n tokens after `state`, cut at the absolute positions `cuts` (those outside are ignored)."""
        start = state.positions[0]
        edges = [start, *sorted(c for c in set(cuts) if start < c < start + n), start + n]
        steps = [(a - start, b - a) for a, b in pairwise(edges)]
        return [cls.of([p + t for p in state.positions], m, state.tables, config, device) for t, m in steps]

    @property
    def end(self) -> int:
        """Position after the piece (of the first request)."""
        return self.start[0] + self.n
