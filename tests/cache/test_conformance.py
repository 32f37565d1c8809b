"""The kit on our own pool and on its example; and the kit itself, by faults it must find."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from prfaas_ref.cache.conformance.__main__ import examination
from prfaas_ref.cache.conformance.adapter import Admission, CacheAdapter, CacheConfig
from prfaas_ref.cache.conformance.attention_only import AttentionOnlyAdapter
from prfaas_ref.cache.conformance.books import Violation
from prfaas_ref.cache.conformance.examiner import Examiner
from prfaas_ref.cache.conformance.faults import read_faults, source
from prfaas_ref.cache.conformance.machine import examine
from prfaas_ref.cache.conformance.mutants import try_all
from prfaas_ref.cache.conformance.ours import OurAdapter


def test_our_pool_passes_ten_thousand_moves() -> None:
    assert examine(OurAdapter, stories=400).moves >= 10_000


def test_the_example_passes() -> None:
    assert examine(AttentionOnlyAdapter, stories=60).moves > 1_000


def test_every_mutant_is_killed_by_a_broken_promise() -> None:
    report = try_all()
    assert report["mutants"] == report["killed"] >= 25, {name: report["verdicts"][name] for name in report["survivors"]}


def test_the_faults_are_true_to_the_source() -> None:
    faults = read_faults()
    assert len({fault.story for fault in faults}) == len(faults)
    for fault in faults:
        assert fault.plant(source(fault.module)) != source(fault.module)


class Forgetful(AttentionOnlyAdapter):
    """A manager that never finds anything: safe, silent, and useless."""

    can_match = False

    def commit(self, request: Any, num_tokens: int) -> list[int]:  # noqa: ARG002
        return list(request.table)


def test_a_silent_miss_is_found() -> None:
    with pytest.raises(Violation, match="tokens is there; 0 were hit"):
        examine(Forgetful, stories=60)


def test_a_manager_that_cannot_hit_at_all_does_not_pass() -> None:
    class Vast(Forgetful):
        """Built with blocks that no prompt here fills."""

        def __init__(self, config: CacheConfig) -> None:
            super().__init__(replace(config, block_size=64))

    with pytest.raises(Violation, match="no prompt was ever hit"):
        examine(Vast, stories=20)


class Coarse(AttentionOnlyAdapter):
    """A manager that takes multiples of 16 only."""

    block_unit = 16

    def __init__(self, config: CacheConfig) -> None:
        assert config.block_size % 16 == 0
        super().__init__(config)


def test_a_manager_with_large_blocks_is_examined_as_thoroughly() -> None:
    assert examine(Coarse, stories=60).hits > 20

    class Overlong(Coarse):
        """Publishes a block before it is full."""

        def commit(self, request: Any, num_tokens: int) -> list[int]:
            return super().commit(request, num_tokens + self.config.block_size - 1)

    with pytest.raises(Violation):
        examine(Overlong, stories=60, shrink=False)


def test_a_manager_that_always_keeps_state_says_so_on_its_class() -> None:
    class Stateful(OurAdapter):
        has_state = True

    examined = examine(Stateful, stories=40)
    assert examined.calls == "allocate, commit, free, extend, match, stream, quotas, state, transfers"


def test_a_story_is_told_in_few_moves() -> None:
    class Crashing(AttentionOnlyAdapter):
        def evict_all(self) -> None:
            raise KeyError

    report = examination(Crashing, "crashing", stories=40)
    assert report["passed"] is False and str(report["broken"]).count("state.") <= 6


def test_a_crash_of_the_manager_is_not_taken_for_a_broken_promise() -> None:
    class Crashing(AttentionOnlyAdapter):
        def free(self, request: Any) -> None:
            raise KeyError(request)

    with pytest.raises(KeyError):
        examine(Crashing, stories=20, shrink=False)


def test_the_oracle_never_asks_the_manager() -> None:
    """A manager that claims a hit on nothing is caught by the first request."""

    class Liar(CacheAdapter):
        def allocate(self, tenant: str, tokens: list[int]) -> Admission:  # noqa: ARG002
            return Admission(None, list(range(len(tokens))), 2)

        def num_reclaimable(self) -> int:
            return self.config.num_blocks

    with pytest.raises(Violation, match="a hit of 2 tokens, where at most 0 were"):
        Examiner(Liar(CacheConfig(8, 1))).allocate("", [1, 2, 3])


def test_the_command_prints_json_alone() -> None:
    command = [sys.executable, "-m", "prfaas_ref.cache.conformance", "--stories", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["passed"] is True and not done.stderr
    bad = subprocess.run([*command, "--adapter", "nowhere:Nothing"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and "no adapter" in bad.stderr and "Traceback" not in bad.stderr
