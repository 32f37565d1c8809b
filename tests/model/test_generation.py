"""Generation in one process, its digest, and the fingerprint that says who may be compared with whom."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from prfaas_ref.errors import UserError
from prfaas_ref.model import first_logits, generate, load_model
from prfaas_ref.model.config import END
from prfaas_ref.model.fingerprint import ProbeFailed, fingerprint, probe
from prfaas_ref.model.generation import greedy
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.runtime import start
from prfaas_ref.model.schedule import Schedule
from prfaas_ref.model.unconstrained import with_recurrent_decode
from tests.model.shapes import CONFIGS, model_of, request, tokens_of


def test_the_digest_is_over_the_logits_that_tokens_were_drawn_from() -> None:
    model, prompt = model_of("toy"), b"The quick brown fox"
    result = generate(model, prompt, 3)
    digest, tokens = hashlib.sha256(), list(prompt)
    for token in result.tokens:  # each from a prefill of its own
        logits = first_logits(model, tokens)
        assert logits.shape == (257,)
        digest.update(np.asarray(logits, dtype="<f4").tobytes())
        assert int(logits.argmax()) == token
        tokens.append(token)
    assert result.logits_sha256 == digest.hexdigest()
    assert generate(model, list(prompt), 3) == result


def test_it_stops_after_the_end_token() -> None:
    model = model_of("toy")
    weights = dict(model.weights)
    weights["lm_head.weight"] = torch.zeros_like(weights["lm_head.weight"])  # all logits equal: the lowest token wins
    assert generate(HybridModel(model.config, weights), b"a", 2).tokens == [0, 0]
    state, pages = request(model, 1)
    with torch.inference_mode():
        x = model.embed[torch.tensor([[97]])]
        for i, layer in enumerate(model.layers):
            schedule = Schedule.of([0], 1, state.tables, model.config, model.device)
            x = layer(x, state.layers[i] if i in state.layers else pages[:, 0], schedule)
    weights["lm_head.weight"] = weights["lm_head.weight"].clone()
    weights["lm_head.weight"][END] = x[0, 0]  # which points where the model stands after this byte
    assert generate(HybridModel(model.config, weights), b"a", 5).tokens == [END]
    another = HybridModel(replace(model.config, end_tokens=(7, 9)), weights)
    assert len(generate(another, b"a", 5).tokens) == 5  # which token ends an answer is the model's own affair


def test_ties_go_to_the_lowest_token_and_nothing_is_drawn_from_what_is_not_a_number() -> None:
    assert greedy(torch.tensor([0.0, 2.0, 1.0, 2.0])) == 1
    for bad in (torch.nan, torch.inf):
        with pytest.raises(FloatingPointError):
            greedy(torch.tensor([0.0, bad]))


def test_what_the_user_may_get_wrong() -> None:
    with pytest.raises(UserError, match="prompt is empty"):
        generate(model_of("toy"), b"")
    with pytest.raises(UserError, match="max_tokens is 0"):
        generate(model_of("toy"), b"a", 0)
    with pytest.raises(UserError, match="at least one"):
        first_logits(model_of("toy"), [])
    with pytest.raises(UserError, match="threads is 0"):
        start(0)


def test_page_tables_must_cover_the_tokens() -> None:
    model = model_of("toy")
    with pytest.raises(ValueError, match="needs 2 pages for its next 65 tokens and has 1"):
        model.forward(tokens_of(65), *request(model, 64))
    with pytest.raises(ValueError, match="n tokens of one request or one token of many"):
        model.forward(tokens_of(2).expand(2, 2), model.new_state(2), model.new_pages(2))


def test_fingerprints_name_what_must_be_equal() -> None:
    one, same, seed, dtype = (
        fingerprint(load_model("toy-random", dtype=dtype, seed=seed))
        for dtype, seed in (("float32", 0), ("float32", 0), ("float32", 1), ("bfloat16", 0))
    )
    assert one == same
    assert one.digest == same.digest
    assert {k for k in one.layout if one.layout[k] != seed.layout[k]} == {"weights"}
    assert {k for k in one.layout if one.layout[k] != dtype.layout[k]} == {"dtype", "weights"}
    assert {k for k in one.numeric if one.numeric[k] != seed.numeric[k]} == {"probe"}
    assert len({one.digest, seed.digest, dtype.digest}) == 3


@pytest.mark.parametrize("name", CONFIGS)
def test_the_probe_passes_every_kind(name: str) -> None:
    assert len(probe(model_of(name))) == 64


def test_the_probe_refuses_a_machine_where_decode_is_not_the_next_row() -> None:
    with pytest.raises(ProbeFailed, match="prefill and decode differ at position"):
        probe(with_recurrent_decode(model_of("toy")))
