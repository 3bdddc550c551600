"""Latencies of one request, out of when its messages came."""

import pytest

from pagewire_bench.trace import Trace, gaps, spread_tokens


def test_times_count_from_when_the_request_was_due():
    trace = Trace(due=1.0, sent=1.5, arrivals=[(2.0, 1), (3.0, 2), (3.5, 1)])
    assert (trace.first, trace.latency, trace.tokens) == (1.0, 2.5, 4)
    assert trace.per_token == pytest.approx(0.5)
    assert trace.gaps() == [0.5, 0.5, 0.5]


def test_tokens_of_one_message_share_the_time_since_the_last():
    assert gaps([(0.0, 5), (1.0, 4)]) == [0.25] * 4
    assert gaps([(0.0, 5)]) == [] and Trace(0.0, arrivals=[(1.0, 3)]).per_token is None


@pytest.mark.parametrize(("messages", "tokens"), [(3, 7), (4, 4), (4, 2), (1, 9)])
def test_a_total_is_divided_among_the_messages(messages: int, tokens: int):
    spread = spread_tokens([(float(at), 1) for at in range(messages)], tokens)
    shares = [share for _, share in spread]
    assert sum(shares) == tokens and len(shares) == min(messages, tokens)
    assert max(shares) - min(shares) <= 1
    assert spread[-1][0] == messages - 1
