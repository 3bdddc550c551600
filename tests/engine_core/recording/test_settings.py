"""How a scheduler was made survives the way through a recording."""

from engine_core.fair_queue import FairQueue
from engine_core.recording.settings import read_settings, write_settings
from engine_core.swap import SwapCosts
from engine_core.tenants import Weights
from engine_core.waiting import FirstComeQueue


def test_settings_come_back_as_they_were():
    settings = {"num_blocks": 7, "prefix_cache": False, "swap_costs": SwapCosts(1.5, 0.25), "name": "x"}
    assert read_settings(write_settings(settings)) == settings


def test_queues_come_back_empty_with_their_policy_and_weights():
    weights = Weights(prompt_token=0.5, tenants={"acme": 3.0, "the other one": 0.1})
    queue = read_settings(write_settings({"waiting": FairQueue(weights)}))["waiting"]
    assert isinstance(queue, FairQueue) and queue.weights == weights
    queue = read_settings(write_settings({"waiting": FirstComeQueue()}))["waiting"]
    assert isinstance(queue, FirstComeQueue)
