"""The gRPC services of a frontend, the interceptors before them, and reflection in `v1` and `v1alpha`."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from frontend.inspector import Inspector
from frontend.parts import FrontendParts
from frontend.rpc.fleet import Fleet
from frontend.rpc.interceptors.admission import AuthInterceptor, LimitsInterceptor
from frontend.rpc.interceptors.decoding import DecodingInterceptor
from frontend.rpc.interceptors.metrics import MetricsInterceptor, TraceInterceptor
from frontend.rpc.interceptors.unary import UnaryInterceptor
from frontend.servicers.admin import AdminServicer
from frontend.servicers.generation import GenerationServicer
from frontend.servicers.health import HealthServicer
from frontend.servicers.model import ModelServicer
from frontend.servicers.pooling import PoolingServicer
from frontend.servicers.tokenizer import TokenizerServicer
from frontend.streams.request_registry import Aborts
from pagewire.plugins import find_plugin
from pagewire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    pooling_pb2,
    pooling_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

DESCRIPTORS = tuple(
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (generation_pb2, "GenerationService"),
        (tokenizer_pb2, "TokenizerService"),
        (model_pb2, "ModelService"),
        (pooling_pb2, "PoolingService"),
        (admin_pb2, "AdminService"),
    )
)
SERVICES = tuple(service.full_name for service in DESCRIPTORS)
_OPTIONAL = ("vllm_engine", "open_inference", "tei", "orca")
"""Flags that ask for a service, which is the plug-in of this name; its protos are loaded only then."""
RECEIVE_TIMEOUT_S = 30.0
"""Seconds that a request message may take to arrive."""
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_OLD, _NEW = "grpc.reflection.v1alpha", "grpc.reflection.v1"
_METHOD = "ServerReflectionInfo"
SERVICE_NAME = f"{_NEW}.ServerReflection"
NAMES = (reflection.SERVICE_NAME, SERVICE_NAME)
"""Services that add_reflection() adds."""


class OptionalServicer(Protocol):
    """Services that a flag asks for, of a plug-in (pagewire.plugins)."""

    @property
    def interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """Those that it needs before all services."""

    @property
    def descriptors(self) -> Sequence[ServiceDescriptor]:
        """The services' descriptors."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the services."""


class Services:
    """All services that a frontend's flags ask for."""

    def __init__(self, parts: FrontendParts, aborts: Aborts, fleet: Fleet, inspector: Inspector) -> None:
        asked = [flag for flag in _OPTIONAL if getattr(parts.config, flag)]
        self._optional: list[OptionalServicer] = [
            find_plugin("pagewire.servicers", flag).load()(parts, aborts) for flag in asked
        ]
        descriptors = [*DESCRIPTORS, *chain.from_iterable(each.descriptors for each in self._optional)]
        self._names = tuple(service.full_name for service in descriptors)
        # The first one is the outermost and sees every call.
        self.interceptors: list[grpc.aio.ServerInterceptor] = [
            MetricsInterceptor([*descriptors, _HEALTH], parts.counters),
            TraceInterceptor(),
            AuthInterceptor(parts.authenticator),
            LimitsInterceptor(parts, RECEIVE_TIMEOUT_S),
            DecodingInterceptor(parts.large_messages),
            *(interceptor for servicer in self._optional for interceptor in servicer.interceptors),
            UnaryInterceptor(parts.write_timeouts),
        ]
        self._generation = GenerationServicer(parts, aborts)
        self._tokenizer = TokenizerServicer(parts)
        self._models = ModelServicer(parts)
        self._pooling = PoolingServicer(parts)
        self._admin = AdminServicer(parts, fleet, inspector)
        self._health = HealthServicer(parts, self._names)

    def add_to(self, server: grpc.aio.Server, *, reflects: bool) -> None:
        """Registers the services. reflects: gRPC's reflection too."""
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self._generation, server)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self._tokenizer, server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(self._models, server)
        pooling_pb2_grpc.add_PoolingServiceServicer_to_server(self._pooling, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self._admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for servicer in self._optional:
            servicer.add_to(server)
        if reflects:
            add_reflection(server, (*self._names, _HEALTH.full_name))


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Adds reflection to a server, of itself and of these services."""
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES), pool=_pool())
    reflection.enable_server_reflection((*services, *NAMES), server, pool=_pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {_METHOD: handler}),))


def _pool() -> descriptor_pool.DescriptorPool:
    """Returns the default pool, with the descriptor of the newer package in it."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileContainingSymbol(SERVICE_NAME)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        _rename(file)
        pool.Add(file)
    return pool


def _rename(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Moves a file, and the types that it refers to, to the newer package."""
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _NEW
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_OLD, _NEW)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_OLD, _NEW)
            method.output_type = method.output_type.replace(_OLD, _NEW)
