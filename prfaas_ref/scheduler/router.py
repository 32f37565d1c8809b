"""The router: for each request, which cluster prefills it and which workers serve it. Paper section 3.4.

Knows nothing of processes, sockets or clocks: a policy is a pure function of views, and the same `Router` is driven by
the simulator in virtual time and by the live deployment in real time. It never names a worker that is not active, and
names each with its incarnation, so that a restarted worker refuses what was meant for its predecessor.

Policies: `Threshold` (the paper's rule on the uncached length), `Cheapest` (lowest estimated TTFT) and `Fixed` (always
or never offload, which no threshold says: at t = 0 a wholly cached prompt still stays).
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from prfaas_ref.request import Request, Route
from prfaas_ref.scheduler.admission import Admission, Bound
from prfaas_ref.scheduler.fleet import Costs, Fleet, WorkerView
from prfaas_ref.scheduler.ledger import LoadLedger
from prfaas_ref.scheduler.placement import (
    choose_decode,
    choose_prefill,
    longest_match,
    prefix_transfer_pays,
)

CacheRule = Literal["scarce", "abundant"]


class Choice(NamedTuple):
    """A policy's answer: the cluster, why, and whether the other cluster's longer prefix moves there first."""

    route: Route
    reason: str
    move_prefix: bool = False


class Policy(Protocol):
    """Chooses between two clusters that both have an active prefill worker. Pure."""

    def choose(self, request: Request, fleet: Fleet, costs: Costs, /) -> Choice: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every request is prefilled in one cluster: always offload (naive heterogeneous) or never (homogeneous)."""

    route: Route

    def choose(self, _request: Request, _fleet: Fleet, _costs: Costs, /) -> Choice:
        return Choice(self.route, "policy is always" if self.route == "prfaas" else "policy is never")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The paper's rule: an uncached length above t is offloaded, one of t or less stays.

    `scarce` judges the PD cluster's own cache. `abundant` judges the longer of the two caches and moves it when it
    lies in the other cluster and moving beats computing; when it does not pay, the request is judged as under `scarce`.
    """

    threshold_tokens: float
    cache_rule: CacheRule = "scarce"

    def __post_init__(self) -> None:
        if not self.threshold_tokens >= 0:
            raise ValueError(f"a threshold is a number of tokens, 0 or more, not {self.threshold_tokens}")

    def choose(self, request: Request, fleet: Fleet, costs: Costs, /) -> Choice:
        in_pd = longest_match(fleet.prefill["pd"])
        if self.cache_rule == "abundant":
            in_prfaas = longest_match(fleet.prefill["prfaas"])
            if in_pd != in_prfaas:
                return self._abundant(request, fleet, costs, in_pd, in_prfaas)
        return self._by_length(request.prompt_tokens - in_pd)

    def _by_length(self, uncached: int, move_prefix: bool = False) -> Choice:
        if uncached > self.threshold_tokens:
            return Choice("prfaas", "uncached > t", move_prefix)
        return Choice("pd", "uncached <= t", move_prefix)

    def _abundant(self, request: Request, fleet: Fleet, costs: Costs, in_pd: int, in_prfaas: int) -> Choice:
        total = request.prompt_tokens
        choice = self._by_length(total - max(in_pd, in_prfaas))
        here, there, link = in_pd, in_prfaas, fleet.egress
        if choice.route == "prfaas":
            here, there, link = in_prfaas, in_pd, fleet.ingress
        if there < here:
            return choice
        move = prefix_transfer_pays(total, here, there, costs.prefill[choice.route], costs.kv, link)
        return choice._replace(move_prefix=True) if move else self._by_length(total - in_pd)


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Lowest estimated TTFT; the request stays unless offloading is better by `margin` (a fraction)."""

    margin: float = 0.1

    def choose(self, request: Request, fleet: Fleet, costs: Costs, /) -> Choice:
        local, local_s = choose_prefill(fleet.prefill["pd"], request.prompt_tokens, costs.prefill["pd"])
        remote, remote_s = choose_prefill(fleet.prefill["prfaas"], request.prompt_tokens, costs.prefill["prfaas"])
        held = choose_decode(fleet.decode).kv_tokens
        send_s = fleet.egress.seconds(costs.kv.bytes(request.prompt_tokens, held))
        stay_s = local.load.queue_s + local_s
        go_s = max(remote.load.queue_s + remote_s, send_s)  # layers are sent while later ones are computed
        if go_s < stay_s * (1.0 - self.margin):
            return Choice("prfaas", "lower estimated TTFT")
        return Choice("pd", "no lower estimated TTFT elsewhere")


def policy_for(setting: str | float, cache_rule: CacheRule = "scarce") -> Policy:
    """The policy of a command-line word: `always`, `never`, `cost`, or a threshold in tokens. Raises ValueError."""
    words: dict[str | float, Policy] = {"always": Fixed("prfaas"), "never": Fixed("pd"), "cost": Cheapest()}
    if setting in words:
        return words[setting]
    try:
        return Threshold(float(setting), cache_rule)
    except ValueError:
        raise ValueError(f"a policy is always, never, cost or a threshold in tokens, not {setting!r}") from None


class Decision(NamedTuple):
    """Where a request goes. A worker is named by id and incarnation."""

    route: Route
    prefill_worker: str
    prefill_incarnation: int
    decode_worker: str
    decode_incarnation: int
    cached_tokens: int
    uncached_tokens: int
    prefill_s: float  # estimated, without queueing
    link_bytes: int  # estimated bytes of the hand-off between clusters; 0 for a local one
    prefix_tokens: int  # length of the prefix to move to the chosen cluster first; 0 for none
    prefix_bytes: int
    reason: str


class Refusal(NamedTuple):
    """The request cannot be placed now: nothing was charged. `no worker` may pass; the bounds are admission's."""

    kind: Literal["no worker"] | Bound
    reason: str


@dataclass(slots=True)
class Router:
    """A policy, the estimates it sees, and the ledger of what was handed out. `policy` may be replaced in flight."""

    policy: Policy
    costs: Costs
    ledger: LoadLedger = field(default_factory=LoadLedger)
    admission: Admission | None = None

    def route(self, request: Request, fleet: Fleet) -> Decision | Refusal:
        """Place a request and charge its work; a request routed anew must have been released before.

        The caller releases each stage once it is over: `prefix` (moved), `prefill`, `egress` (applied), `decode`.
        """
        if not fleet.decode:
            return Refusal("no worker", "no active decode worker")
        choice = self._choose(request, fleet)
        if choice is None:
            return Refusal("no worker", "no active prefill worker")
        return self._place(request, fleet, choice)

    def release(self, request_id: str, stage: str) -> bool:
        """Release one `stage`: "prefix", "prefill", "egress" or "decode". A second call does nothing, returns False."""
        return self.ledger.release(request_id, stage)

    def release_all(self, request_id: str) -> int:
        """Release every stage that a request still holds."""
        return self.ledger.release_all(request_id)

    def _choose(self, request: Request, fleet: Fleet) -> Choice | None:
        prefill = fleet.prefill
        if prefill["prfaas"] and prefill["pd"]:
            return self.policy.choose(request, fleet, self.costs)
        if prefill["prfaas"]:
            return Choice("prfaas", "no active PD prefill worker")
        if prefill["pd"]:
            return Choice("pd", "no active PrfaaS worker")
        return None

    def _place(self, request: Request, fleet: Fleet, choice: Choice) -> Decision | Refusal:
        route, total, costs = choice.route, request.prompt_tokens, self.costs
        worker, prefill_s = choose_prefill(fleet.prefill[route], total, costs.prefill[route])
        decode = choose_decode(fleet.decode)
        cached = min(worker.matched_tokens, total - 1)
        prefix_tokens = prefix_bytes = 0
        if choice.move_prefix:
            prefix_tokens = longest_match(fleet.prefill["pd" if route == "prfaas" else "prfaas"])
            prefix_bytes = int(costs.kv.bytes(prefix_tokens, cached))
            cached = min(prefix_tokens, total - 1)
            prefill_s = costs.prefill[route].seconds(total - cached, cached)
        link_bytes = int(costs.kv.bytes(total, decode.kv_tokens)) if route == "prfaas" else 0
        decision = Decision(
            route, worker.worker_id, worker.incarnation, decode.worker_id, decode.incarnation, cached, total - cached,
            prefill_s, link_bytes, prefix_tokens, prefix_bytes, choice.reason,
        )  # fmt: skip
        if self.admission is not None:
            bound = self._bound_exceeded(self.admission, decision, worker, fleet)
            if bound is not None:
                return Refusal(bound, f"admission: {bound}")
        self._charge(request, decision, worker, decode, fleet)
        return decision

    def _bound_exceeded(
        self, admission: Admission, decision: Decision, worker: WorkerView, fleet: Fleet
    ) -> Bound | None:
        ttft_s, link_bytes = worker.load.queue_s + decision.prefill_s, 0
        if decision.route == "prfaas":
            ttft_s = max(ttft_s, fleet.egress.seconds(decision.link_bytes))
            link_bytes = fleet.egress.load.n_bytes + decision.link_bytes
        return admission.exceeded(ttft_s, link_bytes)

    def _charge(
        self, request: Request, decision: Decision, worker: WorkerView, decode: WorkerView, fleet: Fleet
    ) -> None:
        ledger, request_id = self.ledger, request.request_id
        ledger.charge(request_id, "prefill", worker.load, decision.prefill_s)
        ledger.charge(request_id, "decode", decode.load, request.max_tokens * self.costs.decode_s_per_token)
        if decision.route == "prfaas":
            ledger.charge(request_id, "egress", fleet.egress.load, n_bytes=decision.link_bytes)
        if decision.prefix_bytes:
            link = fleet.ingress if decision.route == "prfaas" else fleet.egress
            ledger.charge(request_id, "prefix", link.load, n_bytes=decision.prefix_bytes)
