"""Traces through the real index, where snapshots are left, and the commands around both."""

import argparse
import json
from pathlib import Path
from types import ModuleType

import pytest

from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.replay import prompt_of, replay
from prfaas_ref.cache.snapshot_policy import SnapshotPolicy
from prfaas_ref.commands import bench_cache, cache_replay
from prfaas_ref.errors import UserError
from prfaas_ref.request import Request

LAST, BRANCH = SnapshotPolicy("last"), SnapshotPolicy("branch")


@pytest.mark.parametrize(
    ("policy", "prompt", "cached", "branch", "points"),
    [
        (LAST, 200, 0, 128, [192]),
        (LAST, 192, 0, 0, [128, 192]),  # a repeat can hit 128, a longer prompt 192
        (LAST, 63, 0, 0, []),
        (LAST, 200, 192, 192, []),
        (BRANCH, 200, 0, 64, [64, 192]),
        (BRANCH, 200, 64, 64, [192]),
        (SnapshotPolicy("every", 100), 500, 128, 128, [256, 384, 448]),
    ],
)
def test_where_state_is_kept(policy: SnapshotPolicy, prompt: int, cached: int, branch: int, points: list[int]) -> None:
    assert policy.in_prefill(64, prompt, cached, branch) == points


def test_policies_are_parsed_or_refused() -> None:
    assert SnapshotPolicy.parse("last") == LAST and SnapshotPolicy.parse("branch") == SnapshotPolicy()
    assert SnapshotPolicy.parse("every:4096") == SnapshotPolicy("every", 4096)
    for bad in ("", "every", "every:0", "every:-1", "all"):
        with pytest.raises(ValueError, match="snapshot policy"):
            SnapshotPolicy.parse(bad)
    assert LAST.at_end(64, 200) == 192


def test_a_shared_prefix_with_long_tails_of_their_own_is_hit_the_third_time() -> None:
    """Two prompts share 1500 tokens and have 700 of their own: without the branch point nothing would ever be hit."""
    shared = list(range(1500))
    prompts = [shared + [10_000 * n + i for i in range(700)] for n in range(1, 5)]
    hits = {}
    for policy in (LAST, BRANCH):
        index = HybridCacheIndex(None, 64, 5)
        hits[policy.kind] = replay(prompts, index, Namespace("m", 64), policy).hit_tokens
        index.check_invariants()
    assert hits == {"last": 0, "branch": 2 * (1500 // 64 * 64)}


def test_prompts_agree_where_their_hashes_agree() -> None:
    first = prompt_of(Request("a", 0.0, 1300, 1, hash_ids=(5, 6, 7)), 512)
    second = prompt_of(Request("b", 0.0, 1100, 1, hash_ids=(5, 6, 8)), 512)
    assert len(first) == 1300 and len(second) == 1100
    assert first[:1024] == second[:1024] and first[1024] != second[1024]
    assert prompt_of(Request("c", 0.0, 2, 1, token_ids=(3, 4)), 512) == (3, 4)


def write_trace(path: Path) -> Path:
    """Ten prompts of three blocks, the first two shared by all, and then the first again."""
    ids = [[0, 1, 10 + number] for number in range(10)] + [[0, 1, 10]]
    rows = [
        {"timestamp": 1000 * n, "input_length": 1400, "output_length": 3, "hash_ids": hash_ids}
        for n, hash_ids in enumerate(ids)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(module: ModuleType, *words: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(words))
    return status


@pytest.mark.parametrize("policy", ["last", "branch", "every:512"])
def test_replay_counts_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    """Every prompt's last block end is its second, 1024 tokens, which all share: all but the first hit it."""
    trace = write_trace(tmp_path / "trace.jsonl")
    assert call(cache_replay, str(trace), "--policy", policy, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] == 11 and report["tokens"] == 11 * 1400
    assert report["attention_hit_ratio"] == pytest.approx(10 * 1024 / (11 * 1400))
    assert report["hybrid_hit_ratio"] == pytest.approx(10 * 1024 / (11 * 1400))
    assert report["evictions"] == report["refused_requests"] == 0


def test_a_small_pool_evicts_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.jsonl")
    for evict in ("lru", "flop"):
        assert call(cache_replay, str(trace), "--block", "64", "--capacity-gb", "0.06", "--evict", evict, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report["hybrid_hit_ratio"] < report["attention_hit_ratio"] and report["evictions"] > 0
    assert call(cache_replay, str(trace), "--capacity-gb", "0.005", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refused_requests"] == 11


@pytest.mark.parametrize(
    "words",
    [
        ("missing.jsonl",),
        ("empty.jsonl",),
        ("trace.jsonl", "--policy", "sometimes"),
        ("trace.jsonl", "--capacity-gb", "0"),
        ("trace.jsonl", "--capacity-gb", "nan"),
        ("trace.jsonl", "--capacity-gb", "0.000001"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_trace(tmp_path / "trace.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError):
        call(cache_replay, str(tmp_path / words[0]), *words[1:])


def test_the_bench_reports_each_block_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(bench_cache, "--requests", "30", "--repeats", "1", "--no-growth", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    for size in ("16", "64"):
        found = report["block"][size]
        assert found["ratio"] == pytest.approx(found["tokens_s"] / found["ceiling_tokens_s"])
        assert 0 < found["hit_ratio"] < 1
    assert report["metadata_bytes"] < 800
    with pytest.raises(UserError):
        call(bench_cache, "--requests", "0")


def test_the_cost_of_a_request_does_not_grow_with_the_cache() -> None:
    small, large = (bench_cache.filled(size, 16, 32) for size in (4_000, 64_000))
    prompts = [[10**6 + number + i for i in range(512)] for number in range(300)]
    times = [min(bench_cache.time_index(prompts, index)[0] for _ in range(3)) for index in (small, large)]
    assert times[1] < 3 * times[0]  # a logarithm, and room for a busy machine
