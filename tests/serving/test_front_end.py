"""What the front end makes of a worker's samples of the link between the clusters."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from prfaas_ref.scheduler.fleet import LinkView
from prfaas_ref.serving.front_end import FrontEnd


def told(tmp_path: Path, *samples: tuple[str, float]) -> LinkView:
    """A link of 10 Mbit/s by its configuration, after these samples of (limited_by, goodput_bits_per_s)."""
    link = LinkView(1e7)
    front = FrontEnd([], Mock(), link, tmp_path)
    for limited_by, goodput in samples:
        front._on_link({"type": "link", "limited_by": limited_by, "goodput_bits_per_s": goodput})
    return link


@pytest.mark.parametrize("limited_by", ["rate", "network"])
def test_a_link_that_held_its_sender_back_showed_what_it_carries(limited_by: str, tmp_path: Path) -> None:
    link = told(tmp_path, (limited_by, 4e6))
    assert (link.bits_per_s, link.utilization) == (4e6, 1.0)


@pytest.mark.parametrize("limited_by", ["rate", "network"])
def test_what_is_on_its_way_and_not_confirmed_shows_nothing(limited_by: str, tmp_path: Path) -> None:
    """The first round trip of a hand-off: the link is busy, and no PROGRESS has come."""
    assert told(tmp_path, (limited_by, 0.0)) == LinkView(1e7)
    link = told(tmp_path, ("sender", 2e6), (limited_by, 0.0))
    assert (link.bits_per_s, link.utilization) == (1e7, 0.2)


@pytest.mark.parametrize("limited_by", ["sender", "receiver"])
@pytest.mark.parametrize(("goodput", "share"), [(0.0, 0.0), (2e6, 0.2), (3e7, 1.0)])
def test_a_link_that_waited_for_an_end_is_used_so_much(
    limited_by: str, goodput: float, share: float, tmp_path: Path
) -> None:
    link = told(tmp_path, (limited_by, goodput))
    assert (link.bits_per_s, link.utilization) == (1e7, share)
