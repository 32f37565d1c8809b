"""What a policy may see: workers, the link, and what work costs. The simulator and the live deployment both build it.

Knows nothing of policies. A view is a snapshot for one decision: whoever calls the router fills `matched_tokens` and
`kv_tokens` for the request at hand (the global KVCache manager's answer) and points `load` at the ledger's account.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from prfaas_ref.request import Route
from prfaas_ref.scheduler.ledger import Account
from prfaas_ref.scheduler.profile import KvSize, Profile
from prfaas_ref.units import seconds_on_wire

Role = Literal["prefill", "decode"]


@dataclass(slots=True)
class WorkerView:
    """One worker as the router sees it. `incarnation` changes at every restart, `epoch` at every change of role."""

    worker_id: str
    cluster: Route
    role: Role
    active: bool = True
    incarnation: int = 0
    epoch: int = 0
    matched_tokens: int = 0  # usable prefix of this request here: full-attention KV and recurrent state
    kv_tokens: int = 0  # prefix of this request whose KV alone is here, so need not be sent again
    load: Account = field(default_factory=Account)


@dataclass(slots=True)
class LinkView:
    """One direction of the inter-cluster link as measured: no policy sees the true capacity."""

    bits_per_s: float = inf
    utilization: float = 0.0
    rtt_s: float = 0.0
    load: Account = field(default_factory=Account)

    def seconds(self, n_bytes: float) -> float:
        """Estimated seconds until `n_bytes` more have crossed, behind what is already charged. Infinite when down."""
        if self.bits_per_s <= 0:
            return inf
        return seconds_on_wire(self.load.n_bytes + n_bytes, self.bits_per_s) + self.rtt_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Estimates every policy shares: T_prefill per cluster, S_kv, and T_decode / BS.

    The last is a decode worker's seconds per token of one request when its batch is full.
    """

    prefill: Mapping[Route, Profile]
    kv: KvSize
    decode_s_per_token: float = 0.0


@dataclass(slots=True)
class Fleet:
    """The active workers, by what they may be asked for, and both directions of the link."""

    prefill: dict[Route, list[WorkerView]]
    decode: list[WorkerView]
    egress: LinkView  # PrfaaS to PD
    ingress: LinkView  # PD to PrfaaS


def muster(workers: Iterable[WorkerView], egress: LinkView, ingress: LinkView | None = None) -> Fleet:
    """Sort the active workers. An inactive one (starting, draining, converting, dead) is not in the result at all."""
    prfaas: list[WorkerView] = []
    pd: list[WorkerView] = []
    decode: list[WorkerView] = []
    for worker in workers:
        if worker.active:
            if worker.role == "decode":
                decode.append(worker)
            else:
                (prfaas if worker.cluster == "prfaas" else pd).append(worker)
    return Fleet({"prfaas": prfaas, "pd": pd}, decode, egress, ingress or egress)
