"""Keys name prefixes: the same in every process, different for everything that must not be shared."""

import hashlib
import os
import struct
import subprocess
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas_ref.cache.keys import Namespace, TokenBlocks, chain_keys


def test_the_chain_is_the_formula_of_the_design() -> None:
    namespace = Namespace("weights", 2)
    first = hashlib.sha256(namespace.root + struct.pack("<2I", 7, 2**32 - 1)).digest()
    second = hashlib.sha256(first + struct.pack("<2I", 0, 1)).digest()
    assert chain_keys(namespace, [7, 2**32 - 1, 0, 1, 5]) == [first, second]


def test_fields_are_tagged_so_that_no_value_reads_as_another() -> None:
    roots = {
        Namespace("f", 64).root,
        Namespace("f", 64, adapter="X").root,
        Namespace("f", 64, tenant="X").root,
        Namespace("f", 64, tenant="X", adapter="X").root,
        Namespace("f", 6, tenant="4").root,
        Namespace("g", 64).root,
        Namespace("f", 64, tenant="adapter").root,
    }
    assert len(roots) == 7


def test_keys_are_equal_in_every_process() -> None:
    program = "from prfaas_ref.cache.keys import *; print(chain_keys(Namespace('f', 3, 'a'), range(9))[-1].hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert seen == {chain_keys(Namespace("f", 3, "a"), range(9))[-1].hex()}


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=9), max_size=5), st.integers(1, 4))
def test_tokens_may_come_in_any_pieces(pieces: list[list[int]], block_size: int) -> None:
    grown = TokenBlocks(block_size)
    for piece in pieces:
        grown.extend(piece)
    tokens = [token for piece in pieces for token in piece]
    count = len(tokens) // block_size
    starts = range(0, count * block_size, block_size)
    assert grown.full == [struct.pack(f"<{block_size}I", *tokens[i : i + block_size]) for i in starts]
    assert len(grown) == len(tokens)


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(1, 4))
def test_a_byte_is_a_token_whatever_sequence_it_comes_in(tokens: list[int], block_size: int) -> None:
    full = TokenBlocks(block_size, tokens).full
    for same in (tuple(tokens), bytes(tokens), bytearray(tokens), array("I", tokens), iter(tokens)):
        assert TokenBlocks(block_size, same).full == full


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "a"])
def test_what_is_no_token_is_refused_and_adds_nothing(bad: object) -> None:
    blocks = TokenBlocks(2, [1])
    with pytest.raises(ValueError, match="token id"):
        blocks.extend([2, bad])  # type: ignore[list-item]
    assert len(blocks) == 1


def test_a_block_has_tokens() -> None:
    with pytest.raises(ValueError, match="block_size"):
        Namespace("f", 0)
