"""`pagewire requests`: the table, its JSON, and watching."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pagewire import cli
from pagewire.cli import requests
from pagewire.v1 import inspection_pb2 as pb

WAITING = pb.RequestInfo(
    request_id="one",
    tenant="alice",
    priority=-1,
    phase=pb.REQUEST_PHASE_QUEUED,
    waits_for=pb.WAIT_CAUSE_BLOCKS,
    prompt_tokens=1234,
)
WAITING.age.seconds = 75
RUNNING = pb.RequestInfo(
    request_id="x" * 50 + "\x1b[2J",
    phase=pb.REQUEST_PHASE_DECODE,
    rank=0,
    output_tokens=7,
    blocks=3,
    shared_blocks=1,
)
RUNNING.age.nanos = 250_000_000


class FakePager:
    total = 0

    def __iter__(self) -> Iterator[pb.RequestInfo]:
        self.total = 5
        yield from [WAITING, RUNNING]
        raise AssertionError("more is read than --limit shows")


class FakeClient:
    """Has the same requests, three times."""

    asked: list[dict[str, Any]] = []

    def list_requests(self, **options: Any) -> FakePager:
        self.asked.append(options)
        if len(self.asked) > 3:
            raise KeyboardInterrupt
        return FakePager()


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(config: Any) -> Iterator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr(requests, "connect", connect)
    monkeypatch.setattr(FakeClient, "asked", [])


def test_a_table(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["requests", "--limit=2", "--tenant=alice"]) == 0
    out = capsys.readouterr().out
    head, first, second, rest = out.splitlines()
    assert head.split()[:4] == ["request", "tenant", "class", "phase"]
    assert " ".join(first.split()) == "one alice -1 queued blocks 1:15 min 1,234 0 0 0 0 0"
    assert " ".join(second.split()) == f"{'x' * 39}… 0 decode 0 0.25 s 0 0 7 3 1 0"
    assert rest == "and 3 more (--limit)" and "\x1b" not in out
    assert FakeClient.asked == [{"tenant": "alice", "page_size": 2}]


def test_nothing_in_flight():
    assert requests.request_lines(pb.ListRequestsResponse()) == ["no requests in flight"]


def test_watching_json_until_ctrl_c(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["requests", "--json", "--watch", "--interval=0.05", "--limit=2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3 and lines[0]["requests"][0]["phase"] == "REQUEST_PHASE_QUEUED"
    assert lines[0]["requests"][1]["output_tokens"] == 7 and lines[0]["total"] == 5


@pytest.mark.parametrize("phase", pb.RequestPhase.values())
def test_every_phase_and_cause_has_words(phase: int):
    assert requests.phase_name(pb.RequestPhase.ValueType(phase)).islower()
    for cause in pb.WaitCause.values():
        assert bool(requests.cause_name(pb.WaitCause.ValueType(cause))) == bool(cause)
