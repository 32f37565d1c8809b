"""Bytes of caches and states: from the formulas, and from the tensors that a model really makes."""

import pytest

from prfaas_ref.model.config import TOY, HybridConfig
from prfaas_ref.model.kinds import GQAShape, Grid, KDAShape, SlidingShape
from prfaas_ref.model.sizes import block_bytes, bytes_per_token, fixed_bytes, live_bytes, live_state
from tests.model.shapes import CONFIGS, DTYPES, GQA, SLIDING, WIDTHS, mla, model_of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_specs_are_what_the_model_allocates(name: str, dtype: str) -> None:
    model = model_of(name, dtype)
    state, pages, config = model.new_state(), model.new_pages(1), model.config
    for i in range(len(config.layers)):
        specs = live_state(config, i, dtype, n_tokens=1)
        tensors = state.layers[i].tensors() if i in state.layers else {}
        assert [t.name for t in specs] == list(tensors)
        for spec, tensor in zip(specs, tensors.values(), strict=True):
            assert (spec.shape, spec.n_bytes) == (tuple(tensor.shape[1:]), tensor.nbytes)
    assert block_bytes(config, dtype) == pages.nbytes == 64 * bytes_per_token(config, dtype)


def test_the_toy_by_hand() -> None:
    S, window = 2 * 64 * 48 * 4, 3 * 2 * (64 + 64 + 48) * 4
    assert fixed_bytes(TOY, "float32") == 7 * (S + window)
    assert bytes_per_token(TOY, "bfloat16") == 2 * (64 + 16)
    open_tile = 4 * 2 * (16 * 64 + 16 * (48 + 64) + 64)
    assert live_bytes(TOY, "float32", 1) == fixed_bytes(TOY, "float32") + 7 * open_tile
    assert live_bytes(TOY, "float32", 64) == live_bytes(TOY, "float32", 16) == fixed_bytes(TOY, "float32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grid(tile=24), "tile 24 must be a multiple of 16"),
        (lambda: Grid(slab=4), "slab 4 must be a multiple of 4, and at least 8"),
        (lambda: KDAShape(4, 32, 0, 4), "value_dim is 0"),
        (lambda: KDAShape(4, 32, 32, 6), "num_value_heads is 6"),
        (lambda: KDAShape(4, 32, 32, 4, gate_lower_bound=1.0), "gate_lower_bound is 1.0"),
        (lambda: GQAShape(6, 4, 32, 32), "num_heads is 6"),
        (lambda: GQAShape(4, 4, 32, 32, rope_dim=48), "rope_dim is 48"),
        (lambda: HybridConfig((), **WIDTHS), "layer_kinds is empty"),
        (lambda: HybridConfig(("rnn",), **WIDTHS), "'rnn'; known kinds"),
        (lambda: HybridConfig(("kda",), **WIDTHS), "no kda shape"),
        (lambda: HybridConfig(("mla", "gqa"), **WIDTHS, mla=mla(2), gqa=GQA), "pages of two widths"),
        (lambda: HybridConfig(("mla",), **{**WIDTHS, "hidden_size": 0}, mla=mla(2)), "hidden_size is 0"),
        (lambda: HybridConfig(("sliding",), **WIDTHS, sliding=SlidingShape(3, 1, 48, 32, window=100)), "window 100"),
        (lambda: HybridConfig(("sliding",), **WIDTHS, sliding=SLIDING, grid=Grid(block=48)), "window 64"),
    ],
)
def test_shapes_that_cannot_be_exact_are_refused_by_name(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
