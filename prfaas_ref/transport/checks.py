"""Running checksums of 32 bits: one per chunk, folded over the bytes while they are still in the processor's cache.

`crc32` is zlib's; `xxh3` (the low half of its 64 bits) needs the `fast` extra; `none` is for measuring what they cost.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from importlib.util import find_spec
from typing import Protocol

_HAS_XXHASH = find_spec("xxhash") is not None  # the `fast` extra


class Check(IntEnum):
    """The checksum of a payload, as two bits of the header's flags."""

    NONE = 0
    CRC32 = 1
    XXH3 = 2


class Running(Protocol):
    def update(self, view: memoryview, /) -> None: ...
    def value(self) -> int: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, view: memoryview) -> None:
        self._value = zlib.crc32(view, self._value)

    def value(self) -> int:
        return self._value


class _Xxh3:
    def __init__(self) -> None:
        from xxhash import xxh3_64

        self._hash = xxh3_64()
        self.update: Callable[[memoryview], None] = self._hash.update

    def value(self) -> int:
        return int(self._hash.intdigest()) & 0xFFFFFFFF


class _Unchecked:
    def update(self, view: memoryview) -> None:
        pass

    def value(self) -> int:
        return 0


_KINDS: dict[Check, Callable[[], Running]] = {Check.NONE: _Unchecked, Check.CRC32: _Crc32, Check.XXH3: _Xxh3}


def supported() -> tuple[Check, ...]:
    """What this process offers its peers, best first. `Check.NONE` is never among them: it must be asked for."""
    return (Check.XXH3, Check.CRC32) if _HAS_XXHASH else (Check.CRC32,)


def running(check: Check) -> Running:
    """A fresh checksum of this kind."""
    return _KINDS[check]()


def checksum(check: Check, views: list[memoryview]) -> int:
    """The checksum of these views read one after another."""
    state = running(check)
    for view in views:
        state.update(view)
    return state.value()
