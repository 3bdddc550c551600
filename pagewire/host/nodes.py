"""What flags of a worker whose ranks are on several hosts must be."""

from pagewire.config import NodesConfig
from pagewire.errors import StartupError
from pagewire.host.addresses import is_ipv4, is_loopback

WHAT = "cannot start ranks on several hosts"


def check_nodes(config: NodesConfig) -> None:
    """Raises StartupError for flags that no group over several hosts has."""
    if config.nnodes == 1:
        return
    size, address = config.tensor_parallel_size, config.master_addr
    for is_wrong, why, todo in (
        (not address, "there is no --master-addr", "name an address of the first host"),
        (
            not is_ipv4(address),
            f"--master-addr {address} is no IPv4 address",
            "use one of the first host, such as 10.0.0.1",
        ),
        (
            size % config.nnodes > 0,
            f"--nnodes {config.nnodes} does not divide --tensor-parallel-size {size}",
            "all hosts have as many ranks: use numbers that divide",
        ),
        (
            not config.curve_key,
            "there is no --curve-key: plans have prompts, and go over TCP",
            "pagewire keys FOLDER makes engine.key, for pagewire serve, and client.key, for ranks",
        ),
        (
            not is_loopback(address) and not config.trusted_network,
            f"--master-addr {address} is not of this host alone, and ranks exchange data in plain",
            "add --trusted-network if all that reach this network may read and change them",
        ),
    ):
        if is_wrong:
            raise StartupError(WHAT, why, todo)
