"""What flags of a group over several hosts must be, on each of its hosts."""

import logging
import socket

import pytest

from pagewire.cli import ranks
from pagewire.config import NodesConfig, RanksConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire.flags.flag import flags_of
from pagewire.host import nodes
from pagewire.host.nodes import check_nodes, resolved

GOOD = {"tensor_parallel_size": 4, "nnodes": 2, "master_addr": "127.0.0.1", "curve_key": "k"}


@pytest.mark.parametrize("kind", [ServeConfig, RanksConfig])
def test_good_flags(kind: type[NodesConfig]):
    check_nodes(kind())
    check_nodes(kind(**GOOD))
    check_nodes(kind(**GOOD | {"master_addr": "10.0.0.1", "trusted_network": True}))
    assert kind(**GOOD).ranks_per_node == 2


@pytest.mark.parametrize(
    ("wrong", "why", "todo"),
    [
        ({"master_addr": ""}, "there is no --master-addr", "first host"),
        ({"master_addr": "localhost"}, "--master-addr localhost is no IPv4 address", "10.0.0.1"),
        ({"master_addr": "::1"}, "--master-addr ::1 is no IPv4 address", "10.0.0.1"),
        ({"nnodes": 3}, "--nnodes 3 does not divide --tensor-parallel-size 4", "as many ranks"),
        ({"curve_key": ""}, "there is no --curve-key", "pagewire keys FOLDER"),
        ({"master_addr": "10.0.0.1"}, "--master-addr 10.0.0.1 is not of this host", "--trusted-network"),
    ],
)
@pytest.mark.parametrize("kind", [ServeConfig, RanksConfig])
def test_flags_that_no_group_has(kind: type[NodesConfig], wrong: dict[str, object], why: str, todo: str):
    with pytest.raises(StartupError) as raised:
        check_nodes(kind(**GOOD | wrong))  # type: ignore[arg-type]
    assert why in raised.value.why and todo in raised.value.todo


def test_help_shows_what_all_hosts_agree_on():
    shared = "curve_key", "master_addr", "nnodes", "tensor_parallel_size", "trusted_network"
    assert all(flags_of(RanksConfig)[name].common for name in shared)
    assert not any(flags_of(ServeConfig)[name].common for name in shared)


def test_the_ranks_of_a_host():
    config = RanksConfig(**GOOD, node_rank=1, master_port=7)
    assert (list(config.numbers), config.core_address) == ([2, 3], "tcp://127.0.0.1:7")


@pytest.mark.parametrize(("node_rank", "nnodes"), [(0, 2), (2, 2), (1, 1)])
def test_a_host_that_the_group_does_not_have(node_rank: int, nnodes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks.logs, "setup", lambda *arguments: None)
    with pytest.raises(UsageError, match=f"--node-rank is {node_rank}, and --nnodes is {nnodes}"):
        ranks.run(RanksConfig(**GOOD | {"nnodes": nnodes}, node_rank=node_rank))


@pytest.mark.parametrize("more", [{"node_rank": 1}, {"nnodes": 1}])
def test_a_launcher_has_all_hosts_but_the_first(more: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks.logs, "setup", lambda *arguments: None)
    with pytest.raises(UsageError, match="--launcher ray with --node-rank"):
        ranks.run(RanksConfig(**GOOD | more, launcher="ray"))  # type: ignore[arg-type]


def test_a_name_of_the_first_host_is_looked_up_until_it_has_an_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Which is said every five seconds. Addresses are taken as they are."""
    caplog.set_level(logging.INFO)
    clock, failures = [0.0], [socket.gaierror(-2, "Name or service not known")] * 21

    def look_up(name: str, *_: object) -> list[tuple[object, ...]]:
        assert name == "leader.group"
        if failures:
            raise failures.pop()
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(nodes.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    config = RanksConfig(**GOOD | {"master_addr": "leader.group"})
    assert resolved(config).master_addr == "10.0.0.1"
    assert (
        caplog.messages
        == ["waiting for an address of --master-addr leader.group: Name or service not known"] * 2
    )
    for address in ("10.0.0.2", "::1", ""):
        assert resolved(RanksConfig(**GOOD | {"master_addr": address})).master_addr == address


def test_what_is_no_name(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StartupError, match="is no name of a host"):
        resolved(RanksConfig(**GOOD | {"master_addr": "a" * 64 + ".group"}))
