from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, MeasuredProfile, PrefillProfile, fit_quadratic


def test_a_cached_prefix_is_read_but_not_computed():
    profile = PrefillProfile(0.5, 1e-4, 1e-10)
    whole, prefix = profile.seconds(50_000), profile.seconds(20_000)
    assert profile.seconds(30_000, cached_tokens=20_000) == pytest.approx(whole - prefix + 0.5)


def test_measured_points_are_joined_by_lines_and_continued():
    profile = MeasuredProfile(((1000, 1.0), (3000, 2.0), (4000, 4.0)))
    expected = {500: 0.75, 1000: 1.0, 2000: 1.5, 3500: 3.0, 6000: 8.0}
    assert {n: profile.seconds(n) for n in expected} == pytest.approx(expected)
    assert profile.seconds(1000, cached_tokens=3000) == pytest.approx(4.0 - 2.0 + 0.5)


@st.composite
def measured(draw):
    """Points in rising order, seconds never falling; the first line may well pass 0 seconds above 0 tokens."""
    tokens = sorted(draw(st.sets(st.integers(0, 200_000), min_size=2, max_size=6)))
    seconds = sorted(draw(st.lists(st.floats(1e-3, 100), min_size=len(tokens), max_size=len(tokens))))
    return tuple(zip(map(float, tokens), seconds, strict=True))


@given(measured(), st.lists(st.integers(1, 400_000), min_size=2, max_size=8), st.integers(0, 200_000))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_measured_seconds_are_positive_rise_and_pass_through_the_points(points, lengths, cached):
    profile = MeasuredProfile(points)
    for tokens, seconds in points:
        assert profile.seconds(tokens) == pytest.approx(seconds)
    for held in (0, cached):
        found = [profile.seconds(n, held) for n in sorted(lengths)]
        assert found[0] > 0
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(found))


def test_a_convex_profile_costs_a_share_of_its_first_point_below_it():
    profile = MeasuredProfile(((32_000, 1.84), (64_000, 4.0)))  # the line through both passes 0 s at 4741 tokens
    assert profile.seconds(4000) == pytest.approx(1.84 / 8, rel=1e-3)
    assert profile.seconds(1000, cached_tokens=32_000) == pytest.approx((4.0 - 1.84) / 32, rel=1e-2)


def test_a_quadratic_is_found_again():
    truth = PrefillProfile(0.4, 3e-5, 2e-10)
    found = fit_quadratic([(n, truth.seconds(n)) for n in (1000, 9000, 40_000, 120_000)])
    assert found.base_s == pytest.approx(0.4)
    assert found.per_token2_s == pytest.approx(2e-10)


@pytest.mark.parametrize(
    "points", [((1000, 1.0),), ((1000, 1.0), (1000, 2.0)), ((1000, 2.0), (2000, 1.0)), ((0, 0.0), (1, 1.0))]
)
def test_points_that_are_no_profile(points):
    with pytest.raises(ValueError, match="point"):
        MeasuredProfile(points)


def test_the_fixed_part_of_a_cache_travels_whole():
    size = KvSize(10.0, 500.0)
    assert size.bytes(100) == 1500
    assert size.bytes(100, held_tokens=90) == 600
    assert size.bytes(100, held_tokens=200) == 500


@pytest.mark.parametrize("make", [lambda: KvSize(-1), lambda: DecodeProfile(0, 1), lambda: PrefillProfile(0, 0)])
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError, match=r"need|negative"):
        make()
