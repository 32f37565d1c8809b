"""What must be equal for two processes to promise equal bytes, and a probe that shows whether they keep the promise.

Layout fields decide what the bytes mean, so a difference always refuses. Numeric fields (build, CPU, probe) decide
which bits come out; a difference refuses unless the user admits inexact results, and never shares a cache key. An equal
probe is evidence, not proof.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from prfaas_ref.model.generation import logits_bytes
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.state import HybridState
from prfaas_ref.model.weights import weights_digest

VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")


class ProbeFailed(RuntimeError):
    """On this machine prefill and decode give different bytes: the exactness contract does not hold here."""


@dataclass(frozen=True)
class Fingerprint:
    """layout: fields that always refuse. numeric: fields that refuse by default. digest: sha256 over both."""

    layout: dict[str, str]
    numeric: dict[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def fingerprint(model: HybridModel) -> Fingerprint:
    """Take this process's fingerprint with `model`. Raises ProbeFailed where prefill and decode disagree."""
    layout = {
        "config": json.dumps(asdict(model.config), sort_keys=True),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights_digest(model.weights),
    }
    numeric = {
        "torch": torch.__version__,
        "build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        **{name: os.environ.get(name, "") for name in VARIABLES},
        "probe": probe(model),
    }
    return Fingerprint(layout, numeric)


def cpu_model() -> str:
    """The CPU's family and model as Linux gives them, else empty. (Virtual machines often hide the name.)"""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = dict((part.strip() for part in line.split(":", 1)) for line in reversed(lines) if ":" in line)
    return " / ".join(fields.get(name, "") for name in ("model name", "cpu family", "model", "stepping"))


def probe(model: HybridModel) -> str:
    """Digest of one block's logits by prefill, after checking that decode gives the same bytes at every position."""
    block = model.config.grid.block
    tokens = torch.arange(block, device=model.device)[None] * 7919 % model.config.vocab_size
    with torch.inference_mode():
        by_prefill = model.forward(tokens, *one_request(model), rows=range(block))[0]
        state, pages = one_request(model)
        digest = hashlib.sha256()
        for t in range(block):
            expected = logits_bytes(by_prefill[t])
            if logits_bytes(model.forward(tokens[:, t : t + 1], state, pages)[0, 0]) != expected:
                raise ProbeFailed(
                    f"prefill and decode differ at position {t}: on this machine the matrix products of torch "
                    f"{torch.__version__} depend on their row count, and exact hand-off is not possible"
                )
            digest.update(expected)
    return digest.hexdigest()


def one_request(model: HybridModel) -> tuple[HybridState, Tensor]:
    """A state and one page for it."""
    state = model.new_state()
    state.tables[0] = [0]
    return state, model.new_pages(1)
