"""What each frame may do, as three tables: (state, frame) -> state. What is not here is a ProtocolError.

A *connection* greets, proves itself if a secret is set, and is then ready: both roles use one table. A *transfer* has
one table per role; S is the sender of the cache, R its receiver. Frames of an earlier transfer or attempt are dropped
before the tables are asked: they are late, which is no fault.

Steps that a side takes by itself are in sender.py and transfers.py. The sender offers (-> OFFERED), says DONE
(SENDING -> FINISHING) and aborts (-> ABORTING). The receiver accepts (OFFERED -> RECEIVING), has everything (COVERING
-> APPLYING), is resumed (RECEIVING, COVERING -> OFFERED), fails (-> QUARANTINE), and is over with a transfer (-> IDLE).
"""

from enum import Enum, auto
from typing import TypeVar

from prfaas_ref.transport.errors import ProtocolError
from prfaas_ref.transport.frames import FrameType as F


class Connection(Enum):
    GREETING = auto()  # no secret is set
    GREETING_SECURED = auto()
    PROVING = auto()  # HELLOs were exchanged, the peer's AUTH has not come
    READY = auto()
    CLOSED = auto()


class S(Enum):
    IDLE = auto()
    OFFERED = auto()
    SENDING = auto()
    FINISHING = auto()  # DONE is sent
    ABORTING = auto()  # ABORT is sent
    APPLIED = auto()  # success
    REFUSED = auto()
    FAILED = auto()
    ABORTED = auto()


class R(Enum):
    IDLE = auto()
    OFFERED = auto()  # our side is deciding
    RECEIVING = auto()
    COVERING = auto()  # DONE has come; chunks on other stripes may still be on their way
    APPLYING = auto()  # everything is in and agrees; our side is putting it to use
    QUARANTINE = auto()  # it has failed or ABORT has come; a write may still land


CONNECTION = {
    (Connection.GREETING, F.HELLO): Connection.READY,
    (Connection.GREETING_SECURED, F.HELLO): Connection.PROVING,
    (Connection.PROVING, F.AUTH): Connection.READY,
    (Connection.GREETING, F.ERROR): Connection.CLOSED,
    (Connection.GREETING_SECURED, F.ERROR): Connection.CLOSED,
    (Connection.PROVING, F.ERROR): Connection.CLOSED,
    (Connection.READY, F.ERROR): Connection.CLOSED,
}

SENDER = {
    (S.OFFERED, F.ACCEPT): S.SENDING,
    (S.OFFERED, F.REJECT): S.REFUSED,
    (S.OFFERED, F.APPLIED): S.APPLIED,  # an earlier attempt was applied, and its APPLIED was lost
    (S.SENDING, F.RETRY): S.SENDING,
    (S.FINISHING, F.RETRY): S.FINISHING,
    (S.FINISHING, F.APPLIED): S.APPLIED,
    # What the receiver said before it saw our ABORT crosses it on the line.
    (S.ABORTING, F.ACCEPT): S.ABORTING,
    (S.ABORTING, F.REJECT): S.ABORTING,
    (S.ABORTING, F.RETRY): S.ABORTING,
    (S.ABORTING, F.APPLIED): S.ABORTING,
    (S.ABORTING, F.ERROR): S.ABORTING,
    (S.ABORTING, F.ABORTED): S.ABORTED,
    (S.OFFERED, F.ERROR): S.FAILED,
    (S.SENDING, F.ERROR): S.FAILED,
    (S.FINISHING, F.ERROR): S.FAILED,
} | {(state, F.PROGRESS): state for state in S}  # PROGRESS also answers PING, and lags behind on other stripes

RECEIVER = {
    (R.IDLE, F.OFFER): R.OFFERED,
    (R.RECEIVING, F.DATA): R.RECEIVING,
    (R.RECEIVING, F.LAYER_END): R.RECEIVING,
    (R.RECEIVING, F.DONE): R.COVERING,
    (R.COVERING, F.DATA): R.COVERING,
    (R.APPLYING, F.DATA): R.APPLYING,  # a duplicate: dropped
    (R.OFFERED, F.ABORT): R.QUARANTINE,
    (R.RECEIVING, F.ABORT): R.QUARANTINE,
    (R.COVERING, F.ABORT): R.QUARANTINE,
    (R.APPLYING, F.ABORT): R.APPLYING,  # too late to undo; answered when the applying ends
    # Other stripes have not heard of the ABORT, or the sender not of our ERROR.
    (R.QUARANTINE, F.DATA): R.QUARANTINE,
    (R.QUARANTINE, F.LAYER_END): R.QUARANTINE,
    (R.QUARANTINE, F.DONE): R.QUARANTINE,
    (R.QUARANTINE, F.ABORT): R.QUARANTINE,
} | {(state, F.PING): state for state in R}


State = TypeVar("State", Connection, S, R)


def step(table: dict[tuple[State, F], State], state: State, frame: F) -> State:
    """The next state. Raises ProtocolError naming both when the table has none."""
    try:
        return table[state, frame]
    except KeyError:
        raise ProtocolError(f"{frame.name} is not allowed in state {state.name}") from None
