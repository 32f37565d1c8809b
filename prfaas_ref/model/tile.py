"""KDA by tiles of 16 tokens, and decode as the next row of the tile: one set of formulas, used by prefill and decode.

The recurrence (recurrence.py) is solved a tile at a time. Unrolled from the state S at the tile's start, with
a_t = exp(g_t) and decay(j -> i) = a_{j+1} ... a_i, row i of the tile satisfies

    A_ij  = beta_i k_i . decay(j->i) k_j               R_ij = q_i . decay(j->i) k_j
    U_i   = beta_i v_i               - sum_{j<i}  A_ij U_j      what row i writes is U_i - W_i S: the delta rule's
    W_i   = beta_i decay(start->i) k_i - sum_{j<i}  A_ij W_j    correction, as a function of the state
    O_i   =                            sum_{j<=i} R_ij U_j      what row i reads is O_i + Q_i S
    Q_i   = decay(start->i) q_i      - sum_{j<=i} R_ij W_j
    S_end = decay(start->end) S + sum_j (decay(j->end) k_j) (U_j - W_j S)^T

Row i needs rows <= i only. So prefill evaluates the rows of many tiles together (`tile_rows`), and decode evaluates one
more row from what the earlier ones left (`next_row`): X, the keys so far, each decayed to the newest row; [U | W], the
solved rows; P, the decay from the start. Rows to come are zero in both. The lines come in pairs: (A, R), (U, W) and
(O, Q) are one matrix product each, W S, Q S and the update of S one more each. A product has the same inner size in
prefill and in decode (K, or C = 16, never the number of rows so far) and a multiple of 4 rows, so that no row's bits
depend on how many rows or tiles go together (exact.py): that is why a token's output is the same by both.

Nothing here can overflow: a decay is only ever a *product* of numbers in [0, 1], and underflow to zero is the right
answer. Nothing is divided by a decay, and no sums of logarithms are subtracted.

Letters: N tiles, B requests, H heads, K key dim, V value dim, C = 16 rows of a tile, n rows of this call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prfaas_ref.model.exact import add_bmm_rows, bmm_rows, pad_rows, round_up
from prfaas_ref.model.state import LayerState


@dataclass(frozen=True)
class RowIndex:
    """Where the next row of each of B requests stands in its tile."""

    request: Tensor  # [B], 0 .. B-1
    row: Tensor  # [B]
    last: list[int]  # the requests whose row is their tile's last

    @classmethod
    def of(cls, rows: Sequence[int], tile: int, device: torch.device | None = None) -> "RowIndex":
        last = [i for i, row in enumerate(rows) if row + 1 == tile]
        return cls(torch.arange(len(rows), device=device), torch.tensor(rows, device=device), last)


def fold(S: Tensor, X: Tensor, U: Tensor, W: Tensor, P: Tensor) -> Tensor:
    """The state [.., K, V] after a tile's newest row, from that at its start and the rows of X, U, W so far (those to
    come are zero), and P [.., K, 1]."""
    return add_bmm_rows(P * S, X.mT, add_bmm_rows(U, W, S, sign=-1))


def current_state(state: LayerState) -> Tensor:
    """The recurrence's state [B, H, K, V] after the newest token: a copy, to compare with other libraries only."""
    V, K = state.S.shape[-1], state.S.shape[-2]
    return fold(state.S, state.X, *state.UW.split((V, K), dim=-1), state.P[..., None])


def tile_rows(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, S: Tensor, tile: LayerState, first: int
) -> tuple[Tensor, Tensor]:
    """Prefill: rows first, first + 1, ... of N consecutive tiles of one request; an unfinished tile comes alone.

    q, k, a: [N, H, n, K], v: [N, H, n, V], beta: [N, H, n]. S [H, K, V]: the state at the first tile's start. tile: X,
    UW and P of the N tiles after the rows before `first`; advanced in place. Returns the outputs [N, H, n, V] and S at
    the last tile boundary.
    """
    (N, H, n, K), V = q.shape, v.shape[-1]
    P = running_products(tile.P, a)
    kq = torch.stack((beta[..., None] * k, q), dim=-2)
    k_decayed, q_decayed = (kq * P[..., None, :]).unbind(-2)
    rhs = torch.cat((beta[..., None] * v, k_decayed), dim=-1)

    # Row after row, all tiles at once. A product takes four rows, k and q of two tokens, of which two are thrown away.
    X, UW, R = tile.X.flatten(0, 1), tile.UW.flatten(0, 1), []
    kq = pad_rows(kq.view(N * H, 2 * n, K), round_up(2 * n, 4))
    rows = zip(*(x.flatten(0, 1).unbind(1) for x in (k, a, rhs)), strict=True)
    for i, (k_i, a_i, rhs_i) in enumerate(rows):
        four, own = i // 2 * 4, i % 2 * 2
        X = add_key(X, first + i, k_i, a_i)
        AR = bmm_rows(kq[:, four : four + 4], X.mT)
        UW = set_row(UW, first + i, rhs_i - bmm_rows(AR, UW)[:, own])  # row i of UW is still zero: this sums j < i
        R.append(AR[:, own + 1])
    O, RW = bmm_rows(torch.stack(R, dim=1), UW).unflatten(0, (N, H)).split((V, K), dim=-1)
    tile.X, tile.UW, tile.P = X.unflatten(0, (N, H)), UW.unflatten(0, (N, H)), P[..., -1, :].contiguous()

    # The state walks through the tiles: the only step that is sequential in time.
    complete, read = first + n == X.shape[1], []
    for Q_t, *tile_t in zip(q_decayed - RW, tile.X, *tile.UW.split((V, K), dim=-1), tile.P[..., None], strict=True):
        read.append(bmm_rows(Q_t, S))
        S = fold(S, *tile_t) if complete else S
    return O + torch.stack(read), S


def next_row(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: LayerState, at: RowIndex) -> Tensor:
    """Decode: one token of B requests, at rows `at` of their tiles. q, k, a: [B, H, K], v: [B, H, V], beta: [B, H].

    Returns the outputs [B, H, V]. Advances S, X, UW, P of `state` in place; a row that fills its tile folds it into S.
    """
    V, K = v.shape[-1], k.shape[-1]
    state.P *= a
    state.X *= a[..., None, :]
    state.X[at.request, :, at.row] = k
    kq = torch.stack((beta[..., None] * k, q), dim=-2)
    k_decayed, q_decayed = (kq * state.P[..., None, :]).unbind(-2)
    rhs = torch.cat((beta[..., None] * v, k_decayed), dim=-1)

    AR = bmm_rows(pad_rows(kq, 4), state.X.mT)
    state.UW[at.request, :, at.row] = rhs - bmm_rows(AR, state.UW)[..., 0, :]  # its own row is still zero: j < i
    O, RW = bmm_rows(AR, state.UW)[..., 1, :].split((V, K), dim=-1)
    o = O + bmm_rows((q_decayed - RW)[..., None, :], state.S)[..., 0, :]
    if at.last:
        S, X, UW, P = (t[at.last] for t in (state.S, state.X, state.UW, state.P))
        state.S[at.last] = fold(S, X, *UW.split((V, K), dim=-1), P[..., None])
        # Empty again, so that no history shows in the state's bytes.
        state.X[at.last], state.UW[at.last], state.P[at.last] = 0.0, 0.0, 1.0
    return o


def empty_tiles(n: int, like: LayerState) -> LayerState:
    """n tiles before their first row, as X, UW and P."""
    X, UW = (t.new_zeros(n, *t.shape[1:]) for t in (like.X, like.UW))
    return LayerState(X=X, UW=UW, P=like.P.new_ones(n, *like.P.shape[1:]))


# Rows that follow each other: in place where no gradient is recorded, else as new tensors (for training) ------------


def running_products(P: Tensor, a: Tensor) -> Tensor:
    """P [.., K] times the first, the first two, ... rows of a [.., n, K]: [.., n, K], multiplied one by one."""
    rows = []
    for row in a.unbind(-2):
        P = P * row
        rows.append(P)
    return torch.stack(rows, dim=-2)


def add_key(X: Tensor, row: int, k: Tensor, a: Tensor) -> Tensor:
    """Keys X [.., C, K] decayed by a [.., K], with k [.., K] as the next row."""
    if torch.is_grad_enabled():
        return torch.cat((X[..., :row, :] * a[..., None, :], k[..., None, :], X[..., row + 1 :, :]), dim=-2)
    X[..., :row, :] *= a[..., None, :]
    X[..., row, :] = k
    return X


def set_row(UW: Tensor, row: int, value: Tensor) -> Tensor:
    """UW [.., C, V+K] with value [.., V+K] as the next row."""
    if torch.is_grad_enabled():
        return torch.cat((UW[..., :row, :], value[..., None, :], UW[..., row + 1 :, :]), dim=-2)
    UW[..., row, :] = value
    return UW
