"""Which tokens one forward pass computes: n more tokens of one request, or one more token of each of B requests.

Both are schedules of the same function, so the split is a matter of speed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from prfaas_ref.model.config import Grid
from prfaas_ref.model.state import HybridState
from prfaas_ref.model.tile import RowIndex


@dataclass(frozen=True)
class Schedule:
    """start: tokens already processed, per request. n: tokens to process. tables: page ids [B, pages], int64; a shorter
    table is filled up with its own first page (masked, and finite whenever the request is). row: see RowIndex."""

    start: tuple[int, ...]
    n: int
    tables: Tensor
    row: RowIndex

    @classmethod
    def of(cls, start: list[int], n: int, tables: list[list[int]], grid: Grid) -> "Schedule":
        """The next n tokens of requests at positions `start`. Raises ValueError where a page table is too short."""
        if n > 1 and len(start) > 1:
            raise ValueError(f"a pass takes n tokens of one request or one token of many, not {n} of {len(start)}")
        need = [-(-(p + n) // grid.block) for p in start]
        for request, (table, pages) in enumerate(zip(tables, need, strict=True)):
            if len(table) < pages:
                raise ValueError(f"request {request} needs {pages} pages for its next {n} tokens and has {len(table)}")
        width = max(need)
        filled = [t[:pages] + t[:1] * (width - pages) for t, pages in zip(tables, need, strict=True)]
        row = RowIndex.of(tuple(p % grid.tile for p in start), grid)
        return cls(tuple(start), n, torch.tensor(filled), row)

    @classmethod
    def pieces(cls, state: HybridState, n: int, cuts: Sequence[int], grid: Grid) -> "list[Schedule]":
        """The next n tokens after `state`, cut at the absolute positions `cuts` (those outside are ignored)."""
        start = state.positions[0]
        edges = [start, *sorted(c for c in set(cuts) if start < c < start + n), start + n]
        return [
            cls.of([p + a - start for p in state.positions], b - a, state.tables, grid) for a, b in pairwise(edges)
        ]

    @property
    def end(self) -> int:
        """Position after the piece (of the first request)."""
        return self.start[0] + self.n
