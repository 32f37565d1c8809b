"""A worker that does not come up is told with its reason."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.serving import supervisor
from prfaas_ref.serving.supervisor import Supervisor, WorkerSpec


def refusal(tmp_path: Path, *options: str) -> str:
    async def start() -> None:
        specs = [WorkerSpec("w", "pd", "decode", options)]
        async with Supervisor(specs, Mock(), Mock(), tmp_path, restarts=0, stall_s=5.0):
            pass

    with pytest.raises(UserError) as error:
        asyncio.run(start())
    return str(error.value)


def test_one_that_is_too_slow_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_S", 0.0)
    assert refusal(tmp_path) == "worker w did not start: it was not up within 0 s; it wrote no log"


def test_a_mistake_that_it_names_is_told_whatever_python_writes_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a warning\nprfaas: raise --cache-mb\n\nFatal Python error: at exit\n  <no Python frame>\n")
    assert supervisor.last_words(log) == "raise --cache-mb"
    log.write_text("Traceback:\nKeyError: 7\n")
    assert supervisor.last_words(log) == "KeyError: 7"


def test_one_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    assert "within" not in (said := refusal(tmp_path, "--model", "no-such-model"))
    assert said.startswith("worker w did not start: ") and "neither a preset" in said
