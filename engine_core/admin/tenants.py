"""Describes tenants with requests in flight."""

from __future__ import annotations

from collections.abc import Generator
from heapq import nlargest

from engine_core.queue.fair import FairQueue
from engine_core.scheduler.scheduler import Scheduler
from pagewire.v1 import inspection_pb2 as pb

MAX_LISTED = 1000
_COST = 20
"""Microseconds to describe a tenant."""


def list_tenants(
    scheduler: Scheduler, call: pb.ListTenantsRequest, result: pb.ListTenantsResponse
) -> Generator[int, None, None]:
    """Fills the result with the tenants that have most requests; yields work done, in microseconds."""
    result.SetInParent()
    requests, queue = scheduler.requests, scheduler.waiting
    names = requests.tenants()
    result.total = len(names)
    names = nlargest(min(call.limit, MAX_LISTED), names, key=requests.num_of_tenant)
    yield result.total
    for name in names:
        share = queue.share(name)
        info = result.tenants.add(
            tenant=name,
            requests=requests.num_of_tenant(name),
            sequences=requests.num_sequences_of_tenant(name),
            waiting_sequences=share.sequences,
            waiting_tokens=share.tokens,
            share=share.part,
        )
        tenant = queue.tenants.get(name) if isinstance(queue, FairQueue) else None
        if isinstance(queue, FairQueue) and tenant is not None:
            info.running_sequences, info.weight = tenant.num_running, tenant.weight
            info.served = queue.tenants.counter(tenant)
        yield _COST
