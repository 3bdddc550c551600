"""Ids that were aborted recently: an Abort may overtake its request.

A request that is aborted by its id may be anywhere: here, in the tokenizer of a frontend, or in the journal
of a frontend whose core has died. So ids are remembered for a while, and a request that arrives later is
refused if it is older than its Abort. A new request with the same id is not: messages carry the age of a
request. Each tenant has a memory of its own, so that a flood of aborts makes the core forget those of the
flooding tenant only. (Frontends put the tenant before the id, and a "/" between them.)
"""

from collections import OrderedDict

KEPT_S = 120.0
"""Longer than a request waits in a frontend for another core (--resume-timeout)."""
MOST = 2048
"""Ids to remember of one tenant, 1 MiB at most; the oldest are dropped first."""
MOST_IN_ALL = 32_768
"""Ids to remember of all tenants; the tenant that has aborted nothing for longest is forgotten first."""


class RecentAborts:
    """Ids by tenant, and when they were last aborted. Times are in seconds on the core's clock."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()
        self._num_ids = 0

    def __len__(self) -> int:
        return self._num_ids

    def add(self, request_id: str, now: float) -> None:
        """Registers an Abort."""
        tenant = _tenant_of(request_id)
        at = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        self._num_ids -= len(at)
        at[request_id] = now
        at.move_to_end(request_id)
        while len(at) > MOST or next(iter(at.values())) < now - KEPT_S:
            at.popitem(last=False)
        self._num_ids += len(at)
        self._forget(now)

    def includes(self, request_id: str, since: float) -> bool:
        """Returns whether the id was aborted since then."""
        at = self._tenants.get(_tenant_of(request_id))
        return at is not None and at.get(request_id, float("-inf")) >= since

    def _forget(self, now: float) -> None:
        """Forgets tenants whose last Abort is too old, or for whom there is no room."""
        while True:
            tenant, at = next(iter(self._tenants.items()))
            if self._num_ids <= MOST_IN_ALL and next(reversed(at.values())) >= now - KEPT_S:
                return
            self._num_ids -= len(at)
            del self._tenants[tenant]


def _tenant_of(request_id: str) -> str:
    """Returns the tenant that an engine's id begins with; "": it names none."""
    tenant, slash, _ = request_id.partition("/")
    return tenant if slash else ""
