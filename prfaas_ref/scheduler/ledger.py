"""The load a router has handed out and not yet got back, per worker: charged at the decision, released once.

Knows nothing of policies or time. Amounts are integers (microseconds and bytes), so that the counters equal a recount
of the open charges exactly and are exactly zero when nothing is open. A restarted worker is a new incarnation with an
account of its own: a late release of the old one's work cannot make the new one look idle.
"""

from dataclasses import dataclass, field

from prfaas_ref.units import M


@dataclass(slots=True)
class Account:
    """What one incarnation of one worker (or one direction of a link) still owes."""

    work_us: int = 0
    n_bytes: int = 0
    requests: int = 0

    @property
    def queue_s(self) -> float:
        return self.work_us / M


@dataclass(slots=True, eq=False)
class Charge:
    """One decision's claim on one account."""

    account: Account
    work_us: int
    n_bytes: int
    open: bool = True

    def release(self) -> bool:
        """Give the claim back. Returns False, and does nothing, when it was given back before."""
        if not self.open:
            return False
        self.open = False
        account = self.account
        account.work_us -= self.work_us
        account.n_bytes -= self.n_bytes
        account.requests -= 1
        return True


@dataclass(slots=True)
class LoadLedger:
    """All accounts, and the open charges of every request."""

    _accounts: dict[tuple[str, int], Account] = field(default_factory=dict)
    _charges: dict[str, dict[str, Charge]] = field(default_factory=dict)

    def account(self, worker_id: str, incarnation: int = 0) -> Account:
        """The account of one incarnation, opened at first use."""
        key = (worker_id, incarnation)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account()
        return account

    def charge(self, request_id: str, stage: str, account: Account, work_s: float = 0.0, n_bytes: float = 0.0) -> None:
        """Charge one stage of a request. Raises RuntimeError when that stage is already charged."""
        stages = self._charges.setdefault(request_id, {})
        if stage in stages:
            raise RuntimeError(f"request {request_id} is already charged for {stage}")
        charge = stages[stage] = Charge(account, int(work_s * M), int(n_bytes))
        account.work_us += charge.work_us
        account.n_bytes += charge.n_bytes
        account.requests += 1

    def release(self, request_id: str, stage: str) -> bool:
        """Release one stage. Returns False when that stage is not (or no longer) charged."""
        stages = self._charges.get(request_id)
        charge = stages.pop(stage, None) if stages is not None else None
        if charge is None:
            return False
        if not stages:
            del self._charges[request_id]
        return charge.release()

    def release_all(self, request_id: str) -> int:
        """Release whatever a request still holds (it ended, failed or is routed anew). Returns how many stages."""
        return sum(charge.release() for charge in self._charges.pop(request_id, {}).values())

    def check_invariants(self) -> None:
        """Every counter equals a recount of the open charges. Raises AssertionError."""
        recount = {id(account): [0, 0, 0] for account in self._accounts.values()}
        for stages in self._charges.values():
            assert stages, "a request with no open charge must not be kept"
            for charge in stages.values():
                assert charge.open, "a released charge must not be kept"
                sums = recount[id(charge.account)]
                sums[0] += charge.work_us
                sums[1] += charge.n_bytes
                sums[2] += 1
        for key, account in self._accounts.items():
            assert [account.work_us, account.n_bytes, account.requests] == recount[id(account)], key
