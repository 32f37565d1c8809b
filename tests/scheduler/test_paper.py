"""The expectations below were computed once, outside this package, from the paper's printed numbers."""

import pytest

from prfaas_ref.scheduler.paper import Cell, case_study, cells, deployments, figure5


def test_table_6_comes_out():
    found = deployments()
    assert found.prfaas_pd.counts == (4, 3, 5)
    assert found.prfaas_pd.threshold_tokens == 19_400
    assert found.homogeneous.counts == (0, 9, 3)
    rates = [p.predicted.lambda_max for p in (found.prfaas_pd, found.homogeneous, found.naive)]
    assert rates == pytest.approx([3.247, 2.110, 2.469], abs=1e-3)
    ttft = [p.ttft for p in (found.prfaas_pd, found.homogeneous, found.naive)]
    assert [t.mean_s for t in ttft] == pytest.approx([2.226, 4.447, 1.734], abs=1e-3)
    assert [t.p90_s for t in ttft] == pytest.approx([3.502, 9.730, 3.502], rel=1e-3)


def test_the_calibrated_profile():
    profile = case_study().pd_prefill
    assert (profile.base_s, profile.per_token_s) == pytest.approx((0.4691, 1.3004e-4), rel=1e-3)
    assert profile.per_token2_s == pytest.approx(2.9406e-10, rel=5e-3)


def test_predicted_cells_are_reproduced_and_the_one_that_is_not_is_said():
    predicted = [c for c in cells() if c.mark == "predicted"]
    assert len(predicted) >= 25
    assert [c.name for c in predicted if not c.reproduced] == ["mean egress, Gbps"]
    tables = [c for c in predicted if c.table in ("table 5", "table 6") and c.reproduced]
    assert all(abs(c.error) <= 0.01 for c in tables)


def test_anchors_are_not_evidence():
    anchors = {c.name for c in cells() if c.mark == "anchor"}
    calibrated = {"prfaas-pd theta_pd_p", "prfaas-pd theta_pd_d", "homogeneous theta_pd_p", "homogeneous p90_ttft_s"}
    assert calibrated | {"throughput over homogeneous at equal cost, %"} <= anchors
    assert all(c.mark != "predicted" for c in cells() if c.table == "table 3")


def test_a_cell_that_misses_says_so():
    assert Cell("t", "x", 100.0, 106.0, "predicted").reproduced is False
    assert Cell("t", "x", 2.0, 2.04, "predicted").reproduced is True
    assert Cell("t", "x", 100.0, 150.0, "anchor").reproduced is None


def test_figure_5_peaks_where_the_plan_is():
    curves = figure5()
    rate = curves["N_p"].series["Lambda_max"]
    assert curves["N_p"].x[rate.index(max(rate))] == 3
    rate = curves["t"].series["Lambda_max"]
    assert curves["t"].x[rate.index(max(rate))] == pytest.approx(19_400, abs=250)
