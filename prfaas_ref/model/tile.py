"""KDA by tiles of 16 tokens, and decode as the next row of the tile: one set of formulas, used by prefill and decode.

The recurrence (recurrence.py) is solved a tile at a time. Unrolled from the state S at the tile's start, with
a_t = exp(g_t) and decay(j -> i) = a_{j+1} ... a_i, row i of the tile satisfies

    A_ij  = k_i . decay(j->i) k_j                             scores of k_i against earlier keys     (`row_scores`)
    U_i   = beta_i v_i                    - beta_i sum_{j<i} A_ij U_j                                (`solve_row`)
    W_i   = beta_i decay(start->i) k_i    - beta_i sum_{j<i} A_ij W_j
    Vn_i  = U_i - W_i S                                        what row i really writes              (`read_state`)
    o_i   = (decay(start->i) q_i) S + sum_{j<=i} (q_i . decay(j->i) k_j) Vn_j
    S_end = decay(start->end) S + sum_j (decay(j->end) k_j) Vn_j^T                                   (`fold_tile`)

Row i needs rows <= i only. So prefill evaluates a tile's 16 rows together (`tile_rows`), and decode evaluates one more row
from what the earlier ones left in the `OpenTile` (`next_row`); both call the functions named above, whose bits do not
depend on how many rows or tiles they are given. That is why a token's output is the same by prefill and by decode.

Nothing here can overflow: a decay is only ever a *product* of numbers in [0, 1], and underflow to zero is the right
answer. Sub-tiles of 4 rows keep the products short: inside one, decays are kept pairwise (D); across, through keys
already decayed to the sub-tile's start (X), with P the product from there to the row and W the product of closed sub-tiles.

Letters: M any batch of (request or tile) x head, K key dim, V value dim, C = 16 rows of a tile, c = 4 of a sub-tile.
"""

from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from prfaas_ref.model.config import Grid
from prfaas_ref.model.exact import bmm_rows


@dataclass
class OpenTile:
    """What the rows of an unfinished tile left behind, per request and head: float32, rows not yet filled are zero.

    X [B, H, C, K]: keys of closed sub-tiles, decayed to the end of the last closed one. UW [B, H, C, V+K]: solved rows
    [U | W]. Vn [B, H, C, V]: written values. k, a, D [B, H, c, K]: the open sub-tile's keys, gates exp(g), and decays to its
    newest row. P, W [B, H, K]: decay from the sub-tile's start to the newest row, and of the closed sub-tiles; 1 when empty.
    """

    X: Tensor
    UW: Tensor
    Vn: Tensor
    k: Tensor
    a: Tensor
    D: Tensor
    P: Tensor
    W: Tensor

    @classmethod
    def empty(cls, batch: int, heads: int, K: int, V: int, grid: Grid) -> "OpenTile":
        C, c = grid.tile, grid.sub_tile
        shapes = {"X": (C, K), "UW": (C, V + K), "Vn": (C, V), "k": (c, K), "a": (c, K), "D": (c, K), "P": (K,), "W": (K,)}
        return cls(**{name: torch.full((batch, heads, *s), float(name in "PW")) for name, s in shapes.items()})

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class RowIndex:
    """Where a row stands in its tile, as masks: [B, 1, ..] for a row per request, [1, 1, ..] for one row of every tile."""

    rows: tuple[int, ...]
    in_sub: Tensor  # [.., c] one-hot: the row's place in its sub-tile
    up_to: Tensor  # [.., c] rows of the sub-tile up to and including this one
    own_sub: Tensor  # [.., C] columns of the row's own sub-tile
    older: Tensor  # [.., C] columns of closed sub-tiles
    before: Tensor  # [.., C] columns of earlier rows

    @classmethod
    def of(cls, rows: tuple[int, ...], grid: Grid) -> "RowIndex":
        """rows: each request's row in its tile."""
        place, column = torch.arange(grid.sub_tile), torch.arange(grid.tile)
        row = torch.tensor(rows)[:, None, None]
        in_sub, sub = row % grid.sub_tile, row // grid.sub_tile
        column_sub = column // grid.sub_tile
        return cls(rows, place == in_sub, place <= in_sub, column_sub == sub, column_sub < sub, column < row)

    @classmethod
    @cache
    def every(cls, grid: Grid) -> "tuple[RowIndex, ...]":
        """An index for each row of a tile, in order."""
        return tuple(cls.of((i,), grid) for i in range(grid.tile))


# The formulas, each for one row (or one sub-tile of rows) of any number of tiles ---------------------------------------


def advance_decay(D: Tensor, a: Tensor, at: RowIndex) -> Tensor:
    """Decays [M, c, K] from each row of the sub-tile to the newest one, after a row with gates a [M, K]."""
    return torch.where(at.in_sub[..., None], 1.0, D * a[..., None, :])


def inner_scores(kq: Tensor, k: Tensor, D: Tensor, at: RowIndex) -> Tensor:
    """A row's k and q (kq [M, 2, K]) against its own sub-tile's keys k [M, c, K], decayed by D: [M, 2, c]."""
    decayed = (k * D)[..., None, :, :]
    return torch.where(at.up_to[..., None, :], (kq[..., None, :] * decayed).sum(-1), 0.0)


def row_scores(inner: Tensor, outer: Tensor, at: RowIndex) -> Tensor:
    """Scores of a row against its whole tile [.., C]: its own sub-tile's (inner [.., c]), older ones' (outer [.., C]), else 0."""
    tiled = inner.repeat(*[1] * (inner.dim() - 1), outer.shape[-1] // inner.shape[-1])
    return torch.where(at.own_sub[..., None, :], tiled, torch.where(at.older[..., None, :], outer, 0.0))


def close_sub_tile(X: Tensor, W: Tensor, k: Tensor, a: Tensor, P: Tensor, own_sub: Tensor) -> tuple[Tensor, Tensor]:
    """Let the four rows k, a [M, c, K] of a full sub-tile join the older keys X [M, C, K]; P, W [M, K]: see OpenTile."""
    to_end = [torch.ones_like(P)]
    for j in range(k.shape[-2] - 1, 0, -1):
        to_end.append(to_end[-1] * a[..., j, :])
    keys = k * torch.stack(to_end[::-1], dim=-2)
    keys = keys.repeat(*[1] * (keys.dim() - 2), X.shape[-2] // keys.shape[-2], 1)
    return torch.where(own_sub[..., None], keys, X * P[..., None, :]), W * P


def solve_row(A: Tensor, rhs: Tensor, UW: Tensor) -> Tensor:
    """One step of forward substitution: [U | W]_i [M, 1, V+K] from A [M, 1, C], rhs [M, 1, V+K] and the rows before, UW."""
    return rhs - bmm_rows(A, UW)


def read_state(U: Tensor, W: Tensor, q_decayed: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Rows' written values Vn = U - W S and the part of their outputs that S [M, K, V] gives."""
    rows = W.shape[-2]
    WS_qS = bmm_rows(torch.cat((W, q_decayed), dim=-2), S)
    return U - WS_qS[..., :rows, :], WS_qS[..., rows:, :]


def fold_tile(S: Tensor, X: Tensor, W: Tensor, Vn: Tensor) -> Tensor:
    """The state [M, K, V] at a tile's end, from that at its start."""
    return W[..., :, None] * S + bmm_rows(X.transpose(-1, -2), Vn)


# Prefill: all rows of many tiles ---------------------------------------------------------------------------------------


def tile_rows(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, S: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Whole tiles of one request. q, k, a: [N, H, C, K], v: [N, H, C, V], beta: [N, H, C], S: [H, K, V].

    Returns the outputs [N, H, C, V] and the state after the last tile. Only the last loop is sequential in time.
    """
    N, H, C, K = q.shape
    V, c = v.shape[-1], grid.sub_tile
    at, subs = RowIndex.every(grid), C // c
    qs, ks, as_ = (x.reshape(N, H, subs, c, K) for x in (q, k, a))
    kq = torch.stack((ks, qs), dim=3)

    # Inside every sub-tile at once: its pairwise scores and the decay P from its start to each row.
    D, P, Ps, inner = torch.zeros_like(ks), torch.ones_like(ks[..., 0, :]), [], []
    for i in range(c):
        D = advance_decay(D, as_[..., i, :], at[i])
        P = P * as_[..., i, :]
        Ps.append(P)
        inner.append(inner_scores(kq[..., i, :], ks, D, at[i]))
    Ps = torch.stack(Ps, dim=-2)

    # Across sub-tiles: older keys, decayed to the sub-tile's start.
    X, W = k.new_zeros(N, H, C, K), k.new_ones(N, H, K)
    scores, decayed = [], []
    for s in range(subs):
        P = Ps[:, :, s]
        L = kq[:, :, s] * P[:, :, None]
        outer = bmm_rows(L.reshape(N, H, 2 * c, K), X.transpose(-1, -2)).view(N, H, 2, c, C)
        scores += [row_scores(inner[i][:, :, s], outer[..., i, :], at[s * c + i]) for i in range(c)]
        decayed.append(L * W[:, :, None, None])
        X, W = close_sub_tile(X, W, ks[:, :, s], as_[:, :, s], P[..., -1, :], at[s * c].own_sub)
    k_decayed, q_decayed = torch.cat(decayed, dim=-2).unbind(2)
    A_k, A_q = torch.stack(scores, dim=3).unbind(2)

    # Forward substitution, row after row, for all tiles together.
    rhs = torch.cat((beta[..., None] * v, beta[..., None] * k_decayed), dim=-1)
    before = torch.cat([i.before for i in at], dim=1)
    A = torch.where(before, A_k * beta[..., None], 0.0)
    UW = torch.zeros_like(rhs)
    for i in range(C):
        UW[..., i : i + 1, :] = solve_row(A[..., i : i + 1, :], rhs[..., i : i + 1, :], UW)

    # The state walks through the tiles.
    written, read = [], []
    for n in range(N):
        Vn, qS = read_state(UW[n, ..., :V], UW[n, ..., V:], q_decayed[n], S)
        S = fold_tile(S, X[n], W[n], Vn)
        written.append(Vn)
        read.append(qS)
    return torch.stack(read) + bmm_rows(A_q, torch.stack(written)), S


# Decode: one more row of each request's open tile ----------------------------------------------------------------------


def next_row(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, S: Tensor, tile: OpenTile, at: RowIndex, grid: Grid
) -> Tensor:
    """One token of B requests, at rows `at` of their tiles. q, k, a: [B, H, K], v: [B, H, V], beta: [B, H], S: [B, H, K, V].

    Returns the outputs [B, H, V]. Advances `tile` in place, and folds it into S, in place, where the row was its last.
    """
    V, rows = v.shape[-1], torch.tensor(at.rows)
    b, sub_row = torch.arange(len(rows)), rows % grid.sub_tile
    tile.k[b, :, sub_row], tile.a[b, :, sub_row] = k, a
    tile.D = advance_decay(tile.D, a, at)
    tile.P = tile.P * a

    kq = torch.stack((k, q), dim=2)
    inner = inner_scores(kq, tile.k, tile.D, at)
    L = kq * tile.P[:, :, None]
    A_k, A_q = row_scores(inner, bmm_rows(L, tile.X.transpose(-1, -2)), at).unbind(2)
    k_decayed, q_decayed = (L * tile.W[:, :, None]).unbind(2)

    rhs = torch.cat((beta[..., None] * v, beta[..., None] * k_decayed), dim=-1)
    A = torch.where(at.before, A_k * beta[..., None], 0.0)
    UW = solve_row(A[:, :, None], rhs[:, :, None], tile.UW)
    tile.UW[b, :, rows] = UW[:, :, 0]

    Vn, qS = read_state(UW[..., :V], UW[..., V:], q_decayed[:, :, None], S)
    tile.Vn[b, :, rows] = Vn[:, :, 0]
    o = qS + bmm_rows(A_q[:, :, None], tile.Vn)

    close_full(S, tile, at, grid)
    return o[:, :, 0]


def close_full(S: Tensor, tile: OpenTile, at: RowIndex, grid: Grid) -> None:
    """After row `at`: close the sub-tiles and fold the tiles that it filled; clear their rows, so that no history shows."""
    full = [i for i, row in enumerate(at.rows) if (row + 1) % grid.sub_tile == 0]
    if full:
        old = (tile.X[full], tile.W[full], tile.k[full], tile.a[full], tile.P[full])
        tile.X[full], tile.W[full] = close_sub_tile(*old, at.own_sub[full])
        tile.k[full], tile.a[full], tile.D[full], tile.P[full] = 0.0, 0.0, 0.0, 1.0
    full = [i for i, row in enumerate(at.rows) if row + 1 == grid.tile]
    if full:
        S[full] = fold_tile(S[full], tile.X[full], tile.W[full], tile.Vn[full])
        tile.X[full], tile.UW[full], tile.Vn[full], tile.W[full] = 0.0, 0.0, 0.0, 1.0
