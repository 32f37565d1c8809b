import pytest

from prfaas_ref.request import Request, RequestRecord


def test_a_request_ends_exactly_once():
    record = RequestRecord(Request("r", 1.0, 10, 5))
    assert record.in_flight
    record.ttft_s = 2.0
    record.end("completed", 7.0)
    assert not record.in_flight
    assert record.tpot_s == pytest.approx(1.0)
    for status in ("completed", "rejected", "failed"):
        with pytest.raises(RuntimeError, match="already completed"):
            record.end(status, 8.0)
    assert (record.status, record.finish_s) == ("completed", 7.0)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 1)])
def test_empty_requests_are_refused(prompt, output):
    with pytest.raises(ValueError, match="at least 1"):
        Request("r", 0.0, prompt, output)


def test_the_count_matches_the_tokens():
    with pytest.raises(ValueError, match="3 tokens, not 2"):
        Request("r", 0.0, 2, 1, token_ids=[1, 2, 3])
