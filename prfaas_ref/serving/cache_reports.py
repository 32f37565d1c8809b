"""How the front end knows what every worker has cached: numbered reports over the control channel (paper, section 6).

A worker sends what its index stored and removed before it sends the event that others may act on; the front end's
GlobalKVCacheManager takes it in. All of it is a hint for routing: the worker's own match decides what is reused.
"""

from prfaas_ref.cache.report import CacheReport, WorkerName
from prfaas_ref.serving.control import ControlPort, Message
from prfaas_ref.serving.engine import Engine


def send_report(engine: Engine, control: ControlPort) -> None:
    """Tell what changed since the last report, if anything did. From one thread only, since reports are numbered."""
    with engine.lock:
        report = engine.reporter.take_report()
    if report.events:
        events = [(stored, is_state, key.hex()) for stored, is_state, key in report.events]
        numbers = {"first": report.first_sequence, "end": report.end_sequence}
        control.send({"type": "cache", "has_state": report.has_state, **numbers, "events": events})


def read_report(worker: WorkerName, incarnation: int, message: Message) -> CacheReport:
    """The report in a worker's message. Raises KeyError, TypeError or ValueError when it is none."""
    events = tuple((stored, is_state, bytes.fromhex(key)) for stored, is_state, key in message["events"])
    return CacheReport(
        worker, incarnation, message["has_state"], message["first"], message["end"], full=False, events=events
    )
