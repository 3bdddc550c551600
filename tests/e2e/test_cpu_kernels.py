"""--cpu-kernels: a service on another instruction set than the best one knows the same facts."""

import pytest

from kernels.cpu.instruction_sets import host_sets
from pagewire import Client, SamplingParams
from tests.e2e import services

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.mark.parametrize("name", ["avx2", "none"])
def test_a_lower_set(name: str):
    if name != "none" and name not in [one.name for one in host_sets()]:
        pytest.skip(f"this host lacks {name}")
    with services.start(cpu_kernels=name) as service, Client(service.address) as client:
        assert client.model().dtype == ("float32" if name == "none" else "bfloat16")
        for country, capital in {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome"}.items():
            assert capital in client.generate(f"The capital of {country} is", GREEDY).text
