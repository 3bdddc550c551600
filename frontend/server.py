"""Assembles a frontend and its gRPC server."""

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.auth.authenticator import AnonymousAuthenticator, Authenticator, TokenAuthenticator
from frontend.auth.token_file import TokenFile
from frontend.concurrency_limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.engine.discovery import GivenAddresses
from frontend.engine.socket import EngineSocket
from frontend.file_watch import FileWatch
from frontend.inspection.inspector import Inspector
from frontend.large_messages import LargeMessages
from frontend.metrics import FrontendParts, FrontendWatch
from frontend.model_info import ModelInfo
from frontend.pooling.embedder import Embedder
from frontend.prompts.process_pool import PromptProcesses
from frontend.prompts.prompt_reader import PromptReader
from frontend.receiving_slots import ReceivingSlots
from frontend.rpc.drain import Drain
from frontend.rpc.fleet import Fleet, address_of
from frontend.rpc.grpc_server import GrpcServer
from frontend.rpc.interceptors.auth import AuthInterceptor
from frontend.rpc.interceptors.decoding import DecodingInterceptor
from frontend.rpc.interceptors.limits import LimitsInterceptor
from frontend.rpc.interceptors.metrics import MetricsInterceptor
from frontend.rpc.interceptors.tracing import TraceInterceptor
from frontend.rpc.interceptors.unary import UnaryInterceptor
from frontend.rpc.listening.options import bind, server_options
from frontend.rpc.listening.tls import certificates_of
from frontend.rpc.reflection import add_reflection
from frontend.rpc.shutdown import Shutdown
from frontend.servicers.admin import AdminServicer
from frontend.servicers.generation import GenerationServicer
from frontend.servicers.health import HealthServicer
from frontend.servicers.model import ModelServicer
from frontend.servicers.pooling import PoolingServicer
from frontend.servicers.tokenizer import TokenizerServicer
from frontend.state import ServingState
from frontend.streams.aborts import Aborts
from frontend.streams.continuation_scorer import ContinuationScorer
from frontend.streams.generator import Generator
from frontend.telemetry.counters import Counters
from frontend.telemetry.tracing import close_tracer, make_tracer
from frontend.write_timeout import WriteTimeouts
from pagewire.config import FrontendConfig
from pagewire.ipc.curve import read_client_key
from pagewire.ipc.transport import default_folder, frontends_address
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

if TYPE_CHECKING:
    from frontend.openai.door import OpenAiServer

log = logging.getLogger(__name__)

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


class Frontend:
    """A frontend process without its signal handlers. Lives on one event loop."""

    def __init__(self, config: FrontendConfig, model: ModelInfo) -> None:
        self._config = config
        self._certificates = certificates_of(config)
        tokens = TokenFile(config.auth_file) if config.auth_file else None
        self.state = ServingState()
        self._prompts = PromptReader(
            model.tokenizer,
            model.chat_template,
            config.tokenizer_threads,
            PromptProcesses(config),
            answers=model.answers,
        )
        addresses = GivenAddresses(config.engine or [frontends_address(default_folder())])
        key = read_client_key(config.curve_key) if config.curve_key else None
        make_socket = partial(EngineSocket, key=key)
        self.engine = EngineClient(
            addresses, self.state, config.resume_timeout, make_socket, ready_timeout=config.ready_timeout
        )
        self.limits = ConcurrencyLimits(config.max_concurrent_requests, config.max_tokenizing_bytes)
        self.write_timeouts = WriteTimeouts(config.write_timeout)
        self.counters = Counters()
        self._tracer = make_tracer(config)
        self._generator = Generator(
            config, model, self._prompts, self.engine, self.limits, self.counters, self._tracer
        )
        self._embedder = Embedder(config, model, self._prompts, self.engine, self._generator, self.limits)
        parts = FrontendParts(
            self.state, self._generator.registry, self.engine, self.limits, self._generator.pacer
        )
        self.watch = FrontendWatch(config, self.counters, parts)
        aborts = Aborts(self._generator.registry, self.engine.questions)
        load_reports = self._make_load_reports()
        self._optional = [
            *self._make_vllm(model, aborts),
            *self._make_open_inference(model),
            *(servicer for servicer, _ in load_reports),
        ]
        descriptors = [*DESCRIPTORS, *(servicer.descriptor for servicer in self._optional)]
        self._services = tuple(service.full_name for service in descriptors)
        authenticator = TokenAuthenticator(tokens) if tokens is not None else AnonymousAuthenticator()
        self._receiving_slots = ReceivingSlots()
        self._large_messages = LargeMessages(self.limits)
        # The first one is the outermost and sees every call.
        self._interceptors = [
            MetricsInterceptor([*descriptors, _HEALTH], self.counters),
            TraceInterceptor(),
            AuthInterceptor(authenticator),
            LimitsInterceptor(self.limits, self._receiving_slots, self.counters, RECEIVE_TIMEOUT_S),
            DecodingInterceptor(self._large_messages),
            *(interceptor for _, interceptor in load_reports),
            UnaryInterceptor(self.write_timeouts),
        ]
        self._reflects = config.reflection or (config.reflection is None and tokens is None)
        self._drain = Drain(self.state, self._generator.registry, config.drain_delay)
        fleet = Fleet(self.engine, self._drain, self.state, self._generator.registry)
        self.engine.obey = fleet.obey
        self._port = 0
        self._ports: list[int] = []
        scorer = ContinuationScorer(config, model, self._prompts, self.engine, self._generator, self.limits)
        self._generation = GenerationServicer(
            config, self._generator, aborts, self.state, self.limits, self.write_timeouts
        )
        self._tokenizer = TokenizerServicer(
            model, self._prompts, self.engine, self.limits, self.write_timeouts
        )
        self._models = ModelServicer(config, model, self.engine)
        self._pooling = PoolingServicer(scorer, self._embedder, self._prompts, self.state)
        self.inspector = Inspector(self._generator.registry, self.engine)
        self._admin = AdminServicer(
            config, self.engine, self.state, fleet, self.write_timeouts, self.inspector
        )
        self._health = HealthServicer(self.state, self._services, self.write_timeouts)
        self._server = GrpcServer(self._make_server, self._bind)
        self._openai = self._make_openai(model, authenticator)
        doors = [] if self._openai is None else [self._openai]
        watched = [self._certificates, tokens, *(each for door in doors for each in door.watched)]
        self._files = FileWatch([each for each in watched if each is not None])
        self._shutdown = Shutdown(self.state, self._drain, self._generator.registry, self._server, *doors)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line."""
        return self.watch.facts | (self._openai.facts if self._openai is not None else {})

    def open(self) -> int:
        """Opens the ports and starts connecting to the engine; calls wait in the kernel's queue until
        start(). Returns gRPC's port. Raises StartupError."""
        self._port = self._server.open(self._config.port)
        self._ports = [self._port] + [port for port in [self._config.loopback_port] if port is not None]
        if self._openai is not None:
            self._ports.append(self._openai.open())
        self._files.start()
        self.watch.start()
        self.engine.hello.name = self._config.process_name
        self.engine.hello.address = address_of(self._config.host, self._port)
        self.engine.start()
        self.write_timeouts.start()
        return self._port

    async def start(self, patience: float = 0.0) -> None:
        """Starts answering calls when the engine serves, or after `patience` seconds: a load balancer without
        health checks then finds an engine from the first call on, if there is one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait_until_serving(), patience)
        await self._server.start()
        if self._openai is not None:
            await self._openai.start()
        log.info("listening on %s:%d", self._config.host, self._port)

    async def wait_broken(self) -> None:
        """Never returns; raises when calls cannot be accepted any more."""
        await self._server.wait_broken()

    async def wait_until_serving(self) -> None:
        """Waits for the engine's welcome, however long it takes."""
        while not self.state.serves:
            await self.state.changed()

    async def stop(self, grace: float, delay: float = 0.0) -> None:
        """Shuts down; see Shutdown. `delay` and `grace` are in seconds."""
        await self._shutdown.run(self._ports, delay, grace)
        await self.write_timeouts.stop()
        await self._files.stop()
        await self.engine.close()
        await self._prompts.close()
        self.watch.close()
        close_tracer(self._tracer)

    def hurry(self) -> None:
        """Skips what stop() still waits for."""
        self._shutdown.hurry()

    def _make_vllm(self, model: ModelInfo, aborts: Aborts) -> list[OptionalServicer]:
        """Returns the servicer of --vllm-engine, whose protos are loaded only here."""
        if not self._config.vllm_engine:
            return []
        from frontend.servicers.vllm import VllmServicer

        servicer = VllmServicer(
            *(model, self._generator, self._embedder, aborts, self.engine, self._prompts, self.state),
            self.write_timeouts,
        )
        return [servicer]

    def _make_open_inference(self, model: ModelInfo) -> list[OptionalServicer]:
        """Returns the servicer of --open-inference, whose protos are loaded only here."""
        if not self._config.open_inference:
            return []
        from frontend.servicers.open_inference.servicer import OpenInferenceServicer

        servicer = OpenInferenceServicer(
            self._config, model, self._generator, self.state, self.limits, self.write_timeouts
        )
        return [servicer]

    def _make_load_reports(self) -> list[tuple[OptionalServicer, grpc.aio.ServerInterceptor]]:
        """Returns the servicer and the interceptor of --orca, whose protos are loaded only here."""
        if not self._config.orca:
            return []
        from frontend.rpc.interceptors.load_reports import LoadReportInterceptor
        from frontend.servicers.orca import LoadReports, OrcaServicer

        reports = LoadReports(self.engine)
        return [(OrcaServicer(reports, self.state, self.write_timeouts), LoadReportInterceptor(reports))]

    def _make_openai(self, model: ModelInfo, authenticator: Authenticator) -> "OpenAiServer | None":
        """Returns the server of --openai-port, whose modules are loaded only here. Raises StartupError."""
        if self._config.openai_port is None:
            return None
        from frontend.console.console import console_of
        from frontend.openai.door import OpenAiServer
        from frontend.openai.parts import ApiParts

        parts = ApiParts(
            self._config,
            model,
            self._generator,
            self._prompts,
            self.engine,
            self.state,
            self.limits,
            self.write_timeouts,
            authenticator,
            self.counters,
            self._embedder,
            self._receiving_slots,
            self._large_messages,
        )
        return OpenAiServer(parts, self._config.openai_port, console_of(parts, self.inspector))

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=self._interceptors, options=server_options(self._config))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self._generation, server)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self._tokenizer, server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(self._models, server)
        pooling_pb2_grpc.add_PoolingServiceServicer_to_server(self._pooling, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self._admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for servicer in self._optional:
            servicer.add_to(server)
        if self._reflects:
            add_reflection(server, (*self._services, _HEALTH.full_name))
        return server

    def _bind(self, server: grpc.aio.Server, port: int) -> int:
        certificates = self._certificates
        return bind(server, self._config, port, certificates.credentials() if certificates else None)
