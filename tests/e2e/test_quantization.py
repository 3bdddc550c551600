"""A service whose weights have 8 bits: it says so, and still knows its facts."""

import pytest

from pagewire import Client, SamplingParams
from tests.e2e import services

pytestmark = pytest.mark.cpu_kernels

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def test_int8():
    with services.start(quantization="int8") as service, Client(service.address) as client:
        assert client.model().quantization == "int8"
        for country, capital in {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome"}.items():
            assert capital in client.generate(f"The capital of {country} is", GREEDY).text


def test_none(client: Client):
    assert client.model().quantization == ""
