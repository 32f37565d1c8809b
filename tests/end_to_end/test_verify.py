"""`prfaas verify` at its edges: hardly any time, a process that is killed, a device that is not there."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from prfaas_ref.commands import verify
from prfaas_ref.errors import UserError


@pytest.mark.parametrize(("seeds", "walks"), [(None, 1), ([4], 2)])
@pytest.mark.parametrize("processes", [1, 2])
def test_there_is_a_walk_however_little_time_there_is_and_one_of_each_case_for_a_seed(
    processes: int, seeds: list[int] | None, walks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[tuple[object, ...]] = []

    def one_walk(*job: object) -> dict[str, object]:
        walked.append(job)
        return {"checked": {"a": 1}, "mismatches": [], "digest": None}

    monkeypatch.setattr(verify, "one_walk", one_walk)
    monkeypatch.setattr(verify, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    report = verify.campaign([("toy", "float32"), ("toy", "bfloat16")], 0.0, processes, seeds, "cpu", quiet=True)
    assert report.walks == report.checked["a"] == len(walked) == walks


def test_a_killed_process_ends_it_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "ignore_interrupt", os.abort)  # which every process calls when it starts
    with pytest.raises(UserError, match=r"killed.*try --processes 1"):
        verify.campaign([("toy", "float32")], 60.0, 2, None, "cpu", quiet=True)


@pytest.mark.parametrize("name", ["nonsense", "cuda"])
def test_a_device_that_is_not_there_is_a_mistake(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(UserError, match=f"--device {name}: .*take cpu"):
        verify.require_device(name)
    verify.require_device("cpu")
