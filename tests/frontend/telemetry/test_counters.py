"""Counts by adapter, of a bounded number of names."""

from frontend.telemetry.counters import Counters
from pagewire.telemetry.figures import MOST_NAMES, OTHERS


def test_adapters_with_few_requests_share_a_value_that_only_grows() -> None:
    counters, others = Counters(), 0
    names = [f"a{number:02}" for number in range(2 * MOST_NAMES)]
    for turn in range(5):
        for name in (*names[:5], *names):
            counters.count_adapter(name, 3, 2)
            assert len(counters.adapter_requests) <= MOST_NAMES + 1
            assert counters.adapter_requests[OTHERS] >= others
            others = counters.adapter_requests[OTHERS]
        total = (turn + 1) * (5 + len(names))
        assert counters.adapter_requests.total() == total
        by_kind = {kind: 0 for kind in ("prompt", "generated")}
        for (_, kind), number in counters.adapter_tokens.items():
            by_kind[kind] += number
        assert by_kind == {"prompt": 3 * total, "generated": 2 * total}
    assert {counters.adapter_requests[name] for name in names[:5]} == {10}
