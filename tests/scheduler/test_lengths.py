from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.lengths import LogNormalLengths, ObservedLengths

PAPER = LogNormalLengths(9.90, 1.00, 128, 131072)


@pytest.mark.parametrize("t", [2000.0, 5000.0, 19_400.0, 100_000.0])
def test_closed_forms_agree_with_a_random_sample(t):
    rng = np.random.default_rng(1)
    draws = np.exp(rng.normal(9.90, 1.00, 2_000_000))
    draws = draws[(draws >= 128) & (draws <= 131072)]
    split = PAPER.split(t)
    assert split.p_long == pytest.approx((draws > t).mean(), abs=2e-3)
    assert split.l_long == pytest.approx(draws[draws > t].mean(), rel=5e-3)
    assert split.l_short == pytest.approx(draws[draws <= t].mean(), rel=5e-3)
    assert PAPER.mean == pytest.approx(draws.mean(), rel=5e-3)


def test_the_cut_at_both_ends():
    assert PAPER.split(0.0) == PAPER.split(128) == (1.0, pytest.approx(PAPER.mean), 128)
    assert PAPER.split(inf) == PAPER.split(131072) == (0.0, 131072, pytest.approx(PAPER.mean))


def test_quantiles_and_samples_follow_the_law():
    quantiles = PAPER.quantiles(4001)
    assert quantiles.mean() == pytest.approx(PAPER.mean, rel=1e-3)
    assert (quantiles > 19_400).mean() == pytest.approx(PAPER.split(19_400).p_long, abs=1e-3)
    sample = PAPER.sample(100_000, np.random.default_rng(2))
    assert sample.mean() == pytest.approx(PAPER.mean, rel=1e-2)
    assert sample.min() >= 128
    assert sample.max() <= 131072


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(0, 1100))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_trace_is_split_as_a_plain_count_says(lengths, t):
    split = ObservedLengths(lengths).split(t)
    long, short = [n for n in lengths if n > t], [n for n in lengths if n <= t]
    assert split.p_long == len(long) / len(lengths)
    assert split.l_long == pytest.approx(sum(long) / len(long) if long else max(lengths))
    assert split.l_short == pytest.approx(sum(short) / len(short) if short else min(lengths))


@given(st.floats(-5, 25), st.floats(0.01, 6), st.floats(1, 1e5), st.floats(1.5, 1e4), st.floats(0, 1e9))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_law_is_refused_or_its_lengths_lie_within_its_bounds(mu, sigma, low, ratio, t):
    try:
        law = LogNormalLengths(mu, sigma, low, low * ratio)
    except ValueError:
        return
    split = law.split(t)
    assert 0 <= split.p_long <= 1
    assert low * 0.999 <= law.mean <= low * ratio * 1.001
    assert np.isfinite(split).all()
    assert low * 0.999 <= law.quantiles(9).min() <= law.quantiles(9).max() <= low * ratio * 1.001


def test_an_empty_trace_is_finite():
    empty = ObservedLengths([])
    assert (empty.mean, empty.low, empty.high) == (0, 0, 0)
    assert empty.split(100) == (0, 0, 0)
    assert empty.quantiles(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "args",
    [
        (9, 0, 1, 2),
        (9, 1, 0, 2),
        (9, 1, 5, 5),
        (9900, 1, 128, 131072),  # tokens where their logarithm was asked
        (-9900, 1, 128, 131072),
        (4, 0.3, 1024, 131072),  # all of it lies below
        (12, 0.3, 128, 1024),  # and above
        (20, 4, 1, 128),  # so far above that the mean has no digits left
        (9.9, 40, 128, 131072),
        (9.9, 1, 128, inf),
        (nan, 1, 128, 131072),
        (9.9, nan, 128, 131072),
    ],
)
def test_a_law_that_is_none(args):
    with pytest.raises(ValueError, match="log-normal"):
        LogNormalLengths(*args)
