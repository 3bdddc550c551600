"""`pagewire adapters`: the table, JSON, and words that do not fit."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pagewire import cli
from pagewire.cli import adapters
from pagewire.flags import UsageError
from pagewire.v1 import model_pb2

LEGAL = model_pb2.Adapter(
    name="legal",
    source="/data/legal",
    digest=bytes(32),
    rank=16,
    bytes=10_485_760,
    tenants=["a", "b"],
    loaded=True,
    streams=1234,
)
SUPPORT = model_pb2.Adapter(name="support\x1b[2J", source="/data/support", rank=8, pinned=True)


class FakeClient:
    """Has two adapters, and remembers what it was called for."""

    calls: list[tuple[Any, ...]] = []

    def adapters(self) -> list[model_pb2.Adapter]:
        return [LEGAL, SUPPORT]

    def load_adapter(self, name: str, source: str, **options: Any) -> model_pb2.Adapter:
        self.calls.append((name, source, options))
        return LEGAL

    def unload_adapter(self, name: str) -> None:
        self.calls.append((name,))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(config: Any) -> Iterator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr(adapters, "connect", connect)
    monkeypatch.setattr(FakeClient, "calls", [])


@pytest.mark.parametrize("words", [(), ("list",)])
def test_a_table(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["adapters", *words]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["adapter", "tenants", "folder", "loaded", "pinned", "rank", "MiB", "streams"]
    assert first.split() == ["legal", "a,", "b", "/data/legal", "yes", "no", "16", "10.0", "1,234"]
    assert second.split() == ["support?[2J", "all", "/data/support", "no", "yes", "8", "0.0", "0"]


def test_without_one() -> None:
    assert adapters.adapter_lines([]) == ["no adapter has a name"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["adapters", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["adapters"]
    assert [(each["name"], each["loaded"], each["streams"]) for each in found] == [
        ("legal", True, 1234),
        (SUPPORT.name, False, 0),
    ]


def test_load_and_unload(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["adapters", "load", "legal", "/data/legal", "--pinned", "--tenant=a", "--tenant=b"]) == 0
    assert cli.run(["adapters", "load", "legal"]) == 0
    assert cli.run(["adapters", "unload", "legal"]) == 0
    assert FakeClient.calls == [
        ("legal", "/data/legal", {"pinned": True, "tenants": ("a", "b")}),
        ("legal", "", {"pinned": False, "tenants": ()}),
        ("legal",),
    ]
    assert capsys.readouterr().out == 2 * f"legal: rank 16, digest {bytes(32).hex()}\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("show",), "list|load|unload"),
        (("list", "legal"), "list takes no NAME"),
        (("load",), "NAME is missing"),
        (("unload",), "NAME is missing"),
        (("unload", "legal", "/data"), "for load"),
        (("list", "--pinned"), "for load"),
        (("unload", "legal", "--json"), "--json"),
        (("load", "legal", "/data", "more"), "more"),
    ],
)
def test_words_that_do_not_fit(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        cli.run(["adapters", *words])
    assert problem in str(caught.value) and not FakeClient.calls
