"""How a scheduler was made survives the way through a recording."""

from engine_core.recording.settings import read_settings, write_settings
from engine_core.swap import SwapCosts
from engine_core.tenants import Weights


def test_settings_come_back_as_they_were():
    settings = {
        "num_blocks": 7,
        "prefix_cache": False,
        "policy": "fcfs",
        "swap_costs": SwapCosts(1.5, 0.25),
        "weights": Weights(prompt_token=0.5, tenants={"acme": 3.0, "the other one": 0.1}),
    }
    assert read_settings(write_settings(settings)) == settings
