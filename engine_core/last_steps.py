"""Names the requests of the steps in which a worker died, for the log: a worker knows rows, not requests."""

from collections.abc import Iterable

from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.logs.fields import quoted

_MOST_NAMES = 16


def describe_last_steps(scheduler: Scheduler) -> str:
    """Returns a sentence with the ids of the requests that run, or that the steps in flight sample for; "" if
    there are none."""
    requests = {sequence.request: None for step in scheduler.in_flight for sequence in step.sampling}
    requests |= {sequence.request: None for sequence in scheduler.running}
    if not requests:
        return ""
    more = len(requests) - _MOST_NAMES
    names = " ".join(_names(list(requests)[:_MOST_NAMES]))
    return f"{len(requests)} requests were in the last steps: {names}" + (
        f" and {more} more" if more > 0 else ""
    )


def _names(requests: Iterable[Request]) -> Iterable[str]:
    for request in requests:
        tenant = f" tenant={quoted(request.tenant)}" if request.tenant else ""
        own = request.request_id.removeprefix(f"{request.tenant}/") if request.tenant else request.request_id
        yield f"[request_id={quoted(own)}{tenant}]"
