"""What flags of a worker whose ranks are on several hosts must be."""

import logging
import socket
import time
from dataclasses import replace
from typing import TypeVar

from pagewire.config import NodesConfig
from pagewire.errors import StartupError
from pagewire.host.addresses import is_address, is_ipv4, is_loopback

log = logging.getLogger(__name__)

WHAT = "cannot start ranks on several hosts"
_LOOK_S = 0.5
_REPORT_S = 5.0
"""Seconds between two lines about a name without an address."""

C = TypeVar("C", bound=NodesConfig)


def resolved(config: C) -> C:
    """Returns the flags with the IPv4 address of a --master-addr that is a name. Waits while the name has
    none, as that of a host which has just started may, and says so every few seconds. Raises StartupError."""
    name = config.master_addr
    if config.nnodes == 1 or not name or is_address(name):
        return config
    report_at = time.monotonic() + _REPORT_S
    while True:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            return replace(config, master_addr=str(found[0][4][0]))
        except socket.gaierror as error:
            why = error.strerror
        except UnicodeError as error:
            todo = "use an address of the first host"
            raise StartupError(WHAT, f"--master-addr {name} is no name of a host", todo) from error
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + _REPORT_S
            log.info("waiting for an address of --master-addr %s: %s", name, why)
        time.sleep(_LOOK_S)


def check_nodes(config: NodesConfig) -> None:
    """Raises StartupError for flags that no group over several hosts has."""
    if config.nnodes == 1:
        return
    address = config.master_addr
    for is_wrong, why, todo in (
        (not address, "there is no --master-addr", "name an address of the first host"),
        (
            not is_ipv4(address),
            f"--master-addr {address} is no IPv4 address",
            "use one of the first host, such as 10.0.0.1",
        ),
        (
            config.num_ranks % config.nnodes > 0,
            f"--nnodes {config.nnodes} does not divide {_describe_ranks(config)}",
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


def _describe_ranks(config: NodesConfig) -> str:
    tensor, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    flag = f"--tensor-parallel-size {tensor}"
    if stages == 1:
        return flag
    return f"the {config.num_ranks} ranks of {flag} and --pipeline-parallel-size {stages}"
