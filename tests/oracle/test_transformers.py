"""Against transformers' kimi_linear, code that we did not write: checkpoints it saves load here and mean the same.

Logits within 1e-4 after prompts of 1 to 200 tokens and in continued decoding, states too; our checkpoints load there.
Skipped where transformers is not installed (the extra `oracle`), but in CI that is a failure.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

if not os.environ.get("CI"):
    pytest.importorskip("transformers")
from transformers import KimiLinearConfig, KimiLinearForCausalLM
from transformers.models.kimi_linear import modeling_kimi_linear as theirs

from prfaas_ref.model import current_state, first_logits, load_model, save_model
from prfaas_ref.model.config import HybridConfig, MoE
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.kinds import KDAShape, MLAShape
from prfaas_ref.model.recurrence import kda_recurrence
from prfaas_ref.model.weights import random_weights
from tests.model.shapes import request
from tests.model.test_tile import by_tiles, empty_state

VOCAB = 97
LENGTHS = (1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 100, 128, 199, 200)


@dataclass(frozen=True)
class Case:
    kda: int
    full: int
    heads: int
    experts: int = 0
    q_lora_rank: int | None = None


CASES = {
    "3:1 dense, 1 head": Case(3, 1, 1),
    "3:1 experts, 3 heads": Case(3, 1, 3, experts=6),
    "7:1 experts, 4 heads": Case(7, 1, 4, experts=4),
    "7:1 dense, 4 heads, low-rank q": Case(7, 1, 4, q_lora_rank=32),
}


def their_model(case: Case) -> KimiLinearForCausalLM:
    """A tiny random model with everything that is usually zero or one made random: norms, selection bias."""
    n = case.kda + case.full
    config = KimiLinearConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=48,
        num_hidden_layers=n,
        num_attention_heads=case.heads,
        num_key_value_heads=case.heads,
        kv_lora_rank=48,
        q_lora_rank=case.q_lora_rank,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=32,
        num_experts_per_tok=2,
        num_local_experts=case.experts or 2,
        mlp_layer_types=["sparse" if case.experts and i else "dense" for i in range(n)],
        linear_attn_config={
            "kda_layers": list(range(1, case.kda + 1)),
            "full_attn_layers": list(range(case.kda + 1, n + 1)),
            "head_dim": 32,
            "num_heads": case.heads,
            "short_conv_kernel_size": 4,
        },
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = KimiLinearForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                tensor.copy_(1 + 0.2 * noise)
            elif name.endswith("e_score_correction_bias"):
                tensor.copy_(0.3 * noise)
            elif "embed" in name:
                tensor.copy_(noise)
            elif tensor.dim() > 1 and "A_log" not in name:
                tensor.copy_(noise * tensor.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, HybridModel]:
    """Their model, and ours loaded from the directory that they saved."""
    directory: Path = tmp_path_factory.mktemp("checkpoint")
    model = their_model(CASES[request.param])
    model.save_pretrained(directory)
    return model, load_model(directory)


def ids(n: int) -> Tensor:
    return torch.randint(0, VOCAB, (1, n), generator=torch.Generator().manual_seed(n))


def test_logits_after_prompts_of_1_to_200_tokens(pair: tuple) -> None:
    their, our = pair
    with torch.inference_mode():
        for n in LENGTHS:
            expected = their(ids(n)).logits[0, -1]
            torch.testing.assert_close(first_logits(our, ids(n)[0].tolist()), expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.1


def test_logits_at_every_position(pair: tuple) -> None:
    their, our = pair
    with torch.inference_mode():
        expected = their(ids(200)).logits[0]
        logits = our.forward(ids(200), *request(our, 200), rows=range(200))[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_continued_decoding_and_states(pair: tuple) -> None:
    """After 70 tokens by prefill and 20 by decode, in both: logits at each step, and every layer's state at the end."""
    their, our = pair
    tokens = ids(90)
    with torch.inference_mode():
        state, pages = request(our, 90)
        our.forward(tokens[:, :70], state, pages)
        cache = their(tokens[:, :70], use_cache=True).cache
        for t in range(70, 90):
            logits = our.forward(tokens[:, t : t + 1], state, pages)[0, 0]
            output = their(tokens[:, t : t + 1], cache=cache, use_cache=True)
            torch.testing.assert_close(logits, output.logits[0, 0], atol=1e-4, rtol=0)
        for i, layer in state.layers.items():
            expected = cache.get_recurrent_state(i, state_idx=0)
            torch.testing.assert_close(current_state(layer), expected, atol=1e-4, rtol=0)
            conv = cache.get_conv_state(i, state_idx=0)[:, :, -3:].transpose(1, 2)
            torch.testing.assert_close(layer.window, conv, atol=1e-4, rtol=0)


@pytest.mark.parametrize("moe", [None, MoE((1, 2), 4, 2, 1, 48, 2.0)])
def test_a_checkpoint_of_ours_loads_there(moe: MoE | None, tmp_path: Path) -> None:
    config = HybridConfig(
        ("kda", "mla", "kda"),
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        kda=KDAShape(3, 32, 32, 3),
        mla=MLAShape(3, 48, 16, 16, 32),
        moe=moe,
    )
    ours = HybridModel(config, random_weights(config, torch.float32, seed=3))
    save_model(ours, tmp_path)
    their = KimiLinearForCausalLM.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        expected = their(ids(40)).logits[0, -1]
    torch.testing.assert_close(first_logits(ours, ids(40)[0].tolist()), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("decay", [0.0, 0.05, 1.0])
def test_kda_functions_agree_with_theirs_and_with_the_float64_recurrence(decay: float) -> None:
    g = torch.Generator().manual_seed(0)
    T, H, K, V = 130, 3, 32, 48
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, H, K, generator=g), dim=-1) for _ in range(2))
    v, S = torch.randn(1, T, H, V, generator=g), 0.3 * torch.randn(1, H, K, V, generator=g)
    gate, beta = -decay * torch.rand(1, T, H, K, generator=g), torch.rand(1, T, H, generator=g)
    o, S_end = kda_recurrence(q * K**-0.5, k, v, gate, beta, S)
    state = empty_state(S[0])
    with torch.inference_mode():
        our_o = by_tiles(*(x[0] for x in (q * K**-0.5, k, v, gate.exp(), beta)), state)
    torch.testing.assert_close(our_o[None].double(), o, atol=2e-6, rtol=0)
    torch.testing.assert_close(current_state(state).double(), S_end, atol=2e-6, rtol=0)
    for function in (theirs.recurrent_kimi_delta_attention, theirs.chunk_kimi_delta_attention):
        their_o, their_S = function(q, k, v, g=gate, beta=beta, initial_state=S, output_final_state=True)
        torch.testing.assert_close(our_o[None], their_o, atol=2e-5, rtol=0)
        torch.testing.assert_close(current_state(state), their_S, atol=2e-5, rtol=0)
