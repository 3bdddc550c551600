"""tei.v1 through real processes."""

import os
import signal
from collections.abc import Iterator

import grpc

from pagewire import Client
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from tests.e2e import services

TEXTS = [f"{number} bottles of beer on the wall" for number in range(200)]


def test_a_stream_survives_the_death_of_the_worker():
    """It has the bits of our own API, in the order of the messages."""

    def requests() -> Iterator[tei_pb2.EmbedRequest]:
        for place, text in enumerate(TEXTS):
            if place == 50:
                os.kill(services.processes(service.pid)["worker"][0], signal.SIGKILL)
            yield tei_pb2.EmbedRequest(inputs=text)

    with services.start(tei=True, pooling_type="last", ready_timeout=200, resume_timeout=200) as service:
        with grpc.insecure_channel(service.address) as channel:
            stub = tei_pb2_grpc.EmbedStub(channel)
            found = [list(each.embeddings) for each in stub.EmbedStream(requests(), timeout=240)]
        with Client(service.address) as client:
            assert found == client.embed(TEXTS)
            services.wait_until(lambda: services.is_idle(client))
