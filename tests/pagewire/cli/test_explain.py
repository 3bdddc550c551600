"""`pagewire explain`: where the time of a request went, in words."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pagewire import cli
from pagewire.cli import requests
from pagewire.flags import UsageError
from pagewire.v1 import inspection_pb2 as pb


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> pb.ExplainRequestResponse:
    """What the service answers."""
    answer = pb.ExplainRequestResponse()
    info = answer.request
    info.request_id, info.tenant, info.phase = "one", "alice", pb.REQUEST_PHASE_QUEUED
    info.waits_for, info.rank, info.prompt_tokens = pb.WAIT_CAUSE_ROWS, 1, 1234
    info.age.seconds = info.timings.total.seconds = info.timings.queue.seconds = 10
    info.timings.waits.rows.seconds, info.timings.waits.kv_transfer.seconds = 5, 1

    class FakeClient:
        def explain_request(self, request: str, *, tenant: str) -> pb.ExplainRequestResponse:
            assert (request, tenant) == ("one", "alice")
            return answer

    @contextmanager
    def connect(config: Any) -> Iterator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr(requests, "connect", connect)
    return answer


def explained(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.run(["explain", "one", "--tenant=alice", *options]) == 0
    return capsys.readouterr().out


def test_a_request_that_waits(found: pb.ExplainRequestResponse, capsys: pytest.CaptureFixture[str]):
    found.position.sequences_ahead, found.position.tokens_ahead, found.position.tenant_share = 3, 4000, 0.25
    found.position.predicted_wait.seconds = 2
    out = explained(capsys)
    assert out.startswith("one of alice, class 0: queued at core 1, since 10.0 s\n")
    assert "waits: the first of the queue finds too few free rows (--max-num-seqs)" in out
    assert "3 sequences ahead, 4,000 tokens to compute, its tenant's share 25%, begins in about 2.00 s" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "queue 10.0 s 100%" in lines and "waiting for rows 5.00 s 50%" in lines
    assert "waiting for kv transfer 1.00 s 10%" in lines
    assert "holds" not in out and "sequence " not in out


def test_a_request_that_waits_for_the_encoder(
    found: pb.ExplainRequestResponse, capsys: pytest.CaptureFixture[str]
):
    found.request.waits_for = pb.WAIT_CAUSE_ENCODER
    found.request.timings.waits.encoder.seconds = 2
    out = explained(capsys)
    assert "waits: images find no room (--max-num-encoder-tokens, --encoder-cache-tokens)" in out
    assert "waiting for encoder 2.00 s 20%" in " ".join(out.split())


def test_a_request_that_runs(found: pb.ExplainRequestResponse, capsys: pytest.CaptureFixture[str]):
    info = found.request
    info.phase, info.waits_for, info.preemptions = pb.REQUEST_PHASE_DECODE, pb.WAIT_CAUSE_UNSPECIFIED, 2
    info.blocks, info.shared_blocks, info.sequences = 9, 4, 12
    found.sharers.add(request_id="two", blocks=4)
    found.num_sharers, found.swapped_tokens = 3, 64
    for index in range(12):
        found.sequences.add(index=index, phase=pb.REQUEST_PHASE_DECODE, tokens=2000)
    out = explained(capsys)
    assert "waits" not in out.splitlines()[2] and "preempted 2 times" in out
    assert "holds 9 KV blocks, 4 of them with other requests\n  4 with two\n  and with 2 more requests" in out
    assert "host memory keeps its keys and values of 64 tokens" in out
    assert out.count("decode") == 1 + 1 + 8 and out.endswith("and 4 more\n")


def test_json(found: pb.ExplainRequestResponse, capsys: pytest.CaptureFixture[str]):
    assert json.loads(explained(capsys, "--json"))["request"]["waits_for"] == "WAIT_CAUSE_ROWS"


def test_an_id_is_needed():
    with pytest.raises(UsageError, match="REQUEST is missing"):
        cli.run(["explain"])


def test_what_a_request_runs_with(found: pb.ExplainRequestResponse, capsys: pytest.CaptureFixture[str]):
    assert "runs with" not in explained(capsys)
    parameters = found.parameters
    parameters.sampling.temperature, parameters.sampling.top_k = 0.5, 40
    parameters.sampling.bad_token_ids.extend([1, 2])
    parameters.sampling.beam_search.width = 2
    parameters.stopping.max_tokens, parameters.stopping.ignore_eos = 16, False
    parameters.stopping.time_limit.seconds = 3
    for name in (
        "sampling.bad_token_ids",
        "sampling.beam_search",
        "stopping.max_tokens",
        "stopping.time_limit",
    ):
        parameters.origins[name] = "request"
    parameters.origins["sampling.temperature"] = parameters.origins["stopping.ignore_eos"] = "default"
    parameters.origins["sampling.top_k"] = "generation_config.json"
    assert explained(capsys).endswith("\nno token ends it\n")
    parameters.ends.add(token_id=2, text="</s>", origin="config.json, tokenizer_config.json")
    for token in range(20):
        parameters.ends.add(token_id=token, text="\x1b[", origin="stopping.stop_token_ids")
    lines = [" ".join(line.split()) for line in explained(capsys).splitlines()]
    at = lines.index("runs with")
    assert lines[at + 1 : at + 6] == [
        "default temperature 0.5, ignore_eos false",
        "generation_config.json top_k 40",
        "request beam_search set, bad_token_ids of 2 tokens, max_tokens 16, time_limit 3s",
        "ends at",
        '2 "</s>" config.json, tokenizer_config.json',
    ]
    assert '"\\u001b["' in lines[at + 6] and lines[-1] == "and at 5 more tokens"
