"""The tile form of KDA against its definition, and its own promises: causality, any split, decode as the next row."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prfaas_ref.model.recurrence import kda_recurrence
from prfaas_ref.model.state import LayerState
from prfaas_ref.model.tile import RowIndex, empty_tiles, next_row, tile_rows
from tests.model.shapes import same

H, K, V, C = 3, 32, 48, 16
GATES = {
    "none": lambda x: torch.zeros_like(x),
    "mild": lambda x: -0.05 * torch.sigmoid(x),
    "usual": lambda x: -torch.nn.functional.softplus(x),
    "bounded": lambda x: -5 * torch.sigmoid(4 * x),
    "spiky": lambda x: torch.where(x > 1.6, -300.0, -1e-3),
    "strong": lambda x: -60 * x.abs(),
}


def inputs(T: int, gate: str, seed: int = 0) -> tuple[Tensor, ...]:
    """q, k, v, g, beta of T tokens and a state, head by head: [T, H, ..] and [H, K, V]."""
    g = torch.Generator().manual_seed(seed)
    q, k, x = (torch.randn(T, H, K, generator=g) for _ in range(3))
    q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
    v, S = torch.randn(T, H, V, generator=g), 0.3 * torch.randn(H, K, V, generator=g)
    return q * K**-0.5, k, v, GATES[gate](x), torch.rand(T, H, generator=g), S


def empty_state(S: Tensor) -> LayerState:
    H, K, V = S.shape
    X, UW, P = torch.zeros(1, H, C, K), torch.zeros(1, H, C, V + K), torch.ones(1, H, K)
    return LayerState(S=S[None].clone(), X=X, UW=UW, P=P)


def by_tiles(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: LayerState, cuts=()) -> Tensor:
    """Outputs [T, H, V] by `tile_rows`, whole tiles together where `cuts` allow; advances the state."""
    T, o = len(q), []
    edges = sorted({0, T, T // C * C, *(c for c in cuts if c < T)})
    edges = sorted({*edges, *(t for a, b in pairwise(edges) if a % C or b % C for t in range(a - a % C + C, b, C))})
    for t0, t1 in pairwise(edges):
        N = max(1, (t1 - t0) // C)
        tile = empty_tiles(N, state) if t0 % C == 0 else state
        parts = (x[t0:t1].reshape(N, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v, a, beta))
        rows, S = tile_rows(*parts, state.S[0], tile, t0 % C)
        left = tile if t1 % C else empty_tiles(1, state)
        state.S, state.X, state.UW, state.P = S[None], left.X, left.UW, left.P
        o.append(rows.transpose(1, 2).reshape(t1 - t0, H, V))
    return torch.cat(o)


def by_rows(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: LayerState) -> Tensor:
    """The same by `next_row`, token by token."""
    inputs = (q, k, v, a, beta)
    return torch.cat([next_row(*(x[t : t + 1] for x in inputs), state, RowIndex.of([t % C], C)) for t in range(len(q))])


@pytest.mark.parametrize("gate", GATES)
def test_every_length_up_to_three_tiles_agrees_with_the_recurrence(gate: str) -> None:
    q, k, v, g, beta, S = inputs(3 * C, gate)
    expected, _ = kda_recurrence(*(x[None] for x in (q, k, v, g, beta, S)))
    with torch.inference_mode():
        for T in range(1, 3 * C + 1):
            state = empty_state(S)
            o = by_tiles(q[:T], k[:T], v[:T], g[:T].exp(), beta[:T], state)
            torch.testing.assert_close(o.double(), expected[0, :T], atol=2e-6, rtol=0)
            if T % C == 0:
                _, S_end = kda_recurrence(*(x[None, :T] for x in (q, k, v, g, beta)), S[None])
                torch.testing.assert_close(state.S.double(), S_end, atol=2e-6, rtol=0)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_any_split_of_the_rows_gives_the_same_bits_as_row_by_row(data: st.DataObject) -> None:
    T = data.draw(st.integers(1, 50))
    cuts = data.draw(st.sets(st.integers(1, 50), max_size=4))
    q, k, v, g, beta, S = inputs(T, data.draw(st.sampled_from(list(GATES))), seed=T)
    with torch.inference_mode():
        one, other = empty_state(S), empty_state(S)
        assert same(by_tiles(q, k, v, g.exp(), beta, one, cuts), by_rows(q, k, v, g.exp(), beta, other))
        assert all(same(t, other.tensors()[name]) for name, t in one.tensors().items())


@pytest.mark.parametrize("gate", GATES)
def test_a_change_of_a_later_token_moves_no_bit_before_it(gate: str) -> None:
    q, k, v, g, beta, S = inputs(2 * C, gate)
    with torch.inference_mode():
        before = by_tiles(q, k, v, g.exp(), beta, empty_state(S))
        for t in (1, C - 1, C, C + 3, 2 * C - 1):
            changed = [x.clone() for x in (q, k, v, g.exp(), beta)]
            for x, other in zip(changed, inputs(2 * C, "usual", seed=9), strict=False):
                x[t] = other[t].exp() if other is changed[3] else other[t].abs().clamp(max=1)
            after = by_tiles(*changed, empty_state(S))
            assert same(before[:t], after[:t])
            assert not same(before[t], after[t])


def test_rows_of_different_requests_do_not_mix() -> None:
    """Requests at different rows of their tiles, one full of NaN, step together as each does alone."""
    n = (3, 15, 8)
    with torch.inference_mode():
        alone, states = [], []
        for i, rows in enumerate(n):
            q, k, v, g, beta, S = inputs(rows + 1, "usual", seed=i)
            states.append(empty_state(S))
            by_tiles(*(x[:rows] for x in (q, k, v, g.exp(), beta)), states[-1])
            alone.append(tuple(x[rows] for x in (q, k, v, g.exp(), beta)))
        nan = LayerState(**{name: torch.full_like(t, torch.nan) for name, t in states[0].tensors().items()})
        order = [states[2], nan, states[0], states[1]]
        batch = LayerState(**{name: torch.cat([s.tensors()[name] for s in order]) for name in nan.tensors()})
        tokens = [alone[2], tuple(torch.full_like(x, torch.nan) for x in alone[0]), alone[0], alone[1]]
        o = next_row(*(torch.stack(x) for x in zip(*tokens, strict=True)), batch, RowIndex.of([8, 5, 3, 15], C))
        for row, i in ((0, 2), (2, 0), (3, 1)):
            assert same(o[row : row + 1], next_row(*(x[None] for x in alone[i]), states[i], RowIndex.of([n[i]], C)))
            assert all(same(t[row : row + 1], states[i].tensors()[name]) for name, t in batch.tensors().items())


def test_gradients_flow_through_the_tiles_as_through_the_recurrence() -> None:
    q, k, v, g, beta, S = (x.requires_grad_() for x in inputs(2 * C + 5, "usual"))
    o = by_tiles(q, k, v, g.exp(), beta, empty_state(S))
    expected, _ = kda_recurrence(*(x[None] for x in (q, k, v, g, beta, S)))
    leaves = (q, k, v, g, beta)
    for ours, theirs in zip(
        torch.autograd.grad(o.sin().sum(), leaves), torch.autograd.grad(expected.sin().sum(), leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
