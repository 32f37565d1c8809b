"""Kimi Delta Attention as its definition, token by token: the specification that every faster form is held against.

Per head, with the state S [K, V] as an associative memory from keys to values:

    S'  = diag(exp g_t) S                 every key channel forgets at its own rate
    u_t = beta_t (v_t - S'^T k_t)         the delta rule: correct what the memory now says of k_t
    S   = S' + k_t u_t^T
    o_t = S^T q_t
"""

import torch
from torch import Tensor


def kda_recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Run T tokens through the recurrence in float64.

    q, k, g: [B, T, H, K], g in natural log and <= 0, q already scaled; v: [B, T, H, V]; beta: [B, T, H];
    S: [B, H, K, V], the state before the first token. Returns o [B, T, H, V] and the state after the last.
    """
    q, k, v, g, beta, S = (x.double() for x in (q, k, v, g, beta, S))
    outputs = []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, :, None]) * S
        predicted = torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        u = beta[:, t, :, None] * (v[:, t] - predicted)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, dim=1), S
