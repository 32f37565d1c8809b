"""Every bound of the protocol in one place: sizes before allocation, waits before patience ends."""

from dataclasses import dataclass

from prfaas_ref.units import GIB, KIB, MIB

MOST_STRIPES = 32  # of a session; they greet at once, so `unready_connections` must hold them


@dataclass(frozen=True)
class Limits:
    """What one endpoint grants its peers, whatever they ask for."""

    # before a peer has said who it is, and proved it
    hello_bytes: int = 64 * KIB
    handshake_s: float = 5.0
    unready_connections: int = MOST_STRIPES
    # afterwards
    connections: int = 256
    control_bytes: int = 4 * MIB
    smallest_chunk_bytes: int = 256
    largest_chunk_bytes: int = 16 * MIB
    reserved_bytes: int = 64 * GIB  # of all transfers under way, counted when one is accepted
    credit_bytes: int = 64 * MIB  # of one transfer, sent and not confirmed
    deadline_s: float = 600.0  # an offer that asks for a longer one is refused
    # patience
    idle_s: float = 5.0  # without a frame; a quiet sender pings
    bytes_per_s: float = 64 * KIB  # a frame that is under way moves at least this fast, after `grace_s`
    grace_s: float = 1.0
    resume_s: float = 5.0  # how long a transfer whose connections broke waits for its next attempt
    chunk_retries: int = 3

    def frame_s(self, n_bytes: int) -> float:
        """How long a frame of this size may take on the line."""
        return self.grace_s + n_bytes / self.bytes_per_s
