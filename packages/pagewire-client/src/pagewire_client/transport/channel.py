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
    response: type[R]
    request: type[Q]

    @property
    def codec(self) -> dict[str, Callable[..., Any]]:
        """Keyword arguments of Channel.unary_unary() and similar methods."""
        return {
            "request_serializer": self.request.SerializeToString,
            "response_deserializer": self.response.FromString,
        }


GENERATE = Method(
    "/pagewire.v1.GenerationService/Generate",
    generation_pb2.GenerateResponse,
    generation_pb2.GenerateRequest,
)
GENERATE_UNARY = Method(
    "/pagewire.v1.GenerationService/GenerateUnary",
    generation_pb2.GenerateResponse,
    generation_pb2.GenerateRequest,
)
GENERATE_MULTIPLEXED = Method(
    "/pagewire.v1.GenerationService/GenerateMultiplexed",
    generation_pb2.GenerateMultiplexedResponse,
    generation_pb2.GenerateMultiplexedRequest,
)
ABORT = Method(
    "/pagewire.v1.GenerationService/Abort", generation_pb2.AbortResponse, generation_pb2.AbortRequest
)
TOKENIZE = Method(
    "/pagewire.v1.TokenizerService/Tokenize", tokenizer_pb2.TokenizeResponse, tokenizer_pb2.TokenizeRequest
)
DETOKENIZE = Method(
    "/pagewire.v1.TokenizerService/Detokenize",
    tokenizer_pb2.DetokenizeResponse,
    tokenizer_pb2.DetokenizeRequest,
)
EMBED = Method("/pagewire.v1.PoolingService/Embed", pooling_pb2.EmbedResponse, pooling_pb2.EmbedRequest)
CLASSIFY = Method(
    "/pagewire.v1.PoolingService/Classify", pooling_pb2.ClassifyResponse, pooling_pb2.ClassifyRequest
)
SCORE = Method("/pagewire.v1.PoolingService/Score", pooling_pb2.ScoreResponse, pooling_pb2.ScoreRequest)
SCORE_CONTINUATIONS = Method(
    "/pagewire.v1.PoolingService/ScoreContinuations",
    pooling_pb2.ScoreContinuationsResponse,
    pooling_pb2.ScoreContinuationsRequest,
)
LIST_MODELS = Method(
    "/pagewire.v1.ModelService/ListModels", model_pb2.ListModelsResponse, model_pb2.ListModelsRequest
)
GET_MODEL = Method(
    "/pagewire.v1.ModelService/GetModel", model_pb2.GetModelResponse, model_pb2.GetModelRequest
)
LOAD_ADAPTER = Method(
    "/pagewire.v1.ModelService/LoadAdapter", model_pb2.LoadAdapterResponse, model_pb2.LoadAdapterRequest
)
UNLOAD_ADAPTER = Method(
    "/pagewire.v1.ModelService/UnloadAdapter",
    model_pb2.UnloadAdapterResponse,
    model_pb2.UnloadAdapterRequest,
)
LIST_ADAPTERS = Method(
    "/pagewire.v1.ModelService/ListAdapters", model_pb2.ListAdaptersResponse, model_pb2.ListAdaptersRequest
)
GET_SERVER_INFO = Method(
    "/pagewire.v1.AdminService/GetServerInfo",
    admin_pb2.GetServerInfoResponse,
    admin_pb2.GetServerInfoRequest,
)
GET_LOAD = Method("/pagewire.v1.AdminService/GetLoad", admin_pb2.GetLoadResponse, admin_pb2.GetLoadRequest)
RESET_CACHE = Method(
    "/pagewire.v1.AdminService/ResetCache", admin_pb2.ResetCacheResponse, admin_pb2.ResetCacheRequest
)
DRAIN = Method("/pagewire.v1.AdminService/Drain", admin_pb2.DrainResponse, admin_pb2.DrainRequest)
RESUME = Method("/pagewire.v1.AdminService/Resume", admin_pb2.ResumeResponse, admin_pb2.ResumeRequest)
WATCH_LOAD = Method(
    "/pagewire.v1.AdminService/WatchLoad", admin_pb2.WatchLoadResponse, admin_pb2.WatchLoadRequest
)
LIST_REQUESTS = Method(
    "/pagewire.v1.AdminService/ListRequests",
    inspection_pb2.ListRequestsResponse,
    inspection_pb2.ListRequestsRequest,
)
EXPLAIN_REQUEST = Method(
    "/pagewire.v1.AdminService/ExplainRequest",
    inspection_pb2.ExplainRequestResponse,
    inspection_pb2.ExplainRequestRequest,
)
GET_KV_POOL = Method(
    "/pagewire.v1.AdminService/GetKvPool", inspection_pb2.GetKvPoolResponse, inspection_pb2.GetKvPoolRequest
)
LIST_TENANTS = Method(
    "/pagewire.v1.AdminService/ListTenants",
    inspection_pb2.ListTenantsResponse,
    inspection_pb2.ListTenantsRequest,
)
LIST_ENGINES = Method(
    "/pagewire.v1.AdminService/ListEngines",
    inspection_pb2.ListEnginesResponse,
    inspection_pb2.ListEnginesRequest,
)
CHECK = Method("/grpc.health.v1.Health/Check", health_pb2.HealthCheckResponse, health_pb2.HealthCheckRequest)


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
