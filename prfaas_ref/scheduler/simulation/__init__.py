"""A discrete-event simulator of a two-cluster deployment, at request granularity, in virtual time.

It drives the router, the control loops and the prefix cache index that a live deployment uses; what it models itself is
time: prefill seconds, decode steps, and a link that flows share. Paper section 4 computes with rates; this adds queues.
"""

from prfaas_ref.scheduler.simulation.config import Control, Estimates, Failure, SimulationConfig
from prfaas_ref.scheduler.simulation.engine import Result, simulate

__all__ = ["Control", "Estimates", "Failure", "Result", "SimulationConfig", "simulate"]
