"""Queues by the names of --policy."""

from engine_core.queue.base import WaitingQueue
from engine_core.queue.fair import FairQueue
from engine_core.queue.fcfs import FirstComeQueue
from engine_core.queue.token_counters import Weights

FAIR, FIRST_COME = "fair", "fcfs"


def make_queue(policy: str, weights: Weights) -> WaitingQueue:
    """Returns an empty queue. weights: shares of tenants, for the fair policy."""
    if policy == FIRST_COME:
        return FirstComeQueue()
    assert policy == FAIR, policy
    return FairQueue(weights)
