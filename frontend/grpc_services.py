"""The gRPC services of a frontend, and the interceptors before them."""

from typing import Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.inspection.inspector import Inspector
from frontend.parts import FrontendParts
from frontend.rpc.fleet import Fleet
from frontend.rpc.interceptors.auth import AuthInterceptor
from frontend.rpc.interceptors.decoding import DecodingInterceptor
from frontend.rpc.interceptors.limits import LimitsInterceptor
from frontend.rpc.interceptors.metrics import MetricsInterceptor, TraceInterceptor
from frontend.rpc.interceptors.unary import UnaryInterceptor
from frontend.rpc.reflection import add_reflection
from frontend.servicers.admin import AdminServicer
from frontend.servicers.generation import GenerationServicer
from frontend.servicers.health import HealthServicer
from frontend.servicers.model import ModelServicer
from frontend.servicers.pooling import PoolingServicer
from frontend.servicers.tokenizer import TokenizerServicer
from frontend.streams.continuation_scorer import ContinuationScorer
from frontend.streams.request_registry import Aborts
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
RECEIVE_TIMEOUT_S = 30.0
"""Seconds that a request message may take to arrive."""
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]


class OptionalServicer(Protocol):
    """A service that a flag asks for."""

    @property
    def descriptor(self) -> ServiceDescriptor:
        """Of the service."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""


class Services:
    """All services that a frontend's flags ask for."""

    def __init__(self, parts: FrontendParts, aborts: Aborts, fleet: Fleet, inspector: Inspector) -> None:
        load_reports = _make_load_reports(parts)
        self._optional = [
            *_make_vllm(parts, aborts),
            *_make_open_inference(parts),
            *(servicer for servicer, _ in load_reports),
        ]
        descriptors = [*DESCRIPTORS, *(servicer.descriptor for servicer in self._optional)]
        self._names = tuple(service.full_name for service in descriptors)
        # The first one is the outermost and sees every call.
        self.interceptors: list[grpc.aio.ServerInterceptor] = [
            MetricsInterceptor([*descriptors, _HEALTH], parts.counters),
            TraceInterceptor(),
            AuthInterceptor(parts.authenticator),
            LimitsInterceptor(parts.limits, parts.receiving_slots, parts.counters, RECEIVE_TIMEOUT_S),
            DecodingInterceptor(parts.large_messages),
            *(interceptor for _, interceptor in load_reports),
            UnaryInterceptor(parts.write_timeouts),
        ]
        config, model, prompts = parts.config, parts.model, parts.prompts
        generator, engine, limits, timeouts = (
            parts.generator,
            parts.engine,
            parts.limits,
            parts.write_timeouts,
        )
        scorer = ContinuationScorer(config, model, prompts, engine, generator, limits)
        self._generation = GenerationServicer(config, generator, aborts, parts.state, limits, timeouts)
        self._tokenizer = TokenizerServicer(model, prompts, engine, limits, timeouts)
        self._models = ModelServicer(config, model, engine)
        self._pooling = PoolingServicer(scorer, parts.embedder, prompts, parts.state)
        self._admin = AdminServicer(config, engine, parts.state, fleet, timeouts, inspector)
        self._health = HealthServicer(parts.state, self._names, timeouts)

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


def _make_vllm(parts: FrontendParts, aborts: Aborts) -> list[OptionalServicer]:
    """Returns the servicer of --vllm-engine, whose protos are loaded only here."""
    if not parts.config.vllm_engine:
        return []
    from frontend.servicers.vllm import VllmServicer

    servicer = VllmServicer(
        *(parts.model, parts.generator, parts.embedder, aborts, parts.engine, parts.prompts, parts.state),
        parts.write_timeouts,
    )
    return [servicer]


def _make_open_inference(parts: FrontendParts) -> list[OptionalServicer]:
    """Returns the servicer of --open-inference, whose protos are loaded only here."""
    if not parts.config.open_inference:
        return []
    from frontend.servicers.open_inference.servicer import OpenInferenceServicer

    servicer = OpenInferenceServicer(
        parts.config, parts.model, parts.generator, parts.state, parts.limits, parts.write_timeouts
    )
    return [servicer]


def _make_load_reports(
    parts: FrontendParts,
) -> list[tuple[OptionalServicer, grpc.aio.ServerInterceptor]]:
    """Returns the servicer and the interceptor of --orca, whose protos are loaded only here."""
    if not parts.config.orca:
        return []
    from frontend.rpc.interceptors.load_reports import LoadReportInterceptor
    from frontend.servicers.orca import LoadReports, OrcaServicer

    reports = LoadReports(parts.engine)
    servicer = OrcaServicer(reports, parts.state, parts.write_timeouts)
    return [(servicer, LoadReportInterceptor(reports))]
