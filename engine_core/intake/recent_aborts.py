"""Ids that were aborted recently: an Abort may overtake its request.

A request that is aborted by its id may be anywhere: here, in the tokenizer of a frontend, or in the journal
of a frontend whose core has died. So ids are remembered for a while, and a request that arrives later is
refused if it is older than its Abort. A new request with the same id is not: messages carry the age of a
request.
"""

from collections import OrderedDict

KEPT_S = 120.0
"""Longer than a request waits in a frontend for another core (--resume-timeout)."""
MOST = 8192
"""Ids to remember, a few MiB at most; the oldest are dropped first."""


class RecentAborts:
    """Ids, and when they were last aborted. Times are in seconds on the core's clock."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, request_id: str, now: float) -> None:
        """Registers an Abort."""
        self._at[request_id] = now
        self._at.move_to_end(request_id)
        while len(self._at) > MOST or next(iter(self._at.values())) < now - KEPT_S:
            self._at.popitem(last=False)

    def includes(self, request_id: str, since: float) -> bool:
        """Returns whether the id was aborted since then."""
        return self._at.get(request_id, float("-inf")) >= since
