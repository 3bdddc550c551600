"""What flags of a group over several hosts must be, on each of its hosts."""

import pytest

from pagewire.cli import ranks
from pagewire.config import NodesConfig, RanksConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire.flags.flag import flags_of
from pagewire.host.nodes import check_nodes

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
