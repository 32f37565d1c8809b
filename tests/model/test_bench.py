"""`prfaas bench model` measures what it says: the contenders compute the same thing, and the report has its shape."""

import json

import pytest
import torch

from prfaas_ref.commands import bench_model
from prfaas_ref.commands import bench_model_cases as cases
from prfaas_ref.errors import UserError
from prfaas_ref.model import unconstrained
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.weights import random_weights
from tests.model.shapes import model_of, request, tokens_of


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "T", 512)
    monkeypatch.setattr(cases, "DECODE_STEPS", 2)
    monkeypatch.setattr(cases, "CONTEXT", 3)


def test_the_report_without_peers() -> None:
    def measure(contenders: dict) -> dict[str, float]:
        for contender in contenders.values():
            contender()
        return {name: 1.0 if name in ("ours", "exact") else 0.5 for name in contenders}

    result = json.loads(json.dumps(cases.measure_all(measure, peers=False)))
    assert result["kda"] == {"ours_tok_s": 512.0, "peers": {}, "ratio": {}}
    assert result["model"] == {"prefill": {"ours_tok_s": 512.0}, "decode_b8": {"ours_tok_s": 16.0}}
    assert result["canonical_ratio"] == 0.5
    assert result["exact_decode_cost"] == {"1": 2.0, "8": 2.0, "32": 2.0}
    assert "exact decode cost, batch 32" in bench_model.as_text(result)


def test_medians_leave_the_warm_up_out() -> None:
    turns: list[str] = []
    seconds = bench_model.medians({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, repeats=3)
    assert turns == ["a", "b"] * 4
    assert set(seconds) == {"a", "b"}


def test_the_unconstrained_prefill_is_the_same_function() -> None:
    """Else the canonical ratio would compare apples with pears. Other bits, of course."""
    weights = random_weights(cases.MODEL, torch.float32, seed=0)
    weights = {name: t - 4 if name.endswith("A_log") else t for name, t in weights.items()}  # mild gates
    model = HybridModel(cases.MODEL, weights)
    tokens = torch.randint(0, 257, (200,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        state, pages = request(model, 200)
        exact = model.forward(tokens[None], state, pages)[0, 0]
        usual = unconstrained.prefill(model, tokens)
    torch.testing.assert_close(usual, exact, atol=1e-3, rtol=0)
    assert not torch.equal(usual, exact)


def test_the_recurrent_decode_is_the_same_function() -> None:
    model, tokens = model_of("toy"), tokens_of(20)
    with torch.inference_mode():
        state, pages = request(model, 20)
        decoder = unconstrained.with_recurrent_decode(model)
        decoded = [decoder.forward(tokens[:, t : t + 1], state, pages)[0, 0] for t in range(20)]
        exact = model.forward(tokens, *request(model, 20), rows=range(20))[0]
    torch.testing.assert_close(torch.stack(decoded), exact, atol=1e-4, rtol=0)


def test_peers_need_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match="--peers needs transformers"):
        cases.load_peers()
