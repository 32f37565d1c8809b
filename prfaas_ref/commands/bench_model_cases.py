"""The contenders of `prfaas bench model`: which computations are timed against which."""

from collections.abc import Callable
from copy import deepcopy
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from prfaas_ref.errors import UserError
from prfaas_ref.model import unconstrained
from prfaas_ref.model.checkpoint import save_model
from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.generation import prefill
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.kda import TILES_AT_ONCE
from prfaas_ref.model.kinds import KDAShape, MLAShape
from prfaas_ref.model.state import LayerState
from prfaas_ref.model.tile import empty_tiles, tile_rows
from prfaas_ref.model.weights import random_weights

Contenders = dict[str, Callable[[], object]]
Measure = Callable[[Contenders], dict[str, float]]

T, H, K = 2048, 4, 64
DECODE_STEPS, CONTEXT = 32, 64
MODEL = HybridConfig(
    layer_kinds=("kda",) * 7 + ("mla",),
    vocab_size=257,
    hidden_size=256,
    intermediate_size=512,
    kda=KDAShape(num_heads=4, key_dim=64, value_dim=64, num_value_heads=4),
    mla=MLAShape(num_heads=4, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64),
)


def measure_all(measure: Measure, peers: bool) -> dict[str, Any]:
    """Everything the command prints. Raises UserError where transformers is wanted and missing."""
    theirs = load_peers() if peers else None
    ours = HybridModel(MODEL, random_weights(MODEL, torch.float32, seed=0))
    result = {"kda": kda(measure, theirs), "model": whole_model(measure, ours, theirs)}
    with torch.inference_mode():
        tokens = torch.randint(0, MODEL.vocab_size, (T,))
        seconds = measure(
            {"exact": lambda: prefill_once(ours, tokens), "usual": lambda: unconstrained.prefill(ours, tokens)}
        )
        result["canonical_ratio"] = seconds["usual"] / seconds["exact"]
        recurrent = unconstrained.with_recurrent_decode(ours)
        result["exact_decode_cost"] = {}
        for batch in (1, 8, 32):
            seconds = measure({"exact": decoding(ours, batch), "plain": decoding(recurrent, batch)})
            result["exact_decode_cost"][str(batch)] = seconds["exact"] / seconds["plain"]
    return result


def load_peers() -> Any:
    try:
        import transformers
        from transformers.models.kimi_linear import modeling_kimi_linear
        from transformers.models.qwen3_next import modeling_qwen3_next
    except ImportError as error:
        raise UserError(f"--peers needs transformers: pip install -c constraints.txt '.[oracle]' ({error})") from error
    transformers.logging.set_verbosity_error()
    return transformers, modeling_kimi_linear, modeling_qwen3_next


def kda(measure: Measure, theirs: Any) -> dict[str, Any]:
    """KDA alone on the same random inputs."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, x = (torch.randn(1, T, H, K, generator=generator) for _ in range(4))
    q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
    g, beta = -0.3 * torch.sigmoid(x), torch.rand(1, T, H, generator=generator)
    contenders: Contenders = {"ours": lambda: kda_prefill(q[0] * K**-0.5, k[0], v[0], g[0].exp(), beta[0])}
    if theirs:
        _, kimi, qwen = theirs
        contenders |= {
            "hf_recurrent": lambda: kimi.recurrent_kimi_delta_attention(q, k, v, g, beta, None, True),
            "hf_chunk": lambda: kimi.chunk_kimi_delta_attention(q, k, v, g, beta, output_final_state=True),
            "hf_gated_delta_chunk": lambda: qwen.torch_chunk_gated_delta_rule(
                q, k, v, g[..., 0], beta, output_final_state=True
            ),
        }
    with torch.inference_mode():
        rate = {name: T / seconds for name, seconds in measure(contenders).items()}
    peers = {name: r for name, r in rate.items() if name != "ours"}
    return {"ours_tok_s": rate["ours"], "peers": peers, "ratio": {name: rate["ours"] / r for name, r in peers.items()}}


def kda_prefill(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor) -> Tensor:
    """All tiles of [T, H, ..], as many at once as the layer takes."""
    S, like = torch.zeros(H, K, K), LayerState(X=q.new_zeros(1, H, 16, K), UW=q.new_zeros(1, H, 16, 2 * K))
    like.P, outputs = q.new_ones(1, H, K), []
    for t in range(0, T, 16 * TILES_AT_ONCE):
        tiles = (x[t : t + 16 * TILES_AT_ONCE].unflatten(0, (-1, 16)).transpose(1, 2) for x in (q, k, v, a, beta))
        o, S = tile_rows(*tiles, S, empty_tiles(TILES_AT_ONCE, like), 0)
        outputs.append(o)
    return torch.cat(outputs)


def whole_model(measure: Measure, ours: HybridModel, theirs: Any) -> dict[str, Any]:
    """The same checkpoint in both: prefill of T tokens, and decode steps of a batch of 8."""
    tokens = torch.randint(0, MODEL.vocab_size, (T,))
    with torch.inference_mode():
        prefills: Contenders = {"ours": lambda: prefill_once(ours, tokens)}
        decodes: Contenders = {"ours": decoding(ours, 8)}
        if theirs:
            model = as_theirs(ours, theirs[0])
            prefills["hf"] = lambda: model(tokens[None], use_cache=True, logits_to_keep=1)
            decodes["hf"] = their_decoding(model, 8)
        return {
            "prefill": rates(measure(prefills), T),
            "decode_b8": rates(measure(decodes), 8 * DECODE_STEPS),
        }


def rates(seconds: dict[str, float], n_tokens: int) -> dict[str, float]:
    row = {f"{name}_tok_s": n_tokens / s for name, s in seconds.items()}
    return {**row, "ratio": seconds["hf"] / seconds["ours"]} if "hf" in seconds else row


def prefill_once(model: HybridModel, tokens: Tensor) -> Tensor:
    state, pages = model.new_state(), model.new_pages(T // 64)
    state.tables[0] = list(range(T // 64))
    return prefill(model, tokens.tolist(), state, pages)


def decoding(model: HybridModel, batch: int) -> Callable[[], object]:
    """DECODE_STEPS steps of a batch, each request after CONTEXT tokens; every call starts from there again."""
    n_pages = -(-(CONTEXT + DECODE_STEPS) // 64)
    state, pages = model.new_state(batch), model.new_pages(n_pages * batch)
    state.tables = [list(range(n_pages * i, n_pages * (i + 1))) for i in range(batch)]
    tokens = torch.randint(0, MODEL.vocab_size, (batch, 1))
    for _ in range(CONTEXT):
        model.forward(tokens, state, pages)

    def steps() -> None:
        running = state.select(range(batch))
        for _ in range(DECODE_STEPS):
            model.forward(tokens, running, pages)

    return steps


def as_theirs(model: HybridModel, transformers: Any) -> Any:
    """The same weights in transformers' model."""
    with TemporaryDirectory() as directory:
        save_model(model, directory)
        return transformers.KimiLinearForCausalLM.from_pretrained(directory).eval()


def their_decoding(model: Any, batch: int) -> Callable[[], object]:
    """The same steps there."""
    tokens = torch.randint(0, MODEL.vocab_size, (batch, 1))
    after_context = model(tokens.expand(-1, CONTEXT), use_cache=True).cache

    def steps() -> None:
        cache = deepcopy(after_context)
        for _ in range(DECODE_STEPS):
            model(tokens, cache=cache, use_cache=True)

    return steps
