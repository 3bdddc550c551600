"""The client's methods against the services' descriptors; options of a channel."""

import re
from pathlib import Path

import pytest

from pagewire.v1 import admin_pb2, generation_pb2, model_pb2, pooling_pb2, tokenizer_pb2
from pagewire_client import aio, operations_aio
from pagewire_client.transport import channel
from pagewire_client.transport.channel import Method, addresses, options
from scripts.limits.field_tables import NOT_BUILT

SERVICES = [
    service
    for file in (admin_pb2, generation_pb2, model_pb2, pooling_pb2, tokenizer_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
RPCS = {f"/{service.full_name}/{rpc.name}": rpc for service in SERVICES for rpc in service.methods}
METHODS = {name: value for name, value in vars(channel).items() if isinstance(value, Method)}
WITHOUT = {"/pagewire.v1.TokenizerService/GetTokenizer"}
"""RPCs that the Python clients leave out: it streams files to gateways that tokenize by themselves."""


def test_every_rpc_that_is_built_is_in_the_client():
    """A line in channel.py, which a method of the client uses."""
    built = {path for path, rpc in RPCS.items() if rpc.input_type.name not in NOT_BUILT}
    assert {method.path for method in METHODS.values()} & RPCS.keys() == built - WITHOUT
    source = "".join(Path(module.__file__).read_text() for module in (aio, operations_aio))
    unused = [name for name in METHODS if not re.search(rf"\bchannel\.{name}\b", source)]
    assert not unused, "the client has no method for these"


@pytest.mark.parametrize("name", METHODS)
def test_messages_are_those_of_the_rpc(name: str):
    method = METHODS[name]
    if method.path in RPCS:  # grpc.health.v1 is not ours
        rpc = RPCS[method.path]
        assert method.request.DESCRIPTOR.full_name == rpc.input_type.full_name
        assert method.response.DESCRIPTOR.full_name == rpc.output_type.full_name


def test_addresses():
    assert addresses("a:1") == ["a:1"] and addresses(("a:1", "b:2")) == ["a:1", "b:2"]
    for empty in ("", [], ["a:1", ""]):
        with pytest.raises(ValueError, match="is empty"):
            addresses(empty)


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [("127.0.0.1:5", True), ("grpc://[::1]:5", True), ("localhost:5", True), ("10.0.0.1:5", False)],
)
def test_a_proxy_is_for_other_hosts(address: str, is_loopback: bool):
    assert (("grpc.enable_http_proxy", 0) in options(address)) == is_loopback
