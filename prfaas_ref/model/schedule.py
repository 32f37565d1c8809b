"""Which tokens one forward pass computes: n more tokens of one request, or one more token of each of B requests.

Both are schedules of the same function, so the split is a matter of speed alone.
"""

from dataclasses import dataclass

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
    def of(cls, state: HybridState, n: int, grid: Grid) -> "Schedule":
        if n > 1 and state.batch > 1:
            raise ValueError(f"a pass takes n tokens of one request or one token of many, not {n} of {state.batch}")
        need = [-(-(p + n) // grid.block) for p in state.positions]
        for request, (table, pages) in enumerate(zip(state.tables, need, strict=True)):
            if len(table) < pages:
                raise ValueError(f"request {request} needs {pages} pages for its next {n} tokens and has {len(table)}")
        width = max(need)
        tables = [t[:pages] + t[:1] * (width - pages) for t, pages in zip(state.tables, need, strict=True)]
        row = RowIndex.of(tuple(p % grid.tile for p in state.positions), grid)
        return cls(tuple(state.positions), n, torch.tensor(tables), row)
