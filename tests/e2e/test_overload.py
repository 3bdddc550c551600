"""More requests than the service takes: some are answered, others are refused and told when to come back."""

import json
from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from pagewire import Client
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from tests.e2e import services
from tests.e2e.test_simulated import without_weights

ROWS, QUEUED, NUM = 2, 4, 40
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "pagewire.v1.GenerationService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "3600s",
                "maxBackoff": "3600s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}
"""A client that does not keep to the server's word waits for an hour."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two rows, four places in the queue, steps of 7 ms."""
    folder = without_weights(tmp_path_factory.mktemp("overload"))
    with services.start(
        folder,
        device="simulated",
        max_num_seqs=ROWS,
        max_num_queued_reqs=QUEUED,
        worker_fault=("slow-factor=100",),
    ) as service:
        yield service


def request(number: int) -> generation_pb2.GenerateRequest:
    made = generation_pb2.GenerateRequest()
    made.prompt.token_ids.ids.extend([3 + number, 4, 5])
    made.stopping.max_tokens = 20
    made.stopping.ignore_eos = True
    return made


def test_a_burst_is_answered_as_far_as_it_fits(service: Service) -> None:
    """Whatever is refused is refused before the first header, with RetryInfo and the trailer; whatever is not
    is answered whole; then the queue is open again."""
    with grpc.insecure_channel(service.address) as channel, Client(service.address) as client:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        calls = [stub.GenerateUnary.future(request(number)) for number in range(NUM)]
        failures = [failure for call in calls if (failure := call.exception()) is not None]
        answers = [call.result() for call in calls if call.exception() is None]
        assert len(answers) >= ROWS + QUEUED and failures
        assert {answer.sequences[0].token_count for answer in answers} == {20}
        for failure in failures:
            assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            details = {detail.TypeName(): detail for detail in rpc_status.from_call(failure).details}
            info = error_details_pb2.ErrorInfo()
            assert details["google.rpc.ErrorInfo"].Unpack(info) and info.reason == "QUEUE_FULL"
            retry = error_details_pb2.RetryInfo()
            assert details["google.rpc.RetryInfo"].Unpack(retry)
            seconds = retry.retry_delay.ToTimedelta().total_seconds()
            trailers = dict(failure.trailing_metadata())
            assert int(trailers["grpc-retry-pushback-ms"]) == pytest.approx(1000 * seconds, abs=1)
            assert not failure.initial_metadata(), "there was no header before the trailers"
        assert services.rank_load(client).refused_requests["QUEUE_FULL"] == len(failures)
        assert client.generate([3], max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
        services.wait_until(lambda: services.is_idle(client))


def test_grpc_s_own_retries_keep_to_what_they_are_told(service: Service) -> None:
    """A client with a retry policy, and nothing else, gets its answer: it comes back when it was told to."""
    options = [("grpc.service_config", json.dumps(RETRIES)), ("grpc.enable_retries", 1)]
    with grpc.insecure_channel(service.address, options) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        calls = [stub.GenerateUnary.future(request(number)) for number in range(ROWS + QUEUED + 3)]
        answers = [call.result(timeout=services.PATIENCE_S) for call in calls]
    assert {answer.sequences[0].token_count for answer in answers} == {20}
    with Client(service.address) as client:
        services.wait_until(lambda: services.is_idle(client))
