"""What is printed, and what becomes of a command whose output nobody takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRFAAS = [sys.executable, "-m", "prfaas_ref"]
PRINTING = pytest.mark.parametrize("words", [["kv"], ["kv", "--help"], ["--help"], ["--version"], ["bench", "--help"]])


@PRINTING
def test_a_reader_that_goes_away_is_no_fault(words: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run([*PRFAAS, *words], stdout=writes, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
@PRINTING
def test_a_full_disk_is_told_in_a_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*PRFAAS, *words], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert done.stderr == b"prfaas: cannot write: No space left on device; make room, or write elsewhere\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    ("word", "names"), [("cache", {"replay"}), ("bench", {"model", "cache", "transport", "simulator"})]
)
def test_a_group_of_commands_lists_them(word: str, names: set[str], flag: str) -> None:
    done = subprocess.run([*PRFAAS, word, flag], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split(maxsplit=2) for line in done.stdout.split("commands:\n")[1].splitlines()]
    assert {(group, name) for group, name, _ in listed} == {(word, name) for name in names}
