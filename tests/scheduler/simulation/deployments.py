"""Small deployments for the simulator's tests, in round numbers."""

from prfaas_ref.request import Request
from prfaas_ref.scheduler.lengths import ObservedLengths
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, PrefillProfile
from prfaas_ref.scheduler.router import Fixed
from prfaas_ref.scheduler.simulation import SimulationConfig
from prfaas_ref.scheduler.throughput import Counts, System

SYSTEM = System(
    PrefillProfile(0.0, 1e-3),  # 1 ms a token remotely
    PrefillProfile(0.0, 2e-3),  # 2 ms locally
    DecodeProfile(batch_max=4, step_s=0.01),
    KvSize(1000.0, 1e6),
    link_bits_per_s=8e8,
    lengths=ObservedLengths([1000]),
    output_tokens=100,
)


def config(counts=(1, 1, 1), policy=None, system=SYSTEM, **others):
    return SimulationConfig(system, Counts(*counts), policy or Fixed("pd"), **others)


def request(number, arrival_s, prompt=1000, output=100, hash_ids=()):
    return Request(f"r{number}", arrival_s, prompt, output, hash_ids=hash_ids)


def rows(result):
    """Outcomes by request id."""
    return {row.request_id: row for row in result.outcomes.rows()}
