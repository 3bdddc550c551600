"""Channel options, and the methods of the services with their message types."""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from pagewire.v1 import (
    admin_pb2,
    generation_pb2,
    inspection_pb2,
    model_pb2,
    pooling_pb2,
    tokenizer_pb2,
)
from pagewire_client.transport.credentials import Credentials

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

MAX_RESPONSE_BYTES = 64 << 20
NO_CREDENTIALS = Credentials()
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Method(Generic[Q, R]):
    """A method of a service with its message types, which the generated stubs do not expose."""

    path: str
    request: type[Q]
    response: type[R]

    @property
    def codec(self) -> dict[str, Callable[..., Any]]:
        """Keyword arguments of Channel.unary_unary() and similar methods."""
        return {
            "request_serializer": self.request.SerializeToString,
            "response_deserializer": self.response.FromString,
        }


def _method(service: str, request: type[Q], response: type[R], name: str = "") -> Method[Q, R]:
    """Returns a method. name: default: that of its request type, without the last word."""
    name = name or request.DESCRIPTOR.name.removesuffix("Request")
    return Method(f"/{service}/{name}", request, response)


_GENERATION, _TOKENIZER = "pagewire.v1.GenerationService", "pagewire.v1.TokenizerService"
_POOLING, _MODELS = "pagewire.v1.PoolingService", "pagewire.v1.ModelService"
_ADMIN, _HEALTH = "pagewire.v1.AdminService", "grpc.health.v1.Health"

GENERATE = _method(_GENERATION, generation_pb2.GenerateRequest, generation_pb2.GenerateResponse)
GENERATE_UNARY = _method(
    _GENERATION, generation_pb2.GenerateRequest, generation_pb2.GenerateResponse, "GenerateUnary"
)
GENERATE_MULTIPLEXED = _method(
    _GENERATION, generation_pb2.GenerateMultiplexedRequest, generation_pb2.GenerateMultiplexedResponse
)
ABORT = _method(_GENERATION, generation_pb2.AbortRequest, generation_pb2.AbortResponse)
TOKENIZE = _method(_TOKENIZER, tokenizer_pb2.TokenizeRequest, tokenizer_pb2.TokenizeResponse)
DETOKENIZE = _method(_TOKENIZER, tokenizer_pb2.DetokenizeRequest, tokenizer_pb2.DetokenizeResponse)
EMBED = _method(_POOLING, pooling_pb2.EmbedRequest, pooling_pb2.EmbedResponse)
CLASSIFY = _method(_POOLING, pooling_pb2.ClassifyRequest, pooling_pb2.ClassifyResponse)
SCORE = _method(_POOLING, pooling_pb2.ScoreRequest, pooling_pb2.ScoreResponse)
SCORE_CONTINUATIONS = _method(
    _POOLING, pooling_pb2.ScoreContinuationsRequest, pooling_pb2.ScoreContinuationsResponse
)
LIST_MODELS = _method(_MODELS, model_pb2.ListModelsRequest, model_pb2.ListModelsResponse)
GET_MODEL = _method(_MODELS, model_pb2.GetModelRequest, model_pb2.GetModelResponse)
LOAD_ADAPTER = _method(_MODELS, model_pb2.LoadAdapterRequest, model_pb2.LoadAdapterResponse)
UNLOAD_ADAPTER = _method(_MODELS, model_pb2.UnloadAdapterRequest, model_pb2.UnloadAdapterResponse)
LIST_ADAPTERS = _method(_MODELS, model_pb2.ListAdaptersRequest, model_pb2.ListAdaptersResponse)
GET_SERVER_INFO = _method(_ADMIN, admin_pb2.GetServerInfoRequest, admin_pb2.GetServerInfoResponse)
GET_LOAD = _method(_ADMIN, admin_pb2.GetLoadRequest, admin_pb2.GetLoadResponse)
RESET_CACHE = _method(_ADMIN, admin_pb2.ResetCacheRequest, admin_pb2.ResetCacheResponse)
DRAIN = _method(_ADMIN, admin_pb2.DrainRequest, admin_pb2.DrainResponse)
RESUME = _method(_ADMIN, admin_pb2.ResumeRequest, admin_pb2.ResumeResponse)
WATCH_LOAD = _method(_ADMIN, admin_pb2.WatchLoadRequest, admin_pb2.WatchLoadResponse)
LIST_REQUESTS = _method(_ADMIN, inspection_pb2.ListRequestsRequest, inspection_pb2.ListRequestsResponse)
EXPLAIN_REQUEST = _method(_ADMIN, inspection_pb2.ExplainRequestRequest, inspection_pb2.ExplainRequestResponse)
GET_KV_POOL = _method(_ADMIN, inspection_pb2.GetKvPoolRequest, inspection_pb2.GetKvPoolResponse)
LIST_TENANTS = _method(_ADMIN, inspection_pb2.ListTenantsRequest, inspection_pb2.ListTenantsResponse)
LIST_ENGINES = _method(_ADMIN, inspection_pb2.ListEnginesRequest, inspection_pb2.ListEnginesResponse)
CHECK = _method(_HEALTH, health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse, "Check")


def drain_request(timeout: float | None, frontend: str, all_frontends: bool) -> admin_pb2.DrainRequest:
    """Returns the request. timeout: seconds; None: no limit."""
    request = admin_pb2.DrainRequest(frontend=frontend, all_frontends=all_frontends)
    if timeout is not None:
        request.timeout.FromNanoseconds(round(timeout * 1e9))
    return request


def addresses(address: str | Sequence[str]) -> list[str]:
    """Returns one or several addresses as a list. Raises ValueError if there is none, or an empty one."""
    found = [address] if isinstance(address, str) else list(address)
    if not found or not all(found):
        raise ValueError("the address to connect to is empty")
    return found


def options(address: str, credentials: Credentials = NO_CREDENTIALS) -> list[tuple[str, int | str]]:
    """Returns the channel options for an address."""
    chosen: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        # A server that vanishes without closing the connection is noticed within 40 s.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # default: a minute
        # gRPC's default back-off reaches two minutes, too long after a restart.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Each client has its own connection: several clients reach several frontends behind one port.
        ("grpc.use_local_subchannel_pool", 1),
        *credentials.options(),
    ]
    if _is_loopback(address):
        chosen.append(("grpc.enable_http_proxy", 0))  # http_proxy is meant for other hosts
    return chosen


def target(address: str) -> str:
    """Returns the name that gRPC resolves; the address may be given as printed: grpc://HOST:PORT."""
    return address.removeprefix("grpc://")


def _is_loopback(address: str) -> bool:
    host = target(address).rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
