"""A day whose traffic turns from long prompts with short answers to the opposite and back: re-allocation on and off."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np

from prfaas_ref.request import Request
from prfaas_ref.scheduler.experiments.case import Case, Row, latencies
from prfaas_ref.scheduler.lengths import LogNormalLengths
from prfaas_ref.scheduler.reallocator import Rules
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import configure

TITLE = "A day that swings from long inputs to long outputs"
NOTES = """\
Case study instances, 2.6 requests/s throughout, and a mix that swings once: prompts of exp(N(mu, 1)) tokens, mu from
10.4 to 9.2 and back, and answers from 300 to 1600 tokens and back. `nothing` keeps the split and the threshold planned
for the middle; `threshold` searches t anew every 60 s on the last 2000 prompts; `threshold and roles` also lets the
re-allocator convert workers (two windows of 60 s, 300 s dwell, 30 s to convert). SLO: TTFT within 10 s, seed 3. The
rules were fixed on the `tuned` day; the `held out` day jumps instead of swinging."""
ADAPTS = ("nothing", "threshold", "threshold and roles")
SEED, SLO_TTFT_S, RATE_PER_S = 3, 10.0, 2.6


@dataclass(frozen=True)
class Day:
    """mu and output tokens swing between their ends; `jumps` makes the swing a square wave."""

    name: str
    held_out: bool
    jumps: bool
    mu: tuple[float, float] = (10.4, 9.2)
    output_tokens: tuple[int, int] = (300, 1600)

    def phase(self, share: float) -> float:
        """0 at the long-input end, 1 at the long-output end, at `share` of the day."""
        swing = (1 - cos(2 * pi * share)) / 2
        return float(swing > 0.5) if self.jumps else swing

    def requests(self, n: int, rate_per_s: float, rng: np.random.Generator) -> Iterator[Request]:
        gaps = rng.exponential(1 / rate_per_s, n).cumsum().tolist()
        standard = LogNormalLengths(0.0, 1.0, 1e-9, 1e9)
        z = np.log(standard.quantiles(4096))
        for i, at_s in enumerate(gaps):
            phase = self.phase(i / n)
            mu = self.mu[0] + (self.mu[1] - self.mu[0]) * phase
            output = self.output_tokens[0] + (self.output_tokens[1] - self.output_tokens[0]) * phase
            tokens = int(np.clip(np.exp(mu + z[rng.integers(4096)]), 128, 131072))
            yield Request(f"r{i}", at_s, tokens, round(output))


DAYS = (Day("slow swing", False, False), Day("two jumps", True, True))


def cases(n: int) -> list[Case]:
    """Both days under each degree of adaptation, `n` requests each."""
    return [
        Case({"": "held out" if day.held_out else "tuned", "day": day.name, "adapts": adapts}, _run(day, adapts, n))
        for day in DAYS
        for adapts in ADAPTS
    ]


def _run(day: Day, adapts: str, n: int) -> Any:
    def run() -> Row:
        middle = f"mu = {(day.mu[0] + day.mu[1]) / 2}", f"output_tokens = {sum(day.output_tokens) // 2}"
        text = EXAMPLE.replace("mu = 9.90", middle[0]).replace("output_tokens = 1024", middle[1])
        setup = configure(parse_scenario(text, Path()), "prfaas-pd", "static", rate_per_s=RATE_PER_S, seed=SEED)
        rules = Rules() if adapts == "threshold and roles" else None
        control = replace(setup.config.control, rules=rules, replan=adapts != "nothing")
        arrivals = day.requests(n, RATE_PER_S, np.random.default_rng(SEED))
        result = simulate(replace(setup.config, control=control), arrivals)
        found = summarise(result, SLO_TTFT_S)
        return {
            **latencies(found),
            "queue PD prefill": found["queue_depth_pd_prefill"],
            "queue decode": found["queue_depth_pd_decode"],
            "N_p at the start": int(setup.plan.counts.pd_prefill),
            "conversions": found["role_conversions"],
        }

    return run
