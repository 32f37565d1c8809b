"""What the user of a receiver supplies: where a hand-off goes, and what to do when it is there or lost."""

import logging
from typing import Protocol

from prfaas_ref.transport.errors import ApplyFailed, TransportError
from prfaas_ref.transport.incoming import Destination, Incoming

logger = logging.getLogger(__name__)


class Handler(Protocol):
    """What a user of the Server supplies. Called from threads of the server, one call per transfer at a time."""

    def on_offer(self, incoming: Incoming) -> Destination:
        """Where it goes. Raise Refused(field, ours, theirs), or any other TransportError, to turn it down."""

    def on_complete(self, incoming: Incoming) -> None:
        """Every byte is in place and proved. Put it to use; the sender is told of success when this returns.

        Raise to tell it of failure instead; `on_closed` follows.
        """

    def on_closed(self, incoming: Incoming, error: TransportError) -> None:
        """The transfer failed after `on_offer` gave a destination, and no write to it can land any more: free it.

        Called exactly once for each destination whose `on_complete` did not return.
        """


def as_transport_error(error: Exception) -> TransportError:
    """What a handler raised, as the sender will see it. A mistake in the handler itself goes to the log as well."""
    if isinstance(error, TransportError):
        return error
    logger.error("a handler failed", exc_info=error)
    return ApplyFailed(f"{type(error).__name__}: {error}")
