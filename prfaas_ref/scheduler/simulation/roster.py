"""The simulated workers, and which of them may be given work: ACTIVE -> DRAINING -> CONVERTING -> ACTIVE, or DOWN.

Knows nothing of when or why. Every restart and every change of role opens a new incarnation with a fresh account, so
what was charged to the old one cannot touch the new one; a change of role also moves the epoch.
"""

from prfaas_ref.request import Route
from prfaas_ref.scheduler.fleet import Fleet, LinkView, Role, muster
from prfaas_ref.scheduler.ledger import LoadLedger
from prfaas_ref.scheduler.simulation.attempt import SimWorker
from prfaas_ref.scheduler.throughput import Counts


class Roster:
    """All workers of both clusters, in a fixed order."""

    def __init__(self, counts: Counts, ledger: LoadLedger, egress: LinkView, ingress: LinkView) -> None:
        self.ledger, self.egress, self.ingress = ledger, egress, ingress
        self.workers: list[SimWorker] = []
        n_prefill, n_decode = int(counts.pd_prefill), int(counts.pd_decode)
        for i in range(int(counts.prfaas)):
            self._add(f"prfaas-{i}", "prfaas", "prefill")
        for i in range(n_prefill + n_decode):
            self._add(f"pd-{i}", "pd", "prefill" if i < n_prefill else "decode")
        self.by_id = {worker.worker_id: worker for worker in self.workers}
        self.fleet = self._muster()

    def _add(self, worker_id: str, cluster: Route, role: Role) -> None:
        account = self.ledger.account(worker_id)
        self.workers.append(SimWorker(worker_id, cluster, role, load=account, number=len(self.workers)))

    def _muster(self) -> Fleet:
        return muster(self.workers, self.egress, self.ingress)

    def drain(self, worker: SimWorker, next_role: Role) -> None:
        """It gets nothing new, and finishes what it has."""
        worker.phase, worker.active, worker.next_role = "draining", False, next_role
        self.fleet = self._muster()

    def convert(self, worker: SimWorker) -> None:
        """It is empty and starts to change role."""
        assert worker.idle and worker.load.requests == 0, worker.worker_id
        worker.phase = "converting"

    def take_down(self, worker: SimWorker) -> None:
        worker.phase, worker.active = "down", False
        self.fleet = self._muster()

    def activate(self, worker: SimWorker, new_role: Role | None = None) -> None:
        """It is back, as a new incarnation; with `new_role` in a new epoch."""
        if new_role is not None:
            worker.role, worker.epoch = new_role, worker.epoch + 1
        worker.incarnation += 1
        worker.load = self.ledger.account(worker.worker_id, worker.incarnation)
        worker.phase, worker.active, worker.next_role = "active", True, None
        worker.matched_tokens = worker.kv_tokens = 0
        self.fleet = self._muster()

    def to_give(self, role: Role) -> SimWorker | None:
        """The least loaded active PD worker that could take on `role`; None when it is the last of its own."""
        givers = self.fleet.decode if role == "prefill" else self.fleet.prefill["pd"]
        if len(givers) < 2:
            return None
        return self.by_id[min(givers, key=lambda worker: worker.load.work_us).worker_id]

    def count(self, role: Role) -> int:
        """PD workers that are active in a role."""
        return len(self.fleet.decode if role == "decode" else self.fleet.prefill["pd"])

    def queue_depths(self) -> dict[str, int]:
        """Requests that wait, by stage: `prfaas` and `pd` prefill, and `decode`. Draining workers count too."""
        depths = {"prfaas": 0, "pd": 0, "decode": 0}
        for worker in self.workers:
            depths["decode" if worker.role == "decode" else worker.cluster] += len(worker.queue)
        return depths

    @property
    def someone_may_return(self) -> bool:
        return any(worker.phase != "active" for worker in self.workers)
