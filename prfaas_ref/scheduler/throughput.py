"""The paper's throughput model: equations 1 to 6 of section 3.2, each a line of code under its formula.

Knows nothing of queueing: every stage is a rate, and the slowest stage for its share of the traffic sets the whole.
Equations 7 and 8, the search, are planner.py.

    N_prfaas, N_p, N_d    instances that prefill remotely, prefill locally, decode
    B_out                 egress of the PrfaaS cluster, bit/s
    T(l), S(l)            T_prefill in seconds, S_kv in bytes; l_long, l_short, p from the threshold t (lengths.py)
"""

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prfaas_ref.scheduler.lengths import Lengths, Split
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, Profile
from prfaas_ref.units import BITS_PER_BYTE, seconds_on_wire

Term = Literal["prfaas compute", "link", "pd prefill", "pd decode"]


class Counts(NamedTuple):
    """Instances by what they do. Fractions are allowed, for sensitivities."""

    prfaas: float
    pd_prefill: float
    pd_decode: float


@dataclass(frozen=True)
class System:
    """Everything the model needs besides counts and a threshold. Hardware may differ between the two clusters."""

    prfaas_prefill: Profile
    pd_prefill: Profile
    decode: DecodeProfile
    kv: KvSize
    link_bits_per_s: float
    lengths: Lengths
    output_tokens: float
    rtt_s: float = 0.0

    def __post_init__(self) -> None:
        if self.link_bits_per_s <= 0 or self.output_tokens <= 0 or self.rtt_s < 0:
            raise ValueError("a system needs link_bits_per_s > 0, output_tokens > 0 and rtt_s >= 0")

    @property
    def decode_batch(self) -> int:
        """BS_max, or fewer when that many contexts of mean length do not fit an instance's memory. 0: not even one."""
        context_bytes = self.kv.bytes(self.lengths.mean + self.output_tokens)
        if self.decode.memory_bytes == inf or context_bytes == 0:
            return self.decode.batch_max
        return min(self.decode.batch_max, int(self.decode.memory_bytes / context_bytes))


@dataclass(frozen=True)
class Throughput:
    """Stage throughputs Theta in requests/s, and the system's Lambda_max with the term that binds it."""

    theta_prfaas: float
    theta_pd_prefill: float
    theta_pd_decode: float
    lambda_max: float
    binding: Term
    p_long: float
    l_long: float
    l_short: float


def kv_rate_bits_per_s(kv: KvSize, profile: Profile, tokens: float) -> float:
    """(1) Phi_kv(l) = S_kv(l) / T_prefill(l): how fast one busy instance emits KV."""
    return kv.bytes(tokens) * BITS_PER_BYTE / profile.seconds(tokens)


def egress_bits_per_s(gpus: int, gpus_per_instance: int, mean_kv_bytes: float, mean_prefill_s: float) -> float:
    """(2) B_out = N / P * E[S_kv] / E[T_prefill]: what a busy cluster emits."""
    return gpus / gpus_per_instance * mean_kv_bytes * BITS_PER_BYTE / mean_prefill_s


def throughput(system: System, counts: Counts, t: float) -> Throughput:
    """Equations 3 to 6 at threshold `t`. A stage that gets no traffic does not bind, and has no need of instances."""
    split = system.lengths.split(t)
    p, l_long, l_short = split
    # (3) Theta_prfaas = min(N_prfaas / T(l_long), B_out / S(l_long))
    compute = _prefill_rate(counts.prfaas, system.prfaas_prefill.seconds(l_long))
    link = _link_rate(system, l_long)
    theta_prfaas = min(compute, link)
    # (4) Theta_pd_p = N_p / T(l_short)
    theta_pd_prefill = _prefill_rate(counts.pd_prefill, system.pd_prefill.seconds(l_short))
    # (5) Theta_pd_d = N_d * BS_max / (T_decode * L_out)
    theta_pd_decode = counts.pd_decode * system.decode_batch / (system.decode.step_s * system.output_tokens)
    # (6) Lambda_max = min(Theta_prfaas / p, Theta_pd_p / (1 - p), Theta_pd_d)
    bounds: dict[Term, float] = {
        "prfaas compute": compute / p if p > 0 else inf,
        "link": link / p if p > 0 else inf,
        "pd prefill": theta_pd_prefill / (1 - p) if p < 1 else inf,
        "pd decode": theta_pd_decode,
    }
    binding = min(bounds, key=lambda term: bounds[term])
    return Throughput(theta_prfaas, theta_pd_prefill, theta_pd_decode, bounds[binding], binding, p, l_long, l_short)


def _prefill_rate(instances: float, seconds: float) -> float:
    """Requests/s that instances prefill; infinite when a prompt takes no time, as those of an empty trace may."""
    if seconds > 0:
        return instances / seconds
    return inf if instances else 0.0


def _link_rate(system: System, l_long: float) -> float:
    """Requests/s that the link carries; infinite when they weigh nothing."""
    bits = system.kv.bytes(l_long) * BITS_PER_BYTE
    return system.link_bits_per_s / bits if bits else inf


def egress_at(system: System, rate_per_s: float, split: Split) -> float:
    """Mean bits/s on the link when `rate_per_s` requests arrive: Lambda * p * S(l_long)."""
    return rate_per_s * split.p_long * system.kv.bytes(split.l_long) * BITS_PER_BYTE


class Ttft(NamedTuple):
    """Time to first token without any queueing, seconds."""

    mean_s: float
    p90_s: float


class TtftModel:
    """TTFT by threshold: T_prefill(L), plus S_kv(L) / B_out in series for what is offloaded, as the paper counts it."""

    def __init__(self, system: System, strata: int = 4001) -> None:
        self._lengths = system.lengths.quantiles(strata)
        wire_s = [seconds_on_wire(system.kv.bytes(n), system.link_bits_per_s) + system.rtt_s for n in self._lengths]
        self._remote = np.array([system.prfaas_prefill.seconds(n) for n in self._lengths]) + np.array(wire_s)
        self._local = np.array([system.pd_prefill.seconds(n) for n in self._lengths])

    def at(self, t: float) -> Ttft:
        seconds: NDArray[np.float64] = np.where(self._lengths > t, self._remote, self._local)
        return Ttft(float(seconds.mean()), float(np.quantile(seconds, 0.9)))
