"""The hand-off protocol (paper section 7): a hybrid model's cache crosses clusters, pipelined, striped and resumable.

The core is sans-IO: frames, messages, sender and receiver are bytes and time in, bytes and events out; the drivers are
thin. Tensors enter as memoryviews, so this package knows nothing of torch, and needs the standard library alone.
Read in this order: transitions, frames, messages, manifest, image, ledger, outgoing, sender, incoming, transfers,
receiver; then the drivers: client, transfer, stripes, server.
"""

from prfaas_ref.transport.checks import Check, supported
from prfaas_ref.transport.client import Client, Options
from prfaas_ref.transport.congestion import LinkReport
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.handler import Handler
from prfaas_ref.transport.identity import Identity
from prfaas_ref.transport.incoming import Destination, Incoming
from prfaas_ref.transport.limits import Limits
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.manifest import LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.server import Server
from prfaas_ref.transport.transfer import Report, Transfer

__all__ = [
    "Check",
    "Client",
    "Destination",
    "EmulatedLink",
    "Handler",
    "Identity",
    "Incoming",
    "LayerSpec",
    "Limits",
    "LinkReport",
    "Manifest",
    "Options",
    "Report",
    "Server",
    "TensorSpec",
    "Terms",
    "Transfer",
    "supported",
]
