"""A frontend: its parts, its services, the ports that they are reached at, and how it ends."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import grpc

from frontend.auth.authenticator import AnonymousAuthenticator, TokenAuthenticator
from frontend.auth.tokens import TokenFile
from frontend.grpc_services import Services
from frontend.inspector import Inspector
from frontend.metrics import FrontendWatch
from frontend.model.info import ModelInfo
from frontend.parts import FrontendParts, make_parts
from frontend.rpc.fleet import Fleet, address_of
from frontend.rpc.grpc_server import GrpcServer, bind, server_options
from frontend.rpc.shutdown import Drain, Shutdown
from frontend.streams.request_registry import Aborts
from frontend.telemetry.tracing import close_tracer
from pagewire.config import FrontendConfig
from pagewire.host.file_watch import FileWatch
from pagewire.host.standby import Fork
from pagewire.host.tls import Certificates, read_certificates
from pagewire.plugins import find_plugin, plugins

if TYPE_CHECKING:
    from frontend.http.port import HttpPort, Render

log = logging.getLogger(__name__)


class Frontend:
    """A frontend process without its signal handlers. Lives on one event loop."""

    def __init__(self, config: FrontendConfig, model: ModelInfo, fork_reader: Fork | None = None) -> None:
        """fork_reader: starts prompt processes; None: they are started with their imports."""
        self._config = config
        self._certificates = read_certificates("--tls", config.tls_cert, config.tls_key, config.tls_client_ca)
        tokens = TokenFile(config.auth_file) if config.auth_file else None
        authenticator = TokenAuthenticator(tokens) if tokens is not None else AnonymousAuthenticator()
        self.parts = parts = make_parts(config, model, authenticator, fork_reader)
        self.state, self.engine, self.limits = parts.state, parts.engine, parts.limits
        self.write_timeouts, self.counters = parts.write_timeouts, parts.counters
        self.watch = FrontendWatch(parts)
        registry = parts.generator.registry
        self._drain = Drain(self.state, registry, config.drain_delay)
        fleet = Fleet(self.engine, self._drain, self.state, registry)
        self.engine.obey = fleet.obey
        self.inspector = Inspector(registry, self.engine)
        self._services = Services(parts, Aborts(registry, self.engine.questions), fleet, self.inspector)
        self._reflects = config.reflection or (config.reflection is None and tokens is None)
        self._port = 0
        self._ports: list[int] = []
        self._server = GrpcServer(self._make_server, self._bind)
        self._http = _make_http_port(parts, self.inspector, self._certificates, self.watch.metrics)
        doors = [] if self._http is None else [self._http]
        self._files = FileWatch([each for each in (self._certificates, tokens) if each is not None])
        self._shutdown = Shutdown(self.state, self._drain, registry, self._server, *doors)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line."""
        return self.watch.facts | (self._http.facts if self._http is not None else {})

    def open(self) -> int:
        """Opens the ports and starts connecting to the engine; calls wait in the kernel's queue until
        start(). Returns gRPC's port. Raises StartupError."""
        self._port = self._server.open(self._config.port)
        self._ports = [self._port] + [port for port in [self._config.loopback_port] if port is not None]
        if self._http is not None:
            self._ports.append(self._http.open())
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
        if self._http is not None:
            await self._http.start()
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
        await self.parts.prompts.close()
        self.watch.close()
        close_tracer(self.parts.tracer)

    def hurry(self) -> None:
        """Skips what stop() still waits for."""
        self._shutdown.hurry()

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=self._services.interceptors, options=server_options(self._config)
        )
        self._services.add_to(server, reflects=self._reflects)
        return server

    def _bind(self, server: grpc.aio.Server, port: int) -> int:
        return bind(server, self._config, port, self._certificates)


def _make_http_port(
    parts: FrontendParts, inspector: Inspector, certificates: Certificates | None, metrics: "Render"
) -> "HttpPort | None":
    """Returns the server of --openai-port, whose modules and plug-ins are loaded only here. Raises
    StartupError."""
    if parts.config.openai_port is None:
        return None
    from frontend.http.port import HttpPort

    found = {"openai": find_plugin("pagewire.http", "openai")} | plugins("pagewire.http")
    made = [plugin.load()(parts, inspector) for plugin in found.values()]
    extensions = [each for each in made if each is not None]
    return HttpPort(parts, parts.config.openai_port, certificates, metrics, extensions)
