"""`prfaas demo` and `prfaas generate` as a user runs them: separate processes and thread counts, equal digests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROUTES = {"prfaas", "pd"}


def prfaas(*words: str | Path, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prfaas_ref", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_request_is_exact_over_both_routes_with_hits(dtype: str) -> None:
    report = json.loads(prfaas("demo", "--json", "--dtype", dtype, "--requests", "9", "--tokens", "6").stdout)
    assert (report["total"], report["exact"]) == (9, 9)
    assert len({worker["pid"] for worker in report["workers"]}) == 3
    assert {(worker["cluster"], worker["role"]) for worker in report["workers"]} == {
        ("prfaas", "prefill"), ("pd", "prefill"), ("pd", "decode"),
    }  # fmt: skip
    requests = report["requests"]
    assert {request["route"] for request in requests} == ROUTES
    for request in requests:
        uncached = request["prompt_tokens"] - request["cached_tokens"]
        assert uncached >= 1
        assert (request["bytes_sent"] > 0) == (request["route"] == "prfaas")
        assert re.fullmatch("[0-9a-f]{64}", request["logits_sha256"])
        assert 1 <= len(request["tokens"]) <= 6
    told = [r["answer"].strip() == f"{r['told']}." for r in requests]
    assert sum(told) >= 5, "the decode process tells most of what only the prefill process has read"
    repeat, second_turn = requests[6], requests[7]
    assert repeat["cached_tokens"] == (repeat["prompt_tokens"] - 1) // 64 * 64
    assert repeat["tokens"] == requests[1]["tokens"]
    assert second_turn["cached_tokens"] > 0
    assert report["link"]["bytes"] == sum(request["bytes_sent"] for request in requests)


def test_a_file_gets_the_digest_that_generate_prints_in_another_process(tmp_path: Path) -> None:
    short, long = tmp_path / "short.txt", tmp_path / "long.bin"
    short.write_bytes(b"a short prompt \xff\x00")
    long.write_bytes(bytes(range(256)) * 9)
    report = json.loads(prfaas("demo", short, long, "--json", "--tokens", "20", "--threshold", "1000").stdout)
    assert [request["route"] for request in report["requests"]] == ["pd", "prfaas"]
    for request, file, threads in zip(report["requests"], (short, long), ("1", "2"), strict=True):
        alone = json.loads(prfaas("generate", file, "--tokens", "20", "--json", "--threads", threads).stdout)
        assert alone["logits_sha256"] == request["logits_sha256"]
        assert alone["tokens"] == request["tokens"]
        assert alone["prompt_tokens"] == request["prompt_tokens"] == file.stat().st_size
        assert alone["fingerprint"] == report["fingerprint"]


def test_a_question_may_hold_bytes_that_are_no_text(tmp_path: Path) -> None:
    document = tmp_path / "notes.txt"
    document.write_text("a note")
    question = b"what is \xff?"
    done = prfaas("ask", document, os.fsdecode(question), "--json", "--tokens", "1")
    result = json.loads(done.stdout)
    assert result["exact"] and result["prompt_tokens"] == len(b"a note\n" + question)


def test_the_table_ends_with_the_verdict(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("hello")
    done = prfaas("demo", prompt, "--tokens", "2", "--keep-logs", tmp_path / "logs")
    assert done.stdout.splitlines()[-1] == "1/1 byte-equal to a single process"
    assert done.stderr == ""
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "pd-decode-0.1.log", "pd-prefill-0.1.log", "prfaas-prefill-0.1.log",
    ]  # fmt: skip
