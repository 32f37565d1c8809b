"""What a hit is when pages and recurrent state must agree: shared beginnings, branch points, and second turns.

Run it: python examples/02_prefix_hits.py
"""

from pathlib import Path

import torch

from prfaas_ref import generate, load_model
from prfaas_ref.serving.decode_batch import DecodeBatch, Running
from prfaas_ref.serving.engine import Engine
from prfaas_ref.units import MIB

torch.set_grad_enabled(False)
model = load_model("toy")
engine = Engine(model, fingerprint="example", cache_bytes=16 * MIB)
source = list(Path(__file__).read_bytes())


def serve(what: str, prompt: list[int], max_tokens: int = 80) -> list[int]:
    """Prefill and decode one prompt on the engine's pool; returns prompt and answer, for a next turn."""
    alloc, state = engine.begin(prompt, extra_tokens=max_tokens)
    cached, kv = alloc.cached_tokens, alloc.branch_tokens
    first = engine.prefill(prompt, alloc, state)
    batch, tokens = DecodeBatch(engine), [first.token]
    batch.join(Running("example", alloc, first.token, max_tokens - 1), state)
    while batch.running:
        tokens += [step.token for step in batch.step()]
    assert tokens == generate(model, prompt, max_tokens).tokens  # the same as in a cold process
    print(f"{what:46} {len(prompt):5} tokens, pages match {kv:4}, usable {cached:4}")
    return prompt + tokens


first = serve("a prompt", source[:700])
serve("again: up to the last block below its end", source[:700])
serve("another end: pages match, no state there yet", source[:500] + source[900:1100])
serve("a third end: starts at the branch point", source[:500] + source[1200:1500])
serve("the second turn: prompt and answer are cached", first + source[:50])
