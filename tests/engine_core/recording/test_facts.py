"""Settings of a scheduler in a recording."""

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights
from engine_core.recording.facts import read_settings, write_settings


def test_settings_come_back_as_they_were():
    settings = {
        "num_blocks": 7,
        "prefix_cache": False,
        "policy": "fcfs",
        "swap_costs": SwapCosts(1.5, 0.25),
        "weights": Weights(prompt_token=0.5, tenants={"acme": 3.0, "the other one": 0.1}),
    }
    assert read_settings(write_settings(settings)) == settings
