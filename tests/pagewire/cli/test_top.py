"""`pagewire top`: what it shows of a load, as a page and as JSON, and when it ends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from pagewire import cli
from pagewire.cli import top
from pagewire.v1 import admin_pb2, model_pb2
from pagewire_client.errors import Unavailable

INFO = admin_pb2.GetServerInfoResponse(version="1.2", state=admin_pb2.SERVER_STATE_SERVING)
INFO.start_time.seconds = 1000
BUSY = admin_pb2.Load(
    ranks=[
        admin_pb2.RankLoad(
            rank=0,
            running_requests=12,
            waiting_requests=3,
            waiting_uncached_tokens=4567,
            kv_used_tokens=256,
            kv_total_tokens=1024,
            output_tokens_per_second=123.45,
            prefix_cache_hit_rate=0.5,
            refused_requests={"A": 1, "B": 2},
        ),
        admin_pb2.RankLoad(rank=1),
    ]
)


class FakeClient:
    """Has the same load three times."""

    def server_info(self) -> admin_pb2.GetServerInfoResponse:
        return INFO

    def load(self) -> admin_pb2.Load:
        return BUSY

    def adapters(self) -> list[model_pb2.Adapter]:
        raise Unavailable(grpc.StatusCode.UNAVAILABLE, "the engine went away meanwhile")

    def watch_load(self, interval: float) -> Iterator[admin_pb2.Load]:
        assert interval == 2.0
        yield from [BUSY] * 3
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(config: Any) -> Iterator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr(top, "connect", connect)


def test_a_page():
    about, _, head, first, second = top.page_lines(INFO, BUSY, "here:1", 1000 + 3661)
    assert about == "pagewire 1.2 at here:1: serving, up 1:01:01"
    assert " ".join(head.split()) == (
        "engine running waiting to compute KV cache tokens/s hits preempted refused"
    )
    assert first.split() == ["0", "12", "3", "4,567", "25.0%", "#" * 5 + "." * 15, "123.5", "50%", "0", "3"]
    assert second.split()[:2] == ["1", "0"] and len({len(line) for line in (head, first, second)}) == 1


def test_without_an_engine():
    assert top.page_lines(INFO, admin_pb2.Load(), "here:1", 0)[-1] == "no engine is connected"


def test_the_busiest_adapters_follow():
    adapters = [model_pb2.Adapter(name=f"a{number}", streams=number) for number in range(15)]
    *_, head, first, second = top.page_lines(INFO, BUSY, "here:1", 1000, adapters)[:9]
    assert head.split()[0] == "adapter" and (first.split()[0], second.split()[0]) == ("a14", "a13")
    assert top.page_lines(INFO, BUSY, "here:1", 1000, adapters)[-1] == "and 5 more (pagewire adapters)"


def test_once(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.count("engine") == 1 and "\x1b" not in out


def test_json_has_a_line_for_each_load_until_ctrl_c(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["top", "--json", "--interval", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    assert lines[0]["ranks"][0]["running_requests"] == 12 and lines[0]["ranks"][1]["waiting_requests"] == 0
