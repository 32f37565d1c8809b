"""What the simulator keeps of a worker, and of one try to serve one request. State only; the stages change it."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from prfaas_ref.request import Request, RequestRecord
from prfaas_ref.scheduler.fleet import Role, WorkerView
from prfaas_ref.scheduler.router import Decision
from prfaas_ref.scheduler.simulation.caches import Lease
from prfaas_ref.scheduler.simulation.links import Flow

Phase = Literal["active", "draining", "converting", "down"]


@dataclass(slots=True, eq=False)
class Attempt:
    """One try. A lost one is marked not `alive`, and whatever was scheduled for it finds that out and does nothing."""

    number: int  # of the request, in order of arrival
    request: Request  # what this try computes: the prompt, and what earlier tries emitted
    record: RequestRecord
    decision: Decision
    prefill: "SimWorker"
    decode: "SimWorker"
    since_s: float  # when the request arrived, or its last attempt was lost
    alive: bool = True
    handed_over: bool = False  # the decode worker has it all
    started_s: float = 0.0  # of the stage it is in
    flow: Flow | None = None
    lease: Lease | None = None
    context_bytes: float = 0.0


@dataclass(slots=True, eq=False)
class SimWorker(WorkerView):
    """A worker with its queue and what it runs: one prefill, or a batch of decodes. `number` orders workers."""

    number: int = 0
    phase: Phase = "active"
    queue: deque[Attempt] = field(default_factory=deque)
    running: dict[int, Attempt] = field(default_factory=dict)
    sending: dict[int, Attempt] = field(default_factory=dict)  # prefilled here, not yet applied at the decode worker
    memory_bytes: float = 0.0  # of running decodes
    next_role: Role | None = None

    @property
    def idle(self) -> bool:
        return not (self.queue or self.running or self.sending)
