"""What was aborted lately: an Abort may overtake its request.

A request that somebody ends by its id may be anywhere: here, in the tokenizer of a frontend, or in the
journal of one whose core has died. So ids are remembered for a while, and a request that comes later is
refused when it is older than its Abort. A new one with the same id is not: it knows its age.
"""

from collections import OrderedDict

KEPT_S = 120.0
"""Longer than a request waits in a frontend for another core (--resume-timeout)."""
MOST = 8192
"""Ids; the oldest go first. Together some MiB at most."""


class AbortedIds:
    """Ids, and when they were aborted last. Times are in seconds on the core's clock."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, request_id: str, now: float) -> None:
        """Somebody aborts what has this id."""
        self._at[request_id] = now
        self._at.move_to_end(request_id)
        while len(self._at) > MOST or next(iter(self._at.values())) < now - KEPT_S:
            self._at.popitem(last=False)

    def hit(self, request_id: str, since: float) -> bool:
        """Whether that has happened to it since then."""
        return self._at.get(request_id, float("-inf")) >= since
