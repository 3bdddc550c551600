"""Flags of a worker whose ranks are on several hosts."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pagewire.config.base import CommonConfig, flag

Launcher = Literal["none", "ray"]


@dataclass(frozen=True, kw_only=True)
class NodesConfig(CommonConfig):
    """Flags on which all hosts of a group agree."""

    tensor_parallel_size: int = flag(
        1,
        "processes that share each layer of the model, on a CPU or a simulated device: 2, 4 or 8",
        at_least=1,
        at_most=1024,
    )
    pipeline_parallel_size: int = flag(
        1,
        "stages that have consecutive layers of the model, each of that many processes",
        at_least=1,
        at_most=1024,
    )
    nnodes: int = flag(
        1,
        "hosts that share these processes evenly: pagewire serve runs on the first, pagewire ranks on the"
        " others",
        at_least=1,
        at_most=64,
    )
    master_addr: str = flag(
        "", "IPv4 address of the first host, which others reach, or its name in DNS", metavar="ADDRESS"
    )
    master_port: int = flag(
        29500, "TCP port there, where the engine core awaits ranks of other hosts", at_least=1, at_most=65535
    )
    trusted_network: bool = flag(
        False,
        "with --nnodes or --kv-transfer nixl: all that can send packets to these hosts may be trusted;"
        " workers exchange data without encryption, and without asking for keys",
    )

    @property
    def num_ranks(self) -> int:
        """Ranks of a worker: those of stage 0 first."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_per_node(self) -> int:
        """Ranks that each host has."""
        return self.num_ranks // self.nnodes


@dataclass(frozen=True, kw_only=True)
class LauncherConfig(NodesConfig):
    """Flags of what starts ranks on other hosts."""

    launcher: Launcher = flag(
        "none",
        "what starts pagewire ranks on the other hosts of --nnodes; none: you; ray: actors of a Ray cluster"
        " (needs the extra `ray`)",
    )
    ray_address: str = flag(
        "auto",
        "HOST:PORT of the Ray cluster, of which this host is a node; auto: what RAY_ADDRESS names, or the one"
        " that runs here",
        metavar="ADDRESS",
    )


@dataclass(frozen=True, kw_only=True)
class RanksConfig(LauncherConfig):
    """`pagewire ranks`: the ranks of one host, of a worker whose engine core is on another; with the same
    --tensor-parallel-size, --pipeline-parallel-size, --nnodes and --master-addr, and the other
    --curve-key. With --launcher: those of all other hosts."""

    COMMON: ClassVar[frozenset[str]] = frozenset(
        {
            *("curve_key", "master_addr", "master_port", "nnodes", "pipeline_parallel_size"),
            *("tensor_parallel_size", "trusted_network"),
        }
    )
    """Flags of other classes that --help shows."""

    node_rank: int = flag(
        0, "number of this host: 1 to nnodes - 1; 0 is that of pagewire serve", common=True, at_least=0
    )
    threads: int = flag(
        0,
        "CPU threads of each rank; 0: one per core that it may use, one for a small model",
        at_least=0,
    )
    hang_timeout: float = flag(
        3.0,
        "seconds after which a rank that was stopped is killed; 0: never",
        at_least=0,
        metavar="SECONDS",
    )
    max_restart_pause: float = flag(
        10.0, "longest pause before ranks are restarted", at_least=0, metavar="SECONDS"
    )

    @property
    def numbers(self) -> range:
        """The ranks of this host."""
        return range(self.ranks_per_node * self.node_rank, self.ranks_per_node * (self.node_rank + 1))

    @property
    def core_address(self) -> str:
        """Where the engine core awaits them."""
        return f"tcp://{self.master_addr}:{self.master_port}"
