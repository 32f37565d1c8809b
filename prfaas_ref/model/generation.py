"""The single-process reference: prefill the prompt, then decode token by token. Everything else is held against it."""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prfaas_ref.errors import UserError
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.state import HybridState

PIECE = 2048
"""Tokens a layer takes at a time in a long prefill: it bounds the memory and changes no bit."""


class Generation(NamedTuple):
    """What came out, and its proof: sha256 over the logits that the tokens were drawn from (see `logits_bytes`)."""

    tokens: list[int]
    logits_sha256: str


def prefill(
    model: HybridModel,
    tokens: Sequence[int],
    state: HybridState,
    pages: Tensor,
    order: str = "layer",
    cuts: Sequence[int] = (),
    on_cell: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Process `tokens` of one request after what `state` holds, and return the logits [vocab] after the last.

    The work is a grid of cells (layer, piece of the prompt), the pieces divided by `cuts` (absolute positions). Either
    order gives the same bits: "layer" finishes a layer early, so that it can be sent while the next one computes;
    "chunk" finishes a piece through all layers. on_cell(layer, position): see `HybridModel.forward`.
    """
    tokens = torch.tensor([list(tokens)], device=model.device)
    if order == "layer":
        return model.forward(tokens, state, pages, cuts=cuts, on_cell=on_cell)[0, -1]
    for piece in Schedule.pieces(state, tokens.shape[1], cuts, model.config, model.device):
        part, tokens = tokens[:, : piece.n], tokens[:, piece.n :]
        logits = model.forward(part, state, pages, on_cell=on_cell)
    return logits[0, -1]


def first_logits(model: HybridModel, token_ids: Sequence[int]) -> Tensor:
    """The float32 logits [vocab] after the last of the given ids, by one prefill from an empty state."""
    if not token_ids:
        raise UserError("no token ids; give at least one")
    n_pages = -(-len(token_ids) // model.config.grid.block)
    state, pages = model.new_state(), model.new_pages(n_pages)
    state.tables[0] = list(range(n_pages))
    with torch.inference_mode():
        return prefill(model, token_ids, state, pages, cuts=range(0, len(token_ids), PIECE))


def greedy(logits: Tensor) -> int:
    """The most likely token, the lowest one on ties. Raises FloatingPointError if any logit is not finite."""
    if not torch.isfinite(logits).all():
        raise FloatingPointError("the logits are not finite; this request cannot be continued")
    return int((logits == logits.max()).nonzero()[0])


def logits_bytes(logits: Tensor) -> bytes:
    """One logits vector as it enters `logits_sha256`: float32, little-endian."""
    return logits.float().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()


def generate(
    model: HybridModel,
    prompt: bytes | Sequence[int],
    max_tokens: int = 32,
    on_token: Callable[[int], None] | None = None,
) -> Generation:
    """Greedy continuation of a prompt (bytes, or token ids), in this process alone; stops after an end token."""
    tokens = list(prompt)
    if not tokens:
        raise UserError("the prompt is empty; give at least one byte")
    if max_tokens < 1:
        raise UserError(f"max_tokens is {max_tokens}; it must be at least 1")
    block = model.config.grid.block
    n_pages = -(-(len(tokens) + max_tokens) // block)
    state, pages = model.new_state(), model.new_pages(n_pages)
    state.tables[0] = list(range(n_pages))
    digest, out = hashlib.sha256(), []
    with torch.inference_mode():
        logits = prefill(model, tokens, state, pages, cuts=range(0, len(tokens), PIECE))
        while True:
            digest.update(logits_bytes(logits))
            out.append(greedy(logits))
            if on_token:
                on_token(out[-1])
            if len(out) == max_tokens or out[-1] in model.config.end_tokens:
                return Generation(out, digest.hexdigest())
            logits = model.forward(torch.tensor([out[-1:]], device=model.device), state, pages)[0, -1]
