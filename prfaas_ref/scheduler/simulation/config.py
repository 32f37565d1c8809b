"""What a simulation is told. Where the paper gives no value, the default is ours and says so."""

from dataclasses import dataclass, field
from math import inf

from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.planner import Slo
from prfaas_ref.scheduler.reallocator import Rules
from prfaas_ref.scheduler.retry import RetryBudget
from prfaas_ref.scheduler.router import CacheRule, Policy
from prfaas_ref.scheduler.threshold import Tuning
from prfaas_ref.scheduler.throughput import Counts, System
from prfaas_ref.scheduler.traces import HASH_BLOCK_TOKENS
from prfaas_ref.units import GIB


@dataclass(frozen=True)
class Estimates:
    """How the control loop sees the bandwidth: `lag_s` late and off by a log-normal factor of `noise` (sigma)."""

    lag_s: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class Control:
    """The two control loops. `tuning` switches the paper's threshold loop on, `rules` the re-allocator."""

    period_s: float = 1.0
    tuning: Tuning | None = None
    cache_rule: CacheRule = "scarce"
    estimates: Estimates = field(default_factory=Estimates)
    rules: Rules | None = None
    replan: bool = False  # search t anew at every window, on the lengths seen lately
    window_s: float = 60.0
    convert_s: float = 30.0


@dataclass(frozen=True)
class Failure:
    """A worker is lost at `at_s` with the requests it holds, and comes back idle after `down_s`.

    Its cluster's prefix cache survives: it belongs to the cluster, not to the worker.
    """

    at_s: float
    worker_id: str
    down_s: float


@dataclass(frozen=True)
class SimulationConfig:
    """One deployment under one policy. `until_s` cuts the run off; otherwise every request ends."""

    system: System
    counts: Counts
    policy: Policy
    slo: Slo = field(default_factory=Slo)  # kept whenever t is searched anew, where a threshold keeps it
    admission: Admission | None = None
    retries: RetryBudget = field(default_factory=RetryBudget)
    deadline_s: float = 3600.0  # for the hand-over, from arrival or from the loss of a worker; not the paper's
    cache_bytes: float = 512 * GIB  # of each cluster; not the paper's
    node_tokens: int = HASH_BLOCK_TOKENS
    layers: int = 57  # how finely the hand-off overlaps prefill
    control: Control = field(default_factory=Control)
    link_changes: tuple[tuple[float, float], ...] = ()  # (seconds, bits/s)
    failures: tuple[Failure, ...] = ()
    until_s: float = inf
    seed: int = 0
    keep_spans: bool = False
