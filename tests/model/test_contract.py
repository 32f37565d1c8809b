"""The exactness contract (docs/exactness.md), property by property: every schedule gives the same bytes.

float32 and bfloat16, each with itself; logits, state and pages. `campaign.Walk` mixes the properties at random; the
other tests take one each, so that a failure has a name.
"""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.model.campaign import Walk, state_bytes
from prfaas_ref.model.exact import Linear
from prfaas_ref.model.generation import generate, logits_bytes, prefill
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.state import HybridState
from tests.model.shapes import CONFIGS, DTYPES, model_of, request, same, same_state, tokens_of

every_model = pytest.mark.parametrize("name", CONFIGS)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)


@both_dtypes
@every_model
def test_prefill_equals_decode_at_every_position_over_two_block_ends(name: str, dtype: str) -> None:
    model, T = model_of(name, dtype), 131
    tokens = tokens_of(T)
    with torch.inference_mode():
        state, pages = request(model, T)
        by_prefill = model.forward(tokens, state, pages, rows=range(T))[0]
        other, other_pages = request(model, T)
        other.tables[0].reverse()
        for t in range(T):
            by_decode = model.forward(tokens[:, t : t + 1], other, other_pages)[0, 0]
            assert same(by_decode, by_prefill[t]), f"position {t}"
    assert by_prefill.isfinite().all()
    assert same_state(state, other)
    assert state_bytes(model, state, pages) == state_bytes(model, other, other_pages)


@both_dtypes
@pytest.mark.parametrize("name", ["toy_moe", "three heads", "five heads", "windows", "lightning", "odd widths"])
def test_random_schedules(name: str, dtype: str) -> None:
    """Splits, orders, mates with NaN, join and leave, dirty pages, hand-off, prefix hits, threads: all at once."""
    tally = Walk(model_of(name, dtype), seed=7, n_requests=2, max_tokens=140).run()
    torch.set_num_threads(1)
    assert tally.mismatches == []
    assert tally.checked["batch neighbours, NaN among them"] > 20
    assert tally.checked["decode = prefill: state"] == 2


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    st.sampled_from(["toy", "three heads", "windows"]),
    st.sampled_from(list(DTYPES)),
    st.integers(1, 140),
    st.sets(st.integers(1, 139), max_size=4),
    st.sampled_from(["layer", "chunk"]),
)
def test_any_split_and_either_order_of_the_cells(name: str, dtype: str, n: int, cuts: set[int], order: str) -> None:
    model, tokens = model_of(name, dtype), tokens_of(n)[0].tolist()
    with torch.inference_mode():
        one, other = request(model, n), request(model, n)
        assert same(prefill(model, tokens, *one), prefill(model, tokens, *other, order=order, cuts=list(cuts)))
    assert state_bytes(model, *one) == state_bytes(model, *other)


def test_a_layer_is_final_when_its_cell_is_announced() -> None:
    """What a sender reads at a cell is what it would read at the end: state and pages of that layer."""
    model, tokens = model_of("toy"), tokens_of(150)[0].tolist()
    state, pages = request(model, 150)
    seen = {}

    def on_cell(layer: int, position: int) -> None:
        if position == 150 and layer in state.layers:
            seen[layer] = {name: t.clone() for name, t in state.layers[layer].tensors().items()}
        if layer in model.config.full_layers:
            seen[layer, position] = pages.clone()

    with torch.inference_mode():
        prefill(model, tokens, state, pages, cuts=[64, 100], on_cell=on_cell)
    assert all(same(t, state.layers[i].tensors()[n]) for i in state.layers for n, t in seen[i].items())
    assert same(seen[7, 64][0], pages[0])
    assert same(seen[7, 150], pages)


@pytest.mark.parametrize("turned_at", [64, 128])
def test_a_second_turn_hits_blocks_that_decode_made(turned_at: int) -> None:
    """Decode past a block end, then submit prompt + answer: hit, cold and one shot agree."""
    model, tokens = model_of("toy"), tokens_of(140)
    with torch.inference_mode():
        state, pages = request(model, 140)
        prefill(model, tokens[0, :50].tolist(), state, pages)
        for t in range(50, turned_at):
            model.forward(tokens[:, t : t + 1], state, pages)
        hit = prefill(model, tokens[0, turned_at:].tolist(), state, pages)
        cold = request(model, 140)
        assert same(hit, prefill(model, tokens[0].tolist(), *cold))
    assert state_bytes(model, state, pages) == state_bytes(model, *cold)


@both_dtypes
@pytest.mark.parametrize("name", ["toy", "one head", "odd widths"])
def test_one_request_alone_on_two_threads(name: str, dtype: str) -> None:
    """Batch mates hide what a single row does: a batch of one is a product of its own kind."""
    model, tokens = model_of(name, dtype), tokens_of(70)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with torch.inference_mode():
            state, pages = request(model, 70)
            logits = [prefill(model, tokens[0, :66].tolist(), state, pages)]
            logits += [model.forward(tokens[:, t : t + 1], state, pages)[0, 0] for t in range(66, 70)]
        results.append((b"".join(map(logits_bytes, logits)), state_bytes(model, state, pages)))
    torch.set_num_threads(1)
    assert results[0] == results[1]


def test_a_row_is_the_same_wherever_it_stands_in_a_batch_of_any_size() -> None:
    model = model_of("toy_moe")
    with torch.inference_mode():
        states, pages = [], model.new_pages(40)
        for i in range(13):
            state = model.new_state()
            state.tables[0] = [3 * i, 3 * i + 1, 3 * i + 2]
            prefill(model, tokens_of(5 + 9 * i, seed=i)[0].tolist(), state, pages)
            states.append(state)
        tokens = tokens_of(13)[0]
        alone = [model.forward(tokens[i, None, None], s.select([0]), pages)[0, 0] for i, s in enumerate(states)]
        for order in (list(range(13)), [12, 0, 5], [3, 1, 2, 0, 4, 9, 8, 7, 6]):
            batch = HybridState.stack([states[i].select([0]) for i in order])
            logits = model.forward(tokens[order, None], batch, pages)[:, 0]
            assert all(same(logits[row], alone[i]) for row, i in enumerate(order))


def test_fresh_processes_agree() -> None:
    """Two processes, other hash seeds, other thread counts: the digest of a generation is the same."""
    code = (
        "from prfaas_ref.model import generate, load_model; from prfaas_ref.model.runtime import start; import sys;"
        "start(int(sys.argv[1])); print(generate(load_model('toy'), bytes(range(97)), 3).logits_sha256)"
    )
    ours = generate(model_of_seed_0(), bytes(range(97)), 3).logits_sha256
    for threads in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code, threads],
            env={**os.environ, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == ours


def model_of_seed_0() -> HybridModel:
    from prfaas_ref.model.checkpoint import load_model

    return load_model("toy")


def test_a_request_without_numbers_harms_no_other_and_cannot_be_continued() -> None:
    model = model_of("toy")
    bad = HybridModel(
        model.config, {**model.weights, "model.norm.weight": model.weights["model.norm.weight"] * torch.nan}
    )
    with pytest.raises(FloatingPointError, match="not finite"):
        generate(bad, b"hello", 3)


# Negative controls: the tests above can fail ------------------------------------------------------------------------


def test_one_more_unit_in_the_last_place_of_the_state_shows_in_the_logits() -> None:
    model, tokens = model_of("toy"), tokens_of(128)
    with torch.inference_mode():
        state, pages = request(model, 128)
        prefill(model, tokens[0, :64].tolist(), state, pages)
        other, other_pages = state.select([0]), pages.clone()
        S = other.layers[0].S.view(-1)
        largest = S.abs().argmax()
        S[largest] = torch.nextafter(S[largest], torch.tensor(torch.inf))
        one = model.forward(tokens[:, 64:], state, pages, rows=range(64))
        assert not same(one, model.forward(tokens[:, 64:], other, other_pages, rows=range(64)))


def differing_positions(model: HybridModel, decoder: HybridModel, n: int = 80) -> int:
    """Positions at which `decoder` decodes other bytes than `model` prefills."""
    tokens = tokens_of(n)
    with torch.inference_mode():
        expected = model.forward(tokens, *request(model, n), rows=range(n))[0]
        state, pages = request(decoder, n)
        return sum(not same(decoder.forward(tokens[:, t : t + 1], state, pages)[0, 0], expected[t]) for t in range(n))


def test_control_a_plain_recurrent_decode_differs() -> None:
    from prfaas_ref.model.unconstrained import with_recurrent_decode

    model = model_of("toy")
    assert differing_positions(model, model) == 0
    assert differing_positions(model, with_recurrent_decode(model)) > 70


def test_control_slabs_of_one_row_differ() -> None:
    model = model_of("toy")
    decoder = HybridModel(model.config, model.weights)
    for layer in decoder.layers:
        for part in (layer.mixer, layer.ffn):
            for name, value in vars(part).items():
                if isinstance(value, Linear):
                    setattr(part, name, replace(value, slab=1))
    assert differing_positions(model, decoder) > 70
