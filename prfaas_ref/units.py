"""Units of this package. Every name that holds a quantity ends in its unit: `_s`, `_bytes`, `_bits_per_s`, `_tokens`.

The paper mixes decimal and binary prefixes; here K, M and G are always decimal and KIB, MIB and GIB always binary.
"""

K, M, G = 10**3, 10**6, 10**9
KIB, MIB, GIB = 2**10, 2**20, 2**30
BITS_PER_BYTE = 8


def mbps(megabits_per_s: float) -> float:
    """Megabits per second as bits per second."""
    return megabits_per_s * M


def gbps(gigabits_per_s: float) -> float:
    """Gigabits per second as bits per second."""
    return gigabits_per_s * G


def seconds_on_wire(n_bytes: float, bits_per_s: float) -> float:
    """How long `n_bytes` occupy a link of `bits_per_s`."""
    return n_bytes * BITS_PER_BYTE / bits_per_s
