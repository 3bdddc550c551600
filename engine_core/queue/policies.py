"""The orders of admission that there are, by the names of --policy."""

from engine_core.queue.base import FirstComeQueue, WaitingQueue
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Weights

FAIR, FIRST_COME = "fair", "fcfs"


def make_queue(policy: str, weights: Weights) -> WaitingQueue:
    """An empty queue. weights: who is due how much, where that counts."""
    if policy == FIRST_COME:
        return FirstComeQueue()
    assert policy == FAIR, policy
    return FairQueue(weights)
