"""Softmax attention over pages of 64 tokens, for every kind that has keys and values: MLA, grouped queries, windows.

Exact under any paging: a maximum has no order, so every score is taken against the row's true maximum; a page's part of
a sum is one product of fixed shape; and the pages' parts are added left to right in the order of the tokens. A page
that a query may not see adds exact zeros, which change no bit of a sum that starts from +0.

Knows nothing of where keys and values come from. Letters: B requests, n queries, G key heads, h query heads to each of
them, P pages, e and f the widths of keys and values.
"""

from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor

from prfaas_ref.model.exact import bmm_rows
from prfaas_ref.model.schedule import Schedule

PAGES_AT_ONCE = 32
"""Pages whose parts of the sums are computed together: they stay in the machine's caches until they are added."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, schedule: Schedule, first: Tensor | None = None, window: int | None = None
) -> Tensor:
    """Causal attention of the schedule's tokens. q: [B, n, G, h, e], scaled. k: [B, P, G, 64, e]. v: [B, P, G, 64, f].

    first: [B], position of the first page's first key; 0 if not given. window: how many keys a query sees, itself
    included; all if not given. Returns [B, n, G, h, f].
    """
    first, block = torch.zeros_like(schedule.position[:, 0]) if first is None else first, k.shape[3]
    if schedule.n == 1:
        return attend(q, k, v, schedule.position, first, window)
    outputs, start, end = [], schedule.start[0], schedule.end
    edges = [start, *range((start // block + 1) * block, end, block), end]
    for p0, p1 in pairwise(edges):  # the queries of one page at a time
        rows, last = slice(p0 - start, p1 - start), (p0 - int(first[0])) // block
        lowest = 0 if window is None else last - window // block
        pages = slice(lowest, last + 1)
        position = schedule.position[:, rows]
        outputs.append(attend(q[:, rows], k[:, pages], v[:, pages], position, first + lowest * block, window))
    return torch.cat(outputs, dim=1)


def attend(q: Tensor, k: Tensor, v: Tensor, position: Tensor, first: Tensor, window: int | None) -> Tensor:
    """As `attention`, for queries of one page, or one of each request, at `position` [B, n]."""
    h, block = q.shape[3], k.shape[3]
    rows = rearrange(q, "b n g h e -> b 1 g (n h) e").expand(-1, k.shape[1], -1, -1, -1)
    scores = bmm_rows(rows, k.transpose(-1, -2)).float()
    open_pages = 0 if window else int((position - first[:, None]).min()) // block  # every query sees all of these
    hide(scores[:, open_pages:], position.repeat_interleave(h, dim=1), first + open_pages * block, window)
    top = scores.amax(dim=(1, 4), keepdim=True)
    total = torch.zeros_like(top[:, 0, ..., 0])
    out = total.new_zeros((*total.shape, v.shape[-1]))
    for s, v_pages in zip(scores.split(PAGES_AT_ONCE, dim=1), v.split(PAGES_AT_ONCE, dim=1), strict=True):
        p = s.sub_(top).exp_()
        sums, values = p.sum(-1), bmm_rows(p.to(q.dtype), v_pages).float()
        for page in range(p.shape[1]):
            total, out = total + sums[:, page], out + values[:, page]
    out = (out / total[..., None]).to(q.dtype)
    return rearrange(out, "b g (n h) f -> b n g h f", h=h)


def hide(scores: Tensor, position: Tensor, first: Tensor, window: int | None) -> None:
    """Put -inf, in place, where the queries of scores [B, P, G, rows, 64], at `position` [B, rows], may not look."""
    B, P, _, _, block = scores.shape
    key = (first[:, None] + torch.arange(P * block, device=first.device)).view(B, P, 1, 1, block)
    position = position[:, None, None, :, None]
    hidden = key > position
    if window:
        hidden = hidden | (key <= position - window) | (key < 0)
    scores.masked_fill_(hidden, -torch.inf)


def write_rows(pages: Tensor, rows: Tensor, schedule: Schedule) -> None:
    """Store rows [B, n, width] in pages [page, 64, width], at the schedule's positions."""
    page, place = schedule.position // pages.shape[1], schedule.position % pages.shape[1]
    pages[schedule.tables.gather(1, page), place] = rows
